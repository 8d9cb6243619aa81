//! A node's worth of runtime for one test: a spawner of its own, in a directory of its own.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod place;

use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use agentcube_runtime::native::Native;
use agentcube_runtime::oci::{Oci, Program as OciProgram};
use agentcube_runtime::spawner::{Handle, Options, Spawner};
use agentcube_runtime::spec::{Mount, Resources, Root, Source, User};
use agentcube_runtime::{
    ContainerId, ContainerSpec, Error, Exit, Process, Runtime, SandboxId, SandboxSockets, SandboxSpec,
    Sandboxes, Stdio, capabilities,
};

/// Until something happens that is going to.
const LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(2);

static NODES: AtomicU32 = AtomicU32::new(0);
/// Nobody's number, for the tests without root.
const SOMEBODY: u32 = 12_345;
const PROBE_VARIABLE: &str = "RUNTIME_PROBE";

/// The program of the tests; where it was copied to, when a user runs them who cannot see where it was built.
pub(crate) fn probe() -> String {
    std::env::var(PROBE_VARIABLE).unwrap_or_else(|_| env!("CARGO_BIN_EXE_runtime-probe").to_owned())
}

/// Where `cargo xtask setup` keeps them.
const CACHED: &str = "oci-20260224";

pub(crate) fn programs() -> Vec<OciProgram> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || variable("HOME").unwrap_or_default().join(".cache");
    let cache = variable("AGENTCUBE_CACHE")
        .unwrap_or_else(|| variable("XDG_CACHE_HOME").unwrap_or_else(home).join("agentcube"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    Oci::find(std::iter::once(cache.join(CACHED)).chain(std::env::split_paths(&path)))
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// By another process: a copy of our own descriptor, in a child that another test has just forked, would keep the copy
/// from being executed.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

/// Where first processes of containers wait in every sandbox, each with a root over the image of tests.
const EMBRYOS_VARIABLE: &str = "RUNTIME_EMBRYOS";

fn embryos() -> bool {
    std::env::var_os(EMBRYOS_VARIABLE).is_some()
}

/// Runs all other tests of this file with containers whose first processes were made ahead of time.
pub(crate) fn again_with_embryos(this: &str) {
    if embryos() {
        return;
    }
    let mut tests = Command::new(std::env::current_exe().unwrap());
    let output = tests.args(["--skip", this, "--skip", "without_root"]).env(EMBRYOS_VARIABLE, "1").output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Runs all other tests of this file as an ordinary user.
pub(crate) fn again_without_root(this: &str) {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (tests, program) = (directory.path().join("tests"), directory.path().join("runtime-probe"));
    copy_program(&std::env::current_exe().unwrap(), &tests);
    copy_program(Path::new(&probe()), &program);
    let output = Command::new(&tests)
        .args(["--skip", this])
        .env(PROBE_VARIABLE, &program)
        .current_dir("/")
        .uid(SOMEBODY)
        .gid(SOMEBODY)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

pub(crate) struct Node {
    pub(crate) handle: Handle,
    pub(crate) native: Native,
    pub(crate) options: Options,
    program: PathBuf,
    directory: tempfile::TempDir,
}

impl Node {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let node = format!("test-{}-{}", std::process::id(), NODES.fetch_add(1, Ordering::Relaxed));
        let options = Options::new(node, directory.path().join("runtime"));
        Self { directory, ..Self::start_program(Path::new(&probe()), options) }
    }

    /// With a program and a directory of the caller's.
    pub(crate) fn start_program(program: &Path, options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let handle = Spawner::start(program, &options).unwrap().into_handle().unwrap();
        Self { native: Native::new(handle.clone()), handle, options, program: program.to_owned(), directory }
    }

    /// A directory of the machine for the test's own files.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) async fn sandbox(&self, name: &str) -> (SandboxId, SandboxSockets) {
        if embryos() {
            self.roots(1).await;
        }
        self.create(name).await
    }

    async fn create(&self, name: &str) -> (SandboxId, SandboxSockets) {
        let spec = sandbox_spec(name);
        let id = spec.id.clone();
        let sockets = self.handle.create(spec).await.unwrap();
        (id, sockets)
    }

    /// Has first processes of containers wait in the next sandboxes, and gives back their numbers.
    pub(crate) async fn embryos(&self, count: usize) -> Vec<u32> {
        self.handle.spare("tests", count, true).await.unwrap();
        let spawner = place::spawner_pid(&self.options.directory);
        self.until("they wait", || place::waiting(spawner).len() >= count).await;
        place::waiting(spawner)
    }

    /// The same with a root over the image of tests, which was asked for last.
    pub(crate) async fn roots(&self, count: usize) -> Vec<u32> {
        let spawner = place::spawner_pid(&self.options.directory);
        if place::laid(spawner).len() < count {
            self.embryos(count).await;
            let (sandbox, _sockets) = self.create("asks").await;
            self.run(self.image_spec("asks", &sandbox, &["exit", "0"])).await.unwrap();
            self.handle.remove(&sandbox).await.unwrap();
        }
        self.until("they have laid a root", || place::laid(spawner).len() >= count).await;
        place::laid(spawner)
    }

    pub(crate) async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !holds() {
            assert!(Instant::now() < deadline, "it never comes to this: {what}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A container of the machine's own programs that runs the probe.
    pub(crate) fn spec(&self, name: &str, sandbox: &SandboxId, args: &[&str]) -> ContainerSpec {
        spec(&self.options, &self.program, name, sandbox, args)
    }

    /// The same with an image of its own, into which the machine's programs are mounted.
    pub(crate) fn image_spec(&self, name: &str, sandbox: &SandboxId, args: &[&str]) -> ContainerSpec {
        let image = self.directory().join("image");
        let _ = std::fs::create_dir(&image);
        let mut spec = self.spec(name, sandbox, args);
        for entry in ["usr", "bin", "lib", "lib64"] {
            let host = Path::new("/").join(entry);
            if let Ok(to) = std::fs::read_link(&host) {
                let _ = std::os::unix::fs::symlink(to, image.join(entry));
            } else if host.is_dir() {
                spec.mounts.push(bind(&host, &host, true));
            }
        }
        spec.mounts.push(bind(&self.program_directory(), &self.program_directory(), true));
        spec.root = Root::Directory(image);
        spec
    }

    /// What takes the writes to the roots of images, whoever's they are.
    pub(crate) fn uppers(&self) -> Vec<PathBuf> {
        let scratch = std::fs::read_dir(self.options.directory.join("scratch")).unwrap();
        let uppers = scratch.map(|entry| entry.unwrap().path().join("root.upper"));
        uppers.filter(|upper| upper.is_dir()).collect()
    }

    fn program_directory(&self) -> PathBuf {
        self.program.parent().unwrap().to_owned()
    }

    /// A container that comes through a step of the setup.
    pub(crate) fn image_or_host(&self, step: &str, sandbox: &SandboxId) -> ContainerSpec {
        match step {
            "Mount" => self.image_spec("a", sandbox, &["exit", "0"]),
            _ => self.spec("a", sandbox, &["exit", "0"]),
        }
    }

    /// Runs a container to its end and removes it.
    pub(crate) async fn run(&self, spec: ContainerSpec) -> Result<(Exit, String), Error> {
        self.run_by(&self.native, spec).await
    }

    pub(crate) async fn run_by(
        &self,
        runtime: &dyn Runtime,
        spec: ContainerSpec,
    ) -> Result<(Exit, String), Error> {
        let id = spec.id.clone();
        let (read, write) = pipe();
        let stdio = Stdio {
            stdin: None,
            stdout: Some(write.try_clone().unwrap()),
            stderr: Some(write),
            ..Stdio::default()
        };
        let process = runtime.start(spec, stdio).await?;
        let output = read_all(read).await;
        let exit = process.exit.await.unwrap();
        runtime.remove(&id).await?;
        Ok((exit, output))
    }
}

fn spec(options: &Options, program: &Path, name: &str, sandbox: &SandboxId, args: &[&str]) -> ContainerSpec {
    let id = ContainerId::new(name).unwrap();
    let scratch = options.scratch(&id);
    ContainerSpec {
        id,
        sandbox: sandbox.clone(),
        root: Root::Host { also: vec![program.parent().unwrap().to_owned()] },
        read_only_root: false,
        scratch,
        args: std::iter::once(program.to_str().unwrap())
            .chain(args.iter().copied())
            .map(str::to_owned)
            .collect(),
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        cwd: PathBuf::from("/"),
        user: User::default(),
        mounts: Vec::new(),
        resources: Resources::default(),
        capabilities: capabilities::default_set(),
        no_new_privileges: true,
        seccomp: true,
        terminal: false,
        files: Vec::new(),
        tag: String::new(),
        labels: Default::default(),
    }
}

/// Makes specs for a spawner that has no node.
pub(crate) struct Specs(Options);

impl Specs {
    pub(crate) fn new(options: Options) -> Self {
        Self(options)
    }

    pub(crate) fn spec(&self, name: &str, sandbox: &SandboxId, args: &[&str]) -> ContainerSpec {
        spec(&self.0, Path::new(&probe()), name, sandbox, args)
    }
}

pub(crate) fn sandbox_spec(name: &str) -> SandboxSpec {
    SandboxSpec {
        id: SandboxId::new(name).unwrap(),
        hostname: name.to_owned(),
        address: Ipv4Addr::new(10, 244, 0, 2),
        name_server: Ipv4Addr::new(10, 96, 0, 10),
    }
}

pub(crate) fn bind(source: &Path, target: &Path, read_only: bool) -> Mount {
    Mount { target: target.to_owned(), source: Source::Bind(source.to_owned()), read_only }
}

pub(crate) fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap()
}

/// What comes out of a pipe until all who could write are gone.
pub(crate) async fn read_all(descriptor: OwnedFd) -> String {
    let read = move || {
        let mut text = Vec::new();
        // A terminal whose other side is gone gives an error instead of an end.
        let _ = File::from(descriptor).read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}

/// Reads until a text has come.
pub(crate) async fn read_until(descriptor: &OwnedFd, expected: &'static str) -> String {
    let mut file = File::from(descriptor.try_clone().unwrap());
    let read = move || {
        let mut text = String::new();
        let mut buffer = [0; 1024];
        while !text.contains(expected) {
            match file.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(length) => text.push_str(&String::from_utf8_lossy(&buffer[..length])),
            }
        }
        text
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}

pub(crate) async fn ended(process: Process) -> Exit {
    process.exit.await.unwrap()
}
