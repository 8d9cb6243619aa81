//! Containers by OCI runtimes, from start to removal: each that this machine has, in the same way as the built-in one.
// What a test sets up itself is there, or the test has failed.
#![allow(clippy::unwrap_used, clippy::panic)]

mod harness;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use agentcube_runtime::oci::{Kind, Oci};
use agentcube_runtime::spawner::Spawner;
use agentcube_runtime::spec::{ExecSpec, Mount, Resources, Root, Source, User};
use agentcube_runtime::{
    ContainerId, ContainerSpec, Error, Exit, Process, Runtime, SandboxId, SandboxSpec, Sandboxes, Stdio,
};
use harness::{Node, bind, ended, is_root, pipe, probe, programs, read_all, read_until};

/// A node and one of the runtimes.
struct Bench {
    node: Node,
    oci: Oci,
    kind: Kind,
}

/// Runs a test on each runtime that is here. Without root there is none.
async fn each(test: impl AsyncFn(&Bench)) {
    if !is_root() {
        return;
    }
    for program in programs() {
        let node = Node::start();
        let kind = program.kind;
        let oci = Oci::new(node.handle.clone(), program).unwrap();
        let bench = Bench { node, oci, kind };
        test(&bench).await;
        bench.node.handle.stop().await;
    }
}

impl Bench {
    async fn run(&self, spec: ContainerSpec) -> Result<(Exit, String), Error> {
        self.node.run_by(&self.oci, spec).await
    }

    /// Starts a container that stays until it is told to end, and waits until it says that it runs.
    async fn waiting(&self, spec: ContainerSpec) -> (ContainerId, Process, OwnedFd) {
        let id = spec.id.clone();
        let ((stdin, keep), (read, stdout)) = (pipe(), pipe());
        let stdio = Stdio { stdin: Some(stdin), stdout: Some(stdout), stderr: None, ..Stdio::default() };
        let process =
            self.oci.start(spec, stdio).await.unwrap_or_else(|error| panic!("{}: {error}", self.kind));
        assert_eq!(read_until(&read, "waiting\n").await, "waiting\n");
        (id, process, keep)
    }

    async fn exec(&self, id: &ContainerId, spec: ExecSpec) -> Result<(Exit, String), Error> {
        let (read, write) = pipe();
        let stdio = Stdio { stdin: None, stdout: Some(write), stderr: None, ..Stdio::default() };
        let process = self.oci.exec(id, spec, stdio).await?;
        let output = read_all(read).await;
        Ok((ended(process).await, output))
    }
}

fn exec(args: &[&str]) -> ExecSpec {
    ExecSpec {
        args: std::iter::once(&*probe()).chain(args.iter().copied()).map(str::to_owned).collect(),
        env: Vec::new(),
        cwd: None,
        user: None,
        terminal: false,
    }
}

#[test]
fn all_runtimes_are_here_where_nothing_may_be_skipped() {
    let found: Vec<Kind> = programs().into_iter().map(|program| program.kind).collect();
    let strict = std::env::var("CI").is_ok_and(|value| value == "true");
    for kind in Kind::ALL {
        if found.contains(&kind) && is_root() {
            continue;
        }
        let why =
            if is_root() { "it is not installed; `cargo xtask setup` gets it" } else { "it needs root" };
        // Past the harness, which keeps what a passing test prints to itself.
        writeln!(std::io::stdout(), "SKIPPED: containers by {kind}: {why}").unwrap();
        assert!(!strict || !is_root(), "{kind} is not installed");
    }
}

#[tokio::test]
async fn tells_output_and_exit_codes() {
    each(async |bench| {
        let (sandbox, _sockets) = bench.node.sandbox("pod").await;
        let (exit, output) = bench.run(bench.node.spec("a", &sandbox, &["echo", "hello"])).await.unwrap();
        assert_eq!((exit.code, exit.out_of_memory, output.as_str()), (0, false, "hello\n"), "{}", bench.kind);
        for code in [1, 7, 255] {
            let spec = bench.node.spec("b", &sandbox, &["exit", &code.to_string()]);
            let (exit, _) = bench.run(spec).await.unwrap();
            assert_eq!(exit, Exit { code, signal: None, out_of_memory: false }, "{}", bench.kind);
        }
    })
    .await;
}

