//! Whoever is killed, and at whatever step: after the next start nothing is left of it.

#![allow(clippy::unwrap_used, reason = "these are tests, their own functions among them")]

mod harness;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio as Pipe};

use agentcube_runtime::spawner::{Options, Spawner};
use agentcube_runtime::spec::Program;
use agentcube_runtime::{ContainerId, Error, Exit, Process, Runtime, SandboxId, Sandboxes, Stdio};
use harness::{Node, copy_program, is_root, pipe, probe, read_until};

const KILLED: Exit = Exit { code: 137, signal: Some(9), out_of_memory: false };

#[test]
fn without_root() {
    harness::again_without_root("without_root");
}

/// A directory with a program of its own, by which all processes that come from it are known.
struct Place {
    directory: tempfile::TempDir,
    options: Options,
    devices: BTreeSet<String>,
}

/// Everything on the machine that comes from a place.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    processes: BTreeSet<u32>,
    mounts: Vec<String>,
    cgroups: Vec<PathBuf>,
    scratch: Vec<PathBuf>,
}

impl Place {
    fn new(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        copy_program(Path::new(&probe()), &directory.path().join("probe"));
        let options =
            Options::new(format!("crash-{name}-{}", std::process::id()), directory.path().join("runtime"));
        Self { directory, options, devices: devices() }
    }

    fn program(&self) -> PathBuf {
        self.directory.path().join("probe")
    }

    fn start(&self) -> Node {
        Node::start_program(&self.program(), self.options.clone())
    }

    fn start_dying_at(&self, step: &str) -> Node {
        let options = Options { die_at: Some(step.to_owned()), ..self.options.clone() };
        Node::start_program(&self.program(), options)
    }

    fn found(&self) -> Found {
        let program = self.program();
        let of_ours = |pid: &u32| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            command.starts_with(program.as_os_str().as_encoded_bytes())
        };
        let name = format!("agentcube-{}", self.options.node);
        let directory = self.directory.path().to_str().unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut cgroups = Vec::new();
        find_named(Path::new("/sys/fs/cgroup"), &name, 8, &mut cgroups);
        Found {
            processes: numbers("/proc").filter(of_ours).collect(),
            mounts: mounts.lines().filter(|line| line.contains(directory)).map(str::to_owned).collect(),
            cgroups,
            scratch: entries(&self.options.directory.join("scratch")),
        }
    }

    /// Only the node itself is there.
    fn assert_only_a_spawner(&self) {
        let found = self.found();
        assert_eq!(found.processes.len(), 1, "{found:?}");
        assert_eq!((&found.mounts, &found.scratch), (&Vec::new(), &Vec::new()));
        for tree in &found.cgroups {
            let groups = entries(tree).into_iter().filter(|path| path.is_dir()).collect::<Vec<_>>();
            assert_eq!(groups, Vec::<PathBuf>::new());
        }
    }

    /// Starts once more, as after a crash, and counts.
    async fn assert_clean_after_next_start(&self) {
        let node = self.start();
        self.assert_only_a_spawner();
        let (sandbox, _sockets) = node.sandbox("after").await;
        let (exit, _) = node.run(node.spec("after", &sandbox, &["exit", "3"])).await.unwrap();
        assert_eq!(exit.code, 3, "what comes after works");
        node.handle.stop().await;
        assert_eq!(self.found(), Found::default());
        assert_eq!(devices(), self.devices);
        let names: Vec<_> = entries(&self.options.directory)
            .iter()
            .map(|path| path.file_name().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["lock", "oci", "record", "scratch", "template"]);
        assert!(entries(&self.options.directory.join("oci")).is_empty());
    }

    fn spawner_pid(&self) -> i32 {
        let record = std::fs::read(self.options.directory.join("record")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        i32::try_from(record["spawner"]["pid"].as_i64().unwrap()).unwrap()
    }
}

fn devices() -> BTreeSet<String> {
    let text = std::fs::read_to_string("/proc/net/dev").unwrap();
    text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

fn numbers(directory: &str) -> impl Iterator<Item = u32> {
    std::fs::read_dir(directory).unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn find_named(directory: &Path, name: &str, depth: u32, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()) {
        if path.file_name().is_some_and(|found| found == name) {
            found.push(path);
        } else if depth > 0 {
            find_named(&path, name, depth - 1, found);
        }
    }
}

fn kill(pid: i32) {
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
}

async fn waiting(node: &Node, name: &str, sandbox: &SandboxId) -> (Process, std::os::fd::OwnedFd) {
    let ((stdin, keep), (read, stdout)) = (pipe(), pipe());
    let stdio = Stdio { stdin: Some(stdin), stdout: Some(stdout), stderr: None };
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
    for step in ["Join", "Pivot", "Seccomp", "Claim", "Exec"] {
        let node = place.start_dying_at(&format!("instance:{step}"));
        let (sandbox, _sockets) = node.sandbox("pod").await;
        let spec = node.spec("a", &sandbox, &["exit", "0"]);
        let (id, args) = (spec.id.clone(), spec.args.clone());
        let error = match node.native.prepare(spec).await {
            Err(error) => error,
            Ok(()) => {
                assert_eq!(step, "Exec");
                let told = Program { args, env: Vec::new(), cwd: None };
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
