//! Whatever a client sends: nothing panics, a key that is found is one that was put there and within its limits, and what
//! only a gateway may say reaches no instance in a client's words.

// What a test sets up itself is there, or the test has failed.
#![allow(clippy::unwrap_used)]

use agentcube_api::agentcube::routing::SessionExtractor;
use agentcube_instance::identity::LONGEST_KEY;
use agentcube_instance::provider::{self, Reserved};
use agentcube_instance::reserve::InUse;
use agentcube_instance::token::Token;
use agentcube_instance::{Endpoint, InstanceId, SessionKey};
use agentcube_router::decide::{self, Asked, At, DESTINATION, Decision, TOKEN, Who};
use agentcube_router::extract::{Extractors, KeyError};
use agentcube_router::route::{Route, Table};
use http::header::{COOKIE, HeaderName, HeaderValue};
use http::{HeaderMap, Method};
use proptest::prelude::*;
use serde_json::json;

const SESSION: HeaderName = HeaderName::from_static("x-session");
const TENANT: HeaderName = HeaderName::from_static("x-tenant-id");
/// What only a gateway says, in the words of headers.
const OURS: [&str; 6] = [
    "x-reserved-token",
    "x-gateway-destination-endpoint",
    "x-forwarded-host",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-for",
];

fn places() -> serde_json::Value {
    json!([
        { "type": "httpHeader", "name": "x-session" },
        { "type": "pathVar", "name": "id", "path": "/v1/{tenant}/user-{id}.json" },
        { "type": "query", "name": "session" },
        { "type": "cookie", "name": "sid" },
    ])
}

fn extractors() -> Extractors {
    let specs: Vec<SessionExtractor> = serde_json::from_value(places()).unwrap();
    Extractors::read(specs.iter())
}

fn table() -> Table {
    let mut table = Table::default();
    for (name, routing) in [
        ("http", json!({ "routePolicy": "BySession", "sessionIdentifier": { "extractors": places() } })),
        ("once", json!({ "routePolicy": "Oneshot", "pathPrefix": "/" })),
        ("mcp", json!({ "routePolicy": "BySession", "protocol": "MCP" })),
        ("a2a", json!({ "routePolicy": "BySession", "protocol": "A2A" })),
    ] {
        let task = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "Task",
            "metadata": { "name": name, "namespace": "prod", "uid": name },
            "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} }, "routing": routing },
        });
        table.set_task(Route::read(&serde_json::from_value(task).unwrap()).unwrap());
    }
    table
}

/// Values as HTTP lets them through: most bytes, and more often those that mean something.
fn any_value() -> impl Strategy<Value = HeaderValue> {
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        "[a-z;=\", %0-9~]{0,40}".prop_map(String::into_bytes),
        "(sid|session)=\\PC{0,20}; ?(sid)?=\\PC{0,5}".prop_map(String::into_bytes),
    ];
    bytes.prop_filter_map("HTTP has no such value", |bytes| HeaderValue::from_bytes(&bytes).ok())
}

/// Names that are ours, in all spellings, and others.
fn any_name() -> impl Strategy<Value = HeaderName> {
    let ours = (prop::sample::select(OURS.to_vec()), any::<u32>()).prop_map(|(name, mask)| {
        let dash = |(at, byte): (usize, u8)| match byte {
            b'-' if mask & (1 << (at % 32)) != 0 => b'_',
            byte => byte,
        };
        name.bytes().enumerate().map(dash).collect::<Vec<u8>>()
    });
    let known = [SESSION, COOKIE, TENANT].map(|name| name.as_str().as_bytes().to_vec());
    let protocols =
        ["mcp-session-id", "mcp-protocol-version", "a2a-version", "a2a-extensions", "content-type"]
            .map(|name| name.as_bytes().to_vec());
    let known = prop::sample::select([known.to_vec(), protocols.to_vec()].concat());
    let names = prop_oneof![2 => ours, 2 => known, 1 => "[a-z_-]{1,20}".prop_map(String::into_bytes)];
    names.prop_filter_map("HTTP has no such name", |name| HeaderName::from_bytes(&name).ok())
}

