//! What planning looks at: a Task with everything that belongs to it, read once per change. No client and no clock;
//! where time counts, the moment at which something was first seen is part of what is known of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::Task;
use agentcube_api::agentcube::routing::RoutePolicy;
use agentcube_api::agentcube::task::{IdleAction, ReusePolicy, ScalingMode};
use agentcube_api::labels;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::ObjectMeta;
use tokio::time::Instant;

use super::operation::{LeaseRef, PodRef, Reason};
use crate::bearer::Bearer;
use crate::identity::{InstanceId, Kind, SpecId, TaskId};
use crate::record::{Hold, Instance, Life, Session};
use crate::revision::{Form, label_value};
use crate::timing::Timing;

/// The moment of planning: by the wall, for times that others wrote down, and on our own clock, for how long we have
/// seen something unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Now {
    pub(super) wall: Timestamp,
    pub(super) instant: Instant,
}

/// Limits of the lifecycle manager. The defaults are what the documentation names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long an instance beyond the minimum may be idle if the Task has no `idleTimeout`. Also how long a session
    /// is kept whose instance was lost.
    pub idle: Duration,
    /// For how long the question whether something may go is not asked again after a router objected, or did not
    /// answer.
    pub rest: Duration,
    /// How long a Pod may outlive the end of its deletion's grace period before its node is taken for lost.
    pub stuck: Duration,
    /// How long a dead instance is kept, so that its log can be read, and how long its replacement waits: doubles
    /// with every death, up to the longest, and begins anew after twice the longest without one.
    pub dead: Duration,
    pub dead_longest: Duration,
    /// The most operations for one Task before others have their turn.
    pub operations: usize,
    /// How often everything is looked at, whether or not anything happened.
    pub full_pass: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            idle: Duration::from_secs(300),
            rest: Duration::from_secs(60),
            stuck: Duration::from_secs(300),
            dead: Duration::from_secs(2),
            dead_longest: Duration::from_secs(300),
            operations: 64,
            full_pass: Duration::from_secs(600),
        }
    }
}

/// Everything by which plans are made that does not change while the manager runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) timing: Timing,
    pub(super) limits: Limits,
}

/// What a Task wants.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    pub(super) id: TaskId,
    /// What its instances are.
    pub(super) kind: Kind,
    /// It is being deleted.
    pub(super) deleted: bool,
    /// The current revision; none before the first was made.
    pub(super) current: Option<SpecId>,
    pub(super) min: u32,
    pub(super) max: u32,
    /// The number of instances stays at the minimum.
    pub(super) fixed: bool,
    pub(super) reuse: ReusePolicy,
    pub(super) idle: Option<Duration>,
    /// Each instance serves one request, and is no instance of a Job.
    pub(super) once: bool,
    /// An idle session is paused, and does not end.
    pub(super) pauses: bool,
    pub(super) ttl: Option<Duration>,
}

impl Wanted {
    pub(super) fn read(task: &Task) -> Option<Wanted> {
        let meta = &task.metadata;
        let scaling = &task.spec.scaling;
        let (min, max) = scaling.bounds();
        let lifecycle = scaling.instance_lifecycle.clone().unwrap_or_default();
        Some(Wanted {
            id: TaskId {
                namespace: meta.namespace.as_deref()?.into(),
                name: meta.name.as_deref()?.into(),
                uid: meta.uid.as_deref()?.into(),
            },
            kind: if task.spec.deployment.pool_ref().is_some() { Kind::Sandbox } else { Kind::Pod },
            deleted: meta.deletion_timestamp.is_some(),
            current: task.status.as_ref().and_then(|status| Some(SpecId(status.spec_id.as_deref()?.into()))),
            min: u32::try_from(min).unwrap_or(0),
            max: u32::try_from(max).unwrap_or(0),
            fixed: scaling.scaling_mode == ScalingMode::None,
            reuse: lifecycle.reuse_policy,
            idle: lifecycle.idle_timeout.map(|idle| idle.to_std()),
            once: task.spec.deployment.pool_ref().is_some()
                && task.spec.routing.route_policy == RoutePolicy::Oneshot
                && lifecycle.reuse_policy == ReusePolicy::Never,
            pauses: lifecycle.idle_action == IdleAction::Pause,
            // No instance could live for no time at all: it would be replaced for ever.
            ttl: lifecycle.ttl.map(|ttl| ttl.to_std()).filter(|ttl| !ttl.is_zero()),
        })
    }

    /// Whether this is the current revision, by the label of what belongs to it.
    pub(super) fn is_current(&self, label: &SpecId) -> bool {
        self.current.as_ref().is_some_and(|current| label_value(&current.0) == *label.0)
    }
}

/// An instance, and since when it is as it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SeenInstance {
    pub(super) record: Instance,
    /// Since when this version of it is known.
    pub(super) since: Instant,
    /// Since when its life is known to be what it is.
    pub(super) life_since: Instant,
    /// When its deletion's grace period ends.
    pub(super) doomed: Option<Timestamp>,
    /// Why it is to go, if the routers were asked.
    pub(super) mark: Option<Arc<str>>,
    /// Name of its Task.
    pub(super) owner: Option<Arc<str>>,
}

