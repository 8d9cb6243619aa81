//! Starts isolated processes and containers, and knows nothing of Kubernetes.
//!
//! A small single-threaded [`spawner`] process does what needs `clone3`; everything else asks it. What runs is said by
//! a [`spec`], in what file system by an [`image`], behind the one [`Runtime`] trait.

pub mod capabilities;
pub mod cgroup;
pub mod confine;
pub mod host;
pub mod image;
pub mod keeper;
pub mod logs;
pub mod memory;
pub mod native;
pub mod netns;
pub mod oci;
mod rootfs;
mod seccomp;
pub mod session;
pub mod signals;
pub mod spawner;
pub mod spec;
mod sweep;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::pin::Pin;

pub use rootfs::make_scratch;
pub use spec::{ContainerId, ContainerSpec, ExecSpec, SandboxId, SandboxSpec};

/// A future of a [`Runtime`], boxed so that the trait can be an object.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Why the runtime did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The request cannot work as written; asking again will not help.
    #[error("{0}")]
    Invalid(String),
    /// This machine lacks something; the message says what and how to get it.
    #[error("{0}")]
    Unsupported(String),
    #[error("there is no {what} {id:?}")]
    NotFound { what: &'static str, id: String },
    #[error("{what} {id:?} exists already")]
    Exists { what: &'static str, id: String },
    /// A step of the setup failed, usually before the program ran.
    #[error("{step}: {reason}")]
    Step { step: &'static str, reason: String },
    /// The spawner is gone, and with it every instance that it started.
    #[error("the spawner process has ended; restart the node")]
    SpawnerGone,
}

/// The three standard streams of a process. A stream that is not given is `/dev/null`.
#[derive(Debug, Default)]
pub struct Stdio {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// Kept open with the container for whoever adopts it, such as the other ends of its streams; at most
    /// [`Stdio::MOST_KEPT`]. Not for `exec`.
    pub kept: Vec<OwnedFd>,
}

impl Stdio {
    pub const MOST_KEPT: usize = 4;
}

/// The sockets through which the node serves a sandbox's network; see `docs/decisions`.
#[derive(Debug)]
pub struct SandboxSockets {
    /// Listens in the sandbox; every outgoing TCP connection arrives here (`SO_ORIGINAL_DST` has its destination).
    pub outgoing: OwnedFd,
    /// Receives the sandbox's DNS queries over UDP, to whatever address they were sent.
    pub dns: OwnedFd,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Exit {
    /// The exit code; for a process that a signal ended, 128 and the signal.
    pub code: i32,
    pub signal: Option<i32>,
    /// The kernel killed a process of the container because it was out of its memory limit.
    pub out_of_memory: bool,
}

/// What a container uses now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    pub cpu_nanoseconds: u64,
    pub memory_bytes: u64,
    pub processes: u64,
}

/// A process that was started; [`Process::exit`] resolves when it has ended and was reaped.
pub struct Process {
    /// As the host sees it.
    pub pid: u32,
    /// The terminal's master side, when one was asked for.
    pub terminal: Option<OwnedFd>,
    pub exit: tokio::sync::oneshot::Receiver<Exit>,
}

/// The network namespaces of Pods, each with an address of its own. One implementation: the spawner's.
pub trait Sandboxes: Send + Sync {
    fn create<'a>(&'a self, spec: SandboxSpec) -> Answer<'a, SandboxSockets>;
    /// Removes it with whatever still runs in it; removing one that is not there is no error.
    fn remove<'a>(&'a self, id: &'a SandboxId) -> Answer<'a, ()>;
    /// A TCP socket that lives in the sandbox's network: bound to `source` if given, not yet connected, non-blocking.
    fn socket<'a>(&'a self, id: &'a SandboxId, source: Option<Ipv4Addr>) -> Answer<'a, OwnedFd>;
}

/// Starts containers in sandboxes. Implemented natively and by OCI runtimes.
pub trait Runtime: Send + Sync {
    /// Prepares and runs a container's program; resolves once it has been executed.
    fn start<'a>(&'a self, spec: ContainerSpec, stdio: Stdio) -> Answer<'a, Process>;
    /// Sends a signal to the container's first process; one that has ended is no error.
    fn signal<'a>(&'a self, id: &'a ContainerId, signal: i32) -> Answer<'a, ()>;
    /// Runs one more program in a running container.
    fn exec<'a>(&'a self, id: &'a ContainerId, spec: ExecSpec, stdio: Stdio) -> Answer<'a, Process>;
    /// Kills what still runs and gives back its cgroup, mounts and scratch directory; not being there is no error.
    fn remove<'a>(&'a self, id: &'a ContainerId) -> Answer<'a, ()>;
    fn usage<'a>(&'a self, id: &'a ContainerId) -> Answer<'a, Usage>;
    /// Stops all processes of a running container where they are, or lets them go on; resolves when they stand still.
    /// Asking twice is no error. Nothing is executed in a frozen container, signals wait until it is thawed, and only
    /// SIGKILL and `remove` end it.
    fn freeze<'a>(&'a self, id: &'a ContainerId, frozen: bool) -> Answer<'a, ()> {
        let _ = frozen;
        let message = format!("the runtime of container {id} cannot freeze it");
        Box::pin(std::future::ready(Err(Error::Unsupported(message))))
    }
    /// Changes a label of a container that is there. Runtimes that keep none have nothing to change.
    fn label<'a>(&'a self, id: &'a ContainerId, label: &'a str, value: &'a str) -> Answer<'a, ()> {
        let _ = (id, label, value);
        Box::pin(std::future::ready(Ok(())))
    }
    /// The images of this runtime, if it has its own instead of the node's.
    fn images(&self) -> Option<&dyn image::Source> {
        None
    }
}

/// The runtimes of a node by the handler of a RuntimeClass; the empty handler is the default.
pub type Handlers = BTreeMap<String, std::sync::Arc<dyn Runtime>>;
