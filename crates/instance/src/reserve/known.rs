//! Which sessions a router knows, for operators: in pages of a fixed order, each by one pass over the memory that keeps no
//! more than a page. Keys are as they are; whoever shows them hides them.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use jiff::Timestamp;

use super::index::{Entry, Kept, SessionId};
use super::{Reserver, Shared};
use crate::identity::{InstanceId, SessionKey, TaskId};
use crate::provider::Path;
use crate::record::{LeaseHash, Session};

/// What to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pub namespace: Option<String>,
    /// The name of a Task.
    pub task: Option<String>,
    /// Those after this place.
    pub after: Option<Place>,
    /// So many at most.
    pub limit: usize,
}

/// A place in the order of sessions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    namespace: Arc<str>,
    hash: LeaseHash,
}

impl Place {
    /// Reads what [`Display`] wrote.
    pub fn parse(text: &str) -> Option<Place> {
        let (namespace, lease) = text.split_once('/')?;
        Some(Place { namespace: namespace.into(), hash: LeaseHash::parse(lease)? })
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.hash.lease_name())
    }
}

/// How far a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It waits for an instance.
    Waiting,
    /// It has an instance.
    Bound,
    /// It has an instance that is paused.
    Paused,
    /// It is to end for being idle.
    Releasing,
    /// It ends.
    Ending,
}

/// A session as this router knows it.
#[derive(Clone, Debug)]
pub struct Known {
    pub task: TaskId,
    pub key: SessionKey,
    pub instance: Option<InstanceId>,
    pub state: State,
    /// Requests through this router.
    pub in_flight: u32,
    /// When it was last active, through this router or as its Lease says.
    pub last_active: Timestamp,
    /// How the last request through this router came by the instance.
    pub path: Option<Path>,
}

/// Some of the sessions.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub sessions: Vec<Known>,
    /// Where the next page goes on, if there is one.
    pub next: Option<Place>,
}

impl Reserver {
    /// The sessions that this router knows.
    pub fn known(&self, query: &Query) -> Page {
        self.shared.known_sessions(query)
    }
}

impl Shared {
    fn known_sessions(&self, query: &Query) -> Page {
        let tasks: HashMap<Arc<str>, TaskId> = self
            .tasks
            .all()
            .iter()
            .map(|view| (view.id.uid.clone(), view.id.clone()))
            .filter(|(_, id)| query.task.as_ref().is_none_or(|task| **task == *id.name))
            .collect();
        // One more than wanted tells whether there is more.
        let most = query.limit.saturating_add(1);
        let mut found: BTreeMap<Place, Known> = BTreeMap::new();
        self.index.each_session(|id, entry| {
            let Kept::Session(session) = &entry.kept else { return };
            let full = found.len() >= most;
            if query.namespace.as_ref().is_some_and(|namespace| **namespace != *id.namespace)
                || full && found.last_key_value().is_some_and(|(last, _)| last.is_before(id))
                || query.after.as_ref().is_some_and(|after| !after.is_before(id))
            {
                return;
            }
            let Some(task) = tasks.get(&session.task_uid) else { return };
            let place = Place { namespace: id.namespace.clone(), hash: id.hash };
            found.insert(place, self.known_as(task, session, entry));
            if full {
                found.pop_last();
            }
        });
        let more = found.len() > query.limit;
        if more {
            found.pop_last();
        }
        let next = found.last_key_value().map(|(place, _)| place.clone()).filter(|_| more);
        Page { sessions: found.into_values().collect(), next }
    }

    fn known_as(&self, task: &TaskId, session: &Session, entry: &Entry) -> Known {
        let state = match session {
            Session { ending: true, .. } => State::Ending,
            Session { releasing: true, .. } => State::Releasing,
            Session { holder: None, .. } => State::Waiting,
            Session { rests: Some(_), .. } => State::Paused,
            _ => State::Bound,
        };
        let usage = entry.usage.as_deref();
        let last = usage.map(|usage| self.clock.time_of_day(usage.last_active(self.clock.now())));
        Known {
            task: task.clone(),
            key: session.key.clone(),
            instance: session.holder.clone(),
            state,
            in_flight: usage.map_or(0, |usage| usage.in_flight()),
            last_active: last.map_or(session.renewed, |last| last.max(session.renewed)),
            path: usage.and_then(|usage| usage.last_path()),
        }
    }

    /// Sets the number of sessions of each Task among the metrics.
    pub(super) fn count_sessions(&self) {
        let mut counts: HashMap<Arc<str>, i64> = HashMap::new();
        self.index.each_session(|_, entry| {
            let Kept::Session(session) = &entry.kept else { return };
            match counts.get_mut(&session.task_uid) {
                Some(count) => *count += 1,
                None => drop(counts.insert(session.task_uid.clone(), 1)),
            }
        });
        for view in self.tasks.all() {
            if let Some(of_task) = &view.counts {
                of_task.sessions(counts.get(&view.id.uid).copied().unwrap_or(0));
            }
        }
    }
}

impl Place {
    fn is_before(&self, id: &SessionId) -> bool {
        (&*self.namespace, self.hash) < (&*id.namespace, id.hash)
    }
}
