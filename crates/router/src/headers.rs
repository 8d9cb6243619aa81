//! What becomes of headers on their way: those of one connection end there, those that only the gateway may set are
//! never taken from a client, and the instance is told where the request came from. Pure.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use http::header::{
    CONNECTION, COOKIE, EXPECT, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Uri};

use crate::decide::{self, Decision, TOKEN};

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// They are about one connection.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    PROXY_CONNECTION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// The longest id that is taken over from a client.
const LONGEST_REQUEST_ID: usize = 128;

/// What the gateway adds to a request.
pub(crate) struct Added<'a> {
    pub(crate) client: IpAddr,
    /// How it came.
    pub(crate) scheme: &'static str,
    pub(crate) host: &'a str,
    pub(crate) decision: &'a Decision,
    pub(crate) request_id: &'a HeaderValue,
}

/// Makes the headers of a client's request those of the request to an instance.
pub(crate) fn to_instance(headers: &mut HeaderMap, added: &Added<'_>) {
    let upgrade = upgrade(headers);
    drop_hop_by_hop(headers);
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    // The gateway has agreed to take the body already.
    headers.remove(EXPECT);
    added.decision.apply(headers);
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static(added.scheme));
    set(headers, HOST, added.host);
    let before: Vec<&str> =
        headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok()).collect();
    let client = added.client.to_string();
    let chain = before.into_iter().chain([client.as_str()]).collect::<Vec<_>>().join(", ");
    set(headers, FORWARDED_FOR, &chain);
    headers.insert(REQUEST_ID, added.request_id.clone());
}

