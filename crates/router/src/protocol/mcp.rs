//! What the headers of an MCP request say. Pure. Two generations are alive, and each request is told apart by its
//! version: up to 2025-11-25 an instance mints `Mcp-Session-Id`, which the client repeats; from 2026-07-28 on there are
//! no sessions, and headers mirror what the message says. A mirror is believed only under its own version.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::HeaderName;
use http::{HeaderMap, Method, StatusCode};
use serde_json::json;

use super::json::{Found, Shape, Value};
use crate::refusal::Refusal;

pub const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// From this version on there are no sessions. Versions are dates.
const MODERN: &str = "2026-07-28";
/// Its clients are told where to POST in the body of a stream, which no router can follow.
const HTTP_AND_SSE: &str = "2024-11-05";
/// The longest id that an instance may mint, in bytes.
const LONGEST_ID: usize = 1024;
/// The longest that a client may send where ids are sealed: such a one, a session's key, and what sealing adds.
const LONGEST_SEALED: usize = 4096;

/// What a Task says of its sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The header that has the session's key, of clients without sessions.
    pub param: Option<HeaderName>,
    /// Ids are sealed instead of written down.
    pub sealed: bool,
}

impl Rule {
    /// Whether a client can have been given this id.
    fn knows(&self, id: &str) -> bool {
        let longest = if self.sealed { LONGEST_SEALED } else { LONGEST_ID };
        is_visible(id) && id.len() <= longest
    }
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The session with this id, which ends if that goes well.
    Session { id: String, ends: bool },
    /// No session yet: the body has to say `initialize`.
    First,
    /// One exchange.
    Modern {
        /// The task that it is about.
        task: Option<String>,
        /// The session's key, as the Task has it.
        param: Option<String>,
        /// The answer may make a task.
        makes: bool,
    },
}

/// What is looked for in the body of a first request.
pub const FIRST: [&str; 2] = ["method", "id"];
/// What is looked for in an answer that may make a task.
pub const MADE: [&str; 2] = ["result.taskId", "result.task.taskId"];

/// Reads the headers of a request.
pub fn ask(rule: &Rule, method: &Method, headers: &HeaderMap) -> Result<Ask, Refusal> {
    let version = one(headers, &VERSION)?;
    if version == Some(HTTP_AND_SSE) {
        return Err(bad("the HTTP+SSE transport of 2024-11-05 is not served: use streamable HTTP"));
    }
    if version.is_some_and(is_modern) {
        return modern(rule, method, headers);
    }
    let id = one(headers, &SESSION)?;
    match (method, id) {
        (&Method::POST | &Method::GET | &Method::DELETE, Some(id)) if rule.knows(id) => {
            Ok(Ask::Session { id: id.to_owned(), ends: *method == Method::DELETE })
        }
        (&Method::POST | &Method::GET | &Method::DELETE, Some(_)) => Err(no_session()),
        (&Method::POST, None) => Ok(Ask::First),
        (&Method::GET, None) => Err(bad(
            "the header Mcp-Session-Id is missing; begin with a POST of initialize. (The HTTP+SSE transport of \
             2024-11-05, which begins with GET, is not served: use streamable HTTP)",
        )),
        (&Method::DELETE, None) => {
            Err(bad("the header Mcp-Session-Id is missing: it says which session ends"))
        }
        _ => Err(not_allowed("POST, GET, DELETE")),
    }
}

fn modern(rule: &Rule, method: &Method, headers: &HeaderMap) -> Result<Ask, Refusal> {
    if *method != Method::POST {
        return Err(not_allowed("POST"));
    }
    let called = one(headers, &METHOD)?.unwrap_or_default();
    let of_task = called.starts_with("tasks/");
    let task = if of_task { one(headers, &NAME)? } else { None };
    let task = task.map(|text| decoded(&NAME, text)).transpose()?.filter(|text| !text.is_empty());
    let param = match &rule.param {
        Some(name) => one(headers, name)?.map(|text| decoded(name, text)).transpose()?,
        None => None,
    };
    let param = param.filter(|text| !text.is_empty());
    Ok(Ask::Modern { task, param, makes: called == "tools/call" })
}

