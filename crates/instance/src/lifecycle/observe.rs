//! Turns changes of objects into views of Tasks, each object read once per change, and says which Tasks a change
//! concerns. An object is always read from its cache, which never goes backwards, so neither does a view.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::labels;
use agentcube_operator::cache::{Cache, Object};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use kube::core::ObjectMeta;
use tokio::time::Instant;

use super::caches::Caches;
use super::plan::{Plan, plan};
use super::routers::{Routers, SeenRouter};
use super::view::{Now, Rules, SeenInstance, SeenJob, SeenLease, View, Wanted, place};
use crate::bearer::Bearer;
use crate::identity::{InstanceId, Kind};
use crate::revision::{Form, Revision};

/// A Task, existing or not, told by its UID within its namespace: a label alone is not believed across namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TaskKey {
    pub(super) namespace: Arc<str>,
    pub(super) uid: Arc<str>,
}

/// Namespace and name.
type Place = (Arc<str>, Arc<str>);

/// All that is known.
#[derive(Debug)]
pub(super) struct Index {
    caches: Caches,
    rules: Rules,
    /// Where the routers' Leases are. Elsewhere anybody could claim to be a router, and hold everything up.
    routers_in: String,
    views: HashMap<TaskKey, View>,
    tasks: HashMap<Place, TaskKey>,
    pods: HashMap<Place, TaskKey>,
    sandboxes: HashMap<Place, TaskKey>,
    /// All Sandboxes were taken in once.
    knows_sandboxes: bool,
    leases: HashMap<Place, TaskKey>,
    jobs: HashMap<Place, TaskKey>,
    routers: Routers,
    /// Those whose next step depends on what routers say.
    waiting: HashSet<TaskKey>,
}

/// Whom a change concerns.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Concerned {
    pub(super) tasks: Vec<TaskKey>,
    pub(super) routers: bool,
}

impl Index {
    pub(super) fn new(caches: Caches, rules: Rules, routers_in: String) -> Index {
        Index {
            caches,
            rules,
            routers_in,
            views: HashMap::new(),
            tasks: HashMap::new(),
            pods: HashMap::new(),
            sandboxes: HashMap::new(),
            knows_sandboxes: false,
            leases: HashMap::new(),
            jobs: HashMap::new(),
            routers: Routers::default(),
            waiting: HashSet::new(),
        }
    }

    pub(super) fn task(&mut self, namespace: &str, name: &str) -> Concerned {
        let task = self.caches.tasks.get(namespace, name);
        let wanted = task.as_deref().and_then(Wanted::read);
        let key = wanted
            .as_ref()
            .map(|wanted| TaskKey { namespace: wanted.id.namespace.clone(), uid: wanted.id.uid.clone() });
        let mut tasks = Vec::new();
        let before = replace(&mut self.tasks, namespace, name, key.clone());
        if let Some(before) = before.filter(|before| Some(before) != key.as_ref()) {
            self.views.entry(before.clone()).or_default().task = None;
            tasks.push(before);
        }
        if wanted.as_ref().is_some_and(|wanted| wanted.kind == Kind::Sandbox) {
            self.caches.sandboxes.want();
        }
        if let Some(key) = key {
            let form = wanted.as_ref().and_then(|wanted| self.form(wanted));
            let view = self.views.entry(key.clone()).or_default();
            // A status that only counts instances concerns nobody.
            if view.task != wanted || view.form != form {
                (view.task, view.form) = (wanted, form);
                tasks.push(key);
            }
        }
        Concerned { tasks, routers: false }
    }

    /// A PodTemplate has changed.
    pub(super) fn template(&mut self, meta: &ObjectMeta) -> Concerned {
        let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let (Some(owner), Some(namespace)) = (owner, meta.namespace.as_deref()) else {
            return Concerned::default();
        };
        self.task(namespace, &owner.name)
    }

    fn form(&self, wanted: &Wanted) -> Option<Form> {
        let current = wanted.current.as_ref()?;
        let template = self.caches.templates.get(&wanted.id.namespace, &current.0)?;
        Revision::read(&template).filter(|revision| revision.task.uid == wanted.id.uid).map(|read| read.form)
    }

    pub(super) fn pod(&mut self, namespace: &str, name: &str) -> Concerned {
        let rest = self.rules.limits.rest;
        let (views, pods) = (&mut self.views, &mut self.pods);
        refresh::<SeenInstance, _>(views, pods, &self.caches.pods, (namespace, name), rest)
    }

    pub(super) fn sandbox(&mut self, namespace: &str, name: &str) -> Concerned {
        let rest = self.rules.limits.rest;
        let (views, sandboxes) = (&mut self.views, &mut self.sandboxes);
        refresh::<SeenInstance, _>(views, sandboxes, &self.caches.sandboxes, (namespace, name), rest)
    }

