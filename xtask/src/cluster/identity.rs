//! Processes that are known again: a number alone may by now be a stranger's, so it counts only together with the time at
//! which its process started, in this run of the machine.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::process::quietly;

const DEATH_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// One process, not to be confused with a later one of the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    /// In ticks since the machine started.
    started: u64,
    boot: String,
}

impl Identity {
    /// Of a process that is alive.
    pub(crate) fn of(pid: u32) -> Option<Identity> {
        let started = start_of_living(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        Some(Identity { pid, started, boot: boot() })
    }

    /// What a file says, if the process that it names is alive.
    pub(crate) fn read(file: &Path) -> Option<Identity> {
        let text = std::fs::read_to_string(file).ok()?;
        let mut words = text.split_whitespace();
        let pid = words.next()?.parse().ok()?;
        let started = words.next()?.parse().ok()?;
        let named = Identity { pid, started, boot: words.next()?.to_owned() };
        named.is_alive().then_some(named)
    }

    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let text = format!("{} {} {}\n", self.pid, self.started, self.boot);
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    pub(crate) fn is_alive(&self) -> bool {
        Identity::of(self.pid).as_ref() == Some(self)
    }

    /// Kills the process, unless it has ended already, and waits until it has.
    pub(crate) fn kill(&self) -> Result<()> {
        if self.is_alive() {
            let killed = quietly(Command::new("sh").args(["-c", "kill -KILL $0", &self.pid.to_string()]));
            ensure!(killed.is_ok() || !self.is_alive(), "cannot kill process {}", self.pid);
        }
        let deadline = Instant::now() + DEATH_LIMIT;
        while self.is_alive() {
            ensure!(Instant::now() < deadline, "process {} was killed and does not end", self.pid);
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

fn boot() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// The start time in a line of `/proc/<pid>/stat`. The name of a program may have blanks and brackets in it.
fn start_of_living(stat: &str) -> Option<u64> {
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    if matches!(words.next()?, "Z" | "X") {
        return None;
    }
    words.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_a_process_again() {
        let own = Identity::of(std::process::id()).expect("this test is alive");
        assert!(own.is_alive());
        assert!(!Identity { started: own.started + 1, ..own.clone() }.is_alive(), "another of the number");
        assert!(!Identity { boot: "another".to_owned(), ..own }.is_alive(), "of another run of the machine");
    }

    #[test]
    fn reads_start_times() {
        let tail = "1 1 1 0 -1 4194560 1 0 0 0 2 1 0 0 20 0 1 0 4711 8192 10";
        assert_eq!(start_of_living(&format!("7 (a) b) (c) S {tail}")), Some(4711));
        assert_eq!(start_of_living(&format!("7 (ended) Z {tail}")), None);
        assert_eq!(start_of_living("nonsense"), None);
    }
}
