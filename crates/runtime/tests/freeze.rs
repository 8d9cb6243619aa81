//! Containers that stand still and go on.

#![allow(clippy::unwrap_used, reason = "these are tests, their own functions among them")]

mod harness;

use std::os::fd::OwnedFd;
use std::path::Path;

use agentcube_runtime::spec::ExecSpec;
use agentcube_runtime::{
    ContainerId, ContainerSpec, Error, Exit, Process, Runtime, SandboxId, Sandboxes, Stdio,
};
use harness::{Node, ended, is_root, pipe, probe, read_until};

const KILLED: Exit = Exit { code: 137, signal: Some(9), out_of_memory: false };

fn script(node: &Node, name: &str, sandbox: &SandboxId, script: &str) -> ContainerSpec {
    let mut spec = node.spec(name, sandbox, &[]);
    spec.args = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    spec
}

async fn start(node: &Node, spec: ContainerSpec) -> (ContainerId, Process, OwnedFd) {
    let id = spec.id.clone();
    let (read, write) = pipe();
    let stdio = Stdio { stdin: None, stdout: Some(write), stderr: None, ..Stdio::default() };
    (id, node.native.start(spec, stdio).await.unwrap(), read)
}

/// Grows without end, and says each time that it has.
const FAMILY: &str = "while :; do (echo again); done";

fn drain(read: &OwnedFd) -> usize {
    rustix::io::ioctl_fionbio(read, true).unwrap();
    let (mut buffer, mut bytes) = ([0; 65536], 0);
    while let Ok(length @ 1..) = rustix::io::read(read, &mut buffer) {
        bytes += length;
    }
    rustix::io::ioctl_fionbio(read, false).unwrap();
    bytes
}

#[tokio::test]
async fn nothing_runs_between_freeze_and_thaw() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let (id, process, read) = start(&node, script(&node, "a", &sandbox, FAMILY)).await;
    if !is_root() {
        let error = node.native.freeze(&id, true).await.unwrap_err();
        assert!(
            matches!(&error, Error::Unsupported(message) if message.contains("run as root")),
            "{error:?}"
        );
        read_until(&read, "again\n").await;
        node.handle.stop().await;
        return;
    }
    for round in 0..3 {
        read_until(&read, "again\n").await;
        node.native.freeze(&id, true).await.unwrap();
        node.native.freeze(&id, true).await.unwrap();
        drain(&read);
        // Others run meanwhile, in the same sandbox.
        for _ in 0..10 {
            node.run(node.spec("other", &sandbox, &["exit", "0"])).await.unwrap();
        }
        assert_eq!(drain(&read), 0, "round {round}");
        assert!(node.native.usage(&id).await.is_ok());
        node.native.freeze(&id, false).await.unwrap();
        node.native.freeze(&id, false).await.unwrap();
    }
    read_until(&read, "again\n").await;
    node.native.remove(&id).await.unwrap();
    assert_eq!(ended(process).await, KILLED);
    node.handle.stop().await;
}

#[tokio::test]
async fn a_frozen_one_is_killed_and_removed() {
    if !is_root() {
        return;
    }
    let node = Node::start();
    for way in ["kill", "remove", "sandbox", "kill while freezing", "remove while freezing"] {
        let (sandbox, _sockets) = node.sandbox(&way.replace(' ', "-")).await;
        let (id, process, read) = start(&node, script(&node, "a", &sandbox, FAMILY)).await;
        read_until(&read, "again\n").await;
        let freeze = node.native.freeze(&id, true);
        match way {
            "kill" => {
                freeze.await.unwrap();
                node.native.signal(&id, libc::SIGKILL).await.unwrap();
            }
            "remove" => {
                freeze.await.unwrap();
                node.native.remove(&id).await.unwrap();
            }
            "sandbox" => {
                freeze.await.unwrap();
                node.handle.remove(&sandbox).await.unwrap();
            }
            "kill while freezing" => {
                let (_, killed) = tokio::join!(biased; freeze, node.native.signal(&id, libc::SIGKILL));
                killed.unwrap();
            }
            _ => {
                let (_, removed) = tokio::join!(biased; freeze, node.native.remove(&id));
                removed.unwrap();
            }
        }
        assert_eq!(ended(process).await, KILLED, "{way}");
        node.native.remove(&id).await.unwrap();
        assert!(!node.options.scratch(&id).exists());
        assert_eq!(groups(&node, "a"), Vec::<String>::new(), "{way}");
    }
    node.handle.stop().await;
}

/// The groups of a container that are left, in whatever hierarchy.
fn groups(node: &Node, container: &str) -> Vec<String> {
    let below = format!("agentcube-{}/{container}", node.options.node);
    let tops = std::fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path());
    let all = tops.chain([Path::new("/sys/fs/cgroup").to_owned()]).map(|top| top.join(&below));
    all.filter(|path| path.exists()).map(|path| path.display().to_string()).collect()
}

#[tokio::test]
async fn nothing_is_executed_in_a_frozen_one() {
    if !is_root() {
        return;
    }
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let (id, process, _read) = start(&node, node.spec("a", &sandbox, &["forever"])).await;
    let exec = |words: &str| ExecSpec {
        args: vec![probe(), "echo".to_owned(), words.to_owned()],
        env: Vec::new(),
        cwd: None,
        user: None,
        terminal: false,
    };
    node.native.freeze(&id, true).await.unwrap();
    let error = node.native.exec(&id, exec("x"), Stdio::default()).await.err().unwrap();
    assert!(matches!(&error, Error::Invalid(message) if message.contains("thaw it first")), "{error:?}");
    node.native.freeze(&id, false).await.unwrap();
    let command = node.native.exec(&id, exec("x"), Stdio::default()).await.unwrap();
    assert_eq!(ended(command).await.code, 0);
    // One that is on its way is waited for; and thaws and freezes keep their order.
    let (command, one, two, three) = tokio::join!(
        biased;
        node.native.exec(&id, exec("y"), Stdio::default()),
        node.native.freeze(&id, true),
        node.native.freeze(&id, false),
        node.native.freeze(&id, true),
    );
    assert!(one.is_ok() && two.is_ok() && three.is_ok());
    let command = command.unwrap();
    node.native.signal(&id, libc::SIGTERM).await.unwrap();
    node.native.freeze(&id, false).await.unwrap();
    ended(command).await;
    node.native.signal(&id, libc::SIGKILL).await.unwrap();
    assert_eq!(ended(process).await.signal, Some(9));
    let error = node.native.freeze(&id, true).await.unwrap_err();
    assert!(error.to_string().contains("is not running"), "{error}");
    let missing = ContainerId::new("missing").unwrap();
    for frozen in [true, false] {
        let error = node.native.freeze(&missing, frozen).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
    }
    node.handle.stop().await;
}

#[tokio::test]
async fn frozen_ones_end_with_the_node() {
    if !is_root() {
        return;
    }
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let (id, process, _read) = start(&node, node.spec("a", &sandbox, &["forever"])).await;
    node.native.freeze(&id, true).await.unwrap();
    node.handle.stop().await;
    assert_eq!(ended(process).await, KILLED);
    assert_eq!(groups(&node, ""), Vec::<String>::new());
}

#[test]
fn without_root() {
    harness::again_without_root("without_root");
}

#[test]
fn with_embryos() {
    harness::again_with_embryos("with_embryos");
}
