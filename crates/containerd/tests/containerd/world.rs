//! A containerd with an image, and spawners as cases want them.

use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agentcube_containerd::{Containerd, Options};
use agentcube_runtime::image::Source as _;
use agentcube_runtime::spawner::{self, Handle, Spawner};
use agentcube_runtime::spec::{ExecSpec, Resources, Root, User};
use agentcube_runtime::{
    ContainerId, ContainerSpec, Error, Exit, Process, Runtime, SandboxId, SandboxSockets, SandboxSpec,
    Sandboxes, Stdio,
};
use anyhow::{Context, Result, ensure};

use crate::NAMESPACE;
use crate::daemon::Daemon;

/// As `ctr` calls what has no registry.
pub(crate) const IMAGE: &str = "tests/probe:1";
const LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct World {
    pub(crate) daemon: Daemon,
    directory: tempfile::TempDir,
    count: u32,
}

/// A spawner of its own, and a runtime over it.
pub(crate) struct Node {
    pub(crate) handle: Handle,
    pub(crate) containerd: Containerd,
    pub(crate) directory: PathBuf,
    root: Root,
}

impl World {
    pub(crate) fn start(programs: &Path) -> Result<Self> {
        let daemon = Daemon::start(programs)?;
        daemon.import(&format!("example.com/{IMAGE}"), true)?;
        Ok(Self { daemon, directory: tempfile::tempdir()?, count: 0 })
    }

    /// What a spawner of the next node is started with.
    pub(crate) fn spawner(&mut self, adoptable: bool) -> spawner::Options {
        self.count += 1;
        let name = format!("ctrd-{}-{}", std::process::id(), self.count);
        let directory = self.directory.path().join(&name);
        spawner::Options { adoptable, ..spawner::Options::new(name, directory) }
    }

    pub(crate) async fn node(&mut self) -> Result<Node> {
        let options = self.spawner(false);
        let handle = Spawner::start(&std::env::current_exe()?, &options)?.into_handle()?;
        self.node_over(handle, &options).await
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            namespace: NAMESPACE.into(),
            ..Options::new(self.daemon.socket(), self.directory.path().join("own"))
        }
    }

    pub(crate) async fn node_over(&self, handle: Handle, options: &spawner::Options) -> Result<Node> {
        let containerd = Containerd::connect(self.options(), handle.clone()).await?;
        let (image, _) = containerd.get(IMAGE).await?;
        Ok(Node { handle, containerd, directory: options.directory.clone(), root: image.root })
    }

    pub(crate) async fn nothing_is_left(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let left = self.daemon.left()?;
            let groups = cgroups();
            if left.is_empty() && groups.is_empty() {
                return Ok(());
            }
            ensure!(begun.elapsed() < LIMIT, "left behind: {left:?} {groups:?}");
            tokio::task::yield_now().await;
        }
    }
}

fn cgroups() -> Vec<PathBuf> {
    let tops = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/freezer"];
    let below =
        |top: &str| std::fs::read_dir(Path::new(top).join("agentcube")).into_iter().flatten().flatten();
    let found = tops.into_iter().flat_map(below).map(|entry| entry.path());
    // Others on this machine may test the same.
    let own = format!("t{}-", std::process::id());
    let of_ours =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&own));
    found.filter(|path| path.is_dir()).filter(of_ours).collect()
}

impl Node {
    pub(crate) async fn sandbox(&self, name: &str) -> Result<(SandboxId, SandboxSockets)> {
        let spec = SandboxSpec {
            id: SandboxId::new(name)?,
            hostname: name.to_owned(),
            address: Ipv4Addr::new(10, 244, 0, 2),
            name_server: Ipv4Addr::new(10, 96, 0, 10),
        };
        let id = spec.id.clone();
        Ok((id, self.handle.create(spec).await?))
    }

    pub(crate) fn id(name: &str) -> ContainerId {
        ContainerId::new(format!("t{}-{name}", std::process::id())).unwrap()
    }