#[tokio::test]
async fn connects_the_three_streams() {
    each(async |bench| {
        let (sandbox, _sockets) = bench.node.sandbox("pod").await;
        let ((stdin, input), (output, stdout)) = (pipe(), pipe());
        let stdio = Stdio { stdin: Some(stdin), stdout: Some(stdout), stderr: None, ..Stdio::default() };
        let process = bench.oci.start(bench.node.spec("a", &sandbox, &["cat"]), stdio).await.unwrap();
        std::fs::File::from(input).write_all(b"through and through").unwrap();
        assert_eq!(read_all(output).await, "through and through", "{}", bench.kind);
        assert_eq!(ended(process).await.code, 0);
    })
    .await;
}

#[tokio::test]
async fn says_what_cannot_be_executed() {
    each(async |bench| {
        let (sandbox, _sockets) = bench.node.sandbox("pod").await;
        let mut spec = bench.node.spec("a", &sandbox, &[]);
        spec.args = vec!["no-such-program".to_owned()];
        let scratch = spec.scratch.clone();
        let error = bench.run(spec).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{}: {error:?}", bench.kind);
        assert!(error.to_string().contains("no-such-program"), "{}: {error}", bench.kind);
        assert!(!scratch.exists(), "a start that failed leaves nothing");

        let nowhere = SandboxId::new("nowhere").unwrap();
        let error = bench.run(bench.node.spec("b", &nowhere, &["exit", "0"])).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { what: "sandbox", .. }), "{error:?}");
        let mut spec = bench.node.spec("c", &sandbox, &["exit", "0"]);
        spec.mounts.push(bind(Path::new("/no/such/source"), Path::new("/data"), true));
        let error = bench.run(spec).await.unwrap_err().to_string();
        assert_eq!(error, "mounting: /no/such/source to /data: No such file or directory (os error 2)");
    })
    .await;
}

#[tokio::test]
async fn runs_as_the_user_in_the_directory_with_the_environment() {
    each(async |bench| {
        let (sandbox, _sockets) = bench.node.sandbox("my-pod").await;
        let mut spec = bench.node.spec("a", &sandbox, &["whoami"]);
        spec.user = User { uid: 1000, gid: 2000, groups: vec![3000] };
        spec.cwd = "/place/deep".into();
        let (_, output) = bench.run(spec).await.unwrap();
        let kind = bench.kind;
        assert!(output.starts_with("uid 1000 euid 1000 gid 2000\n"), "{kind}: {output}");
        assert!(output.contains("hostname my-pod\ncwd /place/deep\n"), "{kind}: {output}");
        assert!(output.contains("CapEff: 0000000000000000\n"), "{kind}: {output}");
        if kind != Kind::Runsc {
            assert!(output.contains("CapBnd: 00000000a00405fb\n"), "{kind}: {output}");
            assert!(output.contains("Groups: 3000"), "{kind}: {output}");
            assert!(output.contains("NoNewPrivs: 1\nSeccomp: 2\n"), "{kind}: {output}");
        }
        let mut spec = bench.node.spec("b", &sandbox, &["environment"]);
        spec.env = (0..10).map(|number| (format!("V{number}"), "x".repeat(10_000))).collect();
        let (_, output) = bench.run(spec).await.unwrap();
        let length: usize = output.trim().parse().unwrap();
        // Some add HOME.
        assert!((100_020..100_100).contains(&length), "{kind}: {length}");
    })
    .await;
}

