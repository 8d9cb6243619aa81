//! What keeps a memory from going backwards: the revision that the watch has reached, and what is known to be gone
//! before the watch has said so. A write-through at or below that revision carries nothing new. Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// How far the watch of one kind has come.
#[derive(Debug, Default)]
pub(super) struct Reached {
    revision: u64,
    /// UIDs whose deletion the watch has not delivered yet, with their last known version.
    tombstones: HashMap<Arc<str>, u64>,
    /// Marks of this revision that we object to; until that is written, they were not seen.
    objections: BTreeMap<u64, Arc<str>>,
}

impl Reached {
    /// Whether what the server answered to a write is news.
    pub(super) fn is_news(&self, uid: &str, version: u64) -> bool {
        version > self.revision && !self.tombstones.contains_key(uid)
    }

    /// Whether what the watch delivers was already known to be gone.
    pub(super) fn is_gone(&self, uid: &str) -> bool {
        self.tombstones.contains_key(uid)
    }

    /// The server said that this object, last known in this version, is gone.
    pub(super) fn gone(&mut self, uid: &Arc<str>, version: u64, held: bool) {
        if held || version > self.revision {
            self.tombstones.insert(uid.clone(), version);
        }
    }

    /// The watch has delivered everything up to here.
    pub(super) fn advance(&mut self, revision: u64) {
        self.revision = self.revision.max(revision);
    }

    /// The watch has delivered a deletion.
    pub(super) fn deleted(&mut self, uid: &str) {
        self.tombstones.remove(uid);
    }

    /// A list, taken at `revision`, has these.
    pub(super) fn listed(&mut self, revision: u64, holds: impl Fn(&str) -> bool) {
        self.advance(revision);
        self.tombstones.retain(|uid, version| *version > revision || holds(uid));
    }

    /// A mark of this revision must be objected to before it counts as seen.
    pub(super) fn object(&mut self, revision: u64, uid: &Arc<str>) {
        self.objections.insert(revision, uid.clone());
    }

    /// Whether there is an objection to a mark of this revision.
    pub(super) fn objects(&self, revision: u64) -> bool {
        self.objections.contains_key(&revision)
    }

    /// The objection was written, or the mark has gone otherwise.
    pub(super) fn settled(&mut self, revision: u64) {
        self.objections.remove(&revision);
    }

    /// Up to here everything was seen and is respected.
    pub(super) fn seen(&self) -> u64 {
        let bound = self.objections.keys().next().map_or(u64::MAX, |first| first.saturating_sub(1));
        self.revision.min(bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_answers_carry_nothing_new() {
        let mut reached = Reached::default();
        let uid: Arc<str> = "a".into();
        reached.advance(5);
        reached.advance(3);
        assert!(!reached.is_news("a", 5) && reached.is_news("a", 6));
        reached.gone(&uid, 7, false);
        assert!(!reached.is_news("a", 8) && reached.is_news("b", 8));
        reached.deleted("a");
        assert!(reached.is_news("a", 8));
        // Below what was reached and not held: the deletion has been delivered.
        reached.gone(&uid, 4, false);
        assert!(!reached.is_gone("a"));
        reached.gone(&uid, 4, true);
        reached.listed(6, |_| false);
        assert!(!reached.is_gone("a"));
    }

    #[test]
    fn a_mark_is_seen_when_the_objection_is_written() {
        let mut reached = Reached::default();
        reached.advance(9);
        reached.object(10, &"a".into());
        reached.object(12, &"b".into());
        reached.advance(20);
        assert_eq!(reached.seen(), 9);
        reached.settled(10);
        assert_eq!(reached.seen(), 11);
        reached.settled(12);
        assert_eq!(reached.seen(), 20);
    }
}
