//! Probes and lifecycle hooks, and what Events say about them.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, ObjectReference, Pod};

use super::{Outcome, Parts};
use crate::kubelet::machine::{Kind, Report, Verdict, printed_pod};
use crate::kubelet::probe::{self, Target};
use agentcube_operator::events::Severity;

pub(crate) async fn probe(
    parts: Arc<Parts>,
    about: ObjectReference,
    spec: Container,
    (kind, early): (Kind, bool),
    target: Target,
) -> Outcome {
    let Some(question) = kind.of(&spec) else { return Outcome::Nothing };
    let verdict = probe::probe(&spec, question, &target).await;
    let word = kind.word();
    let said = match &verdict {
        Verdict::Success => None,
        Verdict::Failure(_) | Verdict::Error(_) if early => None,
        Verdict::Warning(output) => Some(("ProbeWarning", format!("{word} probe warning: {output}"))),
        Verdict::Failure(output) => Some(("Unhealthy", format!("{word} probe failed: {output}"))),
        Verdict::Error(error) => {
            Some(("Unhealthy", format!("{word} probe errored and resulted in unknown state: {error}")))
        }
    };
    if let Some((reason, message)) = said {
        parts.recorder.record(about, Severity::Warning, reason, message);
    }
    let (container, id) = (spec.name, target.id.as_str().to_owned());
    Outcome::Report(Report::Probed { container, id, kind, verdict })
}

/// The end of a hook does not matter, only that it ended or took too long.
pub(crate) async fn pre_stop(
    parts: Arc<Parts>,
    about: ObjectReference,
    pod: Arc<Pod>,
    spec: Container,
    target: Target,
    limit: Duration,
) -> Outcome {
    let hook = spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    if let Some(hook) = hook
        && let Ok(Err(error)) = tokio::time::timeout(limit, probe::hook(&spec, hook, &target)).await
    {
        tracing::info!("{}", failure(hook, &spec, &pod, &error));
        parts.recorder.record(about, Severity::Warning, "FailedPreStopHook", "PreStopHook failed");
    }
    let (container, id) = (spec.name, target.id.as_str().to_owned());
    Outcome::Report(Report::PreStopReturned { container, id })
}

pub(crate) async fn post_start(
    parts: Arc<Parts>,
    about: ObjectReference,
    pod: Arc<Pod>,
    spec: Container,
    target: Target,
) -> Outcome {
    let hook = spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
    let error = match hook {
        Some(hook) => probe::hook(&spec, hook, &target).await.err(),
        None => None,
    };
    if let (Some(error), Some(hook)) = (&error, hook) {
        tracing::info!("{}", failure(hook, &spec, &pod, error));
        parts.recorder.record(about, Severity::Warning, "FailedPostStartHook", "PostStartHook failed");
    }
    let (container, id) = (spec.name, target.id.as_str().to_owned());
    Outcome::Report(Report::HookReturned { container, id, error })
}

/// Events leave out what a hook said, as it may be a secret; the node's log has it.
fn failure(hook: &LifecycleHandler, spec: &Container, pod: &Pod, error: &str) -> String {
    let kind = match hook {
        LifecycleHandler { exec: Some(_), .. } => "Exec",
        LifecycleHandler { http_get: Some(_), .. } => "HTTP",
        _ => "Sleep",
    };
    let (name, pod) = (&spec.name, printed_pod(pod));
    format!("{kind} lifecycle hook for Container \"{name}\" in Pod \"{pod}\" failed - error: {error}")
}
