//! A child of the spawner, from `clone3` until it is reaped.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::channel::{self, Packet};
use super::child::Report;
use super::clone::{self, Born};
use super::oci::Drive;
use super::{Failure, Step};
use crate::spec::ContainerId;

/// What a child is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    /// The first process of a container.
    First(ContainerId),
    /// One more.
    Exec(ContainerId),
    /// Deletes the scratch directory of a container.
    Delete(ContainerId),
    /// Freezes a container.
    Freeze(ContainerId),
    /// Runs an OCI runtime.
    Drive(ContainerId, Drive),
}

impl Role {
    pub(super) fn container(&self) -> &ContainerId {
        match self {
            Self::First(id) | Self::Exec(id) | Self::Delete(id) | Self::Freeze(id) | Self::Drive(id, _) => id,
        }
    }
}

impl Role {
    /// Ends with the container; the others work on its removal.
    pub(super) fn is_instance(&self) -> bool {
        !matches!(self, Self::Delete(_) | Self::Drive(_, Drive::Delete))
    }
}

#[derive(Debug)]
pub(super) struct Process {
    pub(super) role: Role,
    pub(super) pidfd: OwnedFd,
    /// As the spawner counts.
    pub(super) number: i32,
    /// As the machine counts; 0 if it ended before one could ask.
    pub(super) pid: u32,
    /// The request whose answer, and whose end, this is.
    pub(super) asked: u64,
    /// Until the child has closed it.
    report: Option<OwnedFd>,
    terminal: Option<OwnedFd>,
    /// Where an OCI runtime sends the terminal of what it makes.
    pub(super) console: Option<OwnedFd>,
    outcome: Outcome,
    settled: bool,
}

/// What is known of a child's setup. `Unknown` until it says something.
#[derive(Debug)]
enum Outcome {
    Unknown,
    Waiting,
    Ready,
    Failed(Failure),
}

impl Process {
    pub(super) fn new(asked: u64, role: Role, born: Born, report: OwnedFd) -> Self {
        let pid = clone::host_pid(born.pidfd.as_fd()).unwrap_or(0);
        Self {
            role,
            pidfd: born.pidfd,
            number: born.number,
            pid,
            asked,
            report: Some(report),
            terminal: None,
            console: None,
            outcome: Outcome::Unknown,
            settled: false,
        }
    }

    /// One that an OCI runtime has made, and that needs no setup any more.
    pub(super) fn left(asked: u64, role: Role, born: Born, terminal: Option<OwnedFd>) -> Self {
        let pid = clone::host_pid(born.pidfd.as_fd()).unwrap_or(0);
        Self {
            role,
            pidfd: born.pidfd,
            number: born.number,
            pid,
            asked,
            report: None,
            terminal,
            console: None,
            outcome: Outcome::Ready,
            settled: false,
        }
    }

    /// Its setup has succeeded, and whoever asked for it knows.
    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    pub(super) fn settle(&mut self) {
        self.settled = true;
    }

    /// It waits to be told what to run.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.outcome, Outcome::Waiting)
    }

    /// Tells one that waits what to run.
    pub(super) fn claim(&mut self, asked: u64, claim: &Packet) -> std::io::Result<()> {
        let report = self.report.as_ref().ok_or(std::io::ErrorKind::BrokenPipe)?;
        claim.send(report)?;
        (self.asked, self.outcome) = (asked, Outcome::Unknown);
        Ok(())
    }

    /// Where it may still have something to say.
    pub(super) fn report(&self) -> Option<BorrowedFd<'_>> {
        self.report.as_ref().map(AsFd::as_fd)
    }

    /// Takes in what the child reports. Gives back the socket once the child has closed its side: it has executed its
    /// program, or ended.
    pub(super) fn hear(&mut self) -> Option<OwnedFd> {
        while let Some(report) = &self.report {
            match channel::receive(report.as_fd()) {
                Ok(Some(mut packet)) => match packet.read() {
                    Ok(Report::Terminal) => self.terminal = packet.descriptors.pop(),
                    Ok(Report::Waiting) => self.outcome = Outcome::Waiting,
                    Ok(Report::Ready) => self.outcome = Outcome::Ready,
                    Ok(Report::Failed(failure)) => self.outcome = Outcome::Failed(failure),
                    Err(error) => {
                        self.outcome = Outcome::Failed(Failure::Step(Step::Clone, error.to_string()))
                    }
                },
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return None,
                Ok(None) | Err(_) => return self.report.take(),
            }
        }
        None
    }

    /// Whether its setup has succeeded, and what came with it. Only to be asked when [`Process::hear`] has given back
    /// the socket.
    pub(super) fn outcome(&mut self) -> Result<Option<OwnedFd>, Failure> {
        match &self.outcome {
            Outcome::Ready => Ok(self.terminal.take()),
            Outcome::Failed(failure) => Err(failure.clone()),
            Outcome::Unknown | Outcome::Waiting => {
                let reason = "the process ended before its program was executed; was it out of memory?";
                Err(Failure::Step(Step::Clone, reason.to_owned()))
            }
        }
    }
}
