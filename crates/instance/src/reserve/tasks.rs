//! What a router knows of Tasks: what each wants of its instances, and which revision is current. Read from caches; the
//! specID is read from the status and never derived.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::Task;
use agentcube_api::agentcube::routing::{RoutePolicy, TokenPolicy};
use agentcube_api::agentcube::task::{ReusePolicy, ScalingMode};
use agentcube_api::duration::GoDuration;
use k8s_openapi::api::core::v1::PodTemplate;
use kube::ResourceExt;
use parking_lot::RwLock;
use tokio::sync::Notify;

use agentcube_operator::cache::Cache;

use super::counts::{Counts, OfTask};
use super::pool::Rules;
use crate::identity::{Kind, SpecId, TaskId};
use crate::revision::{Revision, label_value};
use crate::timing::Timing;

/// How many requests, or keys, may wait for instances of one Task in one router.
const MOST_WAITING: usize = 10_000;

/// What a Task wants.
#[derive(Clone, Debug)]
pub(super) struct TaskView {
    pub(super) id: TaskId,
    /// What its instances are; the same for as long as the Task exists.
    pub(super) kind: Kind,
    pub(super) by_session: bool,
    /// Instances serve one request and end.
    pub(super) once: bool,
    pub(super) on_demand: bool,
    pub(super) max: u32,
    pub(super) capacity: u32,
    pub(super) port: u16,
    pub(super) reserve_timeout: Duration,
    /// Without it sessions do not end for being idle.
    pub(super) idle_timeout: Option<Duration>,
    pub(super) random_tokens: bool,
    /// The current revision; none before the control plane has made one.
    pub(super) spec: Option<SpecId>,
    /// What the control plane says is missing.
    pub(super) trouble: Option<String>,
    /// What is counted of it; none before it is among all Tasks.
    pub(super) counts: Option<Arc<OfTask>>,
}

impl TaskView {
    /// What the Task says; nothing if the server has not made it yet.
    pub(super) fn read(task: &Task) -> Option<TaskView> {
        let spec = &task.spec;
        let id = TaskId {
            namespace: task.namespace()?.into(),
            name: task.name_any().into(),
            uid: task.uid()?.into(),
        };
        let by_session = spec.routing.route_policy == RoutePolicy::BySession;
        let lifecycle = spec.scaling.instance_lifecycle.clone().unwrap_or_default();
        let breaker = spec.request_handling.circuit_breaker.as_ref();
        let parallel = breaker.and_then(|breaker| breaker.max_parallel_requests).unwrap_or(1);
        let (_, max) = spec.scaling.bounds();
        let status = task.status.clone().unwrap_or_default();
        let unready = |name| {
            let of_type = status.conditions.iter().find(|condition| condition.type_ == name);
            of_type.filter(|condition| condition.status != "True").map(|condition| condition.message.clone())
        };
        Some(TaskView {
            id,
            kind: if spec.deployment.pool_ref().is_some() { Kind::Sandbox } else { Kind::Pod },
            by_session,
            once: !by_session && lifecycle.reuse_policy == ReusePolicy::Never,
            on_demand: spec.scaling.scaling_mode == ScalingMode::OnDemand,
            max: u32::try_from(max).unwrap_or(0),
            capacity: if by_session { 1 } else { u32::try_from(parallel).unwrap_or(1).max(1) },
            port: u16::try_from(spec.request_handling.backend.port).unwrap_or(0),
            reserve_timeout: positive(spec.routing.reserve_timeout).unwrap_or_default(),
            idle_timeout: lifecycle.idle_timeout.and_then(positive),
            random_tokens: spec.routing.token_policy == TokenPolicy::Random,
            spec: status.spec_id.as_deref().filter(|id| !id.is_empty()).map(|id| SpecId(id.into())),
            trouble: unready("SpecReady").or_else(|| unready("Ready")),
            counts: None,
        })
    }

    /// What that means for the pool of its instances.
    pub(super) fn rules(&self, timing: &Timing) -> Rules {
        let spec = self.spec.as_ref().map(|spec| label_value(&spec.0)).unwrap_or_default();
        Rules {
            spec: SpecId(spec.into()),
            max: self.max,
            on_demand: self.on_demand,
            capacity: self.capacity,
            once: self.once,
            job: self.by_job(),
            most_waiting: MOST_WAITING,
            patience: timing.prompt(),
        }
    }

