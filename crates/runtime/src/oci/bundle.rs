//! A container in the words of the OCI runtime specification, 1.0.2: what goes into `config.json`. Pure.

use std::path::Path;

use serde::Serialize;

use super::Kind;
use super::limits::Limits;
use super::seccomp::Seccomp;
use crate::rootfs::{HIDDEN, READ_ONLY_PATHS};
use crate::spec::{Capability, ContainerSpec, ExecSpec, Source, User};

/// What the spawner knows and a spec does not say.
pub(crate) struct Surroundings<'a> {
    pub(crate) kind: Kind,
    /// None where the namespace has it already.
    pub(crate) hostname: Option<&'a str>,
    /// Where the sandbox's namespaces can be opened: network, host name, IPC.
    pub(crate) namespaces: [String; 3],
    /// Where that of its processes can be; None for a new one.
    pub(crate) processes: Option<String>,
    pub(crate) cgroup: String,
    /// The runtime sets the limits, and not whoever has made the cgroup.
    pub(crate) limited: bool,
    /// Limits of each process: name, current, most.
    pub(crate) limits: Vec<(&'static str, u64, u64)>,
    /// The mounts of the spec, by number, restricted as they are to be; None: as the spec has them.
    pub(crate) staged: Option<&'a Path>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Config {
    oci_version: &'static str,
    process: Process,
    root: Root,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    mounts: Vec<Mount>,
    linux: Linux,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Process {
    terminal: bool,
    user: ProcessUser,
    args: Vec<String>,
    env: Vec<String>,
    cwd: String,
    capabilities: Capabilities,
    rlimits: Vec<Limit>,
    no_new_privileges: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ProcessUser {
    uid: u32,
    gid: u32,
    additional_gids: Vec<u32>,
}

/// Nothing is inheritable or ambient, as the built-in runtime has it.
#[derive(Debug, Serialize)]
struct Capabilities {
    bounding: Vec<String>,
    effective: Vec<String>,
    permitted: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Limit {
    #[serde(rename = "type")]
    kind: &'static str,
    soft: u64,
    hard: u64,
}

#[derive(Debug, Serialize)]
struct Root {
    path: &'static str,
    readonly: bool,
}

#[derive(Debug, Serialize)]
struct Mount {
    destination: String,
    #[serde(rename = "type")]
    kind: &'static str,
    source: String,
    options: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Linux {
    namespaces: Vec<Namespace>,
    cgroups_path: String,
    resources: Resources,
    masked_paths: Vec<&'static str>,
    readonly_paths: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seccomp: Option<Seccomp>,
}

#[derive(Debug, Serialize)]
struct Namespace {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

/// Memory, processors and processes are limited by our own cgroups, unless somebody else makes them; devices are always
/// left to the runtime.
#[derive(Debug, Serialize)]
struct Resources {
    devices: [DeviceRule; 1],
    #[serde(flatten)]
    limits: Option<Limits>,
}

#[derive(Debug, Serialize)]
struct DeviceRule {
    allow: bool,
    access: &'static str,
}

/// Where the bundle has the root file system.
pub(crate) const ROOT: &str = "rootfs";

/// What every container has, in order: target, kind, options.
const STANDARD: [(&str, &str, &[&str]); 6] = [
    ("/proc", "proc", &["nosuid", "noexec", "nodev"]),
    ("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
    ("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
    ("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
    ("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
    ("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
];

impl Config {
    pub(crate) fn new(spec: &ContainerSpec, around: &Surroundings<'_>) -> Self {
        let namespace = |kind, path| Namespace { kind, path };
        let [network, host_name, ipc] = around.namespaces.clone();
        Self {
            oci_version: "1.0.2",
            process: Process::first(spec, around),
            root: Root { path: ROOT, readonly: spec.read_only_root },
            hostname: around.hostname.map(str::to_owned),
            mounts: mounts(spec, around.staged),
            linux: Linux {
                namespaces: vec![
                    namespace("pid", around.processes.clone()),
                    namespace("mount", None),
                    namespace("cgroup", None),
                    namespace("network", Some(network)),
                    namespace("uts", Some(host_name)),
                    namespace("ipc", Some(ipc)),
                ],
                cgroups_path: around.cgroup.clone(),
                resources: Resources {
                    devices: [DeviceRule { allow: false, access: "rwm" }],
                    limits: around.limited.then(|| Limits::new(&spec.resources)),
                },
                masked_paths: HIDDEN.to_vec(),
                readonly_paths: READ_ONLY_PATHS.to_vec(),
                seccomp: (spec.seccomp && around.kind.shares_kernel())
                    .then(|| Seccomp::new(&spec.capabilities)),
            },
        }
    }
}

impl Process {
    fn first(spec: &ContainerSpec, around: &Surroundings<'_>) -> Self {
        let exec = ExecSpec {
            args: spec.args.clone(),
            env: spec.env.clone(),
            cwd: None,
            user: None,
            terminal: spec.terminal,
        };
        Self::new(spec, &exec, &around.limits)
    }

    /// One more program in the container of `spec`.
    pub(crate) fn new(spec: &ContainerSpec, exec: &ExecSpec, limits: &[(&'static str, u64, u64)]) -> Self {
        let User { uid, gid, groups } = exec.user.as_ref().unwrap_or(&spec.user);
        let names: Vec<String> = spec.capabilities.iter().filter_map(name).collect();
        // Of a user other than root the kernel takes them at `execve`; not every runtime does.
        let held = if *uid == 0 { names.clone() } else { Vec::new() };
        Self {
            terminal: exec.terminal,
            user: ProcessUser { uid: *uid, gid: *gid, additional_gids: groups.clone() },
            args: exec.args.clone(),
            env: exec.env.iter().map(|(key, value)| format!("{key}={value}")).collect(),
            cwd: exec.cwd.as_deref().unwrap_or(&spec.cwd).display().to_string(),
            capabilities: Capabilities { bounding: names, effective: held.clone(), permitted: held },
            rlimits: limits.iter().map(|&(kind, soft, hard)| Limit { kind, soft, hard }).collect(),
            no_new_privileges: spec.no_new_privileges,
        }
    }
}

fn name(capability: &Capability) -> Option<String> {
    capability.name().map(|name| format!("CAP_{name}"))
}

fn mounts(spec: &ContainerSpec, staged: Option<&Path>) -> Vec<Mount> {
    let standard = STANDARD.iter().map(|&(target, kind, options)| Mount {
        destination: target.to_owned(),
        kind,
        source: kind.to_owned(),
        options: options.iter().map(|&option| option.to_owned()).collect(),
    });
    let of_spec = spec.mounts.iter().enumerate().map(|(number, mount)| {
        let mode = if mount.read_only { "ro" } else { "rw" };
        let (kind, source, mut options) = match (staged, &mount.source) {
            (Some(staged), _) => ("bind", staged.join(number.to_string()), vec!["rbind".to_owned()]),
            (None, Source::Bind(path)) => ("bind", path.clone(), vec!["rbind".to_owned()]),
            (None, Source::Tmpfs { bytes }) => {
                ("tmpfs", "tmpfs".into(), vec!["mode=1777".to_owned(), format!("size={bytes}")])
            }
        };
        options.extend(["nosuid", "nodev", mode].map(str::to_owned));
        let destination = mount.target.display().to_string();
        Mount { destination, kind, source: source.display().to_string(), options }
    });
    standard.chain(of_spec).collect()
}
