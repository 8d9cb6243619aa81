//! The spawner: a small single-threaded process that makes all others. It is the first process of a pid namespace of
//! its own, so that whatever happens to it, the kernel kills all that it has started; and it ends when the node does.

mod adopt;
mod channel;
mod child;
pub(crate) mod clone;
mod console;
mod containers;
mod embryo;
mod execute;
mod files;
mod freeze;
mod fuse;
#[cfg(test)]
mod fuzz;
mod handle;
mod notes;
mod oci;
mod page;
mod patience;
mod prepared;
mod process;
mod protocol;
mod relocated;
mod removal;
mod sandbox;
mod server;
mod snapshot;
pub(crate) mod start;

use std::path::{Path, PathBuf};

pub use adopt::{Adopted, AdoptedSandbox, Snapshot};
pub use fuse::Fuse;
pub use handle::Handle;
pub use page::State;
pub(crate) use protocol::{During, Failure, Step};
pub use server::main;
pub use start::Spawner;
pub(crate) use start::has_privileges;

use crate::spec::ContainerId;

/// What a node says when it starts its spawner.
#[derive(Debug, Clone)]
pub struct Options {
    /// Tells this node's cgroups from those of other nodes: lower-case letters, digits and dashes.
    pub node: String,
    /// A directory of the runtime alone, on a file system that can hold overlays. Made if it is missing.
    pub directory: PathBuf,
    /// How many sandboxes are kept ready.
    pub spare_sandboxes: usize,
    /// Whoever comes after this process may adopt what it has started: see [`Handle::adopt`].
    pub adoptable: bool,
    /// For tests: `instance:Pivot` or `spawner:Clone` kills that process at that step. Only debug builds look at it.
    pub die_at: Option<String>,
}

impl Options {
    pub fn new(node: impl Into<String>, directory: impl Into<PathBuf>) -> Self {
        Self {
            node: node.into(),
            directory: directory.into(),
            spare_sandboxes: 4,
            adoptable: false,
            die_at: None,
        }
    }

    /// Where the scratch directory of a container belongs, so that the next start finds what a crash left.
    pub fn scratch(&self, id: &ContainerId) -> PathBuf {
        scratch_directory(&self.directory).join(id.as_str())
    }
}

pub(crate) fn scratch_directory(directory: &Path) -> PathBuf {
    directory.join("scratch")
}

/// What lies below every image: see [`crate::rootfs::places`].
pub(crate) fn places_directory(directory: &Path) -> PathBuf {
    directory.join("places")
}

/// Leaves the keys of whoever started us behind. A user has few keyrings; without one of its own, a process has that of
/// the spawner, which holds nothing.
fn join_new_keyring() {
    // SAFETY: a system call without memory of ours: no name, so a new keyring for this process alone.
    unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, 0) };
}

/// Where bundles and the state of OCI runtimes lie, in memory that only the spawner and its children see.
fn oci_directory(directory: &Path) -> PathBuf {
    directory.join("oci")
}

/// For what containers need no disk for, in the same memory. No id of a container begins with a dot.
fn memory_directory(directory: &Path) -> PathBuf {
    oci_directory(directory).join(".memory")
}

/// Ends this process at a step.
fn die_if_asked(die_at: Option<&str>, who: &str, step: Step) {
    if cfg!(debug_assertions) && die_at.is_some_and(|at| at == format!("{who}:{step:?}")) {
        die();
    }
}

/// Ends this process as suddenly as a crash.
fn die() -> ! {
    // SAFETY: ends this process at once; nothing else runs.
    unsafe { libc::_exit(137) }
}
