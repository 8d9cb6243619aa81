//! How a revision stands, from its instances: how many, and why they do not come up. Pure.

use agentcube_api::sandbox::SandboxPhase;
use agentcube_api::{Sandbox, conditions};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use crate::bearer::Bearer;
use crate::provider::SpecStatus;
use crate::record::{Hold, Instance, Life};

/// The most of a log that is shown.
const LINES: usize = 10;
const CHARACTERS: usize = 1024;
/// Reasons to wait that pass by themselves.
const USUAL: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// An object whose trouble can be told.
pub(super) trait Troubled: Bearer {
    /// Why it does not come up; nothing if there is nothing to say.
    fn trouble(&self) -> Option<String>;
}

impl Troubled for Pod {
    fn trouble(&self) -> Option<String> {
        trouble(self)
    }
}

impl Troubled for Sandbox {
    fn trouble(&self) -> Option<String> {
        let status = self.status.as_ref()?;
        let ready = conditions::find(&status.conditions, "Ready")?;
        let said = || Some(ready.message.as_str()).filter(|message| !message.is_empty());
        match status.phase? {
            SandboxPhase::Failed | SandboxPhase::Lost => Some(with(&ready.reason, said())),
            // What waits for an agent or for its ports says so, and that may last.
            SandboxPhase::Pending => said().map(|message| with(&ready.reason, Some(message))),
            _ => None,
        }
    }
}

/// An instance, and what is wrong with it.
pub(super) fn look<B: Troubled>(object: &B) -> Option<(Instance, Option<String>)> {
    Some((Instance::read(object)?, object.trouble()))
}

/// Counts instances and says what is wrong with those that are not ready.
pub(super) fn stand(
    instances: impl IntoIterator<Item = (Instance, Option<String>)>,
    desired: i32,
) -> SpecStatus {
    let mut status = SpecStatus { desired, ..SpecStatus::default() };
    let mut worst: Option<(i64, String)> = None;
    let (mut failing, mut seen) = (0, 0);
    for (instance, trouble) in instances {
        seen += 1;
        if instance.life == Life::Ready {
            status.available += 1;
        }
        if !matches!(instance.hold, Hold::Free) {
            status.reserved += 1;
        }
        if instance.life != Life::Dead {
            status.total += 1;
        }
        let told = matches!(instance.life, Life::Starting | Life::Unready | Life::Dead);
        if let Some(trouble) = trouble.filter(|_| told) {
            failing += 1;
            let created = instance.created.as_second();
            if worst.as_ref().is_none_or(|(latest, _)| created >= *latest) {
                worst = Some((created, format!("{}: {trouble}", instance.id.name)));
            }
        }
    }
    status.trouble = worst.map(|(_, trouble)| match failing {
        1 if seen == 1 => trouble,
        _ => format!("{failing} of {seen} instances fail; {trouble}"),
    });
    status
}

/// Why a Pod does not come up, with the last lines of what it wrote; nothing if there is nothing to say.
pub(super) fn trouble(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let init = status.init_container_statuses.iter().flatten();
    let containers = init.chain(status.container_statuses.iter().flatten());
    if let Some(trouble) = containers.into_iter().find_map(of_container) {
        return Some(trouble);
    }
    if status.phase.as_deref() == Some("Failed") {
        let reason = status.reason.as_deref().unwrap_or("Failed");
        return Some(with(reason, status.message.as_deref()));
    }
    let scheduled = status.conditions.iter().flatten().find(|condition| condition.type_ == "PodScheduled");
    let unscheduled = scheduled.filter(|condition| condition.status == "False")?;
    Some(with(unscheduled.reason.as_deref().unwrap_or("Unscheduled"), unscheduled.message.as_deref()))
}

fn of_container(container: &ContainerStatus) -> Option<String> {
    let name = &container.name;
    let state = container.state.as_ref();
    let ended = state.and_then(|state| state.terminated.as_ref()).or_else(|| {
        let running = state.is_some_and(|state| state.running.is_some());
        // One that runs again is judged by what it does now, unless it is not ready yet.
        let over = running && container.ready;
        (!over).then(|| container.last_state.as_ref()?.terminated.as_ref()).flatten()
    });
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
    let failed = ended.filter(|ended| ended.exit_code != 0);
    match (failed, reason) {
        (Some(ended), reason) => {
            let what = match (ended.signal, ended.reason.as_deref()) {
                (Some(signal), _) => format!("was ended by signal {signal}"),
                (None, Some(reason @ ("OOMKilled" | "ContainerCannotRun" | "StartError"))) => {
                    format!("ended with code {} ({reason})", ended.exit_code)
                }
                _ => format!("ended with code {}", ended.exit_code),
            };
            let again = if reason == Some("CrashLoopBackOff") { " again and again" } else { "" };
            Some(with(&format!("container {name} {what}{again}"), ended.message.as_deref()))
        }
        (None, Some(reason)) if !USUAL.contains(&reason) => {
            let message = waiting.and_then(|waiting| waiting.message.as_deref());
            Some(with(&format!("container {name} cannot start: {reason}"), message))
        }
        _ => None,
    }
}

