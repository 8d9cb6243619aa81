//! Whatever a template wants, it gets no more than it was given; and whatever it is, nothing panics.

// What a test sets up itself is there, or the test has failed.
#![allow(clippy::unwrap_used, clippy::panic)]

mod generate;

use agentcube_template::{Error, Kind, Limits, Templates};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

fn render(text: &str, data: &Value, limits: &Limits) -> Result<String, Error> {
    Templates::parse([("main", text), ("other", generate::OTHER)])?.render("main", data, limits)
}

fn refused(text: &str) -> Error {
    let error = render(text, &json!({ "n": 5 }), &Limits::default()).expect_err(text);
    assert_eq!(error.kind, Kind::Limit, "{text}\n{error}");
    assert_eq!(error.place.line, 1, "{error}");
    error
}

#[test]
fn endless_loops_end() {
    for text in [
        r#"{{ define "x" }}{{ template "x" . }}{{ end }}{{ template "x" . }}"#,
        r#"{{ define "x" }}{{ include "x" . }}{{ end }}{{ include "x" . }}"#,
        r#"{{ define "x" }}{{ include "y" . }}{{ end }}{{ define "y" }}{{ if true }}{{ include "x" . }}{{ end }}{{ end }}{{ include "x" . }}"#,
        r#"{{ $t := "{{ tpl . . }}" }}{{ tpl $t $t }}"#,
        "{{ range 9223372036854775807 }}{{ end }}",
        "{{ range until 1000 }}{{ range until 1000 }}{{ range until 1000 }}{{ end }}{{ end }}{{ end }}",
        "{{ until 9223372036854775807 }}",
        "{{ untilStep -9223372036854775807 9223372036854775807 1 }}",
        "{{ seq 9223372036854775807 }}",
        "{{ seq -9223372036854775807 1 9223372036854775807 }}",
    ] {
        refused(text);
    }
}

#[test]
fn large_texts_are_not_made() {
    for text in [
        r#"{{ repeat 1000000000 "x" }}"#,
        r#"{{ repeat 9223372036854775807 "xy" }}"#,
        r#"{{ indent 1000000000 "x" }}"#,
        r#"{{ nindent 1000 (repeat 10000 "\n") }}"#,
        r#"{{ replace "x" (repeat 1000 "y") (repeat 10000 "x") }}"#,
        r#"{{ replace "" (repeat 1000 "y") (repeat 10000 "x") }}"#,
        r#"{{ regexReplaceAll "x" (repeat 10000 "x") (repeat 1000 "y") }}"#,
        r#"{{ regexReplaceAll "(x+)" (repeat 10000 "x") (repeat 10000 "$1") }}"#,
        r#"{{ join (repeat 10000 ",") (until 1000) }}"#,
        r#"{{ printf "%1000000d%1000000d" 1 2 }}"#,
        r#"{{ printf "%*d%*d" 1000000 1 1000000 2 }}"#,
        r#"{{ wrapWith 1 (repeat 1000 "y") (repeat 10000 "x") }}"#,
        r#"{{ $x := "xx" }}{{ range until 100 }}{{ $x = print $x $x }}{{ end }}"#,
        r#"{{ $x := list 1 }}{{ range until 100 }}{{ $x = list $x $x }}{{ end }}{{ $x }}"#,
        r#"{{ $x := list 1 }}{{ range until 100 }}{{ $x = list $x $x }}{{ end }}{{ toYaml $x }}"#,
        r#"{{ $x := list 1 }}{{ range until 100 }}{{ $x = list $x $x }}{{ end }}{{ toJson $x }}"#,
        r#"{{ $x := list 1 }}{{ range until 100 }}{{ $x = list $x $x }}{{ end }}{{ deepCopy $x }}"#,
        r#"{{ $x := list 1 }}{{ range until 100 }}{{ $x = list $x $x }}{{ end }}{{ $y := list 1 }}{{ range until 100 }}{{ $y = list $y $y }}{{ end }}{{ deepEqual $x $y }}"#,
        r#"{{ range until 100000 }}0123456789012345{{ end }}"#,
        r#"{{ $l := list }}{{ range until 100000 }}{{ $l = append $l (repeat 10000 "x") }}{{ end }}"#,
        r#"{{ $l := until 100000 }}{{ uniq $l }}"#,
        // Work that leaves nothing behind counts too.
        r#"{{ $s := repeat 1000000 "a" }}{{ range until 100000 }}{{ $x := contains "b" $s }}{{ end }}"#,
        r#"{{ $s := repeat 1000000 "a" }}{{ range until 100000 }}{{ $x := regexMatch "(a|b)*c" $s }}{{ end }}"#,
        r#"{{ $l := list }}{{ range until 10 }}{{ $l = concat $l (until 1000) }}{{ end }}{{ range until 100000 }}{{ $x := compact $l }}{{ end }}"#,
        r#"{{ $d := dict }}{{ range until 10000 }}{{ $x := set $d (toString .) . }}{{ end }}{{ range until 100000 }}{{ range $d }}{{ break }}{{ end }}{{ end }}"#,
    ] {
        refused(text);
    }
    let error = refused("{{ range until 100000 }}0123456789012345{{ end }}");
    assert!(error.message.contains("1048576 bytes"), "{error}");
}

