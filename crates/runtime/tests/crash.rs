//! Whoever is killed, and at whatever step: after the next start nothing is left of it.

#![allow(clippy::unwrap_used, reason = "these are tests, their own functions among them")]

mod harness;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio as Pipe};

use agentcube_runtime::spawner::Spawner;
use agentcube_runtime::spec::Program;
use agentcube_runtime::{ContainerId, Error, Exit, Process, Runtime, SandboxId, Sandboxes, Stdio};
use harness::place::{Found, Place, kill};
use harness::{Node, is_root, pipe, read_until};

const KILLED: Exit = Exit { code: 137, signal: Some(9), out_of_memory: false };

#[test]
fn without_root() {
    harness::again_without_root("without_root");
}

async fn waiting(node: &Node, name: &str, sandbox: &SandboxId) -> (Process, std::os::fd::OwnedFd) {
    let ((stdin, keep), (read, stdout)) = (pipe(), pipe());
    let stdio = Stdio { stdin: Some(stdin), stdout: Some(stdout), stderr: None, ..Stdio::default() };
    let process = node.native.start(node.spec(name, sandbox, &["wait"]), stdio).await.unwrap();
    read_until(&read, "waiting\n").await;
    (process, keep)
}

#[tokio::test]
async fn the_spawner_is_killed() {
    let place = Place::new("spawner");
    let node = place.start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let (one, _keep_one) = waiting(&node, "one", &sandbox).await;
    let (two, _keep_two) = waiting(&node, "two", &sandbox).await;
    let before = place.found();
    assert_eq!((before.processes.len(), before.scratch.len()), (3, 2), "{before:?}");
    assert_eq!(before.cgroups.is_empty(), !is_root(), "{before:?}");

    kill(place.spawner_pid());
    assert_eq!((one.exit.await.unwrap(), two.exit.await.unwrap()), (KILLED, KILLED));
    assert_eq!(place.found().processes, BTreeSet::new(), "the ends were told when all had ended");
    node.handle.gone().await;
    let id = ContainerId::new("one").unwrap();
    assert!(matches!(node.native.remove(&id).await, Err(Error::SpawnerGone)));
    assert!(matches!(node.handle.remove(&sandbox).await, Err(Error::SpawnerGone)));
    place.assert_clean_after_next_start().await;
}

#[tokio::test]
async fn the_spawner_is_killed_with_a_frozen_instance() {
    let place = Place::new("frozen");
    let node = place.start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let (_process, _keep) = waiting(&node, "one", &sandbox).await;
    match node.native.freeze(&ContainerId::new("one").unwrap(), true).await {
        Err(Error::Unsupported(_)) if !is_root() => return,
        other => other.unwrap(),
    }
    kill(place.spawner_pid());
    node.handle.gone().await;
    place.assert_clean_after_next_start().await;
}

#[tokio::test]
async fn requests_in_flight_end_with_the_spawner() {
    let place = Place::new("flight");
    let node = place.start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let start = |number: u32| node.run(node.spec(&format!("c{number}"), &sandbox, &["exit", "0"]));
    let all = futures_util::future::join_all((0..30).map(start));
    let die = async {
        let (_first, _keep) = waiting(&node, "first", &sandbox).await;
        kill(place.spawner_pid());
    };
    let (results, ()) = tokio::join!(all, die);
    let gone = |result: &Result<(Exit, String), Error>| matches!(result, Err(Error::SpawnerGone));
    let ended = |result: &Result<(Exit, String), Error>| {
        result.as_ref().is_ok_and(|(exit, _)| [0, 137].contains(&exit.code))
    };
    assert!(results.iter().all(|result| gone(result) || ended(result)), "{results:?}");
    node.handle.gone().await;
    place.assert_clean_after_next_start().await;
}

#[tokio::test]
async fn an_instance_dies_at_each_step_of_its_setup() {
    let steps = [
        "Cgroup",
        "OomScore",
        "Join",
        "Root",
        "System",
        "Devices",
        "Proc",
        "Sys",
        "Mount",
        "Pivot",
        "Terminal",
        "Streams",
        "Limits",
        "WorkingDirectory",
        "Capabilities",
        "User",
        "Seccomp",
        "Files",
        "Exec",
    ];
    let place = Place::new("instance");
    for step in steps {
        let node = place.start_dying_at(&format!("instance:{step}"));
        let (sandbox, _sockets) = node.sandbox("pod").await;
        let error = node.run(node.image_or_host(step, &sandbox)).await.unwrap_err();
        assert!(error.to_string().contains("ended before its program was executed"), "{step}: {error}");
        place.assert_only_a_spawner();
        node.handle.stop().await;
    }
    place.assert_clean_after_next_start().await;
}

