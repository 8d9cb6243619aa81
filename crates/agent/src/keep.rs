//! What outlives this process: notes and tags that the spawner keeps, written in the order in which the table changed.
//! Nobody is told of a change before it is written: see [`Keep::flushed`].

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use agentcube_protos::agent::{ConfigureRequest, Tombstone};
use agentcube_runtime::ContainerId;
use agentcube_runtime::spawner::Handle as Spawner;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use crate::record::{self, Record};

const INCARNATION: &str = "incarnation";
const TERM: &str = "term";
const CONTACT: &str = "contact";
const CONFIGURED: &str = "configured";
const TOMBSTONE: &str = "tombstone/";
const ENDED: &str = "ended/";
/// Bytes of one note; the spawner takes no longer ones.
const PART: usize = 4_000;

enum Item {
    Note { key: String, value: Option<String> },
    Tag { container: ContainerId, tag: String, patience: Duration },
    Heard(Duration),
}

/// Cheap to share; the writer ends with it.
pub(crate) struct Keep {
    items: mpsc::UnboundedSender<Item>,
    queued: AtomicU64,
    written: watch::Receiver<u64>,
    /// Of texts that are kept in parts, how many.
    parts: Mutex<HashMap<String, usize>>,
}

impl Keep {
    /// To be called in a tokio runtime.
    pub(crate) fn new(spawner: Spawner, found: &Found) -> Keep {
        let (items, receiver) = mpsc::unbounded_channel();
        let (written, progress) = watch::channel(0);
        tokio::spawn(write(spawner, receiver, written));
        let parts = Mutex::new(found.parts.clone());
        Keep { items, queued: AtomicU64::new(0), written: progress, parts }
    }

    /// To be called under the lock of the table, so that changes are written in their order.
    fn push(&self, item: Item) {
        self.queued.fetch_add(1, Ordering::AcqRel);
        // The writer lives as long as this.
        let _ended = self.items.send(item);
    }

    fn note(&self, key: impl Into<String>, value: Option<String>) {
        self.push(Item::Note { key: key.into(), value });
    }

    /// Comes back when all that was kept before is with the spawner.
    pub(crate) async fn flushed(&self) {
        let queued = self.queued.load(Ordering::Acquire);
        let mut written = self.written.clone();
        // An error means that the process ends.
        let _ended = written.wait_for(|written| *written >= queued).await;
    }

    pub(crate) fn incarnation(&self, incarnation: &str) {
        self.note(INCARNATION, Some(incarnation.to_owned()));
    }

    pub(crate) fn term(&self, term: u64) {
        self.note(TERM, Some(term.to_string()));
    }

    /// When the controller was last heard of, by the clock that all processes of the machine share.
    pub(crate) fn contact(&self, at: Instant, now: Instant) {
        let since = now.saturating_duration_since(at);
        let at = uptime().saturating_sub(since);
        self.note(CONTACT, Some(at.as_nanos().to_string()));
        self.push(Item::Heard(at));
    }

    pub(crate) fn configured(&self, request: &ConfigureRequest) {
        let request = ConfigureRequest { fence: None, ..request.clone() };
        self.text(CONFIGURED, Some(&record::encode(&request)));
    }

    pub(crate) fn tombstone(&self, number: u64, tombstone: &Tombstone) {
        let key = format!("{TOMBSTONE}{number:020}/{}", tombstone.run_id);
        self.note(key, Some(record::tombstone(tombstone)));
    }

    pub(crate) fn no_tombstone(&self, number: u64, run: &str) {
        self.note(format!("{TOMBSTONE}{number:020}/{run}"), None);
    }

    /// With its container, as long as that is there. Without a controller that goes on for so long, whoever lives.
    pub(crate) fn living(&self, container: &ContainerId, record: Record, patience: Duration) {
        self.push(Item::Tag { container: container.clone(), tag: record.encode_text(), patience });
    }

    /// When its container is about to go.
    pub(crate) fn ended(&self, record: Record) {
        self.text(&format!("{ENDED}{}", record.run), Some(&record.encode_text()));
    }

    pub(crate) fn gone(&self, run: &str) {
        self.text(&format!("{ENDED}{run}"), None);
    }

    /// A text of any length, in parts.
    fn text(&self, name: &str, text: Option<&str>) {
        let parts = text.map(split).unwrap_or_default();
        let before = match parts.len() {
            0 => self.parts.lock().remove(name),
            count => self.parts.lock().insert(name.to_owned(), count),
        };
        // The first part says how many there are: as long as it is the old one, so is the text.
        for number in (parts.len()..before.unwrap_or(0)).rev() {
            self.note(format!("{name}/{number}"), None);
        }
        for (number, part) in parts.iter().enumerate().rev() {
            let value = if number == 0 { format!("{} {part}", parts.len()) } else { (*part).to_owned() };
            self.note(format!("{name}/{number}"), Some(value));
        }
    }
}

/// Parts that a note holds; one at least.
fn split(mut text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    while text.len() > PART {
        let end = (0..=PART).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(PART);
        let (part, rest) = text.split_at(end);
        parts.push(part);
        text = rest;
    }
    parts.push(text);
    parts
}

