//! Texts in all kinds of pieces, held to what serde reads.

use proptest::prelude::*;

use super::*;

fn shape() -> Shape {
    Shape::new(&["method", "params.message.taskId", "params.message.contextId", "params.id", "id"])
}

fn scan(text: &[u8], cut: usize) -> Result<Found, Error> {
    let shape = shape();
    let mut scan = Scan::new(&shape);
    for piece in text.chunks(cut.max(1)) {
        scan.push(piece)?;
    }
    scan.finish()
}

fn text(value: &str) -> Option<Value> {
    Some(Value::Text(value.into()))
}

#[test]
fn members_are_found_wherever_they_stand() {
    let body = br#" { "jsonrpc":"2.0", "params": { "x": [{"taskId":"no","id":[1,{"a":{}}]}], "message":
        { "parts":[{"text":"taskId \" \\ {[" }], "taskId": "t\u002d\ud83d\ude001", "contextId":null } , "id": {} },
        "method":"SendMessage", "id": -1.5e3 } "#;
    for cut in [1, 2, 3, 7, 1000] {
        let found = scan(body, cut).unwrap();
        assert_eq!(found.get(0).cloned(), text("SendMessage"));
        assert_eq!(found.get(1).cloned(), text("t-😀1"));
        assert_eq!(found.get(2), Some(&Value::Scalar("null".into())));
        assert_eq!(found.get(3), Some(&Value::Composite));
        assert_eq!(found.get(4), Some(&Value::Scalar("-1.5e3".into())));
    }
    let escaped = scan(br#"{"\u006dethod":"x"}"#, 4).unwrap();
    assert_eq!(escaped.text(0), Some("x"));
    assert_eq!(scan(b"[{\"method\":\"x\"}]", 1), Ok(Found(vec![None; 5])));
    assert_eq!(scan(b"7", 1), Ok(Found(vec![None; 5])));
}

#[test]
fn what_is_no_json_is_refused() {
    for bad in [
        "{",
        "[1,]",
        "{,}",
        "{\"a\"}",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "[1}",
        "{}}",
        "{} x",
        "tru",
        "nul1",
        "-",
        "1.2.3",
        "01",
        "NaN",
        "\"\u{1}\"",
        "\"\\x\"",
        "\"\\u12g4\"",
        "[\"a\" \"b\"]",
        ",",
        "]",
        "",
        "{\"method\":\"\\ud800\"}",
        "{\"method\":\"\\ud800x\"}",
        "{\"method\":\"\\udc00\"}",
        "{a:1}",
    ] {
        for cut in [1, 2, 100] {
            assert!(scan(bad.as_bytes(), cut).is_err(), "{bad} {cut}");
        }
    }
    assert!(scan(b"{\"method\":\"\xff\"}", 1).is_err(), "no UTF-8 where it matters");
    assert!(scan(b"{\"other\":\"\xff\\ud800\"}", 1).is_ok(), "elsewhere it is the reader's business");
}

#[test]
fn limits_hold() {
    let deep = |n: usize| ["[".repeat(n), "]".repeat(n)].concat();
    assert!(scan(deep(DEEPEST).as_bytes(), 9).is_ok());
    assert_eq!(scan(deep(DEEPEST + 1).as_bytes(), 9), Err(Error::TooDeep));
    let long = format!("{{\"method\":\"{}\",\"id\":\"{}\"}}", "x".repeat(1024), "x".repeat(1025));
    let found = scan(long.as_bytes(), 100).unwrap();
    assert_eq!(found.text(0).map(str::len), Some(1024));
    assert_eq!(found.get(4), Some(&Value::TooLong));
    let number = format!("{{\"id\":{}}}", "1".repeat(100));
    assert_eq!(scan(number.as_bytes(), 7).unwrap().get(4), Some(&Value::TooLong));
    let name = format!("{{\"{}\":1}}", "method".repeat(100));
    assert_eq!(scan(name.as_bytes(), 7).unwrap(), Found(vec![None; 5]));
}

#[test]
fn a_name_that_matters_stands_once() {
    for (bad, name) in [
        (r#"{"method":"a","method":"a"}"#, "method"),
        (r#"{"params":{"message":{"taskId":"a"}},"params":{}}"#, "params"),
        (r#"{"params":{"message":{"taskId":"a"},"mess\u0061ge":1}}"#, "message"),
    ] {
        assert_eq!(scan(bad.as_bytes(), 3), Err(Error::Twice(name)), "{bad}");
    }
    assert!(scan(br#"{"other":1,"other":2,"params":{"method":1,"x":{"id":1}}}"#, 3).is_ok());
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let name = prop_oneof![
        Just("params".to_owned()),
        Just("message".to_owned()),
        Just("taskId".to_owned()),
        Just("method".to_owned()),
        Just("id".to_owned()),
        "\\PC{0,5}",
    ];
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        "\\PC{0,20}|[\"\\\\\n\t]{0,4}".prop_map(Into::into),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            proptest::collection::btree_map(name.clone(), inner, 0..6)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

fn expected(value: Option<&serde_json::Value>) -> Option<Value> {
    Some(match value? {
        serde_json::Value::String(text) => Value::Text(text.clone()),
        serde_json::Value::Object(_) | serde_json::Value::Array(_) => Value::Composite,
        other => Value::Scalar(other.to_string()),
    })
}

proptest! {
    #[test]
    fn it_reads_what_serde_reads(value in any_json(), cut in 1usize..40, pretty: bool) {
        let body = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) }.unwrap();
        let found = scan(&body, cut).unwrap();
        let pointers = ["/method", "/params/message/taskId", "/params/message/contextId", "/params/id", "/id"];
        for (leaf, pointer) in pointers.iter().enumerate() {
            // An array has no names, though a pointer into one may look like it has.
            prop_assert_eq!(found.get(leaf).cloned(), expected(value.pointer(pointer)), "{}", pointer);
        }
    }

    #[test]
    fn anything_may_come_in_any_pieces(body in proptest::collection::vec(any::<u8>(), 0..300), cut in 1usize..40) {
        prop_assert_eq!(scan(&body, cut), scan(&body, 1000));
        // Whatever serde takes for JSON is taken here, but for names that come twice.
        if serde_json::from_slice::<serde_json::Value>(&body).is_ok() {
            prop_assert!(matches!(scan(&body, cut), Ok(_) | Err(Error::Twice(_))));
        }
    }

    #[test]
    fn almost_json_may_come_too(
        parts in proptest::collection::vec(
            prop_oneof!["[{}\\[\\],:\"]{1,2}", Just("\"method\":".to_owned()), Just("\"params\"".to_owned()),
                Just("\\u12".to_owned()), Just("tru".to_owned()), Just("1e".to_owned()), Just(" ".to_owned())],
            0..30),
        cut in 1usize..9)
    {
        let body = parts.concat();
        prop_assert_eq!(scan(body.as_bytes(), cut), scan(body.as_bytes(), 1000));
        if scan(body.as_bytes(), cut).is_ok() {
            prop_assert!(serde_json::from_str::<serde_json::Value>(&body).is_ok(), "{}", body);
        }
    }
}
