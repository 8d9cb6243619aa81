//! One worker after the other, over the same spawner.

#![allow(clippy::unwrap_used, reason = "these are tests, their own functions among them")]

mod harness;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use agentcube_runtime::native::Native;
use agentcube_runtime::spawner::{Adopted, Handle, Options, Snapshot, Spawner, State};
use agentcube_runtime::spec::{ExecSpec, LONGEST_TAG, Program};
use agentcube_runtime::{ContainerId, ContainerSpec, Error, Exit, Runtime, Sandboxes, Stdio};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use harness::{Specs, ended, is_root, pipe, probe, read_all, read_until, sandbox_spec};

#[test]
fn without_root() {
    harness::again_without_root("without_root");
}

/// A spawner without a worker.
struct Orphan {
    spawner: Spawner,
    specs: Specs,
    _directory: tempfile::TempDir,
}

struct Worker {
    handle: Handle,
    native: Native,
    snapshot: Snapshot,
}

impl Orphan {
    fn start(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let name = format!("adopt-{name}-{}", std::process::id());
        let options = Options { adoptable: true, ..Options::new(name, directory.path().join("runtime")) };
        let spawner = Spawner::start(std::path::Path::new(&probe()), &options).unwrap();
        Self { spawner, specs: Specs::new(options), _directory: directory }
    }

    async fn worker(&self) -> Worker {
        let (socket, process) = self.spawner.descriptors().unwrap();
        let (handle, snapshot) = Handle::adopt(socket, process).await.unwrap();
        Worker { native: Native::new(handle.clone()), handle, snapshot }
    }

    fn spec(&self, name: &str, tag: &str, args: &[&str]) -> ContainerSpec {
        let sandbox = sandbox_spec("pod").id;
        ContainerSpec { tag: tag.to_owned(), ..self.specs.spec(name, &sandbox, args) }
    }
}

impl Worker {
    fn find(&mut self, name: &str) -> Adopted {
        let at = self.snapshot.containers.iter().position(|container| container.id.as_str() == name);
        self.snapshot.containers.swap_remove(at.expect(name))
    }
}

fn id(name: &str) -> ContainerId {
    ContainerId::new(name).unwrap()
}

/// Streams of a container, with the read end of its output kept, and what keeps its input open.
fn kept_pipe() -> (Stdio, OwnedFd, OwnedFd) {
    let ((stdin, input), (read, stdout)) = (pipe(), pipe());
    let copy = read.try_clone().unwrap();
    (Stdio { stdin: Some(stdin), stdout: Some(stdout), stderr: None, kept: vec![copy] }, input, read)
}