    /// Whether a Job starts its instances.
    pub(super) fn by_job(&self) -> bool {
        self.once && self.kind == Kind::Pod
    }

    /// How often activity is written.
    pub(super) fn interval(&self, timing: &Timing) -> Duration {
        timing.activity(self.idle_timeout.unwrap_or(Duration::MAX))
    }
}

fn positive(duration: GoDuration) -> Option<Duration> {
    u64::try_from(duration.as_nanos()).ok().filter(|nanos| *nanos > 0).map(Duration::from_nanos)
}

/// All Tasks, by UID.
pub(super) struct Tasks {
    views: RwLock<HashMap<Arc<str>, Arc<TaskView>>>,
    pub(super) tasks: Cache<Task>,
    pub(super) revisions: Cache<PodTemplate>,
    /// Tells those who wait that a Task has got its first revision, or is gone.
    pub(super) prepared: Notify,
}

impl Tasks {
    pub(super) fn new(tasks: Cache<Task>, revisions: Cache<PodTemplate>) -> Tasks {
        Tasks { views: RwLock::default(), tasks, revisions, prepared: Notify::new() }
    }

    pub(super) fn get(&self, task: &TaskId) -> Option<Arc<TaskView>> {
        let view = self.views.read().get(&task.uid).cloned()?;
        (view.id == *task).then_some(view)
    }

    pub(super) fn by_uid(&self, uid: &str) -> Option<Arc<TaskView>> {
        self.views.read().get(uid).cloned()
    }

    /// Takes a Task in; it goes on with the counts that it has.
    pub(super) fn put(&self, mut view: TaskView, counts: &Counts) {
        let mut views = self.views.write();
        let held = views.get(&view.id.uid).and_then(|held| held.counts.clone());
        view.counts = Some(held.unwrap_or_else(|| counts.of_task(&view.id)));
        views.insert(view.id.uid.clone(), Arc::new(view));
    }

    pub(super) fn remove(&self, uid: &str) {
        let removed = self.views.write().remove(uid);
        if let Some(counts) = removed.and_then(|view| view.counts.clone()) {
            counts.forget();
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<TaskView>> {
        self.views.read().values().cloned().collect()
    }

    /// What instances of a Task's current revision are made from.
    pub(super) fn revision(&self, view: &TaskView) -> Option<Revision> {
        let object = self.revisions.get(&view.id.namespace, &view.spec.as_ref()?.0)?;
        let fits =
            |revision: &Revision| revision.task.uid == view.id.uid && revision.form.kind() == view.kind;
        Revision::read(&object).filter(fits)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn view(change: impl FnOnce(&mut serde_json::Value)) -> TaskView {
        let mut task = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "Task",
            "metadata": { "name": "agent", "namespace": "prod", "uid": "t1" },
            "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} },
                "routing": { "routePolicy": "BySession" }, "scaling": { "scalingMode": "OnDemand" } },
        });
        change(&mut task);
        TaskView::read(&serde_json::from_value(task).unwrap()).unwrap()
    }

    #[test]
    fn what_a_task_wants() {
        let session = view(|task| task["spec"]["scaling"]["maxInstances"] = json!(3));
        assert!(session.by_session && !session.once && session.on_demand);
        assert_eq!((session.max, session.capacity, session.port), (3, 1, 8080));
        assert_eq!((session.reserve_timeout, session.spec), (Duration::from_secs(30), None));

        let oneshot = |reuse: &str| {
            view(|task| {
                task["spec"]["routing"]["routePolicy"] = json!("Oneshot");
                task["spec"]["scaling"]["instanceLifecycle"] =
                    json!({ "reusePolicy": reuse, "idleTimeout": "20s" });
                task["spec"]["requestHandling"] = json!({ "circuitBreaker": { "maxParallelRequests": 4 } });
                task["status"] = json!({ "specID": "agent-2", "conditions": [
                    { "type": "SpecReady", "status": "False", "reason": "X", "message": "no image",
                      "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
            })
        };
        assert!(oneshot("Never").once && !oneshot("Always").once);
        let view = oneshot("Always");
        assert_eq!((view.capacity, view.spec.clone()), (4, Some(SpecId("agent-2".into()))));
        assert_eq!(view.trouble.as_deref(), Some("no image"));
        assert_eq!(view.interval(&Timing::default()), Duration::from_secs(5));
    }
}
