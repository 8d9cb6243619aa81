//! Messages in the tables were given by a real API server.

use serde_json::json;

use super::super::validate::add_rule_errors;
use super::*;

fn texts(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn schema() -> Value {
    let rules = "x-kubernetes-validations";
    json!({"type": "object", "properties": {"spec": {"type": "object",
        rules: [{"rule": "!has(self.a) || !has(self.b) || self.a <= self.b", "message": "a must be <= b"}],
        "properties": {
            "a": {"type": "integer"}, "b": {"type": "integer"},
            "s": {"type": "string", rules: [{"rule": "self.startsWith('x')"},
                {"rule": "self != 'xq'", "message": "no q", "reason": "FieldValueForbidden"},
                {"rule": "self == oldSelf", "message": "immutable"}]},
            "l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items":
                {"type": "object", "properties": {"k": {"type": "string"}, "n": {"type": "integer"}},
                 rules: [{"rule": "self.n >= oldSelf.n", "message": "n must not shrink"}, {"rule": "self.n < 10"}]}},
            "arr": {"type": "array", "items": {"type": "integer", rules: [{"rule": "self < 5"}]},
                rules: [{"rule": "self.size() < 4", "message": "too many in arr"}]},
            "m": {"type": "object", "additionalProperties": {"type": "string", rules: [{"rule": "self != 'bad'"}]}},
            "o": {"type": "object", "properties": {"x": {"type": "integer"}, "my_snake": {"type": "string"}}, rules: [
                {"rule": "self.x > 1", "messageExpression": "self.x == 0 ? 'x is zero' : 'x is ' + self.my_snake"},
                {"rule": "!has(self.my_snake) || self.my_snake != 'bad'", "message": "snake", "fieldPath": ".my_snake"},
                {"rule": "self.x < 100", "reason": "FieldValueRequired", "message": "need"},
                {"rule": "self.x != 50", "reason": "FieldValueDuplicate", "message": "dup"}]},
            "opt": {"type": "string", rules: [
                {"rule": "oldSelf.hasValue() || self == 'init'", "optionalOldSelf": true, "message": "must be init"}]},
            "e": {"type": "object", "properties": {"x": {"type": "integer"}}, rules: [{"rule": "self.x / 0 == 1"}]},
            "q": {"type": "integer", "minimum": 3, rules: [{"rule": "self > 5", "message": "q>5"}]},
            "mn": {"type": "object", "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}}, rules: [
                {"rule": "self.min <= self.max", "message": "min<=max"},
                {"rule": "self.min <= self.max && has(self.max)"}]}}}}})
}

fn compiled() -> Rules {
    let (rules, errors) = Rules::compile(&schema());
    assert_eq!(texts(&errors), Vec::<String>::new());
    rules
}

#[test]
fn messages_are_those_of_the_real_server() {
    let table: &[(Value, &[&str])] = &[
        (json!({"a": 2, "b": 1}), &["spec: Invalid value: a must be <= b"]),
        (json!({"s": "a"}), &["spec.s: Invalid value: \"a\": failed rule: self.startsWith('x')"]),
        (json!({"s": "xq"}), &["spec.s: Forbidden: no q"]),
        (json!({"l": [{"k": "a", "n": 10}]}), &["spec.l[0]: Invalid value: failed rule: self.n < 10"]),
        (json!({"arr": [6]}), &["spec.arr[0]: Invalid value: 6: failed rule: self < 5"]),
        (json!({"arr": [1, 2, 3, 4]}), &["spec.arr: Invalid value: too many in arr"]),
        (json!({"m": {"k": "bad"}}), &["spec.m[k]: Invalid value: \"bad\": failed rule: self != 'bad'"]),
        (json!({"o": {"x": 1}}), &["spec.o: Invalid value: failed rule: self.x > 1"]),
        (json!({"o": {"x": 0}}), &["spec.o: Invalid value: x is zero"]),
        (json!({"o": {"x": 2, "my_snake": "bad"}}), &["spec.o.my_snake: Invalid value: snake"]),
        (json!({"o": {"x": 200}}), &["spec.o: Required value: need"]),
        (json!({"o": {"x": 50}}), &["spec.o: Duplicate value"]),
        (json!({"opt": "z"}), &["spec.opt: Invalid value: \"z\": must be init"]),
        (json!({"opt": "init"}), &[]),
        (
            json!({"e": {"x": 1}}),
            &["spec.e: Invalid value: \"object\": division by zero evaluating rule: self.x / 0 == 1"],
        ),
        (
            json!({"mn": {"min": 3, "max": 2}}),
            &[
                "spec.mn: Invalid value: min<=max",
                "spec.mn: Invalid value: failed rule: self.min <= self.max && has(self.max)",
            ],
        ),
        (
            json!({"mn": {"min": 3}}),
            &[
                "spec.mn: Invalid value: \"object\": no such key: max evaluating rule: min<=max",
                "spec.mn: Invalid value: failed rule: self.min <= self.max && has(self.max)",
            ],
        ),
        (json!({}), &[]),
    ];
    let rules = compiled();
    for (spec, want) in table {
        assert_eq!(texts(&rules.validate(&json!({"spec": spec}), None)), *want, "{spec}");
    }
}

