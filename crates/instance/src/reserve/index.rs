//! What a router remembers of sessions and instances, fed by two watches and by the answers to its own writes. Reading
//! takes one short lock of many and never waits for the server. Never goes backwards: older news is ignored.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::activity::{Subject, Use};
use super::by_uid::ByUid;
use super::clock::Clock;
use super::intern::Names;
use super::reached::Reached;
use super::shards::Shards;
use crate::identity::{InstanceId, Kind, SessionKey, TaskId};
use crate::record::{Instance, LeaseHash, Life, Session};

mod compact;

/// A session of a Task, by what the name and the namespace of its Lease are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionId {
    pub(super) namespace: Arc<str>,
    pub(super) hash: LeaseHash,
}

impl SessionId {
    pub(super) fn of(task: &TaskId, key: &SessionKey) -> SessionId {
        SessionId { namespace: task.namespace.clone(), hash: LeaseHash::of(&task.uid, key) }
    }
}

/// What a session's Lease says, or that it cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kept {
    Session(Session),
    Spoilt { uid: Arc<str>, version: u64 },
}

impl Kept {
    pub(super) fn uid(&self) -> &Arc<str> {
        match self {
            Kept::Session(session) => &session.uid,
            Kept::Spoilt { uid, .. } => uid,
        }
    }

    pub(super) fn version(&self) -> u64 {
        match self {
            Kept::Session(session) => session.version,
            Kept::Spoilt { version, .. } => *version,
        }
    }
}

/// A Lease as it is remembered.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) kept: Kept,
    /// Since when this version has been known.
    pub(super) since: Duration,
    /// When the write that made this version was sent, if it was ours and no later one of ours may be under way.
    pub(super) sent: Option<Duration>,
    /// What this router's requests do with the session, if any came.
    pub(super) usage: Option<Arc<Use>>,
}

/// How a piece of news came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// By the watch, which has delivered everything up to this revision.
    Watch(u64),
    /// As the answer to a read.
    Read,
    /// As the answer to a write that was sent then.
    Write(Duration),
}

/// A mark that a router has to answer before it has seen it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Objection<T> {
    pub(super) about: T,
    pub(super) version: u64,
}

/// What a piece of news about a Lease means to the rest of the router.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LeaseNews {
    /// There is something new.
    pub(super) changed: bool,
    /// The session is about to end, or ends: whoever does that waits for our word.
    pub(super) marked: bool,
    pub(super) objection: Option<Objection<SessionId>>,
}

/// A session's instance, ready to serve, with the use begun.
#[derive(Debug)]
pub(super) struct Hit {
    pub(super) instance: Arc<Instance>,
    pub(super) usage: Arc<Use>,
    /// UID of the session's Lease.
    pub(super) lease: Arc<str>,
}

/// The memory.
pub(super) struct Index {
    sessions: Shards<SessionId, Box<Entry>>,
    /// Keys that a binding is at work for: they are served through it and not from memory.
    binding: Shards<SessionId, ()>,
    instances: Shards<ByUid, ()>,
    /// Held by whoever changes sessions, or instances: news come one at a time.
    leases: Mutex<Reached>,
    pods: Mutex<Reached>,
    sandboxes: Mutex<Reached>,
    names: Names,
    /// There may be requests that this router does not know of.
    pub(super) unsure: AtomicBool,
}

impl Index {
    pub(super) fn new() -> Index {
        Index {
            sessions: Shards::new(),
            binding: Shards::new(),
            instances: Shards::new(),
            leases: Mutex::default(),
            pods: Mutex::default(),
            sandboxes: Mutex::default(),
            names: Names::default(),
            unsure: AtomicBool::new(false),
        }
    }

