//! Reads and writes through to the API server, as whoever logged in: what that may do is for the server to say. Only what
//! pages need goes through: objects and logs. What would show strangers' pages under our address (`proxy`), opens a
//! connection, or hands out secrets, does not; terminals have a way of their own.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;

use crate::answer::{self, Answer};
use crate::server::State;
use crate::session::Session;

/// The largest answer.
const SIZE_LIMIT: usize = 128 << 20;
/// The largest object that is looked into.
const OBJECT_LIMIT: usize = 8 << 20;
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
const WARNING: HeaderName = HeaderName::from_static("warning");

/// What a page wants of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// One answer.
    Once,
    /// Lines for as long as it lasts: a watch, or a log that is followed.
    Stream,
}

/// Why a request does not go through, if it does not.
pub(crate) fn refused(method: &Method, path_and_query: &str, wanted: Use) -> Option<&'static str> {
    let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-._:~".contains(c);
    if !path.chars().all(plain)
        || path.contains("//")
        || path.split('/').any(|part| part == "." || part == "..")
    {
        return Some("no object has such a path");
    }
    let streams = query.split('&').any(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, "true"));
        matches!(name, "watch" | "follow") && !matches!(value, "false" | "0")
    });
    if streams != (wanted == Use::Stream) {
        return Some("watches and followed logs go by /live, and nothing else does");
    }
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let below = match parts.as_slice() {
        ["version" | "api" | "apis"] if *method == Method::GET => return None,
        ["api", "v1", below @ ..] | ["apis", _, _, below @ ..] => below,
        _ => return Some("this is no path of objects"),
    };
    let (resource, name, rest) = match below {
        [] if *method == Method::GET => return None,
        ["namespaces", _, resource, rest @ ..] => {
            (*resource, rest.first(), rest.get(1..).unwrap_or_default())
        }
        [resource, rest @ ..] => (*resource, rest.first(), rest.get(1..).unwrap_or_default()),
        [] => return Some("this names no objects"),
    };
    // The only parts of namespaces that are no collections in them.
    if matches!(resource, "finalize" | "status") {
        return Some("of objects only themselves and their logs are shown here");
    }
    if resource == "secrets" {
        return Some("secrets are not shown here: use kubectl");
    }
    match (rest, name) {
        (["log"], _) if *method == Method::GET && resource == "pods" => None,
        ([], None) if *method == Method::DELETE => Some("objects are deleted one by one"),
        ([], _) => None,
        _ => Some("of objects only themselves and their logs are shown here"),
    }
}

