//! Workers die, and what they have started goes on; the keeper dies, and everything with it.

#![allow(clippy::unwrap_used, reason = "these are tests, their own functions among them")]

mod harness;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use harness::place::{Found, Place, kill};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

const LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(2);

#[test]
fn without_root() {
    harness::again_without_root("without_root");
}

struct Keeper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Keeper {
    fn start(place: &Place, what: &str) -> Self {
        let mut command = Command::new(place.program());
        command.args(["keeper", &place.options.node]).arg(&place.options.directory).arg(what);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0, "all have ended");
        line.trim().to_owned()
    }

    /// The next line, which begins with a word; what follows it.
    fn expect(&mut self, word: &str) -> String {
        let line = self.line();
        let rest = line.strip_prefix(word).map(|rest| rest.trim().to_owned());
        assert!(rest.is_some(), "{line:?} instead of {word:?}");
        rest.unwrap_or_default()
    }

    fn tell(&mut self, words: &str) {
        writeln!(self.input, "{words}").unwrap();
    }

    fn log(&mut self) -> u64 {
        self.tell("log");
        self.expect("log").parse().unwrap()
    }

    fn code(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

fn number(text: &str) -> i32 {
    text.parse().unwrap()
}

fn open(pid: i32) -> OwnedFd {
    pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap()
}

/// Waits until there are so many processes: one that is just being executed has no arguments to be known by.
fn until_processes(place: &Place, count: usize) {
    let begun = Instant::now();
    loop {
        let found = place.found();
        if found.processes.len() == count {
            return;
        }
        assert!(begun.elapsed() < LIMIT, "not {count} processes: {found:?}");
        std::thread::sleep(POLL);
    }
}

fn wait_for(pidfd: &OwnedFd) {
    let mut ended = [PollFd::new(pidfd, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut ended, None)).unwrap();
}

#[tokio::test]
async fn a_container_outlives_its_worker_and_not_its_keeper() {
    let place = Place::new("keeper");
    let mut keeper = Keeper::start(&place, "obeys");
    let mut worker = number(&keeper.expect("worker"));
    let started = keeper.expect("started");
    let mut last = keeper.log();
    for _ in 0..3 {
        // Keeper, spawner, worker and container.
        until_processes(&place, 4);
        kill(worker);
        let next = number(&keeper.expect("worker"));
        assert_ne!(next, worker);
        worker = next;
        assert_eq!(keeper.expect("adopted"), format!("{started} the tag"), "the same process");
        // The old one took a part of this line with it.
        keeper.tell("log");
        keeper.line();
        for _ in 0..10_000 {
            let next = keeper.log();
            assert!(next > last, "{next} after {last}");
            last = next;
        }
    }
    let all = [worker, number(&started), place.spawner_pid()].map(open);
    keeper.child.kill().unwrap();
    keeper.child.wait().unwrap();
    all.iter().for_each(wait_for);
    let after = place.found();
    assert_eq!((after.processes, after.mounts), (BTreeSet::new(), Vec::new()));
    place.assert_clean_after_next_start().await;
}

#[test]
fn the_next_worker_is_told_the_end() {
    let place = Place::new("end");
    let mut keeper = Keeper::start(&place, "obeys");
    let worker = number(&keeper.expect("worker"));
    keeper.expect("started");
    kill(worker);
    keeper.expect("worker");
    keeper.expect("adopted");
    keeper.tell("end");
    assert_eq!(keeper.expect("ended"), "137");
    // One that ends by itself ends everything, and nothing is left.
    keeper.tell("stop");
    assert_eq!(keeper.code(), Some(0));
    assert_eq!(place.found(), Found::default());
}

#[test]
fn codes_say_whether_another_is_started() {
    let place = Place::new("codes");
    let mut keeper = Keeper::start(&place, "obeys");
    keeper.expect("worker");
    let started = keeper.expect("started");
    keeper.tell("fail");
    keeper.expect("worker");
    assert_eq!(keeper.expect("adopted"), format!("{started} the tag"));
    keeper.tell("usage");
    assert_eq!(keeper.code(), Some(2));
    assert_eq!(place.found(), Found::default());
}

#[test]
fn a_signal_to_the_keeper_reaches_the_worker_and_ends_all() {
    let place = Place::new("signal");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut keeper = Keeper::start(&place, "obeys");
        keeper.expect("worker");
        keeper.expect("started");
        let pid = Pid::from_raw(i32::try_from(keeper.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        assert_eq!(keeper.code(), Some(128 + signal.as_raw()));
        assert_eq!(place.found(), Found::default());
    }
}

#[tokio::test]
async fn the_spawner_takes_all_with_it() {
    let place = Place::new("without");
    let mut keeper = Keeper::start(&place, "obeys");
    keeper.expect("worker");
    keeper.expect("started");
    kill(place.spawner_pid());
    assert_eq!(keeper.code(), Some(1));
    assert_eq!(place.found().processes, BTreeSet::new());
    place.assert_clean_after_next_start().await;
}

#[tokio::test]
async fn nothing_is_lost_or_forgotten_wherever_a_worker_dies() {
    let place = Place::new("storm");
    let mut keeper = Keeper::start(&place, "bustles");
    let mut worker = number(&keeper.expect("worker"));
    // After ever more of its work, so at another point of it each time.
    for lines in 1..=6 {
        if lines > 1 {
            keeper.tell("go");
        }
        for _ in 0..lines {
            keeper.line();
        }
        kill(worker);
        // What it had said before it was killed is still to be read.
        worker = loop {
            if let Some(next) = keeper.line().strip_prefix("worker ") {
                break number(next);
            }
        };
        let running: usize = keeper.expect("adopted").parse().unwrap();
        until_processes(&place, 3 + running);
    }
    keeper.tell("stop");
    assert_eq!(keeper.code(), Some(0));
    assert_eq!(place.found(), Found::default());
    place.assert_clean_after_next_start().await;
}

#[test]
fn says_why_there_is_no_keeper() {
    let place = Place::new("taken");
    let mut first = Keeper::start(&place, "obeys");
    first.expect("worker");
    first.expect("started");
    let mut second = Keeper::start(&place, "obeys");
    assert!(second.line().starts_with("another node is running"));
    assert_eq!(second.code(), Some(3));
    first.tell("stop");
    assert_eq!(first.code(), Some(0));
}
