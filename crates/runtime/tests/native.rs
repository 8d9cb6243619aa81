//! Containers of the native runtime, from start to removal.

#![allow(clippy::unwrap_used, reason = "these are tests, their own functions among them")]

mod harness;

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

use agentcube_runtime::spec::{ExecSpec, Mount, Resources, Root, Source, User};
use agentcube_runtime::{ContainerId, Error, Exit, Process, Runtime, SandboxId, Sandboxes, Stdio};
use harness::{Node, bind, ended, is_root, pipe, probe, read_all, read_until, sandbox_spec};

#[test]
fn without_root() {
    harness::again_without_root("without_root");
}

#[test]
fn with_embryos() {
    harness::again_with_embryos("with_embryos");
}

/// Starts a container that stays until it is told to end, and waits until it says that it runs.
async fn waiting(
    node: &Node,
    name: &str,
    sandbox: &SandboxId,
) -> (ContainerId, Process, std::os::fd::OwnedFd) {
    let spec = node.spec(name, sandbox, &["wait"]);
    let id = spec.id.clone();
    let ((stdin, keep), (read, stdout)) = (pipe(), pipe());
    let stdio = Stdio { stdin: Some(stdin), stdout: Some(stdout), stderr: None, ..Stdio::default() };
    let process = node.native.start(spec, stdio).await.unwrap();
    assert_eq!(read_until(&read, "waiting\n").await, "waiting\n");
    (id, process, keep)
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

async fn exec_output(node: &Node, id: &ContainerId, spec: ExecSpec) -> Result<(Exit, String), Error> {
    let (read, write) = pipe();
    let stdio = Stdio { stdin: None, stdout: Some(write), stderr: None, ..Stdio::default() };
    let process = node.native.exec(id, spec, stdio).await?;
    let output = read_all(read).await;
    Ok((ended(process).await, output))
}

#[tokio::test]
async fn tells_output_and_exit_codes() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let (exit, output) = node.run(node.spec("a", &sandbox, &["echo", "hello"])).await.unwrap();
    assert_eq!(exit, Exit { code: 0, signal: None, out_of_memory: false });
    assert_eq!(output, "hello\n");
    for code in [1, 7, 255] {
        let (exit, _) = node.run(node.spec("b", &sandbox, &["exit", &code.to_string()])).await.unwrap();
        assert_eq!(exit, Exit { code, signal: None, out_of_memory: false });
    }
    node.handle.stop().await;
}

#[tokio::test]
async fn connects_the_three_streams() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let spec = node.spec("a", &sandbox, &["cat"]);
    let ((stdin, input), (output, stdout)) = (pipe(), pipe());
    let stdio = Stdio { stdin: Some(stdin), stdout: Some(stdout), stderr: None, ..Stdio::default() };
    let process = node.native.start(spec, stdio).await.unwrap();
    File::from(input).write_all(b"through and through").unwrap();
    assert_eq!(read_all(output).await, "through and through");
    assert_eq!(ended(process).await.code, 0);
    node.handle.stop().await;
}

#[tokio::test]
async fn says_in_the_usual_words_what_cannot_be_executed() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let table = [
        ("no-such-program", "exec: \"no-such-program\": executable file not found in $PATH"),
        ("/no/such", "exec: \"/no/such\": stat /no/such: no such file or directory"),
        ("/etc", "exec: \"/etc\": is a directory"),
        ("/etc/passwd", "exec: \"/etc/passwd\": permission denied"),
    ];
    for (program, expected) in table {
        let mut spec = node.spec("a", &sandbox, &[]);
        spec.args = vec![program.to_owned()];
        let scratch = spec.scratch.clone();
        let error = node.run(spec).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        assert_eq!(error.to_string(), expected);
        assert!(!scratch.exists(), "a start that failed leaves nothing");
    }
    node.handle.stop().await;
}

