//! The two faces of whatever makes instances: the control plane's, which prepares a revision, and the data plane's,
//! which gives a request an instance. Controllers and routers know instances only through these.

use std::sync::Arc;
use std::time::Duration;

use agentcube_api::Task;
use agentcube_api::agentcube::task::InstanceStatistics;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt};

use crate::alias::{Alias, NameError, Named};
use crate::identity::{Endpoint, InstanceId, SessionKey, SpecId, TaskId};
use crate::record::Session;
use crate::reserve::{InUse, SessionRef};
use crate::token::{SealKeys, Token};

/// How a revision stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecStatus {
    pub desired: i32,
    pub available: i32,
    pub reserved: i32,
    /// All of its instances, of whatever state; a revision without any can be released.
    pub total: i32,
    /// Why its instances do not come up, for people: what failed, with the last lines of its log.
    pub trouble: Option<String>,
    /// Work that has to be over before instances can start, such as fetching a bundle, is under way.
    pub preparing: bool,
}

/// Why a revision cannot be prepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The spec cannot work until it changes.
    #[error("{0}")]
    Invalid(String),
    /// Something that the spec names is not there; heals when it appears.
    #[error("{message}")]
    Missing { reason: &'static str, message: String },
    /// Something of somebody else's is in the way; to be looked at again from time to time.
    #[error("{0}")]
    Blocked(String),
    /// A write or a read failed; to be tried again.
    #[error("{0}")]
    Transient(String),
}

/// The control plane's face.
pub trait InstanceSpecProvider: Send + Sync {
    /// Hash over what an instance is made of; another hash is another revision.
    fn template_hash(&self, task: &Task) -> Result<String, SpecError>;

    /// Checks the spec and makes, or mends, what instances of this revision are made from. Idempotent. Says what it
    /// had to mend: what is returned names the objects that were missing or changed. `known` says that it was made
    /// before; `closely` has all compared with what the server has, not with what it told.
    fn initialize_spec<'a>(
        &'a self,
        task: &'a Task,
        spec: &'a SpecId,
        known: bool,
        closely: bool,
    ) -> BoxFuture<'a, Result<Vec<Repair>, SpecError>>;

    /// Carries a change of scaling over to the revision.
    fn update_spec<'a>(&'a self, task: &'a Task, spec: &'a SpecId) -> BoxFuture<'a, Result<(), SpecError>>;

    /// Removes what was made for the revision; its instances end with it.
    fn release_spec<'a>(&'a self, task: &'a Task, spec: &'a SpecId) -> BoxFuture<'a, Result<(), SpecError>>;

    /// How the revision stands, from memory.
    fn spec_status(&self, task: &Task, spec: &SpecId) -> SpecStatus;

    /// Tells, from now on, of every Task of which something that was made for it, or the trouble of an instance, has
    /// changed in that memory: time to look at it again. Whoever listens to the API server instead may hear of a
    /// change before the provider does, and then see the old status. How many instances there are is not told.
    fn changes(&self) -> BoxStream<'static, TaskName> {
        futures_util::stream::pending().boxed()
    }
}

/// A Task as others know it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

/// A child that was put right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    pub kind: &'static str,
    pub name: String,
    pub what: Repaired,
}

/// What was wrong with a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repaired {
    /// It was gone.
    Recreated,
    /// It had been changed.
    Restored,
}

/// What a request asks for.
#[derive(Clone, Debug)]
pub struct Request {
    pub task: TaskId,
    /// The session; none for a Oneshot.
    pub key: Option<SessionKey>,
    /// On whose behalf, for a fair share when the maximum is reached.
    pub tenant: Option<String>,
    /// Whether the session may be a new one.
    pub which: Which,
}

/// Which session of a key a request may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// The key's; where there is none it is begun.
    #[default]
    OrNew,
    /// Only one that exists already, with this Lease if one is named. An instance that it lost is replaced.
    Existing { lease: Option<Arc<str>> },
    /// The same, and only with the instance that it has, or had at its so many-th binding if one is named: what was said
    /// to that one is known to no other.
    Intact { lease: Option<Arc<str>>, binding: Option<i32> },
}

impl Which {
    /// The Lease that the session has to have.
    pub(crate) fn lease(&self) -> Option<&str> {
        match self {
            Which::OrNew => None,
            Which::Existing { lease } | Which::Intact { lease, .. } => lease.as_deref(),
        }
    }

