//! Instances that are found by their UID. They hold it themselves, so a map of many need not hold it again.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::record::Instance;

/// An instance as the key of a map, told apart by its UID alone.
#[derive(Debug)]
pub(super) struct ByUid(pub(super) Arc<Instance>);

impl Borrow<str> for ByUid {
    fn borrow(&self) -> &str {
        &self.0.id.uid
    }
}

impl Hash for ByUid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.uid.hash(state);
    }
}

impl PartialEq for ByUid {
    fn eq(&self, other: &ByUid) -> bool {
        self.0.id.uid == other.0.id.uid
    }
}

impl Eq for ByUid {}
