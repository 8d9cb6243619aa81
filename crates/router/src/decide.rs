//! The core of the router, without sockets and without waiting: what a request asks for, and, once it has an instance,
//! where it goes and with which headers; or why not. Every front calls it. Pure; nothing here knows tokio, hyper or gRPC.

use std::sync::Arc;

use agentcube_api::labels::{RESERVED_TOKEN_HEADER, SUBJECT_HEADER};
use agentcube_instance::alias::Alias;
use agentcube_instance::provider::{self, Reserved};
use agentcube_instance::{Endpoint, SessionKey};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, StatusCode};

use crate::extract::KeyError;
use crate::owner;
use crate::path;
use crate::protocol::{Ask, Spoken, a2a, card};
use crate::refusal::Refusal;
use crate::route::{Route, SessionRule, Table};

/// The most that path and headers of a request may measure, in bytes.
pub const HEADER_LIMIT: usize = 64 << 10;
/// The most headers that a request may have. What HTTP/1.1 has more of, the server refuses by itself.
const MOST_HEADERS: usize = 100;
/// The longest path and query, in bytes. A token may be among them.
const LONGEST_TARGET: usize = 32 << 10;

/// Shows an instance that the request comes from its gateway.
pub const TOKEN: HeaderName = HeaderName::from_static(RESERVED_TOKEN_HEADER);
/// By this Envoy is told the endpoint; whoever takes it from a client lets the client choose.
pub const DESTINATION: HeaderName = HeaderName::from_static("x-gateway-destination-endpoint");
/// What only a gateway says.
const OURS: [&str; 7] = [
    RESERVED_TOKEN_HEADER,
    SUBJECT_HEADER,
    "x-gateway-destination-endpoint",
    "x-forwarded-host",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-for",
];
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

/// Names that are one subject's alone.
const OWNED: &str = "owned";

/// How it is known which Task a request is for.
#[derive(Clone, Copy, Debug)]
pub enum At<'a> {
    /// By the port that it came in on, and by its host and path.
    Port(u16),
    /// The control plane has said so. Never a word of the client's.
    Task { namespace: &'a str, name: &'a str },
}

/// A request, as far as it is needed to find its instance.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub at: At<'a>,
    pub method: &'a Method,
    /// None if it names none, or several.
    pub host: Option<&'a str>,
    pub path: &'a str,
    pub query: Option<&'a str>,
    pub headers: &'a HeaderMap,
}

/// What a request asks for.
#[derive(Clone, Debug)]
pub struct Plan {
    pub route: Arc<Route>,
    pub host: String,
    /// What is to be reserved, once [`talk::settle`](crate::protocol::talk::settle) has said which session it is.
    pub wanted: provider::Request,
    /// How the session is found.
    pub ask: Ask,
    /// The mark of who asks, where somebody has made sure of it; [`Plan::own`] sets it.
    pub subject: Option<Arc<str>>,
    /// The session's name, where it may be one subject's alone.
    pub claim: Option<Alias>,
    /// How the client reached the gateway.
    pub scheme: &'static str,
    /// Headers that are written to be taken for those that only a gateway says.
    forged: Vec<HeaderName>,
}

/// Who sends a request, as far as somebody has made sure of it.
#[derive(Clone, Debug, Default)]
pub struct Who {
    pub subject: Option<owner::Subject>,
    /// On whose behalf it comes.
    pub tenant: Option<String>,
}

/// Finds what a request asks for.
pub fn plan(table: &Table, asked: &Asked<'_>, who: Who) -> Result<Plan, Refusal> {
    let (_, route) = route(table, asked)?;
    let mut plan = plan_on(route, asked)?;
    plan.wanted.tenant = who.tenant;
    plan.own(who.subject.as_ref())?;
    Ok(plan)
}

