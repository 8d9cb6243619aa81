//! Containers of OCI runtimes that are frozen, and that outlive their worker.

#![allow(clippy::unwrap_used, reason = "these are tests, their own functions among them")]

mod harness;

use std::os::fd::OwnedFd;
use std::path::Path;

use agentcube_runtime::oci::{Kind, Oci, Program};
use agentcube_runtime::spawner::{Handle, Options, Snapshot, Spawner, State};
use agentcube_runtime::spec::File;
use agentcube_runtime::{ContainerId, ContainerSpec, Error, ExecSpec, Runtime, Sandboxes, Stdio};
use harness::{Node, Specs, ended, is_root, pipe, probe, programs, read_until, sandbox_spec};

/// Grows without end, and says each time that it has.
const FAMILY: &str = "while :; do (echo again); done";

fn family(mut spec: ContainerSpec) -> (ContainerSpec, Stdio, OwnedFd) {
    spec.args = ["/bin/sh", "-c", FAMILY].map(str::to_owned).to_vec();
    let (read, write) = pipe();
    let kept = vec![read.try_clone().unwrap()];
    (spec, Stdio { stdout: Some(write), kept, ..Stdio::default() }, read)
}

fn drain(read: &OwnedFd) -> usize {
    rustix::io::ioctl_fionbio(read, true).unwrap();
    let (mut buffer, mut bytes) = ([0; 65536], 0);
    while let Ok(length @ 1..) = rustix::io::read(read, &mut buffer) {
        bytes += length;
    }
    rustix::io::ioctl_fionbio(read, false).unwrap();
    bytes
}

fn each() -> Vec<Program> {
    if is_root() { programs() } else { Vec::new() }
}

#[tokio::test]
async fn freeze_and_go_on() {
    for program in each() {
        let kind = program.kind;
        let node = Node::start();
        let oci = Oci::new(node.handle.clone(), program).unwrap();
        let (sandbox, _sockets) = node.sandbox("pod").await;
        for way in ["kill", "remove"] {
            let (spec, stdio, read) = family(node.spec("a", &sandbox, &[]));
            let id = spec.id.clone();
            let mut process = oci.start(spec, stdio).await.unwrap();
            if kind == Kind::Runsc {
                let error = oci.freeze(&id, true).await.unwrap_err();
                assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
                oci.remove(&id).await.unwrap();
                continue;
            }
            for _ in 0..2 {
                read_until(&read, "again\n").await;
                let froze = oci.freeze(&id, true).await;
                assert!(froze.is_ok(), "{kind}: {froze:?} {:?}", process.exit.try_recv());
                drain(&read);
                node.run(node.spec("other", &sandbox, &["exit", "0"])).await.unwrap();
                assert_eq!(drain(&read), 0, "{kind}");
                let exec = ExecSpec {
                    args: vec![probe(), "echo".to_owned()],
                    env: Vec::new(),
                    cwd: None,
                    user: None,
                    terminal: false,
                };
                let refused = oci.exec(&id, exec, Stdio::default()).await.err().unwrap();
                assert!(refused.to_string().contains("thaw it first"), "{kind}: {refused}");
                oci.freeze(&id, false).await.unwrap();
            }
            oci.freeze(&id, true).await.unwrap();
            match way {
                "kill" => oci.signal(&id, libc::SIGKILL).await.unwrap(),
                _ => oci.remove(&id).await.unwrap(),
            }
            assert_eq!(ended(process).await.code, 137, "{kind}: {way}");
            oci.remove(&id).await.unwrap();
        }
        node.handle.stop().await;
    }
}

#[tokio::test]
async fn files_are_refused_with_words() {
    for program in each() {
        let node = Node::start();
        let oci = Oci::new(node.handle.clone(), program).unwrap();
        let (sandbox, _sockets) = node.sandbox("pod").await;
        let files = vec![File { path: "/tmp/a".into(), mode: 0o600, content: Vec::new() }];
        let spec = ContainerSpec { files, ..node.spec("a", &sandbox, &["exit", "0"]) };
        let error = oci.start(spec, Stdio::default()).await.err().unwrap();
        assert!(matches!(&error, Error::Unsupported(message) if message.contains("native")), "{error:?}");
        node.handle.stop().await;
    }
}

async fn worker(spawner: &Spawner, program: &Program) -> (Handle, Oci, Snapshot) {
    let (socket, process) = spawner.descriptors().unwrap();
    let (handle, snapshot) = Handle::adopt(socket, process).await.unwrap();
    (handle.clone(), Oci::new(handle, program.clone()).unwrap(), snapshot)
}

#[tokio::test]
async fn the_next_worker_goes_on() {
    for program in each() {
        let kind = program.kind;
        let directory = tempfile::tempdir().unwrap();
        let name = format!("oci-kept-{kind}-{}", std::process::id());
        let options = Options { adoptable: true, ..Options::new(name, directory.path().join("runtime")) };
        let spawner = Spawner::start(Path::new(&probe()), &options).unwrap();
        let specs = Specs::new(options);
        let sandbox = sandbox_spec("pod").id;
        let (handle, oci, _) = worker(&spawner, &program).await;
        handle.create(sandbox_spec("pod")).await.unwrap();
        let (spec, stdio, read) = family(specs.spec("a", &sandbox, &[]));
        let running = oci.start(ContainerSpec { tag: "tag".to_owned(), ..spec }, stdio).await.unwrap();
        let over = oci.start(specs.spec("b", &sandbox, &["exit", "3"]), Stdio::default()).await.unwrap();
        assert_eq!(ended(over).await.code, 3);
        drop((handle, oci, read));

        let (handle, oci, snapshot) = worker(&spawner, &program).await;
        let [a, b] = snapshot.containers.try_into().unwrap();
        assert_eq!((a.tag.as_str(), a.state), ("tag", State::Running { pid: running.pid }), "{kind}");
        assert!(matches!(b.state, State::Ended(exit) if exit.code == 3), "{kind}: {:?}", b.state);
        let log = handle.kept(&a.id).await.unwrap().remove(0);
        drain(&log);
        read_until(&log, "again\n").await;
        oci.signal(&a.id, libc::SIGKILL).await.unwrap();
        assert_eq!(a.exit.unwrap().await.unwrap().code, 137, "{kind}");
        oci.remove(&ContainerId::new("b").unwrap()).await.unwrap();
        handle.stop().await;
    }
}
