//! The node: namespaces of its own (processes, mounts, network, name, IPC) that one process holds. Everything that
//! belongs to the cluster runs in them. When that process is killed, the kernel ends all the others, containers too, and
//! takes mounts, interfaces and rules with them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::identity::Identity;
use super::network;
use crate::process::quietly;

/// Of the node in the cluster. The token of its kubelet is for this name.
pub(crate) const NAME: &str = "agentcube";
/// What the cgroups of all Pods are below.
pub(crate) const CGROUP: &str = "agentcube-cluster";

/// There once a node has all that it needs; one without is a start that was interrupted.
const COMPLETE: &str = "pids/complete";

const START_LIMIT: Duration = Duration::from_secs(20);
/// For what goes by itself once its processes have ended, of a thousand Pods too.
const END_LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(10);

/// What the first process does: it waits, and so collects those whose parents have ended. Every shell can do that.
const HOLD: &str = "while :; do sleep 1000000; done";

/// Directories that programs insist on. Within the node they are ones below the cluster's directory, so that the
/// machine's own stay as they are.
const REPLACED: [(&str, &str); 3] = [("run", "/run"), ("lib", "/var/lib"), ("log", "/var/log")];

/// A running node.
pub(crate) struct Node {
    directory: PathBuf,
    path: String,
    first: Identity,
}

impl Node {
    /// The one of a cluster's directory, if it runs. `path` is where its programs find others.
    pub(crate) fn find(directory: &Path, path: &str) -> Option<Node> {
        if !directory.join(COMPLETE).is_file() {
            return None;
        }
        let first = Identity::read(&directory.join("pids/node"))?;
        Some(Node { directory: directory.to_owned(), path: path.to_owned(), first })
    }