#[test]
fn transition_rules_compare_what_can_be_matched() {
    let rules = compiled();
    let old = json!({"spec": {"s": "xa", "l": [{"k": "a", "n": 5}, {"k": "b", "n": 6}], "opt": "init"}});
    let update = |spec: Value| texts(&rules.validate(&json!({ "spec": spec }), Some(&old)));
    assert_eq!(update(json!({"s": "xb"})), ["spec.s: Invalid value: \"xb\": immutable"]);
    assert_eq!(
        update(json!({"l": [{"k": "b", "n": 1}, {"k": "a", "n": 5}, {"k": "c", "n": 0}]})),
        ["spec.l[0]: Invalid value: n must not shrink"]
    );
    assert!(update(json!({"s": "xa", "opt": "zz"})).is_empty());
    assert!(update(json!({})).is_empty());
}

#[test]
fn unchanged_faults_are_tolerated() {
    let rules = compiled();
    let old = json!({"spec": {"a": 2, "b": 1, "arr": [6], "q": 1}});
    assert!(rules.validate(&old, Some(&old)).is_empty());
    let new = json!({"spec": {"a": 2, "b": 1, "arr": [6], "q": 2}});
    // `spec` itself has changed, and with it what its own rule is about.
    assert_eq!(
        texts(&rules.validate(&new, Some(&old))),
        ["spec: Invalid value: a must be <= b", "spec.q: Invalid value: 2: q>5"]
    );
}

#[test]
fn rules_are_not_trusted_with_what_has_the_wrong_shape() {
    let schema_json = schema();
    let schema = Schema::from_json(&schema_json, &Names::none()).expect("schema");
    let run = |spec: Value| {
        let value = json!({ "spec": spec });
        let mut errors = super::super::validate::validate(&schema, &value);
        add_rule_errors(&compiled(), &value, None, &mut errors);
        texts(&errors)
    };
    assert_eq!(
        run(json!({"q": "s", "a": 2, "b": 1})),
        [
            "spec.q: Invalid value: \"string\": spec.q in body must be of type integer: \"string\"",
            "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; \
             correct the existing errors to complete validation"
        ]
    );
    assert_eq!(
        run(json!({"q": 1, "a": 2, "b": 1})),
        [
            "spec.q: Invalid value: 1: spec.q in body should be greater than or equal to 3",
            "spec: Invalid value: a must be <= b",
            "spec.q: Invalid value: 1: q>5"
        ]
    );
}

fn compile_errors(spec: Value) -> Vec<String> {
    let (_, errors) = Rules::compile_at(&json!({"type": "object", "properties": {"spec": spec}}), "base");
    texts(&errors)
}