#[tokio::test]
async fn finds_all_that_there_was() {
    let orphan = Orphan::start("all");
    let first = orphan.worker().await;
    assert!(first.snapshot.containers.is_empty() && first.snapshot.sandboxes.is_empty());
    let sockets = first.handle.create(sandbox_spec("pod")).await.unwrap();
    let (stdio, input, read) = kept_pipe();
    let running = first.native.start(orphan.spec("running", "a tag", &["wait"]), stdio).await.unwrap();
    let over = first.native.start(orphan.spec("over", "", &["exit", "7"]), Stdio::default()).await.unwrap();
    assert_eq!(ended(over).await.code, 7);
    first.native.prepare(orphan.spec("prepared", "shape", &[])).await.unwrap();
    first.native.prepare(orphan.spec("claimed", "shape", &[])).await.unwrap();
    let program = Program {
        args: vec![probe(), "cat".to_owned()],
        tag: Some("claim".to_owned()),
        ..Program::default()
    };
    let (stdio, claimed_input, _claimed_read) = kept_pipe();
    first.native.claim(&id("claimed"), program, stdio).await.unwrap();
    first.handle.note("gone", Some("1")).await.unwrap();
    first.handle.note("gone", None).await.unwrap();
    first.handle.note("kept", Some("2")).await.unwrap();
    first.handle.retag(&id("over"), "other").await.unwrap();
    assert!(matches!(first.handle.retag(&id("missing"), "x").await, Err(Error::NotFound { .. })));
    drop((first, sockets, read));

    let mut second = orphan.worker().await;
    let found = second.find("running");
    assert_eq!(
        (found.tag.as_str(), found.state, found.kept),
        ("a tag", State::Running { pid: running.pid }, 1)
    );
    let over = second.find("over");
    let exit = Exit { code: 7, signal: None, out_of_memory: false };
    assert_eq!((over.tag.as_str(), over.state), ("other", State::Ended(exit)));
    assert!(over.exit.is_none());
    let prepared = second.find("prepared");
    assert_eq!((prepared.tag.as_str(), prepared.state), ("shape", State::Prepared));
    let claimed = second.find("claimed");
    assert_eq!((claimed.tag.as_str(), claimed.kept), ("claim", 1));
    assert!(matches!(claimed.state, State::Running { .. }));
    assert_eq!(second.snapshot.notes.into_iter().collect::<Vec<_>>(), [("kept".to_owned(), "2".to_owned())]);
    assert_eq!(second.snapshot.sandboxes.len(), 1);
    assert_eq!(
        (&second.snapshot.sandboxes[0].spec, second.snapshot.sandboxes[0].removing),
        (&sandbox_spec("pod"), false)
    );
    second.handle.sockets(&sandbox_spec("pod").id).await.unwrap();

    // It goes on: output, end, and what waits can be claimed.
    let log = second.handle.kept(&id("running")).await.unwrap().remove(0);
    read_until(&log, "waiting\n").await;
    drop((input, claimed_input));
    assert_eq!(found.exit.unwrap().await.unwrap().code, 0);
    assert_eq!(claimed.exit.unwrap().await.unwrap().code, 0);
    let (read, write) = pipe();
    let stdio = Stdio { stdout: Some(write), ..Stdio::default() };
    let told = Program { args: vec![probe(), "echo".to_owned(), "told".to_owned()], ..Program::default() };
    let process = second.native.claim(&id("prepared"), told, stdio).await.unwrap();
    assert_eq!(read_all(read).await, "told\n");
    assert_eq!(ended(process).await.code, 0);
    second.handle.stop().await;
}

#[tokio::test]
async fn what_was_asked_for_last_is_done_and_told_to_the_next() {
    let orphan = Orphan::start("last");
    for round in 0..20 {
        let first = orphan.worker().await;
        let name = format!("pod-{round}");
        let sandbox = sandbox_spec(&name).id;
        let (stdio, input, _read) = kept_pipe();
        let spec =
            ContainerSpec { sandbox: sandbox.clone(), ..orphan.spec(&format!("c{round}"), "t", &["wait"]) };
        let create = first.handle.create(sandbox_spec(&name));
        let start = first.native.start(spec, stdio);
        let (create, start) = (
            tokio::time::timeout(std::time::Duration::ZERO, create),
            tokio::time::timeout(std::time::Duration::ZERO, start),
        );
        // Asked, and gone before there is an answer.
        let _ = tokio::join!(biased; create, start);
        drop(first);
        let mut second = orphan.worker().await;
        let found = second.find(&format!("c{round}"));
        assert!(matches!(found.state, State::Starting | State::Running { .. }), "{found:?}");
        assert_eq!((found.tag.as_str(), found.kept), ("t", 1));
        // Its numbers are nobody else's.
        assert_eq!(
            second.native.usage(&id("missing")).await.unwrap_err().to_string(),
            "there is no container \"missing\""
        );
        drop(input);
        assert_eq!(found.exit.unwrap().await.unwrap().code, 0);
        second.handle.remove(&sandbox).await.unwrap();
    }
    orphan.spawner.stop();
}

#[tokio::test]
async fn a_start_that_fails_under_the_next_is_told_as_no_end() {
    let orphan = Orphan::start("fails");
    let first = orphan.worker().await;
    first.handle.create(sandbox_spec("pod")).await.unwrap();
    drop(first);
    let mut told = 0;
    for _ in 0..20 {
        let worker = orphan.worker().await;
        let mut spec = orphan.spec("fails", "", &[]);
        spec.args = vec!["/no/such/program".to_owned()];
        let start = worker.native.start(spec, Stdio::default());
        let _ = tokio::time::timeout(std::time::Duration::ZERO, start).await;
        drop(worker);
        let mut next = orphan.worker().await;
        if next.snapshot.containers.iter().any(|container| container.state == State::Starting) {
            told += 1;
            next.find("fails").exit.unwrap().await.unwrap_err();
        }
        next.native.remove(&id("fails")).await.unwrap();
    }
    assert!(told > 0);
    orphan.spawner.stop();
}

