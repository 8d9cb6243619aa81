//! Answers: every one carries the headers that keep strangers' pages and scripts out, and mistakes have the form of the
//! API server's, so that pages read all of them alike.

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Body = UnsyncBoxBody<Bytes, BoxError>;
pub(crate) type Answer = Response<Body>;

/// Scripts, styles and frames only from here, no frames around us, no forms that lead elsewhere, no markup made from strings.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";
/// What is no page must not become one, whatever it holds.
const DATA_POLICY: &str = "default-src 'none'; frame-ancestors 'none'; sandbox";

/// Something to be shown as a page, or by one.
pub(crate) fn page(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    with_policy(status, content_type, full(body), PAGE_POLICY)
}

/// A document that a page of ours shows in a frame, or a script of one. Scripts are asked for by an origin that is none.
pub(crate) fn framed(content_type: &'static str, policy: &HeaderValue, body: Bytes) -> Answer {
    let mut answer = with_policy(StatusCode::OK, content_type, full(body), DATA_POLICY);
    let headers = answer.headers_mut();
    headers.insert(HeaderName::from_static("content-security-policy"), policy.clone());
    headers.insert(HeaderName::from_static("x-frame-options"), HeaderValue::from_static("SAMEORIGIN"));
    headers.insert(HeaderName::from_static("x-dns-prefetch-control"), HeaderValue::from_static("off"));
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// Something to be read by a page.
pub(crate) fn data(status: StatusCode, content_type: &str, body: Body) -> Answer {
    let mut answer = with_policy(status, "application/octet-stream", body, DATA_POLICY);
    if let Ok(value) = HeaderValue::from_str(content_type) {
        answer.headers_mut().insert(CONTENT_TYPE, value);
    }
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

pub(crate) fn json(status: StatusCode, value: &Value) -> Answer {
    data(status, "application/json", full(Bytes::from(value.to_string())))
}

/// A refusal in the form of the API server's own.
pub(crate) fn refuse(status: StatusCode, message: &str) -> Answer {
    json(
        status,
        &json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure",
            "reason": status.canonical_reason().unwrap_or_default().replace(' ', ""),
            "message": message, "code": status.as_u16(),
        }),
    )
}

pub(crate) fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn with_policy(status: StatusCode, content_type: &'static str, body: Body, policy: &'static str) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (name, value) in [
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    answer
}
