//! The request that `invoke` sends, from the Task and what the command line wants. Pure.

use bytes::Bytes;
use http::header::{COOKIE, HOST, HeaderName, HeaderValue};
use http::{Method, Request, Uri};
use http_body_util::Full;
use serde_json::Value;

use crate::client::escape;
use crate::exit::Usage;

/// What the command line wants.
pub(crate) struct Wanted<'a> {
    pub(crate) path: &'a str,
    pub(crate) session: Option<&'a str>,
    pub(crate) method: Option<&'a Method>,
    /// As `name: value`.
    pub(crate) headers: &'a [String],
    pub(crate) body: Option<Full<Bytes>>,
}

/// The request, and host and port of the address that it is for.
pub(crate) fn build(
    address: &str,
    task: &Value,
    wanted: Wanted<'_>,
) -> Result<(Request<Full<Bytes>>, String, u16), Usage> {
    let uri: Uri = address.parse().map_err(|_| Usage(format!("the Task's address {address:?} is no URL")))?;
    let encrypted = uri.scheme_str() == Some("https");
    if encrypted {
        return Err(Usage(format!("{address} speaks TLS, which this command does not: use another client")));
    }
    let authority = uri.authority().ok_or_else(|| Usage(format!("the address {address:?} names no host")))?;
    let mut path = wanted.path.to_owned();
    let mut extra = Vec::new();
    if let Some(session) = wanted.session {
        place(task, session, &mut path, &mut extra)?;
    }
    let (method, body) = match wanted.body {
        Some(body) => (Method::POST, body),
        None => (Method::GET, Full::default()),
    };
    let slash = if path.starts_with('/') { "" } else { "/" };
    let target = format!("{}{slash}{path}", uri.path().trim_end_matches('/'));
    let mut request = Request::builder()
        .method(wanted.method.cloned().unwrap_or(method))
        .uri(&target)
        .header(HOST, authority.as_str());
    for (name, value) in extra {
        request = request.header(name, value);
    }
    for header in wanted.headers {
        let (name, value) = split(header)?;
        request = request.header(name, value);
    }
    let request = request.body(body).map_err(|error| Usage(format!("{target:?}: {error}")))?;
    Ok((request, authority.host().to_owned(), authority.port_u16().unwrap_or(80)))
}

fn split(header: &str) -> Result<(HeaderName, HeaderValue), Usage> {
    let pair = header.split_once(':').and_then(|(name, value)| {
        Some((name.trim().parse().ok()?, HeaderValue::from_str(value.trim()).ok()?))
    });
    pair.ok_or_else(|| Usage(format!("{header:?} is not a header: write `name: value`")))
}

/// Puts the key of the session where the Task looks first.
fn place(
    task: &Value,
    session: &str,
    path: &mut String,
    headers: &mut Vec<(HeaderName, HeaderValue)>,
) -> Result<(), Usage> {
    let first = &task["spec"]["routing"]["sessionIdentifier"]["extractors"][0];
    let name = first["name"].as_str().unwrap_or_default();
    let cannot = || Usage(format!("the session {session:?} cannot stand in a header"));
    match first["type"].as_str() {
        Some("httpHeader") => {
            let name = name.parse().map_err(|_| cannot())?;
            headers.push((name, HeaderValue::from_bytes(session.as_bytes()).map_err(|_| cannot())?));
        }
        Some("query") => {
            path.push(if path.contains('?') { '&' } else { '?' });
            path.push_str(&format!("{}={}", escape(name), escape(session)));
        }
        Some("cookie") => {
            let value = HeaderValue::from_str(&format!("{name}={session}")).map_err(|_| cannot())?;
            headers.push((COOKIE, value));
        }
        Some("pathVar") => {
            let template = first["path"].as_str().unwrap_or_default();
            let variable = format!("{{{name}}}");
            let filled = |text: &str| text.replace(&variable, &escape(session));
            *path = match path.as_str() {
                "/" => filled(template),
                given if given.contains(&variable) => filled(given),
                _ => {
                    let hint = format!("leave PATH out, or write {variable} in it as in {template}");
                    return Err(Usage(format!("this Task has the session's key in its path: {hint}")));
                }
            };
        }
        _ => {
            let message =
                "this Task does not serve sessions over HTTP (routePolicy BySession): leave --session out";
            return Err(Usage(message.into()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn task(extractor: Value) -> Value {
        json!({ "spec": { "routing": { "sessionIdentifier": { "extractors": [extractor] } } } })
    }

    fn built(task: &Value, path: &str, session: Option<&str>) -> Result<Request<Full<Bytes>>, String> {
        let headers = ["x-a: 1".to_owned()];
        let wanted = Wanted { path, session, method: None, headers: &headers, body: None };
        build("http://127.0.0.1:8090/default/hello", task, wanted)
            .map(|(request, ..)| request)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_key_goes_where_the_task_looks() {
        let header = task(json!({ "type": "httpHeader", "name": "X-Session-ID" }));
        let request = built(&header, "say", Some("ada")).unwrap();
        assert_eq!(request.uri(), "/default/hello/say");
        assert_eq!(
            (&request.headers()["x-session-id"], &request.headers()["x-a"]),
            (&"ada".parse().unwrap(), &"1".parse().unwrap())
        );
        assert_eq!(request.headers()["host"], "127.0.0.1:8090");
        let query = task(json!({ "type": "query", "name": "s" }));
        assert_eq!(built(&query, "/?x=1", Some("a b")).unwrap().uri(), "/default/hello/?x=1&s=a%20b");
        let cookie = task(json!({ "type": "cookie", "name": "sid" }));
        assert_eq!(built(&cookie, "/", Some("ada")).unwrap().headers()["cookie"], "sid=ada");
        let variable = task(json!({ "type": "pathVar", "name": "id", "path": "/{id}/invoke" }));
        assert_eq!(built(&variable, "/", Some("a/b")).unwrap().uri(), "/default/hello/a%2Fb/invoke");
        assert_eq!(built(&variable, "/{id}/other", Some("a")).unwrap().uri(), "/default/hello/a/other");
        assert!(built(&variable, "/other", Some("a")).unwrap_err().contains("{id}"));
        let oneshot = json!({ "spec": { "routing": {} } });
        assert!(built(&oneshot, "/", Some("a")).unwrap_err().contains("leave --session out"));
        assert_eq!(built(&oneshot, "/", None).unwrap().uri(), "/default/hello/");
    }

    #[test]
    fn what_cannot_be_sent_says_why() {
        let wanted = |headers| Wanted { path: "/", session: None, method: None, headers, body: None };
        let bad = ["nonsense".to_owned()];
        let says = |address: &str, headers| {
            build(address, &json!({}), wanted(headers)).map(drop).unwrap_err().to_string()
        };
        assert!(says("http://a/b", &bad).contains("name: value"));
        assert!(says("https://a/b", &[]).contains("TLS"));
        assert!(says("/b", &[]).contains("names no host"));
    }
}