impl SeenInstance {
    /// What the object says; nothing if it is no instance that we made. `before` is what was known of the same name.
    pub(super) fn read<B: Bearer>(
        object: &B,
        before: Option<&SeenInstance>,
        now: Instant,
    ) -> Option<SeenInstance> {
        let (record, meta) = (Instance::read(object)?, object.meta());
        let owner = controller(meta)?;
        let ours = (owner.kind == "Task" && *owner.uid == *record.task_uid) || owner.kind == "Job";
        if !ours {
            return None;
        }
        let before = before.filter(|before| before.record.id == record.id);
        Some(SeenInstance {
            since: before.filter(|before| before.record.version == record.version).map_or(now, |b| b.since),
            life_since: before
                .filter(|before| before.record.life == record.life)
                .map_or(now, |b| b.life_since),
            doomed: meta.deletion_timestamp.as_ref().map(|time| time.0),
            mark: annotation(meta, labels::RELEASING).map(Into::into),
            owner: task_name(meta),
            record,
        })
    }

    /// Whether its processes may serve, now or soon.
    pub(super) fn is_alive(&self) -> bool {
        matches!(self.record.life, Life::Starting | Life::Ready | Life::Unready | Life::Paused)
    }

    /// Since when nobody uses it, as far as was written down.
    pub(super) fn idle_since(&self) -> Timestamp {
        self.record.last_active.map_or(self.record.created, |active| active.max(self.record.created))
    }

    pub(super) fn reference(&self) -> PodRef {
        let Instance { namespace, id, version, .. } = &self.record;
        PodRef { namespace: namespace.clone(), id: id.clone(), version: *version }
    }

    /// Whether a change from `before` can change a plan: activity and status as such cannot.
    pub(super) fn matters(&self, before: &SeenInstance) -> bool {
        let (new, old) = (&self.record, &before.record);
        new.id != old.id
            || new.life != old.life
            || new.hold != old.hold
            || new.spec_id != old.spec_id
            || new.slot != old.slot
            || new.created_for != old.created_for
            || (new.paused, new.woken) != (old.paused, old.woken)
            || self.mark != before.mark
            || self.doomed != before.doomed
            || self.mark.is_some() && new.version != old.version
    }
}

/// A session's Lease, and since when it is as it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SeenLease {
    pub(super) reference: LeaseRef,
    /// What it says of its session; nothing if somebody has spoilt it.
    pub(super) session: Option<Session>,
    /// What it says of an instance, readable or not.
    pub(super) holder: Option<InstanceId>,
    pub(super) ending: bool,
    pub(super) interrupted: bool,
    /// Its name is kept until its instance was given back.
    pub(super) finalizer: bool,
    pub(super) mark: Option<Arc<str>>,
    /// Name of its Task.
    pub(super) owner: Option<Arc<str>>,
    /// Since when this version of it is known.
    pub(super) since: Instant,
}

impl SeenLease {
    /// What the Lease says; nothing if it is not that of a session.
    pub(super) fn read(lease: &Lease, before: Option<&SeenLease>, now: Instant) -> Option<SeenLease> {
        let meta = &lease.metadata;
        if meta.labels.as_ref()?.get(labels::LEASE)? != labels::LEASE_OF_SESSION {
            return None;
        }
        let reference = LeaseRef {
            namespace: meta.namespace.as_deref()?.into(),
            name: meta.name.as_deref()?.into(),
            uid: meta.uid.as_deref()?.into(),
            version: meta.resource_version.as_ref()?.parse().ok()?,
        };
        let holder = lease.spec.as_ref().and_then(|spec| InstanceId::parse(spec.holder_identity.as_deref()?));
        Some(SeenLease {
            since: before.filter(|before| before.reference == reference).map_or(now, |before| before.since),
            session: Session::read(lease),
            holder,
            ending: meta.deletion_timestamp.is_some(),
            interrupted: annotation(meta, labels::INTERRUPTED).is_some(),
            finalizer: meta.finalizers.iter().flatten().any(|name| name == labels::SESSION_FINALIZER),
            mark: annotation(meta, labels::RELEASING).map(Into::into),
            owner: task_name(meta),
            reference,
        })
    }

    /// The number under which its session rests.
    pub(super) fn rests(&self) -> Option<u64> {
        self.session.as_ref().and_then(|session| session.rests)
    }

    /// Whether a change from `before` can change a plan: a renewal puts off what was planned, and no more.
    pub(super) fn matters(&self, before: &SeenLease) -> bool {
        self.reference.uid != before.reference.uid
            || self.holder != before.holder
            || self.session.as_ref().map(|session| session.binding)
                != before.session.as_ref().map(|session| session.binding)
            || self.rests() != before.rests()
            || self.ending != before.ending
            || self.finalizer != before.finalizer
            || self.mark != before.mark
            || (self.ending || self.mark.is_some()) && self.reference.version != before.reference.version
    }
}