#[tokio::test]
async fn refuses_what_the_built_in_runtime_refuses() {
    each(async |bench| {
        let (sandbox, _sockets) = bench.node.sandbox("pod").await;
        let mut attempts = vec![
            vec!["processes"],
            vec!["mount"],
            vec!["device", "/tmp"],
            vec!["raw-socket"],
            vec!["read", "/etc/shadow"],
            vec!["descriptors"],
            vec!["create", "/usr/x"],
            vec!["overwrite", "/proc/sysrq-trigger"],
        ];
        if bench.kind != Kind::Runsc {
            // gVisor answers these by itself; its containers may do as they like with its own kernel.
            attempts.extend([
                vec!["mknod", "/tmp"],
                vec!["unshare"],
                vec!["bpf"],
                vec!["keyctl"],
                vec!["io-uring"],
                vec!["read", "/proc/kcore"],
            ]);
        }
        for attempt in attempts {
            let args: Vec<_> = std::iter::once("try").chain(attempt).collect();
            let (exit, output) = bench.run(bench.node.spec("a", &sandbox, &args)).await.unwrap();
            assert_eq!(exit.code, 0, "{}: {args:?}: {output}", bench.kind);
        }
    })
    .await;
}

#[tokio::test]
async fn an_image_is_shared_and_never_written() {
    each(async |bench| {
        let node = &bench.node;
        let (sandbox, _sockets) = node.sandbox("pod").await;
        let write = node.image_spec("a", &sandbox, &["write", "/etc/made", "by a"]);
        let Root::Directory(image) = write.root.clone() else { unreachable!() };
        std::fs::create_dir_all(image.join("etc")).unwrap();
        std::fs::write(image.join("etc/given"), "by the image").unwrap();
        let run = async |name: &str, args: &[&str]| {
            bench.run(node.image_spec(name, &sandbox, args)).await.unwrap().1
        };
        assert_eq!(bench.run(write).await.unwrap().1, "written\n", "{}", bench.kind);
        assert_eq!(run("b", &["read", "/etc/made"]).await, "No such file or directory (os error 2)\n");
        assert_eq!(run("c", &["read", "/etc/given"]).await, "by the image");
        assert!(!image.join("etc/made").exists() && !image.join("proc").exists());
        let mut read_only = node.image_spec("d", &sandbox, &["write", "/etc/made", "by d"]);
        read_only.read_only_root = true;
        let (_, output) = bench.run(read_only).await.unwrap();
        assert_eq!(output, "Read-only file system (os error 30)\n", "{}", bench.kind);
    })
    .await;
}

#[tokio::test]
async fn mounts_volumes_files_and_memory() {
    each(async |bench| {
        let node = &bench.node;
        let (sandbox, _sockets) = node.sandbox("pod").await;
        let volume = node.directory().join("volume");
        std::fs::create_dir(&volume).unwrap();
        std::fs::write(volume.join("file"), "of the volume").unwrap();
        for image in [false, true] {
            let spec = |args: &[&str]| {
                let mut spec =
                    if image { node.image_spec("a", &sandbox, args) } else { node.spec("a", &sandbox, args) };
                spec.mounts.extend([
                    bind(&volume, Path::new("/data"), false),
                    bind(&volume, Path::new("/data/again"), true),
                    bind(&volume.join("file"), Path::new("/etc/agentcube-test/file"), true),
                    Mount {
                        target: "/memory".into(),
                        source: Source::Tmpfs { bytes: 1 << 20 },
                        read_only: false,
                    },
                ]);
                spec
            };
            let table: [(&[&str], &str); 6] = [
                (&["read", "/data/file"], "of the volume"),
                (&["read", "/data/again/file"], "of the volume"),
                (&["read", "/etc/agentcube-test/file"], "of the volume"),
                (&["write", "/data/new", "x"], "written\n"),
                (&["write", "/data/again/new", "x"], "Read-only file system (os error 30)\n"),
                (&["write", "/memory/new", "x"], "written\n"),
            ];
            for (args, expected) in table {
                let output = bench.run(spec(args)).await.unwrap().1;
                assert_eq!(output, expected, "{}: {args:?}, image: {image}", bench.kind);
            }
        }
        assert_eq!(std::fs::read_to_string(volume.join("new")).unwrap(), "x");
    })
    .await;
}

