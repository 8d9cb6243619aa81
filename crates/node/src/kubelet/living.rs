//! The containers that run on this node now, for whoever reads their logs or runs commands in them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use agentcube_runtime::{ContainerId, Runtime};
use parking_lot::RwLock;

/// One run of a container.
#[derive(Clone)]
pub struct Run {
    pub id: ContainerId,
    pub runtime: Arc<dyn Runtime>,
    pub env: Arc<Vec<(String, String)>>,
    /// The writing end of its standard input, if the Pod asked for one. It is closed with the last copy of this.
    pub stdin: Option<Arc<OwnedFd>>,
    /// The terminal's master side, if it has one.
    pub terminal: Option<Arc<OwnedFd>>,
    /// How it is asked to end.
    pub(crate) stop_signal: i32,
}

/// A handle on all of them; cheap to clone.
#[derive(Clone, Default)]
pub struct Living {
    runs: Arc<RwLock<HashMap<(String, String), Run>>>,
}

impl Living {
    /// The run of a container, by the uid of its Pod and its name.
    pub fn get(&self, uid: &str, container: &str) -> Option<Run> {
        self.runs.read().get(&(uid.to_owned(), container.to_owned())).cloned()
    }

    pub(super) fn begin(&self, uid: &str, container: &str, run: Run) {
        self.runs.write().insert((uid.to_owned(), container.to_owned()), run);
    }

    pub(super) fn end(&self, uid: &str, container: &str) {
        self.runs.write().remove(&(uid.to_owned(), container.to_owned()));
    }
}