fn any_headers() -> impl Strategy<Value = HeaderMap> {
    let pairs = prop::collection::vec((any_name(), any_value()), 0..12);
    pairs.prop_map(|pairs| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, value);
        }
        headers
    })
}

fn any_path() -> impl Strategy<Value = String> {
    let structured = "(/(v1|user-[a-z%0-9]{0,9}(.json)?|tasks|message:send|\\.well-known|agent-card.json|..|%[0-9a-f]{0,2})){0,5}";
    prop_oneof![structured.prop_map(|path| path), "/\\PC*".prop_map(|path| path), any::<String>()]
}

fn any_query() -> impl Strategy<Value = Option<String>> {
    prop::option::of(prop_oneof![
        "((session|a|%73ession)=?[a-z%+0-9]{0,9}&?){0,5}".prop_map(|it| it),
        any::<String>()
    ])
}

/// What can be a key, and is the same with nothing around it.
fn any_key() -> impl Strategy<Value = String> {
    "\\PC{1,60}".prop_filter("it has to be a key", |text| {
        text.trim() == text && SessionKey::new(text).is_ok() && !text.contains('\u{85}')
    })
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn one_header(name: HeaderName, value: &[u8]) -> HeaderMap {
    HeaderMap::from_iter([(name, HeaderValue::from_bytes(value).unwrap())])
}

fn is_decent(key: &SessionKey) -> bool {
    let text = key.as_str();
    (1..=LONGEST_KEY).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn reserved() -> Reserved {
    Reserved {
        instance: InstanceId::pod("http-0", "p1"),
        endpoint: Endpoint { host: [10, 0, 0, 1].into(), port: 8080 },
        token: Token::random(),
        path: provider::Path::Reused,
        in_use: InUse::detached(),
    }
}

/// Whether somebody may read a header as this one.
fn reads_as(name: &HeaderName, ours: &str) -> bool {
    name.as_str().replace('_', "-") == ours
}

proptest! {
    #[test]
    fn a_key_is_within_its_limits(headers in any_headers(), path in any_path(), query in any_query()) {
        if let Ok(key) = extractors().key(&headers, &path, query.as_deref()) {
            prop_assert!(is_decent(&key), "{:?}", key);
        }
    }

    #[test]
    fn a_key_in_a_header_is_found(key in any_key(), path in any_path(), query in any_query(), space in "[ \t]{0,3}") {
        // Whatever else the request says: the header comes first.
        let headers = one_header(SESSION, format!("{space}{key}{space}").as_bytes());
        let found = extractors().key(&headers, &path, query.as_deref());
        prop_assert_eq!(found.as_ref().map(SessionKey::as_str), Ok(key.as_str()));
    }

    #[test]
    fn a_key_in_a_path_is_found(key in any_key(), tenant in "[^/?#]{1,9}", more in "(/\\PC{0,9})?") {
        let path = format!("/v1/{tenant}/user-{}.json{more}", encoded(&key));
        let found = extractors().key(&HeaderMap::new(), &path, None);
        prop_assert_eq!(found.as_ref().map(SessionKey::as_str), Ok(key.as_str()));
    }

    #[test]
    fn a_key_in_a_query_is_found(key in any_key(), before in "([a-r]{1,5}=[^&]{0,9}&){0,3}", after in "(&[a-r]{1,5}=?[^&]{0,9}){0,3}") {
        let query = format!("{before}session={}{after}", encoded(&key));
        let found = extractors().key(&HeaderMap::new(), "/", Some(&query));
        prop_assert_eq!(found.as_ref().map(SessionKey::as_str), Ok(key.as_str()));
    }

    #[test]
    fn a_key_in_a_cookie_is_found(
        key in "[!#-+\\--:<-~\u{a1}-\u{2ff}]{1,40}",
        quoted in any::<bool>(),
        before in prop::collection::vec(any::<u8>(), 0..20),
        after in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        // Other cookies are what they are, but no second one of the name.
        let other = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes.retain(|byte| !matches!(byte, ..0x20 | b';' | b's' | 0x7f));
            bytes
        };
        let value = if quoted { format!("\"{key}\"") } else { key.clone() };
        let pair = format!("sid={value}").into_bytes();
        let cookies = [other(&before), b"; ".to_vec(), pair, b";".to_vec(), other(&after)].concat();
        let found = extractors().key(&one_header(COOKIE, &cookies), "/", None);
        prop_assert_eq!(found.as_ref().map(SessionKey::as_str), Ok(key.as_str()));
    }

    #[test]
    fn of_two_keys_none_is_picked(one in any_key(), other in any_key(), place in 0..3_usize) {
        prop_assume!(one != other);
        let mut headers = HeaderMap::new();
        let mut query = None;
        match place {
            0 => {
                for key in [&one, &other] {
                    headers.append(SESSION, HeaderValue::from_bytes(key.as_bytes()).unwrap());
                }
            }
            1 => query = Some(format!("session={}&session={}", encoded(&one), encoded(&other))),
            _ => {
                for key in ["a", "b"] {
                    headers.append(COOKIE, HeaderValue::from_str(&format!("sid={key}")).unwrap());
                }
            }
        }
        let found = extractors().key(&headers, "/", query.as_deref());
        prop_assert!(matches!(found, Err(KeyError::Ambiguous { .. })), "{:?}", found);
    }

    #[test]
    fn any_request_is_planned_or_refused(
        task in prop::sample::select(vec!["http", "once", "mcp", "a2a", "gone"]),
        method in prop::sample::select(vec!["GET", "POST", "DELETE", "CONNECT", "BREW"]),
        host in prop::option::of(any::<String>()),
        headers in any_headers(), path in any_path(), query in any_query(),
    ) {
        let method: Method = method.parse().unwrap();
        let (host, query) = (host.as_deref(), query.as_deref());
        for at in [At::Task { namespace: "prod", name: task }, At::Port(80)] {
            let asked = Asked { at, method: &method, host, path: &path, query, headers: &headers };
            match decide::plan(&table(), &asked, Who::default()) {
                Ok(plan) => {
                    prop_assert!(plan.wanted.key.iter().all(is_decent));
                    let _any = Decision::new(&plan, &reserved());
                }
                Err(refusal) => {
                    let id = HeaderValue::from_static("id-1");
                    let body: serde_json::Value = serde_json::from_str(&refusal.body(&id)).unwrap();
                    prop_assert!(refusal.status.is_client_error() || refusal.status.is_server_error());
                    prop_assert!(body.is_object());
                }
            }
        }
    }

    #[test]
    fn what_only_a_gateway_says_comes_from_it(headers in any_headers()) {
        let asked = Asked {
            at: At::Task { namespace: "prod", name: "once" },
            method: &Method::GET, host: Some("a.example"), path: "/", query: None, headers: &headers,
        };
        let plan = decide::plan(&table(), &asked, Who::default()).unwrap();
        let reserved = reserved();
        let decision = Decision::new(&plan, &reserved);
        let mut sent = headers.clone();
        decision.apply(&mut sent);
        for (name, value) in &sent {
            prop_assert!(!reads_as(name, DESTINATION.as_str()), "{}", name);
            if reads_as(name, TOKEN.as_str()) {
                prop_assert!(*name == TOKEN && *value == reserved.token.reveal());
            }
            if reads_as(name, "x-forwarded-host") {
                prop_assert!(*name == "x-forwarded-host" && *value == "a.example");
            }
            prop_assert!(!reads_as(name, "x-forwarded-prefix"), "this Task has no prefix");
            // Of where it came from the front says more, and takes the plain spelling for its own.
            prop_assert!(!name.as_str().contains('_') || !OURS.iter().any(|ours| reads_as(name, ours)));
        }
        prop_assert_eq!(sent.get_all(TOKEN).iter().count(), 1);
        // Everything else arrives.
        for (name, value) in headers.iter().filter(|(name, _)| !OURS.iter().any(|ours| reads_as(name, ours))) {
            prop_assert!(sent.get_all(name).iter().any(|sent| sent == value), "{}", name);
        }
    }
}