#[test]
fn mistakes_in_rules_are_found() {
    let with = |rule: Value| json!({"type": "object", "properties": {"a": {"type": "string"}}, "x-kubernetes-validations": [rule]});
    let at = "base.properties[spec].x-kubernetes-validations[0]";
    let shown = |rule: &str, message: &str, expression: &str| {
        format!(
            "{{\"Rule\":\"{rule}\",\"Message\":\"{message}\",\"MessageExpression\":\"{expression}\",\"Reason\":null,\
             \"FieldPath\":\"\",\"OptionalOldSelf\":null}}"
        )
    };
    assert_eq!(
        compile_errors(with(json!({"rule": "self.b == 1", "message": "m"}))),
        [format!(
            "{at}.rule: Invalid value: {}: compilation failed: ERROR: <input>:1:5: undefined field 'b'\n | self.b == 1\n | ....^",
            shown("self.b == 1", "m", "")
        )]
    );
    assert_eq!(
        compile_errors(with(json!({"rule": "self.a"}))),
        [format!(
            "{at}.rule: Invalid value: {}: cel expression must evaluate to a bool",
            shown("self.a", "", "")
        )]
    );
    assert_eq!(
        compile_errors(with(json!({"rule": "foo(self)"}))),
        [format!(
            "{at}.rule: Invalid value: {}: compilation failed: ERROR: <input>:1:4: undeclared reference to 'foo' \
             (in container '')\n | foo(self)\n | ...^",
            shown("foo(self)", "", "")
        )]
    );
    let compiler = [
        (
            "self.a == 1",
            "ERROR: <input>:1:8: found no matching overload for '_==_' applied to '(string, int)'\n | self.a == 1\n | .......^",
        ),
        ("has(self.zz)", "ERROR: <input>:1:4: undefined field 'zz'\n | has(self.zz)\n | ...^"),
        (
            "self.b.c || self.q",
            "ERROR: <input>:1:5: undefined field 'b'\n | self.b.c || self.q\n | ....^\nERROR: <input>:1:17: undefined field 'q'\n | self.b.c || self.q\n | ................^",
        ),
    ];
    for (rule, want) in compiler {
        let want = format!("{at}.rule: Invalid value: {}: compilation failed: {want}", shown(rule, "", ""));
        assert_eq!(compile_errors(with(json!({ "rule": rule }))), [want]);
    }
    let syntax = compile_errors(with(json!({"rule": "self.a =="})));
    assert!(syntax[0].contains("compilation failed: ERROR: <input>:1:10: Syntax error:"), "{syntax:?}");
    let message = compile_errors(with(json!({"rule": "true", "messageExpression": "1 +"})));
    assert!(message[0].contains("messageExpression compilation failed: ERROR: <input>:1:4:"), "{message:?}");
    assert_eq!(
        compile_errors(with(json!({"rule": "true", "optionalOldSelf": true}))),
        [format!("{at}.optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule")]
    );
    let list = json!({"type": "array", "items": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}});
    assert_eq!(
        compile_errors(list),
        [
            "base.properties[spec].items.x-kubernetes-validations[0].rule: Invalid value: \"self == oldSelf\": oldSelf \
          cannot be used on the uncorrelatable portion of the schema within base.properties[spec]"
        ]
    );
}

