//! Go templates with the functions of sprig and Helm: parsed once, rendered within limits. Templates and data are untrusted: whatever is
//! wrong is an [`Error`] with template, line and column, and nothing is done but to make text. No I/O, no clock, no randomness.
//!
//! ```
//! use agentcube_template::{Limits, Templates};
//!
//! let templates = Templates::parse([("main", "{{ .Values.name | upper | quote }}")])?;
//! let data = serde_json::json!({ "Values": { "name": "cache" } });
//! assert_eq!(templates.render("main", &data, &Limits::default())?, "\"CACHE\"");
//! # Ok::<(), agentcube_template::Error>(())
//! ```
//!
//! # The language
//!
//! All of `text/template`: actions, pipelines, variables, `if`, `with`, `range` (lists, maps, numbers), `break`, `continue`, `define`,
//! `template`, `block`, comments and trim markers. Not: methods of data, functions in data, complex numbers, other delimiters.
//!
//! Whole numbers of the data are `int64`, others `float64`. Functions get what they are given: where Go wants an `int` and gets an
//! `int64`, it refuses, and so does this.
//!
//! # Functions
//!
//! - Of Go: `and`, `or`, `not`, `len`, `index`, `eq`, `ne`, `lt`, `le`, `gt`, `ge`, `print`, `printf`, `println`, `html`, `js`, `urlquery`
//! - Of Helm: `include`, `tpl`, `required`, `fail`, `lookup` (finds nothing), `toYaml`, `fromYaml`, `fromYamlArray`, `toJson`, `fromJson`,
//!   `fromJsonArray`
//! - JSON: `mustToJson`, `toPrettyJson`, `mustToPrettyJson`, `toRawJson`, `mustToRawJson`, `mustFromJson`
//! - Whether there is a value: `default`, `empty`, `coalesce`, `all`, `any`, `ternary`
//! - Strings: `trim`, `trimAll`, `trimall`, `trimSuffix`, `trimPrefix`, `upper`, `lower`, `title`, `untitle`, `swapcase`, `snakecase`,
//!   `camelcase`, `kebabcase`, `initials`, `nospace`, `repeat`, `substr`, `trunc`, `abbrev`, `abbrevboth`, `contains`, `hasPrefix`,
//!   `hasSuffix`, `quote`, `squote`, `cat`, `indent`, `nindent`, `replace`, `plural`, `wrap`, `wrapWith`, `toString`, `toStrings`, `join`,
//!   `split`, `splitn`, `splitList`, `sortAlpha`, `hello`
//! - Regular expressions: `regexMatch`, `regexFind`, `regexFindAll`, `regexReplaceAll`, `regexReplaceAllLiteral`, `regexSplit`,
//!   `regexQuoteMeta`, `mustRegexMatch`, `mustRegexFind`, `mustRegexFindAll`, `mustRegexReplaceAll`, `mustRegexReplaceAllLiteral`,
//!   `mustRegexSplit`
//! - Lists: `list`, `tuple`, `first`, `last`, `rest`, `initial`, `append`, `push`, `prepend`, `concat`, `reverse`, `uniq`, `compact`, `without`,
//!   `has`, `slice`, `chunk`, `until`, `untilStep`, `seq`, and `mustFirst`, `mustLast`, `mustRest`, `mustInitial`, `mustAppend`, `mustPush`,
//!   `mustPrepend`, `mustReverse`, `mustUniq`, `mustCompact`, `mustWithout`, `mustHas`, `mustSlice`, `mustChunk`
//! - Maps: `dict`, `get`, `set`, `unset`, `hasKey`, `keys`, `values`, `pluck`, `pick`, `omit`, `merge`, `mustMerge`, `mergeOverwrite`,
//!   `mustMergeOverwrite`, `deepCopy`, `mustDeepCopy`, `dig`
//! - Numbers: `int`, `int64`, `float64`, `atoi`, `toDecimal`, `add`, `add1`, `sub`, `mul`, `div`, `mod`, `max`, `biggest`, `min`, `addf`, `add1f`,
//!   `subf`, `mulf`, `divf`, `maxf`, `minf`, `ceil`, `floor`, `round`
//! - What a value is: `typeOf`, `typeIs`, `typeIsLike`, `kindOf`, `kindIs`, `deepEqual`
//! - Encodings: `b64enc`, `b64dec`, `b32enc`, `b32dec`, `sha1sum`, `sha256sum`, `sha512sum`, `adler32sum`
//! - Versions: `semver`, `semverCompare`
//! - Paths and URLs: `base`, `dir`, `clean`, `ext`, `isAbs`, `osBase`, `osDir`, `osClean`, `osExt`, `osIsAbs`, `urlParse`, `urlJoin`
//!
//! What depends on chance, on the time or on the machine is refused when a template is parsed, and the error says what to do instead.