/// The Task of a request, and the host that it names.
pub fn route<'a>(table: &Table, asked: &Asked<'a>) -> Result<(&'a str, Arc<Route>), Refusal> {
    let host = check(asked)?;
    path::check(asked.path)?;
    let found = match asked.at {
        At::Port(port) => table.find(port, host, asked.path),
        At::Task { namespace, name } => table.task(namespace, name).cloned(),
    };
    let found = found.ok_or_else(|| Refusal::no_route(host, asked.path))?;
    path::check_slashes(&found, asked.path)?;
    Ok((host, found))
}

/// What a request asks for of its Task. On whose behalf it comes, and whose the session is, is for the front to say.
pub fn plan_on(route: Arc<Route>, asked: &Asked<'_>) -> Result<Plan, Refusal> {
    if let Some(why) = &route.unsupported {
        return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "NotSupported", &**why));
    }
    let (key, ask) = session(&route, asked)?;
    let wanted =
        provider::Request { task: route.task.clone(), key, tenant: None, which: provider::Which::OrNew };
    let host = asked.host.unwrap_or_default().to_owned();
    Ok(Plan {
        route,
        host,
        wanted,
        ask,
        subject: None,
        claim: None,
        scheme: "http",
        forged: forged(asked.headers),
    })
}

impl Plan {
    /// Makes the session that of who sends the request, or nobody's.
    pub fn own(&mut self, subject: Option<&owner::Subject>) -> Result<(), Refusal> {
        self.subject = subject.map(|subject| subject.mark().into());
        if let Some(key) = self.wanted.key.take() {
            self.claim = self.claim_of(key.as_str());
            self.wanted.key = Some(owner::session(subject, key)?);
        }
        Ok(())
    }

    /// The name by which a subject has a session for itself: the same whoever asks, so that only one can have it.
    pub fn claim_of(&self, name: &str) -> Option<Alias> {
        let exclusive = self.route.exclusive && self.subject.is_some();
        exclusive.then(|| Alias { space: OWNED, subject: None, text: name.into() })
    }
}

/// The key that the Task's own extractors find; where they find none, its protocol says how the session is found.
fn session(route: &Route, asked: &Asked<'_>) -> Result<(Option<SessionKey>, Ask), Refusal> {
    let rest = route.rest(asked.path).unwrap_or("/");
    if let (Spoken::A2a(_), Some(card)) = (&route.spoken, card::asked(asked.method, rest)) {
        return Ok((None, Ask::Card(card)));
    }
    let by_protocol = || Ask::read(&route.spoken, asked.method, rest, asked.query, asked.headers);
    match &route.session {
        SessionRule::Oneshot => Ok((None, Ask::Plain)),
        SessionRule::BySession(extractors) => match extractors.key(asked.headers, rest, asked.query) {
            Ok(key) => {
                if let Spoken::A2a(_) = route.spoken {
                    a2a::no_grpc(asked.headers)?;
                }
                Ok((Some(key), Ask::Plain))
            }
            Err(KeyError::Missing { .. }) if route.spoken != Spoken::Http => Ok((None, by_protocol()?)),
            Err(error) => Err(error.into()),
        },
    }
}

/// On whose behalf headers say that a request comes.
pub fn tenant_of(headers: &HeaderMap, header: &HeaderName) -> Option<String> {
    let tenant = headers.get(header).and_then(|value| value.to_str().ok());
    tenant.filter(|tenant| !tenant.is_empty()).map(str::to_owned)
}

fn forged(headers: &HeaderMap) -> Vec<HeaderName> {
    let written_otherwise = headers.keys().filter(|name| name.as_str().contains('_'));
    written_otherwise.filter(|name| OURS.iter().any(|ours| reads_as(name, ours))).cloned().collect()
}

/// Whether a header may be taken for another: many servers read underscores in names as dashes.
pub(crate) fn reads_as(name: &HeaderName, other: &str) -> bool {
    let plain = |byte: u8| if byte == b'_' { b'-' } else { byte };
    name.as_str().bytes().map(plain).eq(other.bytes().map(plain))
}

