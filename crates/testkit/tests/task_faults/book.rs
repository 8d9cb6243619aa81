//! What happened, written down by whoever does it, and held against the invariants at once: which request used which
//! instance for which key, which instances died, and what the API server did in between.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// A request at an instance, from the answer of the router to the moment before it lets go.
#[derive(Clone, Debug)]
struct Use {
    key: String,
    instance: String,
    router: String,
}

#[derive(Default)]
struct Pages {
    uses: HashMap<u64, Use>,
    dead: HashSet<String>,
    /// Those of them that the test itself killed: they may be deleted under their requests.
    killed: HashSet<String>,
    /// Instances that the test itself made unready: they may be deleted under their requests.
    failed: HashSet<String>,
    /// Sessions (UIDs of Leases) that the test ended at once: their instances may be deleted likewise.
    ended: HashSet<String>,
    /// Routers that are no more.
    crashed: HashSet<String>,
    served: HashMap<String, u64>,
    violations: Vec<String>,
}

#[derive(Default)]
pub(crate) struct Book {
    pages: Mutex<Pages>,
    next: AtomicU64,
}

impl Book {
    /// A request begins at an instance. Invariants 1 and 2: no other instance that lives serves the key, and no other
    /// key is served by the instance.
    pub(crate) fn begin(&self, router: &str, key: &str, instance: &str) -> u64 {
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        let new = Use { key: key.to_owned(), instance: instance.to_owned(), router: router.to_owned() };
        let mut pages = self.pages.lock();
        if pages.crashed.contains(router) {
            return id;
        }
        *pages.served.entry(new.key.clone()).or_default() += 1;
        if !pages.dead.contains(instance) {
            let Pages { uses, dead, violations, .. } = &mut *pages;
            for other in uses.values().filter(|other| !dead.contains(&other.instance)) {
                if other.key == new.key && other.instance != new.instance {
                    violations.push(format!("invariant 1: one key, two instances: {other:?} and {new:?}"));
                }
                if other.instance == new.instance && other.key != new.key {
                    violations.push(format!("invariant 2: one instance, two keys: {other:?} and {new:?}"));
                }
            }
        }
        pages.uses.insert(id, new);
        id
    }

    pub(crate) fn end(&self, id: u64) {
        self.pages.lock().uses.remove(&id);
    }

    /// A router is no more; its requests ended with it.
    pub(crate) fn crashes(&self, router: &str) {
        let mut pages = self.pages.lock();
        pages.crashed.insert(router.to_owned());
        pages.uses.retain(|_, used| used.router != router);
    }

    /// The test kills an instance. To be told before anybody else can know.
    pub(crate) fn kills(&self, instance: &str) {
        self.pages.lock().killed.insert(instance.to_owned());
        self.dies(instance);
    }

    /// To be told before anybody else can know.
    pub(crate) fn dies(&self, instance: &str) {
        self.pages.lock().dead.insert(instance.to_owned());
    }

    pub(crate) fn fails(&self, instance: &str) {
        self.pages.lock().failed.insert(instance.to_owned());
    }

    pub(crate) fn ends(&self, session: &str) {
        self.pages.lock().ended.insert(session.to_owned());
    }

    /// The Lease of an idle session was deleted. Invariant 4: nobody uses it.
    pub(crate) fn released(&self, key: &str, instance: &str) {
        let mut pages = self.pages.lock();
        let used = pages.uses.values().find(|used| used.key == key && used.instance == instance).cloned();
        if let Some(used) = used.filter(|used| !pages.dead.contains(&used.instance)) {
            pages.violations.push(format!("invariant 4: ended as idle under {used:?}"));
        }
    }

    /// A Pod is being deleted, held for this session if any. Invariant 4: not under a request, except where the test
    /// asked for it.
    pub(crate) fn deleted(&self, instance: &str, session: Option<&str>) {
        let mut pages = self.pages.lock();
        let asked = pages.failed.contains(instance)
            || pages.killed.contains(instance)
            || session.is_some_and(|session| pages.ended.contains(session));
        let used = pages.uses.values().find(|used| used.instance == instance).cloned();
        if let Some(used) = used.filter(|_| !asked) {
            pages.violations.push(format!("invariant 4: the instance was deleted under {used:?}"));
        }
    }

    pub(crate) fn violates(&self, what: String) {
        self.pages.lock().violations.push(what);
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.pages.lock().violations.clone()
    }

    /// How many keys were served, and how many requests.
    pub(crate) fn served(&self) -> (usize, u64) {
        let pages = self.pages.lock();
        (pages.served.len(), pages.served.values().sum())
    }
}
