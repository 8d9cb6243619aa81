//! What a client is told when its request is not passed on, or the instance fails it: a status, a code for programs,
//! a sentence for people that says what to do, and when to try again.

use std::time::Duration;

use agentcube_instance::provider::ReserveError;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde_json::json;

use crate::extract::KeyError;

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    pub retry_after: Option<Duration>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { status, code, message: message.into(), retry_after: None }
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
        Refusal::new(StatusCode::NOT_FOUND, "NoRoute", message)
    }

    /// The instance cannot be reached; the request was not sent.
    pub(crate) fn unreachable(instance: &str, why: &str) -> Refusal {
        let message = format!("the instance {instance} cannot be reached ({why}); the request was not sent");
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "InstanceUnreachable", message)
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

    pub(crate) fn too_slow(instance: &str, limit: Duration) -> Refusal {
        let message = format!("the instance {instance} did not answer within {limit:?}, the Task's limit");
        Refusal::new(StatusCode::GATEWAY_TIMEOUT, "RequestTimeout", message)
    }

    /// As a response.
    pub(crate) fn into_response(self, request_id: &HeaderValue) -> Response<Full<Bytes>> {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Ok(id) = request_id.to_str() {
            error["requestId"] = json!(id);
        }
        let seconds = self.retry_after.map(|delay| delay.as_secs().max(1));
        if let Some(seconds) = seconds {
            error["retryAfterSeconds"] = json!(seconds);
        }
        let body = format!("{}\n", json!({ "error": error }));
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
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

impl From<ReserveError> for Refusal {
    fn from(error: ReserveError) -> Refusal {
        let (status, code) = match &error {
            ReserveError::NoSuchTask => (StatusCode::NOT_FOUND, "NoRoute"),
            ReserveError::NotReady(_) => (StatusCode::SERVICE_UNAVAILABLE, "TaskNotReady"),
            ReserveError::Timeout { .. } => (StatusCode::SERVICE_UNAVAILABLE, "NoInstance"),
            ReserveError::TooManyWaiting => (StatusCode::SERVICE_UNAVAILABLE, "TooManyWaiting"),
            ReserveError::OutOfTouch => (StatusCode::SERVICE_UNAVAILABLE, "OutOfTouch"),
            ReserveError::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "ShuttingDown"),
        };
        Refusal::new(status, code, error.to_string()).after(error.retry_after())
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
            reason: "all 2 instances are reserved".into(),
        });
        let response = refusal.into_response(&HeaderValue::from_static("id-1"));
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[RETRY_AFTER], "2");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let expected = json!({ "error": {
            "code": "NoInstance",
            "message": "no instance became free within 30s: all 2 instances are reserved",
            "requestId": "id-1",
            "retryAfterSeconds": 2,
        }});
        assert_eq!(body, expected);
    }
}