    pub(crate) fn spec(&self, name: &str, sandbox: &SandboxId, words: &[&str]) -> ContainerSpec {
        let id = Self::id(name);
        let scratch = self.directory.join("scratch").join(id.as_str());
        ContainerSpec {
            id,
            sandbox: sandbox.clone(),
            root: self.root.clone(),
            read_only_root: false,
            scratch,
            args: ["/probe", "inside"].iter().chain(words).map(|word| (*word).to_owned()).collect(),
            env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
            cwd: PathBuf::from("/"),
            user: User::default(),
            mounts: Vec::new(),
            resources: Resources::default(),
            capabilities: Default::default(),
            no_new_privileges: true,
            seccomp: true,
            terminal: false,
            files: Vec::new(),
            tag: String::new(),
            labels: [("fast-sandbox.io/managed".to_owned(), "true".to_owned())].into(),
        }
    }

    /// Runs a container to its end and removes it.
    pub(crate) async fn run(&self, spec: ContainerSpec) -> Result<(Exit, String)> {
        let id = spec.id.clone();
        let (read, write) = pipe()?;
        let stdio = Stdio { stdout: Some(write.try_clone()?), stderr: Some(write), ..Stdio::default() };
        let process = self.containerd.start(spec, stdio).await?;
        let output = read_all(read).await?;
        let exit = process.exit.await?;
        self.containerd.remove(&id).await?;
        Ok((exit, output))
    }

    /// Starts what waits, and comes back when it does.
    pub(crate) async fn waiting(&self, name: &str, sandbox: &SandboxId) -> Result<(ContainerId, Process)> {
        let spec = self.spec(name, sandbox, &["wait"]);
        let id = spec.id.clone();
        let (read, write) = pipe()?;
        let process = self.containerd.start(spec, Stdio { stdout: Some(write), ..Stdio::default() }).await?;
        ensure!(read_until(&read, "waiting\n").await? == "waiting\n", "it does not wait");
        Ok((id, process))
    }

    pub(crate) async fn exec(&self, id: &ContainerId, words: &[&str]) -> Result<(Exit, String), Error> {
        let (read, write) = pipe().map_err(|error| Error::Invalid(error.to_string()))?;
        let process =
            self.containerd.exec(id, exec(words), Stdio { stdout: Some(write), ..Stdio::default() }).await?;
        let output = read_all(read).await.map_err(|error| Error::Invalid(error.to_string()))?;
        Ok((process.exit.await.unwrap(), output))
    }

    pub(crate) async fn stop(self) {
        self.handle.stop().await;
    }
}

pub(crate) fn exec(words: &[&str]) -> ExecSpec {
    ExecSpec {
        args: ["/probe", "inside"].iter().chain(words).map(|word| (*word).to_owned()).collect(),
        env: Vec::new(),
        cwd: None,
        user: None,
        terminal: false,
    }
}

pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// What comes out of a pipe until all who could write are gone.
pub(crate) async fn read_all(descriptor: OwnedFd) -> Result<String> {
    let read = move || {
        let mut text = Vec::new();
        // A terminal whose other side is gone gives an error instead of an end.
        let _ended = File::from(descriptor).read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    };
    let reading = tokio::task::spawn_blocking(read);
    Ok(tokio::time::timeout(LIMIT, reading).await.context("the output does not end")??)
}

/// Reads until a text has come.
pub(crate) async fn read_until(descriptor: &OwnedFd, expected: &'static str) -> Result<String> {
    let mut file = File::from(descriptor.try_clone()?);
    let read = move || {
        let (mut text, mut buffer) = (String::new(), [0; 1024]);
        while !text.contains(expected) {
            match file.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(length) => text.push_str(&String::from_utf8_lossy(&buffer[..length])),
            }
        }
        text
    };
    let reading = tokio::task::spawn_blocking(read);
    tokio::time::timeout(LIMIT, reading)
        .await
        .with_context(|| format!("{expected:?} does not come"))?
        .map_err(Into::into)
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !holds() {
        ensure!(begun.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        tokio::task::yield_now().await;
    }
    Ok(())
}
