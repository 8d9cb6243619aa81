//! A container from its start to its removal. The agent may be killed between any two steps: what it has made is found
//! by its labels, and the processes die with the spawner.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use agentcube_runtime::image::{Accounts, Image};
use agentcube_runtime::oci::Elsewhere;
use agentcube_runtime::spawner::Handle;
use agentcube_runtime::spec::{Resources, Root, User};
use agentcube_runtime::{
    Answer, ContainerId, ContainerSpec, Error, ExecSpec, Process, Runtime, Stdio, Usage, image,
};
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use tokio::net::UnixStream;
use tonic::Code;

use crate::Options;
use crate::client::{Client, During, ask, or_gone};
use crate::generated::containerd::services::containers::v1 as containers;
use crate::generated::containerd::services::namespaces::v1 as namespaces;
use crate::generated::containerd::services::snapshots::v1 as snapshots;
use crate::generated::containerd::services::tasks::v1 as tasks;
use crate::generated::containerd::types::{Any, Empty, FieldMask, Mount};
use crate::generated::containerd::v1::types::{Process as Task, Status};
use crate::input::Input;
use crate::inventory::Inventory;

/// How containerd calls an OCI configuration.
const SPEC: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";
/// Label of a container: the directory with what it wrote to its root, if that is not a snapshot.
pub(crate) const SCRATCH: &str = "agentcube.io/scratch";
/// The user of processes that hold namespaces. No program has this number, so that none can touch them.
const HOLDER: u32 = 4_000_000_000;

/// Runs containers by containerd. Cheap to clone.
#[derive(Clone)]
pub struct Containerd {
    pub(crate) client: Client,
    pub(crate) spawner: Handle,
    pub(crate) options: Arc<Options>,
    pub(crate) inventory: Inventory,
    pub(crate) executed: Arc<AtomicU64>,
    /// Those that stand still.
    pub(crate) frozen: Arc<Mutex<HashSet<ContainerId>>>,
    /// Images by the digests of their manifests.
    pub(crate) known: Arc<Mutex<HashMap<String, (Image, Accounts)>>>,
}