/// Sends a request as a user.
pub(crate) async fn send(
    state: &State,
    session: &Session,
    method: Method,
    path: &str,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Response<kube::client::Body>, String> {
    let authorization = session.authorization().ok_or("the session has no token")?;
    let mut request = Request::builder().method(method).uri(path).header(AUTHORIZATION, authorization);
    for name in [ACCEPT, CONTENT_TYPE] {
        if let Some(value) = headers.get(&name) {
            request = request.header(name, value);
        }
    }
    let request = request.body(kube::client::Body::from(body.to_vec())).map_err(|error| error.to_string())?;
    match tokio::time::timeout(ANSWER_LIMIT, state.options.api.send(request)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(format!("the API server gives no answer: {error}")),
        Err(_) => Err("the API server takes too long".to_owned()),
    }
}

/// One object, read as a user.
pub(crate) async fn read(
    state: &State,
    session: &Session,
    path: &str,
) -> Result<Value, (StatusCode, String)> {
    if let Some(why) = refused(&Method::GET, path, Use::Once) {
        return Err((StatusCode::BAD_REQUEST, why.to_owned()));
    }
    let answered = send(state, session, Method::GET, path, &HeaderMap::new(), Bytes::new()).await;
    let answered = answered.map_err(|why| (StatusCode::BAD_GATEWAY, why))?;
    let status = answered.status();
    let body = Limited::new(answered.into_body(), OBJECT_LIMIT).collect().await;
    let body = body.map_err(|error| (StatusCode::BAD_GATEWAY, error.to_string()))?.to_bytes();
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    match status.is_success() {
        true => Ok(value),
        false => Err((status, value["message"].as_str().unwrap_or("the API server refuses").to_owned())),
    }
}

/// Passes a request on, and the answer back.
pub(crate) async fn answer(
    state: &State,
    session: &Session,
    method: Method,
    path: &str,
    headers: &HeaderMap,
    body: Bytes,
) -> Answer {
    if let Some(why) = refused(&method, path, Use::Once) {
        return answer::refuse(StatusCode::FORBIDDEN, why);
    }
    let answered = match send(state, session, method, path, headers, body).await {
        Ok(answered) => answered,
        Err(why) => return answer::refuse(StatusCode::BAD_GATEWAY, &why),
    };
    let (parts, body) = answered.into_parts();
    let content_type =
        parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("text/plain");
    let body = Limited::new(body, SIZE_LIMIT).boxed_unsync();
    let mut answer = answer::data(parts.status, content_type, body);
    let warnings = parts.headers.get_all(&WARNING).iter().map(|value| (WARNING, value.clone()));
    answer.headers_mut().extend(warnings);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_and_logs_go_through() {
        let pods = "/api/v1/namespaces/a/pods";
        for (method, path, wanted, through) in [
            ("GET", "/version".to_owned(), Use::Once, true),
            ("GET", "/apis".to_owned(), Use::Once, true),
            ("GET", "/api/v1/pods".to_owned(), Use::Once, true),
            ("GET", "/api/v1/namespaces".to_owned(), Use::Once, true),
            ("GET", "/api/v1/namespaces/a".to_owned(), Use::Once, true),
            ("GET", format!("{pods}?labelSelector=a%3Db"), Use::Once, true),
            ("GET", format!("{pods}/b/log?container=c"), Use::Once, true),
            ("GET", format!("{pods}/b/log?follow=true"), Use::Stream, true),
            ("GET", format!("{pods}/b/log?follow=true"), Use::Once, false),
            ("GET", format!("{pods}?watch=1"), Use::Stream, true),
            ("GET", format!("{pods}?watch=1"), Use::Once, false),
            ("GET", format!("{pods}?watch"), Use::Once, false),
            ("GET", pods.to_owned(), Use::Stream, false),
            (
                "PUT",
                "/apis/agentcube.io/v1alpha1/namespaces/a/tasks/t?dryRun=All".to_owned(),
                Use::Once,
                true,
            ),
            ("DELETE", "/apis/agentcube.io/v1alpha1/namespaces/a/tasks/t".to_owned(), Use::Once, true),
            ("DELETE", "/apis/agentcube.io/v1alpha1/namespaces/a/tasks".to_owned(), Use::Once, false),
            ("GET", format!("{pods}/b/proxy"), Use::Once, false),
            ("GET", format!("{pods}/b/proxy/index.html"), Use::Once, false),
            ("GET", "/api/v1/namespaces/a/services/s/proxy".to_owned(), Use::Once, false),
            ("POST", format!("{pods}/b/exec"), Use::Once, false),
            ("POST", format!("{pods}/b/log"), Use::Once, false),
            ("GET", "/api/v1/secrets".to_owned(), Use::Once, false),
            ("PUT", "/api/v1/namespaces/a/finalize".to_owned(), Use::Once, false),
            ("GET", "/api/v1/namespaces/a/secrets/s".to_owned(), Use::Once, false),
            ("POST", "/api/v1/namespaces/a/serviceaccounts/s/token".to_owned(), Use::Once, false),
            ("GET", "/api/v1/namespaces/a/pods/../secrets".to_owned(), Use::Once, false),
            ("GET", "/api/v1/namespaces/a/%73ecrets".to_owned(), Use::Once, false),
            ("GET", "/api/v1//secrets".to_owned(), Use::Once, false),
            ("GET", "/metrics".to_owned(), Use::Once, false),
            ("GET", "/debug/sessions".to_owned(), Use::Once, false),
        ] {
            let refused = refused(&method.parse().unwrap(), &path, wanted);
            assert_eq!(refused.is_none(), through, "{method} {path}: {refused:?}");
        }
    }
}