mod call;
mod error;
mod evaluate;
mod functions;
mod json;
mod lexer;
mod literal;
mod memory;
mod parser;
mod print;
mod tree;
mod value;
mod yaml;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

pub use error::{Error, Kind, Place};

use crate::evaluate::Renderer;
use crate::tree::{Source, Tree, is_empty};

/// What a rendering may use. Whatever reaches a limit ends with an error that says which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Actions, values looked at, kilobytes worked on.
    pub steps: u64,
    /// Blocks, parentheses and templates inside of one another while rendering, in which `include` and `tpl` count twice; no more than
    /// [`Limits::DEEPEST`].
    pub depth: usize,
    /// Bytes of the output, and of any text on the way there.
    pub output: usize,
    /// Bytes of all values that are made on the way.
    pub memory: usize,
    /// Bytes of a text that `tpl` is given.
    pub source: usize,
}

impl Limits {
    /// No more fits on the stack of a thread, in builds without optimization too.
    pub const DEEPEST: usize = 128;
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            steps: 1_000_000,
            depth: Limits::DEEPEST,
            output: 1 << 20,
            memory: 64 << 20,
            source: 1 << 20,
        }
    }
}

/// What a key that is not there means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// As with Helm: it prints nothing, and to look further into it is an error, unless parentheses are around it: `(.a).b`.
    #[default]
    Empty,
    /// As with Go, if it is told nothing: it prints `<no value>`, and one can look further into it.
    NoValue,
    /// As with Go's `missingkey=error`: an error.
    Refused,
}

/// Templates that know one another by name.
#[derive(Clone, Debug, Default)]
pub struct Templates {
    trees: BTreeMap<Arc<str>, Arc<Tree>>,
    missing: Missing,
}

impl Templates {
    /// The largest text of a template, in bytes.
    pub const LARGEST: usize = 1 << 20;

    /// Parses texts, each of which is a template by its name and may define others. Of two with one name the later counts, unless
    /// there is nothing in it.
    pub fn parse<N, T>(texts: impl IntoIterator<Item = (N, T)>) -> Result<Templates, Error>
    where
        N: AsRef<str>,
        T: AsRef<str>,
    {
        let mut templates = Templates::default();
        for (name, text) in texts {
            let (name, text) = (name.as_ref(), text.as_ref());
            if text.len() > Templates::LARGEST {
                let source = Source { name: name.into(), text: "".into() };
                let message = format!("larger than {} bytes", Templates::LARGEST);
                return Err(source.error(Kind::Limit, 0, message));
            }
            templates.add(parser::parse(name, text)?);
        }
        Ok(templates)
    }

    /// The same, with another meaning of keys that are not there.
    pub fn with_missing(mut self, missing: Missing) -> Templates {
        self.missing = missing;
        self
    }

    /// The names of all templates.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.trees.keys().map(|name| &**name)
    }

    /// Renders a template. The same templates and the same data always give the same output.
    pub fn render(&self, name: &str, data: &Json, limits: &Limits) -> Result<String, Error> {
        Renderer::new(self, limits).render(name, data)
    }

    fn add(&mut self, trees: BTreeMap<Arc<str>, Tree>) {
        for (name, tree) in trees {
            if !(self.trees.contains_key(&name) && is_empty(&tree.root)) {
                self.trees.insert(name, Arc::new(tree));
            }
        }
    }
}