#[tokio::test]
async fn a_prepared_instance_dies_at_each_step() {
    let place = Place::new("prepared");
    for step in ["Join", "Pivot", "Seccomp", "Claim", "Files", "Exec"] {
        let node = place.start_dying_at(&format!("instance:{step}"));
        let (sandbox, _sockets) = node.sandbox("pod").await;
        let spec = node.spec("a", &sandbox, &["exit", "0"]);
        let (id, args) = (spec.id.clone(), spec.args.clone());
        let error = match node.native.prepare(spec).await {
            Err(error) => error,
            Ok(()) => {
                assert!(["Files", "Exec"].contains(&step));
                let told = Program { args, ..Program::default() };
                node.native.claim(&id, told, Stdio::default()).await.err().expect("it dies")
            }
        };
        assert!(error.to_string().contains("ended before its program was executed"), "{step}: {error}");
        place.assert_only_a_spawner();
        node.handle.stop().await;
    }
    place.assert_clean_after_next_start().await;
}

#[tokio::test]
async fn the_spawner_dies_with_prepared_instances() {
    let place = Place::new("waiting");
    let node = place.start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    for name in ["one", "two", "three"] {
        node.native.prepare(node.spec(name, &sandbox, &["exit", "0"])).await.unwrap();
    }
    assert_eq!(place.found().processes.len(), 4);
    kill(place.spawner_pid());
    node.handle.gone().await;
    place.assert_clean_after_next_start().await;
}

#[tokio::test]
async fn the_spawner_dies_at_a_claim_and_at_a_freeze() {
    let place = Place::new("later");
    for step in ["Claim", "Freeze"] {
        let node = place.start_dying_at(&format!("spawner:{step}"));
        let (sandbox, _sockets) = node.sandbox("pod").await;
        let spec = node.spec("a", &sandbox, &["forever"]);
        let (id, args) = (spec.id.clone(), spec.args.clone());
        let result = if step == "Claim" {
            node.native.prepare(spec).await.unwrap();
            node.native.claim(&id, Program { args, ..Program::default() }, Stdio::default()).await.map(drop)
        } else {
            node.native.start(spec, Stdio::default()).await.unwrap();
            node.native.freeze(&id, true).await
        };
        match result {
            Err(Error::Unsupported(_)) if !is_root() => node.handle.stop().await,
            other => assert!(matches!(other, Err(Error::SpawnerGone)), "{step}: {other:?}"),
        }
        node.handle.gone().await;
    }
    place.assert_clean_after_next_start().await;
}

#[tokio::test]
async fn the_spawner_dies_at_each_step() {
    let place = Place::new("steps");
    for step in ["Namespaces", "Network", "Cgroup", "Clone", "Exec"] {
        let node = place.start_dying_at(&format!("spawner:{step}"));
        let spec = agentcube_runtime::SandboxSpec {
            id: SandboxId::new("pod").unwrap(),
            hostname: "pod".to_owned(),
            address: [10, 244, 0, 2].into(),
            name_server: [10, 96, 0, 10].into(),
        };
        let sandbox = spec.id.clone();
        let result = match node.handle.create(spec).await {
            Ok(_sockets) => node.run(node.spec("a", &sandbox, &["exit", "0"])).await.map(drop),
            Err(error) => Err(error),
        };
        assert!(matches!(result, Err(Error::SpawnerGone)), "{step}: {result:?}");
        node.handle.gone().await;
    }
    place.assert_clean_after_next_start().await;
}

/// A node in a process of its own, which starts and removes containers without end and says so.
fn busy_node(place: &Place) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = Command::new(place.program())
        .args(["node", &place.options.node])
        .arg(&place.options.directory)
        .stdout(Pipe::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

#[tokio::test]
async fn the_node_is_killed() {
    let place = Place::new("node");
    // After ever more of its work, so at another point of it each time.
    for lines in 1..=10 {
        let (mut child, mut output) = busy_node(&place);
        for _ in 0..lines {
            let mut line = String::new();
            assert!(output.read_line(&mut line).unwrap() > 0, "the node has ended by itself");
        }
        // Asked before: its spawner, if it gets the time, cleans up when it is gone.
        assert!(lines < 2 || !place.found().scratch.is_empty(), "there is something to be left over");
        child.kill().unwrap();
        child.wait().unwrap();
    }
    place.assert_clean_after_next_start().await;
}

#[tokio::test]
async fn a_second_node_is_refused_the_directory_of_the_first() {
    let place = Place::new("second");
    let node = place.start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let (_process, _keep) = waiting(&node, "one", &sandbox).await;
    let error = Spawner::start(&place.program(), &place.options).err().expect("the directory is taken");
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    assert_eq!(place.found().scratch.len(), 1, "nothing of the first was swept");
    node.handle.stop().await;
    place.assert_clean_after_next_start().await;
}

#[test]
fn says_why_there_is_no_spawner() {
    let place = Place::new("missing");
    let error =
        Spawner::start(Path::new("/no/such/program"), &place.options).err().expect("there is no program");
    assert_eq!(error.to_string(), "executing the spawner: No such file or directory (os error 2)");
    assert_eq!(place.found(), Found::default());
}

#[tokio::test]
async fn sweeps_what_other_runtimes_left_in_other_hierarchies() {
    let place = Place::new("others");
    let left = Path::new("/sys/fs/cgroup/freezer").join(format!("agentcube-{}", place.options.node));
    if std::fs::create_dir_all(left.join("container")).is_err() {
        return; // Not a machine with cgroup v1, or not ours to make.
    }
    place.assert_clean_after_next_start().await;
}