    /// The instance of a bound session, with a use of it begun under the same lock that a `releasing` mark is taken in
    /// under: the use is seen by whoever looks whether to object, or the mark is seen here. With `only`, it has to be
    /// that one.
    pub(super) fn lookup(
        &self,
        task: &TaskId,
        id: &SessionId,
        only: Option<&InstanceId>,
        interval: Duration,
        clock: &Clock,
    ) -> Option<Hit> {
        if self.is_binding(id) {
            return None;
        }
        let shard = self.sessions.of(id);
        let held = shard.read();
        let fits = |instance: &Instance| only.is_none_or(|only| *only == instance.id);
        let entry = held.get(id)?;
        let (session, instance) = self.servable(entry, task)?;
        if !fits(&instance) {
            return None;
        }
        if let Some(usage) = entry.usage.clone() {
            usage.begin();
            return Some(Hit { instance, usage, lease: session.uid.clone() });
        }
        drop(held);
        let mut held = shard.write();
        let entry = held.get_mut(id)?;
        let (session, instance) = self.servable(entry, task)?;
        if !fits(&instance) {
            return None;
        }
        let lease = session.uid.clone();
        let new = || {
            let id = SessionId { namespace: session.namespace.clone(), ..*id };
            Arc::new(Use::new(Subject::Session(id), interval, clock.moment(session.renewed)))
        };
        let usage = entry.usage.clone().unwrap_or_else(new);
        usage.begin();
        entry.usage = Some(usage.clone());
        Some(Hit { instance, usage, lease })
    }