#[tokio::test]
async fn limits_memory_and_processes() {
    each(async |bench| {
        let node = &bench.node;
        let (sandbox, _sockets) = node.sandbox("pod").await;
        let mut spec = node.spec("hungry", &sandbox, &["try", "memory", "1024"]);
        spec.resources = Resources { memory_bytes: Some(128 << 20), ..Resources::default() };
        let (exit, output) = bench.run(spec).await.unwrap();
        assert_eq!((exit.code, exit.out_of_memory), (137, true), "{}: {output}", bench.kind);
        if bench.kind != Kind::Runsc {
            let mut spec = node.spec("bomb", &sandbox, &["try", "fork-bomb", "500"]);
            spec.resources = Resources { processes: Some(20), ..Resources::default() };
            let (exit, output) = bench.run(spec).await.unwrap();
            assert!(exit.code == 0 && output.starts_with("refused: after 1"), "{}: {output}", bench.kind);
        }
        let (exit, _) = bench.run(node.spec("after", &sandbox, &["exit", "3"])).await.unwrap();
        assert_eq!((exit.code, exit.out_of_memory), (3, false), "the machine goes on");
    })
    .await;
}

#[tokio::test]
async fn signals_and_kills() {
    each(async |bench| {
        let (sandbox, _sockets) = bench.node.sandbox("pod").await;
        let (id, process, _keep) = bench.waiting(bench.node.spec("a", &sandbox, &["wait"])).await;
        bench.oci.signal(&id, libc::SIGKILL).await.unwrap();
        assert_eq!(ended(process).await.code, 137, "{}", bench.kind);
        // One that has ended is no error.
        bench.oci.signal(&id, libc::SIGTERM).await.unwrap();
        bench.oci.signal(&id, 0).await.unwrap_err();
        let script = "trap 'exit 5' TERM; echo waiting; while read -r line; do :; done";
        let mut spec = bench.node.spec("b", &sandbox, &[]);
        spec.args = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let (id, process, _keep) = bench.waiting(spec).await;
        bench.oci.signal(&id, libc::SIGTERM).await.unwrap();
        assert_eq!(ended(process).await.code, 5, "{}", bench.kind);
    })
    .await;
}

#[tokio::test]
async fn executes_more_programs_in_a_container() {
    each(async |bench| {
        let (sandbox, _sockets) = bench.node.sandbox("my-pod").await;
        let mut spec = bench.node.spec("a", &sandbox, &["wait"]);
        spec.user = User { uid: 1000, gid: 1000, groups: Vec::new() };
        let (id, process, keep) = bench.waiting(spec).await;
        let kind = bench.kind;
        let (exit, output) = bench.exec(&id, exec(&["whoami"])).await.unwrap();
        assert_eq!(exit.code, 0, "{kind}");
        assert!(output.starts_with("uid 1000 euid 1000 gid 1000\n"), "{kind}: {output}");
        assert!(output.contains("hostname my-pod\n"), "{kind}: {output}");
        if kind != Kind::Runsc {
            assert!(output.contains("NoNewPrivs: 1\nSeccomp: 2\n"), "{kind}: {output}");
        }
        let run = async |args: &[&str]| bench.exec(&id, exec(args)).await.unwrap();
        assert_eq!(run(&["write", "/tmp/x", "shared"]).await.1, "written\n", "{kind}");
        assert_eq!(run(&["read", "/tmp/x"]).await.1, "shared", "{kind}");
        assert_eq!(run(&["exit", "9"]).await.0.code, 9, "{kind}");
        let mut missing = exec(&[]);
        missing.args = vec!["nothing".to_owned()];
        let error = bench.exec(&id, missing).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{kind}: {error:?}");

        // What still runs ends with the container.
        let (stdin, _keep_exec) = pipe();
        let stdio = Stdio { stdin: Some(stdin), ..Stdio::default() };
        let left = bench.oci.exec(&id, exec(&["wait"]), stdio).await.unwrap();
        drop(keep);
        assert_eq!(ended(process).await.code, 0, "{kind}");
        assert_ne!(ended(left).await.code, 0, "{kind}");
        let error = bench.exec(&id, exec(&["exit", "0"])).await.unwrap_err();
        assert_eq!(error.to_string(), "container \"a\" is not running");
        bench.oci.remove(&id).await.unwrap();
    })
    .await;
}

