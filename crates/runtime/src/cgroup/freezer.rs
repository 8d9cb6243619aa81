//! Stops all processes of a container at once, and lets them go on.
//!
//! The unified hierarchy is preferred, also where the limits are in others: what it has frozen can still be killed. What
//! v1's freezer holds cannot, not even with its pid namespace, so whoever kills it has to thaw it too. A start costs
//! nothing of this: where a container's own group cannot be frozen, one for that is made at the first freeze.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{detect, make, members, remove, subgroups};

/// A process that waits for a disk is stopped when it is done with that.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    Unified,
    Freezer,
}

/// A directory of the node in which groups can be frozen. Made when it is needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    kind: Kind,
    directory: PathBuf,
}

/// Where a node may freeze, best first.
pub(super) fn places(found: &[detect::Found], name: &str) -> Vec<Place> {
    let place = |kind, found: &detect::Found| Place { kind, directory: found.own.join(name) };
    let unified = found.iter().filter(|found| found.unified).map(|found| place(Kind::Unified, found));
    let freezer = found.iter().filter(|found| found.freezer).map(|found| place(Kind::Freezer, found));
    unified.chain(freezer).collect()
}

impl Place {
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// A group for one container, if this process may make one.
    pub(super) fn group(&self, name: &str) -> Option<Freezer> {
        make(&self.directory).ok()?;
        let directory = self.directory.join(name);
        make(&directory).ok()?;
        let freezer = Freezer { kind: self.kind, directory, apart: true };
        freezer.state().exists().then_some(freezer)
    }
}

/// The group in which a container is frozen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Freezer {
    kind: Kind,
    directory: PathBuf,
    /// Not the group that the container is in from the start.
    apart: bool,
}

impl Freezer {
    pub(super) fn of_group(directory: &Path) -> Option<Self> {
        let freezer = Self { kind: Kind::Unified, directory: directory.to_owned(), apart: false };
        freezer.state().exists().then_some(freezer)
    }

    /// What is killed while it is frozen ends only once it is thawed.
    pub(crate) fn holds_the_killed(&self) -> bool {
        self.kind == Kind::Freezer
    }

    fn state(&self) -> PathBuf {
        self.directory.join(match self.kind {
            Kind::Unified => "cgroup.freeze",
            Kind::Freezer => "freezer.state",
        })
    }

    fn set(&self, frozen: bool) -> io::Result<()> {
        let text = match (self.kind, frozen) {
            (Kind::Unified, true) => "1",
            (Kind::Unified, false) => "0",
            (Kind::Freezer, true) => "FROZEN",
            (Kind::Freezer, false) => "THAWED",
        };
        fs::write(self.state(), text)
    }

    /// Stops all processes of a container's group and waits until they stand still, which may take a while. One that
    /// cannot be stopped leaves all of them running.
    pub(crate) fn freeze(&self, group: &Path) -> io::Result<()> {
        self.freeze_within(group, PATIENCE).inspect_err(|_| drop(self.thaw()))
    }