/// A Job whose Pods are instances.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SeenJob {
    pub(super) name: Arc<str>,
    pub(super) version: u64,
    pub(super) spec_id: SpecId,
    pub(super) parallelism: i32,
    pub(super) deleted: bool,
    /// Since when its parallelism is known to be what it is.
    pub(super) since: Instant,
}

impl SeenJob {
    pub(super) fn read(job: &Job, before: Option<&SeenJob>, now: Instant) -> Option<SeenJob> {
        let meta = &job.metadata;
        let parallelism = job.spec.as_ref()?.parallelism.unwrap_or(1);
        Some(SeenJob {
            name: meta.name.as_deref()?.into(),
            version: meta.resource_version.as_ref()?.parse().ok()?,
            spec_id: SpecId(meta.labels.as_ref()?.get(labels::SPEC_ID)?.as_str().into()),
            parallelism,
            deleted: meta.deletion_timestamp.is_some(),
            since: before
                .filter(|before| before.parallelism == parallelism)
                .map_or(now, |before| before.since),
        })
    }
}

/// How instances of a Task have been dying lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Deaths {
    pub(super) count: u32,
    pub(super) last: Option<Instant>,
}

impl Deaths {
    /// Takes in that a dead instance was removed.
    pub(super) fn add(&mut self, now: Instant, limits: &Limits) {
        *self = Deaths { count: self.recent(now, limits).saturating_add(1), last: Some(now) };
    }

    fn recent(&self, now: Instant, limits: &Limits) -> u32 {
        match self.last {
            Some(last) if now.duration_since(last) < limits.dead_longest * 2 => self.count,
            _ => 0,
        }
    }

    /// How long the next dead instance is kept.
    pub(super) fn delay(&self, now: Instant, limits: &Limits) -> Duration {
        let factor = 2u32.saturating_pow(self.recent(now, limits));
        limits.dead.saturating_mul(factor).min(limits.dead_longest)
    }
}

/// A Task and everything that belongs to it.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// None if there is no such Task.
    pub(super) task: Option<Wanted>,
    /// How instances of the current revision are made; none while that is not known.
    pub(super) form: Option<Form>,
    /// By [`place`].
    pub(super) instances: BTreeMap<Arc<str>, SeenInstance>,
    pub(super) sessions: BTreeMap<Arc<str>, SeenLease>,
    pub(super) jobs: BTreeMap<Arc<str>, SeenJob>,
    /// Until when routers are not asked again about an instance or a session, by UID.
    pub(super) rests: HashMap<Arc<str>, Instant>,
    /// Why we ended sessions whose Leases are still there, by UID. For telling; a new leader guesses.
    pub(super) ends: HashMap<Arc<str>, Reason>,
    /// Slots whose name is taken by something that is no instance.
    pub(super) blocked: BTreeSet<u32>,
    pub(super) deaths: Deaths,
    /// How many times in a row nothing that was planned could be done.
    pub(super) in_vain: u32,
}

impl View {
    /// Whether there is nothing that would have to be planned.
    pub(super) fn is_empty(&self) -> bool {
        self.task.is_none() && self.instances.is_empty() && self.sessions.is_empty() && self.jobs.is_empty()
    }

    /// The instance of this id.
    pub(super) fn instance(&self, id: &InstanceId) -> Option<&SeenInstance> {
        let found = match id.kind {
            Kind::Pod => self.instances.get(&*id.name),
            Kind::Sandbox => self.instances.get(&place(id.kind, &id.name)),
        };
        found.filter(|instance| instance.record.id == *id)
    }

    /// Whether instances of it may be Sandboxes.
    pub(super) fn has_sandboxes(&self) -> bool {
        let named = |lease: &SeenLease| lease.holder.as_ref().is_some_and(|id| id.kind == Kind::Sandbox);
        self.task.as_ref().is_some_and(|task| task.kind == Kind::Sandbox) || self.sessions.values().any(named)
    }

    /// The name of the Task as its leftovers know it.
    pub(super) fn owner(&self) -> Option<Arc<str>> {
        let by_lease = self.sessions.values().find_map(|lease| lease.owner.clone());
        by_lease.or_else(|| self.instances.values().find_map(|instance| instance.owner.clone()))
    }
}

/// Where an instance is found among those of its Task: a Pod by its name, and a Sandbox apart from a Pod of the same name.
pub(super) fn place(kind: Kind, name: &str) -> Arc<str> {
    match kind {
        Kind::Pod => name.into(),
        Kind::Sandbox => format!("sandbox/{name}").into(),
    }
}

/// Whether the instance is taken for this Lease, by whatever binding.
pub(super) fn is_held_for(instance: &Instance, lease_uid: &str) -> bool {
    matches!(&instance.hold, Hold::Held { reservation, .. } if *reservation.lease == *lease_uid)
}

fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// The Task's name by its owner reference, or by its label, which is shortened for long names.
fn task_name(meta: &ObjectMeta) -> Option<Arc<str>> {
    let owner = controller(meta).filter(|owner| owner.kind == "Task").map(|owner| owner.name.as_str());
    owner.or_else(|| meta.labels.as_ref()?.get(labels::TASK).map(String::as_str)).map(Into::into)
}

fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(name).map(String::as_str)
}