#[tokio::test]
async fn refuses_what_cannot_be() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let nowhere = SandboxId::new("nowhere").unwrap();
    let error = node.run(node.spec("a", &nowhere, &["exit", "0"])).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { what: "sandbox", .. }), "{error:?}");
    let mut spec = node.spec("b", &sandbox, &["exit", "0"]);
    spec.mounts.push(bind(Path::new("/no/such/source"), Path::new("/data"), true));
    let error = node.run(spec).await.unwrap_err().to_string();
    assert_eq!(error, "mounting: /no/such/source to /data: No such file or directory (os error 2)");
    let (id, _process, _keep) = waiting(&node, "c", &sandbox).await;
    let again = node.native.start(node.spec("c", &sandbox, &["exit", "0"]), Stdio::default()).await;
    let error = again.err().expect("its id is taken");
    assert!(matches!(error, Error::Exists { what: "container", .. }), "{error:?}");
    let missing = ContainerId::new("missing").unwrap();
    assert!(matches!(node.native.usage(&missing).await, Err(Error::NotFound { .. })));
    node.native.remove(&missing).await.unwrap();
    node.native.signal(&id, 0).await.unwrap_err();
    node.handle.stop().await;
}

#[tokio::test]
async fn runs_as_the_user_in_the_directory_and_under_the_name() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("my-pod").await;
    let mut spec = node.spec("a", &sandbox, &["whoami"]);
    spec.user = User { uid: 1000, gid: 2000, groups: vec![3000] };
    spec.cwd = "/place/deep".into();
    let (_, output) = node.run(spec).await.unwrap();
    assert!(output.starts_with("uid 1000 euid 1000 gid 2000\n"), "{output}");
    assert!(output.contains("hostname my-pod\ncwd /place/deep\n"), "{output}");
    if is_root() {
        assert!(output.contains("Groups: 3000"), "{output}");
    }
    node.handle.stop().await;
}

#[tokio::test]
async fn carries_a_large_environment() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let mut spec = node.spec("a", &sandbox, &["environment"]);
    spec.env = (0..10).map(|number| (format!("V{number}"), "x".repeat(100_000))).collect();
    let (_, output) = node.run(spec).await.unwrap();
    assert_eq!(output, "1000020\n");
    node.handle.stop().await;
}

#[tokio::test]
async fn an_image_is_shared_and_never_written() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let write = node.image_spec("a", &sandbox, &["write", "/etc/made", "by a"]);
    let Root::Directory(image) = write.root.clone() else { unreachable!() };
    std::fs::create_dir_all(image.join("etc")).unwrap();
    std::fs::write(image.join("etc/given"), "by the image").unwrap();
    assert_eq!(node.run(write).await.unwrap().1, "written\n");
    let (_, output) = node.run(node.image_spec("b", &sandbox, &["read", "/etc/made"])).await.unwrap();
    assert_eq!(output, "No such file or directory (os error 2)\n");
    let (_, output) = node.run(node.image_spec("c", &sandbox, &["read", "/etc/given"])).await.unwrap();
    assert_eq!(output, "by the image");
    assert!(!image.join("etc/made").exists());
    assert!(!image.join("proc").exists(), "places for mounts are not made in the image either");
    let mut read_only = node.image_spec("d", &sandbox, &["write", "/etc/made", "by d"]);
    read_only.read_only_root = true;
    assert_eq!(node.run(read_only).await.unwrap().1, "Read-only file system (os error 30)\n");
    node.handle.stop().await;
}

#[tokio::test]
async fn the_usual_places_of_mounts_are_not_made_for_each_container() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let mut spec = node.image_spec("a", &sandbox, &["wait"]);
    let hosts = node.directory().join("hosts");
    std::fs::write(&hosts, "10.0.0.1 a").unwrap();
    spec.mounts.push(bind(&hosts, Path::new("/etc/hosts"), true));
    let id = spec.id.clone();
    let ((stdin, keep), (read, stdout)) = (pipe(), pipe());
    let stdio = Stdio { stdin: Some(stdin), stdout: Some(stdout), stderr: None, ..Stdio::default() };
    let process = node.native.start(spec, stdio).await.unwrap();
    assert_eq!(read_until(&read, "waiting\n").await, "waiting\n");
    let (_, output) = exec_output(&node, &id, exec(&["read", "/etc/hosts"])).await.unwrap();
    assert_eq!(output, "10.0.0.1 a");
    let uppers = node.uppers();
    assert!(!uppers.is_empty());
    for place in ["dev", "proc", "sys", "etc"] {
        assert!(!uppers.iter().any(|upper| upper.join(place).exists()), "{place} was made");
    }
    drop(keep);
    assert_eq!(ended(process).await.code, 0);
    node.handle.stop().await;
}

