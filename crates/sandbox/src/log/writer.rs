//! The thread that writes: all that waits goes into one frame, with one sync for everybody. After a failure nothing is
//! appended before the log was written anew as a whole, since nobody knows what the disk has.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::disk::Disk;
use super::entries::{Entries, Intent, Open, Record, payload};
use super::{LogError, frame};
use crate::names::{Name, PoolKey, RunId};

/// How long what nobody waits for waits for company.
const LAZY: Duration = Duration::from_millis(100);
/// How soon a disk that failed is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// Objects that a frame has at most, in bytes.
const FRAME: usize = 8 << 20;
/// Objects that may be promised at once, in bytes.
const MOST: usize = 128 << 20;
/// A log that is shorter is not worth rewriting.
const SHORT: u64 = 4 << 20;

type Reply = oneshot::Sender<Result<(), LogError>>;

#[derive(Default)]
struct State {
    entries: Entries,
    queue: Vec<(Record, Option<Reply>)>,
    broken: Option<String>,
    closed: bool,
}

/// What the thread shares with whoever has something to write.
#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    news: Condvar,
}

impl Shared {
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.news.notify_all();
    }

    pub(super) fn count(&self) -> usize {
        self.state.lock().entries.count()
    }

    pub(super) fn check(&self) -> Result<(), LogError> {
        let state = self.state.lock();
        match &state.broken {
            Some(why) => Err(LogError::Broken { why: why.clone() }),
            None if state.entries.bytes() >= MOST => Err(LogError::Full),
            None => Ok(()),
        }
    }

    pub(super) fn promise(
        &self,
        name: &Name,
        pool: &PoolKey,
        intent: Intent,
    ) -> Result<oneshot::Receiver<Result<(), LogError>>, LogError> {
        self.check()?;
        let (reply, wait) = oneshot::channel();
        let mut state = self.state.lock();
        if state.closed {
            return Err(LogError::Closed);
        }
        state.entries.insert(name, pool, &intent);
        state.queue.push((Record::Intent(intent), Some(reply)));
        drop(state);
        self.news.notify_all();
        Ok(wait)
    }

    pub(super) fn append(&self, record: Record) -> Result<oneshot::Receiver<Result<(), LogError>>, LogError> {
        let (reply, wait) = oneshot::channel();
        let mut state = self.state.lock();
        if state.closed {
            return Err(LogError::Closed);
        }
        state.queue.push((record, Some(reply)));
        drop(state);
        self.news.notify_all();
        Ok(wait)
    }

    pub(super) fn done(&self, run: &RunId, deleted_too: bool) {
        let mut state = self.state.lock();
        if state.entries.done(run, deleted_too) {
            state.queue.push((Record::Done { run: run.clone() }, None));
            drop(state);
            self.news.notify_all();
        }
    }

    /// Nothing to wait for if the disk promises no object of this name.
    pub(super) fn forget(
        &self,
        name: &Name,
    ) -> Result<Option<oneshot::Receiver<Result<(), LogError>>>, LogError> {
        let promised = self.state.lock().entries.promised(name);
        promised.iter().filter(|(_, done)| !done).for_each(|(run, _)| self.done(run, false));
        // Frames are written in order: with this one all before it are on disk.
        promised.last().map(|(run, _)| self.append(Record::Done { run: run.clone() })).transpose()
    }

    pub(super) fn of(&self, name: &Name) -> Option<Open> {
        self.state.lock().entries.of(name)
    }

    pub(super) fn names(&self) -> Vec<Name> {
        self.state.lock().entries.names()
    }
}

/// Whoever writes.
pub(super) struct Writer {
    disk: Box<dyn Disk>,
    shared: Arc<Shared>,
    /// Number of the next frame.
    next: u64,
    length: u64,
    tried: Instant,
}

impl Writer {
    /// A log where there is none.
    pub(super) fn begin(mut disk: Box<dyn Disk>) -> io::Result<Writer> {
        let bytes = frame::write(0, &payload(&Entries::default().records()));
        disk.replace(&bytes)?;
        Ok(Writer::resume(disk, Entries::default(), 1, bytes.len() as u64))
    }

