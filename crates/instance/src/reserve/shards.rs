//! A map in many parts, each with a lock of its own: readers of one part never wait for writers of another.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};

use parking_lot::RwLock;

const SHARDS: usize = 64;

type Shard<K, V> = RwLock<HashMap<K, V>>;

pub(super) struct Shards<K, V> {
    hasher: RandomState,
    shards: Box<[Shard<K, V>]>,
}

impl<K: Hash + Eq, V> Shards<K, V> {
    pub(super) fn new() -> Shards<K, V> {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Shards { hasher: RandomState::new(), shards }
    }

    /// The part that this key is in. A borrowed form of the key is in the same.
    pub(super) fn of<Q: Hash + ?Sized>(&self, key: &Q) -> &Shard<K, V> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Shard<K, V>> {
        self.shards.iter()
    }
}
