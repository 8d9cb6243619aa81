//! Containers that are prepared first and told later what to run.

#![allow(clippy::unwrap_used, reason = "these are tests, their own functions among them")]

mod harness;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use agentcube_runtime::spec::{Program, User};
use agentcube_runtime::{ContainerId, ContainerSpec, Error, Exit, Process, Runtime, Sandboxes, Stdio};
use harness::{Node, ended, is_root, pipe, probe, read_all};

#[test]
fn without_root() {
    harness::again_without_root("without_root");
}

#[test]
fn with_embryos() {
    harness::again_with_embryos("with_embryos");
}

fn program(args: &[&str]) -> Program {
    let args = std::iter::once(&*probe()).chain(args.iter().copied()).map(str::to_owned).collect();
    Program { args, ..Program::default() }
}

/// A spec that says nothing of what is to run.
fn blank(mut spec: ContainerSpec) -> ContainerSpec {
    spec.args.clear();
    spec
}

async fn claim(node: &Node, id: &ContainerId, program: Program) -> Result<(Exit, String), Error> {
    let (read, write) = pipe();
    let stdio = Stdio { stdin: None, stdout: Some(write), stderr: None, ..Stdio::default() };
    let process = node.native.claim(id, program, stdio).await?;
    let output = read_all(read).await;
    Ok((ended(process).await, output))
}

#[tokio::test]
async fn runs_what_it_is_told_with_what_it_was_given() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let mut spec = blank(node.spec("a", &sandbox, &[]));
    spec.env.extend([("KEPT".into(), "1".into()), ("CHANGED".into(), "1".into())]);
    let id = spec.id.clone();
    node.native.prepare(spec).await.unwrap();
    let mut told = program(&["variables"]);
    told.env = vec![("CHANGED".into(), "2".into()), ("NEW".into(), "3".into())];
    let (exit, output) = claim(&node, &id, told).await.unwrap();
    assert_eq!(exit, Exit { code: 0, signal: None, out_of_memory: false });
    assert_eq!(output, "CHANGED=2 KEPT=1 NEW=3 PATH=/usr/bin:/bin\n");
    node.handle.stop().await;
}

#[tokio::test]
async fn is_no_other_than_a_container_that_was_started() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let user = if is_root() { User { uid: 1234, gid: 1235, groups: vec![1236] } } else { User::default() };
    let of = |name| ContainerSpec { user: user.clone(), ..node.spec(name, &sandbox, &["whoami"]) };
    let (_, started) = node.run(of("started")).await.unwrap();
    let spec = of("prepared");
    let (id, args) = (spec.id.clone(), spec.args.clone());
    node.native.prepare(blank(spec)).await.unwrap();
    let told = Program { args, cwd: Some(PathBuf::from("/")), ..Program::default() };
    let (_, prepared) = claim(&node, &id, told).await.unwrap();
    assert!(started.lines().count() > 3, "{started}");
    assert_eq!(prepared, started);
    node.handle.stop().await;
}

#[tokio::test]
async fn gets_its_streams_when_it_is_told() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let spec = blank(node.spec("a", &sandbox, &[]));
    let id = spec.id.clone();
    node.native.prepare(spec).await.unwrap();
    let ((stdin, input), (output, stdout)) = (pipe(), pipe());
    let stdio = Stdio { stdin: Some(stdin), stdout: Some(stdout), stderr: None, ..Stdio::default() };
    let process = node.native.claim(&id, program(&["cat"]), stdio).await.unwrap();
    File::from(input).write_all(b"through").unwrap();
    assert_eq!(read_all(output).await, "through");
    assert_eq!(ended(process).await.code, 0);
    node.handle.stop().await;
}

#[tokio::test]
async fn is_told_once() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let spec = blank(node.spec("a", &sandbox, &[]));
    let id = spec.id.clone();
    node.native.prepare(spec).await.unwrap();
    let told = async |text| claim(&node, &id, program(&["echo", text])).await;
    let (first, second) = tokio::join!(told("first"), told("second"));
    assert_eq!(first.unwrap().1, "first\n");
    let refused = second.unwrap_err();
    assert!(refused.to_string().contains("does not wait"), "{refused}");
    let started = node.spec("b", &sandbox, &["wait"]);
    let id = started.id.clone();
    let (stdin, _keep) = pipe();
    let stdio = Stdio { stdin: Some(stdin), stdout: None, stderr: None, ..Stdio::default() };
    let _process: Process = node.native.start(started, stdio).await.unwrap();
    let refused = claim(&node, &id, program(&["echo"])).await.unwrap_err();
    assert!(refused.to_string().contains("does not wait"), "{refused}");
    let missing = ContainerId::new("missing").unwrap();
    let refused = claim(&node, &missing, program(&["echo"])).await.unwrap_err();
    assert!(matches!(refused, Error::NotFound { what: "container", .. }), "{refused:?}");
    node.handle.stop().await;
}

#[tokio::test]
async fn a_claim_that_fails_leaves_nothing() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let cases = [
        (Program { args: vec!["no-such-program".into()], ..program(&[]) }, "executable file not found"),
        (Program { cwd: Some("/no/such".into()), ..program(&["echo"]) }, "entering the working directory"),
        (Program { args: Vec::new(), ..program(&[]) }, "no command specified"),
    ];
    for (told, expected) in cases {
        let spec = blank(node.spec("a", &sandbox, &[]));
        let (id, scratch) = (spec.id.clone(), spec.scratch.clone());
        node.native.prepare(spec).await.unwrap();
        let error = claim(&node, &id, told).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!scratch.exists());
        assert!(matches!(node.native.usage(&id).await, Err(Error::NotFound { .. })));
    }
    node.handle.stop().await;
}

#[tokio::test]
async fn goes_unclaimed() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let mut ids = Vec::new();
    for name in ["removed", "killed", "left"] {
        let spec = blank(node.spec(name, &sandbox, &[]));
        ids.push(spec.id.clone());
        node.native.prepare(spec).await.unwrap();
    }
    assert!(node.native.usage(&ids[0]).await.unwrap().processes <= 1);
    node.native.remove(&ids[0]).await.unwrap();
    node.native.signal(&ids[1], 9).await.unwrap();
    // Whoever comes before its end is noticed and whoever comes after are told the same.
    let error = claim(&node, &ids[1], program(&["echo"])).await.unwrap_err();
    let gone = matches!(error, Error::NotFound { .. });
    assert!(gone || error.to_string().contains("ended before its program"), "{error:?}");
    // A sandbox takes with it what waits in it.
    node.handle.remove(&sandbox).await.unwrap();
    let error = claim(&node, &ids[2], program(&["echo"])).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
    node.handle.stop().await;
}