    pub(super) fn resume(disk: Box<dyn Disk>, entries: Entries, next: u64, length: u64) -> Writer {
        let shared = Arc::new(Shared::default());
        shared.state.lock().entries = entries;
        Writer { disk, shared, next, length, tried: Instant::now() }
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    pub(super) fn run(mut self) {
        while let Some(batch) = self.wait() {
            self.commit(batch);
        }
    }

    /// What there is to write; none when it is all over. An empty batch only tries the disk again.
    fn wait(&self) -> Option<Vec<(Record, Option<Reply>)>> {
        let mut state = self.shared.state.lock();
        let mut lazy_since = None;
        loop {
            let waited_for = state.queue.iter().any(|(_, reply)| reply.is_some());
            let over = (state.closed && (state.queue.is_empty() || state.broken.is_some())).then_some(());
            if over.is_some() {
                return None;
            }
            if waited_for || (state.closed && !state.queue.is_empty()) {
                break;
            }
            let until = match (&state.broken, state.queue.is_empty()) {
                (Some(_), _) => Some(self.tried + RETRY),
                (None, false) => Some(*lazy_since.get_or_insert_with(Instant::now) + LAZY),
                (None, true) => None,
            };
            match until {
                None => self.shared.news.wait(&mut state),
                Some(until) if self.shared.news.wait_until(&mut state, until).timed_out() => break,
                Some(_) => {}
            }
        }
        let mut bytes = 0;
        let fits = state.queue.iter().take_while(|(record, _)| {
            let before = bytes;
            bytes += size(record);
            before == 0 || bytes <= FRAME
        });
        let count = fits.count();
        Some(state.queue.drain(..count).collect())
    }

    fn commit(&mut self, batch: Vec<(Record, Option<Reply>)>) {
        let (records, replies): (Vec<Record>, Vec<Option<Reply>>) = batch.into_iter().unzip();
        let outcome = self.write(&records);
        let answer = match outcome {
            Ok(()) => {
                self.committed(&records);
                Ok(())
            }
            Err(why) => {
                // What nobody waits for is left out of the next whole log.
                let mut state = self.shared.state.lock();
                if state.broken.is_none() {
                    tracing::error!(log = self.disk.name(), "the log of sandboxes cannot be written: {why}");
                }
                state.broken = Some(why.clone());
                Err(LogError::Broken { why })
            }
        };
        replies.into_iter().flatten().for_each(|reply| drop(reply.send(answer.clone())));
    }

    /// Writes a frame, or the whole log if that is needed.
    fn write(&mut self, records: &[Record]) -> Result<(), String> {
        let broken = self.shared.state.lock().broken.clone();
        if let Some(why) = broken {
            if self.tried.elapsed() < RETRY {
                return Err(why);
            }
            self.rewrite()?;
        }
        if !records.is_empty() {
            let bytes = frame::write(self.next, &payload(records));
            self.tried = Instant::now();
            self.disk.append(&bytes).map_err(|error| error.to_string())?;
            (self.next, self.length) = (self.next + 1, self.length + bytes.len() as u64);
        }
        let live = self.shared.state.lock().entries.bytes() as u64;
        if self.length > SHORT.max(live.saturating_mul(3)) {
            self.committed(records);
            self.rewrite()?;
        }
        Ok(())
    }

    fn committed(&self, records: &[Record]) {
        let mut state = self.shared.state.lock();
        for record in records {
            match record {
                Record::Done { run } => state.entries.remove(run),
                Record::Deleted { run } => drop(state.entries.delete(run)),
                Record::Begin { .. } | Record::Intent(_) => {}
            }
        }
    }

    /// Writes all that is open into a fresh log.
    fn rewrite(&mut self) -> Result<(), String> {
        self.tried = Instant::now();
        let records = self.shared.state.lock().entries.records();
        let mut bytes = Vec::new();
        let mut next = 0;
        for chunk in chunks(&records) {
            bytes.extend_from_slice(&frame::write(next, &payload(chunk)));
            next += 1;
        }
        self.disk.replace(&bytes).map_err(|error| error.to_string())?;
        (self.next, self.length) = (next, bytes.len() as u64);
        let mut state = self.shared.state.lock();
        // Only what was over when it was written is not in it; what came since is in the queue.
        let written: HashSet<RunId> = records.iter().filter_map(run_of).cloned().collect();
        state.entries.rewritten(&written);
        if state.broken.take().is_some() {
            tracing::info!(log = self.disk.name(), "the log of sandboxes can be written again");
        }
        Ok(())
    }
}

fn run_of(record: &Record) -> Option<&RunId> {
    match record {
        Record::Intent(intent) => Some(&intent.run),
        Record::Begin { .. } | Record::Deleted { .. } | Record::Done { .. } => None,
    }
}

fn size(record: &Record) -> usize {
    match record {
        Record::Intent(intent) => intent.object.get().len() + 256,
        Record::Begin { .. } | Record::Deleted { .. } | Record::Done { .. } => 128,
    }
}

/// Records in pieces that fit into frames.
fn chunks(mut records: &[Record]) -> Vec<&[Record]> {
    let mut chunks = Vec::new();
    while !records.is_empty() {
        let mut bytes = 0;
        let fits = records.iter().take_while(|record| {
            let before = bytes;
            bytes += size(record);
            before == 0 || bytes <= FRAME
        });
        let (chunk, rest) = records.split_at(fits.count());
        chunks.push(chunk);
        records = rest;
    }
    chunks
}
