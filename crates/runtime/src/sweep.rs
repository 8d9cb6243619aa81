//! Removes what a node left that was killed: processes, cgroups and scratch directories. Mounts and network namespaces
//! have ended with its processes.
//!
//! Only what the directory's own record and the node's own name point at is touched, and a process only after its
//! start time or its cgroup says that it is the one meant. Doing it again does nothing.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, openat};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::cgroup::{self, Tree};
use crate::rootfs::delete::delete;
use crate::spawner::scratch_directory;

/// A killed process is gone in milliseconds, unless a disk holds it.
const PATIENCE: Duration = Duration::from_secs(10);
/// A holder that was killed may have left a copy of the lock to a child that had not executed its program yet.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// A cgroup stays busy for a moment after its last process.
const PAUSE: Duration = Duration::from_millis(2);

/// Keeps a second node from using, and sweeping, the same directory. The kernel lets go of it when its holder ends.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "held, not used")] OwnedFd);

pub(crate) fn lock(directory: &Path) -> Result<Lock, Error> {
    let path = directory.join("lock");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(CWD, &path, flags, Mode::from_raw_mode(0o600)).map_err(|error| failed(&path, error))?;
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Lock(file)),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(Error::Invalid(format!(
                    "another node is running in {}: stop it, or choose another directory",
                    directory.display()
                )));
            }
            Err(error) => return Err(failed(&path, error)),
        }
    }
}

/// What the next start has to know of this one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    boot: String,
    cgroups: Tree,
    spawner: Option<Identity>,
}

/// A process beyond doubt: numbers come again, but not with the same start time.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    pid: i32,
    /// In clock ticks since the machine's start.
    started: u64,
}

impl Record {
    pub(crate) fn new(cgroups: Tree) -> io::Result<Self> {
        Ok(Self { boot: boot()?, cgroups, spawner: None })
    }

    pub(crate) fn set_spawner(&mut self, pid: u32) -> io::Result<()> {
        let pid = i32::try_from(pid).map_err(io::Error::other)?;
        self.spawner = Some(Identity { pid, started: started(pid)? });
        Ok(())
    }

    /// Whole or not at all, whenever we are killed.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        let new = directory.join("record.new");
        fs::write(&new, text)?;
        fs::rename(new, path(directory))
    }

    fn read(directory: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path(directory)).ok()?).ok()
    }
}

fn path(directory: &Path) -> PathBuf {
    directory.join("record")
}

fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

fn started(pid: i32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in brackets, may hold anything; after it, this is the 20th field.
    let field = text.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(19)?.parse().ok());
    field.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/<pid>/stat has an unknown form"))
}

/// Sweeps after whoever used this directory before. The caller holds its [`Lock`].
pub(crate) fn sweep(node: &str, directory: &Path) -> Result<(), Error> {
    let record = Record::read(directory).filter(|record| boot().is_ok_and(|boot| boot == record.boot));
    let recorded = record.iter().flat_map(|record| record.cgroups.directories());
    let mut groups: Vec<_> = recorded.map(Path::to_owned).collect();
    groups.extend(cgroup::possible_directories(node).map_err(|error| failed(directory, error))?);
    // A node in a container of a node of the same name: what is around it is not its own.
    let own = groups.into_iter().map(|group| Ok((cgroup::holds_us(&group)?, group)));
    let own: Vec<_> = own.collect::<io::Result<_>>().map_err(|error| failed(directory, error))?;
    let groups: Vec<_> = own.into_iter().filter(|(around, _)| !around).map(|(_, group)| group).collect();
    for group in &groups {
        // Before the spawner, which ends after all that it has started.
        cgroup::release(group).map_err(|error| failed(group, error))?;
    }
    if let Some(spawner) = record.as_ref().and_then(|record| record.spawner.as_ref()) {
        kill_spawner(spawner).map_err(|error| failed(directory, error))?;
    }
    for group in groups {
        sweep_group(&group).map_err(|error| failed(&group, error))?;
        cgroup::remove_aside(&group);
    }
    let scratch = scratch_directory(directory);
    let entries = match fs::read_dir(&scratch) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|error| failed(&scratch, error))?,
    };
    for entry in entries {
        let path = entry.map_err(|error| failed(&scratch, error))?.path();
        delete(&path).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// With it, the kernel kills all that it has started; it ends last.
fn kill_spawner(spawner: &Identity) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(spawner.pid) else { return Ok(()) };
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        other => other?,
    };
    // Asked with the descriptor in hand: if it is the same process now, the descriptor is of that process.
    match started(spawner.pid) {
        Ok(started) if started == spawner.started => kill(pidfd.as_fd()),
        _ => Ok(()),
    }
}

fn kill(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    match pidfd_send_signal(pidfd, Signal::KILL) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        other => other?,
    }
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let mut ended = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    match rustix::io::retry_on_intr(|| poll(&mut ended, Some(&patience)))? {
        0 => Err(io::Error::new(io::ErrorKind::TimedOut, "a killed process of the last run does not end")),
        _ => Ok(()),
    }
}

fn sweep_group(group: &Path) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        kill_members(group)?;
        match cgroup::remove(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                std::thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
}

/// Kills the processes of a cgroup and of those below.
fn kill_members(group: &Path) -> io::Result<()> {
    for below in cgroup::subgroups(group)? {
        kill_members(&below)?;
    }
    cgroup::members(group)?.iter().try_for_each(|member| kill(member.as_fd()))
}

fn failed(path: &Path, error: impl Into<io::Error>) -> Error {
    Error::Step {
        step: "sweeping after the last run",
        reason: format!("{}: {}", path.display(), error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_came_again_is_left_alone() {
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(sleeper.id()).unwrap();
        let real = started(pid).unwrap();

        kill_spawner(&Identity { pid, started: real + 1 }).unwrap();
        assert!(sleeper.try_wait().unwrap().is_none(), "somebody else's process was killed");

        kill_spawner(&Identity { pid, started: real }).unwrap();
        assert!(!sleeper.wait().unwrap().success());
        kill_spawner(&Identity { pid, started: real }).unwrap();
    }

    #[test]
    fn only_one_node_uses_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let held = lock(directory.path()).unwrap();
        assert!(matches!(lock(directory.path()), Err(Error::Invalid(_))));
        drop(held);
        lock(directory.path()).unwrap();
    }
}
