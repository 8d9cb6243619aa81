//! What the server refuses: said in a status, and not tried again for a while. The kind of the error decides what is done about it; the
//! table is in docs/operations/middleware.md.

use std::collections::HashMap;
use std::time::Duration;

use agentcube_api::conditions::middleware as reasons;
use agentcube_operator::children;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use crate::core::{Error, Name};
use crate::group::observe::Fault;

/// What was refused is tried again after this.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// What was refused, in a form that can be compared, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub what: String,
    pub fault: Fault,
}

impl Refused {
    /// Why exactly this is not wanted by the server, if it was said.
    pub fn of<T: Serialize>(&self, wanted: &T) -> Option<&Fault> {
        (self.what == form(wanted)).then_some(&self.fault)
    }
}

/// A spec in a form that can be compared.
pub(crate) fn form<T: Serialize>(spec: &T) -> String {
    serde_json::to_string(spec).unwrap_or_default()
}

/// The kind of an object, and its name.
pub(crate) type Key = (&'static str, Name);

/// What was refused lately, by object.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<HashMap<Key, (Refused, Instant)>>);

impl Refusals {
    pub(crate) fn keep(&self, key: Key, refused: Refused) {
        self.0.lock().insert(key, (refused, Instant::now()));
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Refused> {
        let mut kept = self.0.lock();
        if kept.get(key).is_some_and(|(_, since)| since.elapsed() >= REFUSED_FOR) {
            kept.remove(key);
        }
        kept.get(key).map(|(refused, _)| refused.clone())
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

/// What the server has against an object; nothing, where trying again may help.
pub(crate) fn fault(error: &children::Error) -> Option<Fault> {
    if !error.is_refusal() {
        return None;
    }
    let denied = match error {
        children::Error::Write { source, .. } => match &**source {
            kube::Error::Api(status) if status.code == 403 => Some(status.message.as_str()),
            _ => None,
        },
        _ => None,
    };
    let reason = match denied {
        // A quota is full; Kubernetes has no reason of its own for that.
        Some(message) if message.contains("exceeded quota") => reasons::REASON_RESOURCES,
        Some(_) => reasons::REASON_FORBIDDEN,
        None => reasons::REASON_CONFIGURATION,
    };
    Some(Fault { reason, message: crate::app::cut(&error.to_string(), 4000) })
}

/// What the server has against what was tried; the error itself, where trying again may help.
pub(crate) fn of(error: Error) -> Result<Fault, Error> {
    match error {
        Error::Child(error) => fault(&error).ok_or(Error::Child(error)),
        other => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn refused(code: u16, message: &str) -> Option<&'static str> {
        let status = Status { code, message: message.into(), ..Status::default() };
        let source = Box::new(kube::Error::Api(Box::new(status)));
        fault(&children::Error::Write { kind: "Service".into(), name: "a".into(), source })
            .map(|fault| fault.reason)
    }

    #[test]
    fn errors_are_of_the_kind_that_decides_what_is_done() {
        assert_eq!(refused(422, "spec is wrong"), Some(reasons::REASON_CONFIGURATION));
        assert_eq!(refused(400, "no such field"), Some(reasons::REASON_CONFIGURATION));
        assert_eq!(refused(403, "user cannot patch"), Some(reasons::REASON_FORBIDDEN));
        assert_eq!(
            refused(403, "services \"a\" is forbidden: exceeded quota: q"),
            Some(reasons::REASON_RESOURCES)
        );
        // A conflict, an object that is gone, a server that is busy or ill: to be tried again.
        for code in [404, 409, 410, 429, 500, 503, 504] {
            assert_eq!(refused(code, ""), None, "{code}");
        }
        let foreign =
            children::Error::Foreign { kind: "Service".into(), name: "a".into(), owner: "b".into() };
        assert_eq!(fault(&foreign).map(|fault| fault.reason), Some(reasons::REASON_CONFIGURATION));
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_of_one_spec_and_for_a_while() {
        let refusals = Refusals::default();
        let key = ("Group", Name { namespace: "here".into(), name: "a".into() });
        let fault = Fault { reason: reasons::REASON_CONFIGURATION, message: "no".into() };
        refusals.keep(key.clone(), Refused { what: form(&1), fault: fault.clone() });
        let kept = refusals.get(&key).unwrap();
        assert_eq!((kept.of(&1), kept.of(&2)), (Some(&fault), None));
        tokio::time::advance(REFUSED_FOR).await;
        assert_eq!(refusals.get(&key), None);
    }
}
