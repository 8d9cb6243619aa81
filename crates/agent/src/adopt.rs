//! Begins with what an earlier process left: what it runs goes on under the same incarnation, and what it knew is known.
//! Whatever it had only begun is taken away.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentcube_protos::agent::Why;
use agentcube_runtime::spawner::{Adopted, Snapshot, State};
use agentcube_runtime::{Exit, Sandboxes, signals};
use futures_util::future::join_all;
use tokio::sync::oneshot;

use crate::agent::{Agent, Error, Inner, incarnation, unix_ms};
use crate::describe::Place;
use crate::keep::{Found, Keep, uptime};
use crate::machine::{Ending, Event};
use crate::network::Attached;
use crate::record::Record;
use crate::run::Task;
use crate::start::{self, Begun, PREFIX};
use crate::{Options, Parts};

const KILLED: Exit = Exit { code: 128 + signals::KILL, signal: Some(signals::KILL), out_of_memory: false };
/// Numbers of answers and versions begin with the time; nobody uses so many in a millisecond.
const EACH_MILLISECOND: u64 = 1 << 16;

/// A container whose run goes on.
struct Living {
    record: Record,
    place: Place,
    adopted: Adopted,
}

/// What is done with what was found.
#[derive(Default)]
struct Sorted {
    living: Vec<Living>,
    /// Runs whose end is known, with what may be left of them.
    ended: Vec<Record>,
    /// Runs that nobody can have been told of.
    begun: Vec<Record>,
    /// Taken away before anything else.
    remove: Vec<Place>,
}

impl Agent {
    /// Goes on from what an earlier process of the same spawner left. Without one, and if that had not begun, it begins
    /// with nothing. What happens from here on is kept for the next. To be called in a tokio runtime.
    pub async fn resume(options: Options, parts: Parts, snapshot: Option<Snapshot>) -> Result<Self, Error> {
        let mut snapshot = snapshot.unwrap_or_default();
        let mut found = Found::read(&snapshot.notes);
        let incarnation = found.incarnation.take().map_or_else(incarnation, Ok)?;
        let keep = Keep::new(parts.spawner.clone(), &found);
        keep.incarnation(&incarnation);
        let inner = Arc::new(Inner::new(options, parts, incarnation, Some(keep))?);
        let configured = found.configured.clone();
        let containers = std::mem::take(&mut snapshot.containers);
        let ended = std::mem::take(&mut found.ended);
        inner.recall(found);
        let sorted = sort(&inner, containers, ended);
        inner.tidy(&sorted, &snapshot).await?;
        for record in &sorted.begun {
            inner.update(|state| state.table.bury(&record.run, Some(record.claim.clone()), Why::Abandoned));
        }
        sorted.ended.into_iter().for_each(|record| take_note(&inner, record));
        join_all(sorted.living.into_iter().map(|living| go_on(&inner, living))).await;
        if let Some(configured) = configured {
            inner.keep_ready(configured);
        }
        inner.kept().await;
        let agent = Self { inner };
        agent.begin();
        Ok(agent)
    }
}

impl Inner {
    fn recall(&self, found: Found) {
        let (now, up) = (tokio::time::Instant::now().into_std(), uptime());
        let contact = found.contact.map(|at| before(now, up.saturating_sub(at)));
        let millis = u64::try_from(up.as_millis()).unwrap_or_default();
        let first = millis.saturating_mul(EACH_MILLISECOND);
        self.update(|state| {
            state.table.resume(found.term, first);
            state.lease.resume(first, contact);
            if let Some(configured) = &found.configured {
                state.table.resume_limits(configured.capacity, configured.drain);
            }
            for (number, tombstone) in found.tombstones {
                state.table.resume_tombstone(number, tombstone);
            }
        });
    }

    /// Removes all that belongs to no run that goes on.
    async fn tidy(&self, sorted: &Sorted, snapshot: &Snapshot) -> Result<(), Error> {
        join_all(sorted.remove.iter().map(|place| start::remove(self, place))).await;
        let used: HashSet<_> = sorted.living.iter().map(|living| &living.place.sandbox).collect();
        let empty = snapshot.sandboxes.iter().filter(|sandbox| !used.contains(&sandbox.spec.id));
        for removed in join_all(empty.map(|sandbox| self.parts.spawner.remove(&sandbox.spec.id))).await {
            removed?;
        }
        let living = sorted.living.iter();
        let living = living.flat_map(|living| [living.place.id().to_owned(), living.record.run.clone()]);
        let ended = sorted.ended.iter().map(|record| record.run.clone());
        self.clear(&living.chain(ended).collect())
    }
}

