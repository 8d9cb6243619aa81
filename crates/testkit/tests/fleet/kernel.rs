//! What agents have in the kernel: the processes and cgroups of sandboxes, and mounts. Looks only.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::agents::children;

/// How deep the cgroups of a machine are searched.
const DEPTH: usize = 6;

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// Of sandboxes.
    pub(crate) processes: usize,
    pub(crate) cgroups: usize,
    /// That the spawner sees.
    pub(crate) mounts: usize,
}

/// Tells the cgroups of an agent, by its directory, from those of others (as the program does).
fn node(data: &Path) -> Result<String> {
    let data = data.canonicalize()?;
    let bytes = data.as_os_str().as_encoded_bytes();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Ok(format!("{hash:016x}"))
}

impl Kernel {
    /// Of the agent that has its data there.
    pub(crate) fn of(data: &Path, keeper: u32) -> Result<Kernel> {
        let node = node(data)?;
        let mut found = BTreeSet::new();
        find(Path::new("/sys/fs/cgroup"), &node, DEPTH, false, &mut found);
        // Each container has a group, of its name or of what it was made from, on each hierarchy that is used.
        let (ahead, processes): (Vec<u32>, Vec<u32>) = processes(&node).partition(|pid| waits(*pid));
        let of_ahead: BTreeSet<_> = ahead.iter().flat_map(|pid| groups(*pid)).collect();
        let containers: BTreeSet<_> = found
            .iter()
            .filter_map(|path| path.file_name()?.to_str())
            .filter(|name| name.contains("sb-") || name.starts_with("Ahead-") && !of_ahead.contains(*name))
            .map(str::to_owned)
            .collect();
        let spawner = children(keeper).into_iter().find(|pid| {
            std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.ends_with(b"__spawner\0"))
        });
        let spawner = spawner.with_context(|| format!("{} has no spawner", data.display()))?;
        let mounts = std::fs::read_to_string(format!("/proc/{spawner}/mountinfo"))?.lines().count();
        Ok(Kernel { processes: processes.len(), cgroups: containers.len(), mounts })
    }
}

/// What runs for the agent that has its data there, and in cgroups elsewhere whose names begin so.
pub(crate) fn running(data: &Path, elsewhere: Option<&str>) -> Result<Vec<u32>> {
    let own = processes(&node(data)?).collect::<Vec<_>>();
    Ok(own.into_iter().chain(elsewhere.into_iter().flat_map(processes)).collect())
}

/// Whether a process waits to be told of its container.
fn waits(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "agentcube-ahead")
}

/// The names of the cgroups that a process is in.
fn groups(pid: u32) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines().filter_map(|line| Some(line.rsplit_once('/')?.1.to_owned())).collect()
}

/// Whatever lives in cgroups whose paths contain this.
fn processes(node: &str) -> impl Iterator<Item = u32> {
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let inside = move |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(node))
    };
    let lives = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        !status.is_empty() && !status.contains("State:\tZ")
    };
    numbers.filter(move |pid| inside(pid) && lives(pid))
}

fn find(directory: &Path, node: &str, depth: usize, inside: bool, found: &mut BTreeSet<PathBuf>) {
    if depth == 0 {
        return;
    }
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
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
