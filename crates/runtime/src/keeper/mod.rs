//! Keeps a spawner, and what it runs, through the deaths of the process that works with it.
//!
//! A small single-threaded process starts both and does nothing but watch: when the worker dies it starts another, which
//! adopts the spawner. When the keeper itself dies, the kernel kills all of them.

mod backoff;
mod signals;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::Error;
use crate::keeper::backoff::Backoff;
use crate::keeper::signals::Signals;
use crate::spawner::{self, Fuse, Handle, Snapshot, Spawner};

/// A worker that ends with this code was called wrongly; another one would end no better.
const USAGE: u8 = 2;

#[derive(Debug, Clone)]
pub struct Options {
    /// This very program: it is the spawner when its argument is `__spawner`, and the worker with those below.
    pub program: PathBuf,
    /// The worker's arguments. One more follows them: what [`Worker::inherit`] reads.
    pub arguments: Vec<OsString>,
    pub spawner: spawner::Options,
}

/// Starts a spawner and workers, one after the other, until one ends by itself or this process is told to end; then ends
/// everything. Call it before there is any thread.
///
/// SIGTERM, SIGINT, SIGQUIT and SIGHUP are passed on to the worker. The code is that of the last worker.
pub fn run(options: Options) -> Result<ExitCode, Error> {
    let signals = Signals::block().map_err(step("waiting for signals"))?;
    let spawner = spawner::Options { adoptable: true, ..options.spawner.clone() };
    let spawner = Spawner::start(&options.program, &spawner)?;
    let mut keeper =
        Keeper { options, spawner, signals, backoff: Backoff::default(), workers: 0, told: false };
    let code = keeper.keep().map_err(step("keeping the worker"))?;
    keeper.spawner.stop();
    Ok(code)
}

fn step<E: std::fmt::Display>(step: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::Step { step, reason: error.to_string() }
}

struct Keeper {
    options: Options,
    spawner: Spawner,
    signals: Signals,
    backoff: Backoff,
    /// How many there were before.
    workers: u32,
    /// Somebody wants us to end.
    told: bool,
}

/// Why nobody waits any longer.
#[derive(Debug, Clone, Copy)]
enum Event {
    Ended(WaitStatus),
    SpawnerGone,
    /// The time is over.
    Due,
}

impl Keeper {
    fn keep(&mut self) -> io::Result<ExitCode> {
        loop {
            let begun = Instant::now();
            let code = match self.work() {
                // Nobody has worked yet, so there is nothing to be kept.
                Err(error) if self.workers == 0 => return Err(error),
                Err(error) => {
                    tracing::error!(%error, "cannot start a worker");
                    None
                }
                Ok(code) => code,
            };
            if let Some(code) = code {
                return Ok(ExitCode::from(code));
            }
            self.workers = self.workers.saturating_add(1);
            let pause = self.backoff.next(begun.elapsed());
            tracing::warn!(?pause, "the worker has ended; starting another");
            match self.wait(None, Some(Instant::now() + pause))? {
                Event::SpawnerGone => return Ok(ExitCode::FAILURE),
                _ if self.told => return Ok(ExitCode::SUCCESS),
                _ => {}
            }
        }
    }

    /// One worker from start to end; the code to end with, if it was the last one.
    fn work(&mut self) -> io::Result<Option<u8>> {
        let worker = self.start()?;
        if let Event::Ended(ended) = self.wait(Some(worker), None)? {
            return Ok(last(ended.exit_status(), ended.terminating_signal(), self.told));
        }
        tracing::error!("the spawner has ended, and with it all that it had started");
        kill(worker, Signal::KILL);
        let _ = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(worker), WaitOptions::empty()));
        Ok(Some(1))
    }

    fn start(&self) -> io::Result<Pid> {
        let (socket, process) = self.spawner.descriptors()?;
        let inherited = [socket.as_raw_fd(), process.as_raw_fd()];
        let number = format!("{},{},{}", self.workers, inherited[0], inherited[1]);
        let keeper = rustix::process::getpid();
        let mut command = Command::new(&self.options.program);
        // A group of its own: a terminal's signals come from us, once.
        command.args(&self.options.arguments).arg(number).process_group(0);
        // SAFETY: plain system calls, on this process and on descriptors that live until it has executed the worker.
        unsafe {
            command.pre_exec(move || {
                Signals::unblock()?;
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                if rustix::process::getppid() != Some(keeper) {
                    return Err(io::Error::other("the keeper has ended"));
                }
                for descriptor in inherited {
                    let open = BorrowedFd::borrow_raw(descriptor);
                    rustix::io::fcntl_setfd(open, rustix::io::FdFlags::empty())?;
                }
                Ok(())
            });
        }
        let child = command.spawn()?;
        Pid::from_raw(child.id().cast_signed()).ok_or_else(|| io::Error::other("the worker has no number"))
    }

    /// Waits for the worker, the spawner or a time, whichever comes first, and reaps whoever else has become ours.
    fn wait(&mut self, worker: Option<Pid>, until: Option<Instant>) -> io::Result<Event> {
        loop {
            while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
                if Some(pid) == worker {
                    return Ok(Event::Ended(status));
                }
            }
            if self.watch(until)? {
                return Ok(Event::SpawnerGone);
            }
            for signal in self.signals.read()? {
                self.told = true;
                worker.into_iter().for_each(|worker| kill(worker, signal));
            }
            let due = until.is_some_and(|until| Instant::now() >= until);
            if worker.is_none() && (due || self.told) {
                return Ok(Event::Due);
            }
        }
    }

    /// Waits for a signal. `true` if the spawner has ended.
    fn watch(&self, until: Option<Instant>) -> io::Result<bool> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut watched = [
            PollFd::from_borrowed_fd(self.signals.descriptor(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.spawner.process(), PollFlags::IN),
        ];
        rustix::io::retry_on_intr(|| poll(&mut watched, left.as_ref()))?;
        Ok(!watched[1].revents().is_empty())
    }
}

