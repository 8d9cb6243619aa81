//! How news reach the memory: from the watches, and from answers to the router's own reads and writes. Whoever
//! waits for a change is woken, and marks that must be objected to are handed on.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use agentcube_api::labels;
use agentcube_operator::watch::Sink;
use k8s_openapi::api::coordination::v1::Lease;
use kube::core::ObjectMeta;

use super::Shared;
use super::index::{Kept, LeaseNews, Objection, SessionId, Source};
use super::objections::About;
use crate::alias::{AliasId, Record};
use crate::bearer::{Bearer, Body};
use crate::record::{Hold, Instance, LeaseHash, RouterLease, Session};

/// What a Lease of ours is.
#[derive(Debug)]
pub(super) enum LeaseItem {
    Session(SessionId, Kept),
    /// Another name of a session; nothing if it is spoilt.
    Alias(AliasId, Option<Record>),
    Router(RouterLease),
    /// None of ours.
    Other,
}

impl LeaseItem {
    fn read(lease: &Lease) -> LeaseItem {
        if let Some(router) = RouterLease::read(lease) {
            return LeaseItem::Router(router);
        }
        let meta = &lease.metadata;
        if let Some(id) = AliasId::read(meta) {
            return LeaseItem::Alias(id, Record::read(lease));
        }
        let (Some(id), Some(uid)) = (session_id(meta), meta.uid.as_deref()) else {
            return LeaseItem::Other;
        };
        let version = meta.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or(0);
        match Session::read(lease) {
            Some(session) => LeaseItem::Session(id, Kept::Session(session)),
            None => LeaseItem::Session(id, Kept::Spoilt { uid: uid.into(), version }),
        }
    }
}

fn session_id(meta: &ObjectMeta) -> Option<SessionId> {
    let hash = LeaseHash::parse(meta.name.as_deref()?)?;
    Some(SessionId { namespace: meta.namespace.as_deref()?.into(), hash })
}

impl Shared {
    /// A Lease that the server showed.
    pub(super) fn learn_lease(&self, lease: Lease, source: Source) {
        self.take_lease(LeaseItem::read(&lease), source);
    }

    fn take_lease(&self, item: LeaseItem, source: Source) {
        let now = self.clock.now();
        match item {
            LeaseItem::Session(id, kept) => {
                let news = self.index.put_lease(id.clone(), kept, source, now);
                self.lease_news(&id, news);
            }
            LeaseItem::Alias(id, record) => {
                let watched = match source {
                    Source::Watch(revision) => Some(revision),
                    Source::Read | Source::Write(_) => None,
                };
                self.aliases.put(id, record, watched);
                self.lease_reached(source);
            }
            LeaseItem::Router(router) => {
                self.routers.put(router, now);
                self.lease_reached(source);
            }
            LeaseItem::Other => self.lease_reached(source),
        }
    }

    fn lease_reached(&self, source: Source) {
        if let Source::Watch(revision) = source {
            self.index.leases_bookmark(revision);
        }
    }

    fn lease_news(&self, id: &SessionId, news: LeaseNews) {
        if news.changed {
            self.bindings.session_changed(id);
        }
        if let Some(objection) = news.objection {
            self.object(About::Session(objection));
        } else if news.marked {
            self.marked.notify_one();
        }
    }

    /// The server says that a Lease which was known is gone.
    pub(super) fn lease_gone(&self, id: &SessionId, kept: &Kept) {
        if self.index.remove_lease(id, kept.uid(), kept.version(), Source::Read) {
            self.bindings.session_changed(id);
        }
    }

    /// The object of an instance that the server showed.
    pub(super) fn learn_instance(&self, body: Body, source: Source) {
        if let Some(instance) = body.instance() {
            self.take_instance(instance, source);
        }
    }

    fn take_instance(&self, instance: Instance, source: Source) {
        let objects = |was: Option<&Instance>, instance: &Arc<Instance>| self.place(was, instance, false);
        if let Some(instance) = self.index.put_instance(instance, source, objects) {
            self.instance_news(&instance);
        }
    }

    /// Takes an instance into the pool of its Task. Whether a mark on it must be objected to: it is in use.
    fn place(&self, was: Option<&Instance>, instance: &Arc<Instance>, settled: bool) -> bool {
        let by_session = self.tasks.by_uid(&instance.task_uid).is_none_or(|view| view.by_session);
        let unsure = self.index.unsure.load(Ordering::SeqCst);
        let used = (self.pools.apply(was, instance, settled) || unsure) && !by_session;
        instance.releasing && (used || self.is_used(instance))
    }

    fn is_used(&self, instance: &Instance) -> bool {
        let Hold::Held { key, .. } = &instance.hold else { return false };
        let hash = LeaseHash::of(&instance.task_uid, key);
        let id = SessionId { namespace: instance.namespace.clone(), hash };
        let used = self.index.is_used(&id);
        let session = self.index.session(&id);
        used && matches!(session.map(|entry| entry.kept), Some(Kept::Session(session))
            if instance.is_bound_to(&session) && !session.ending)
    }

