//! Every line of the tables was answered by a real API server.

use serde_json::json;

use super::super::parse::Names;
use super::*;
use crate::status::go_float;

fn read(json: Value) -> Schema {
    Schema::from_json(&json, &Names::none()).expect("schema")
}

fn texts(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn schema() -> Schema {
    let string = json!({"type": "string"});
    let ab = |extra: Value| {
        let mut it = json!({"type": "object", "properties": {"a": string, "b": string}});
        for (k, v) in extra.as_object().expect("map") {
            it[k] = v.clone();
        }
        it
    };
    let either = json!([{"required": ["a"]}, {"required": ["b"]}]);
    read(json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "i": {"type": "integer", "minimum": 1, "maximum": 10},
        "ix": {"type": "integer", "minimum": 1, "maximum": 10, "exclusiveMinimum": true, "exclusiveMaximum": true},
        "i32": {"type": "integer", "format": "int32"}, "i64": {"type": "integer", "format": "int64"},
        "m": {"type": "integer", "multipleOf": 3}, "n": {"type": "number", "minimum": 1.5, "maximum": 10},
        "nm": {"type": "number", "multipleOf": 0.5}, "nf": {"type": "number", "format": "float"},
        "s": {"type": "string", "minLength": 2, "maxLength": 4}, "p": {"type": "string", "pattern": "^a+$"},
        "e": {"type": "string", "enum": ["A", "B"]}, "ei": {"type": "integer", "enum": [1, 2]},
        "dt": {"type": "string", "format": "date-time"},
        "l": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        "o": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2},
        "b": {"type": "boolean"}, "nul": {"type": "string", "nullable": true},
        "ios": {"x-kubernetes-int-or-string": true},
        "req": ab(json!({"required": ["a", "b"]})), "any": ab(json!({"anyOf": either})),
        "one": ab(json!({"oneOf": either})), "all": ab(json!({"allOf": either})),
        "nt": ab(json!({"not": {"required": ["a"]}})),
        "arr": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string", "minLength": 2}}}},
        "lm": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items":
            {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}},
        "emb": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}
    }}}}))
}