#[tokio::test]
async fn nothing_overtakes_the_sandbox_that_it_is_for() {
    let node = Node::start();
    // Fifty others are asked for first, so that this one has to wait.
    let others = (0..50).map(|number| node.handle.create(sandbox_spec(&format!("other-{number}"))));
    let others = futures_util::future::join_all(others);
    let spec = sandbox_spec("pod");
    let container = node.spec("a", &spec.id, &["echo", "hello"]);
    let (others, made, output) =
        tokio::join!(biased; others, node.handle.create(spec.clone()), node.run(container));
    assert!(others.iter().all(Result::is_ok));
    let _sockets = made.unwrap();
    assert_eq!(output.unwrap().1, "hello\n");

    node.handle.remove(&spec.id).await.unwrap();
    let (made, removed) =
        tokio::join!(biased; node.handle.create(spec.clone()), node.handle.remove(&spec.id));
    drop((made.unwrap(), removed.unwrap()));
    node.handle.create(spec).await.expect("the removed sandbox is gone");
}

#[tokio::test]
async fn a_read_only_image_has_places_for_its_mounts_and_needs_no_disk() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    for name in ["a", "b", "a"] {
        let mut spec = node.image_spec(name, &sandbox, &["read", "/deep/in/it/file"]);
        let volume = node.directory().join("volume");
        std::fs::create_dir_all(&volume).unwrap();
        std::fs::write(volume.join("file"), "of the volume\n").unwrap();
        spec.mounts.push(bind(&volume, Path::new("/deep/in/it"), true));
        spec.read_only_root = true;
        let scratch = spec.scratch.clone();
        assert_eq!(node.run(spec).await.unwrap().1, "of the volume\n");
        assert!(!scratch.exists());
        assert!(!node.directory().join("image/deep").exists());
    }
}

#[tokio::test]
async fn mounts_volumes_files_and_memory() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let volume = node.directory().join("volume");
    std::fs::create_dir(&volume).unwrap();
    std::fs::write(volume.join("file"), "of the volume").unwrap();
    for image in [false, true] {
        let spec = |name: &str, args: &[&str]| {
            let mut spec =
                if image { node.image_spec(name, &sandbox, args) } else { node.spec(name, &sandbox, args) };
            // The second into the first, and one where the machine's own `/etc` has no place for it.
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
            assert_eq!(node.run(spec("a", args)).await.unwrap().1, expected, "{args:?}, image: {image}");
        }
    }
    assert_eq!(std::fs::read_to_string(volume.join("new")).unwrap(), "x");
    node.handle.stop().await;
}

#[tokio::test]
async fn secrets_stay_hidden_where_a_place_had_to_be_made() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let mut spec = node.spec("a", &sandbox, &["try", "read", "/etc/shadow"]);
    spec.mounts.push(Mount {
        target: "/etc/agentcube-test".into(),
        source: Source::Tmpfs { bytes: 1 << 20 },
        read_only: false,
    });
    let (exit, output) = node.run(spec).await.unwrap();
    assert_eq!(exit.code, 0, "{output}");
    node.handle.stop().await;
}

#[tokio::test]
async fn signals_and_kills() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let (id, process, _keep) = waiting(&node, "a", &sandbox).await;
    node.native.signal(&id, libc::SIGKILL).await.unwrap();
    assert_eq!(ended(process).await, Exit { code: 137, signal: Some(9), out_of_memory: false });
    // One that has ended is no error.
    node.native.signal(&id, libc::SIGTERM).await.unwrap();
    let (_, output) = node.run(node.spec("b", &sandbox, &["signal", "15"])).await.unwrap();
    assert_eq!(output, "15\n", "signals have their default effect");
    node.handle.stop().await;
}