#[tokio::test]
async fn commands_of_the_old_worker_are_killed() {
    let orphan = Orphan::start("exec");
    let first = orphan.worker().await;
    first.handle.create(sandbox_spec("pod")).await.unwrap();
    let (stdio, _input, _read) = kept_pipe();
    let process = first.native.start(orphan.spec("a", "", &["forever"]), stdio).await.unwrap();
    let exec = ExecSpec {
        args: vec![probe(), "forever".to_owned()],
        env: Vec::new(),
        cwd: None,
        user: None,
        terminal: false,
    };
    let (read, write) = pipe();
    let stdio = Stdio { stdout: Some(write), ..Stdio::default() };
    first.native.exec(&id("a"), exec, stdio).await.unwrap();
    drop(first);
    let mut second = orphan.worker().await;
    assert_eq!(read_all(read).await, "", "its output has ended");
    assert_eq!(second.find("a").state, State::Running { pid: process.pid });
    second.handle.stop().await;
}

#[tokio::test]
async fn long_tags_and_many_notes_come_in_pages() {
    let orphan = Orphan::start("pages");
    let first = orphan.worker().await;
    first.handle.create(sandbox_spec("pod")).await.unwrap();
    let tag = "\u{1}".repeat(LONGEST_TAG);
    let too_long = first.native.prepare(orphan.spec("x", &format!("{tag}x"), &[])).await.unwrap_err();
    assert!(too_long.to_string().contains("too long"), "{too_long}");
    for number in 0..6 {
        first.native.prepare(orphan.spec(&format!("c{number}"), &tag, &[])).await.unwrap();
    }
    let value = "v".repeat(4000);
    for number in 0..600 {
        first.handle.note(&format!("note-{number}"), Some(&value)).await.unwrap();
    }
    drop(first);
    let second = orphan.worker().await;
    assert_eq!(second.snapshot.containers.len(), 6);
    assert!(second.snapshot.containers.iter().all(|container| container.tag == tag));
    assert_eq!(second.snapshot.notes.len(), 600);
    second.handle.stop().await;
}

#[tokio::test]
async fn frozen_stays_frozen() {
    if !is_root() {
        return;
    }
    let orphan = Orphan::start("frozen");
    let first = orphan.worker().await;
    first.handle.create(sandbox_spec("pod")).await.unwrap();
    first.native.start(orphan.spec("a", "", &["forever"]), Stdio::default()).await.unwrap();
    first.native.freeze(&id("a"), true).await.unwrap();
    drop(first);
    let mut second = orphan.worker().await;
    assert!(second.find("a").frozen);
    second.native.freeze(&id("a"), false).await.unwrap();
    drop(second);
    assert!(!orphan.worker().await.find("a").frozen);
    orphan.spawner.stop();
}

/// What is asked of a spawner at random.
#[derive(Debug, Clone)]
enum Step {
    Note(u8, Option<String>),
    Prepare(u8, String),
    Retag(u8, String),
    Remove(u8),
    Adopt,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..5_u8, prop::option::of(".{0,8}")).prop_map(|(key, value)| Step::Note(key, value)),
        (0..3_u8, ".{0,8}").prop_map(|(id, tag)| Step::Prepare(id, tag)),
        (0..3_u8, ".{0,8}").prop_map(|(id, tag)| Step::Retag(id, tag)),
        (0..3_u8).prop_map(Step::Remove),
        Just(Step::Adopt),
    ]
}

/// Does it in the model, and says whether the spawner is to agree.
fn expected(step: &Step, notes: &mut BTreeMap<String, String>, tags: &mut BTreeMap<String, String>) -> bool {
    match step {
        Step::Note(key, Some(value)) => {
            notes.insert(key.to_string(), value.clone());
            true
        }
        Step::Note(key, None) => {
            notes.remove(&key.to_string());
            true
        }
        Step::Prepare(id, tag) => {
            let free = !tags.contains_key(&format!("c{id}"));
            tags.entry(format!("c{id}")).or_insert_with(|| tag.clone());
            free
        }
        Step::Retag(id, tag) => tags.get_mut(&format!("c{id}")).map(|old| old.clone_from(tag)).is_some(),
        Step::Remove(id) => {
            tags.remove(&format!("c{id}"));
            true
        }
        Step::Adopt => true,
    }
}