    /// Whether Sandboxes have to be known before anything is planned for this Task, and are not.
    pub(super) fn lacks_sandboxes(&self, key: &TaskKey) -> bool {
        !self.knows_sandboxes && self.views.get(key).is_some_and(View::has_sandboxes)
    }

    /// Takes in all Sandboxes, now that they are listed.
    pub(super) fn know_sandboxes(&mut self) {
        if std::mem::replace(&mut self.knows_sandboxes, true) {
            return;
        }
        for sandbox in self.caches.sandboxes.list(None) {
            let meta = &sandbox.metadata;
            let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
            self.sandbox(namespace.unwrap_or_default(), name.unwrap_or_default());
        }
    }

    pub(super) fn job(&mut self, namespace: &str, name: &str) -> Concerned {
        let rest = self.rules.limits.rest;
        refresh::<SeenJob, _>(&mut self.views, &mut self.jobs, &self.caches.jobs, (namespace, name), rest)
    }

    pub(super) fn lease(&mut self, namespace: &str, name: &str) -> Concerned {
        let rest = self.rules.limits.rest;
        let of_session = refresh::<SeenLease, _>(
            &mut self.views,
            &mut self.leases,
            &self.caches.leases,
            (namespace, name),
            rest,
        );
        // A session of a Task that is gone, perhaps.
        let lease = self.caches.leases.get(namespace, name);
        let holder = lease.as_ref().and_then(|lease| lease.spec.as_ref()?.holder_identity.as_deref());
        if holder.and_then(InstanceId::parse).is_some_and(|holder| holder.kind == Kind::Sandbox) {
            self.caches.sandboxes.want();
        }
        if namespace != self.routers_in || !self.router(namespace, name) {
            return of_session;
        }
        let tasks = of_session.tasks.into_iter().chain(self.waiting.iter().cloned()).collect();
        Concerned { tasks, routers: true }
    }

    /// Whether the Lease is or was that of a router, and has changed.
    fn router(&mut self, namespace: &str, name: &str) -> bool {
        let lease = self.caches.leases.get(namespace, name);
        let before = self.routers.0.get(name);
        let seen = lease.and_then(|lease| SeenRouter::read(&lease, before, Instant::now()));
        let changed = before != seen.as_ref();
        match seen {
            Some(seen) => self.routers.0.insert(name.into(), seen),
            None => self.routers.0.remove(name),
        };
        changed
    }

    /// What is to be done for a Task now.
    pub(super) fn plan(&mut self, key: &TaskKey) -> Plan {
        self.catch_up(key);
        let now = Now { wall: Timestamp::now(), instant: Instant::now() };
        let Some(view) = self.views.get(key) else { return Plan::default() };
        if view.is_empty() {
            self.views.remove(key);
            self.waiting.remove(key);
            return Plan::default();
        }
        let plan = plan(view, &self.routers, &self.rules, now);
        match plan.waits_for_routers {
            true => self.waiting.insert(key.clone()),
            false => self.waiting.remove(key),
        };
        plan
    }

    /// Reads again the Leases about which routers have a say. A router changes such a Lease before it says that it
    /// has seen it, and what it says may have been taken in from the cache ahead of the change.
    fn catch_up(&mut self, key: &TaskKey) {
        let Some(view) = self.views.get(key) else { return };
        let asked = view.sessions.values().filter(|lease| lease.ending || lease.mark.is_some());
        let asked: Vec<_> = asked.map(|lease| lease.reference.clone()).collect();
        for lease in asked {
            self.lease(&lease.namespace, &lease.name);
        }
    }

    pub(super) fn view_mut(&mut self, key: &TaskKey) -> Option<&mut View> {
        self.views.get_mut(key)
    }

    pub(super) fn routers(&self) -> &Routers {
        &self.routers
    }

    pub(super) fn waits_for_routers(&mut self, key: &TaskKey) {
        self.waiting.insert(key.clone());
    }

    pub(super) fn keys(&self) -> Vec<TaskKey> {
        self.views.keys().cloned().collect()
    }

    /// Forgets what only the next try can show to be over.
    pub(super) fn begin_full_pass(&mut self) {
        self.views.values_mut().for_each(|view| view.blocked.clear());
    }
}

/// Something that belongs to a Task, read from an object of this kind.
trait Part<O: Object>: Sized {
    fn read(object: &O, before: Option<&Self>, now: Instant) -> Option<Self>;
    fn of_mut(view: &mut View) -> &mut BTreeMap<Arc<str>, Self>;
    /// Where that of this name is filed.
    fn place(name: &str) -> Arc<str> {
        name.into()
    }
    fn matters(&self, before: &Self) -> bool;
    /// Its UID, and whether it is marked.
    fn mark(&self) -> Option<(&Arc<str>, bool)>;
    /// What a mark asked for has been done, so its absence is no objection.
    fn is_answered(&self) -> bool {
        false
    }
}

