//! A node's worth of runtime for one test: a spawner of its own, in a directory of its own.

use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use agentcube_runtime::native::Native;
use agentcube_runtime::spawner::{Handle, Options, Spawner};
use agentcube_runtime::spec::{Resources, Root, User};
use agentcube_runtime::{
    ContainerId, ContainerSpec, Error, Exit, Process, Runtime, SandboxId, SandboxSockets, SandboxSpec,
    Sandboxes, Stdio, capabilities,
};

pub const PROBE: &str = env!("CARGO_BIN_EXE_runtime-probe");

static NODES: AtomicU32 = AtomicU32::new(0);

pub struct Node {
    pub handle: Handle,
    pub native: Native,
    pub options: Options,
    _directory: tempfile::TempDir,
}

impl Node {
    pub fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let node = format!("test-{}-{}", std::process::id(), NODES.fetch_add(1, Ordering::Relaxed));
        let options = Options::new(node, directory.path().join("runtime"));
        let spawner = Spawner::start(Path::new(PROBE), &options).unwrap();
        let handle = spawner.into_handle().unwrap();
        Self { native: Native::new(handle.clone()), handle, options, _directory: directory }
    }

    pub async fn sandbox(&self, name: &str) -> (SandboxId, SandboxSockets) {
        let id = SandboxId::new(name).unwrap();
        let spec = SandboxSpec {
            id: id.clone(),
            hostname: name.to_owned(),
            address: Ipv4Addr::new(10, 244, 0, 2),
            name_server: Ipv4Addr::new(10, 96, 0, 10),
        };
        let sockets = self.handle.create(spec).await.unwrap();
        (id, sockets)
    }

    /// A container of the machine's own programs that runs the probe.
    pub fn spec(&self, name: &str, sandbox: &SandboxId, args: &[&str]) -> ContainerSpec {
        let id = ContainerId::new(name).unwrap();
        let scratch = self.options.scratch(&id);
        std::fs::create_dir_all(&scratch).unwrap();
        ContainerSpec {
            id,
            sandbox: sandbox.clone(),
            root: Root::Host { also: vec![probe_directory()] },
            read_only_root: false,
            scratch,
            args: std::iter::once(PROBE).chain(args.iter().copied()).map(str::to_owned).collect(),
            env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
            cwd: PathBuf::from("/"),
            user: User::default(),
            mounts: Vec::new(),
            resources: Resources::default(),
            capabilities: capabilities::default_set(),
            no_new_privileges: true,
            seccomp: true,
            terminal: false,
        }
    }

    /// Runs a container to its end and removes it.
    pub async fn run(&self, spec: ContainerSpec) -> Result<(Exit, String), Error> {
        let id = spec.id.clone();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let stdio = Stdio { stdin: None, stdout: Some(write.try_clone().unwrap()), stderr: Some(write) };
        let process = self.native.start(spec, stdio).await?;
        let exit = process.exit.await.unwrap();
        let output = read_all(read);
        self.native.remove(&id).await?;
        Ok((exit, output))
    }
}

pub fn probe_directory() -> PathBuf {
    Path::new(PROBE).parent().unwrap().to_owned()
}

pub fn read_all(descriptor: OwnedFd) -> String {
    let mut text = String::new();
    File::from(descriptor).read_to_string(&mut text).unwrap();
    text
}

pub async fn ended(process: Process) -> Exit {
    process.exit.await.unwrap()
}
