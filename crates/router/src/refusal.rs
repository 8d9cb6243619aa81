//! What a client is told when its request is not passed on, or the instance fails it: a status, a code for programs,
//! a sentence for people that says what to do, and when to try again.

use std::time::Duration;

use agentcube_instance::provider::ReserveError;
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::Full;
use serde_json::json;

use crate::breaker;
use crate::extract::KeyError;
use crate::owner::Foreign;

/// No Task is served there: the code.
pub(crate) const NO_ROUTE: &str = "NoRoute";

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    pub retry_after: Option<Duration>,
    /// More headers that belong to it, such as a challenge.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// For the log only: it may name things that are none of the client's business.
    pub detail: Option<String>,
    /// The body of the answer, where a protocol has its own words.
    pub(crate) words: Option<Box<serde_json::Value>>,
}

impl Refusal {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal {
            status,
            code,
            message: message.into(),
            retry_after: None,
            headers: Vec::new(),
            detail: None,
            words: None,
        }
    }

    /// The same in the words of a protocol.
    pub(crate) fn in_words(mut self, words: serde_json::Value) -> Refusal {
        self.words = Some(Box::new(words));
        self
    }

    pub(crate) fn with_status(mut self, status: StatusCode) -> Refusal {
        self.status = status;
        self
    }

    pub(crate) fn allowing(mut self, methods: &'static str) -> Refusal {
        self.headers.push((ALLOW, HeaderValue::from_static(methods)));
        self
    }

    fn after(mut self, delay: Option<Duration>) -> Refusal {
        self.retry_after = delay;
        self
    }

    pub(crate) fn no_route(host: &str, path: &str) -> Refusal {
        let message = format!(
            "no Task is served at {path} of host {host}: `agentcube get tasks` lists addresses; \
             a Task is served under /NAMESPACE/NAME unless it says otherwise"
        );
        Refusal::new(StatusCode::NOT_FOUND, NO_ROUTE, message)
    }

    /// The connection was made for another host, with other certificates and other rules.
    pub(crate) fn misdirected(host: &str) -> Refusal {
        let message = format!(
            "this connection was not made for host {host}: open another one that names {host} in its TLS handshake"
        );
        Refusal::new(StatusCode::MISDIRECTED_REQUEST, "Misdirected", message)
    }

    /// The instance cannot be reached; the request was not sent.
    pub(crate) fn unreachable(instance: &str, why: &str) -> Refusal {
        let message = format!("the instance {instance} cannot be reached ({why}); the request was not sent");
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "InstanceUnreachable", message)
            .after(Some(Duration::from_secs(1)))
    }

    /// The instance has as much to do as its Task allows.
    pub(crate) fn full(instance: &str, full: breaker::Full) -> Refusal {
        let why = match full {
            breaker::Full::Pending(most) => format!("and {most} requests wait for it, the Task's limit"),
            breaker::Full::Slow(limit) => format!("and was not done within {limit:?}"),
        };
        let message = format!("the instance {instance} serves as many requests as its Task allows, {why}");
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "InstanceBusy", message)
            .after(Some(Duration::from_secs(1)))
    }

    /// The instance ended the exchange before it answered.
    pub(crate) fn failed(instance: &str, why: &str) -> Refusal {
        let message = format!(
            "the instance {instance} ended the connection before it answered ({why}); the request may have \
             been carried out or not; the next request gets an instance that works"
        );
        Refusal::new(StatusCode::BAD_GATEWAY, "InstanceFailed", message).after(Some(Duration::from_secs(1)))
    }

    /// The router may not wait for the answer any more. When to try again depends on what the request does.
    pub(crate) fn revoked(instance: &str) -> Refusal {
        let message = format!(
            "this router lost touch with the cluster before the instance {instance} had answered; the request may \
             have been carried out or not"
        );
        Refusal::new(StatusCode::BAD_GATEWAY, "InstanceFailed", message)
    }

    /// The body has to be read before the request is passed on, and is too long for that.
    pub(crate) fn too_large(limit: usize) -> Refusal {
        let message = format!(
            "the body has more than {limit} bytes; the ids of a conversation are looked for in no more than that"
        );
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "BodyTooLarge", message)
    }

    /// So many bodies are being read, for this Task above all, that there is no room for another.
    pub(crate) fn no_room() -> Refusal {
        let message = "too many requests for this Task are being read at once";
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "TooManyBodies", message)
            .after(Some(Duration::from_secs(1)))
    }

    /// A session began, and nobody would find it again.
    pub(crate) fn unnamed(instance: &str, why: &str) -> Refusal {
        let message = format!(
            "the instance {instance} has answered, but the session that began could not be noted ({why}); begin anew"
        );
        Refusal::new(StatusCode::BAD_GATEWAY, "SessionNotNoted", message).after(Some(Duration::from_secs(1)))
    }

    /// The client stopped in the middle of its request.
    pub(crate) fn stalled(limit: Duration) -> Refusal {
        let message = format!("no byte of the request came for {limit:?}, though it had not ended");
        Refusal::new(StatusCode::REQUEST_TIMEOUT, "RequestStalled", message)
    }

    /// The body has to be read before the request is passed on, and takes too long.
    pub(crate) fn slow(limit: Duration) -> Refusal {
        let message =
            format!("the body did not come within {limit:?}; the ids of the conversation are in it");
        Refusal::new(StatusCode::REQUEST_TIMEOUT, "RequestSlow", message)
    }

    /// The request ended in the middle; mostly its client is gone, and nobody reads this.
    pub(crate) fn broken(why: &dyn std::fmt::Display) -> Refusal {
        let message = format!("the request ended before its body did ({why}); it was not sent");
        Refusal::new(StatusCode::BAD_REQUEST, "RequestBroken", message)
    }

    pub(crate) fn too_slow(instance: &str, limit: Duration) -> Refusal {
        let message = format!("the instance {instance} did not answer within {limit:?}, the Task's limit");
        Refusal::new(StatusCode::GATEWAY_TIMEOUT, "RequestTimeout", message)
    }

    /// After how many seconds to try again, as the header Retry-After says it.
    pub fn retry_seconds(&self) -> Option<u64> {
        self.retry_after.map(|delay| delay.as_secs().max(1))
    }

    /// The body of the answer, as JSON.
    pub fn body(&self, request_id: &HeaderValue) -> String {
        if let Some(words) = &self.words {
            return words.to_string();
        }
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Ok(id) = request_id.to_str() {
            error["requestId"] = json!(id);
        }
        if let Some(seconds) = self.retry_seconds() {
            error["retryAfterSeconds"] = json!(seconds);
        }
        format!("{}\n", json!({ "error": error }))
    }

    /// The headers of the answer.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(2);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_seconds() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        for (name, value) in &self.headers {
            headers.append(name, value.clone());
        }
        headers
    }

    /// As a response.
    pub(crate) fn into_response(self, request_id: &HeaderValue) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.body(request_id))));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers();
        response
    }
}

