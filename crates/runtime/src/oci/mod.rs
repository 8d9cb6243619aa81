//! Containers made by an OCI runtime that the machine has: `runc`, `crun` or gVisor's `runsc`.
//!
//! The spawner prepares the root, limits by its own cgroups and runs the program as its child, so that an OCI container
//! dies with the node like any other. The program must never be run by anyone else: its state is in the spawner's own
//! mounts.

pub(crate) mod bundle;
mod limits;
pub(crate) mod program;
mod seccomp;

use std::path::PathBuf;

use bundle::{Config, Surroundings};
pub use program::{Kind, Program};

use crate::spawner::Handle;
use crate::spec::{ContainerId, ContainerSpec, ExecSpec};
use crate::{Answer, Error, Process, Runtime, Stdio, Usage};

/// What somebody else who has containers made by `runc` knows of one, and its spec does not say.
#[derive(Debug, Clone)]
pub struct Elsewhere {
    /// Where its namespaces can be opened: network, host name, IPC, processes.
    pub namespaces: [String; 4],
    /// The cgroup to make, limited as the spec says.
    pub cgroup: String,
    /// Files that each of its processes may have open: now, and at most.
    pub open_files: (u64, u64),
}

impl Elsewhere {
    fn limits(&self) -> Vec<(&'static str, u64, u64)> {
        let (soft, hard) = self.open_files;
        vec![("RLIMIT_NOFILE", soft, hard), ("RLIMIT_CORE", 0, 0)]
    }

    /// The `config.json` of a container, as isolated as those that are made here. Its root is `rootfs` beside it.
    pub fn config(&self, spec: &ContainerSpec) -> serde_json::Result<Vec<u8>> {
        let [network, host_name, ipc, processes] = self.namespaces.clone();
        let around = Surroundings {
            kind: Kind::Runc,
            hostname: None,
            namespaces: [network, host_name, ipc],
            processes: Some(processes),
            cgroup: self.cgroup.clone(),
            limited: true,
            limits: self.limits(),
            staged: None,
        };
        serde_json::to_vec(&Config::new(spec, &around))
    }
}

/// Runs containers by one OCI runtime. Needs root: see [`Oci::new`].
#[derive(Clone)]
pub struct Oci {
    spawner: Handle,
    program: Program,
}

impl Oci {
    /// `Unsupported` where this cannot work.
    pub fn new(spawner: Handle, program: Program) -> Result<Self, Error> {
        if !crate::spawner::has_privileges() {
            return Err(Error::Unsupported(format!(
                "containers by {} need root: run as root, or without a RuntimeClass, which needs none",
                program.kind
            )));
        }
        Ok(Self { spawner, program })
    }

    /// The runtimes among these directories, such as those of `PATH`; the first of each kind.
    pub fn find(directories: impl IntoIterator<Item = PathBuf>) -> Vec<Program> {
        let directories: Vec<_> = directories.into_iter().filter(|path| path.is_absolute()).collect();
        let find = |kind: Kind| {
            let candidates = directories.iter().map(|directory| directory.join(kind.name()));
            candidates
                .into_iter()
                .find(|path| program::is_executable(path))
                .map(|path| Program { kind, path })
        };
        Kind::ALL.into_iter().filter_map(find).collect()
    }
}

impl Runtime for Oci {
    fn start<'a>(&'a self, spec: ContainerSpec, stdio: Stdio) -> Answer<'a, Process> {
        Box::pin(self.spawner.start(spec, Some(self.program.clone()), stdio))
    }

    fn signal<'a>(&'a self, id: &'a ContainerId, signal: i32) -> Answer<'a, ()> {
        Box::pin(self.spawner.signal(id, signal))
    }

    fn exec<'a>(&'a self, id: &'a ContainerId, spec: ExecSpec, stdio: Stdio) -> Answer<'a, Process> {
        Box::pin(self.spawner.exec(id, spec, stdio))
    }

    fn remove<'a>(&'a self, id: &'a ContainerId) -> Answer<'a, ()> {
        Box::pin(self.spawner.remove_container(id))
    }

    fn freeze<'a>(&'a self, id: &'a ContainerId, frozen: bool) -> Answer<'a, ()> {
        Box::pin(self.spawner.freeze(id, frozen))
    }

    fn usage<'a>(&'a self, id: &'a ContainerId) -> Answer<'a, Usage> {
        Box::pin(self.spawner.usage(id))
    }
}