/// A program may be done before its runtime has said which process it is.
#[tokio::test]
async fn tells_the_exit_of_what_ends_at_once() {
    each(async |bench| {
        let (sandbox, _sockets) = bench.node.sandbox("pod").await;
        let (id, _process, _keep) = bench.waiting(bench.node.spec("a", &sandbox, &["wait"])).await;
        let one = async |code: u8| {
            let exec = exec(&["exit", &code.to_string()]);
            let (exit, _) = bench.exec(&id, exec).await.unwrap_or_else(|e| panic!("{}: {e}", bench.kind));
            assert_eq!(exit.code, i32::from(code), "{}", bench.kind);
        };
        for _ in 0..15 {
            tokio::join!(one(1), one(2), one(3), one(4));
        }
    })
    .await;
}

#[tokio::test]
async fn gives_a_terminal() {
    each(async |bench| {
        let (sandbox, _sockets) = bench.node.sandbox("pod").await;
        let mut spec = bench.node.spec("a", &sandbox, &["terminal"]);
        spec.terminal = true;
        let id = spec.id.clone();
        let process = bench.oci.start(spec, Stdio::default()).await.unwrap();
        let terminal = process.terminal.as_ref().unwrap().try_clone().unwrap();
        assert_eq!(ended(process).await.code, 0, "{}", bench.kind);
        is_terminal(bench.kind, &read_all(terminal).await);
        bench.oci.remove(&id).await.unwrap();

        let (id, _process, _keep) = bench.waiting(bench.node.spec("b", &sandbox, &["wait"])).await;
        let spec = ExecSpec { terminal: true, ..exec(&["terminal"]) };
        let more = bench.oci.exec(&id, spec, Stdio::default()).await.unwrap();
        let terminal = more.terminal.as_ref().unwrap().try_clone().unwrap();
        assert_eq!(ended(more).await.code, 0, "{}", bench.kind);
        is_terminal(bench.kind, &read_all(terminal).await);
    })
    .await;
}

#[tokio::test]
async fn two_have_the_same_port_each_at_its_own_address() {
    each(async |bench| {
        let mut running = Vec::new();
        for number in [2, 3] {
            let id = SandboxId::new(format!("pod-{number}")).unwrap();
            let address = Ipv4Addr::new(10, 244, 0, number);
            let spec = SandboxSpec {
                id: id.clone(),
                hostname: id.to_string(),
                address,
                name_server: Ipv4Addr::new(10, 96, 0, 10),
            };
            let sockets = bench.node.handle.create(spec).await.unwrap();
            let spec = bench.node.spec(&format!("c{number}"), &id, &["serve", "8080", id.as_str()]);
            let (read, stdout) = pipe();
            let stdio = Stdio { stdin: None, stdout: Some(stdout), stderr: None, ..Stdio::default() };
            let process = bench.oci.start(spec, stdio).await.unwrap();
            assert_eq!(read_until(&read, "listening\n").await, "listening\n", "{}", bench.kind);
            running.push((id, address, sockets, process));
        }
        for (id, address, ..) in &running {
            let socket = bench.node.handle.socket(id, None).await.unwrap();
            rustix::io::ioctl_fionbio(&socket, false).unwrap();
            rustix::net::connect(&socket, &SocketAddrV4::new(*address, 8080)).unwrap();
            let mut answer = String::new();
            TcpStream::from(socket).read_to_string(&mut answer).unwrap();
            assert_eq!(answer, id.as_str(), "{}", bench.kind);
        }
    })
    .await;
}

#[tokio::test]
async fn counts_what_a_container_uses() {
    each(async |bench| {
        let (sandbox, _sockets) = bench.node.sandbox("pod").await;
        let (id, _process, _keep) = bench.waiting(bench.node.spec("a", &sandbox, &["wait"])).await;
        let usage = bench.oci.usage(&id).await.unwrap();
        assert!(usage.processes >= 1 && usage.memory_bytes > 0, "{}: {usage:?}", bench.kind);
        assert!(usage.cpu_nanoseconds > 0, "{}: {usage:?}", bench.kind);
    })
    .await;
}

