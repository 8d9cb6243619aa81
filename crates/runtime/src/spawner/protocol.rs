//! What the node and its spawner say to each other. Both are the same binary, so there are no versions to agree on.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::page::{After, Page};
use crate::oci;
use crate::spec::{ContainerId, ContainerSpec, ExecSpec, Program, SandboxId, SandboxSpec};
use crate::{Error, Exit, Usage};

/// Sent first: what the spawner must know to begin.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) node: String,
    pub(super) directory: PathBuf,
    pub(super) rootless: bool,
    pub(super) cgroups: crate::cgroup::Tree,
    pub(super) spare_sandboxes: usize,
    /// The sockets of sandboxes are kept for another worker.
    pub(super) adoptable: bool,
    /// Whoever reaches this step kills itself there. Only debug builds look at it.
    pub(super) die_at: Option<String>,
}

/// One request; its answer carries the same number, and so does the end of a process that it started.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Asked {
    pub(super) id: u64,
    pub(super) request: Request,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    CreateSandbox(SandboxSpec),
    RemoveSandbox(SandboxId),
    Socket {
        sandbox: SandboxId,
        source: Option<Ipv4Addr>,
    },
    /// By an OCI runtime, or natively.
    Start {
        spec: Box<ContainerSpec>,
        by: Option<oci::Program>,
        streams: Streams,
    },
    /// Natively, up to the program.
    Prepare(Box<ContainerSpec>),
    /// The same, for a container whose program somebody else runs in its namespaces. What comes with it is kept.
    Hold(Box<ContainerSpec>),
    /// The namespaces of a container that waits: network, host name, IPC, processes.
    Namespaces(ContainerId),
    /// Has a prepared container become its program.
    Claim {
        container: ContainerId,
        program: Program,
        streams: Streams,
    },
    Exec {
        container: ContainerId,
        spec: ExecSpec,
        streams: Streams,
    },
    Signal {
        container: ContainerId,
        signal: i32,
    },
    Freeze {
        container: ContainerId,
        frozen: bool,
    },
    /// The same for a container that is held, whose program has its processes in this cgroup.
    FreezeHeld {
        container: ContainerId,
        program: PathBuf,
        frozen: bool,
    },
    Remove(ContainerId),
    Usage(ContainerId),
    /// A page of all that there is; the first one is what a new worker asks for first.
    Adopt {
        after: Option<After>,
    },
    Retag {
        container: ContainerId,
        tag: String,
    },
    Note {
        key: String,
        value: Option<String>,
    },
    /// How long a container goes on after somebody was last heard of.
    Patience {
        container: ContainerId,
        patience: Option<Duration>,
    },
    /// Somebody was heard of, so long after the machine's start.
    Heard(Duration),
    /// What is kept of a container's descriptors.
    Kept(ContainerId),
    /// The two sockets of a sandbox once more.
    Sockets(SandboxId),
    /// So many sandboxes are kept ready at least, with embryos in them or without, until the same asker wants others.
    Spare {
        who: String,
        count: usize,
        embryos: bool,
    },
}

/// Numbers of requests from here on are those of workers that do not know yet which are taken.
pub(super) const ADOPTING: u64 = 1 << 60;

/// Which of the three streams come with the message, in the order of their numbers. What is to be kept follows them.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Streams(pub(super) [bool; 3]);

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    Answer { id: u64, answer: Answer },
    Exited { id: u64, exit: Exit },
}

/// Descriptors that belong to an answer travel with its packet.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    Started { pid: u32 },
    Usage(Usage),
    Page(Box<Page>),
    Failed(Failure),
}

/// A step of setting something up, for messages and for the tests that fail at each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Step {
    Namespaces,
    HostName,
    Network,
    Socket,
    Cgroup,
    Clone,
    Join,
    OomScore,
    Root,
    System,
    Devices,
    Proc,
    Sys,
    Mount,
    Terminal,
    Pivot,
    WorkingDirectory,
    Streams,
    UserNamespace,
    Limits,
    Seccomp,
    User,
    Capabilities,
    Claim,
    Files,
    Exec,
    Scratch,
    Signal,
    Freeze,
    Oci,
}

impl Step {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Namespaces => "making the namespaces",
            Self::HostName => "setting the host name",
            Self::Network => "configuring the network",
            Self::Socket => "opening a socket in the sandbox",
            Self::Cgroup => "making the cgroup",
            Self::Clone => "cloning a process",
            Self::Join => "joining the sandbox",
            Self::OomScore => "setting the out-of-memory score",
            Self::Root => "mounting the root file system",
            Self::System => "mounting the machine's programs",
            Self::Devices => "mounting /dev",
            Self::Proc => "mounting /proc",
            Self::Sys => "mounting /sys",
            Self::Mount => "mounting",
            Self::Terminal => "opening a terminal",
            Self::Pivot => "changing the root",
            Self::WorkingDirectory => "entering the working directory",
            Self::Streams => "connecting the streams",
            Self::UserNamespace => "making the user namespace",
            Self::Limits => "setting the limits",
            Self::Seccomp => "loading the system call filter",
            Self::User => "becoming the user",
            Self::Capabilities => "setting the capabilities",
            Self::Claim => "waiting for what to run",
            Self::Files => "writing the files",
            Self::Exec => "executing the program",
            Self::Scratch => "deleting the scratch directory",
            Self::Signal => "sending the signal",
            Self::Freeze => "freezing the container",
            Self::Oci => "running the OCI runtime",
        }
    }
}

/// [`Error`] in a form that can be sent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Failure {
    Invalid(String),
    Unsupported(String),
    NotFound(What, String),
    Exists(What, String),
    Step(Step, String),
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum What {
    Sandbox,
    Container,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Container => "container",
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Invalid(message) => Self::Invalid(message),
            Failure::Unsupported(message) => Self::Unsupported(message),
            Failure::NotFound(what, id) => Self::NotFound { what: what.name(), id },
            Failure::Exists(what, id) => Self::Exists { what: what.name(), id },
            Failure::Step(step, reason) => Self::Step { step: step.name(), reason },
        }
    }
}

/// Names the step in which a system call failed.
pub(crate) trait During<T> {
    fn during(self, step: Step) -> Result<T, Failure>;
    /// The same, and what it was about.
    fn during_at(self, step: Step, about: impl std::fmt::Display) -> Result<T, Failure>;
}

impl<T, E: Into<std::io::Error>> During<T> for Result<T, E> {
    fn during(self, step: Step) -> Result<T, Failure> {
        self.map_err(|error| Failure::Step(step, error.into().to_string()))
    }

    fn during_at(self, step: Step, about: impl std::fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::Step(step, format!("{about}: {}", error.into())))
    }
}