impl<B: Bearer> Part<B> for SeenInstance {
    fn read(object: &B, before: Option<&Self>, now: Instant) -> Option<Self> {
        SeenInstance::read(object, before, now)
    }

    fn place(name: &str) -> Arc<str> {
        place(B::KIND, name)
    }

    fn of_mut(view: &mut View) -> &mut BTreeMap<Arc<str>, Self> {
        &mut view.instances
    }

    fn matters(&self, before: &Self) -> bool {
        self.matters(before)
    }

    fn mark(&self) -> Option<(&Arc<str>, bool)> {
        Some((&self.record.id.uid, self.mark.is_some()))
    }
}

impl Part<Lease> for SeenLease {
    fn read(lease: &Lease, before: Option<&Self>, now: Instant) -> Option<Self> {
        SeenLease::read(lease, before, now)
    }

    fn of_mut(view: &mut View) -> &mut BTreeMap<Arc<str>, Self> {
        &mut view.sessions
    }

    fn matters(&self, before: &Self) -> bool {
        self.matters(before)
    }

    fn mark(&self) -> Option<(&Arc<str>, bool)> {
        Some((&self.reference.uid, self.mark.is_some()))
    }

    fn is_answered(&self) -> bool {
        self.rests().is_some()
    }
}

impl Part<Job> for SeenJob {
    fn read(job: &Job, before: Option<&Self>, now: Instant) -> Option<Self> {
        SeenJob::read(job, before, now)
    }

    fn of_mut(view: &mut View) -> &mut BTreeMap<Arc<str>, Self> {
        &mut view.jobs
    }

    fn matters(&self, before: &Self) -> bool {
        self.parallelism != before.parallelism || self.deleted != before.deleted
    }

    fn mark(&self) -> Option<(&Arc<str>, bool)> {
        None
    }
}

/// Brings one part up to date with its cache.
fn refresh<P: Part<O>, O: Object>(
    views: &mut HashMap<TaskKey, View>,
    filed: &mut HashMap<Place, TaskKey>,
    cache: &Cache<O>,
    (namespace, name): (&str, &str),
    rest: Duration,
) -> Concerned {
    let now = Instant::now();
    let object = cache.get(namespace, name);
    let key_before = filed.get(&(namespace.into(), name.into())).cloned();
    let before = key_before
        .as_ref()
        .and_then(|key| P::of_mut(views.get_mut(key)?).remove_entry(&P::place(name)))
        .map(|(_, part)| part);
    let part = object.as_ref().and_then(|object| P::read(object, before.as_ref(), now));
    let key = part
        .as_ref()
        .zip(object)
        .map(|(_, object)| TaskKey { namespace: namespace.into(), uid: task_uid(object.meta()) });
    replace(filed, namespace, name, key.clone());
    let matters = match (&before, &part) {
        (Some(before), Some(part)) => key_before != key || part.matters(before),
        (None, None) => false,
        _ => true,
    };
    let rests = |before: &P, part: Option<&P>| {
        let (uid, marked) = before.mark()?;
        let still = part.and_then(|part| part.mark()).filter(|(same, _)| *same == uid);
        let answered = part.is_some_and(|part| part.is_answered());
        Some((uid.clone(), still.map(|(_, still)| marked && !still && !answered)))
    };
    let rest_of = before.as_ref().and_then(|before| rests(before, part.as_ref()));
    if let Some(view) = key_before.as_ref().and_then(|key| views.get_mut(key)) {
        match rest_of {
            // The mark was taken back, by us or by a router.
            Some((uid, Some(true))) => drop(view.rests.insert(uid, now + rest)),
            Some((uid, None)) => drop(view.rests.remove(&uid)),
            _ => {}
        }
    }
    if let (Some(key), Some(part)) = (&key, part) {
        P::of_mut(views.entry(key.clone()).or_default()).insert(P::place(name), part);
    }
    if !matters {
        return Concerned::default();
    }
    let tasks: HashSet<TaskKey> = key_before.into_iter().chain(key).collect();
    Concerned { tasks: tasks.into_iter().collect(), routers: false }
}

/// Files a place under a key, or removes it; gives the key that it had.
fn replace(
    filed: &mut HashMap<Place, TaskKey>,
    namespace: &str,
    name: &str,
    key: Option<TaskKey>,
) -> Option<TaskKey> {
    let place = (namespace.into(), name.into());
    match key {
        Some(key) => filed.insert(place, key),
        None => filed.remove(&place),
    }
}

/// The UID of the Task that something belongs to; empty if it does not say.
fn task_uid(meta: &ObjectMeta) -> Arc<str> {
    let label = meta.labels.as_ref().and_then(|labels| labels.get(labels::TASK_UID));
    label.map_or("", String::as_str).into()
}