    /// Starts one. What an earlier one of the directory has left is removed, as a restart of a machine would.
    pub(crate) fn start(directory: &Path, path: &str) -> Result<Node> {
        let hidden = REPLACED.iter().find(|(_, place)| directory.starts_with(place));
        if let Some((_, place)) = hidden {
            bail!(
                "a cluster cannot be kept below {place}, which its node replaces: choose another with --dir"
            );
        }
        if let Some(owner) = network::owner().filter(|owner| owner != directory) {
            bail!("a cluster runs in {} already, and this machine can have one", owner.display());
        }
        clear(directory)?;
        for (own, _) in REPLACED {
            std::fs::create_dir_all(directory.join("node").join(own))?;
        }
        std::fs::create_dir_all(directory.join("pids"))?;
        std::fs::create_dir_all(directory.join("logs"))?;
        let mut command = Command::new("setsid");
        command.args(["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--mount-proc"]);
        command.args(["sh", "-c", HOLD]).current_dir("/").env_clear().env("PATH", path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let parent = command.spawn().context("cannot run unshare (of util-linux)")?;
        let first = first_child(parent.id())?;
        first.write(&directory.join("pids/node"))?;
        let node = Node { directory: directory.to_owned(), path: path.to_owned(), first };
        node.mount()?;
        make_cgroups()?;
        network::connect(&node, directory)?;
        std::fs::write(directory.join(COMPLETE), "")?;
        Ok(node)
    }

    fn mount(&self) -> Result<()> {
        let own = self.directory.join("node").display().to_string();
        let mut script = "set -e; mount --make-rshared /".to_owned();
        for (name, place) in REPLACED {
            script.push_str(&format!("; mount --bind \"$0/{name}\" {place}"));
        }
        script.push_str(&format!("; echo {NAME} > /proc/sys/kernel/hostname"));
        self.run("sh", &["-c", &script, &own]).context("cannot set up the node's mounts")?;
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.first.pid
    }

    /// A command that runs in the node.
    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first.pid.to_string()]);
        command.args(["--mount", "--pid", "--net", "--uts", "--ipc", "--"]).current_dir("/");
        command.env_clear().env("PATH", &self.path).env("HOME", self.directory.join("node"));
        command
    }

    /// Runs a program in the node to its end.
    pub(crate) fn run(&self, program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> Result<String> {
        quietly(self.enter().arg(program).args(arguments))
    }

    /// Starts a part of the cluster, to be left running, unless it runs.
    pub(crate) fn start_part(&self, name: &str, program: &Path, arguments: &[String]) -> Result<()> {
        if self.part(name).is_some() {
            return Ok(());
        }
        let log = self.directory.join("logs").join(format!("{name}.log"));
        let script = "log=$0; setsid \"$@\" >>\"$log\" 2>&1 </dev/null & echo $!";
        let mut command = self.enter();
        command.args(["sh", "-c", script]).arg(&log).arg(program).args(arguments);
        let inner = quietly(&mut command).with_context(|| format!("cannot start {name}"))?;
        let started = self.outer(inner.trim().parse().context("the shell named no process")?);
        let Some(started) = started else { bail!("{name} ended at once:\n{}", self.log_tail(name)) };
        started.write(&self.pid_file(name))
    }

    /// A part that runs.
    pub(crate) fn part(&self, name: &str) -> Option<Identity> {
        Identity::read(&self.pid_file(name))
    }

    fn pid_file(&self, name: &str) -> PathBuf {
        self.directory.join("pids").join(name)
    }

    /// The end of a part's log.
    pub(crate) fn log_tail(&self, name: &str) -> String {
        let path = self.directory.join("logs").join(format!("{name}.log"));
        let text = std::fs::read(path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// A process that has the given number within the node, as the machine knows it.
    fn outer(&self, inner: u32) -> Option<Identity> {
        let namespace = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = namespace(self.first.pid)?;
        let entries = std::fs::read_dir("/proc").ok()?;
        let mut pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let pid = pids.find(|&pid| {
            namespace(pid).as_ref() == Some(&own)
                && std::fs::read_to_string(format!("/proc/{pid}/status"))
                    .is_ok_and(|status| innermost(&status) == Some(inner))
        })?;
        Identity::of(pid)
    }
}

/// The number of a process in the namespace that it is in itself.
fn innermost(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

fn first_child(parent: u32) -> Result<Identity> {
    let deadline = Instant::now() + START_LIMIT;
    let file = format!("/proc/{parent}/task/{parent}/children");
    loop {
        let children = std::fs::read_to_string(&file).unwrap_or_default();
        let pid = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
        // `unshare` mounts `/proc` and then becomes the shell.
        if let Some(pid) = pid
            && std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() != "unshare")
            && let Some(identity) = Identity::of(pid)
        {
            return Ok(identity);
        }
        ensure!(
            Instant::now() < deadline,
            "cannot make namespaces: only root can, where the machine lets it"
        );
        std::thread::sleep(POLL);
    }
}

/// Whether a cluster can be kept in a directory, now.
pub(crate) fn ensure_possible(directory: &Path) -> Result<()> {
    if let Some((_, place)) = REPLACED.iter().find(|(_, place)| directory.starts_with(place)) {
        bail!("a cluster cannot be kept below {place}, which its node replaces: choose another with --dir");
    }
    if let Some(owner) = network::owner().filter(|owner| owner != directory) {
        bail!("a cluster runs in {} already, and a machine can have one: end it first", owner.display());
    }
    Ok(())
}

/// Ends the node of a directory, and removes what could be left of it: everything but what it keeps on disk.
pub(crate) fn clear(directory: &Path) -> Result<()> {
    if let Some(first) = Identity::read(&directory.join("pids/node")) {
        first.kill()?;
    }
    // Somebody else's cluster has the same names.
    if network::owner().is_none_or(|owner| owner == directory) {
        network::disconnect()?;
        remove_cgroups()?;
    }
    for gone in ["pids", "node/run"] {
        remove(&directory.join(gone))?;
    }
    Ok(())
}

/// Removes a directory with all that is in it. Mounts of a node that has just ended may still be going.
pub(crate) fn remove(directory: &Path) -> Result<()> {
    let deadline = Instant::now() + END_LIMIT;
    loop {
        match std::fs::remove_dir_all(directory) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("cannot remove {}", directory.display()));
            }
            Err(_) => std::thread::sleep(POLL),
        }
    }
}

/// The cluster's cgroup in every hierarchy of this machine.
fn cgroups() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let groups = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let place = words.next()?;
        words.next()?.starts_with("cgroup").then(|| Path::new(place).join(CGROUP))
    });
    groups.collect()
}

fn make_cgroups() -> Result<()> {
    for group in cgroups() {
        std::fs::create_dir_all(&group).with_context(|| format!("cannot make {}", group.display()))?;
    }
    Ok(())
}

fn remove_cgroups() -> Result<()> {
    let deadline = Instant::now() + END_LIMIT;
    for group in cgroups() {
        while group.is_dir() && remove_empty(&group).is_err() {
            ensure!(Instant::now() < deadline, "cannot remove the cgroup {}", group.display());
            std::thread::sleep(POLL);
        }
    }
    Ok(())
}

/// The files of a cgroup cannot be removed and need not be.
fn remove_empty(group: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_empty(&entry.path())?;
        }
    }
    std::fs::remove_dir(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_innermost_number() {
        assert_eq!(innermost("Name:\tx\nNSpid:\t4711\t17\t1\nPid:\t3\n"), Some(1));
        assert_eq!(innermost("Name:\tx\n"), None);
    }
}