impl Containerd {
    /// Makes sure that this can work.
    pub async fn connect(options: Options, spawner: Handle) -> Result<Self, Error> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Unsupported("containers by containerd need root: run as root".into()));
        }
        let client = Client::new(&options.socket, &options.namespace)?;
        check_processes(&client, &options.socket).await?;
        let namespace = namespaces::Namespace { name: options.namespace.clone(), ..Default::default() };
        let request = client.request(namespaces::CreateNamespaceRequest { namespace: Some(namespace) });
        match ask(client.namespaces().create(request)).await {
            Err(status) if status.code() != Code::AlreadyExists => {
                return Err(status).during("making the namespace of containerd");
            }
            _ => {}
        }
        let empty = options.directory.join("empty");
        std::fs::create_dir_all(&empty).map_err(|error| on_disk(&empty, &error))?;
        let inventory = Inventory { client: client.clone(), snapshotter: options.snapshotter.clone() };
        Ok(Self {
            client,
            spawner,
            options: Arc::new(options),
            inventory,
            executed: Arc::default(),
            frozen: Arc::default(),
            known: Arc::default(),
        })
    }

    /// What is there, whoever has made it.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Writes labels down with a container that is there.
    pub async fn label(&self, id: &ContainerId, label: &str, value: &str) -> Result<(), Error> {
        let labels = [(label.to_owned(), value.to_owned())].into();
        let container = containers::Container { id: id.to_string(), labels, ..Default::default() };
        let mask = FieldMask { paths: vec![format!("labels.{label}")] };
        let request =
            containers::UpdateContainerRequest { container: Some(container), update_mask: Some(mask) };
        ask(self.client.containers().update(self.client.request(request))).await.map(drop).during("labelling")
    }

    async fn begin(&self, spec: ContainerSpec, stdio: Stdio) -> Result<Process, Error> {
        if spec.terminal {
            return Err(Error::Unsupported(
                "a program by containerd can have a terminal only by exec".into(),
            ));
        }
        if !spec.files.is_empty() {
            return Err(Error::Unsupported(
                "containerd cannot be given files: use the native runtime".into(),
            ));
        }
        let Stdio { stdin, stdout, stderr, kept } = stdio;
        self.spawner.hold(self.holder(&spec), kept).await?;
        let begun = self.create(&spec, [stdin, stdout, stderr]).await;
        if begun.is_err()
            && let Err(error) = self.give_back(&spec.id).await
        {
            tracing::warn!(container = %spec.id, "a start that failed leaves something: {error}");
        }
        begun
    }

    /// What keeps the namespaces of a container, and nothing else.
    fn holder(&self, spec: &ContainerSpec) -> ContainerSpec {
        ContainerSpec {
            root: Root::Directory(self.options.directory.join("empty")),
            read_only_root: true,
            args: Vec::new(),
            env: Vec::new(),
            cwd: "/".into(),
            user: User { uid: HOLDER, gid: HOLDER, groups: Vec::new() },
            mounts: Vec::new(),
            resources: Resources::default(),
            capabilities: Default::default(),
            no_new_privileges: true,
            seccomp: true,
            labels: Default::default(),
            ..spec.clone()
        }
    }

    async fn create(&self, spec: &ContainerSpec, streams: [Option<OwnedFd>; 3]) -> Result<Process, Error> {
        let open = self.spawner.namespaces(&spec.id).await?;
        let limit = getrlimit(Resource::Nofile);
        let most = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        let elsewhere = Elsewhere {
            namespaces: open.each_ref().map(path),
            cgroup: format!("{}/{}", self.options.cgroup.trim_end_matches('/'), spec.id),
            open_files: (most(limit.current), most(limit.maximum)),
        };
        let config = elsewhere.config(spec).map_err(|error| Error::Invalid(error.to_string()))?;
        self.write_down(spec, config).await?;
        let rootfs = self.root(spec).await?;
        let (streams, input) = relay_input(streams)?;
        let [stdin, stdout, stderr] = paths(&streams);
        let container_id = spec.id.to_string();
        let request =
            tasks::CreateTaskRequest { container_id, rootfs, stdin, stdout, stderr, terminal: false };
        ask(self.client.tasks().create(self.client.request(request))).await.during("making the container")?;
        let exit = self.client.first_exit(&spec.id);
        let request = tasks::StartRequest { container_id: spec.id.to_string(), exec_id: String::new() };
        let started = ask(self.client.tasks().start(self.client.request(request))).await;
        let started = started.during("starting the container")?;
        if let Some(input) = input {
            input.serve(self.client.clone(), spec.id.clone(), String::new());
        }
        self.show_program(&spec.id, started.pid).await;
        Ok(Process { pid: started.pid, terminal: None, exit })
    }

    /// First of all: whatever else is made belongs to it, by its name, and is found when it is removed.
    async fn write_down(&self, spec: &ContainerSpec, config: Vec<u8>) -> Result<(), Error> {
        let mut labels = spec.labels.clone();
        let snapshot = matches!(spec.root, Root::Snapshot(_));
        if !snapshot {
            labels.insert(SCRATCH.into(), spec.scratch.display().to_string());
        }
        let container = containers::Container {
            id: spec.id.to_string(),
            labels,
            image: String::new(),
            runtime: Some(containers::container::Runtime {
                name: self.options.runtime.clone(),
                options: None,
            }),
            spec: Some(Any { type_url: SPEC.into(), value: config }),
            snapshotter: if snapshot { self.options.snapshotter.clone() } else { String::new() },
            snapshot_key: if snapshot { spec.id.to_string() } else { String::new() },
            created_at: None,
        };
        let request = containers::CreateContainerRequest { container: Some(container) };
        match ask(self.client.containers().create(self.client.request(request))).await {
            Err(status) if status.code() == Code::AlreadyExists => {
                Err(Error::Exists { what: "container of containerd", id: spec.id.to_string() })
            }
            other => other.map(drop).during("writing down the container"),
        }
    }

    async fn root(&self, spec: &ContainerSpec) -> Result<Vec<Mount>, Error> {
        match &spec.root {
            Root::Snapshot(parent) => {
                let request = snapshots::PrepareSnapshotRequest {
                    snapshotter: self.options.snapshotter.clone(),
                    key: spec.id.to_string(),
                    parent: parent.clone(),
                    labels: Default::default(),
                };
                let prepared = ask(self.client.snapshots().prepare(self.client.request(request))).await;
                Ok(prepared.during("preparing the root file system")?.mounts)
            }
            Root::Directory(lower) => {
                let [upper, work] = ["upper", "work"].map(|part| spec.scratch.join(part));
                for directory in [&upper, &work] {
                    std::fs::create_dir_all(directory).map_err(|error| on_disk(directory, &error))?;
                }
                Ok(vec![overlay(lower, &upper, &work)?])
            }
            Root::Host { .. } => Err(Error::Unsupported(
                "containerd cannot run this machine's own programs: use an image that it has, or the native runtime"
                    .into(),
            )),
        }
    }

    /// Removes all that containerd has of a container, then what the spawner holds for it.
    pub(crate) async fn give_back(&self, id: &ContainerId) -> Result<(), Error> {
        self.thaw_killed(id).await;
        self.inventory.remove(id.as_str()).await?;
        self.frozen.lock().remove(id);
        self.spawner.release(id).await
    }

    async fn send(&self, id: &ContainerId, signal: i32) -> Result<(), Error> {
        let signal = u32::try_from(signal).ok().filter(|signal| (1..=64).contains(signal));
        let signal = signal.ok_or_else(|| Error::Invalid("a signal has a number from 1 to 64".into()))?;
        let request =
            tasks::KillRequest { container_id: id.to_string(), exec_id: String::new(), signal, all: false };
        match ask(self.client.tasks().kill(self.client.request(request))).await {
            // One that has ended is no error.
            Err(_) if self.status(id).await.is_ok_and(|status| status == Status::Stopped) => Ok(()),
            Err(status) if status.code() == Code::NotFound => Err(unknown(id)),
            other => other.map(drop).during("sending the signal"),
        }
    }

    pub(crate) async fn status(&self, id: &ContainerId) -> Result<Status, Error> {
        Ok(self.task(id).await?.ok_or_else(|| unknown(id))?.status())
    }

    /// What runs of a container; None if nothing does.
    pub(crate) async fn task(&self, id: &ContainerId) -> Result<Option<Task>, Error> {
        let request = tasks::GetRequest { container_id: id.to_string(), exec_id: String::new() };
        let got = or_gone(ask(self.client.tasks().get(self.client.request(request))).await);
        Ok(got.during("asking for the container")?.and_then(|answer| answer.process))
    }
}