#[test]
fn messages_are_those_of_the_real_server() {
    let table: &[(Value, &[&str])] = &[
        (json!({"i": 0}), &["spec.i: Invalid value: 0: spec.i in body should be greater than or equal to 1"]),
        (json!({"i": 11}), &["spec.i: Invalid value: 11: spec.i in body should be less than or equal to 10"]),
        (json!({"ix": 1}), &["spec.ix: Invalid value: 1: spec.ix in body should be greater than 1"]),
        (json!({"ix": 10}), &["spec.ix: Invalid value: 10: spec.ix in body should be less than 10"]),
        (
            json!({"i32": 3000000000_i64}),
            &[
                "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in spec.i32",
            ],
        ),
        (json!({"i64": i64::MAX}), &[]),
        (
            json!({"i64": 1e19}),
            &[
                "spec.i64: Invalid value: \"float64\": spec.i64 in body must be of type int64: \"float64\"",
                "<nil>: Invalid value: \"\": Checked value must be of type integer with format int64 in spec.i64",
            ],
        ),
        (json!({"m": 4}), &["spec.m: Invalid value: 4: spec.m in body should be a multiple of 3"]),
        (json!({"n": 1}), &[]),
        (
            json!({"n": 11.5}),
            &["spec.n: Invalid value: 11.5: spec.n in body should be less than or equal to 10"],
        ),
        (json!({"nm": 0.3}), &["spec.nm: Invalid value: 0.3: spec.nm in body should be a multiple of 0.5"]),
        (
            json!({"nf": 1e300}),
            &[
                "<nil>: Invalid value: \"\": Checked value must be of type number with format float in spec.nf",
            ],
        ),
        (
            json!({"s": "a"}),
            &["spec.s: Invalid value: \"a\": spec.s in body should be at least 2 chars long"],
        ),
        (json!({"s": "abcde"}), &["spec.s: Too long: may not be more than 4 bytes"]),
        (json!({"p": "b"}), &["spec.p: Invalid value: \"b\": spec.p in body should match '^a+$'"]),
        (json!({"e": "C"}), &["spec.e: Unsupported value: \"C\": supported values: \"A\", \"B\""]),
        (
            json!({"e": 1}),
            &[
                "spec.e: Invalid value: \"integer\": spec.e in body must be of type string: \"integer\"",
                "spec.e: Unsupported value: 1: supported values: \"A\", \"B\"",
            ],
        ),
        (json!({"ei": 3}), &["spec.ei: Unsupported value: 3: supported values: \"1\", \"2\""]),
        (
            json!({"dt": "x"}),
            &["spec.dt: Invalid value: \"x\": spec.dt in body must be of type date-time: \"x\""],
        ),
        (json!({"l": []}), &["spec.l: Invalid value: 0: spec.l in body should have at least 1 items"]),
        (json!({"l": ["a", "b", "c"]}), &["spec.l: Too many: 3: must have at most 2 items"]),
        (
            json!({"l": [1]}),
            &["spec.l[0]: Invalid value: \"integer\": spec.l[0] in body must be of type string: \"integer\""],
        ),
        (
            json!({"l": "x"}),
            &["spec.l: Invalid value: \"string\": spec.l in body must be of type array: \"string\""],
        ),
        (json!({"o": {}}), &["spec.o: Invalid value: 0: spec.o in body should have at least 1 properties"]),
        (json!({"o": {"a": 1, "b": 2, "c": 3}}), &["spec.o: Too many: 3: must have at most 2 items"]),
        (
            json!({"o": {"a": "x"}}),
            &["spec.o.a: Invalid value: \"string\": spec.o.a in body must be of type integer: \"string\""],
        ),
        (
            json!({"b": 1}),
            &["spec.b: Invalid value: \"integer\": spec.b in body must be of type boolean: \"integer\""],
        ),
        (json!({"nul": null}), &[]),
        (
            json!({"ios": true}),
            &[
                "spec.ios: Invalid value: \"boolean\": spec.ios in body must be of type integer,string: \"boolean\"",
            ],
        ),
        (
            json!({"ios": 1.5}),
            &[
                "spec.ios: Invalid value: \"number\": spec.ios in body must be of type integer,string: \"number\"",
            ],
        ),
        (json!({"ios": "x"}), &[]),
        (json!({"req": {}}), &["spec.req.a: Required value", "spec.req.b: Required value"]),
        (
            json!({"req": []}),
            &["spec.req: Invalid value: \"array\": spec.req in body must be of type object: \"array\""],
        ),
        (
            json!({"any": {}}),
            &[
                "<nil>: Invalid value: \"\": \"spec.any\" must validate at least one schema (anyOf)",
                "spec.any.a: Required value",
            ],
        ),
        (json!({"any": {"b": ""}}), &[]),
        (
            json!({"one": {}}),
            &[
                "<nil>: Invalid value: \"\": \"spec.one\" must validate one and only one schema (oneOf). Found none valid",
                "spec.one.a: Required value",
            ],
        ),
        (
            json!({"one": {"a": "", "b": ""}}),
            &[
                "<nil>: Invalid value: \"\": \"spec.one\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
            ],
        ),
        (json!({"one": {"b": ""}}), &[]),
        (
            json!({"all": {}}),
            &[
                "spec.all.a: Required value",
                "spec.all.b: Required value",
                "<nil>: Invalid value: \"\": \"spec.all\" must validate all the schemas (allOf). None validated",
            ],
        ),
        (
            json!({"all": {"a": ""}}),
            &[
                "spec.all.b: Required value",
                "<nil>: Invalid value: \"\": \"spec.all\" must validate all the schemas (allOf)",
            ],
        ),
        (
            json!({"nt": {"a": ""}}),
            &["<nil>: Invalid value: \"\": \"spec.nt\" must not validate the schema (not)"],
        ),
        (json!({"lm": [{"k": "a"}, {"k": "a"}]}), &["spec.lm[1]: Duplicate value: {\"k\":\"a\"}"]),
        (json!({"lm": [{"k": "a"}, {}]}), &["spec.lm[1].k: Required value"]),
        (json!({"emb": {}}), &["spec.emb.apiVersion: Required value", "spec.emb.kind: Required value"]),
        (
            json!({"arr": [{"a": "x"}]}),
            &["spec.arr[0].a: Invalid value: \"x\": spec.arr[0].a in body should be at least 2 chars long"],
        ),
        (
            json!({"arr": [null]}),
            &["spec.arr[0]: Invalid value: \"null\": spec.arr[0] in body must be of type object: \"null\""],
        ),
        (
            json!({"i": 1.5}),
            &[
                "spec.i: Invalid value: \"number\": spec.i in body must be of type integer: \"number\"",
                "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in spec.i",
            ],
        ),
        (json!({"i": 1.0}), &[]),
        (json!("x"), &["spec: Invalid value: \"string\": spec in body must be of type object: \"string\""]),
    ];
    let schema = schema();
    for (spec, want) in table {
        assert_eq!(texts(&validate(&schema, &json!({ "spec": spec }))), *want, "{spec}");
    }
}

