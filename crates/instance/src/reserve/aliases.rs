//! What a router remembers of other names of sessions, fed by the watch of Leases and by answers to its own reads and
//! writes. An alias never changes; what it stands for may have ended, which the session's own Lease tells.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::shards::Shards;
use crate::alias::{AliasId, Record};

/// The memory.
pub(super) struct Aliases {
    held: Shards<AliasId, Record>,
    /// The latest revision that the watch has told of an alias. Held by whoever changes something.
    reached: Mutex<u64>,
}

impl Aliases {
    pub(super) fn new() -> Aliases {
        Aliases { held: Shards::new(), reached: Mutex::default() }
    }

    pub(super) fn get(&self, id: &AliasId) -> Option<Record> {
        self.held.of(id).read().get(id).cloned()
    }

    /// An alias as the watch has it, at its revision, or as the server answered. Nothing if it is spoilt: then what was
    /// known of it no longer holds.
    pub(super) fn put(&self, id: AliasId, record: Option<Record>, watched: Option<u64>) {
        let mut reached = self.reached.lock();
        let stale = |record: &Record| watched.is_none() && record.version <= *reached;
        let known = record.as_ref().is_some_and(&stale);
        *reached = (*reached).max(watched.unwrap_or(0));
        let mut held = self.held.of(&id).write();
        match record {
            // The watch has been there: what it left is the truth.
            Some(_) if known => {}
            Some(record) if held.get(&id).is_some_and(|held| held.version >= record.version) => {}
            Some(record) => drop(held.insert(id, record)),
            None => drop(held.remove(&id)),
        }
    }

    /// An alias is gone, at this revision of the watch.
    pub(super) fn remove(&self, id: &AliasId, uid: &str, watched: u64) {
        let mut reached = self.reached.lock();
        *reached = (*reached).max(watched);
        let mut held = self.held.of(id).write();
        if held.get(id).is_some_and(|held| *held.uid == *uid) {
            held.remove(id);
        }
    }

    /// All aliases as they were at this revision.
    pub(super) fn list(&self, items: Vec<(AliasId, Option<Record>)>, revision: u64) {
        let listed: HashSet<Arc<str>> =
            items.iter().filter_map(|(_, record)| Some(record.as_ref()?.uid.clone())).collect();
        let reached = self.reached.lock();
        for shard in self.held.all() {
            shard.write().retain(|_, held| held.version > revision || listed.contains(&held.uid));
        }
        drop(reached);
        items.into_iter().for_each(|(id, record)| self.put(id, record, Some(revision)));
    }
}
