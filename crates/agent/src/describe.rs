//! From an order to what a runtime is told. Pure: nothing here touches the machine. What cannot work is refused with
//! words before anything is made for it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use agentcube_api::Quantity;
use agentcube_protos::agent::{Shape as Wire, StartRequest};
use agentcube_protos::session::{Egress, File, Resources as Amounts};
use agentcube_runtime::image::Config;
use agentcube_runtime::spec::{self, Mount, Resources, Root, Source, User};
use agentcube_runtime::{ContainerId, ContainerSpec, SandboxId};

use crate::images::Loaded;
use crate::network::Identity;
use crate::{Options, labels, limits};

/// What a program finds if nobody says otherwise.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What can be made before it is known what runs in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) image: String,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) cpu_millis: Option<u64>,
    pub(crate) read_only_root: bool,
    pub(crate) egress: Egress,
    pub(crate) user: Option<u32>,
}

impl Shape {
    pub(crate) fn read(wire: &Wire) -> Result<Self, String> {
        let amounts = wire.resources.clone().unwrap_or_default();
        Ok(Self {
            image: wire.image.clone(),
            memory_bytes: amount("memory", &amounts.memory, Quantity::value)?,
            cpu_millis: amount("cpu", &amounts.cpu, Quantity::milli_value)?,
            read_only_root: wire.read_only_root,
            egress: egress(wire.egress()),
            user: None,
        })
    }

    fn resources(&self, processes: u64) -> Resources {
        Resources {
            memory_bytes: self.memory_bytes,
            cpu_millis: self.cpu_millis,
            cpu_request_millis: self.cpu_millis,
            processes: Some(processes),
        }
    }
}

/// A sandbox that may be started.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) shape: Shape,
    pub(crate) who: Identity,
    /// Of its object, if there is one already.
    pub(crate) uid: String,
    pub(crate) ports: Vec<u16>,
    pub(crate) command: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) envs: Vec<(String, String)>,
    pub(crate) working_dir: Option<String>,
    pub(crate) files: Vec<File>,
}

/// An unknown wish is no wish to reach anything.
fn egress(wanted: Egress) -> Egress {
    if wanted == Egress::Unset { Egress::Closed } else { wanted }
}

/// What an order wants, or why it cannot be.
pub(crate) fn read(request: &StartRequest, options: &Options) -> Result<Wanted, String> {
    limits::run_id(&request.run_id)?;
    let claim = request.claim.clone().unwrap_or_default();
    limits::claim(&claim)?;
    if (&claim.namespace, &claim.pool) != (&options.namespace, &options.pool) {
        return Err(format!(
            "this agent is of pool {}/{}, not of {}/{}",
            options.namespace, options.pool, claim.namespace, claim.pool
        ));
    }
    limits::object(&request.object)?;
    let spec = request.spec.clone().unwrap_or_default();
    limits::spec(&spec)?;
    for file in &spec.files {
        file_path(&file.path)?;
    }
    let amounts: Amounts = spec.resources.clone().unwrap_or_default();
    let shape = Shape {
        memory_bytes: amount("memory", &amounts.memory, Quantity::value)?,
        cpu_millis: amount("cpu", &amounts.cpu, Quantity::milli_value)?,
        read_only_root: spec.read_only_root,
        egress: egress(spec.egress()),
        user: spec.run_as_user,
        image: spec.image,
    };
    let uid = claim.uid;
    let who = Identity {
        namespace: claim.namespace,
        name: claim.name,
        labels: spec.labels.into_iter().collect(),
        egress: shape.egress,
    };
    let mut envs: Vec<_> = spec.envs.into_iter().collect();
    envs.sort_unstable();
    let ports = spec.ports.iter().filter_map(|port| u16::try_from(*port).ok()).collect();
    let working_dir = Some(spec.working_dir).filter(|path| !path.is_empty());
    let (command, args, files) = (spec.command, spec.args, spec.files);
    Ok(Wanted { shape, who, uid, ports, command, args, envs, working_dir, files })
}

/// Nothing, and none at all, are the same: no limit.
fn amount(name: &str, written: &str, read: impl Fn(&Quantity) -> i64) -> Result<Option<u64>, String> {
    if written.is_empty() {
        return Ok(None);
    }
    let quantity: Quantity =
        written.parse().map_err(|_| format!("{written:?} is not an amount of {name}"))?;
    Ok(u64::try_from(read(&quantity)).ok().filter(|amount| *amount > 0))
}

fn file_path(path: &str) -> Result<PathBuf, String> {
    let path = Path::new(path);
    let plain = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    if !path.is_absolute() || !plain || path.components().count() < 2 {
        return Err(format!("a file cannot be at {path:?}: its path is absolute, without dots"));
    }
    Ok(path.to_owned())
}

/// Who the program runs as, and its home.
pub(crate) fn user(wanted: Option<u32>, loaded: &Loaded) -> Result<(User, String), String> {
    let accounts = &loaded.accounts;
    let (account, group) = match wanted {
        Some(uid) => (accounts.by_number(uid), None),
        None => accounts.of_image(&loaded.image.config.user).map_err(|error| error.to_string())?,
    };
    let gid = match group {
        Some(named) => accounts.group_number(&named).map_err(|error| error.to_string())?,
        None => account.gid,
    };
    let mut groups = accounts.memberships(&account.name);
    groups.sort_unstable();
    groups.dedup();
    let home = if account.home.is_empty() { "/".to_owned() } else { account.home };
    Ok((User { uid: account.uid, gid, groups }, home))
}