#[test]
fn unchanged_faults_are_tolerated() {
    let schema = schema();
    let update = |new: Value, old: Value| {
        texts(&validate_update(&schema, &json!({"spec": new}), &json!({"spec": old})))
    };
    assert!(update(json!({"i": 0}), json!({"i": 0})).is_empty());
    assert!(update(json!({"i": 0, "m": 3}), json!({"i": 0})).is_empty());
    assert_eq!(update(json!({"i": -1}), json!({"i": 0})).len(), 1);
    assert_eq!(
        update(json!({"arr": [{"a": "x"}, {}]}), json!({"arr": [{"a": "x"}]})).len(),
        1,
        "uncorrelated"
    );
    // Elements of a list map are found again wherever they are.
    assert!(update(json!({"lm": [{"k": "b"}, {"k": 1}]}), json!({"lm": [{"k": 1}]})).is_empty());
    // A list that already had duplicates may keep them.
    let twice = json!({"lm": [{"k": "a"}, {"k": "a"}]});
    assert!(update(twice.clone(), twice).is_empty());
    // A missing field is a fault of the object that lacks it.
    assert!(update(json!({"req": {"a": ""}, "m": 3}), json!({"req": {"a": ""}})).is_empty());
    assert_eq!(update(json!({"req": {"a": "x"}}), json!({"req": {"a": ""}})).len(), 1);
}

#[test]
fn status_is_held_to_its_own_part() {
    let schema = read(json!({"type": "object", "properties": {
        "spec": {"type": "integer"},
        "status": {"type": "object", "properties": {"n": {"type": "string", "minLength": 3}, "phase": {"type": "string"}}}}}));
    let errors =
        |status: Value| texts(&validate_status(&schema, &json!({"spec": "x", "status": status}), &json!({})));
    assert_eq!(
        errors(json!({"n": "a"})),
        ["status.n: Invalid value: \"a\": n in body should be at least 3 chars long"]
    );
    assert_eq!(
        errors(json!("x")),
        ["status: Invalid value: \"string\":  in body must be of type object: \"string\""]
    );
}

#[test]
fn floats_are_written_as_go_does() {
    for (float, want) in
        [(0.5, "0.5"), (3.0, "3"), (1e21, "1e+21"), (1.5e-7, "1.5e-07"), (1e20, "100000000000000000000")]
    {
        assert_eq!(go_float(float), want);
    }
}