    fn servable<'a>(&self, entry: &'a Entry, task: &TaskId) -> Option<(&'a Session, Arc<Instance>)> {
        let Kept::Session(session) = &entry.kept else { return None };
        if session.releasing || session.rests.is_some() || session.ending || session.task_uid != task.uid {
            return None;
        }
        let instance = self.instance(&session.holder.as_ref()?.uid)?;
        let serves = instance.is_bound_to(session)
            && instance.life == Life::Ready
            && !instance.releasing
            && instance.address.is_some()
            && instance.task_uid == task.uid
            && instance.namespace == task.namespace;
        serves.then_some((session, instance))
    }

    pub(super) fn session(&self, id: &SessionId) -> Option<Entry> {
        self.sessions.of(id).read().get(id).map(|entry| (**entry).clone())
    }

    /// Shows all sessions, in no order. Requests are held up by a small part of them at a time.
    pub(super) fn each_session(&self, mut see: impl FnMut(&SessionId, &Entry)) {
        for shard in self.sessions.all() {
            for (id, entry) in &*shard.read() {
                see(id, entry);
            }
        }
    }

    pub(super) fn instance(&self, uid: &str) -> Option<Arc<Instance>> {
        self.instances.of(uid).read().get_key_value(uid).map(|(held, ())| held.0.clone())
    }

    pub(super) fn is_binding(&self, id: &SessionId) -> bool {
        self.binding.of(id).read().contains_key(id)
    }

    /// From now on the key is served through its binding.
    pub(super) fn begin_binding(&self, id: &SessionId) {
        self.binding.of(id).write().insert(id.clone(), ());
    }

    pub(super) fn end_binding(&self, id: &SessionId) {
        self.binding.of(id).write().remove(id);
    }

    /// A Lease as the server has it.
    pub(super) fn put_lease(&self, id: SessionId, kept: Kept, source: Source, now: Duration) -> LeaseNews {
        let mut reached = self.leases.lock();
        let news = self.take_lease(&mut reached, id, kept, source, now);
        if let Source::Watch(revision) = source {
            reached.advance(revision);
        }
        news
    }

    fn take_lease(
        &self,
        reached: &mut MutexGuard<'_, Reached>,
        id: SessionId,
        kept: Kept,
        source: Source,
        now: Duration,
    ) -> LeaseNews {
        let (uid, version) = (kept.uid().clone(), kept.version());
        let stale = match source {
            Source::Watch(_) => reached.is_gone(&uid),
            Source::Read | Source::Write(_) => !reached.is_news(&uid, version),
        };
        let mut shard = self.sessions.of(&id).write();
        let held = shard.get(&id);
        if stale || held.is_some_and(|held| held.kept.version() >= version) {
            return LeaseNews::default();
        }
        let mut usage = None;
        if let Some(held) = held {
            if *held.kept.uid() == uid {
                usage = held.usage.clone();
            } else {
                reached.gone(held.kept.uid(), held.kept.version(), true);
            }
        }
        let id = SessionId { namespace: self.names.intern(id.namespace), ..id };
        let kept = self.compact(kept);
        let (releasing, ending, said) = match &kept {
            Kept::Session(session) => (session.releasing, session.ending, session.interrupted),
            Kept::Spoilt { .. } => (false, false, true),
        };
        let unsure = self.unsure.load(Ordering::SeqCst);
        let must_say = match ending {
            true => !said && (unsure || usage.as_ref().is_some_and(|usage| usage.is_in_flight())),
            false => releasing && (unsure || usage.as_ref().is_some_and(|usage| usage.is_active())),
        };
        let objection = must_say.then(|| {
            reached.object(version, &uid);
            Objection { about: id.clone(), version }
        });
        let sent = match source {
            Source::Write(sent) => Some(sent),
            Source::Watch(_) | Source::Read => None,
        };
        shard.insert(id, Box::new(Entry { kept, since: now, sent, usage }));
        LeaseNews { changed: true, marked: releasing || ending, objection }
    }

    /// The answer to a write of ours was lost: it may happen yet, so what is known of the Lease has to be confirmed.
    pub(super) fn doubt(&self, id: &SessionId) {
        if let Some(entry) = self.sessions.of(id).write().get_mut(id) {
            entry.sent = None;
        }
    }

    /// A Lease is gone: the watch says so, or the server in answer to something.
    pub(super) fn remove_lease(&self, id: &SessionId, uid: &Arc<str>, version: u64, source: Source) -> bool {
        let mut reached = self.leases.lock();
        let mut shard = self.sessions.of(id).write();
        let held = shard.get(id).is_some_and(|held| held.kept.uid() == uid);
        if held {
            shard.remove(id);
        }
        match source {
            Source::Watch(revision) => {
                reached.deleted(uid);
                reached.advance(revision);
            }
            Source::Read | Source::Write(_) => reached.gone(uid, version, held),
        }
        held
    }

    /// All Leases of sessions as they were at `revision`; what became of each.
    pub(super) fn list_leases(
        &self,
        items: Vec<(SessionId, Kept)>,
        revision: u64,
        now: Duration,
    ) -> Vec<(SessionId, LeaseNews)> {
        let mut reached = self.leases.lock();
        let listed: HashMap<Arc<str>, ()> = items.iter().map(|(_, kept)| (kept.uid().clone(), ())).collect();
        let mut news = Vec::new();
        for shard in self.sessions.all() {
            shard.write().retain(|id, entry| {
                let stays = entry.kept.version() > revision || listed.contains_key(entry.kept.uid());
                if !stays {
                    news.push((id.clone(), LeaseNews { changed: true, ..LeaseNews::default() }));
                }
                stays
            });
        }
        for (id, kept) in items {
            let source = Source::Watch(revision);
            let of_one = self.take_lease(&mut reached, id.clone(), kept, source, now);
            news.push((id, of_one));
        }
        reached.listed(revision, |uid| listed.contains_key(uid));
        news
    }

    /// An instance as the server has it; what is remembered now if that is new. `objects` says whether a `releasing`
    /// mark on it must be objected to, under the lock that uses begin under.
    pub(super) fn put_instance(
        &self,
        instance: Instance,
        source: Source,
        objects: impl FnOnce(Option<&Instance>, &Arc<Instance>) -> bool,
    ) -> Option<Arc<Instance>> {
        let mut reached = self.reached(instance.id.kind);
        let taken = self.take_instance(&mut reached, instance, source, objects);
        if let Source::Watch(revision) = source {
            reached.advance(revision);
        }
        taken
    }

    fn take_instance(
        &self,
        reached: &mut MutexGuard<'_, Reached>,
        instance: Instance,
        source: Source,
        objects: impl FnOnce(Option<&Instance>, &Arc<Instance>) -> bool,
    ) -> Option<Arc<Instance>> {
        let (uid, version) = (instance.id.uid.clone(), instance.version);
        let stale = match source {
            Source::Watch(_) => reached.is_gone(&uid),
            Source::Read | Source::Write(_) => !reached.is_news(&uid, version),
        };
        if stale || self.instance(&uid).is_some_and(|held| held.version >= version) {
            return None;
        }
        let instance = Arc::new(self.compact_instance(instance));
        let mut shard = self.instances.of(&*uid).write();
        let was = shard.remove_entry(&*uid).map(|(held, ())| held.0);
        shard.insert(ByUid(instance.clone()), ());
        drop(shard);
        if objects(was.as_deref(), &instance) {
            reached.object(version, &uid);
        }
        Some(instance)
    }

    /// An instance is gone.
    pub(super) fn remove_instance(
        &self,
        kind: Kind,
        uid: &Arc<str>,
        version: u64,
        source: Source,
    ) -> Option<Arc<Instance>> {
        let mut reached = self.reached(kind);
        let held = self.instances.of(&**uid).write().remove_entry(&**uid).map(|(held, ())| held.0);
        match source {
            Source::Watch(revision) => {
                reached.deleted(uid);
                reached.advance(revision);
            }
            Source::Read | Source::Write(_) => reached.gone(uid, version, held.is_some()),
        }
        held
    }

    fn reached(&self, kind: Kind) -> MutexGuard<'_, Reached> {
        match kind {
            Kind::Pod => self.pods.lock(),
            Kind::Sandbox => self.sandboxes.lock(),
        }
    }

    /// All instances of a kind as they were at `revision`: which are gone, and which are new.
    pub(super) fn list_instances(
        &self,
        kind: Kind,
        items: Vec<Instance>,
        revision: u64,
        objects: impl Fn(Option<&Instance>, &Arc<Instance>) -> bool,
    ) -> (Vec<Arc<Instance>>, Vec<Arc<Instance>>) {
        let mut reached = self.reached(kind);
        let listed: HashMap<Arc<str>, ()> = items.iter().map(|item| (item.id.uid.clone(), ())).collect();
        let mut gone = Vec::new();
        for shard in self.instances.all() {
            shard.write().retain(|ByUid(held), ()| {
                let other = held.id.kind != kind;
                let stays = other || held.version > revision || listed.contains_key(&held.id.uid);
                if !stays {
                    gone.push(held.clone());
                }
                stays
            });
        }
        let source = Source::Watch(revision);
        let take = |item| self.take_instance(&mut reached, item, source, &objects);
        let new = items.into_iter().filter_map(take).collect();
        reached.listed(revision, |uid| listed.contains_key(uid));
        (gone, new)
    }

    pub(super) fn leases_bookmark(&self, revision: u64) {
        self.leases.lock().advance(revision);
    }

    pub(super) fn instances_bookmark(&self, kind: Kind, revision: u64) {
        self.reached(kind).advance(revision);
    }

    /// The revision of Leases up to which everything was seen and is respected.
    pub(super) fn seen_leases(&self) -> u64 {
        self.leases.lock().seen()
    }

    /// The same of instances of a kind.
    pub(super) fn seen_instances(&self, kind: Kind) -> u64 {
        self.reached(kind).seen()
    }

    /// An objection to a mark of this version was written, or is no longer needed.
    pub(super) fn lease_settled(&self, version: u64) {
        self.leases.lock().settled(version);
    }

    pub(super) fn instance_settled(&self, kind: Kind, version: u64) {
        self.reached(kind).settled(version);
    }

    /// Whether there is an objection to a mark of this version of an instance.
    pub(super) fn objects_to(&self, kind: Kind, version: u64) -> bool {
        self.reached(kind).objects(version)
    }

    /// Whether this router uses a session. Whoever looks it up has begun the use by now, or sees all that was put
    /// before.
    pub(super) fn is_used(&self, id: &SessionId) -> bool {
        let shard = self.sessions.of(id).write();
        shard.get(id).and_then(|entry| entry.usage.as_ref()).is_some_and(|usage| usage.is_active())
    }

    /// When this router's requests were last active in a session.
    pub(super) fn last_active(&self, id: &SessionId, now: Duration) -> Option<Duration> {
        let shard = self.sessions.of(id).read();
        shard.get(id)?.usage.as_ref().map(|usage| usage.last_active(now))
    }

    /// The session that a use is of, if there still is such a one.
    pub(super) fn session_of_use(&self, id: &SessionId, usage: &Use) -> Option<Session> {
        let shard = self.sessions.of(id).read();
        let entry = shard.get(id)?;
        let same = entry.usage.as_ref().is_some_and(|held| std::ptr::eq(&**held, usage));
        match &entry.kept {
            Kept::Session(session) if same => Some(session.clone()),
            _ => None,
        }
    }

    /// The activity of a session up to then has been written.
    pub(super) fn wrote(&self, id: &SessionId, at: Duration) {
        if let Some(usage) = self.sessions.of(id).read().get(id).and_then(|entry| entry.usage.as_ref()) {
            usage.wrote(at);
        }
    }
}

#[cfg(test)]
mod tests;