/// The image's variables, the sandbox's own over them, and what every program expects.
pub(crate) fn environment(wanted: &Wanted, config: &Config, home: &str) -> Vec<(String, String)> {
    let mut env = config.environment(wanted.envs.iter().cloned());
    let hostname = wanted.who.hostname();
    for (name, value) in [("HOSTNAME", hostname.as_str()), ("HOME", home), ("PATH", PATH)] {
        if !env.iter().any(|(known, _)| known == name) {
            env.push((name.to_owned(), value.to_owned()));
        }
    }
    env
}

/// A command replaces both parts of the image's; arguments alone replace the second.
pub(crate) fn arguments(wanted: &Wanted, config: &Config) -> Result<Vec<String>, String> {
    let own = !wanted.command.is_empty();
    let mut words = if own { wanted.command.clone() } else { config.entrypoint.clone() };
    match own || !wanted.args.is_empty() {
        true => words.extend(wanted.args.iter().cloned()),
        false => words.extend(config.cmd.iter().cloned()),
    }
    if words.is_empty() {
        return Err("no command specified: give the sandbox one, as its image has none".into());
    }
    Ok(words)
}

pub(crate) fn directory(wanted: &Wanted, config: &Config) -> PathBuf {
    let given = [wanted.working_dir.as_deref(), Some(config.working_dir.as_str())];
    let path = given.into_iter().flatten().find(|path| !path.is_empty()).unwrap_or("/");
    Path::new("/").join(path)
}

/// The order's files, for a container that is there already.
pub(crate) fn files(wanted: &Wanted) -> Vec<spec::File> {
    let file = |file: &File| spec::File {
        path: file.path.clone().into(),
        mode: file_mode(file),
        content: file.content.clone(),
    };
    wanted.files.iter().map(file).collect()
}

pub(crate) fn file_mode(file: &File) -> u32 {
    if file.mode == 0 { 0o644 } else { file.mode & 0o777 }
}

/// Where a container stands, and what it is called.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) sandbox: SandboxId,
    pub(crate) container: ContainerId,
    /// Of this container alone.
    pub(crate) directory: PathBuf,
}

pub(crate) const ETC: &str = "etc";
pub(crate) const TMP: &str = "tmp";
pub(crate) const FILES: &str = "files";
pub(crate) const SCRATCH: &str = "scratch";
/// What tells a sandbox who it is, in `/etc`.
pub(crate) const NAMES: [&str; 3] = ["hosts", "hostname", "resolv.conf"];

impl Place {
    /// What it is made from: of a run, or of what was prepared.
    pub(crate) fn id(&self) -> &str {
        self.directory.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// `/etc/hosts` and the like.
    pub(crate) fn etc(&self) -> PathBuf {
        self.directory.join(ETC)
    }

    /// `/tmp`, where nothing else can be written.
    pub(crate) fn tmp(&self) -> PathBuf {
        self.directory.join(TMP)
    }

    /// Files that come with the order, by their number.
    pub(crate) fn file(&self, number: usize) -> PathBuf {
        self.directory.join(FILES).join(number.to_string())
    }
}

/// A container of a shape, that is yet to be told what to run.
pub(crate) fn container(
    shape: &Shape,
    place: &Place,
    loaded: &Loaded,
    user: User,
    options: &Options,
) -> ContainerSpec {
    let own = NAMES.map(|name| Mount {
        target: Path::new("/etc").join(name),
        source: Source::Bind(place.etc().join(name)),
        read_only: false,
    });
    let mut mounts = own.to_vec();
    if shape.read_only_root {
        mounts.push(Mount { target: "/tmp".into(), source: Source::Bind(place.tmp()), read_only: false });
    }
    if let Root::Host { .. } = loaded.image.root {
        mounts.extend(options.host_mounts.iter().cloned());
    }
    ContainerSpec {
        id: place.container.clone(),
        sandbox: place.sandbox.clone(),
        root: loaded.image.root.clone(),
        read_only_root: shape.read_only_root,
        scratch: place.directory.join(SCRATCH),
        args: Vec::new(),
        env: Vec::new(),
        cwd: "/".into(),
        user,
        mounts,
        resources: shape.resources(options.processes),
        capabilities: BTreeSet::new(),
        no_new_privileges: true,
        seccomp: true,
        terminal: false,
        files: Vec::new(),
        tag: String::new(),
        labels: BTreeMap::new(),
    }
}

/// The container of an order.
pub(crate) fn describe(
    wanted: &Wanted,
    place: &Place,
    loaded: &Loaded,
    options: &Options,
) -> Result<ContainerSpec, String> {
    let config = &loaded.image.config;
    let (user, home) = user(wanted.shape.user, loaded)?;
    let mut spec = container(&wanted.shape, place, loaded, user, options);
    spec.args = arguments(wanted, config)?;
    spec.env = environment(wanted, config, &home);
    spec.cwd = directory(wanted, config);
    spec.labels = labels::of(wanted, place, options);
    let files = wanted.files.iter().enumerate().map(|(number, file)| Mount {
        target: file.path.clone().into(),
        source: Source::Bind(place.file(number)),
        read_only: false,
    });
    spec.mounts.extend(files);
    Ok(spec)
}
