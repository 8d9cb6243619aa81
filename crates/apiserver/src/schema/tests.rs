//! Properties of everything at once: arbitrary values against arbitrary and real schemas.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::parse::Names;
use super::*;

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3_i64..3).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z0-9T:.é\\-]{0,12}".prop_map(Value::from),
    ]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "a",
            "b",
            "c",
            "spec",
            "metadata",
            "kind",
            "apiVersion",
            "labels",
            "name",
            "containers",
            "ports",
            "containerPort",
            "resources",
            "limits",
            "cpu",
            "volumes",
            "secret"
        ])
        .prop_map(str::to_owned),
        "[a-z_.é]{1,5}",
    ]
}

fn value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(5, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(key(), inner, 0..6).prop_map(|map| json!(map)),
        ]
    })
}

fn constraint() -> impl Strategy<Value = (&'static str, Value)> {
    prop_oneof![
        Just(("nullable", json!(true))),
        (0_u64..4).prop_map(|n| ("minLength", json!(n))),
        (0_u64..4).prop_map(|n| ("maxItems", json!(n))),
        (0_u64..4).prop_map(|n| ("maxProperties", json!(n))),
        any::<f64>().prop_map(|n| ("minimum", json!(n))),
        any::<f64>().prop_map(|n| ("multipleOf", json!(n))),
        Just(("format", json!("date-time"))),
        Just(("format", json!("int32"))),
        "[a-z(\\[*+]{0,4}".prop_map(|p| ("pattern", json!(p))),
        Just(("uniqueItems", json!(true))),
        Just(("x-kubernetes-preserve-unknown-fields", json!(true))),
        Just(("x-kubernetes-embedded-resource", json!(true))),
        Just(("x-kubernetes-int-or-string", json!(true))),
        Just(("x-kubernetes-list-type", json!("set"))),
        Just(("x-kubernetes-list-type", json!("map"))),
        Just(("x-kubernetes-list-map-keys", json!(["a"]))),
        prop::collection::vec(key(), 1..3).prop_map(|names| ("required", json!(names))),
        prop::collection::vec(scalar(), 1..3).prop_map(|values| ("enum", json!(values))),
        Just(("x-kubernetes-validations", json!([{"rule": "has(self.a) && self.b > 1 || self == oldSelf"}]))),
        Just((
            "x-kubernetes-validations",
            json!([{"rule": "self.size() > 1", "messageExpression": "string(self.x)"}])
        )),
    ]
}

