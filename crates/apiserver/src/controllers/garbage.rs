//! Garbage collection by owner references: what has lost all its owners goes, in the order that the owner's
//! deletion asked for.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Queue, patch_metadata, release, work};
use crate::api::{Api, DeleteOptions, Name, Propagation};
use crate::resource::Resource;
use crate::status::Status;
use crate::store::{Event, EventKind, Object, OwnerReference};

/// A stored object: its table and key.
type Place = (Arc<str>, Box<str>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Work {
    /// Are its owners still there?
    Dependent(Place),
    /// It is being deleted and waits for what it owns.
    Owner(Place),
}

/// Who refers to a uid as its owner.
type Dependents = Arc<Mutex<HashMap<Box<str>, BTreeSet<Place>>>>;

pub(super) fn start(api: &Api, tasks: &mut JoinSet<()>, stopped: &watch::Receiver<bool>) {
    let queue = Queue::new();
    let dependents: Dependents = Arc::default();
    let (index, feed) = (dependents.clone(), queue.clone());
    let api_for_owners = api.clone();
    api.store().observe(Box::new(move |table, event| note(&index, &feed, &api_for_owners, table, event)));
    let api = api.clone();
    work(queue.clone(), tasks, stopped, move |work| {
        let collector = Collector { api: api.clone(), dependents: dependents.clone(), queue: queue.clone() };
        async move {
            match work {
                Work::Dependent(place) => collector.dependent(&place).await,
                Work::Owner(place) => collector.owner(&place).await,
            }
        }
    });
}

/// Keeps the index and queues what an event may have changed.
fn note(index: &Dependents, queue: &Queue<Work>, api: &Api, table: &Arc<str>, event: &Event) {
    let place = (table.clone(), Box::from(event.object.key()));
    let gone = event.kind == EventKind::Deleted;
    let before = event.previous.as_ref().map(|object| &*object.owners).unwrap_or_default();
    let after = if gone { &[] } else { &*event.object.owners };
    if before != after {
        let mut index = index.lock();
        for owner in before {
            if let Some(set) = index.get_mut(&owner.uid) {
                set.remove(&place);
                if set.is_empty() {
                    index.remove(&owner.uid);
                }
            }
        }
        for owner in after {
            index.entry(owner.uid.clone()).or_default().insert(place.clone());
        }
        if !after.is_empty() {
            queue.push(Work::Dependent(place.clone()));
        }
    }
    if before != after || gone {
        // Owners that wait for this one may now go on.
        for owner in before {
            if let Some(place) = owner_place(api, owner, event.object.namespace()) {
                queue.push(Work::Owner(place));
            }
        }
    }
    if gone {
        let index = index.lock();
        for dependent in index.get(&event.object.uid).into_iter().flatten() {
            queue.push(Work::Dependent(dependent.clone()));
        }
    } else if event.object.deleting && held_by_us(&event.object).is_some() {
        queue.push(Work::Owner(place));
    }
}

fn held_by_us(object: &Object) -> Option<Propagation> {
    let has = |name: &str| object.finalizers.iter().any(|finalizer| &**finalizer == name);
    if has(Propagation::ORPHAN_FINALIZER) {
        Some(Propagation::Orphan)
    } else if has(Propagation::FOREGROUND_FINALIZER) {
        Some(Propagation::Foreground)
    } else {
        None
    }
}

/// Where an owner is stored; `None` for kinds that are not served.
fn owner_place(api: &Api, owner: &OwnerReference, namespace: &str) -> Option<Place> {
    let resource = api.registry().by_kind(&owner.api_version, &owner.kind)?;
    let namespace = resource.namespaced.then_some(namespace);
    Some((resource.storage.clone(), Name { namespace, name: &owner.name }.key()))
}

/// What became of an owner.
enum Fate {
    Alive,
    Absent,
    /// Being deleted, and waiting for its dependents.
    Waiting,
}

struct Collector {
    api: Api,
    dependents: Dependents,
    queue: Arc<Queue<Work>>,
}

impl Collector {
    fn fetch(&self, place: &Place) -> Option<(Arc<Resource>, Arc<Object>)> {
        let object = self.api.store().get(&place.0, &place.1)?;
        Some((self.api.registry().by_storage(&place.0)?, object))
    }

    fn fate(&self, owner: &OwnerReference, dependent: &Object) -> Fate {
        let Some(resource) = self.api.registry().by_kind(&owner.api_version, &owner.kind) else {
            // An owner of a kind that is not served cannot be proved absent.
            return Fate::Alive;
        };
        if resource.namespaced && dependent.namespace().is_empty() {
            return Fate::Alive;
        }
        let namespace = resource.namespaced.then(|| dependent.namespace());
        let key = Name { namespace, name: &owner.name }.key();
        match self.api.store().get(&resource.storage, &key) {
            Some(found) if found.uid == owner.uid => {
                match found.deleting && held_by_us(&found) == Some(Propagation::Foreground) {
                    true => Fate::Waiting,
                    false => Fate::Alive,
                }
            }
            _ => Fate::Absent,
        }
    }

    async fn dependent(&self, place: &Place) -> Result<(), Status> {
        let Some((resource, object)) = self.fetch(place) else { return Ok(()) };
        if object.owners.is_empty() || object.deleting {
            return Ok(());
        }
        let (mut alive, mut waiting) = (Vec::new(), 0);
        for owner in &object.owners {
            match self.fate(owner, &object) {
                Fate::Alive => alive.push(owner.uid.clone()),
                Fate::Absent => {}
                Fate::Waiting => waiting += 1,
            }
        }
        if !alive.is_empty() {
            return match alive.len() == object.owners.len() {
                true => Ok(()),
                false => {
                    self.keep_owners(&resource, &object, |uid| alive.iter().any(|alive| **alive == *uid))
                        .await
                }
            };
        }
        let has_dependents = self.dependents.lock().contains_key(&object.uid);
        let propagation = match held_by_us(&object) {
            Some(propagation) => propagation,
            None if waiting > 0 && has_dependents => Propagation::Foreground,
            None => Propagation::Background,
        };
        let options = DeleteOptions {
            uid: Some(object.uid.to_string()),
            resource_version: Some(object.revision.to_string()),
            propagation: Some(propagation),
            ..DeleteOptions::default()
        };
        match self.api.delete(&resource, &named(&resource, &object), &options).await {
            Ok(_) => Ok(()),
            Err(status) if status.reason == "NotFound" => Ok(()),
            Err(status) => Err(status),
        }
    }

    /// Rewrites the owner references of an object to those that `keep` wants.
    async fn keep_owners(
        &self,
        resource: &Arc<Resource>,
        object: &Object,
        keep: impl Fn(&str) -> bool,
    ) -> Result<(), Status> {
        let mut owners = object.value()["metadata"]["ownerReferences"].take();
        if let Some(owners) = owners.as_array_mut() {
            owners.retain(|owner| keep(owner["uid"].as_str().unwrap_or_default()));
        }
        if owners.as_array().is_some_and(Vec::is_empty) {
            owners = Value::Null;
        }
        patch_metadata(&self.api, resource, object, json!({"ownerReferences": owners})).await
    }

    async fn owner(&self, place: &Place) -> Result<(), Status> {
        let Some((resource, object)) = self.fetch(place) else { return Ok(()) };
        if !object.deleting {
            return Ok(());
        }
        let Some(propagation) = held_by_us(&object) else { return Ok(()) };
        let dependents: Vec<Place> =
            self.dependents.lock().get(&object.uid).into_iter().flatten().cloned().collect();
        match propagation {
            Propagation::Orphan => {
                for place in &dependents {
                    let Some((kind, dependent)) = self.fetch(place) else { continue };
                    self.keep_owners(&kind, &dependent, |uid| *uid != *object.uid).await?;
                }
                release(&self.api, &resource, &object, Propagation::ORPHAN_FINALIZER).await
            }
            Propagation::Foreground | Propagation::Background => {
                let mut blocked = false;
                for place in dependents {
                    let Some((_, dependent)) = self.fetch(&place) else { continue };
                    blocked |=
                        dependent.owners.iter().any(|owner| owner.uid == object.uid && owner.blocks_deletion);
                    self.queue.push(Work::Dependent(place));
                }
                if blocked {
                    return Ok(());
                }
                release(&self.api, &resource, &object, Propagation::FOREGROUND_FINALIZER).await
            }
        }
    }
}

fn named<'a>(resource: &Resource, object: &'a Object) -> Name<'a> {
    Name { namespace: resource.namespaced.then(|| object.namespace()), name: object.name() }
}