/// An object that was written before its schema became strict; each line is a change of it.
#[test]
fn ratcheting_is_that_of_the_real_server() {
    const SKIPPED: &str = "<nil>: Invalid value: null: some validation rules were not checked because the object was \
        invalid; correct the existing errors to complete validation";
    let json = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"i": {"type": "integer", "minimum": 5}, "s": {"type": "string", "maxLength": 2, "x-kubernetes-validations": [{"rule": "self.startsWith('a')"}]}, "arr": {"type": "array", "items": {"type": "integer", "minimum": 5}, "maxItems": 2}, "lm": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string", "maxLength": 9}, "n": {"type": "integer", "minimum": 5, "x-kubernetes-validations": [{"rule": "self < 100"}]}}, "required": ["k"]}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "maxItems": 10}, "o": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a"]}, "m": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 5}}, "e": {"type": "string", "enum": ["A"]}}, "x-kubernetes-validations": [{"rule": "!has(self.i) || self.i > 7", "message": "i>7"}]}}});
    let old = json!({"i": 1, "s": "zzzz", "arr": [1, 2, 3], "lm": [{"k": "a", "n": 1}, {"k": "b", "n": 500}], "o": {"b": "x"}, "m": {"x": 1, "y": 9}, "e": "Q"});
    let table: &[(Value, &[&str])] = &[
        (json!({}), &[]),
        (
            json!({"i": 2}),
            &[
                "spec.i: Invalid value: 2: spec.i in body should be greater than or equal to 5",
                "spec: Invalid value: i>7",
            ],
        ),
        (json!({"s": "yyyy"}), &["spec.s: Too long: may not be more than 2 bytes", SKIPPED]),
        (
            json!({"arr": [1, 2, 4]}),
            &[
                "spec.arr[0]: Invalid value: 1: spec.arr[0] in body should be greater than or equal to 5",
                "spec.arr[1]: Invalid value: 2: spec.arr[1] in body should be greater than or equal to 5",
                "spec.arr[2]: Invalid value: 4: spec.arr[2] in body should be greater than or equal to 5",
                "spec.arr: Too many: 3: must have at most 2 items",
                SKIPPED,
            ],
        ),
        (
            json!({"arr": [1, 2, 3, 9]}),
            &[
                "spec.arr[0]: Invalid value: 1: spec.arr[0] in body should be greater than or equal to 5",
                "spec.arr[1]: Invalid value: 2: spec.arr[1] in body should be greater than or equal to 5",
                "spec.arr[2]: Invalid value: 3: spec.arr[2] in body should be greater than or equal to 5",
                "spec.arr: Too many: 4: must have at most 2 items",
                SKIPPED,
            ],
        ),
        (
            json!({"lm": [{"k": "b", "n": 500}, {"k": "a", "n": 1}, {"k": "c", "n": 6}]}),
            &["spec: Invalid value: i>7"],
        ),
        (
            json!({"lm": [{"k": "a", "n": 2}]}),
            &[
                "spec.lm[0].n: Invalid value: 2: spec.lm[0].n in body should be greater than or equal to 5",
                "spec: Invalid value: i>7",
            ],
        ),
        (
            json!({"lm": [{"k": "b", "n": 501}]}),
            &["spec: Invalid value: i>7", "spec.lm[0].n: Invalid value: 501: failed rule: self < 100"],
        ),
        (json!({"o": {"b": "y"}}), &["spec.o.a: Required value", SKIPPED]),
        (
            json!({"m": {"x": 1, "y": 9, "z": 1}}),
            &[
                "spec.m.z: Invalid value: 1: spec.m.z in body should be greater than or equal to 5",
                "spec: Invalid value: i>7",
            ],
        ),
        (
            json!({"m": {"x": 2, "y": 9}}),
            &[
                "spec.m.x: Invalid value: 2: spec.m.x in body should be greater than or equal to 5",
                "spec: Invalid value: i>7",
            ],
        ),
        (json!({"e": "R"}), &["spec.e: Unsupported value: \"R\": supported values: \"A\"", SKIPPED]),
        (json!({"i": 9, "e": "A"}), &[]),
        (json!({"i": 9}), &[]),
    ];
    let schema = read(json.clone());
    let (rules, _) = Rules::compile(&json);
    for (change, want) in table {
        let mut new = old.clone();
        for (key, value) in change.as_object().expect("map") {
            new[key] = value.clone();
        }
        let (new, old) = (json!({ "spec": new }), json!({ "spec": old }));
        let mut errors = validate_update(&schema, &new, &old);
        add_rule_errors(&rules, &new, Some(&old), &mut errors);
        assert_eq!(texts(&errors), *want, "{change}");
    }
    let unchanged = json!({ "spec": old });
    let tolerated = rules.judge(&unchanged, Some(&unchanged)).tolerated;
    assert_eq!(
        texts(&tolerated),
        [
            "spec: Invalid value: i>7",
            "spec.lm[1].n: Invalid value: 500: failed rule: self < 100",
            "spec.s: Invalid value: \"zzzz\": failed rule: self.startsWith('a')"
        ]
    );
}
