//! Containers that stand still when nobody has been heard of for too long, also while no worker lives that could see to
//! it. Who is heard of, and what is too long, workers say.

use std::time::Duration;

use rustix::event::Timespec;
use rustix::process::{Signal, pidfd_send_signal};

use super::Failure;
use super::protocol::{Answer, What};
use super::server::Server;
use crate::spec::ContainerId;

type Reply = Result<(Answer, Vec<std::os::fd::OwnedFd>), Failure>;

/// Since the machine's start, by the clock of `/proc/uptime`.
pub(super) fn uptime() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a value of ours, and to nothing else.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

impl Server<'_> {
    pub(super) fn set_patience(&mut self, container: &ContainerId, patience: Option<Duration>) -> Reply {
        let entry = self.containers.get_mut(container);
        let entry = entry.ok_or_else(|| Failure::NotFound(What::Container, container.to_string()))?;
        entry.patience = patience;
        Ok((Answer::Done, Vec::new()))
    }

    /// Never earlier than it was.
    pub(super) fn heard(&mut self, at: Duration) -> Reply {
        self.heard = self.heard.max(Some(at));
        Ok((Answer::Done, Vec::new()))
    }

    /// When a container loses its patience, if it has any left.
    fn deadlines(&self) -> impl Iterator<Item = (&ContainerId, Duration)> {
        let heard = self.heard;
        self.containers.iter().filter_map(move |(id, entry)| {
            // The program of one that is held is somebody else's.
            let runs = entry.running || entry.program.is_some();
            let awake = runs && !entry.frozen && entry.exit.is_none() && entry.removal.is_none();
            Some((id, heard?.saturating_add(entry.patience.filter(|_| awake)?)))
        })
    }

    /// How long nothing of this is due; `None`: for ever.
    pub(super) fn until_impatient(&self) -> Option<Timespec> {
        let first = self.deadlines().map(|(_, at)| at).min()?;
        // A little later than the worker, which does the same if it lives.
        let wait = first.saturating_sub(uptime()) + Duration::from_millis(1);
        Timespec::try_from(wait).ok()
    }

    /// Has those stand still whose patience is over.
    pub(super) fn lose_patience(&mut self) {
        if self.heard.is_none() {
            return;
        }
        let now = uptime();
        let due: Vec<ContainerId> =
            self.deadlines().filter(|(_, at)| *at <= now).map(|(id, _)| id.clone()).collect();
        for container in due {
            let id = self.internal();
            let waits = self.late.len();
            self.freeze(id, &container, true);
            let Some(entry) = self.containers.get_mut(&container) else { continue };
            // Once: whoever is heard of again says for how long.
            entry.patience = None;
            // What cannot stand still ends.
            if !entry.frozen && self.late.len() == waits {
                entry.group.kill();
                let first = entry.first.and_then(|first| self.processes.get(&first));
                // It may have ended by itself.
                let _ = first.map(|first| pidfd_send_signal(&first.pidfd, Signal::KILL));
            }
        }
    }
}