#[tokio::test]
async fn removing_kills_and_gives_everything_back() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let (id, process, _keep) = waiting(&node, "a", &sandbox).await;
    let pid = process.pid;
    assert!(Path::new(&format!("/proc/{pid}/ns")).exists());
    let scratch = node.options.scratch(&id);
    node.native.remove(&id).await.unwrap();
    assert_eq!(ended(process).await.signal, Some(9));
    assert!(!scratch.exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    node.native.remove(&id).await.unwrap();

    let (other, process, _keep) = waiting(&node, "b", &sandbox).await;
    node.handle.remove(&sandbox).await.unwrap();
    assert_eq!(ended(process).await.signal, Some(9));
    assert!(!node.options.scratch(&other).exists());
    node.handle.remove(&sandbox).await.unwrap();
    let error = node.run(node.spec("c", &sandbox, &["exit", "0"])).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { what: "sandbox", .. }), "{error:?}");
    node.handle.stop().await;
}

#[tokio::test]
async fn deletes_what_resists() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let mut spec = node.image_spec("a", &sandbox, &["-c"]);
    spec.args = vec!["/bin/sh".to_owned(), "-c".to_owned()];
    // Deep, unreadable, unwritable, odd names, links to the outside.
    spec.args.push(
        "mkdir -p /x/y && cd /x/y && touch a && mkdir closed && touch closed/f && ln -s / up && \
         n=0; while [ $n -lt 600 ]; do mkdir d && cd d || exit 1; n=$((n+1)); done; \
         touch '/x/-rf \"*' && chmod 000 /x/y/closed && chmod 500 /x/y && echo made"
            .to_owned(),
    );
    spec.env = vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())];
    let scratch = spec.scratch.clone();
    let (exit, output) = node.run(spec).await.unwrap();
    assert_eq!((exit.code, output.as_str()), (0, "made\n"));
    assert!(!scratch.exists());
    node.handle.stop().await;
}

#[tokio::test]
async fn executes_more_programs_in_a_container() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("my-pod").await;
    let mut spec = node.spec("a", &sandbox, &["wait"]);
    spec.env.extend(["A", "B"].map(|name| (name.to_owned(), "container".to_owned())));
    spec.user = User { uid: 1000, gid: 1000, groups: Vec::new() };
    let ((stdin, keep), (read, stdout)) = (pipe(), pipe());
    let stdio = Stdio { stdin: Some(stdin), stdout: Some(stdout), stderr: None, ..Stdio::default() };
    let id = spec.id.clone();
    let process = node.native.start(spec, stdio).await.unwrap();
    read_until(&read, "waiting\n").await;

    let (exit, output) = exec_output(&node, &id, exec(&["whoami"])).await.unwrap();
    assert_eq!(exit.code, 0);
    assert!(output.starts_with("uid 1000 euid 1000 gid 1000\n"), "{output}");
    assert!(output.contains("CapEff: 0000000000000000\nCapBnd: 00000000a00405fb\n"), "{output}");
    assert!(output.contains("NoNewPrivs: 1\nSeccomp: 2\n"), "{output}");
    assert!(output.contains("hostname my-pod\n"), "{output}");

    assert_eq!(exec_output(&node, &id, exec(&["write", "/tmp/x", "shared"])).await.unwrap().1, "written\n");
    assert_eq!(exec_output(&node, &id, exec(&["read", "/tmp/x"])).await.unwrap().1, "shared");
    assert_eq!(exec_output(&node, &id, exec(&["exit", "9"])).await.unwrap().0.code, 9);
    for attempt in [&["try", "mount"][..], &["try", "descriptors"], &["try", "capset"]] {
        let (exit, output) = exec_output(&node, &id, exec(attempt)).await.unwrap();
        assert_eq!(exit.code, 0, "{attempt:?}: {output}");
    }
    let both = ExecSpec { env: vec![("A".to_owned(), "exec".to_owned())], ..exec(&["variables"]) };
    assert_eq!(exec_output(&node, &id, both).await.unwrap().1, "A=exec B=container PATH=/usr/bin:/bin\n");
    let mut missing = exec(&[]);
    missing.args = vec!["nothing".to_owned()];
    let error = exec_output(&node, &id, missing).await.unwrap_err();
    assert_eq!(error.to_string(), "exec: \"nothing\": executable file not found in $PATH");

    // What still runs ends with the container.
    let (stdin, _keep_exec) = pipe();
    let stdio = Stdio { stdin: Some(stdin), ..Stdio::default() };
    let left = node.native.exec(&id, exec(&["wait"]), stdio).await.unwrap();
    drop(keep);
    assert_eq!(ended(process).await.code, 0);
    assert_eq!(ended(left).await.signal, Some(9));
    let error = exec_output(&node, &id, exec(&["exit", "0"])).await.unwrap_err();
    assert_eq!(error.to_string(), "container \"a\" is not running");
    node.native.remove(&id).await.unwrap();
    node.handle.stop().await;
}

