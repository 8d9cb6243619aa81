//! Rows of the real server, against ours. `testdata` was captured from kube-apiserver v1.36.

use jiff::Timestamp;
use proptest::prelude::{any, prop_assert_eq, proptest};
use serde_json::{Value, json};

use super::*;
use crate::builtin::access::Peek;
use crate::builtin::{KINDS, by_kind};

#[test]
fn rows_are_those_of_the_real_server() {
    let file: Value = serde_json::from_str(include_str!("testdata/rows.json")).expect("test data");
    let cases = file.list("cases");
    assert!(cases.len() > 70, "{}", cases.len());
    let mut failures = Vec::new();
    for case in cases {
        let object = &case["object"];
        let kind = by_kind(object.str_of("apiVersion"), object.str_of("kind")).expect("a built-in kind");
        let now: Timestamp = case.str_of("now").parse().expect("a time");
        let ours = cells(kind, object, now);
        assert_eq!(ours.len(), columns(kind).len(), "{}", kind.kind);
        let conditions = row_conditions(kind, object).unwrap_or_default();
        if ours != case.list("cells") || conditions != *case.sub("conditions") {
            failures.push(format!("{object}\nours {}\nreal {}", Value::from(ours), case["cells"]));
        }
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

#[test]
fn custom_resources_have_name_and_age_by_default() {
    let names = |additional: &[Value]| -> Vec<String> {
        custom_columns(additional)
            .into_iter()
            .map(|column| format!("{}:{}", column.name, column.ty))
            .collect()
    };
    assert_eq!(names(&[]), ["Name:string", "Age:date"]);
    let phase = json!({"name": "Phase", "type": "string", "jsonPath": ".status.phase", "priority": 1});
    assert_eq!(names(std::slice::from_ref(&phase)), ["Name:string", "Phase:string"]);
    let column = &custom_columns(&[phase])[1];
    assert_eq!(column.priority, 1);
    assert_eq!(column.description, "Custom resource definition column (in JSONPath format): .status.phase");

    let now: Timestamp = "2024-01-01T00:01:00Z".parse().expect("a time");
    let object = json!({"metadata": {"name": "x", "creationTimestamp": "2024-01-01T00:00:00Z"}});
    let none = |_: &Value| Vec::new();
    let mut columns = vec![CustomColumn { ty: "string".to_owned(), find: none }];
    columns.clear();
    assert_eq!(custom_cells(&columns, &object, now), [json!("x"), json!("60s")]);
}

#[test]
fn cells_of_custom_columns_follow_their_type() {
    let now: Timestamp = "2024-01-01T00:01:00Z".parse().expect("a time");
    for (ty, value, cell) in [
        ("string", json!("a"), json!("a")),
        ("string", json!(3), json!("3")),
        ("string", json!({"a": [1]}), json!("{\"a\":[1]}")),
        ("string", json!(null), json!("<no value>")),
        ("integer", json!(3), json!(3)),
        ("integer", json!(3.7), json!(3)),
        ("integer", json!("3"), json!(null)),
        ("number", json!(1.5), json!(1.5)),
        ("boolean", json!(true), json!(true)),
        ("boolean", json!("true"), json!(null)),
        ("date", json!("2024-01-01T00:00:00Z"), json!("60s")),
        ("date", json!("yesterday"), json!("<invalid>")),
        ("date", json!(5), json!(null)),
    ] {
        let find = move |_: &Value| vec![value.clone()];
        let cells = custom_cells(&[CustomColumn { ty: ty.to_owned(), find }], &json!({}), now);
        assert_eq!(cells[1], cell, "{ty}");
    }
    let missing =
        custom_cells(&[CustomColumn { ty: "string".to_owned(), find: |_: &Value| vec![] }], &json!({}), now);
    assert_eq!(missing[1], Value::Null);
}

proptest! {
    #[test]
    fn as_many_cells_as_columns(spec in "[a-z]{0,4}", number in any::<i64>()) {
        let object = json!({"metadata": number, "spec": {"containers": spec, "replicas": spec}, "status": [number]});
        for kind in KINDS {
            prop_assert_eq!(cells(kind, &object, Timestamp::UNIX_EPOCH).len(), columns(kind).len(), "{}", kind.kind);
        }
    }
}
