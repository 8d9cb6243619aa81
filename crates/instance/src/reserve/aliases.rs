//! What a router remembers of other names of sessions, fed by the watch of Leases and by answers to its own reads and
//! writes. What an alias stands for may have ended, which the session's own Lease tells.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use super::shards::Shards;
use crate::alias::{AliasId, Record};

/// The memory.
pub(super) struct Aliases {
    held: Shards<AliasId, Record>,
    /// Held by whoever changes something.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The latest revision that the watch has told of an alias.
    reached: u64,
    /// How many there are of each session, by its Lease.
    counts: HashMap<Arc<str>, usize>,
}

impl Known {
    fn more(&mut self, lease: &Arc<str>) {
        *self.counts.entry(lease.clone()).or_default() += 1;
    }

    fn less(&mut self, lease: &Arc<str>) {
        if let Entry::Occupied(mut count) = self.counts.entry(lease.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl Aliases {
    pub(super) fn new() -> Aliases {
        Aliases { held: Shards::new(), known: Mutex::default() }
    }

    pub(super) fn get(&self, id: &AliasId) -> Option<Record> {
        self.held.of(id).read().get(id).cloned()
    }

    /// How many the session with this Lease has.
    pub(super) fn count(&self, lease: &str) -> usize {
        self.known.lock().counts.get(lease).copied().unwrap_or(0)
    }

    /// An alias as the watch has it, at its revision, or as the server answered. Nothing if it is spoilt: then what was
    /// known of it no longer holds.
    pub(super) fn put(&self, id: AliasId, record: Option<Record>, watched: Option<u64>) {
        let mut known = self.known.lock();
        let stale = record.as_ref().is_some_and(|it| watched.is_none() && it.version <= known.reached);
        known.reached = known.reached.max(watched.unwrap_or(0));
        let mut held = self.held.of(&id).write();
        let before = match record {
            // The watch has been there: what it left is the truth.
            Some(_) if stale => None,
            Some(record) if held.get(&id).is_some_and(|held| held.version >= record.version) => None,
            Some(record) => {
                known.more(&record.named.lease);
                held.insert(id, record)
            }
            None => held.remove(&id),
        };
        if let Some(before) = before {
            known.less(&before.named.lease);
        }
    }

    /// An alias is gone, at this revision of the watch.
    pub(super) fn remove(&self, id: &AliasId, uid: &str, watched: u64) {
        let mut known = self.known.lock();
        known.reached = known.reached.max(watched);
        let mut held = self.held.of(id).write();
        if held.get(id).is_some_and(|held| *held.uid == *uid)
            && let Some(gone) = held.remove(id)
        {
            known.less(&gone.named.lease);
        }
    }

    /// All aliases as they were at this revision.
    pub(super) fn list(&self, items: Vec<(AliasId, Option<Record>)>, revision: u64) {
        let listed: HashSet<Arc<str>> =
            items.iter().filter_map(|(_, record)| Some(record.as_ref()?.uid.clone())).collect();
        let mut known = self.known.lock();
        for shard in self.held.all() {
            shard.write().retain(|_, held| {
                let stays = held.version > revision || listed.contains(&held.uid);
                if !stays {
                    known.less(&held.named.lease);
                }
                stays
            });
        }
        drop(known);
        items.into_iter().for_each(|(id, record)| self.put(id, record, Some(revision)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alias::{Alias, Named};
    use crate::identity::{SessionKey, TaskId};

    #[test]
    fn names_are_counted_by_session_whatever_becomes_of_them() {
        let id = |text: &str| {
            let task = TaskId { namespace: "prod".into(), name: "a".into(), uid: "t".into() };
            AliasId::of(&task, &Alias { space: "test", subject: None, text: text.into() })
        };
        let record = |uid: &str, version, lease: &str| Record {
            uid: uid.into(),
            version,
            task_uid: "t".into(),
            named: Named { key: SessionKey::new("k").unwrap(), lease: lease.into(), binding: None },
        };
        let aliases = Aliases::new();
        let counts = || (aliases.count("l1"), aliases.count("l2"));
        aliases.put(id("a"), Some(record("a1", 1, "l1")), None);
        aliases.put(id("a"), Some(record("a1", 1, "l1")), Some(1));
        aliases.put(id("b"), Some(record("b1", 2, "l1")), Some(2));
        assert_eq!(counts(), (2, 0));
        aliases.put(id("b"), Some(record("b2", 3, "l2")), Some(3));
        assert_eq!(counts(), (1, 1));
        aliases.remove(&id("b"), "other", 4);
        assert_eq!(counts(), (1, 1));
        aliases.remove(&id("b"), "b2", 5);
        aliases.put(id("a"), None, Some(6));
        assert_eq!(counts(), (0, 0));
        aliases.put(id("a"), Some(record("a3", 7, "l1")), Some(7));
        aliases.list(vec![(id("c"), Some(record("c1", 8, "l2")))], 8);
        assert_eq!(counts(), (0, 1));
        assert_eq!(aliases.known.lock().counts.len(), 1, "nothing is kept of what has none");
    }
}
