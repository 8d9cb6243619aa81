//! Names that many sessions and instances share, stored once.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

/// The names. Those that nobody else holds any more are dropped now and then.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: Mutex<(HashSet<Arc<str>>, usize)>,
}

impl Names {
    pub(super) fn intern(&self, name: Arc<str>) -> Arc<str> {
        let mut guard = self.known.lock();
        let (known, limit) = &mut *guard;
        if let Some(held) = known.get(&name) {
            return held.clone();
        }
        if known.len() >= (*limit).max(1024) {
            known.retain(|name| Arc::strong_count(name) > 1);
            *limit = known.len() * 2;
        }
        known.insert(name.clone());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_name_is_stored_once_and_not_for_ever() {
        let names = Names::default();
        let first = names.intern("a".into());
        assert!(Arc::ptr_eq(&first, &names.intern("a".into())));
        for n in 0..5000 {
            names.intern(format!("name-{n}").into());
        }
        assert!(names.known.lock().0.len() <= 1025);
        assert!(Arc::ptr_eq(&first, &names.intern("a".into())));
    }
}