#[test]
fn the_limits_are_those_that_were_given() {
    let small = Limits { output: 10, ..Limits::default() };
    assert_eq!(render("0123456789", &json!({}), &small).unwrap(), "0123456789");
    let error = render("line\n{{ 123456 }}", &json!({}), &small).unwrap_err();
    assert_eq!((error.kind, error.place.line, error.place.column), (Kind::Limit, 2, 4), "{error}");
    let few = Limits { steps: 10, ..Limits::default() };
    assert_eq!(render("{{ range 20 }}x{{ end }}", &json!({}), &few).unwrap_err().kind, Kind::Limit);
    let shallow = Limits { depth: 3, ..Limits::default() };
    assert_eq!(render("{{ print (print 1) }}", &json!({}), &shallow).unwrap(), "1");
    assert_eq!(
        render("{{ print (print (print (print (print 1)))) }}", &json!({}), &shallow).unwrap_err().kind,
        Kind::Limit
    );
    let little = Limits { memory: 1000, ..Limits::default() };
    assert_eq!(render("", &json!({ "a": "x".repeat(2000) }), &little).unwrap_err().kind, Kind::Limit);
    let short = Limits { source: 5, ..Limits::default() };
    assert_eq!(render(r#"{{ tpl "abcdef" . }}"#, &json!({}), &short).unwrap_err().kind, Kind::Limit);
    let many: String = (0..1001).map(|index| format!("{{{{ $v{index} := 1 }}}}")).collect();
    assert!(
        render(&many, &json!({}), &Limits::default())
            .unwrap_err()
            .message
            .contains("more than 1000 variables")
    );
    let large = "x".repeat(Templates::LARGEST + 1);
    assert_eq!(Templates::parse([("main", large)]).unwrap_err().kind, Kind::Limit);
}

#[test]
fn nothing_is_nested_too_deeply() {
    let deep = Limits { depth: usize::MAX, memory: usize::MAX, steps: u64::MAX, ..Limits::default() };
    let error = |text: &str| render(text, &json!({ "n": 5 }), &deep).expect_err(text);
    // Whatever the limit, the stack holds: in templates, in what is written, in values.
    error(
        r#"{{ define "x" }}{{ with 1 }}{{ range list 1 }}{{ if (not (not 1)) }}{{ include "x" (print (print 1)) }}{{ end }}{{ end }}{{ end }}{{ end }}{{ include "x" . }}"#,
    );
    error(
        r#"{{ define "x" }}{{ tpl "{{ if 1 }}{{ include \"x\" . }}{{ end }}" . }}{{ end }}{{ include "x" . }}"#,
    );
    error(&format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)));
    error(&"{{ if 1 }}".repeat(50_000));
    error(&format!("{{{{ if 1 }}}}{}{{{{ end }}}}", "{{ else if 1 }}".repeat(50_000)));
    error(r#"{{ $d := dict }}{{ $_ := set $d "d" $d }}{{ $d }}"#);
    error(r#"{{ $d := dict }}{{ $_ := set $d "d" $d }}{{ toYaml $d }}"#);
    error(r#"{{ $d := dict }}{{ $_ := set $d "d" $d }}{{ toJson $d }}"#);
    error(r#"{{ $d := dict }}{{ $_ := set $d "d" $d }}{{ deepCopy $d }}"#);
    error(r#"{{ $d := dict }}{{ $_ := set $d "d" $d }}{{ printf "%d" $d }}"#);
    error(
        r#"{{ $d := dict }}{{ $_ := set $d "d" $d }}{{ $e := dict }}{{ $_ := set $e "d" $e }}{{ deepEqual $d $e }}"#,
    );
    error(
        r#"{{ $d := dict }}{{ $_ := set $d "d" $d }}{{ $e := dict }}{{ $_ := set $e "d" $e }}{{ merge $d $e }}"#,
    );
    error(r#"{{ $x := list 1 }}{{ range until 100000 }}{{ $x = list $x }}{{ end }}"#);
    let flow = render(r#"{{ hasKey (fromYaml (repeat 100000 "[")) "Error" }}"#, &json!({}), &deep);
    assert_eq!(flow.unwrap(), "true");
    // At the end of the one stack another begins.
    let text = format!("{}{{{{ {}1{} }}}}", "{{ define `y` }}{{ end }}", "(".repeat(98), ")".repeat(98));
    let both = r#"{{ define "x" }}{{ if gt . 0 }}{{ include "x" (sub . 1) }}{{ else }}{{ tpl $.t $ }}{{ end }}{{ end }}"#;
    let both = both.replace("$.t", &format!("`{}`", text.replace('`', "\"")));
    for levels in 0..64 {
        let _ = render(&format!("{both}{{{{ include \"x\" {levels} }}}}"), &json!({}), &deep);
    }
    // One map in another, and so on, is held without end; only whoever looks into it is stopped.
    let chain = r#"{{ $d := dict }}{{ range until 100000 }}{{ $e := dict }}{{ $_ := set $d "d" $e }}{{ $d = $e }}{{ end }}ok"#;
    assert_eq!(render(chain, &json!({}), &deep).unwrap(), "ok");
    let mut nested = json!(1);
    for _ in 0..500 {
        nested = json!([nested]);
    }
    assert_eq!(render("{{ . }}", &nested, &deep).unwrap_err().kind, Kind::Limit);
}

#[test]
fn errors_say_where_and_what() {
    for (text, place, said) in [
        (
            "a\n  {{ upper .n }}",
            "main:2:12: {{ upper .n }}: ",
            "expected string, got int64; convert it with toString",
        ),
        ("{{ randAlphaNum 5 }}", "main:1:4: {{ randAlphaNum 5 }}: ", "another one each time"),
        ("{{ now }}", "main:1:4: {{ now }}: ", "depends on the time"),
        ("{{ env \"HOME\" }}", "main:1:4: ", "cannot see the machine"),
        ("{{ genCA \"a\" 1 }}", "main:1:4: ", "no keys or passwords"),
        ("{{ toyaml . }}", "main:1:4: ", "is \"toYaml\" meant?"),
        ("é {{ .a.b }}", "main:1:6: {{ .a.b }}: ", "nil pointer evaluating .b"),
        (
            "{{ include \"bad\" . }}\n{{ define \"bad\" }}\n{{ fail \"two\nlines\" }}{{ end }}",
            "main:3:9: ",
            "unterminated",
        ),
        (
            "{{ include \"bad\" . }}\n{{ define \"bad\" }}\n{{ fail \"two\\nlines\" }}{{ end }}",
            "main:3:4: ",
            "two ⏎ lines (called from main:1:4)",
        ),
    ] {
        let error = render(text, &json!({ "n": 5 }), &Limits::default()).expect_err(text);
        let shown = error.to_string();
        assert!(shown.starts_with(place) && shown.contains(said) && !shown.contains('\n'), "{text}\n{shown}");
    }
    let templates = Templates::parse([("main", "")]).unwrap();
    let error = templates.render("absent", &json!({}), &Limits::default()).unwrap_err();
    assert!(
        error.to_string().contains("template \"absent\" not defined; those that are: \"main\""),
        "{error}"
    );
}

#[test]
fn characters_are_not_cut() {
    let error = render("{{ trunc 1 .u }}", &json!({ "u": "é" }), &Limits::default()).unwrap_err();
    assert!(error.message.contains("cut a character in two"), "{error}");
}

#[test]
fn templates_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + Clone>(_: &T) {}
    shared(&Templates::default());
}

/// Pieces of templates, which together make sense by chance only.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        proptest::sample::select(
            &[
                "{{",
                "}}",
                "{{-",
                "-}}",
                " ",
                "\n",
                "(",
                ")",
                "|",
                ".",
                "$",
                "$x",
                ":=",
                "=",
                ",",
                "\"",
                "`",
                "'",
                "\\",
                "/*",
                "*/",
                "if",
                "else",
                "end",
                "range",
                "with",
                "define",
                "template",
                "block",
                "break",
                "continue",
                "nil",
                "true",
                "print",
                "index",
                "include",
                "tpl",
                "\"x\"",
                "1",
                "-1",
                "1.5",
                "1e9",
                "0x",
                "1i",
                ".a",
                ".a.b",
                "é",
                "\u{0}",
                "%",
                "{{ if 1 }}",
                "{{ end }}",
                "{{ range . }}",
                "{{ define \"x\" }}",
                "{{ template \"x\" . }}",
                "{{ $x := 1 }}",
            ][..]
        )
        .prop_map(str::to_owned),
        "\\PC{0,3}",
    ];
    prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

fn any_data() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,6}".prop_map(Value::from),
    ];
    scalar.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-c]", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Every function with arguments of every kind.
fn calls() -> impl Strategy<Value = String> {
    let argument = proptest::sample::select(
        &[
            "1",
            "-1",
            "9223372036854775807",
            "-9223372036854775808",
            "0",
            "1.5",
            "1e300",
            "\"\"",
            "\"é\"",
            "\"a b\"",
            "`%[9]*.*d%!`",
            "\"(((\"",
            "\"[[:x:\"",
            "\"*-+.\"",
            "\"{{\"",
            "nil",
            "true",
            ".",
            ".a",
            ".b",
            "$",
            "(list)",
            "(list 1 \"é\" nil)",
            "(dict)",
            "(dict \"a\" .)",
            "(until 3)",
            "(split \",\" \"a,b\")",
            "(semver \"1.2.3\")",
            "(index \"a\" 0)",
            "(float64 \"NaN\")",
            "(div 1 0)",
            "(rest (list))",
            "\"&a [*a]\"",
            "\"- - ? : ! |\"",
            "\"http://[%zz\"",
        ][..],
    );
    let function = proptest::sample::select(NAMES.split_whitespace().collect::<Vec<_>>());
    (function, prop::collection::vec(argument, 0..5))
        .prop_map(|(name, arguments)| format!("{{{{ {name} {} }}}}", arguments.join(" ")))
}

fn check(text: &str, data: &Value) -> Result<(), TestCaseError> {
    let limits = Limits { steps: 20_000, output: 20_000, memory: 1 << 20, ..Limits::default() };
    match render(text, data, &limits) {
        Ok(output) => {
            prop_assert!(output.len() <= limits.output);
            // The same again.
            prop_assert_eq!(render(text, data, &limits).unwrap(), output);
        }
        Err(error) => {
            prop_assert!(error.place.line >= 1 && error.place.column >= 1 && !error.message.is_empty());
            prop_assert!(!error.to_string().contains('\n'), "{}", error);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn nothing_panics_on_any_text(text in pieces(), data in any_data()) {
        check(&text, &data)?;
    }

    #[test]
    fn nothing_panics_on_any_argument(text in calls(), data in any_data()) {
        check(&text, &data)?;
    }

    #[test]
    fn nothing_panics_on_what_could_be_a_template(text in generate::template(), data in any_data()) {
        check(&text, &json!({ "Values": data }))?;
    }
}

/// All functions.
const NAMES: &str = "
    abbrev abbrevboth add add1 add1f addf adler32sum all and any append atoi b32dec b32enc b64dec b64enc
    base biggest camelcase cat ceil chunk clean coalesce compact concat contains deepCopy deepEqual
    default dict dig dir div divf empty eq ext fail first float64 floor fromJson fromJsonArray fromYaml
    fromYamlArray ge get gt has hasKey hasPrefix hasSuffix hello html include indent index initial
    initials int int64 isAbs join js kebabcase keys kindIs kindOf last le len list lookup lower lt max
    maxf merge mergeOverwrite min minf mod mul mulf mustAppend mustChunk mustCompact mustDeepCopy
    mustFirst mustFromJson mustHas mustInitial mustLast mustMerge mustMergeOverwrite mustPrepend mustPush
    mustRegexFind mustRegexFindAll mustRegexMatch mustRegexReplaceAll mustRegexReplaceAllLiteral
    mustRegexSplit mustRest mustReverse mustSlice mustToJson mustToPrettyJson mustToRawJson mustUniq
    mustWithout ne nindent nospace not omit or osBase osClean osDir osExt osIsAbs pick pluck plural
    prepend print printf println push quote regexFind regexFindAll regexMatch regexQuoteMeta
    regexReplaceAll regexReplaceAllLiteral regexSplit repeat replace required rest reverse round semver
    semverCompare seq set sha1sum sha256sum sha512sum slice snakecase sortAlpha split splitList splitn
    squote sub subf substr swapcase ternary title toDecimal toJson toPrettyJson toRawJson toString
    toStrings toYaml tpl trim trimAll trimPrefix trimSuffix trimall trunc tuple typeIs typeIsLike typeOf
    uniq unset until untilStep untitle upper urlJoin urlquery values without wrap wrapWith";