/// Refuses what cannot be routed at all; gives the host otherwise.
fn check<'a>(asked: &Asked<'a>) -> Result<&'a str, Refusal> {
    if *asked.method == Method::CONNECT {
        let message = "this gateway is no proxy for CONNECT: send requests for the path of a Task";
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "ConnectRefused", message));
    }
    let target = asked.path.len() + asked.query.map_or(0, |query| query.len() + 1);
    if target > LONGEST_TARGET {
        let message =
            format!("the path and query measure {target} bytes; at most {LONGEST_TARGET} are allowed");
        return Err(Refusal::new(StatusCode::URI_TOO_LONG, "TargetTooLong", message));
    }
    let count = asked.headers.len();
    if count > MOST_HEADERS {
        let message = format!("the request has {count} headers; at most {MOST_HEADERS} are allowed");
        return Err(Refusal::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "TooManyHeaders", message));
    }
    let size = size(asked.headers) + asked.path.len();
    if size > HEADER_LIMIT {
        let message =
            format!("the headers of this request measure {size} bytes; at most {HEADER_LIMIT} are allowed");
        return Err(Refusal::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "HeadersTooLarge", message));
    }
    asked.host.ok_or_else(|| {
        let message = "the request must name its host exactly once";
        Refusal::new(StatusCode::BAD_REQUEST, "HostInvalid", message)
    })
}

/// Bytes of all names and values, as they stand in a request.
fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

/// Where a request goes, and what is changed of its headers on the way. A front adds only what is about connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub endpoint: Endpoint,
    /// Take the place of the client's.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Only a gateway may say these, and it does not.
    pub remove: Vec<HeaderName>,
}

impl Decision {
    /// For a request that has its instance.
    pub fn new(plan: &Plan, reserved: &Reserved) -> Decision {
        let mut decision =
            Decision { endpoint: reserved.endpoint, set: Vec::new(), remove: plan.forged.clone() };
        decision.remove.push(DESTINATION);
        let token = HeaderValue::from_str(reserved.token.reveal()).ok().map(|mut token| {
            token.set_sensitive(true);
            token
        });
        decision.say(TOKEN, token);
        decision.say(FORWARDED_HOST, HeaderValue::from_str(&plan.host).ok());
        let prefix = Some(&plan.route.prefix).filter(|prefix| !prefix.is_empty());
        decision.say(FORWARDED_PREFIX, prefix.and_then(|prefix| HeaderValue::from_str(prefix).ok()));
        decision
    }

    fn say(&mut self, name: HeaderName, value: Option<HeaderValue>) {
        match value {
            Some(value) => self.set.push((name, value)),
            None => self.remove.push(name),
        }
    }