#[tokio::test]
async fn removing_kills_and_gives_everything_back() {
    each(async |bench| {
        let node = &bench.node;
        let (sandbox, _sockets) = node.sandbox("pod").await;
        let (id, process, _keep) = bench.waiting(node.spec("a", &sandbox, &["wait"])).await;
        let pid = process.pid;
        assert!(Path::new(&format!("/proc/{pid}/ns")).exists());
        assert!(!cgroups(node, "/a").is_empty(), "{}", bench.kind);
        bench.oci.remove(&id).await.unwrap();
        assert_eq!(ended(process).await.code, 137, "{}", bench.kind);
        assert!(!node.options.scratch(&id).exists());
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        assert_eq!(cgroups(node, "/a"), Vec::<PathBuf>::new(), "{}", bench.kind);
        bench.oci.remove(&id).await.unwrap();

        let (other, process, _keep) = bench.waiting(node.spec("b", &sandbox, &["wait"])).await;
        node.handle.remove(&sandbox).await.unwrap();
        assert_eq!(ended(process).await.code, 137, "{}", bench.kind);
        assert!(!node.options.scratch(&other).exists());
        // The same id can be used again: the runtime has forgotten it.
        let (sandbox, _sockets) = node.sandbox("again").await;
        assert_eq!(bench.run(node.spec("a", &sandbox, &["exit", "0"])).await.unwrap().0.code, 0);
        let (_, process, _keep) = bench.waiting(node.spec("c", &sandbox, &["wait"])).await;
        node.handle.stop().await;
        assert_eq!(ended(process).await.code, 137, "{}", bench.kind);
        assert_eq!(cgroups(node, ""), Vec::<PathBuf>::new(), "{}", bench.kind);
        assert_eq!(std::fs::read_dir(node.options.directory.join("oci")).unwrap().count(), 0);
    })
    .await;
}

fn is_terminal(kind: Kind, said: &str) {
    let name =
        said.strip_prefix("terminal true ").and_then(|rest| rest.strip_suffix(" controlling true\r\n"));
    match kind {
        // gVisor passes the machine's own terminal through, under a name of its own.
        Kind::Runsc => assert!(name.is_some_and(|name| name.starts_with("host:[")), "{said:?}"),
        _ => assert_eq!(name, Some("/dev/pts/0"), "{kind}: {said:?}"),
    }
}

#[tokio::test]
async fn nothing_is_left_after_a_node_that_was_killed() {
    each(async |bench| {
        let node = &bench.node;
        let (sandbox, _sockets) = node.sandbox("pod").await;
        let (id, process, _keep) = bench.waiting(node.spec("a", &sandbox, &["wait"])).await;
        let record = std::fs::read(node.options.directory.join("record")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        let spawner = i32::try_from(record["spawner"]["pid"].as_i64().unwrap()).unwrap();
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(spawner).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        assert_eq!(ended(process).await.code, 137, "{}", bench.kind);
        assert!(!cgroups(node, "/a").is_empty(), "{}: nobody was there to remove it", bench.kind);

        let next = Spawner::start(Path::new(&probe()), &node.options).unwrap();
        assert_eq!(cgroups(node, "/a"), Vec::<PathBuf>::new(), "{}", bench.kind);
        assert!(!node.options.scratch(&id).exists());
        next.into_handle().unwrap().stop().await;
        assert_eq!(cgroups(node, ""), Vec::<PathBuf>::new(), "{}", bench.kind);
    })
    .await;
}

/// The cgroups of the node that exist, in any hierarchy.
fn cgroups(node: &Node, below: &str) -> Vec<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let name = format!("agentcube-{}{below}", node.options.node);
    let in_hierarchy = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (names, path) = (fields.next()?.to_owned(), fields.next()?.trim_start_matches('/').to_owned());
        let names = names.trim_start_matches("name=");
        let tops = match names {
            "" => vec![PathBuf::from("/sys/fs/cgroup"), PathBuf::from("/sys/fs/cgroup/unified")],
            names => vec![Path::new("/sys/fs/cgroup").join(names)],
        };
        Some(tops.into_iter().map(|top| top.join(&path).join(&name)).collect::<Vec<_>>())
    };
    own.lines().filter_map(in_hierarchy).flatten().filter(|path| path.exists()).collect()
}