fn with(what: &str, message: Option<&str>) -> String {
    match message.map(tail).filter(|tail| !tail.is_empty()) {
        Some(tail) => format!("{what}: {tail}"),
        None => what.into(),
    }
}

/// The last lines of a log, as far as they fit.
fn tail(log: &str) -> String {
    let log = log.trim();
    let lines: Vec<&str> = log.lines().collect();
    let text = lines[lines.len().saturating_sub(LINES)..].join("\n");
    let cut = text.chars().count().saturating_sub(CHARACTERS);
    if cut == 0 { text } else { format!("…{}", text.chars().skip(cut).collect::<String>()) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(status: Value) -> Option<String> {
        let pod = json!({ "metadata": { "name": "agent-0" }, "status": status });
        trouble(&serde_json::from_value(pod).unwrap())
    }

    fn container(state: Value, last: Value) -> Value {
        json!({
            "name": "agent", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": state, "lastState": last,
        })
    }

    fn ended(code: i32, message: &str) -> Value {
        json!({ "terminated": { "exitCode": code, "message": message, "reason": "Error" } })
    }

    #[test]
    fn what_goes_wrong_is_said_and_what_takes_time_is_not() {
        let waiting = |reason: &str| json!({ "waiting": { "reason": reason, "message": "why" } });
        let running = json!({ "running": {} });
        for (state, last, expected) in [
            (waiting("ContainerCreating"), json!({}), None),
            (running.clone(), json!({}), None),
            (ended(0, ""), json!({}), None),
            (waiting("ErrImagePull"), json!({}), Some("container agent cannot start: ErrImagePull: why")),
            (ended(3, "a\nb\n"), json!({}), Some("container agent ended with code 3: a\nb")),
            (
                waiting("CrashLoopBackOff"),
                ended(1, "boom"),
                Some("container agent ended with code 1 again and again: boom"),
            ),
            // It runs again, but did not come up yet: what it died of is still what there is to say.
            (running.clone(), ended(1, "boom"), Some("container agent ended with code 1: boom")),
            (
                json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } }),
                json!({}),
                Some("container agent ended with code 137 (OOMKilled)"),
            ),
        ] {
            let status = json!({ "phase": "Running", "containerStatuses": [container(state, last)] });
            assert_eq!(of(status.clone()).as_deref(), expected, "{status}");
        }
        let mut recovered = container(running, ended(1, "boom"));
        recovered["ready"] = json!(true);
        assert_eq!(of(json!({ "phase": "Running", "containerStatuses": [recovered] })), None);
    }

    #[test]
    fn init_containers_come_first_and_pods_that_never_ran_last() {
        let mut fetch = container(ended(1, "no such file"), json!({}));
        fetch["name"] = json!("fetch");
        let waiting = container(json!({ "waiting": { "reason": "PodInitializing" } }), json!({}));
        let status = json!({ "initContainerStatuses": [fetch], "containerStatuses": [waiting] });
        assert_eq!(of(status).as_deref(), Some("container fetch ended with code 1: no such file"));
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available",
        });
        let status = json!({ "phase": "Pending", "conditions": [condition] });
        assert_eq!(of(status).as_deref(), Some("Unschedulable: 0/1 nodes are available"));
        let status =
            json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on memory" });
        assert_eq!(of(status).as_deref(), Some("Evicted: The node was low on memory"));
    }

    #[test]
    fn of_a_long_log_the_end_is_shown() {
        let log: String = (0..50).map(|line| format!("line {line}\n")).collect();
        let shown = tail(&log);
        assert!(shown.starts_with("line 40\n") && shown.ends_with("line 49"), "{shown}");
        let shown = tail(&"ü".repeat(3000));
        assert_eq!(shown.chars().count(), CHARACTERS + 1);
        assert!(shown.starts_with('…'));
    }
}