#[test]
fn what_rules_may_use() {
    let pass = |schema: Value, value: Value| {
        let (rules, errors) = Rules::compile(&schema);
        assert_eq!(texts(&errors), Vec::<String>::new());
        texts(&rules.validate(&value, None))
    };
    let none: [&str; 0] = [];
    let with = |properties: Value, rule: &str| json!({"type": "object", "properties": properties, "x-kubernetes-validations": [{"rule": rule}]});
    let cases = [
        (json!({}), "self.metadata.name.startsWith('a')", json!({"metadata": {"name": "abc"}})),
        (
            json!({"t": {"type": "string", "format": "date-time"}}),
            "self.t < timestamp('2030-01-01T00:00:00Z')",
            json!({"t": "2024-01-01T00:00:00Z"}),
        ),
        (
            json!({"d": {"type": "string", "format": "duration"}}),
            "self.d > duration('1m')",
            json!({"d": "5m"}),
        ),
        (json!({"n": {"type": "number"}}), "self.n > 0.5", json!({"n": 1})),
        (
            json!({"if": {"type": "integer"}, "a-b": {"type": "integer"}}),
            "self.__if__ == self.a__dash__b",
            json!({"if": 1, "a-b": 1}),
        ),
        (
            json!({"l": {"type": "array", "items": {"type": "string"}}}),
            "self.l.all(x, x.matches('^[a-z]+$'))",
            json!({"l": ["a", "b"]}),
        ),
        (
            json!({"l": {"type": "array", "items": {"type": "string"}}}),
            "self.l.exists(x, x == 'b') && 'a' in self.l",
            json!({"l": ["a", "b"]}),
        ),
        (
            json!({"m": {"type": "object", "additionalProperties": {"type": "integer"}}}),
            "self.m.all(k, self.m[k] > 0)",
            json!({"m": {"a.b": 1}}),
        ),
        (
            json!({"m": {"type": "object", "additionalProperties": {"type": "integer"}}}),
            "'a.b' in self.m && self.m['a.b'] == 1",
            json!({"m": {"a.b": 1}}),
        ),
        (
            json!({"x": {"x-kubernetes-int-or-string": true}}),
            "type(self.x) == int ? self.x > 0 : self.x.endsWith('%')",
            json!({"x": "5%"}),
        ),
        (
            json!({"q": {"type": "string"}}),
            "quantity(self.q).isGreaterThan(quantity('1Gi'))",
            json!({"q": "2Gi"}),
        ),
        (
            json!({"u": {"type": "string"}}),
            "isURL(self.u) && url(self.u).getHost() == 'a.b'",
            json!({"u": "https://a.b/c"}),
        ),
        (
            json!({"a": {"type": "string"}, "b": {"type": "string"}}),
            "[has(self.a), has(self.b)].filter(x, x).size() == 1",
            json!({"a": ""}),
        ),
        (json!({"a": {"type": "string"}}), "(has(self.a) ? 1 : 0) + 1 == 2", json!({"a": ""})),
        (json!({"a": {"type": "string"}}), "self.?a.orValue('z') == 'z'", json!({})),
        (
            json!({"a": {"type": "object", "properties": {"b": {"type": "string"}}}}),
            "!self.?a.?b.hasValue()",
            json!({"a": {}}),
        ),
        (
            json!({"a": {"type": "object", "properties": {"b": {"type": "string"}}}}),
            "self.?a.b.orValue('') == 'x'",
            json!({"a": {"b": "x"}}),
        ),
    ];
    for (properties, rule, value) in cases {
        assert_eq!(pass(with(properties, rule), value), none, "{rule}");
    }
}

#[test]
fn functions_of_kubernetes_are_known() {
    let rules = [
        "sets.contains([1, 2], [1])",
        "math.greatest(1, 2) == 2",
        "format.named('dns1123Label').hasValue()",
        "ip('1.2.3.4').family() == 4 && cidr('10.0.0.0/8').containsIP('10.1.1.1')",
        "self.a.lowerAscii().split(',').join('-').indexOf('x') == -1",
        "self.a.find('[0-9]+') == '' && self.a.findAll('x').size() == 0",
        "[1, 2].isSorted() && [1, 2].sum() == 3 && [1, 2].min() == 1",
        "optional.of(1).hasValue() && optional.none().orValue(1) == 1",
        "string(1) == '1' && int('1') == 1 && double(1) == 1.0 && bool('true')",
        "timestamp('2024-01-01T00:00:00Z').getFullYear() == 2024",
        "duration('1h').getMinutes() == 60",
        "base64.encode(b'a') == 'YQ=='",
        "semver('1.2.3').major() == 1 && isSemver('1.0.0')",
        "quantity('1').add(quantity('1')).asInteger() == 2",
        "self.a.matches('a') || self.a.contains('b') || self.a.replace('a', 'b').trim().size() > 0",
        "cel.bind(x, self.a, x == '')",
        "has(self.a) && dyn(self.a) == 'x' && type(self.a) == string",
        "'%s'.format([self.a]) == 'a' && self.a.substring(0, 1) == 'a' && self.a.charAt(0) == 'a'",
        "self.a in ['a'] && !(self.a == 'b') && -1 < 0 && 5 % 2 == 1",
    ];
    for rule in rules {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}},
            "x-kubernetes-validations": [{ "rule": rule }]});
        assert_eq!(texts(&Rules::compile(&schema).1), Vec::<String>::new(), "{rule}");
    }
}
