//! A Task with everything that belongs to it, put together in a few words, and operations in a few words.

use std::sync::Arc;
use std::time::Duration;

use agentcube_api::agentcube::task::ReusePolicy;
use jiff::Timestamp;
use tokio::time::Instant;

use crate::identity::{InstanceId, Kind, SessionKey, SpecId, TaskId};
use crate::lifecycle::operation::{Condition, Confirm, Given, LeaseRef, Operation};
use crate::lifecycle::plan::{Plan, plan};
use crate::lifecycle::routers::{Routers, SeenRouter};
use crate::lifecycle::view::{Limits, Now, Rules, SeenInstance, SeenJob, SeenLease, View, Wanted};
use crate::record::{Hold, Instance, Life, Reservation, Session, lease_name};
use crate::revision::Form;
use crate::timing::Timing;

pub(super) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A Task `agent`, whose current revision is `agent-2`, and what belongs to it. Every object was created 1,000 s ago,
/// and has not changed for 500 s, unless a test says otherwise.
#[derive(Clone)]
pub(super) struct Bed {
    pub(super) view: View,
    pub(super) routers: Routers,
    pub(super) rules: Rules,
    pub(super) now: Now,
}

pub(super) const IDLE: u64 = 300;

impl Bed {
    pub(super) fn new(min: u32, max: u32) -> Bed {
        let id = TaskId { namespace: "prod".into(), name: "agent".into(), uid: "t1".into() };
        let task = Wanted {
            id,
            kind: Kind::Pod,
            deleted: false,
            current: Some(SpecId("agent-2".into())),
            min,
            max,
            fixed: false,
            reuse: ReusePolicy::Never,
            idle: Some(secs(IDLE)),
            once: false,
            pauses: false,
            ttl: None,
        };
        let view = View { task: Some(task), form: Some(Form::Slots), ..View::default() };
        let rules = Rules { timing: Timing::default(), limits: Limits::default() };
        let now =
            Now { wall: "2026-01-01T12:00:00Z".parse().unwrap(), instant: Instant::now() + secs(100_000) };
        Bed { view, routers: Routers::default(), rules, now }
    }

    pub(super) fn task(mut self, change: impl FnOnce(&mut Wanted)) -> Bed {
        change(self.view.task.as_mut().unwrap());
        self
    }

    pub(super) fn without_task(mut self) -> Bed {
        self.view.task = None;
        self
    }

    pub(super) fn wall(&self, ago: u64) -> Timestamp {
        self.now.wall - secs(ago)
    }

    pub(super) fn ago(&self, seconds: u64) -> Instant {
        self.now.instant - secs(seconds)
    }

    /// A ready and free instance in a slot.
    pub(super) fn pod(self, slot: u32) -> Bed {
        self.pod_with(slot, |_| ())
    }

    pub(super) fn pod_with(mut self, slot: u32, change: impl FnOnce(&mut SeenInstance)) -> Bed {
        let mut pod = self.instance(&format!("agent-{slot}"), Some(slot));
        change(&mut pod);
        self.view.instances.insert(pod.record.id.name.clone(), pod);
        self
    }

    pub(super) fn instance(&self, name: &str, slot: Option<u32>) -> SeenInstance {
        let record = Instance {
            namespace: "prod".into(),
            id: InstanceId::pod(name, format!("uid-{name}")),
            version: 50,
            task_uid: "t1".into(),
            spec_id: SpecId("agent-2".into()),
            slot,
            address: None,
            port: None,
            life: Life::Ready,
            hold: Hold::Free,
            paused: false,
            woken: None,
            releasing: false,
            created_for: None,
            created: self.wall(1000),
            last_active: None,
        };
        let (since, owner) = (self.ago(500), Some("agent".into()));
        SeenInstance { record, since, life_since: since, doomed: None, mark: None, owner }
    }

    /// A session `user-<slot>` that is bound to the instance in a slot, and active now.
    pub(super) fn session(self, slot: u32) -> Bed {
        self.session_with(slot, |_| ())
    }

