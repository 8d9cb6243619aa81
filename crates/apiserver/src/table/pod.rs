//! The cells of a pod: above all its STATUS, which no field holds.

use jiff::Timestamp;
use serde_json::Value;

use super::age::since;
use crate::builtin::access::Peek;

/// What the container statuses add up to.
#[derive(Default)]
struct Summary {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    /// When the last restart was; RFC 3339 times in UTC sort as text.
    last_restart: String,
}

impl Summary {
    fn count_restarts(&mut self, container: &Value) {
        self.restarts += container.int_of("restartCount").unwrap_or_default();
        let finished = container.at(&["lastState", "terminated", "finishedAt"]).as_str().unwrap_or_default();
        if finished > self.last_restart.as_str() {
            finished.clone_into(&mut self.last_restart);
        }
    }
}

pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = summarize(pod);
    let restarts = if summary.restarts != 0 && !summary.last_restart.is_empty() {
        format!("{} ({} ago)", summary.restarts, since(&summary.last_restart.into(), now))
    } else {
        summary.restarts.to_string()
    };
    let (meta, spec, status) = (pod.sub("metadata"), pod.sub("spec"), pod.sub("status"));
    let or_none = |text: &str| Value::from(if text.is_empty() { "<none>" } else { text });
    vec![
        meta.str_of("name").into(),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.reason.into(),
        restarts.into(),
        since(meta.sub("creationTimestamp"), now).into(),
        or_none(status.list("podIPs").first().map_or("", |entry| entry.str_of("ip"))),
        or_none(spec.str_of("nodeName")),
        or_none(status.str_of("nominatedNodeName")),
        gates(spec, status).into(),
    ]
}

fn gates(spec: &Value, status: &Value) -> String {
    let gates = spec.list("readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open = gates.iter().filter(|gate| is_true(status, gate.str_of("conditionType"))).count();
    format!("{open}/{}", gates.len())
}

/// The first condition of a type is true.
fn is_true(status: &Value, kind: &str) -> bool {
    let mut conditions = status.list("conditions").iter();
    conditions
        .find(|condition| condition.str_of("type") == kind)
        .is_some_and(|one| one.str_of("status") == "True")
}

fn summarize(pod: &Value) -> Summary {
    let (spec, status) = (pod.sub("spec"), pod.sub("status"));
    let mut summary = Summary { reason: status.str_of("phase").to_owned(), ..Summary::default() };
    if !status.str_of("reason").is_empty() {
        status.str_of("reason").clone_into(&mut summary.reason);
    }
    let gated =
        |one: &Value| one.str_of("type") == "PodScheduled" && one.str_of("reason") == "SchedulingGated";
    if status.list("conditions").iter().any(gated) {
        "SchedulingGated".clone_into(&mut summary.reason);
    }
    let is_sidecar = |name: &str| {
        let init = spec.list("initContainers");
        init.iter().any(|one| one.str_of("name") == name && one.str_of("restartPolicy") == "Always")
    };
    let sidecars =
        spec.list("initContainers").iter().filter(|one| one.str_of("restartPolicy") == "Always").count();
    summary.total = spec.list("containers").len() + sidecars;

    let mut of_sidecars = Summary::default();
    let initializing = init_containers(pod, &mut summary, &mut of_sidecars, is_sidecar);
    if !initializing || is_true(status, "Initialized") {
        summary.restarts = of_sidecars.restarts;
        summary.last_restart = of_sidecars.last_restart;
        containers(status, &mut summary);
    }
    if pod.sub("metadata").has("deletionTimestamp") {
        if status.str_of("reason") == "NodeLost" {
            "Unknown".clone_into(&mut summary.reason);
        } else if !["Succeeded", "Failed"].contains(&status.str_of("phase")) {
            "Terminating".clone_into(&mut summary.reason);
        }
    }
    summary
}

/// Follows the init containers up to the one at work. True if there is one.
fn init_containers(
    pod: &Value,
    summary: &mut Summary,
    of_sidecars: &mut Summary,
    is_sidecar: impl Fn(&str) -> bool,
) -> bool {
    let all = pod.sub("spec").list("initContainers").len();
    for (index, container) in pod.sub("status").list("initContainerStatuses").iter().enumerate() {
        summary.count_restarts(container);
        let sidecar = is_sidecar(container.str_of("name"));
        if sidecar {
            of_sidecars.count_restarts(container);
        }
        let (terminated, waiting) =
            (container.at(&["state", "terminated"]), container.at(&["state", "waiting"]));
        if !terminated.is_null() && terminated.int_of("exitCode").unwrap_or_default() == 0 {
            continue;
        }
        if sidecar && container.flag("started") {
            summary.ready += usize::from(container.flag("ready"));
            continue;
        }
        let reason = waiting.str_of("reason");
        summary.reason = if !terminated.is_null() {
            format!("Init:{}", end_of(terminated))
        } else if !reason.is_empty() && reason != "PodInitializing" {
            format!("Init:{reason}")
        } else {
            format!("Init:{index}/{all}")
        };
        return true;
    }
    false
}

/// Why a container ended.
fn end_of(terminated: &Value) -> String {
    let (reason, signal) = (terminated.str_of("reason"), terminated.int_of("signal").unwrap_or_default());
    if !reason.is_empty() {
        reason.to_owned()
    } else if signal != 0 {
        format!("Signal:{signal}")
    } else {
        format!("ExitCode:{}", terminated.int_of("exitCode").unwrap_or_default())
    }
}

fn containers(status: &Value, summary: &mut Summary) {
    let (mut running, mut failure) = (false, String::new());
    for container in status.list("containerStatuses").iter().rev() {
        summary.count_restarts(container);
        let (terminated, waiting) =
            (container.at(&["state", "terminated"]), container.at(&["state", "waiting"]));
        if !waiting.str_of("reason").is_empty() {
            waiting.str_of("reason").clone_into(&mut summary.reason);
        } else if !terminated.is_null() {
            summary.reason = end_of(terminated);
            if terminated.int_of("exitCode").unwrap_or_default() != 0 {
                failure.clone_from(&summary.reason);
            }
        } else if container.flag("ready") && !container.at(&["state", "running"]).is_null() {
            running = true;
            summary.ready += 1;
        }
    }
    if summary.reason == "Completed" {
        if running && is_true(status, "Ready") {
            "Running".clone_into(&mut summary.reason);
        } else if !failure.is_empty() {
            summary.reason = failure;
        } else if running {
            "NotReady".clone_into(&mut summary.reason);
        }
    }
}
