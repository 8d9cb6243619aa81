//! The functions that templates can call. Each says what arguments it wants, by which it is called or refused. None has effects
//! outside of the rendering, and none gives another result tomorrow.

mod cases;
pub(crate) mod core;
mod dicts;
mod encoding;
mod lists;
mod math;
mod paths;
mod reflect;
mod regex;
pub(crate) mod semver;
mod text;
mod urls;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::error::Fault;
use crate::memory::Memory;
use crate::value::{MapId, Value};

pub(crate) use dicts::copied as deep_copy;

/// A function by its name.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) parameters: &'static [Param],
    /// What further arguments have to be, if there may be some.
    pub(crate) rest: Option<Param>,
    pub(crate) run: Run,
}

/// What an argument has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Param {
    Any,
    Text,
    Int,
    Float,
    Bool,
    /// A map of anything, or nil.
    Dict,
}

impl Param {
    pub(crate) fn type_name(self) -> &'static str {
        match self {
            Param::Any => "anything",
            Param::Text => "string",
            Param::Int => "int",
            Param::Float => "float64",
            Param::Bool => "bool",
            Param::Dict => "map[string]interface {}",
        }
    }
}

/// A function of its arguments.
pub(crate) type Plain = fn(&mut Memory, &[Value]) -> Result<Value, Fault>;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Run {
    Plain(Plain),
    /// Stops at the first argument that is not true.
    And,
    /// Stops at the first argument that is true.
    Or,
    Include,
    Tpl,
}

/// With exactly these arguments.
const fn exactly(name: &'static str, parameters: &'static [Param], run: Plain) -> Function {
    Function { name, parameters, rest: None, run: Run::Plain(run) }
}

/// With these and any number of further ones.
const fn variadic(name: &'static str, parameters: &'static [Param], rest: Param, run: Plain) -> Function {
    Function { name, parameters, rest: Some(rest), run: Run::Plain(run) }
}

const TEMPLATES: &[Function] = &[
    Function { name: "and", parameters: &[Param::Any], rest: Some(Param::Any), run: Run::And },
    Function { name: "or", parameters: &[Param::Any], rest: Some(Param::Any), run: Run::Or },
    Function { name: "include", parameters: &[Param::Text, Param::Any], rest: None, run: Run::Include },
    Function { name: "tpl", parameters: &[Param::Text, Param::Any], rest: None, run: Run::Tpl },
];

const ALL: &[&[Function]] = &[
    TEMPLATES,
    core::FUNCTIONS,
    text::FUNCTIONS,
    cases::FUNCTIONS,
    lists::FUNCTIONS,
    dicts::FUNCTIONS,
    math::FUNCTIONS,
    encoding::FUNCTIONS,
    regex::FUNCTIONS,
    semver::FUNCTIONS,
    reflect::FUNCTIONS,
    paths::FUNCTIONS,
    urls::FUNCTIONS,
];

const RANDOM: &str = "its result is another one each time, so that what is rendered would never stay the same; put the value into the data";
const CLOCK: &str = "its result depends on the time, so that what is rendered would never stay the same; put the value into the data";
const ENVIRONMENT: &str =
    "templates cannot see the machine that they are rendered on; put the value into the data";
const CRYPTO: &str = "templates make no keys or passwords; put them into a Secret and refer to that";
const FORMAT: &str =
    "values are read and written as YAML (toYaml, fromYaml) and JSON (toJson, fromJson) only";

/// What sprig and Helm have and this does not, and why.
const REFUSED: &[(&str, &[&str])] = &[
    (
        RANDOM,
        &[
            "randAlphaNum",
            "randAlpha",
            "randAscii",
            "randNumeric",
            "randBytes",
            "randInt",
            "shuffle",
            "uuidv4",
        ],
    ),
    (
        CLOCK,
        &[
            "now",
            "ago",
            "date",
            "date_in_zone",
            "date_modify",
            "dateInZone",
            "dateModify",
            "duration",
            "durationRound",
            "htmlDate",
            "htmlDateInZone",
            "must_date_modify",
            "mustDateModify",
            "mustToDate",
            "toDate",
            "unixEpoch",
        ],
    ),
    (ENVIRONMENT, &["env", "expandenv", "getHostByName"]),
    (
        CRYPTO,
        &[
            "bcrypt",
            "htpasswd",
            "genPrivateKey",
            "derivePassword",
            "buildCustomCert",
            "genCA",
            "genCAWithKey",
            "genSelfSignedCert",
            "genSelfSignedCertWithKey",
            "genSignedCert",
            "genSignedCertWithKey",
            "encryptAES",
            "decryptAES",
        ],
    ),
    (FORMAT, &["toToml", "fromToml", "toYamlPretty"]),
    ("data holds no functions", &["call"]),
];

/// What a name stands for.
pub(crate) enum Found {
    Function(&'static Function),
    /// Known, but not offered, for this reason.
    Refused(&'static str),
    Unknown,
}

static BY_NAME: LazyLock<BTreeMap<&'static str, &'static Function>> =
    LazyLock::new(|| ALL.iter().copied().flatten().map(|function| (function.name, function)).collect());

pub(crate) fn find(name: &str) -> Found {
    if let Some(function) = BY_NAME.get(name) {
        return Found::Function(function);
    }
    let refused = REFUSED.iter().find(|(_, names)| names.contains(&name));
    refused.map_or(Found::Unknown, |(why, _)| Found::Refused(why))
}

/// A function whose name differs in upper and lower case only, or begins alike.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    let names = || BY_NAME.keys().copied();
    names().find(|known| known.eq_ignore_ascii_case(name)).or_else(|| {
        names().find(|known| {
            name.len() > 3 && known.len() > 3 && (known.starts_with(name) || name.starts_with(known))
        })
    })
}

/// The text of an argument that has to be one.
fn text(values: &[Value], index: usize) -> &str {
    values.get(index).and_then(Value::as_text).unwrap_or_default()
}

/// The number of an argument that has to be one.
fn int(values: &[Value], index: usize) -> i64 {
    match values.get(index) {
        Some(Value::Int(number)) => *number,
        _ => 0,
    }
}

/// The map of an argument that has to be one, or nil.
fn dict(values: &[Value], index: usize) -> Option<MapId> {
    match values.get(index) {
        Some(Value::Map(map)) => Some(*map),
        _ => None,
    }
}

/// An argument of any kind.
fn any(values: &[Value], index: usize) -> &Value {
    values.get(index).unwrap_or(&Value::Nil)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_given_once() {
        let all = ALL.iter().copied().flatten().count();
        assert_eq!(BY_NAME.len(), all);
        for name in REFUSED.iter().flat_map(|(_, names)| *names) {
            assert!(!BY_NAME.contains_key(name), "{name}");
        }
    }

    #[test]
    fn the_documentation_names_every_function() {
        let documentation: Vec<&str> =
            include_str!("../lib.rs").lines().take_while(|line| line.starts_with("//!")).collect();
        let documentation = documentation.join("\n");
        for name in BY_NAME.keys() {
            assert!(documentation.contains(&format!("`{name}`")), "{name} is not in the list of functions");
        }
    }
}