fn schema() -> impl Strategy<Value = Value> {
    let leaf = (
        prop::sample::select(vec!["object", "array", "string", "integer", "number", "boolean"]),
        prop::collection::vec(constraint(), 0..3),
    )
        .prop_map(|(ty, constraints)| {
            let mut schema = json!({ "type": ty });
            for (key, value) in constraints {
                schema[key] = value;
            }
            schema
        });
    leaf.prop_recursive(4, 32, 5, |inner| {
        (
            inner.clone(),
            prop::collection::btree_map(key(), inner.clone(), 0..5),
            prop::option::of(inner.clone()),
            prop::option::of(inner.clone()),
            prop::option::of((
                prop::sample::select(vec!["allOf", "anyOf", "oneOf"]),
                prop::collection::vec(inner, 1..3),
            )),
            prop::option::of(scalar()),
        )
            .prop_map(|(mut schema, properties, items, additional, junctor, default)| {
                schema["properties"] = json!(properties);
                schema["items"] = json!(items);
                schema["additionalProperties"] = json!(additional);
                schema["default"] = json!(default);
                if let Some((key, list)) = junctor {
                    schema[key] = json!(list);
                }
                schema
            })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_and_passes_are_idempotent(json in schema(), new in value(), old in value()) {
        let schema = Schema::from_json(&json, &Names::none()).expect("a schema");

        let mut pruned = new.clone();
        prune(&schema, &mut pruned);
        prop_assert_eq!(unknown_fields(&schema, &pruned).into_iter()
            .filter(|path| !path.contains("metadata")).collect::<Vec<_>>(), Vec::<String>::new());
        let once = pruned.clone();
        prune(&schema, &mut pruned);
        prop_assert_eq!(once, pruned);

        let mut defaulted = new.clone();
        apply_defaults(&schema, &mut defaulted);
        let once = defaulted.clone();
        apply_defaults(&schema, &mut defaulted);
        prop_assert_eq!(once, defaulted);

        let mut coerced = new.clone();
        let _ = objectmeta::coerce(&schema, &mut coerced);
        let (rules, _) = Rules::compile(&json);
        validate::add_rule_errors(&rules, &new, None, &mut validate(&schema, &new));
        validate::add_rule_errors(&rules, &new, Some(&old), &mut validate_update(&schema, &new, &old));
        validate::validate_status(&schema, &new, &old);
        // What has not changed is never refused, but for resources that do not say what they are.
        let faults = validate_update(&schema, &new, &new);
        prop_assert_eq!(faults.len(), objectmeta::validate_embedded(&schema, &new).len());
    }

    #[test]
    fn builtin_kinds_take_any_json(new in value()) {
        for name in ["core.v1.Pod", "core.v1.Secret", "apps.v1.Deployment", "coordination.v1.Lease"] {
            let link = Definitions::builtin().get(&format!("io.k8s.api.{name}")).expect("known");
            decode_error("Kind", "v1", link.get(), &new);
            let mut pruned = new.clone();
            prune(link.get(), &mut pruned);
            prop_assert_eq!(unknown_fields(link.get(), &pruned), Vec::<String>::new());
            strict::strict_errors(link.get(), new.to_string().as_bytes());
        }
    }

    #[test]
    fn crds_take_any_json(schema in schema(), spec in value()) {
        let mut crd = json!({"metadata": {"name": "a.b.c"}, "spec": {"group": "b.c", "names": {"plural": "a"},
            "versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}});
        crd::default_crd(&mut crd);
        crd::validate_crd(&crd, None);
        let mut wild = json!({ "spec": spec });
        crd::default_crd(&mut wild);
        crd::validate_crd(&wild, Some(&crd));
        let version = json!({"spec": {"versions": [wild["spec"].clone()]}});
        crd::validate_crd(&version, None);
    }

    #[test]
    fn paths_and_formats_take_any_text(text in "\\PC{0,24}", value in value(), layout in any::<bool>()) {
        if let Ok(path) = JsonPath::parse(&text) {
            path.select(&value);
            path.cell("string", &value);
        }
        let layout = if layout { "2006-01-02T15:04:05Z07:00" } else { "2006-01-02T15:04:05.000000Z07:00" };
        formats::go_time_error(&text, layout);
        formats::is_quantity(&text);
        for format in ["uri", "email", "hostname", "cidr", "mac", "uuid4", "isbn", "creditcard", "date-time", "duration"] {
            formats::matches(format, &text);
        }
        strict::duplicate_fields(text.as_bytes());
    }

    #[test]
    fn jsonpath_grammar(text in "(\\.[a-c]|\\[[-0-9:*,]{1,4}\\]|\\['[a-c]'\\]|\\[\\?\\(@\\.a[<>=!]{1,2}[0-9'\"a]{1,3}\\)\\]|\\.\\.){1,5}", value in value()) {
        if let Ok(path) = JsonPath::parse(&text) {
            path.select(&value);
        }
    }
}

#[test]
fn deep_values_do_not_overflow_the_stack() {
    let mut deep = json!(1);
    for _ in 0..120 {
        deep = json!({ "a": [deep] });
    }
    let mut json = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    for _ in 0..30 {
        json = json!({"type": "object", "properties": {"a": {"type": "array", "items": json}}});
    }
    json["x-kubernetes-validations"] = json!([{"rule": "has(self.a)"}]);
    let schema = Schema::from_json(&json, &Names::none()).expect("schema");
    let (rules, errors) = Rules::compile(&json);
    assert!(errors.is_empty(), "{errors:?}");
    prune(&schema, &mut deep);
    apply_defaults(&schema, &mut deep);
    let mut faults = validate(&schema, &deep);
    validate::add_rule_errors(&rules, &deep, None, &mut faults);
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn schemas_and_rules_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Rules>();
    shared::<Schema>();
    shared::<Definitions>();
    shared::<JsonPath>();
}
