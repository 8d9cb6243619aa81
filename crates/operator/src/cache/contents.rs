//! The state of a cache and the rules that keep it from going backwards. No I/O and no clock.
//!
//! The watch delivers every change up to the revision it has reached, in order. So a write-through at or below
//! that revision carries nothing new and is ignored; above it, it wins over what is held if it is newer. What
//! was written through as gone stays gone, by uid, until the watch has reached its deletion.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use kube::core::ObjectMeta;

use super::Object;
use super::feed::{Change, Feed, Receiver};

/// Namespace and name.
type Key = (String, String);

#[derive(Debug)]
pub(super) struct Contents<K> {
    objects: BTreeMap<Key, Arc<K>>,
    /// The objects of each controller, by its uid; those without a controller under the empty uid.
    owned: HashMap<String, BTreeSet<Key>>,
    /// Uids known to be gone whose deletion the watch has not delivered yet, with their last known revision.
    tombstones: HashMap<String, u64>,
    /// The revision that the watch has reached.
    reached: u64,
    feeds: Vec<Weak<Feed<K>>>,
}

impl<K> Default for Contents<K> {
    fn default() -> Self {
        Contents {
            objects: BTreeMap::new(),
            owned: HashMap::new(),
            tombstones: HashMap::new(),
            reached: 0,
            feeds: Vec::new(),
        }
    }
}

impl<K: Object> Contents<K> {
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.objects.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    pub(super) fn list(&self, namespace: Option<&str>) -> Vec<Arc<K>> {
        match namespace {
            None => self.objects.values().cloned().collect(),
            Some(namespace) => self
                .objects
                .range((namespace.to_owned(), String::new())..)
                .take_while(|((held, _), _)| held == namespace)
                .map(|(_, object)| object.clone())
                .collect(),
        }
    }

    pub(super) fn owned_by(&self, controller: &str) -> Vec<Arc<K>> {
        let keys = self.owned.get(controller).into_iter().flatten();
        keys.filter_map(|key| self.objects.get(key).cloned()).collect()
    }

    pub(super) fn orphans(&self, namespace: &str) -> Vec<Arc<K>> {
        let keys = self.owned.get("").into_iter();
        keys.flat_map(|keys| keys.range((namespace.to_owned(), String::new())..))
            .take_while(|(held, _)| held == namespace)
            .filter_map(|key| self.objects.get(key).cloned())
            .collect()
    }

    pub(super) fn subscribe(&mut self) -> Receiver<K> {
        let (feed, receiver) = Feed::new();
        for object in self.objects.values() {
            feed.push(uid(object.meta()), Change { old: None, new: Some(object.clone()) });
        }
        self.feeds.retain(|feed| feed.strong_count() > 0);
        self.feeds.push(Arc::downgrade(&feed));
        receiver
    }

    /// The server's answer to a write.
    pub(super) fn put(&mut self, object: K) {
        if revision(object.meta()) > self.reached {
            self.take_newer(object);
        }
    }

    /// The server said that this object is gone.
    pub(super) fn gone(&mut self, meta: &ObjectMeta) {
        let key = key(meta);
        let held = self.objects.get(&key).is_some_and(|held| uid(held.meta()) == uid(meta));
        // Not held, and the watch has passed its last state: the watch has delivered the deletion too.
        if held || revision(meta) > self.reached {
            self.tombstones.insert(uid(meta).to_owned(), revision(meta));
        }
        if held {
            self.remove(&key);
        }
    }

    /// A new list, taken at `revision`.
    pub(super) fn listed(&mut self, items: Vec<K>, revision_of_list: u64) {
        self.reached = self.reached.max(revision_of_list);
        let listed: BTreeSet<String> = items.iter().map(|item| uid(item.meta()).to_owned()).collect();
        let stale = |meta: &ObjectMeta| revision(meta) <= revision_of_list && !listed.contains(uid(meta));
        let lost: Vec<Key> = self
            .objects
            .iter()
            .filter(|(_, object)| stale(object.meta()))
            .map(|(key, _)| key.clone())
            .collect();
        for key in lost {
            self.remove(&key);
        }
        self.tombstones.retain(|uid, revision| *revision > revision_of_list || listed.contains(uid));
        for item in items {
            self.take_newer(item);
        }
    }

    /// An addition or a modification, from the watch.
    pub(super) fn watched(&mut self, object: K) {
        self.reached = self.reached.max(revision(object.meta()));
        self.take_newer(object);
    }

    /// A deletion, from the watch.
    pub(super) fn watched_deletion(&mut self, meta: &ObjectMeta) {
        self.reached = self.reached.max(revision(meta));
        self.tombstones.remove(uid(meta));
        let key = key(meta);
        if self.objects.get(&key).is_some_and(|held| uid(held.meta()) == uid(meta)) {
            self.remove(&key);
        }
    }

    pub(super) fn bookmark(&mut self, revision: u64) {
        self.reached = self.reached.max(revision);
    }

    /// Holds the object unless it is known to be gone, or what is held under its name is as new.
    fn take_newer(&mut self, object: K) {
        let key = key(object.meta());
        if self.tombstones.contains_key(uid(object.meta())) {
            return;
        }
        if let Some(held) = self.objects.get(&key) {
            if revision(held.meta()) >= revision(object.meta()) {
                return;
            }
            if uid(held.meta()) != uid(object.meta()) {
                // The name was given anew, so the former bearer is gone, even if the watch has yet to say so.
                let former = held.clone();
                self.gone(former.meta());
            }
        }
        self.insert(key, Arc::new(object));
    }

    fn insert(&mut self, key: Key, object: Arc<K>) {
        let old = self.objects.insert(key.clone(), object.clone());
        if let Some(old) = &old {
            self.disown(&key, old.meta());
        }
        self.owned.entry(controller_uid(object.meta()).to_owned()).or_default().insert(key);
        let changed = uid(object.meta()).to_owned();
        self.publish(&changed, Change { old, new: Some(object) });
    }

    fn remove(&mut self, key: &Key) {
        if let Some(old) = self.objects.remove(key) {
            self.disown(key, old.meta());
            let removed = uid(old.meta()).to_owned();
            self.publish(&removed, Change { old: Some(old), new: None });
        }
    }

    fn disown(&mut self, key: &Key, meta: &ObjectMeta) {
        let controller = controller_uid(meta);
        if let Some(keys) = self.owned.get_mut(controller) {
            keys.remove(key);
            if keys.is_empty() {
                self.owned.remove(controller);
            }
        }
    }

    fn publish(&mut self, uid: &str, change: Change<K>) {
        for feed in self.feeds.iter().filter_map(Weak::upgrade) {
            feed.push(uid, change.clone());
        }
    }
}

fn key(meta: &ObjectMeta) -> Key {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

fn uid(meta: &ObjectMeta) -> &str {
    meta.uid.as_deref().unwrap_or_default()
}

/// Revisions of the API are numbers; what has none is older than everything.
fn revision(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

fn controller_uid(meta: &ObjectMeta) -> &str {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true)).map_or("", |owner| owner.uid.as_str())
}

#[cfg(test)]
mod tests;