    fn instance_news(&self, instance: &Arc<Instance>) {
        self.bindings.instance_changed(&instance.id.uid);
        if instance.releasing {
            let objection = Objection { about: instance.id.clone(), version: instance.version };
            self.object(About::Instance(objection));
        }
    }

    /// The server says that an instance which was known is gone.
    pub(super) fn instance_gone(&self, instance: &Instance) {
        let source = Source::Read;
        if let Some(held) =
            self.index.remove_instance(instance.id.kind, &instance.id.uid, instance.version, source)
        {
            self.forget(&held);
        }
    }

    fn forget(&self, instance: &Instance) {
        self.pools.remove(instance);
        self.bindings.instance_changed(&instance.id.uid);
    }
}

/// Where the watch of Leases leads. Of the `epoch` in which it was begun.
pub(super) struct Leases {
    pub(super) shared: Arc<Shared>,
    pub(super) epoch: u64,
}

impl Sink<Lease> for Leases {
    type Item = LeaseItem;

    fn read(&self, object: Lease) -> LeaseItem {
        LeaseItem::read(&object)
    }

    fn listed(&self, items: Vec<LeaseItem>, revision: u64) {
        let now = self.shared.clock.now();
        let (mut sessions, mut aliases, mut routers) = (Vec::new(), Vec::new(), Vec::new());
        for item in items {
            match item {
                LeaseItem::Session(id, kept) => sessions.push((id, kept)),
                LeaseItem::Alias(id, record) => aliases.push((id, record)),
                LeaseItem::Router(router) => routers.push(router),
                LeaseItem::Other => {}
            }
        }
        self.shared.routers.list(routers, now);
        self.shared.aliases.list(aliases, revision);
        for (id, news) in self.shared.index.list_leases(sessions, revision, now) {
            self.shared.lease_news(&id, news);
        }
        self.shared.contact.leases_listed(self.epoch);
    }

    fn applied(&self, item: LeaseItem, revision: u64) {
        self.shared.take_lease(item, Source::Watch(revision));
    }

    fn deleted(&self, meta: &ObjectMeta, revision: u64) {
        let source = Source::Watch(revision);
        let (Some(id), Some(uid)) = (session_id(meta), meta.uid.as_deref()) else {
            if let Some(alias) = AliasId::read(meta) {
                self.shared.aliases.remove(&alias, meta.uid.as_deref().unwrap_or_default(), revision);
            } else if let (Some(namespace), Some(name)) = (meta.namespace.as_deref(), meta.name.as_deref()) {
                self.shared.routers.remove(namespace, name);
            }
            return self.shared.lease_reached(source);
        };
        if self.shared.index.remove_lease(&id, &uid.into(), revision, source) {
            self.shared.bindings.session_changed(&id);
        }
    }

    fn bookmark(&self, revision: u64) {
        self.shared.index.leases_bookmark(revision);
    }
}

/// Where the watch of Pods, or of Sandboxes, leads.
pub(super) struct InstanceFeed<B> {
    pub(super) shared: Arc<Shared>,
    pub(super) epoch: u64,
    pub(super) kind: PhantomData<B>,
}

impl<B: Bearer> Sink<B> for InstanceFeed<B> {
    type Item = Option<Instance>;

    fn read(&self, object: B) -> Option<Instance> {
        Instance::read(&object)
    }

    fn listed(&self, items: Vec<Option<Instance>>, revision: u64) {
        let items = items.into_iter().flatten().collect();
        let objects =
            |was: Option<&Instance>, instance: &Arc<Instance>| self.shared.place(was, instance, true);
        let (gone, new) = self.shared.index.list_instances(B::KIND, items, revision, objects);
        gone.iter().for_each(|instance| self.shared.forget(instance));
        new.iter().for_each(|instance| self.shared.instance_news(instance));
        self.shared.contact.instances_listed(B::KIND, self.epoch);
    }

    fn applied(&self, item: Option<Instance>, revision: u64) {
        match item {
            Some(instance) => self.shared.take_instance(instance, Source::Watch(revision)),
            None => self.shared.index.instances_bookmark(B::KIND, revision),
        }
    }

    fn deleted(&self, meta: &ObjectMeta, revision: u64) {
        let uid: Arc<str> = meta.uid.as_deref().unwrap_or_default().into();
        let source = Source::Watch(revision);
        if let Some(held) = self.shared.index.remove_instance(B::KIND, &uid, revision, source) {
            self.shared.forget(&held);
        }
    }

    fn bookmark(&self, revision: u64) {
        self.shared.index.instances_bookmark(B::KIND, revision);
    }
}

/// The label selectors of the watches of Leases and of instances.
pub(super) const LEASES: &str = labels::LEASE;
pub(super) const INSTANCES: &str = labels::TASK_UID;