fn before(now: Instant, ago: Duration) -> Instant {
    // A machine that was started later than that has no such time; then the earliest there is does as well.
    let earlier = (0..64).map(|half| ago / (1 << half.min(31))).find_map(|ago| now.checked_sub(ago));
    earlier.unwrap_or(now)
}

fn sort(inner: &Inner, containers: Vec<Adopted>, ended: Vec<Record>) -> Sorted {
    let mut sorted = Sorted::default();
    let ended: HashMap<String, Record> =
        ended.into_iter().map(|record| (record.run.clone(), record)).collect();
    for adopted in containers {
        let place = adopted.id.as_str().strip_prefix(PREFIX).and_then(|id| inner.place(id).ok());
        let Some(place) = place else { continue };
        let record = Record::decode_text(&adopted.tag).filter(|record| !ended.contains_key(&record.run));
        match (record, adopted.state) {
            (Some(record), State::Running { .. } | State::Ended(_) | State::Removing) => {
                sorted.living.push(Living { record, place, adopted });
            }
            (Some(record), _) => {
                sorted.begun.push(record);
                sorted.remove.push(place);
            }
            (None, _) => sorted.remove.push(place),
        }
    }
    sorted.ended = ended.into_values().collect();
    sorted
}

/// A run that has ended, and of which nobody has taken note yet.
fn take_note(inner: &Arc<Inner>, record: Record) {
    let (task, handle) = Task::new(inner.clone(), record.run.clone(), record.made.wanted(&record.claim));
    let there = inner.update(|state| {
        state.table.resume_run(&record.run, record.run());
        state.table.step(&record.run, Event::Cleaned, unix_ms());
        let there = state.table.get(&record.run).is_some();
        if there {
            state.runs.insert(record.run.clone(), handle);
        }
        there
    });
    if there {
        tokio::spawn(Box::pin(task.has_ended()));
    }
}

async fn go_on(inner: &Arc<Inner>, living: Living) {
    let Living { record, place, mut adopted } = living;
    let made = Arc::new(record.made.clone());
    let wanted = made.wanted(&record.claim);
    let attached = Attached {
        address: made.address(),
        endpoints: made.endpoints(),
        resolv_conf: made.resolv_conf.clone(),
    };
    let served =
        inner.parts.network.adopt(&place.sandbox, wanted.who.clone(), &wanted.ports, &attached).await;
    let served = served.inspect_err(|error| {
        tracing::error!(run = record.run, "its network cannot be served any more, so it ends: {error}");
    });
    read_on(inner, &record.run, &adopted).await;
    let exit = adopted.exit.take().unwrap_or_else(|| {
        let (ended, exit) = oneshot::channel();
        let how = if let State::Ended(exit) = adopted.state { exit } else { KILLED };
        // The receiver is here.
        let _held = ended.send(how);
        exit
    });
    let begun = Begun {
        place,
        runtime: inner.runtime.clone(),
        env: made.env(),
        exit,
        endpoints: attached.endpoints,
        stop_signal: made.stop_signal,
        prepared: made.prepared,
        image: inner.images.held(&made.image).await,
        made,
        socket: None,
    };
    let (task, handle) = Task::new(inner.clone(), record.run.clone(), wanted);
    inner.update(|state| {
        state.table.resume_run(&record.run, record.run());
        if served.is_err() {
            let end = Event::End { ending: Ending::Fenced, grace: Duration::ZERO };
            state.table.step(&record.run, end, unix_ms());
        }
        state.runs.insert(record.run.clone(), handle);
    });
    tokio::spawn(Box::pin(task.go_on(begun, adopted.frozen)));
}

/// What it writes goes on to its log.
async fn read_on(inner: &Inner, run: &str, adopted: &Adopted) {
    if adopted.kept == 0 || adopted.state == State::Removing {
        return;
    }
    let kept = inner.parts.spawner.kept(&adopted.id).await;
    let resumed = match kept.map(<[_; 2]>::try_from) {
        Ok(Ok(kept)) => inner.logs.resume(&start::log(run), kept).map_err(|error| error.to_string()),
        Ok(Err(_)) => Err("its output was not kept".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = resumed {
        tracing::warn!(run, "what it writes from here on is lost: {error}");
    }
}