    fn freeze_within(&self, group: &Path, patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        // First, so that whoever is moved stops on arrival and has no children any more.
        self.set(true)?;
        while self.apart && self.gather(group)? {
            self.check(deadline)?;
        }
        while !self.is_frozen()? {
            self.check(deadline)?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn check(&self, deadline: Instant) -> io::Result<()> {
        if Instant::now() < deadline {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "a process of the container cannot be stopped"))
    }

    /// Moves in whoever is not here yet. `false` if there was nobody.
    fn gather(&self, group: &Path) -> io::Result<bool> {
        let here = numbers(&self.directory)?;
        let mut all = BTreeSet::new();
        collect(group, &mut all)?;
        let mut moved = false;
        for number in all.difference(&here) {
            match fs::write(self.directory.join("cgroup.procs"), number.to_string()) {
                // It has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                other => other?,
            }
            moved = true;
        }
        Ok(moved)
    }

    fn is_frozen(&self) -> io::Result<bool> {
        Ok(match self.kind {
            Kind::Unified => {
                let events = fs::read_to_string(self.directory.join("cgroup.events"))?;
                events.lines().any(|line| line == "frozen 1")
            }
            Kind::Freezer => fs::read_to_string(self.state())?.trim() == "FROZEN",
        })
    }

    /// Lets all go on.
    pub(crate) fn thaw(&self) -> io::Result<()> {
        self.set(false)
    }

    /// Removes the group, if it was made for this. `ResourceBusy` while a process is in it.
    pub(crate) fn remove(&self) -> io::Result<()> {
        if self.apart { remove(&self.directory) } else { Ok(()) }
    }
}

fn numbers(directory: &Path) -> io::Result<BTreeSet<u32>> {
    let text = fs::read_to_string(directory.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

fn collect(group: &Path, all: &mut BTreeSet<u32>) -> io::Result<()> {
    all.extend(numbers(group)?);
    subgroups(group)?.iter().try_for_each(|below| collect(below, all))
}

/// Kills whoever a killed node has left frozen in v1's freezer, in a group and below: nothing else ends them.
pub(crate) fn release(group: &Path) -> io::Result<()> {
    for below in subgroups(group)? {
        release(&below)?;
    }
    let state = group.join("freezer.state");
    if fs::read_to_string(&state).is_ok_and(|state| state.trim() != "THAWED") {
        for member in members(group)? {
            let _ = rustix::process::pidfd_send_signal(&member, rustix::process::Signal::KILL);
        }
        fs::write(state, "THAWED")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    /// Groups of this test alone, where this machine has such a hierarchy and lets us.
    fn groups(kind: Kind) -> Option<(PathBuf, Freezer)> {
        let places =
            places(&super::super::find().unwrap(), &format!("agentcube-freezer-{}", std::process::id()));
        let place = places.into_iter().find(|place| place.kind == kind)?;
        let group = place.group("group")?;
        Some((group.directory, place.group("freezer")?))
    }

    fn state(pid: u32) -> char {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        text.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }

    /// How often a loop came round.
    fn rounds(file: &Path) -> u64 {
        fs::metadata(file).map_or(0, |status| status.len())
    }

    #[test]
    fn stops_a_family_that_grows_and_lets_it_go_on() {
        for kind in [Kind::Unified, Kind::Freezer] {
            let Some((group, freezer)) = groups(kind) else { continue };
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("rounds");
            let script = "read -r go; while :; do (printf x >> \"$1\"); done";
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script, "sh"]).arg(&file).stdin(Stdio::piped());
            let mut family = command.spawn().unwrap();
            fs::write(group.join("cgroup.procs"), family.id().to_string()).unwrap();
            // Only now: a child that was born before is not in the group.
            family.stdin.take().unwrap().write_all(b"go\n").unwrap();
            while rounds(&file) == 0 {
                std::thread::yield_now();
            }
            for _ in 0..3 {
                freezer.freeze(&group).unwrap();
                let before = rounds(&file);
                assert!(freezer.is_frozen().unwrap());
                assert_eq!(numbers(&group).unwrap(), BTreeSet::new(), "{kind:?}: all are moved");
                // Others get all of the processor for a while.
                for _ in 0..50 {
                    assert!(Command::new("/bin/true").status().unwrap().success());
                }
                assert_eq!(rounds(&file), before, "{kind:?}: nobody of the family has run");
                freezer.thaw().unwrap();
                while rounds(&file) == before {
                    std::thread::yield_now();
                }
            }
            freezer.freeze(&group).unwrap();
            let kept = state(family.id());
            family.kill().unwrap();
            if freezer.holds_the_killed() {
                assert_eq!((kept, state(family.id())), ('D', 'D'), "the killed is held");
                release(freezer.directory.parent().unwrap()).unwrap();
            }
            family.wait().unwrap();
            let top = group.parent().unwrap().to_owned();
            // Its last child ends by itself.
            freezer.thaw().unwrap();
            while remove(&top).is_err() {
                std::thread::yield_now();
            }
        }
    }
}