    /// Whether a session that exists may be meant.
    pub(crate) fn fits(&self, session: &Session) -> bool {
        let bound_since = match self {
            Which::Intact { binding: Some(binding), .. } => *binding == session.binding,
            _ => true,
        };
        bound_since && self.lease().is_none_or(|lease| *session.uid == *lease)
    }
}

/// How an instance was found, for metrics and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// The session was bound already.
    Reused,
    /// An idle instance was bound.
    Bound,
    /// The request had to wait for an instance to start or to become free.
    Waited,
    /// The session's instance was lost, and it got another.
    Rebound,
}

impl Path {
    /// As metrics and logs name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Path::Reused => "reused",
            Path::Bound => "bound",
            Path::Waited => "waited",
            Path::Rebound => "rebound",
        }
    }
}

/// An instance that a request may use until this is dropped. While any is alive the session is not idle.
#[derive(Debug)]
pub struct Reserved {
    pub instance: InstanceId,
    pub endpoint: Endpoint,
    pub token: Token,
    pub path: Path,
    pub in_use: InUse,
}

/// Why a request got no instance. Says itself what the client is to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    #[error("there is no such Task")]
    NoSuchTask,
    #[error("the Task is not ready: {0}")]
    NotReady(String),
    #[error("no instance became free within {waited:?}: {reason}")]
    Timeout { waited: Duration, reason: String },
    #[error("too many requests wait for this Task")]
    TooManyWaiting,
    #[error("the API server has not been heard of for too long, so what is known of sessions may be wrong")]
    OutOfTouch,
    #[error("the router is shutting down")]
    ShuttingDown,
    /// Only where the session had to exist: the API server has no such one, or its instance is lost.
    #[error("there is no such session, or its instance is gone")]
    NoSuchSession,
}

impl ReserveError {
    /// After how long it makes sense to ask again; none if asking again does not help.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            ReserveError::NoSuchTask | ReserveError::NoSuchSession => None,
            ReserveError::ShuttingDown => Some(Duration::from_secs(1)),
            ReserveError::Timeout { .. } | ReserveError::NotReady(_) | ReserveError::TooManyWaiting => {
                Some(Duration::from_secs(2))
            }
            ReserveError::OutOfTouch => Some(Duration::from_secs(5)),
        }
    }
}

/// The data plane's face.
pub trait InstanceProvider: Send + Sync {
    /// An instance for a request; waits for one up to the Task's `reserveTimeout`. Dropping the future stops the
    /// waiting and leaves nothing behind.
    fn reserve_instance(&self, request: Request) -> BoxFuture<'_, Result<Reserved, ReserveError>>;

    /// The instance of a request whose session has one, from memory; nothing where that takes more.
    fn instance_at_hand(&self, _: &Request) -> Option<Reserved> {
        None
    }

    /// Counts of a revision's instances, from memory.
    fn instance_statistics(&self, task: &TaskId, spec: &SpecId) -> InstanceStatistics;

    /// The session that an alias stands for, from memory; where that has none, the API server is asked, unless the
    /// session with the key `own`, which would be meant then, is known to exist. The session may have ended, so it is to
    /// be reserved as [`Which::Existing`] or [`Which::Intact`].
    fn resolve<'a>(
        &'a self,
        _task: &'a TaskId,
        _alias: &'a Alias,
        _own: Option<&'a SessionKey>,
    ) -> BoxFuture<'a, Result<Option<Named>, ReserveError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Gives the session of a request further names. When this comes back well, every router finds it by them.
    fn name_session<'a>(
        &'a self,
        _in_use: &'a InUse,
        _aliases: Vec<Alias>,
    ) -> BoxFuture<'a, Result<(), NameError>> {
        Box::pin(std::future::ready(Err(NameError::Unsupported)))
    }

    /// Ends a session before its time; where that fails it ends for being idle. Requests of it that are in flight are
    /// waited for a little, here and, for as long as `rest`, elsewhere: without any its instance is as good as new, and
    /// is used again if the Task lets it be.
    fn end_session(&self, _session: SessionRef, _rest: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// What texts for the clients of a Task are sealed with.
    fn seal_keys(&self, _task: &TaskId) -> Option<SealKeys> {
        None
    }
}