/// Where containerd, which has the same processes before it as we, can open a descriptor of ours.
pub(crate) fn path(open: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), open.as_raw_fd())
}

/// Streams for a shim, and what is to be copied to the first.
pub(crate) fn relay_input(
    [stdin, stdout, stderr]: [Option<OwnedFd>; 3],
) -> Result<([Option<OwnedFd>; 3], Option<Input>), Error> {
    let relayed = stdin.map(Input::relay).transpose();
    let relayed = relayed.map_err(|error| Error::Invalid(format!("the input is not a pipe: {error}")))?;
    let (stdin, input) = relayed.unzip();
    Ok(([stdin, stdout, stderr], input))
}

/// The same of three streams. Those that are missing lead nowhere.
pub(crate) fn paths(streams: &[Option<OwnedFd>; 3]) -> [String; 3] {
    let [stdin, stdout, stderr] = streams.each_ref().map(|stream| stream.as_ref().map(path));
    if stdin.is_none() && stdout.is_none() && stderr.is_none() {
        return Default::default();
    }
    // A shim that is to connect one of the two connects both.
    let nowhere = || "/dev/null".to_owned();
    [stdin.unwrap_or_default(), stdout.unwrap_or_else(nowhere), stderr.unwrap_or_else(nowhere)]
}

