//! Responses: encoded objects, failures, streams.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::api::{Body, Listing, Watcher};
use crate::output::{Rendering, WholeList};
use crate::resource::Resource;
use crate::status::Status;

/// The body of every response.
pub type ReplyBody = UnsyncBoxBody<Bytes, std::convert::Infallible>;

fn whole(bytes: impl Into<Bytes>) -> ReplyBody {
    Full::new(bytes.into()).boxed_unsync()
}

fn respond(code: StatusCode, content_type: &'static str, body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

pub(super) fn text(code: StatusCode, text: impl Into<Bytes>) -> Response<ReplyBody> {
    respond(code, "text/plain; charset=utf-8", whole(text))
}

/// What Prometheus reads.
pub(super) fn metrics(text: String) -> Response<ReplyBody> {
    respond(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", whole(text))
}

pub(super) fn json(code: StatusCode, value: &Value) -> Response<ReplyBody> {
    let bytes = serde_json::to_vec(value).expect("JSON values encode into memory");
    respond(code, "application/json", whole(bytes))
}

pub(super) fn encoded(code: StatusCode, bytes: BytesMut) -> Response<ReplyBody> {
    respond(code, "application/json", whole(bytes.freeze()))
}

pub(super) fn failure(status: &Status) -> Response<ReplyBody> {
    if status.reason == Status::PLAIN_TEXT {
        return text(status.code, status.message.clone());
    }
    let mut response = json(status.code, &status.to_json());
    if let Some(seconds) = status.details.get("retryAfterSeconds").and_then(Value::as_u64) {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// An object in the form that the client asked for.
pub(super) fn object(
    code: StatusCode,
    resource: &Resource,
    body: Body,
    rendering: &Rendering,
    warnings: &[String],
) -> Response<ReplyBody> {
    let mut response = match body {
        Body::Stored(object) => {
            let mut out = BytesMut::with_capacity(object.json.len() + 64);
            rendering.object(resource, &object, &mut out);
            encoded(code, out)
        }
        Body::Fresh(value) if value["kind"] == "Status" => json(code, &value),
        Body::Fresh(value) => json(code, &rendering.value(resource, value)),
    };
    for warning in warnings {
        warn(&mut response, warning);
    }
    response
}

/// Adds a `Warning` that `kubectl` shows.
pub(super) fn warn(response: &mut Response<ReplyBody>, warning: &str) {
    let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
    if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
        response.headers_mut().append(header::WARNING, value);
    }
}

/// A page of a list.
pub(super) fn list(resource: &Arc<Resource>, listing: Listing, rendering: &Rendering) -> Response<ReplyBody> {
    if *rendering != Rendering::Whole {
        return json(StatusCode::OK, &rendering.list(resource, &listing));
    }
    let list = WholeList::new(resource.clone(), listing);
    let pieces = stream::unfold(list, |mut list| async move {
        let piece = list.piece()?;
        Some((Ok(Frame::data(piece)), list))
    });
    respond(StatusCode::OK, "application/json", StreamBody::new(pieces).boxed_unsync())
}

/// Lines as they come, for as long as the client listens.
pub(super) fn watch(watcher: Watcher) -> Response<ReplyBody> {
    let lines = stream::unfold(watcher, |mut watcher| async move {
        let lines = watcher.next().await?;
        Some((Ok(Frame::data(lines)), watcher))
    });
    respond(StatusCode::OK, "application/json", StreamBody::new(lines).boxed_unsync())
}

/// Nothing is here, and nothing more is said.
pub(super) fn missing() -> Response<ReplyBody> {
    let mut response = Response::new(whole(Bytes::new()));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

/// There is nothing to say.
pub(super) fn nothing() -> Response<ReplyBody> {
    let mut response = Response::new(whole(Bytes::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// Chunks of a container's log.
pub(super) fn log(chunks: mpsc::Receiver<Bytes>) -> Response<ReplyBody> {
    let chunks = stream::unfold(chunks, |mut chunks| async move {
        let chunk = chunks.recv().await?;
        Some((Ok(Frame::data(chunk)), chunks))
    });
    respond(StatusCode::OK, "text/plain", StreamBody::new(chunks).boxed_unsync())
}
