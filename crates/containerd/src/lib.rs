//! Containers by containerd, over its socket: a [`Runtime`](agentcube_runtime::Runtime) for sandbox agents, and what the
//! janitor finds there.
//!
//! The spawner holds the namespaces of each container, so that its processes die with the agent like all others; what
//! containerd has written down outlives it, and labels say whose it is. Needs root and the pid namespace of containerd.

mod adopt;
mod client;
mod container;
mod exit;
mod freeze;
mod generated;
mod images;
mod input;
mod inventory;
mod process;
mod terminal;
mod unpack;
mod usage;

use std::path::PathBuf;

pub use container::Containerd;
pub use inventory::{Found, Inventory};

/// Which containerd, and how containers are made there.
#[derive(Debug, Clone)]
pub struct Options {
    pub socket: PathBuf,
    /// Of containerd's: `k8s.io` has the images of a kubelet.
    pub namespace: String,
    pub snapshotter: String,
    /// The shim, by containerd's name for it.
    pub runtime: String,
    /// The cgroup in which containers have theirs.
    pub cgroup: String,
    /// A directory of this runtime alone. Made if it is missing.
    pub directory: PathBuf,
}

impl Options {
    pub fn new(socket: impl Into<PathBuf>, directory: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            namespace: "agentcube".into(),
            snapshotter: "overlayfs".into(),
            runtime: "io.containerd.runc.v2".into(),
            cgroup: "/agentcube".into(),
            directory: directory.into(),
        }
    }
}
