//! What can go wrong between us and a server, in one line each.

use serde_json::Value;

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The server understood and said no; trying again changes nothing.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// The token or certificate is not the server's.
    #[error(
        "{address} does not accept the credentials of the kubeconfig: use the one of the running cluster"
    )]
    Unauthorized { address: String },
    #[error("cannot reach {address}: {reason}; does the cluster run?")]
    Unreachable { address: String, reason: String },
    #[error("{address} gave no answer within {seconds} s")]
    Silent { address: String, seconds: u64 },
    #[error("{address} answered what no API server of Kubernetes should: {reason}")]
    Garbled { address: String, reason: String },
}

/// A `Status` of a server.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// Fields that are wrong, with what is wrong about them.
    pub(crate) causes: Vec<(String, String)>,
}

impl Refusal {
    pub(crate) fn parse(code: u16, body: &[u8]) -> Self {
        let status: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
        let mut message = text("message");
        if message.is_empty() {
            let shown: String = String::from_utf8_lossy(body).trim().chars().take(200).collect();
            message = format!("HTTP {code} {shown}").trim_end().to_owned();
        }
        let causes = status["details"]["causes"].as_array().into_iter().flatten();
        let cause = |cause: &Value| {
            let text = |key: &str| cause[key].as_str().unwrap_or_default().to_owned();
            (text("field"), text("message"))
        };
        Self { code, reason: text("reason"), message, causes: causes.map(cause).collect() }
    }
}

impl Error {
    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        match self {
            Error::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.refusal().is_some_and(|refusal| refusal.code == 404)
    }
}

/// The innermost cause, which is the one that says something.
pub(super) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_read_from_whatever_a_server_sends() {
        let status = br#"{"kind":"Status","message":"no","reason":"Invalid","details":{"causes":[{"field":"spec.a","message":"bad"}]}}"#;
        let refusal = Refusal::parse(422, status);
        assert_eq!((refusal.to_string().as_str(), refusal.reason.as_str()), ("no", "Invalid"));
        assert_eq!(refusal.causes, [("spec.a".to_owned(), "bad".to_owned())]);
        assert_eq!(Refusal::parse(502, b"<html>\n").to_string(), "HTTP 502 <html>");
        assert_eq!(Refusal::parse(500, b"").to_string(), "HTTP 500");
    }
}
