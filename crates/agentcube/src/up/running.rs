//! Who runs on a data directory: a lock that only one can hold, and a record that says who and where.
//!
//! The lock decides. The record is believed only if the process that it names still is the one that wrote it.

use std::fs::{File, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::paths::{DataDir, write_private};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Phase {
    Starting,
    Ready,
    Stopping,
}

/// What a running `up` says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    pub(crate) pid: i32,
    /// When the process started, in ticks since boot: with the number, it names the process for good.
    pub(crate) started_ticks: u64,
    pub(crate) since: jiff::Timestamp,
    pub(crate) phase: Phase,
    pub(crate) address: Option<String>,
    /// Where requests to Tasks come in.
    #[serde(default)]
    pub(crate) gateway: Option<String>,
    /// Where the console is.
    #[serde(default)]
    pub(crate) console: Option<String>,
    pub(crate) version: String,
}

/// Where a process listens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) api: SocketAddr,
    pub(crate) gateway: SocketAddr,
    pub(crate) console: SocketAddr,
}

/// Nobody else runs on the data directory while this lives.
pub(crate) struct Lock {
    record_path: PathBuf,
    since: jiff::Timestamp,
    // Closed with the process, however it ends, and with it the lock goes.
    _file: File,
}

impl Lock {
    pub(crate) fn take(data: &DataDir) -> anyhow::Result<Self> {
        let path = data.lock();
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if began.elapsed() < patience(data) => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(TryLockError::WouldBlock) => bail!(in_use(data)),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
            }
        }
        let lock = Self { record_path: data.record(), since: jiff::Timestamp::now(), _file: file };
        lock.announce(Phase::Starting, None)?;
        Ok(lock)
    }

    pub(crate) fn record(&self, phase: Phase, place: Option<Place>) -> Record {
        Record {
            pid: rustix::process::getpid().as_raw_nonzero().get(),
            started_ticks: started_ticks(rustix::process::getpid()).unwrap_or_default(),
            since: self.since,
            phase,
            address: place.map(|place| format!("https://{}", place.api)),
            gateway: place.map(|place| format!("http://{}", place.gateway)),
            console: place.map(|place| format!("http://{}", place.console)),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Tells `status` and `down` where we are.
    pub(crate) fn announce(&self, phase: Phase, place: Option<Place>) -> anyhow::Result<()> {
        let text = serde_json::to_vec_pretty(&self.record(phase, place))?;
        write_private(&self.record_path, &text)
            .with_context(|| format!("cannot write {}", self.record_path.display()))
    }

    /// Says that nobody runs any more.
    pub(crate) fn release(self) {
        // A record that stays names a process that is gone, and is not believed.
        let _stays = std::fs::remove_file(&self.record_path);
    }
}

/// A process that was killed holds its lock until the kernel has taken it apart.
fn patience(data: &DataDir) -> Duration {
    match Running::find(data) {
        Ok(Some(_)) => Duration::from_millis(200),
        _ => Duration::from_secs(5),
    }
}

fn in_use(data: &DataDir) -> String {
    let place = data.path().display();
    match Running::find(data) {
        Ok(Some(running)) => format!(
            "agentcube already runs on {place} (process {}): `agentcube down --data-dir {place}` stops it, \
             another --data-dir runs beside it",
            running.record.pid
        ),
        _ => format!("another process uses {place}: choose another --data-dir"),
    }
}

/// A process that runs `up`, held so that nothing else can be taken for it.
pub(crate) struct Running {
    pub(crate) record: Record,
    pidfd: OwnedFd,
}

impl Running {
    /// The process that runs on the data directory, if one does.
    pub(crate) fn find(data: &DataDir) -> anyhow::Result<Option<Self>> {
        let path = data.record();
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let record: Record = serde_json::from_slice(&text)
            .with_context(|| format!("{} is damaged: remove it if agentcube does not run", path.display()))?;
        let Some(pid) = Pid::from_raw(record.pid) else { return Ok(None) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error).context("cannot look at the running process"),
        };
        // Only now: had the number been given to another process meanwhile, it would have started later.
        let same = started_ticks(pid).is_some_and(|ticks| ticks == record.started_ticks);
        Ok(same.then_some(Self { record, pidfd }))
    }

    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("cannot signal process {}", self.record.pid)),
        }
    }

    /// Returns when the process has ended.
    pub(crate) async fn ended(self) -> anyhow::Result<()> {
        tokio::task::spawn_blocking(move || {
            let mut ended = [PollFd::new(&self.pidfd, PollFlags::IN)];
            loop {
                match poll(&mut ended, None) {
                    Ok(_) => return Ok(()),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error).context("cannot wait for the process"),
                }
            }
        })
        .await?
    }
}

/// When a process started; `None` when there is none, or it has ended and only waits to be reaped.
fn started_ticks(pid: Pid) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    parse_started(&stat)
}

fn parse_started(stat: &str) -> Option<u64> {
    // The name, in parentheses, may itself hold spaces and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    // Field 22 of the line; the state was the third.
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> (tempfile::TempDir, DataDir) {
        let directory = tempfile::tempdir().unwrap();
        let data = DataDir::new(directory.path());
        (directory, data)
    }

    #[test]
    fn one_holds_the_lock_and_is_found() {
        let (_directory, data) = data();
        assert!(Running::find(&data).unwrap().is_none());
        let lock = Lock::take(&data).unwrap();
        let found = Running::find(&data).unwrap().expect("we run");
        assert_eq!(found.record.phase, Phase::Starting);
        assert_eq!(found.record.pid, i32::try_from(std::process::id()).unwrap());
        let refused = Lock::take(&data).err().expect("only one").to_string();
        assert!(refused.contains(&std::process::id().to_string()), "{refused}");
        lock.release();
        assert!(Running::find(&data).unwrap().is_none());
        Lock::take(&data).unwrap();
    }

    #[test]
    fn a_record_of_another_life_is_not_believed() {
        let (_directory, data) = data();
        let lock = Lock::take(&data).unwrap();
        let mut record = lock.record(Phase::Ready, None);
        record.started_ticks += 1;
        std::fs::write(data.record(), serde_json::to_vec(&record).unwrap()).unwrap();
        assert!(Running::find(&data).unwrap().is_none(), "another process has the number now");
        record.pid = i32::MAX;
        std::fs::write(data.record(), serde_json::to_vec(&record).unwrap()).unwrap();
        assert!(Running::find(&data).unwrap().is_none(), "no process has the number");
        std::fs::write(data.record(), "{").unwrap();
        assert!(Running::find(&data).is_err());
    }

    #[test]
    fn start_times_are_read_past_odd_names() {
        let line = |state: &str| {
            format!("7 (a) b (c)) {state} 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 8675309 1 2 3")
        };
        assert_eq!(parse_started(&line("S")), Some(8_675_309));
        assert_eq!(parse_started(&line("Z")), None);
        assert_eq!(parse_started("garbage"), None);
    }
}