/// Whether the body of a first request begins a session.
pub fn check_first(found: &Found) -> Result<(), Refusal> {
    match found.get(0) {
        Some(Value::Text(method)) if method == "initialize" => Ok(()),
        _ => {
            let message = "the header Mcp-Session-Id is missing: only initialize goes without. (Does the server mint \
                           no ids? Then the Task wants routePolicy Oneshot)";
            Err(bad(message))
        }
    }
}

/// The task that an answer has made.
pub fn made(found: &Found) -> Option<&str> {
    found.text(0).or_else(|| found.text(1)).filter(|id| !id.is_empty())
}

/// Whether a text can be an id that an instance has minted.
pub fn is_id(text: &str) -> bool {
    is_visible(text) && text.len() <= LONGEST_ID
}

/// Visible letters, as the protocol has it.
fn is_visible(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn is_modern(version: &str) -> bool {
    let is_date = version.len() == MODERN.len()
        && version.bytes().zip(MODERN.bytes()).all(|(byte, model)| match model {
            b'-' => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    is_date && version >= MODERN
}

/// The one value of a header.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(bad(format!("the header {name} is given more than once")));
    }
    let text = first.to_str().map_err(|_| bad(format!("the header {name} is not ASCII")))?;
    Ok(Some(text.trim()).filter(|text| !text.is_empty()))
}

/// Values that no header can have come as `=?base64?…?=`.
fn decoded(name: &HeaderName, text: &str) -> Result<String, Refusal> {
    let Some(encoded) = text.strip_prefix("=?base64?").and_then(|text| text.strip_suffix("?=")) else {
        return Ok(text.to_owned());
    };
    let bytes = STANDARD.decode(encoded).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    text.ok_or_else(|| bad(format!("the header {name} has a broken =?base64?…?= value")))
}

fn bad(message: impl Into<String>) -> Refusal {
    rpc(StatusCode::BAD_REQUEST, "McpInvalid", -32600, message)
}

fn not_allowed(methods: &'static str) -> Refusal {
    let message = format!("this version of MCP knows {methods} only");
    rpc(StatusCode::METHOD_NOT_ALLOWED, "McpInvalid", -32600, message).allowing(methods)
}

/// The body is not what it has to be.
pub fn broken(why: super::json::Error) -> Refusal {
    rpc(StatusCode::BAD_REQUEST, "McpInvalid", -32700, format!("the body cannot be read: {why}"))
}

/// Upon this clients begin anew.
pub fn no_session() -> Refusal {
    let message = "Session not found: it has ended, or its instance is gone; begin anew with initialize";
    rpc(StatusCode::NOT_FOUND, "NoSuchSession", -32001, message)
}

pub fn no_task() -> Refusal {
    let message = "Task not found: it has ended, or its instance is gone";
    rpc(StatusCode::BAD_REQUEST, "NoSuchTask", -32602, message)
}

fn rpc(status: StatusCode, code: &'static str, number: i32, message: impl Into<String>) -> Refusal {
    let refusal = Refusal::new(status, code, message);
    let error = json!({ "code": number, "message": refusal.message });
    let body = json!({ "jsonrpc": "2.0", "id": null, "error": error });
    refusal.in_words(body)
}

/// For [`FIRST`].
pub fn first_shape() -> &'static Shape {
    static SHAPE: std::sync::LazyLock<Shape> = std::sync::LazyLock::new(|| Shape::new(&FIRST));
    &SHAPE
}