#[tokio::test]
async fn gives_a_terminal() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    for uid in [0, 1000] {
        let mut spec = node.spec("a", &sandbox, &["terminal"]);
        spec.terminal = true;
        spec.user = User { uid, gid: uid, groups: Vec::new() };
        let id = spec.id.clone();
        let process = node.native.start(spec, Stdio::default()).await.unwrap();
        let terminal = process.terminal.as_ref().unwrap().try_clone().unwrap();
        assert_eq!(ended(process).await.code, 0);
        assert_eq!(read_all(terminal).await, "terminal true /dev/pts/0 controlling true\r\n");
        node.native.remove(&id).await.unwrap();

        let (id, process, _keep) = waiting(&node, "b", &sandbox).await;
        let spec = ExecSpec { terminal: true, ..exec(&["terminal"]) };
        let more = node.native.exec(&id, spec, Stdio::default()).await.unwrap();
        let terminal = more.terminal.as_ref().unwrap().try_clone().unwrap();
        assert_eq!(ended(more).await.code, 0);
        assert_eq!(read_all(terminal).await, "terminal true /dev/pts/0 controlling true\r\n");
        node.native.remove(&id).await.unwrap();
        ended(process).await;
    }
    node.handle.stop().await;
}

#[tokio::test]
async fn starts_fifty_at_once() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let run = async |number: u32| {
        let mut spec = node.spec(&format!("c{number}"), &sandbox, &["echo", &number.to_string()]);
        // The limit of one is not shared with the others.
        spec.resources = Resources { processes: Some(5), ..Resources::default() };
        node.run(spec).await.unwrap()
    };
    let results = futures_util::future::join_all((0..50).map(run)).await;
    for (number, (exit, output)) in results.into_iter().enumerate() {
        assert_eq!((exit.code, output), (0, format!("{number}\n")));
    }
    node.handle.stop().await;
}

#[tokio::test]
async fn counts_what_a_container_uses() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let (id, _process, _keep) = waiting(&node, "a", &sandbox).await;
    let usage = node.native.usage(&id).await.unwrap();
    if is_root() {
        assert_eq!(usage.processes, 1);
        assert!(usage.cpu_nanoseconds > 0 && usage.memory_bytes > 0, "{usage:?}");
    }
    node.handle.stop().await;
}

#[tokio::test]
async fn opens_sockets_in_a_sandbox() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let socket = node.handle.socket(&sandbox, None).await.unwrap();
    let error = rustix::net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9)).unwrap_err();
    assert!(matches!(error, rustix::io::Errno::CONNREFUSED | rustix::io::Errno::INPROGRESS), "{error}");
    let source = Ipv4Addr::new(10, 244, 0, 77);
    let socket = node.handle.socket(&sandbox, Some(source)).await.unwrap();
    let bound: std::net::SocketAddr = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
    assert_eq!(bound.ip(), source);
    let missing = SandboxId::new("missing").unwrap();
    assert!(matches!(node.handle.socket(&missing, None).await, Err(Error::NotFound { .. })));
    node.handle.stop().await;
}
