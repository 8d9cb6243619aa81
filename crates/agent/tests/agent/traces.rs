//! What sandboxes leave in the kernel: processes, cgroups, mounts, descriptors of the spawner. Looks only.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// How deep the cgroups of a machine are searched.
const DEPTH: usize = 6;

#[derive(Debug)]
pub(crate) struct Traces {
    processes: BTreeSet<u32>,
    cgroups: BTreeSet<PathBuf>,
    mounts: usize,
    descriptors: usize,
    /// Those of them that are IPC namespaces: every sandbox that is made ahead has one.
    namespaces: usize,
    /// Processes that wait to be told of their container; they and their cgroups are not among the others.
    ahead: usize,
}

impl Traces {
    pub(crate) fn of(node: &str) -> Result<Self> {
        let spawner = spawner()?;
        let open: Vec<_> = fs::read_dir(format!("/proc/{spawner}/fd"))?.flatten().collect();
        let is_namespace = |link: &PathBuf| link.to_string_lossy().starts_with("ipc:[");
        let mut cgroups = BTreeSet::new();
        find(Path::new("/sys/fs/cgroup"), node, DEPTH, false, &mut cgroups);
        let waits =
            |pid: &u32| status(*pid, "Name:") == "agentcube-ahead" && parent(*pid) == spawner.to_string();
        let ahead: BTreeSet<u32> = numbers()?.filter(waits).collect();
        let processes = processes(node)?.difference(&ahead).copied().collect();
        let of_ahead: BTreeSet<_> = ahead.iter().flat_map(|pid| groups(*pid)).collect();
        cgroups
            .retain(|path| path.file_name().is_none_or(|name| !of_ahead.contains(&*name.to_string_lossy())));
        Ok(Self {
            processes,
            cgroups,
            ahead: ahead.len(),
            mounts: fs::read_to_string(format!("/proc/{spawner}/mountinfo"))?.lines().count(),
            descriptors: open.len(),
            namespaces: open
                .iter()
                .filter_map(|entry| fs::read_link(entry.path()).ok())
                .filter(is_namespace)
                .count(),
        })
    }

    /// Processes beside the spawner.
    pub(crate) fn processes(&self) -> usize {
        self.processes.len()
    }

    /// Processes that were not there before.
    pub(crate) fn since(&self, before: &Self) -> Vec<u32> {
        self.processes.difference(&before.processes).copied().collect()
    }

    /// Whether the spawner has at least so many IPC namespaces, and so many processes wait.
    pub(crate) fn have(&self, namespaces: usize, ahead: usize) -> Result<()> {
        ensure!(self.namespaces >= namespaces, "{} IPC namespaces", self.namespaces);
        ensure!(self.ahead >= ahead, "{} processes wait", self.ahead);
        Ok(())
    }

    pub(crate) fn compare(&self, before: &Self) -> Result<()> {
        let Self { processes, cgroups, mounts, descriptors, namespaces: _, ahead } = self;
        ensure!(*ahead == before.ahead, "{ahead} processes wait instead of {}", before.ahead);
        ensure!(processes == &before.processes, "processes are left: {processes:?}");
        ensure!(cgroups == &before.cgroups, "cgroups are left: {cgroups:#?}");
        ensure!(*mounts == before.mounts, "{mounts} mounts instead of {}", before.mounts);
        ensure!(
            *descriptors == before.descriptors,
            "{descriptors} descriptors instead of {}",
            before.descriptors
        );
        Ok(())
    }
}

/// The spawner is the one child of this process.
fn spawner() -> Result<u32> {
    let own = std::process::id().to_string();
    for pid in numbers()? {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if parent(pid) == own && words.ends_with(b"__spawner\0") {
            return Ok(pid);
        }
    }
    anyhow::bail!("the spawner does not run")
}

fn status(pid: u32, key: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().trim().to_owned()
}

fn parent(pid: u32) -> String {
    status(pid, "PPid:")
}

/// The names of the cgroups that a process is in.
fn groups(pid: u32) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines().filter_map(|line| Some(line.rsplit_once('/')?.1.to_owned())).collect()
}

/// Whatever runs in cgroups of the node.
fn processes(node: &str) -> Result<BTreeSet<u32>> {
    let inside = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(node))
    };
    let lives = |pid: &u32| {
        // What is dead and not yet reaped holds nothing.
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        !status.contains("State:\tZ")
    };
    Ok(numbers()?.filter(|pid| inside(pid) && lives(pid)).collect())
}

fn numbers() -> Result<impl Iterator<Item = u32>> {
    let entries = fs::read_dir("/proc").context("/proc is there")?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

fn find(directory: &Path, node: &str, depth: usize, inside: bool, found: &mut BTreeSet<PathBuf>) {
    if depth == 0 {
        return;
    }
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let inside = inside || entry.file_name().to_string_lossy().contains(node);
        if inside {
            found.insert(entry.path());
        }
        find(&entry.path(), node, depth - 1, inside, found);
    }
}