/// For [`MADE`].
pub fn made_shape() -> &'static Shape {
    static SHAPE: std::sync::LazyLock<Shape> = std::sync::LazyLock::new(|| Shape::new(&MADE));
    &SHAPE
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::super::json::Scan;
    use super::*;

    fn asked(method: Method, pairs: &[(&'static str, &str)]) -> Result<Ask, (u16, String)> {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        let rule = Rule { param: Some(HeaderName::from_static("mcp-param-room")), sealed: false };
        ask(&rule, &method, &pairs.iter().map(pair).collect())
            .map_err(|refusal| (refusal.status.as_u16(), refusal.message))
    }

    #[test]
    fn with_sessions_the_id_says_all() {
        for (method, ends) in [(Method::POST, false), (Method::GET, false), (Method::DELETE, true)] {
            for version in ["2025-03-26", "2025-11-25", "nonsense", "9999-99-9x"] {
                let asked =
                    asked(method.clone(), &[("mcp-session-id", "s1"), ("mcp-protocol-version", version)]);
                assert_eq!(asked, Ok(Ask::Session { id: "s1".into(), ends }));
            }
        }
        assert_eq!(asked(Method::POST, &[]), Ok(Ask::First));
        // Mirrors of another generation are not believed.
        let mirrored = [("mcp-param-room", "r1"), ("mcp-method", "tasks/get"), ("mcp-name", "t1")];
        assert_eq!(asked(Method::POST, &mirrored), Ok(Ask::First));
        let refused = |method, pairs: &[(&'static str, &str)]| asked(method, pairs).unwrap_err();
        assert_eq!(refused(Method::DELETE, &[]).0, 400);
        assert!(refused(Method::GET, &[]).1.contains("streamable HTTP"));
        assert!(
            refused(Method::POST, &[("mcp-protocol-version", "2024-11-05")]).1.contains("streamable HTTP")
        );
        assert_eq!(refused(Method::PUT, &[("mcp-session-id", "s1")]).0, 405);
        assert_eq!(refused(Method::POST, &[("mcp-session-id", &"x".repeat(1025))]).0, 404);
        assert_eq!(refused(Method::POST, &[("mcp-session-id", "a b")]).0, 404);
        assert_eq!(refused(Method::POST, &[("mcp-session-id", "a"), ("mcp-session-id", "b")]).0, 400);
    }

    #[test]
    fn without_sessions_task_and_parameter_say_it() {
        const VERSION: (&str, &str) = ("mcp-protocol-version", MODERN);
        let modern = |task: Option<&str>, param: Option<&str>, makes| {
            Ok(Ask::Modern { task: task.map(Into::into), param: param.map(Into::into), makes })
        };
        let call = ("mcp-method", "tools/call");
        assert_eq!(asked(Method::POST, &[VERSION, call, ("mcp-name", "add")]), modern(None, None, true));
        // A stray id of the other generation means nothing.
        let stray = [VERSION, call, ("mcp-session-id", "s1"), ("mcp-param-room", "=?base64?R3LDvMOfZQ==?=")];
        assert_eq!(asked(Method::POST, &stray), modern(None, Some("Grüße"), true));
        let get = [VERSION, ("mcp-method", "tasks/get"), ("mcp-name", "t1"), ("mcp-param-room", "r1")];
        assert_eq!(asked(Method::POST, &get), modern(Some("t1"), Some("r1"), false));
        assert_eq!(asked(Method::POST, &[VERSION, ("mcp-method", "tools/list")]), modern(None, None, false));
        assert_eq!(asked(Method::GET, &[VERSION]).unwrap_err().0, 405);
        for broken in ["=?base64?x?=", "=?base64?/w==?="] {
            assert_eq!(asked(Method::POST, &[VERSION, ("mcp-param-room", broken)]).unwrap_err().0, 400);
        }
        assert_eq!(asked(Method::POST, &[("mcp-protocol-version", "2027-01-01")]), modern(None, None, false));
    }

    #[test]
    fn only_initialize_begins() {
        let found = |body: &str| {
            let mut scan = Scan::new(first_shape());
            scan.push(body.as_bytes()).unwrap();
            check_first(&scan.finish().unwrap())
        };
        assert!(found(r#"{"id":0,"method":"initialize","params":{"method":"x"}}"#).is_ok());
        for other in [r#"{"method":"tools/list"}"#, "[{\"method\":\"initialize\"}]", "{}", r#"{"method":{}}"#]
        {
            assert_eq!(found(other).unwrap_err().status, 400, "{other}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(
            names in proptest::collection::vec((0usize..5, proptest::collection::vec(any::<u8>(), 0..40)), 0..8),
            method in 0usize..5)
        {
            let known = [SESSION, VERSION, METHOD, NAME, HeaderName::from_static("mcp-param-room")];
            let mut headers = HeaderMap::new();
            for (n, value) in names {
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    headers.append(known[n].clone(), value);
                }
            }
            let methods = [Method::POST, Method::GET, Method::DELETE, Method::PUT, Method::OPTIONS];
            let rule = Rule { param: Some(known[4].clone()), sealed: true };
            let _any = ask(&rule, &methods[method], &headers);
        }
    }
}