/// Makes one of several cookie fields: HTTP/2 lets a client send each cookie by itself, and who reads the field as one
/// text, as HTTP/1.1 has it, would see the first of them.
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    let fields: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if fields.len() < 2 {
        return;
    }
    // What two fields may hold, one may.
    if let Ok(joined) = HeaderValue::from_bytes(&fields.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Removes headers that only the gateway may set, however a client writes them.
pub(crate) fn strip(headers: &mut HeaderMap, names: &[HeaderName]) {
    let protected = |name: &&HeaderName| names.iter().any(|one| decide::reads_as(name, one.as_str()));
    let found: Vec<HeaderName> = headers.keys().filter(protected).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

/// Makes the headers of an instance's response those of the response to the client.
pub(crate) fn to_client(headers: &mut HeaderMap, request_id: &HeaderValue, upgraded: bool) {
    let protocol = upgrade(headers).filter(|_| upgraded);
    drop_hop_by_hop(headers);
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    headers.remove(TOKEN);
    headers.insert(REQUEST_ID, request_id.clone());
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    match HeaderValue::from_str(value) {
        Ok(value) => drop(headers.insert(name, value)),
        Err(_) => drop(headers.remove(name)),
    }
}

/// The protocol that is asked for instead of HTTP: a WebSocket, and nothing else. Within another one, HTTP/2 above all,
/// requests would reach an instance that no gateway has looked at.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = options(headers).any(|option| option.eq_ignore_ascii_case("upgrade"));
    let protocol = headers.get(UPGRADE).filter(|_| asked && headers.get_all(UPGRADE).iter().count() == 1);
    protocol.filter(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket")).cloned()
}

fn options(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

fn drop_hop_by_hop(headers: &mut HeaderMap) {
    // The Host is not the connection's, whatever it says of itself.
    let named = options(headers).filter_map(|option| option.parse::<HeaderName>().ok());
    let named: Vec<HeaderName> = named.filter(|name| *name != HOST).collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// The host that a request asks for; none if it names none, or several.
pub(crate) fn host(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    if let Some(authority) = uri.authority() {
        return Some(authority.as_str().rsplit('@').next().unwrap_or_default().to_owned());
    }
    let mut values = headers.get_all(HOST).iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then(|| first.to_owned())
}

/// Gives requests ids that do not repeat.
#[derive(Debug)]
pub(crate) struct RequestIds {
    run: u64,
    next: AtomicU64,
}

impl RequestIds {
    pub(crate) fn new() -> RequestIds {
        use std::hash::{BuildHasher, RandomState};
        RequestIds { run: RandomState::new().hash_one(std::process::id()), next: AtomicU64::new(1) }
    }

    /// The id that the client gave, if it is a decent one, else a new one.
    pub(crate) fn of(&self, headers: &HeaderMap) -> HeaderValue {
        let decent = |value: &&HeaderValue| {
            (1..=LONGEST_REQUEST_ID).contains(&value.len())
                && value.as_bytes().iter().all(u8::is_ascii_graphic)
        };
        if let Some(given) = headers.get(REQUEST_ID).filter(decent) {
            return given.clone();
        }
        let text = format!("{:016x}-{:x}", self.run, self.next.fetch_add(1, Ordering::Relaxed));
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("-"))
    }
}

#[cfg(test)]
mod tests {
    use agentcube_instance::Endpoint;

    use super::*;
    use crate::decide::DESTINATION;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    fn sent(pairs: &[(&'static str, &'static str)]) -> Vec<(String, String)> {
        let mut headers = map(pairs);
        let decision = Decision {
            endpoint: Endpoint { host: [127, 0, 0, 1].into(), port: 1 },
            set: vec![(HeaderName::from_static("x-forwarded-prefix"), HeaderValue::from_static("/a/b"))],
            remove: vec![TOKEN, DESTINATION],
        };
        let added = Added {
            scheme: "http",
            client: [127, 0, 0, 1].into(),
            host: "example.com",
            decision: &decision,
            request_id: &HeaderValue::from_static("id-1"),
        };
        to_instance(&mut headers, &added);
        let mut sent: Vec<(String, String)> = headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        sent.sort();
        sent
    }

    #[test]
    fn an_instance_gets_what_is_meant_for_it() {
        let sent = sent(&[
            ("connection", "keep-alive, X-Only-Here"),
            ("x-only-here", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("x-reserved-token", "forged"),
            ("x-gateway-destination-endpoint", "10.0.0.1:22"),
            ("x-forwarded-for", "10.0.0.9"),
            ("x-forwarded-proto", "https"),
            ("x-session-id", "u1"),
            ("upgrade", "h2c"),
            ("te", "trailers"),
        ]);
        let expected = [
            ("host", "example.com"),
            ("x-forwarded-for", "10.0.0.9, 127.0.0.1"),
            ("x-forwarded-prefix", "/a/b"),
            ("x-forwarded-proto", "http"),
            ("x-request-id", "id-1"),
            ("x-session-id", "u1"),
        ];
        assert_eq!(sent, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn upgrades_are_passed_on() {
        let sent = sent(&[("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-key", "x")]);
        for pair in [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-key", "x")] {
            assert!(sent.contains(&(pair.0.to_owned(), pair.1.to_owned())), "{sent:?}");
        }
    }

    #[test]
    fn other_protocols_are_not() {
        for upgrade in [
            &[("upgrade", "h2c")][..],
            &[("upgrade", "websocket, h2c")],
            &[("upgrade", "websocket"), ("upgrade", "h2c")],
        ] {
            let mut pairs = vec![("connection", "Upgrade, HTTP2-Settings"), ("http2-settings", "AAMAAABk")];
            pairs.extend(upgrade);
            let names: Vec<String> = sent(&pairs).into_iter().map(|(name, _)| name).collect();
            for name in ["connection", "upgrade", "http2-settings"] {
                assert!(!names.iter().any(|sent| sent == name), "{name} in {names:?}");
            }
        }
    }

    #[test]
    fn a_connection_header_cannot_take_the_host_away() {
        let mut headers = map(&[("connection", "host, x-forwarded-for"), ("host", "a")]);
        drop_hop_by_hop(&mut headers);
        assert_eq!(headers, map(&[("host", "a")]));
    }

    #[test]
    fn cookies_are_one_field() {
        let mut headers = map(&[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2; c=3"), ("cookie", "d=4")]);
        join_cookies(&mut headers);
        assert_eq!(headers, map(&[("cookie", "a=1; b=2; c=3; d=4"), ("x", "y")]));
    }

    #[test]
    fn hosts_and_ids() {
        let uri = |text: &'static str| Uri::from_static(text);
        assert_eq!(host(&uri("/a"), &map(&[("host", "a:80")])).as_deref(), Some("a:80"));
        assert_eq!(host(&uri("/a"), &map(&[("host", "a"), ("host", "b")])), None);
        assert_eq!(host(&uri("/a"), &map(&[])), None);
        assert_eq!(host(&uri("http://u:p@b:1/a"), &map(&[("host", "a")])).as_deref(), Some("b:1"));
        let ids = RequestIds::new();
        assert_eq!(ids.of(&map(&[("x-request-id", "mine")])), "mine");
        assert_ne!(ids.of(&map(&[("x-request-id", "not mine")])), "not mine");
        assert_ne!(ids.of(&map(&[])), ids.of(&map(&[])));
    }
}