async fn agrees_with_a_model(orphan: &Orphan, steps: Vec<Step>) {
    let (mut notes, mut tags) = (BTreeMap::new(), BTreeMap::new());
    let mut worker = orphan.worker().await;
    for step in steps.into_iter().chain([Step::Adopt]) {
        let agreed = match &step {
            Step::Note(key, value) => worker.handle.note(&key.to_string(), value.as_deref()).await,
            Step::Prepare(number, tag) => {
                worker.native.prepare(orphan.spec(&format!("c{number}"), tag, &[])).await
            }
            Step::Retag(number, tag) => worker.handle.retag(&id(&format!("c{number}")), tag).await,
            Step::Remove(number) => worker.native.remove(&id(&format!("c{number}"))).await,
            Step::Adopt => {
                drop(worker);
                worker = orphan.worker().await;
                assert_eq!(worker.snapshot.notes, notes);
                let found = worker.snapshot.containers.iter();
                let found: BTreeMap<_, _> =
                    found.map(|found| (found.id.to_string(), found.tag.clone())).collect();
                assert_eq!(found, tags);
                Ok(())
            }
        };
        assert_eq!(agreed.is_ok(), expected(&step, &mut notes, &mut tags), "{step:?}: {agreed:?}");
    }
    for name in tags.keys() {
        worker.native.remove(&id(name)).await.unwrap();
    }
    for key in notes.keys() {
        worker.handle.note(key, None).await.unwrap();
    }
}

#[test]
fn whatever_is_done_the_next_worker_finds() {
    let orphan = Orphan::start("model");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let worker = orphan.worker().await;
        worker.handle.create(sandbox_spec("pod")).await.unwrap();
    });
    let mut runner = TestRunner::new(proptest::test_runner::Config::with_cases(24));
    runner
        .run(&prop::collection::vec(step(), 0..24), |steps| {
            runtime.block_on(agrees_with_a_model(&orphan, steps));
            Ok(())
        })
        .unwrap();
    orphan.spawner.stop();
}

/// Nobody works here any more who could see to it.
#[tokio::test]
async fn stands_still_when_nobody_was_heard_of_for_too_long() {
    let orphan = Orphan::start("patience");
    let first = orphan.worker().await;
    let _sockets = first.handle.create(sandbox_spec("pod")).await.unwrap();
    let (stdio, _input, _read) = kept_pipe();
    first.native.start(orphan.spec("waits", "", &["wait"]), stdio).await.unwrap();
    let (stdio, _other_input, _other_read) = kept_pipe();
    first.native.start(orphan.spec("patient", "", &["wait"]), stdio).await.unwrap();
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let now = Duration::from_secs_f64(uptime.split_whitespace().next().unwrap().parse().unwrap());
    first.handle.patience(&id("waits"), Some(Duration::from_millis(200))).await.unwrap();
    first.handle.patience(&id("patient"), Some(Duration::from_secs(3_600))).await.unwrap();
    assert!(matches!(first.handle.patience(&id("missing"), None).await, Err(Error::NotFound { .. })));
    first.handle.heard(now).await.unwrap();
    // What was heard before says nothing new.
    first.handle.heard(Duration::ZERO).await.unwrap();
    drop(first);
    let stopped = async {
        loop {
            let mut next = orphan.worker().await;
            let found = next.find("waits");
            // Without root nothing can be frozen, so it ends.
            if found.frozen && is_root() || matches!(found.state, State::Ended(_)) && !is_root() {
                return next;
            }
        }
    };
    let mut next = tokio::time::timeout(Duration::from_secs(60), stopped).await.unwrap();
    let patient = next.find("patient");
    assert!(!patient.frozen && matches!(patient.state, State::Running { .. }), "{patient:?}");
    next.handle.stop().await;
}
