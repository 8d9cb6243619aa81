//! Heads of requests as Envoy, or whoever reaches the port, may send them: nothing panics, and what is read is what was
//! sent. Whole streams of arbitrary messages, and arbitrary bytes, are beside the state machine (`exchange/tests.rs`).

// What a test sets up itself is there, or the test has failed.
#![allow(clippy::unwrap_used)]

use agentcube_extproc::message::{head, request_id, route_task};
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue as Field};
use envoy_types::pb::envoy::service::ext_proc::v3::HttpHeaders;
use proptest::prelude::*;
use prost::Message;

fn any_field() -> impl Strategy<Value = Field> {
    let key = prop_oneof![
        "[a-z-]{1,12}".prop_map(|key| key),
        prop::sample::select(vec![":path", ":method", ":authority", ":scheme", "cookie", "x-request-id"])
            .prop_map(str::to_owned),
        any::<String>(),
    ];
    (key, any::<String>(), any::<Vec<u8>>()).prop_map(|(key, value, raw_value)| Field {
        key,
        value,
        raw_value,
    })
}

fn message(headers: Vec<Field>) -> HttpHeaders {
    HttpHeaders { headers: Some(HeaderMap { headers }), ..HttpHeaders::default() }
}

/// As it says itself: bytes, or text where there are none.
fn bytes(field: &Field) -> &[u8] {
    if field.raw_value.is_empty() { field.value.as_bytes() } else { &field.raw_value }
}

proptest! {
    #[test]
    fn a_head_is_what_was_sent(fields in prop::collection::vec(any_field(), 0..20)) {
        let mut sent = message(fields.clone());
        let id = request_id(&sent);
        prop_assert!(id.len() <= 128 && id.as_bytes().iter().all(u8::is_ascii_graphic));
        // Either all of it can be read, or it is refused as a whole: nothing is dropped silently.
        if let Ok(head) = head(&mut sent) {
            let plain = fields.iter().filter(|field| !field.key.starts_with(':'));
            for field in plain.clone() {
                let mut values = head.headers.get_all(field.key.to_lowercase()).iter();
                prop_assert!(values.any(|value| value.as_bytes() == bytes(field)), "{:?}", field);
            }
            prop_assert_eq!(head.headers.len(), plain.count());
            prop_assert!(!head.path.contains(['?', '#']));
        }
    }

    #[test]
    fn many_headers_are_refused(more in 0..50_usize) {
        let field = Field { key: "x".into(), value: "1".into(), ..Field::default() };
        prop_assert!(head(&mut message(vec![field; 513 + more])).is_err());
    }

    #[test]
    fn bytes_are_read_or_not(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(mut message) = HttpHeaders::decode(&*bytes) {
            let (_id, _any) = (request_id(&message), head(&mut message));
        }
    }

    #[test]
    fn a_route_names_one_task(namespace in "[^/]{1,9}", task in "[^/]{1,9}", rest in "\\PC{0,20}", any in any::<String>()) {
        let route = format!("httproute/{namespace}/{task}/rule/{rest}");
        prop_assert_eq!(route_task(&route), Some((namespace.as_str(), task.as_str())));
        if let Some((namespace, task)) = route_task(&any) {
            let named = format!("httproute/{namespace}/{task}/rule");
            prop_assert!(any.starts_with(&named) && !namespace.is_empty() && !task.is_empty());
        }
    }
}