    /// Makes the headers of a request what they are to be.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
        for (name, value) in &self.set {
            headers.insert(name.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use agentcube_instance::InstanceId;
    use agentcube_instance::reserve::InUse;
    use agentcube_instance::token::Token;
    use serde_json::json;

    use super::*;

    fn table() -> Table {
        let task = |name: &str, routing: serde_json::Value| {
            let task = json!({
                "apiVersion": "agentcube.io/v1alpha1", "kind": "Task",
                "metadata": { "name": name, "namespace": "prod", "uid": name },
                "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} }, "routing": routing },
            });
            Route::read(&serde_json::from_value(task).unwrap()).unwrap()
        };
        let mut table = Table::default();
        let places = json!({ "extractors": [{ "type": "pathVar", "name": "id", "path": "/{id}" }] });
        table.set_task(task("chat", json!({ "routePolicy": "BySession", "sessionIdentifier": places })));
        table.set_task(task("once", json!({ "routePolicy": "Oneshot", "pathPrefix": "/" })));
        table
    }

    fn asked<'a>(name: &'a str, path: &'a str, headers: &'a HeaderMap) -> Asked<'a> {
        let at = At::Task { namespace: "prod", name };
        Asked { at, method: &Method::GET, host: Some("a.example"), path, query: None, headers }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn the_task_is_the_one_that_the_control_plane_names() {
        let who = Who { tenant: Some("acme".into()), ..Who::default() };
        let plan = plan(&table(), &asked("chat", "/prod/chat/u1", &HeaderMap::new()), who).unwrap();
        assert_eq!(plan.wanted.key.as_ref().map(SessionKey::as_str), Some("u1"));
        assert_eq!((&*plan.wanted.task.name, plan.wanted.tenant.as_deref()), ("chat", Some("acme")));
    }

    #[test]
    fn what_cannot_be_served_is_refused() {
        let none = HeaderMap::new();
        let code = |asked: Asked<'_>| plan(&table(), &asked, Who::default()).unwrap_err().code;
        assert_eq!(code(asked("gone", "/prod/gone", &none)), "NoRoute");
        assert_eq!(code(asked("chat", "/prod/chat", &none)), "SessionKeyMissing");
        assert_eq!(code(Asked { host: None, ..asked("once", "/", &none) }), "HostInvalid");
        assert_eq!(code(Asked { method: &Method::CONNECT, ..asked("once", "/", &none) }), "ConnectRefused");
        let long = "/".repeat(LONGEST_TARGET + 1);
        assert_eq!(code(asked("once", &long, &none)), "TargetTooLong");
        let value = HeaderValue::from_str(&"a".repeat(HEADER_LIMIT)).unwrap();
        let large = HeaderMap::from_iter([(HeaderName::from_static("x-large"), value)]);
        assert_eq!(code(asked("once", "/", &large)), "HeadersTooLarge");
        let mut many = HeaderMap::new();
        for _ in 0..=MOST_HEADERS {
            many.append("x-many", HeaderValue::from_static("1"));
        }
        assert_eq!(code(asked("once", "/", &many)), "TooManyHeaders");
        assert_eq!(code(Asked { at: At::Port(80), ..asked("once", "/", &none) }), "NoRoute");
        // Whichever front asks, and before anything else is decided by it.
        for path in ["/prod/chat/../once", "/prod/chat/%2e%2e/once", "/prod\\chat/u1"] {
            assert_eq!(code(asked("chat", path, &none)), "PathAmbiguous", "{path}");
            assert_eq!(code(Asked { at: At::Port(80), ..asked("chat", path, &none) }), "PathAmbiguous");
        }
        assert_eq!(code(asked("chat", "/prod/chat/u1/x%2Fy", &none)), "PathAmbiguous");
    }

    #[test]
    fn only_the_gateway_says_where_a_request_goes_and_with_which_token() {
        for (name, path, prefix) in [("chat", "/prod/chat/u1", Some("/prod/chat")), ("once", "/", None)] {
            let underscores =
                headers(&[("x_reserved_token", "forged"), ("x_forwarded-for", "forged"), ("x_other", "1")]);
            let plan = plan(&table(), &asked(name, path, &underscores), Who::default()).unwrap();
            let reserved = Reserved {
                instance: InstanceId::pod("chat-0", "p1"),
                endpoint: Endpoint { host: [10, 0, 0, 1].into(), port: 8080 },
                token: Token::random(),
                path: provider::Path::Reused,
                in_use: InUse::detached(),
            };
            let decision = Decision::new(&plan, &reserved);
            let mut sent = headers(&[
                ("x-reserved-token", "forged"),
                ("x-gateway-destination-endpoint", "10.0.0.1:22"),
                ("x-forwarded-prefix", "/forged"),
                ("x-forwarded-host", "forged"),
                ("x-other", "kept"),
            ]);
            sent.extend(underscores);
            decision.apply(&mut sent);
            assert!(!sent.contains_key("x_reserved_token") && !sent.contains_key("x_forwarded-for"));
            assert!(sent.contains_key("x_other"));
            assert_eq!(sent[TOKEN], reserved.token.reveal());
            assert!(sent[TOKEN].is_sensitive() && !sent.contains_key(DESTINATION));
            let says = |name: &str| sent.get(name).map(|value| value.to_str().unwrap());
            assert_eq!(says("x-forwarded-prefix"), prefix);
            assert_eq!((says("x-forwarded-host"), says("x-other")), (Some("a.example"), Some("kept")));
        }
    }
}