    pub(super) fn session_with(mut self, slot: u32, change: impl FnOnce(&mut SeenLease)) -> Bed {
        let key = SessionKey::new(&format!("user-{slot}")).unwrap();
        let name: Arc<str> = format!("agent-{slot}").as_str().into();
        let uid: Arc<str> = format!("lease-{slot}").as_str().into();
        let holder = InstanceId::pod(name.clone(), format!("uid-{name}"));
        if let Some(pod) = self.view.instances.get_mut(&name) {
            let reservation = Reservation { lease: uid.clone(), binding: 0 };
            pod.record.hold = Hold::Held { key: key.clone(), reservation };
        }
        let session = Session {
            namespace: "prod".into(),
            task_uid: "t1".into(),
            key: key.clone(),
            uid: uid.clone(),
            version: 60,
            holder: Some(holder.clone()),
            binding: 0,
            binder: "router-a/1".into(),
            created: self.wall(1000),
            renewed: self.now.wall,
            releasing: false,
            rests: None,
            ending: false,
            interrupted: false,
        };
        let reference =
            LeaseRef { namespace: "prod".into(), name: lease_name("t1", &key).into(), uid, version: 60 };
        let mut lease = SeenLease {
            reference,
            session: Some(session),
            holder: Some(holder),
            ending: false,
            interrupted: false,
            finalizer: true,
            mark: None,
            owner: Some("agent".into()),
            since: self.ago(500),
        };
        change(&mut lease);
        self.view.sessions.insert(lease.reference.name.clone(), lease);
        self
    }

    /// A router that was heard of so long ago, and had seen these revisions of Leases and Pods.
    pub(super) fn router(mut self, name: &str, silent_for: u64, seen_leases: u64, seen_pods: u64) -> Bed {
        let uid = format!("uid-{name}").into();
        let reference = LeaseRef { namespace: "system".into(), name: name.into(), uid, version: 1 };
        let since = self.ago(silent_for);
        self.routers.0.insert(
            name.into(),
            SeenRouter { reference, seen_leases, seen_pods, seen_sandboxes: seen_pods, since },
        );
        self
    }

    pub(super) fn job(mut self, name: &str, parallelism: i32, since: u64) -> Bed {
        let job = SeenJob {
            name: name.into(),
            version: 70,
            spec_id: SpecId(name.into()),
            parallelism,
            deleted: false,
            since: self.ago(since),
        };
        self.view.form = Some(Form::Job);
        self.view.jobs.insert(name.into(), job);
        self
    }

    pub(super) fn plan(&self) -> Plan {
        plan(&self.view, &self.routers, &self.rules, self.now)
    }

    /// What is planned, in a few words.
    pub(super) fn planned(&self) -> Vec<String> {
        self.plan().operations.iter().map(brief).collect()
    }

    /// In how many seconds it is looked at again.
    pub(super) fn again(&self) -> Option<u64> {
        self.plan().again.map(|again| again.as_secs())
    }
}

/// A change of a session that makes it idle for so long.
pub(super) fn idle_for(lease: &mut SeenLease, bed_now: Timestamp, seconds: u64) {
    lease.session.as_mut().unwrap().renewed = bed_now - secs(seconds);
}

pub(super) fn marked(lease: &mut SeenLease) {
    lease.mark = Some("SessionIdle".into());
    lease.session.as_mut().unwrap().releasing = true;
}

pub(super) fn ending(lease: &mut SeenLease) {
    lease.ending = true;
    lease.session.as_mut().unwrap().ending = true;
}

pub(super) fn brief(operation: &Operation) -> String {
    let of = |lease: &LeaseRef| lease.uid.to_string();
    let confirmed = |confirm: &Confirm| match confirm {
        Confirm::Nothing => "",
        Confirm::NotBound(_) => " unless bound",
        Confirm::NotHeldBy(_) => " unless held",
        Confirm::TaskGone(_) => " unless there is a Task",
    };
    match operation {
        Operation::MarkSession { lease, reason } => format!("mark {}: {reason}", of(lease)),
        Operation::UnmarkSession { lease } => format!("unmark {}", of(lease)),
        Operation::RestSession { lease } => format!("rest {}", of(lease)),
        Operation::PauseInstance { pod } => format!("pause {}", pod.id.name),
        Operation::EndSession { lease, reason, confirm, .. } => {
            format!("end {}: {reason}{}", of(lease), confirmed(confirm))
        }
        Operation::FinishSession { lease, reason, given, .. } => {
            let given = match given {
                Given::Back => "",
                Given::Gone => " (gone)",
                Given::Lost => " (lost)",
            };
            format!("finish {}: {reason}{given}", of(lease))
        }
        Operation::FreeInstance { pod, reservation } => format!("free {} of {reservation}", pod.id.name),
        Operation::MarkInstance { pod, reason, confirm } => {
            format!("mark {}: {reason}{}", pod.id.name, confirmed(confirm))
        }
        Operation::UnmarkInstance { pod } => format!("unmark {}", pod.id.name),
        Operation::DeleteInstance { pod, reason, condition, confirm } => {
            let condition = if *condition == Condition::Version { " if unchanged" } else { "" };
            format!("delete {}: {reason}{condition}{}", pod.id.name, confirmed(confirm))
        }
        Operation::StartInstance { spec, slot } => format!("start {spec} in {slot}"),
        Operation::SetParallelism { job, from, to, reason, .. } => {
            format!("scale {job} from {from} to {to}: {reason}")
        }
    }
}
