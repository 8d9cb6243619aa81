//! From a container of a Pod to what a runtime is told: pure, but for reading user names from the image.

mod arguments;
mod network_files;
mod resources;
mod security;
mod support;
mod user;

use std::path::{Path, PathBuf};

use agentcube_runtime::spec::{ContainerId, ContainerSpec, Mount, Root, SandboxId, Source};
use k8s_openapi::api::core::v1::{Container, Pod};

use agentcube_runtime::image::Config;

pub(crate) use network_files::{Names, hosts, names};
pub use support::Allowed;
pub(crate) use support::refusal;

/// Why a container cannot be described; the reason of its waiting state, and what to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Refusal {
    fn config(message: impl Into<String>) -> Self {
        Self { reason: "CreateContainerConfigError", message: message.into() }
    }

    fn create(message: impl Into<String>) -> Self {
        Self { reason: "CreateContainerError", message: message.into() }
    }
}

/// Everything about one run of a container that is not in the Pod.
#[derive(Debug, Clone)]
pub(crate) struct Run<'a> {
    pub(crate) id: ContainerId,
    pub(crate) sandbox: SandboxId,
    pub(crate) root: Root,
    pub(crate) config: &'a Config,
    /// The container's variables; the image's come before them.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) volumes: Vec<Mount>,
    /// The directory of this run: its scratch directory and termination message are there.
    pub(crate) directory: &'a Path,
    /// The Pod's own `/etc/hosts` and the like.
    pub(crate) files: &'a Path,
    pub(crate) names: &'a Names,
    pub(crate) allowed: &'a Allowed,
}

/// The file of a run that its program leaves its last words in.
pub(crate) fn termination_message(directory: &Path) -> PathBuf {
    directory.join("termination-log")
}

pub(crate) fn describe(pod: &Pod, container: &Container, run: Run<'_>) -> Result<ContainerSpec, Refusal> {
    let user = user::resolve(pod, container, run.config, &run.root)?;
    let mut env = run.config.environment(run.env);
    let args = arguments::command(container, run.config, &env)?;
    let home = user.home.unwrap_or_else(|| "/".to_owned());
    for (name, value) in
        [("HOSTNAME", run.names.hostname.as_str()), ("HOME", &home), ("PATH", arguments::PATH)]
    {
        if !env.iter().any(|(known, _)| known == name) {
            env.push((name.to_owned(), value.to_owned()));
        }
    }
    let security = security::of(pod, container, run.allowed)?;
    let cwd = [container.working_dir.as_deref(), Some(&run.config.working_dir), Some("/")];
    let cwd = cwd.into_iter().flatten().find(|path| !path.is_empty()).unwrap_or("/");
    Ok(ContainerSpec {
        id: run.id,
        sandbox: run.sandbox,
        root: run.root,
        read_only_root: security.read_only_root,
        scratch: run.directory.join("scratch"),
        args,
        env,
        cwd: Path::new("/").join(cwd),
        user: user.user,
        mounts: mounts(container, run.volumes, run.directory, run.files),
        resources: resources::of(container, run.allowed.processes)?,
        capabilities: security.capabilities,
        no_new_privileges: security.no_new_privileges,
        seccomp: security.seccomp,
        terminal: container.tty == Some(true),
        files: Vec::new(),
        tag: String::new(),
        labels: Default::default(),
    })
}

/// Volumes first; a Pod that mounts its own `/etc/hosts` keeps it.
fn mounts(container: &Container, volumes: Vec<Mount>, directory: &Path, files: &Path) -> Vec<Mount> {
    let message = container.termination_message_path.as_deref().filter(|path| !path.is_empty());
    let message = message.map(|target| (target, termination_message(directory)));
    let own = ["hosts", "hostname", "resolv.conf"].map(|name| (format!("/etc/{name}"), files.join(name)));
    let own = own.iter().map(|(target, source)| (target.as_str(), source.clone())).chain(message);
    let mut mounts = volumes;
    for (target, source) in own {
        if !mounts.iter().any(|mount| mount.target == Path::new(target)) {
            mounts.push(Mount { target: target.into(), source: Source::Bind(source), read_only: false });
        }
    }
    mounts
}

#[cfg(test)]
mod tests;
