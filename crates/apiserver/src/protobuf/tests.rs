//! The table against the schemas, decoding against what Go makes of the same objects, and arbitrary bytes.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const UNTYPED: TypeName<'_> = TypeName { api_version: "", kind: "" };

struct Capture {
    name: String,
    proto: Vec<u8>,
    json: Value,
}

/// Objects as protobuf and as JSON, both written by Go.
fn captures() -> Vec<Capture> {
    let all: Vec<Value> = serde_json::from_str(include_str!("testdata/captures.json")).unwrap();
    let capture = |value: &Value| Capture {
        name: value["name"].as_str().unwrap().to_owned(),
        proto: STANDARD.decode(value["proto"].as_str().unwrap()).unwrap(),
        json: value["json"].clone(),
    };
    all.iter().map(capture).collect()
}

/// Go writes an absent list or time as `null` where it may not leave it out.
fn without_nulls(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(without_nulls);
    }
    if let Value::Array(list) = value {
        list.iter_mut().for_each(without_nulls);
    }
}

#[test]
fn objects_are_what_go_writes_as_json() {
    for Capture { name, proto, mut json } in captures() {
        let mut object = decode(&proto, UNTYPED).unwrap();
        without_nulls(&mut object);
        without_nulls(&mut json);
        assert_eq!(object, json, "{name}");
    }
}
