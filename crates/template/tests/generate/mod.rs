//! Templates that nobody wrote: mostly right, with arguments of the kinds that functions want, now and then of another. And data with all
//! that has to be quoted somewhere.

// Not every test uses all of it.
#![allow(dead_code)]

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;

/// A function, what its arguments are and what it gives: `s` strings, `i` whole numbers, `f` fractions, `b` booleans, `l` lists, `d`
/// maps, `n` new ones, `a` anything. A star stands for more of the last.
type Signature = (&'static str, &'static str, char);

const FUNCTIONS: &[Signature] = &[
    ("upper", "s", 's'),
    ("lower", "s", 's'),
    ("title", "s", 's'),
    ("untitle", "s", 's'),
    ("swapcase", "s", 's'),
    ("camelcase", "s", 's'),
    ("snakecase", "s", 's'),
    ("kebabcase", "s", 's'),
    ("trim", "s", 's'),
    ("trimAll", "ss", 's'),
    ("trimSuffix", "ss", 's'),
    ("trimPrefix", "ss", 's'),
    ("contains", "ss", 'b'),
    ("hasPrefix", "ss", 'b'),
    ("replace", "sss", 's'),
    ("repeat", "is", 's'),
    ("trunc", "is", 's'),
    ("substr", "iis", 's'),
    ("abbrev", "is", 's'),
    ("abbrevboth", "iis", 's'),
    ("wrap", "is", 's'),
    ("wrapWith", "iss", 's'),
    ("indent", "is", 's'),
    ("nindent", "is", 's'),
    ("quote", "a*", 's'),
    ("squote", "a*", 's'),
    ("cat", "a*", 's'),
    ("print", "a*", 's'),
    ("println", "a*", 's'),
    ("html", "a*", 's'),
    ("js", "a*", 's'),
    ("urlquery", "a*", 's'),
    ("toString", "a", 's'),
    ("toJson", "a", 's'),
    ("toPrettyJson", "a", 's'),
    ("toRawJson", "a", 's'),
    ("toYaml", "a", 's'),
    ("typeOf", "a", 's'),
    ("kindOf", "a", 's'),
    ("b64enc", "s", 's'),
    ("b32enc", "s", 's'),
    ("sha256sum", "s", 's'),
    ("adler32sum", "s", 's'),
    ("base", "s", 's'),
    ("dir", "s", 's'),
    ("clean", "s", 's'),
    ("ext", "s", 's'),
    ("join", "sl", 's'),
    ("regexReplaceAll", "sss", 's'),
    ("regexFind", "ss", 's'),
    ("regexFindAll", "ssi", 'l'),
    ("regexSplit", "ssi", 'l'),
    ("regexMatch", "ss", 'b'),
    ("regexQuoteMeta", "s", 's'),
    ("splitList", "ss", 'l'),
    ("seq", "iii", 's'),
    ("until", "i", 'l'),
    ("untilStep", "iii", 'l'),
    ("list", "a*", 'l'),
    ("first", "l", 'a'),
    ("last", "l", 'a'),
    ("rest", "l", 'l'),
    ("initial", "l", 'l'),
    ("append", "la", 'l'),
    ("prepend", "la", 'l'),
    ("concat", "l*", 'l'),
    ("reverse", "l", 'l'),
    ("uniq", "l", 'l'),
    ("compact", "l", 'l'),
    ("without", "la*", 'l'),
    ("has", "al", 'b'),
    ("slice", "lii", 'l'),
    ("chunk", "il", 'l'),
    ("sortAlpha", "l", 'l'),
    ("toStrings", "a", 'l'),
    ("dict", "sasa", 'd'),
    ("get", "ds", 'a'),
    ("set", "nsa", 'd'),
    ("unset", "ns", 'd'),
    ("hasKey", "ds", 'b'),
    ("pick", "ds*", 'd'),
    ("omit", "ds*", 'd'),
    ("pluck", "sd*", 'l'),
    ("merge", "nd*", 'd'),
    ("mergeOverwrite", "nd*", 'd'),
    ("deepCopy", "d", 'd'),
    ("dig", "ssad", 'a'),
    ("default", "aa", 'a'),
    ("coalesce", "a*", 'a'),
    ("ternary", "aab", 'a'),
    ("empty", "a", 'b'),
    ("all", "a*", 'b'),
    ("any", "a*", 'b'),
    ("and", "aa*", 'a'),
    ("or", "aa*", 'a'),
    ("not", "a", 'b'),
    ("eq", "aa*", 'b'),
    ("eq", "ii", 'b'),
    ("eq", "ss", 'b'),
    ("ne", "ii", 'b'),
    ("lt", "ii", 'b'),
    ("le", "ss", 'b'),
    ("gt", "ff", 'b'),
    ("ge", "ii", 'b'),
    ("len", "s", 'i'),
    ("len", "l", 'i'),
    ("index", "li", 'a'),
    ("index", "ds", 'a'),
    ("int", "a", 'i'),
    ("atoi", "s", 'i'),
    ("int64", "a", 'a'),
    ("float64", "a", 'f'),
    ("add", "a*", 'a'),
    ("sub", "ii", 'a'),
    ("mul", "ia*", 'a'),
    ("div", "ii", 'a'),
    ("mod", "ii", 'a'),
    ("max", "ia*", 'a'),
    ("floor", "f", 'f'),
    ("ceil", "f", 'f'),
    ("round", "fi", 'f'),
    ("addf", "f*", 'f'),
    ("subf", "ff", 'f'),
    ("mulf", "ff", 'f'),
    ("divf", "ff", 'f'),
    ("deepEqual", "aa", 'b'),
    ("required", "sa", 'a'),
    ("include", "sa", 's'),
    ("tpl", "sa", 's'),
    ("semverCompare", "ss", 'b'),
];