fn overlay(lower: &Path, upper: &Path, work: &Path) -> Result<Mount, Error> {
    let all = [("lowerdir", lower), ("upperdir", upper), ("workdir", work)];
    let option = |(name, path): (&str, &Path)| {
        let path = path.to_str().filter(|path| !path.contains([',', ':', '\\']))?;
        Some(format!("{name}={path}"))
    };
    let options: Option<Vec<String>> = all.into_iter().map(option).collect();
    let options =
        options.ok_or_else(|| Error::Invalid(format!("{} cannot be in an overlay", lower.display())))?;
    Ok(Mount { r#type: "overlay".into(), source: "overlay".into(), target: String::new(), options })
}

pub(crate) fn unknown(id: &ContainerId) -> Error {
    Error::NotFound { what: "container", id: id.to_string() }
}

fn on_disk(path: &Path, error: &std::io::Error) -> Error {
    Error::Step { step: "making a directory", reason: format!("{}: {error}", path.display()) }
}

/// Namespaces and streams are passed by paths of `/proc`, which must mean the same to containerd: it would open those of
/// another process otherwise.
async fn check_processes(client: &Client, socket: &Path) -> Result<(), Error> {
    let server = ask(client.introspection().server(client.request(Empty {}))).await;
    let server = server.during("connecting to containerd")?;
    let connected = UnixStream::connect(socket).await.and_then(|stream| stream.peer_cred());
    let peer = connected.ok().and_then(|peer| peer.pid()).filter(|pid| *pid > 0);
    let own = namespace("self");
    // Whoever is not among the processes that are seen from here has no number here.
    let theirs = peer.and_then(|pid| namespace(&pid.to_string()));
    // Newer ones say it themselves.
    let said = Some(server.pidns).filter(|pidns| *pidns != 0);
    match own.is_some() && own == theirs && said.is_none_or(|said| Some(said) == own) {
        true => Ok(()),
        false => Err(Error::Unsupported(
            "containerd runs in another pid namespace: give the agent's Pod `hostPID: true`".into(),
        )),
    }
}

/// The number of the pid namespace that a process is in.
fn namespace(process: &str) -> Option<u64> {
    let link = std::fs::read_link(format!("/proc/{process}/ns/pid")).ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

impl Runtime for Containerd {
    fn start<'a>(&'a self, spec: ContainerSpec, stdio: Stdio) -> Answer<'a, Process> {
        Box::pin(self.begin(spec, stdio))
    }

    fn signal<'a>(&'a self, id: &'a ContainerId, signal: i32) -> Answer<'a, ()> {
        Box::pin(self.send(id, signal))
    }

    fn exec<'a>(&'a self, id: &'a ContainerId, spec: ExecSpec, stdio: Stdio) -> Answer<'a, Process> {
        Box::pin(self.execute(id, spec, stdio))
    }

    fn remove<'a>(&'a self, id: &'a ContainerId) -> Answer<'a, ()> {
        Box::pin(self.give_back(id))
    }

    fn freeze<'a>(&'a self, id: &'a ContainerId, frozen: bool) -> Answer<'a, ()> {
        Box::pin(self.set_frozen(id, frozen))
    }

    fn usage<'a>(&'a self, id: &'a ContainerId) -> Answer<'a, Usage> {
        Box::pin(async move { Ok(self.client.measure(id).await?.usage) })
    }

    fn label<'a>(&'a self, id: &'a ContainerId, label: &'a str, value: &'a str) -> Answer<'a, ()> {
        Box::pin(Self::label(self, id, label, value))
    }

    fn images(&self) -> Option<&dyn image::Source> {
        Some(self)
    }
}
