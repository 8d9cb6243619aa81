//! How much of something may be under way at once, in all and per namespace.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use agentcube_protos::refused::retry_after;
use parking_lot::Mutex;
use tonic::{Code, Status};

use crate::options;

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Creates,
    Watches,
    /// Logs and commands.
    Streams,
}

#[derive(Debug)]
pub(super) struct Limits {
    creates: Arc<Counted>,
    watches: Arc<Counted>,
    streams: Arc<Counted>,
}

#[derive(Debug)]
struct Counted {
    most: usize,
    per_namespace: usize,
    now: Mutex<(usize, HashMap<String, usize>)>,
}

/// Something under way. Over when dropped.
#[derive(Debug)]
pub(super) struct Place {
    counted: Arc<Counted>,
    namespace: String,
}

impl Limits {
    pub(super) fn new(limits: &options::Limits) -> Limits {
        let counted = |most, per_namespace| Arc::new(Counted { most, per_namespace, now: Mutex::default() });
        Limits {
            creates: counted(limits.creates, limits.creates_per_namespace),
            watches: counted(usize::MAX, limits.watches_per_namespace),
            streams: counted(limits.streams, limits.streams),
        }
    }

    pub(super) fn enter(&self, what: Limit, namespace: &str) -> Result<Place, Status> {
        let counted = match what {
            Limit::Creates => &self.creates,
            Limit::Watches => &self.watches,
            Limit::Streams => &self.streams,
        };
        let mut now = counted.now.lock();
        let here = now.1.get(namespace).copied().unwrap_or(0);
        if now.0 >= counted.most || here >= counted.per_namespace {
            let message = format!("too many calls of this kind are under way ({what:?})");
            return Err(retry_after(Code::ResourceExhausted, message, Duration::from_millis(100)));
        }
        now.0 += 1;
        now.1.insert(namespace.into(), here + 1);
        drop(now);
        Ok(Place { counted: counted.clone(), namespace: namespace.into() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut now = self.counted.now.lock();
        now.0 -= 1;
        let left = now.1.get_mut(&self.namespace).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            now.1.remove(&self.namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_back() {
        let limits = options::Limits { creates: 3, creates_per_namespace: 2, ..options::Limits::default() };
        let limits = Limits::new(&limits);
        let one = limits.enter(Limit::Creates, "a").expect("room");
        let _two = limits.enter(Limit::Creates, "a").expect("room");
        assert_eq!(limits.enter(Limit::Creates, "a").expect_err("full").code(), Code::ResourceExhausted);
        let _three = limits.enter(Limit::Creates, "b").expect("room");
        assert!(limits.enter(Limit::Creates, "b").is_err());
        drop(one);
        limits.enter(Limit::Creates, "a").expect("room again");
    }
}