const STRINGS: &[&str] = &[
    r#""""#,
    r#""a""#,
    r#""Hello World""#,
    r#""a,b,,c""#,
    r#""x: y # z""#,
    r#""two\nlines""#,
    r#"" \n""#,
    r#""true""#,
    r#""12.50""#,
    r#""0x1f""#,
    r#""HTTPServer2Go""#,
    r#""some_snake-case words""#,
    r#"",""#,
    r#"" ""#,
    r#""l""#,
    r#""[a-z]+""#,
    r#""(a|b)*""#,
    r#""^1.2""#,
    r#""1.2.3-rc.1""#,
    r#""main.tpl/../x.y""#,
    r#""{\"a\": [1, null, {\"b\": 2.5}]}""#,
    r#""{{ . }}""#,
    r#""other""#,
    "`raw \\n \"q\"`",
    ".Values.name",
    ".Values.empty",
    ".Values.config",
    "$.Values.labels.app",
];
const INTS: &[&str] = &["0", "1", "2", "5", "-1", "-3", "10", "80", "'a'", "0x10"];
const FLOATS: &[&str] = &["0.0", "1.5", "-2.25", "1e3", "0.1", "3.0", "1234.5678", "1e-7", ".Values.ratio"];
const BOOLS: &[&str] = &["true", "false", ".Values.enabled", ".Values.disabled"];
const LISTS: &[&str] =
    &[".Values.words", ".Values.numbers", ".Values.mixed", ".Values.none", ".Values.nodes"];
const DICTS: &[&str] = &[
    ".Values",
    ".Values.labels",
    ".Values.resources",
    ".Values.noEntries",
    ".Values.images",
    "(index .Values.nodes 0)",
];
/// What may be changed: a map that comes to contain itself keeps Go busy for ever.
const NEW: &[&str] = &[
    "(dict)",
    "(dict \"a\" 1 \"b\" (dict \"c\" 2) \"app\" \"\")",
    "(dict \"limits\" 0 \"name\" (list 1))",
    "(deepCopy .Values.labels)",
    "(deepCopy .Values.resources)",
    "(deepCopy .Values)",
    r#"(fromJson "{\"a\": [1, null, {\"b\": 2.5}], \"c\": 1000000}")"#,
    r#"(fromYaml "a: [1, yes, {b: 0x10}]\nc: |\n  x\n  y\n")"#,
];
const OTHERS: &[&str] = &[
    "nil",
    ".Values.absent",
    ".Values.nothing",
    ".",
    "$",
    ".Values.zero",
    ".Values.port",
    ".Values.absent.more",
];
const KINDS: [char; 7] = ['s', 'i', 'f', 'b', 'l', 'd', 'a'];

fn literal(kind: char) -> BoxedStrategy<String> {
    let set = match kind {
        's' => STRINGS,
        'i' => INTS,
        'f' => FLOATS,
        'b' => BOOLS,
        'l' => LISTS,
        'd' => DICTS,
        'n' => NEW,
        _ => {
            let some = prop_oneof![3 => select(&KINDS[..6]), 1 => Just('o')];
            return some
                .prop_flat_map(|kind| {
                    if kind == 'o' { select(OTHERS).prop_map(str::to_owned).boxed() } else { literal(kind) }
                })
                .boxed();
        }
    };
    select(set).prop_map(str::to_owned).boxed()
}

/// Something of a kind, or now and then of another.
fn value(kind: char, depth: u32) -> BoxedStrategy<String> {
    let other = if kind == 'n' { &['n'][..] } else { &KINDS[..] };
    let wanted = prop_oneof![30 => Just(kind), 1 => select(other)];
    wanted
        .prop_flat_map(move |kind| {
            let fitting: Vec<Signature> =
                FUNCTIONS.iter().copied().filter(|(_, _, gives)| kind == 'a' || *gives == kind).collect();
            if depth == 0 || fitting.is_empty() {
                return literal(kind);
            }
            let called = select(fitting).prop_flat_map(move |function| call(function, depth - 1));
            prop_oneof![literal(kind), called.prop_map(|call| format!("({call})"))].boxed()
        })
        .boxed()
}

