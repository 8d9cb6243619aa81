//! An agent: it runs the sandboxes of a pool, as a member of `agentcube up` or as a Pod, and is the truth about what
//! runs. What should run is said by the controller, over [`agentcube_protos::link::AgentApi`].

mod adopt;
mod agent;
mod calls;
mod clock;
mod describe;
mod exec;
mod images;
mod keep;
mod labels;
mod lease;
pub mod left;
mod limits;
mod logs;
mod machine;
pub mod network;
mod place;
mod prepared;
mod ready;
mod record;
mod run;
pub mod serve;
mod start;
mod stock;
mod table;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentcube_runtime::image::Store;
use agentcube_runtime::native::Native;
use agentcube_runtime::spawner::Handle;
use agentcube_runtime::spec::Mount;
use agentcube_runtime::{Handlers, Runtime};

pub use agent::{Agent, Error};
pub use network::{Attached, Identity, SandboxNetwork};

/// Who an agent is, and how much it takes on.
#[derive(Debug, Clone)]
pub struct Options {
    /// Of the Pod, or of the member.
    pub uid: String,
    pub name: String,
    /// The pool that it serves; orders of others are refused.
    pub pool: String,
    pub namespace: String,
    pub node: String,
    /// How many sandboxes run at once.
    pub capacity: u32,
    /// Which of the runtimes starts them; empty: the default one.
    pub runtime: String,
    /// Processes that one sandbox may have at once.
    pub processes: u64,
    /// How long a controller waits at least before it takes a silent agent for lost, and starts its sandboxes
    /// elsewhere. They stand still before that.
    pub dropped: Duration,
    /// Mounted into every sandbox of the image `host`.
    pub host_mounts: Vec<Mount>,
}

impl Options {
    pub fn new(namespace: impl Into<String>, pool: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            uid: String::new(),
            name: name.into(),
            pool: pool.into(),
            namespace: namespace.into(),
            node: String::new(),
            capacity: 5,
            runtime: String::new(),
            processes: 4_096,
            dropped: Duration::from_secs(15),
            host_mounts: Vec::new(),
        }
    }
}

/// What an agent works with.
pub struct Parts {
    pub spawner: Handle,
    pub runtimes: Handlers,
    /// The built-in runtime, if it is what [`Options::runtime`] names: only it has prepared sandboxes.
    pub native: Option<Native>,
    pub images: Store,
    pub network: Arc<dyn SandboxNetwork>,
    /// A directory of this agent alone. Made if it is missing; what an earlier process left there is removed.
    pub data: PathBuf,
}

impl Parts {
    fn runtime(&self, name: &str) -> Option<Arc<dyn Runtime>> {
        self.runtimes.get(name).cloned()
    }
}
