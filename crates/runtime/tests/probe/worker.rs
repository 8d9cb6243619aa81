//! A keeper, and a worker that does as it is told, a line at a time, and says what it has found and done.

use std::io::BufRead;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;

use agentcube_runtime::keeper::{self, Worker};
use agentcube_runtime::native::Native;
use agentcube_runtime::spawner::{Adopted, Handle, Options, Snapshot, State};
use agentcube_runtime::{ContainerId, ContainerSpec, Runtime, SandboxId, SandboxSpec, Sandboxes, Stdio};

use crate::node::{say, spec};

const TAG: &str = "the tag";

pub(crate) fn keep(name: &str, directory: &str, what: &str) -> ExitCode {
    let program = std::env::current_exe().expect("this program has a path");
    let arguments = ["worker", name, directory, what].map(Into::into).to_vec();
    let options = keeper::Options { program, arguments, spawner: Options::new(name, directory) };
    keeper::run(options).unwrap_or_else(|error| {
        println!("{error}");
        ExitCode::from(3)
    })
}

pub(crate) fn run(name: &str, directory: &str, what: &str, inherited: &str) -> ExitCode {
    let worker = Worker::inherit(inherited).expect("there is a keeper");
    say(&format!("worker {}", std::process::id()));
    let options = Options::new(name, directory);
    let program = std::env::current_exe().expect("this program has a path");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (handle, snapshot) = worker.adopt().await.expect("the spawner can be adopted");
        match what {
            "obeys" => obey(&options, &program, handle, snapshot).await,
            _ => bustle(&options, &program, handle, snapshot).await,
        }
    })
}

/// Keeps one container that counts, and does what its input says.
async fn obey(options: &Options, program: &Path, handle: Handle, snapshot: Option<Snapshot>) -> ExitCode {
    let native = Native::new(handle.clone());
    let id = ContainerId::new("counts").expect("an id");
    let (log, mut exit) = match snapshot {
        None => {
            make_sandbox(&handle).await;
            let (read, write) = rustix::pipe::pipe().expect("a pipe");
            let kept = vec![read.try_clone().expect("a copy")];
            let stdio = Stdio { stdout: Some(write), kept, ..Stdio::default() };
            let spec = ContainerSpec { tag: TAG.to_owned(), ..spec(options, program, "counts", &["count"]) };
            let process = native.start(spec, stdio).await.expect("a container starts");
            handle.note("note", Some("kept")).await.expect("a note");
            say(&format!("started {}", process.pid));
            (read, process.exit)
        }
        Some(mut snapshot) => {
            assert_eq!(snapshot.notes.get("note").map(String::as_str), Some("kept"));
            let sandbox = snapshot.sandboxes.pop().expect("the sandbox");
            handle.sockets(&sandbox.spec.id).await.expect("its sockets");
            let Some(Adopted { tag, state: State::Running { pid }, exit: Some(exit), .. }) =
                snapshot.containers.pop()
            else {
                say("the container does not run");
                return ExitCode::from(2);
            };
            say(&format!("adopted {pid} {tag}"));
            (handle.kept(&id).await.expect("the log").remove(0), exit)
        }
    };
    let mut log = std::io::BufReader::new(std::fs::File::from(log));
    for line in std::io::stdin().lock().lines() {
        match line.expect("a line").as_str() {
            "log" => {
                let mut line = String::new();
                log.read_line(&mut line).expect("the log goes on");
                say(&format!("log {}", line.trim()));
            }
            "end" => {
                native.signal(&id, 15).await.expect("it can be told to end");
                native.signal(&id, 9).await.expect("it can be told to end");
                let exit = (&mut exit).await.expect("its end is told");
                say(&format!("ended {}", exit.code));
            }
            "fail" => return ExitCode::FAILURE,
            "usage" => return ExitCode::from(2),
            _ => break,
        }
    }
    ExitCode::SUCCESS
}

/// Starts and removes containers without end, from where the last one was.
async fn bustle(options: &Options, program: &Path, handle: Handle, snapshot: Option<Snapshot>) -> ExitCode {
    let native = Native::new(handle.clone());
    let mut number = 0_u64;
    match snapshot {
        None => make_sandbox(&handle).await,
        Some(snapshot) => {
            if snapshot.sandboxes.is_empty() {
                make_sandbox(&handle).await;
            }
            let mut running = 0;
            for container in snapshot.containers {
                number = number.max(container.tag.parse::<u64>().expect("our own tag") + 1);
                match container.state {
                    State::Running { .. } => running += 1,
                    // On its way to somewhere; here it ends.
                    _ => native.remove(&container.id).await.expect("it can be removed"),
                }
            }
            say(&format!("adopted {running}"));
            let mut line = String::new();
            std::io::stdin().lock().read_line(&mut line).expect("somebody tells us to go on");
            if line.trim() == "stop" {
                return ExitCode::SUCCESS;
            }
        }
    }
    loop {
        for kind in ["stays", "goes"] {
            let spec = spec(options, program, &format!("{kind}-{number}"), &["forever"]);
            let spec = ContainerSpec { tag: number.to_string(), ..spec };
            native.start(spec, Stdio::default()).await.expect("a container starts");
            say(kind);
        }
        let goes = ContainerId::new(format!("goes-{number}")).expect("an id");
        native.remove(&goes).await.expect("a container is removed");
        say("gone");
        number += 1;
    }
}

async fn make_sandbox(handle: &Handle) -> () {
    let spec = SandboxSpec {
        id: SandboxId::new("pod").expect("an id"),
        hostname: "pod".to_owned(),
        address: [10, 244, 0, 2].into(),
        name_server: [10, 96, 0, 10].into(),
    };
    let sockets = handle.create(spec).await.expect("a sandbox");
    let _: (OwnedFd, OwnedFd) = (sockets.outgoing, sockets.dns);
}
