//! What instances and clients have seen, held together: the session of every request at its own instance, every answer
//! told apart from all others, every failure with its reason.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use parking_lot::Mutex;

use crate::Size;

const LOOK: Duration = Duration::from_millis(5);
/// Of what is wrong, the first is enough to begin with.
const SHOWN: usize = 10;

#[derive(Default)]
struct Pages {
    /// The instance that last answered a session.
    places: HashMap<String, String>,
    /// Instances that the test has ended, or that were deleted.
    dead: HashSet<String>,
    /// Each answer by its instance and number.
    answers: HashSet<(String, u64)>,
    /// Sessions that have moved because their instance died.
    moved: usize,
    /// How often what was the reason.
    failed: BTreeMap<String, usize>,
    /// Attempts that have reached an instance.
    reached: HashSet<String>,
    /// Attempts that were made again, at a front that went on.
    again: usize,
    wrong: Vec<String>,
}

#[derive(Default)]
pub(crate) struct Book {
    pages: Mutex<Pages>,
    served: AtomicUsize,
    failed: AtomicUsize,
}

impl Book {
    /// An attempt has reached an instance.
    pub(crate) fn reached(&self, attempt: &str) {
        let mut pages = self.pages.lock();
        if !pages.reached.insert(attempt.to_owned()) {
            pages.wrong.push(format!("the attempt {attempt} has reached instances twice"));
        }
    }

    /// A front that stops in order has closed a connection instead of answering. It may, if it has not begun to serve.
    pub(crate) fn closed(&self, attempt: &str) {
        let mut pages = self.pages.lock();
        pages.again += 1;
        if pages.reached.contains(attempt) {
            pages.wrong.push(format!("the attempt {attempt} was cut by a front that stops in order"));
        }
    }

    pub(crate) fn wrong(&self, what: String) {
        self.pages.lock().wrong.push(what);
    }

    /// To be told before anybody else can know.
    pub(crate) fn dies(&self, instance: &str) {
        self.pages.lock().dead.insert(instance.to_owned());
    }

    /// An instance has answered a client, for the n-th time.
    pub(crate) fn served(&self, session: &str, instance: &str, number: u64) {
        let mut pages = self.pages.lock();
        if !pages.answers.insert((instance.to_owned(), number)) {
            pages.wrong.push(format!("the answer {number} of {instance} has come twice"));
        }
        let before = pages.places.insert(session.to_owned(), instance.to_owned());
        if let Some(before) = before.filter(|before| before != instance) {
            if pages.dead.contains(&before) || pages.dead.contains(instance) {
                pages.moved += 1;
            } else {
                pages.wrong.push(format!("{session} was at {before}, which lives, and is at {instance}"));
            }
        }
        self.served.fetch_add(1, Ordering::SeqCst);
    }

    /// A request has failed, for a reason that its answer gives.
    pub(crate) fn failed(&self, reason: String) {
        *self.pages.lock().failed.entry(reason).or_default() += 1;
        self.failed.fetch_add(1, Ordering::SeqCst);
    }

    /// An instance that serves a session and lives.
    pub(crate) fn some_instance(&self, turn: usize) -> Option<String> {
        let pages = self.pages.lock();
        let mut living: Vec<&String> =
            pages.places.values().filter(|instance| !pages.dead.contains(*instance)).collect();
        living.sort_unstable();
        // A prime step, so that they are not met in the order of their names.
        living.get((turn * 7_919) % living.len().max(1)).map(|instance| (*instance).clone())
    }

    fn count(&self) -> usize {
        self.served.load(Ordering::SeqCst) + self.failed.load(Ordering::SeqCst)
    }

    /// Waits until so many requests have been noted in all.
    pub(crate) async fn noted(&self, count: usize) {
        while self.count() < count {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until so many more have been served.
    pub(crate) async fn more(&self, count: usize) {
        let enough = self.served.load(Ordering::SeqCst) + count;
        while self.served.load(Ordering::SeqCst) < enough {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What came of it.
    pub(crate) fn close(&self, size: Size) -> Result<()> {
        let pages = self.pages.lock();
        let (served, failed) = (self.served.load(Ordering::SeqCst), self.failed.load(Ordering::SeqCst));
        let reached = pages.reached.len();
        println!(
            "    {} requests of {} sessions: {served} served, {failed} failed and said why: {:#?}; {reached} reached \
             an instance, {} were made again; {} instances died, and sessions moved {} times",
            served + failed,
            pages.places.len(),
            pages.failed,
            pages.again,
            pages.dead.len(),
            pages.moved
        );
        let shown = &pages.wrong[..pages.wrong.len().min(SHOWN)];
        ensure!(pages.wrong.is_empty(), "{} things are wrong, such as {shown:#?}", pages.wrong.len());
        ensure!(served + failed >= size.requests && pages.places.len() == size.sessions, "not all was tried");
        ensure!(reached >= served, "{served} answers of {reached} requests that reached an instance");
        ensure!(pages.moved > 0 && pages.dead.len() >= size.deaths, "the campaign was no hardship");
        Ok(())
    }
}