async fn write(spawner: Spawner, mut items: mpsc::UnboundedReceiver<Item>, written: watch::Sender<u64>) {
    while let Some(item) = items.recv().await {
        let kept = match &item {
            Item::Note { key, value } => spawner.note(key, value.as_deref()).await,
            Item::Heard(at) => spawner.heard(*at).await,
            Item::Tag { container, tag, patience } => {
                match tokio::try_join!(
                    spawner.retag(container, tag),
                    spawner.patience(container, Some(*patience))
                ) {
                    // It has ended by now, or never began.
                    Err(agentcube_runtime::Error::NotFound { .. }) => Ok(()),
                    other => other.map(drop),
                }
            }
        };
        if let Err(error) = kept {
            tracing::error!("something is not kept for whoever comes after this process: {error}");
        }
        written.send_modify(|written| *written += 1);
    }
}

/// The machine's clock, which no process sets: since its start, in steps of 10 ms.
pub(crate) fn uptime() -> Duration {
    let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split_whitespace().next().and_then(|seconds| seconds.parse().ok());
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}

/// What an earlier process has kept.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) incarnation: Option<String>,
    pub(crate) term: u64,
    /// By the machine's clock.
    pub(crate) contact: Option<Duration>,
    pub(crate) configured: Option<ConfigureRequest>,
    pub(crate) tombstones: Vec<(u64, Tombstone)>,
    pub(crate) ended: Vec<Record>,
    parts: HashMap<String, usize>,
}

impl Found {
    pub(crate) fn read(notes: &BTreeMap<String, String>) -> Found {
        let mut found = Found {
            incarnation: notes.get(INCARNATION).cloned(),
            term: notes.get(TERM).and_then(|term| term.parse().ok()).unwrap_or_default(),
            contact: notes.get(CONTACT).and_then(|at| at.parse().ok()).map(Duration::from_nanos),
            ..Found::default()
        };
        found.configured = found.text(notes, CONFIGURED).and_then(|text| record::decode(&text));
        for (key, value) in notes.range(TOMBSTONE.to_owned()..) {
            let Some(number) = key.strip_prefix(TOMBSTONE) else { break };
            let number = number.split_once('/').and_then(|(number, _)| number.parse().ok());
            found.tombstones.extend(number.zip(record::decode(value)));
        }
        for key in notes.range(ENDED.to_owned()..).map(|(key, _)| key) {
            if !key.starts_with(ENDED) {
                break;
            }
            let Some(name) = key.strip_suffix("/0") else { continue };
            let record = found.text(notes, name).and_then(|text| Record::decode_text(&text));
            found.ended.extend(record);
        }
        found
    }

    fn text(&mut self, notes: &BTreeMap<String, String>, name: &str) -> Option<String> {
        let (count, first) = notes.get(&format!("{name}/0"))?.split_once(' ')?;
        let count: usize = count.parse().ok()?;
        self.parts.insert(name.to_owned(), count);
        let mut text = first.to_owned();
        for number in 1..count {
            text.push_str(notes.get(&format!("{name}/{number}"))?);
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What would be with the spawner after these items.
    fn kept(items: &mut mpsc::UnboundedReceiver<Item>, notes: &mut BTreeMap<String, String>) {
        while let Ok(item) = items.try_recv() {
            match item {
                Item::Note { key, value: Some(value) } => drop(notes.insert(key, value)),
                Item::Note { key, value: None } => drop(notes.remove(&key)),
                Item::Tag { .. } | Item::Heard(_) => {}
            }
        }
    }

    fn keep() -> (Keep, mpsc::UnboundedReceiver<Item>) {
        let (items, receiver) = mpsc::unbounded_channel();
        let written = watch::channel(0).1;
        (Keep { items, queued: AtomicU64::new(0), written, parts: Mutex::default() }, receiver)
    }

    #[test]
    fn all_of_it_is_found_again() {
        let (keep, mut items) = keep();
        let mut notes = BTreeMap::new();
        keep.incarnation("one");
        keep.term(7);
        let now = Instant::now();
        keep.contact(now, now);
        keep.configured(&ConfigureRequest { capacity: 3, drain: true, ..ConfigureRequest::default() });
        for (number, run) in [(11, "b"), (2, "a")] {
            keep.tombstone(number, &Tombstone { run_id: run.into(), ..Tombstone::default() });
        }
        let long = Record { run: "r".into(), object: "ü".repeat(9_000).into_bytes(), ..Record::default() };
        keep.ended(long.clone());
        kept(&mut items, &mut notes);
        let found = Found::read(&notes);
        assert_eq!((found.incarnation.as_deref(), found.term), (Some("one"), 7));
        assert!(found.contact.is_some_and(|at| at <= uptime()));
        assert!(found.configured.is_some_and(|it| it.capacity == 3 && it.drain));
        let runs: Vec<_> = found.tombstones.iter().map(|(number, it)| (*number, &*it.run_id)).collect();
        assert_eq!(runs, [(2, "a"), (11, "b")]);
        assert_eq!(found.ended, std::slice::from_ref(&long));
        keep.ended(Record { object: Vec::new(), ..long });
        keep.gone("r");
        keep.no_tombstone(2, "a");
        kept(&mut items, &mut notes);
        assert!(!notes.keys().any(|key| key.starts_with(ENDED)), "{notes:?}");
        assert_eq!(Found::read(&notes).tombstones.len(), 1);
    }
}