impl From<KeyError> for Refusal {
    fn from(error: KeyError) -> Refusal {
        let code = match error {
            KeyError::Missing { .. } => "SessionKeyMissing",
            _ => "SessionKeyInvalid",
        };
        Refusal::new(StatusCode::BAD_REQUEST, code, error.to_string())
    }
}

impl From<Foreign> for Refusal {
    fn from(error: Foreign) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, "SessionKeyInvalid", error.to_string())
    }
}

impl From<ReserveError> for Refusal {
    fn from(error: ReserveError) -> Refusal {
        let (status, code) = match &error {
            ReserveError::NoSuchTask => (StatusCode::NOT_FOUND, NO_ROUTE),
            ReserveError::NotReady(_) => (StatusCode::SERVICE_UNAVAILABLE, "TaskNotReady"),
            ReserveError::Timeout { .. } => (StatusCode::SERVICE_UNAVAILABLE, "NoInstance"),
            ReserveError::TooManyWaiting => (StatusCode::SERVICE_UNAVAILABLE, "TooManyWaiting"),
            ReserveError::OutOfTouch => (StatusCode::SERVICE_UNAVAILABLE, "OutOfTouch"),
            ReserveError::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "ShuttingDown"),
            ReserveError::NoSuchSession => (StatusCode::NOT_FOUND, "NoSuchSession"),
        };
        let refusal = Refusal::new(status, code, told(&error)).after(error.retry_after());
        // What it says beyond that are words of the API server, names of Secrets, lines of logs.
        let detail = match error {
            ReserveError::NotReady(why) | ReserveError::Timeout { reason: why, .. } => Some(why),
            _ => None,
        };
        Refusal { detail, ..refusal }
    }
}

/// What a client may know of why there is no instance.
fn told(error: &ReserveError) -> String {
    match error {
        ReserveError::NotReady(_) => {
            "the Task is not ready; its conditions say why (`agentcube describe task NAME`)".into()
        }
        ReserveError::Timeout { waited, .. } => {
            format!(
                "no instance became free within {waited:?}; the gateway's log says why, under this request's id"
            )
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_refusal_says_when_to_come_back() {
        let refusal = Refusal::from(ReserveError::Timeout {
            waited: Duration::from_secs(30),
            reason: "the Secret top is missing".into(),
        });
        assert_eq!(refusal.detail.as_deref(), Some("the Secret top is missing"));
        let response = refusal.into_response(&HeaderValue::from_static("id-1"));
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[RETRY_AFTER], "2");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let expected = json!({ "error": {
            "code": "NoInstance",
            "message": "no instance became free within 30s; the gateway's log says why, under this request's id",
            "requestId": "id-1",
            "retryAfterSeconds": 2,
        }});
        assert_eq!(body, expected);
    }

    #[test]
    fn inner_matters_are_for_the_log() {
        let refusal = Refusal::from(ReserveError::NotReady("the Secret top is missing".into()));
        assert!(!refusal.message.contains("top"), "{}", refusal.message);
        assert_eq!(refusal.detail.as_deref(), Some("the Secret top is missing"));
        let refusal = Refusal::revoked("chat-0");
        assert_eq!((refusal.status, refusal.retry_after), (StatusCode::BAD_GATEWAY, None));
        assert!(refusal.message.contains("carried out or not"), "{}", refusal.message);
    }
}