/// A number is not given to anybody else before we have reaped it.
fn kill(worker: Pid, signal: Signal) {
    let _ = rustix::process::kill_process(worker, signal);
}

/// The code to end with, if there is to be no other worker.
fn last(code: Option<i32>, signal: Option<i32>, told: bool) -> Option<u8> {
    let code = code.or_else(|| Some(128 + signal?)).and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    (told || code == 0 || code == USAGE).then_some(code)
}

/// What a worker has of its keeper.
#[derive(Debug)]
pub struct Worker {
    socket: OwnedFd,
    spawner: OwnedFd,
    /// How many were there before it.
    before: usize,
    fuse: Option<Fuse>,
}

impl Worker {
    /// Takes over what the keeper has left open for us, by the last argument that it gave us. Call it once, and before
    /// anything else is opened or executed.
    pub fn inherit(argument: &str) -> Result<Self, Error> {
        let wrong = || Error::Invalid(format!("{argument:?} does not come from a keeper"));
        let numbers: Option<Vec<i32>> = argument.split(',').map(|number| number.parse().ok()).collect();
        let Some(&[before, socket, spawner]) = numbers.as_deref() else { return Err(wrong()) };
        if socket <= 2 || spawner <= 2 || socket == spawner {
            return Err(wrong());
        }
        let [socket, spawner] = [socket, spawner].map(take);
        match (socket, spawner) {
            (Some(socket), Some(spawner)) => {
                let before = usize::try_from(before).map_err(|_| wrong())?;
                Ok(Self { socket, spawner, before, fuse: None })
            }
            _ => Err(wrong()),
        }
    }

    /// For tests: the first worker dies after so many effects as come first, the next after those that come next. This
    /// one's, if it is to die, for effects that are not the spawner's.
    pub fn dies_after(&mut self, effects: &[u64]) -> Option<Fuse> {
        self.fuse = effects.get(self.before).map(|effects| Fuse::after(*effects));
        self.fuse.clone()
    }

    /// Takes over the spawner. There is a snapshot if another worker was there before, whether or not it left anything.
    pub async fn adopt(self) -> Result<(Handle, Option<Snapshot>), Error> {
        let (handle, snapshot) = Handle::adopt_until(self.socket, self.spawner, self.fuse).await?;
        Ok((handle, (self.before > 0).then_some(snapshot)))
    }
}

/// A descriptor that was open when this program began, if there is one of this number.
fn take(number: i32) -> Option<OwnedFd> {
    // SAFETY: only asked for, and not closed.
    let open = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(open, rustix::io::FdFlags::CLOEXEC).ok()?;
    // SAFETY: it is open, and whoever has executed us has left it to us.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_when_to_start_another() {
        let table = [
            (Some(0), None, false, Some(0)),
            (Some(1), None, false, None),
            (Some(2), None, false, Some(2)),
            (Some(101), None, false, None),
            (None, Some(9), false, None),
            (Some(0), None, true, Some(0)),
            (Some(1), None, true, Some(1)),
            (None, Some(9), true, Some(137)),
            (None, None, false, None),
        ];
        for (code, signal, told, expected) in table {
            assert_eq!(last(code, signal, told), expected, "{code:?} {signal:?} {told}");
        }
    }

    #[test]
    fn refuses_what_no_keeper_says() {
        for argument in ["", "0", "0,1", "0,1,2", "0,9999,9998", "0,7,7", "x,7,8", "0,7,8,9", "0,-1,7"] {
            assert!(matches!(Worker::inherit(argument), Err(Error::Invalid(_))), "{argument}");
        }
    }
}