fn call((name, wants, _): Signature, depth: u32) -> BoxedStrategy<String> {
    let repeats = wants.ends_with('*');
    let fixed = wants.trim_end_matches('*');
    let last = fixed.chars().last().unwrap_or('a');
    (0..if repeats { 3_usize } else { 1 }, any::<bool>())
        .prop_flat_map(move |(more, piped)| {
            let kinds = fixed.chars().chain(std::iter::repeat_n(last, more));
            let arguments: Vec<BoxedStrategy<String>> = kinds.map(|kind| value(kind, depth)).collect();
            arguments.prop_map(move |mut arguments| match arguments.pop() {
                Some(last) if piped && last != "nil" => format!("{last} | {name} {}", arguments.join(" ")),
                last => format!("{name} {} {}", arguments.join(" "), last.unwrap_or_default()),
            })
        })
        .boxed()
}

fn block(depth: u32) -> BoxedStrategy<String> {
    let text = select(&[" ", "\n", "text", "  a: b\n", "é"][..]).prop_map(str::to_owned);
    let left = select(&["{{", "{{ ", "{{- "][..]);
    let right = select(&["}}", " }}", " -}}"][..]);
    let action =
        (left, value('a', 3), right).prop_map(|(left, value, right)| format!("{left}{value}{right}"));
    if depth == 0 {
        return prop_oneof![text, action].boxed();
    }
    let inner = || prop::collection::vec(block(depth - 1), 0..3).prop_map(|blocks| blocks.concat());
    let variable = (value('a', 2), inner())
        .prop_map(|(value, inner)| format!("{{{{ $x := {value} }}}}{inner}{{{{ $x }}}}{{{{ $x = 1 }}}}"));
    let condition = (value('a', 2), inner(), inner()).prop_map(|(value, then, otherwise)| {
        format!("{{{{ if {value} }}}}{then}{{{{ else }}}}{otherwise}{{{{ end }}}}")
    });
    let with = (value('a', 2), inner())
        .prop_map(|(value, inner)| format!("{{{{ with {value} }}}}{inner}{{{{ . }}}}{{{{ end }}}}"));
    let leave = select(&["", "{{ break }}", "{{ continue }}", "{{ if $k }}{{ continue }}{{ end }}"][..]);
    let range = (value('l', 2), inner(), leave).prop_map(|(value, inner, leave)| {
        format!("{{{{ range $k, $v := {value} }}}}{{{{ $k }}}}={{{{ $v }}}}{leave}{inner}{{{{ end }}}}")
    });
    let map =
        value('d', 2).prop_map(|value| format!("{{{{ range $k, $v := {value} }}}}{{{{ $k }}}}{{{{ end }}}}"));
    prop_oneof![3 => text, 6 => action, 1 => variable, 1 => condition, 1 => with, 1 => range, 1 => map]
        .boxed()
}

/// A template that may use another called `other`.
pub(crate) fn template() -> impl Strategy<Value = String> {
    prop::collection::vec(block(2), 1..4).prop_map(|blocks| blocks.concat())
}

/// What `other` is.
pub(crate) const OTHER: &str = "{{ define \"other\" }}<{{ . }}>{{ end }}";

fn text() -> impl Strategy<Value = String> {
    let word = select(
        &[
            "a",
            "b",
            "true",
            "no",
            "null",
            "~",
            "1",
            "0x1f",
            "1e3",
            "1.5",
            "2001-01-01",
            ":",
            ": ",
            "#",
            " #",
            "-",
            "- ",
            "?",
            "? ",
            ",",
            "[",
            "]",
            "{",
            "}",
            "&",
            "*",
            "!",
            "|",
            ">",
            "'",
            "\"",
            "%",
            "@",
            "`",
            " ",
            "  ",
            "\n",
            "\n\n",
            "\t",
            "\r",
            "\\",
            "=",
            "<",
            ".",
            "...",
            "---",
            "é",
            "世",
            "😀",
            "\u{a0}",
            "\u{1}",
            "long enough to be folded somewhere ",
            "http://host:80/path",
        ][..],
    );
    prop::collection::vec(word, 0..8).prop_map(|words| words.concat())
}

/// Any data.
pub(crate) fn data() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        6 => text().prop_map(Value::from),
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => (-1e9..1e9).prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        1 => select(&[0.0, 1.0, 1e6, 1e20, 1e21, 1e-5, 1e-7, 123456.5, 100.0][..]).prop_map(Value::from),
    ];
    scalar.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(text(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}
