//! Files that a container is given before its program runs.

#![allow(clippy::unwrap_used, reason = "these are tests, their own functions among them")]

mod harness;

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use agentcube_runtime::spec::{File, MOST_FILE_BYTES, MOST_FILES, Program, User};
use agentcube_runtime::{ContainerId, ContainerSpec, Error, Runtime, SandboxId, Stdio};
use harness::{Node, bind, ended, is_root, pipe, probe, read_all};

#[test]
fn without_root() {
    harness::again_without_root("without_root");
}

#[test]
fn with_embryos() {
    harness::again_with_embryos("with_embryos");
}

fn file(path: &str, mode: u32, content: &str) -> File {
    File { path: path.into(), mode, content: content.as_bytes().to_vec() }
}

/// Both ways to be given files.
#[derive(Debug, Clone, Copy)]
enum Way {
    Started,
    Claimed,
}

/// Runs the spec's program with files to its end; the container stays.
async fn run(node: &Node, way: Way, spec: ContainerSpec, files: Vec<File>) -> Result<String, Error> {
    let (read, write) = pipe();
    let stdio = Stdio { stdin: None, stdout: Some(write), stderr: None, ..Stdio::default() };
    let process = match way {
        Way::Started => node.native.start(ContainerSpec { files, ..spec }, stdio).await?,
        Way::Claimed => {
            let (id, args) = (spec.id.clone(), spec.args.clone());
            node.native.prepare(spec).await?;
            node.native.claim(&id, Program { args, files, ..Program::default() }, stdio).await?
        }
    };
    let output = read_all(read).await;
    ended(process).await;
    Ok(output)
}

fn shell(mut spec: ContainerSpec, script: &str) -> ContainerSpec {
    spec.args = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    spec
}

#[tokio::test]
async fn are_there_when_the_program_runs_and_are_its_own() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let user = if is_root() { User { uid: 1234, gid: 1235, groups: Vec::new() } } else { User::default() };
    for way in [Way::Started, Way::Claimed] {
        let script = "cat /tmp/deep/in/it/a && stat -c '%a %u %g' /tmp/deep/in/it/a /tmp/b && wc -c < /tmp/b";
        let spec = shell(node.spec("a", &sandbox, &[]), script);
        let spec = ContainerSpec { user: user.clone(), ..spec };
        let long = "x".repeat(MOST_FILE_BYTES - 6);
        let files = vec![file("/tmp/b", 0o640, &long), file("/tmp/deep/in/it/a", 0o600, "first\n")];
        let output = run(&node, way, spec, files).await.unwrap();
        let own = format!("{} {}", user.uid, user.gid);
        let expected = format!("first\n600 {own}\n640 {own}\n{}\n", long.len());
        assert_eq!(output, expected, "{way:?}");
        node.native.remove(&ContainerId::new("a").unwrap()).await.unwrap();
    }
    node.handle.stop().await;
}

/// A place of the machine into which a path of an image tries to lead.
fn trap(node: &Node, sandbox: &SandboxId) -> (ContainerSpec, std::path::PathBuf) {
    let outside = node.directory().join("outside");
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::write(outside.join("file"), "of the machine").unwrap();
    let spec = shell(node.image_spec("a", sandbox, &[]), "true");
    let image = node.directory().join("image");
    let _ = symlink(&outside, image.join("absolute"));
    let up = Path::new("../../../../../../../../../../..").join(outside.strip_prefix("/").unwrap());
    let _ = symlink(up, image.join("relative"));
    let _ = symlink(outside.join("file"), image.join("file"));
    (spec, outside)
}

#[tokio::test]
async fn no_path_leads_out_of_the_root() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    for way in [Way::Started, Way::Claimed] {
        let up = "/../../../../../../../..";
        for path in ["/absolute/new", "/relative/new", "/file", "/proc/1/root/absolute/file"] {
            let (spec, outside) = trap(&node, &sandbox);
            let id = spec.id.clone();
            // Whether it is refused or lands in the container does not matter here.
            let _ = run(&node, way, spec, vec![file(path, 0o600, "x")]).await;
            let (spec, _) = trap(&node, &sandbox);
            let _ = node.native.remove(&id).await;
            let beyond = format!("{up}{}/file", outside.display());
            let _ = run(&node, way, spec, vec![file(&beyond, 0o600, "x")]).await;
            let _ = node.native.remove(&id).await;
            let left: Vec<_> =
                std::fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert_eq!(left, [outside.join("file")], "{path}, {way:?}");
            assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), "of the machine");
        }
    }
    node.handle.stop().await;
}

#[tokio::test]
async fn a_user_writes_only_what_is_its_own() {
    if !is_root() {
        return; // There is one user only.
    }
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let volume = node.directory().join("volume");
    std::fs::create_dir(&volume).unwrap();
    std::fs::write(volume.join("of-root"), "kept").unwrap();
    for way in [Way::Started, Way::Claimed] {
        for path in ["/data/of-root", "/data/new", "/etc/passwd", "/dev/null", "/"] {
            let mut spec = shell(node.spec("a", &sandbox, &[]), "true");
            spec.mounts.push(bind(&volume, Path::new("/data"), false));
            spec.user = User { uid: 1234, gid: 1235, groups: Vec::new() };
            let scratch = spec.scratch.clone();
            let error = run(&node, way, spec, vec![file(path, 0o644, "x")]).await.unwrap_err().to_string();
            let words = if path == "/" { "absolute path" } else { "writing the files" };
            assert!(error.contains(words), "{path}: {error}");
            if path == "/" {
                node.native.remove(&ContainerId::new("a").unwrap()).await.unwrap();
            }
            assert!(!scratch.exists(), "a start that fails leaves nothing");
        }
    }
    assert_eq!(std::fs::read_to_string(volume.join("of-root")).unwrap(), "kept");
    assert_eq!(std::fs::metadata(volume.join("of-root")).unwrap().mode() & 0o777, 0o644);
    node.handle.stop().await;
}

#[tokio::test]
async fn are_limited() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let cases = [
        (vec![file("/tmp/a", 0o600, "x"); MOST_FILES + 1], "65 files are too many"),
        (vec![file("/tmp/a", 0o600, &"x".repeat(MOST_FILE_BYTES / 2 + 1)); 2], "bytes together"),
        (vec![file("tmp/a", 0o600, "x")], "absolute path"),
        (vec![file("/tmp/a", 0o4755, "x")], "cannot have the mode 4755"),
    ];
    for (files, words) in cases {
        for way in [Way::Started, Way::Claimed] {
            let spec = shell(node.spec("a", &sandbox, &[]), "true");
            let id = spec.id.clone();
            let error = run(&node, way, spec, files.clone()).await.unwrap_err();
            assert!(matches!(&error, Error::Invalid(message) if message.contains(words)), "{error:?}");
            node.native.remove(&id).await.unwrap();
        }
    }
    node.handle.stop().await;
}

#[tokio::test]
async fn a_claim_names_its_host() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("before").await;
    let spec = node.spec("a", &sandbox, &[]);
    let id = spec.id.clone();
    node.native.prepare(spec).await.unwrap();
    let told = |hostname: &str| Program {
        args: vec![probe(), "read".into(), "/proc/sys/kernel/hostname".into()],
        hostname: Some(hostname.to_owned()),
        ..Program::default()
    };
    for wrong in ["", &"x".repeat(65)] {
        let error = node.native.claim(&id, told(wrong), Stdio::default()).await.err().unwrap();
        assert!(error.to_string().contains("cannot be a host name"), "{error}");
    }
    let (read, write) = pipe();
    let stdio = Stdio { stdin: None, stdout: Some(write), stderr: None, ..Stdio::default() };
    let process = node.native.claim(&id, told("after"), stdio).await.unwrap();
    assert_eq!(read_all(read).await, "after\n");
    ended(process).await;
    let (_, output) =
        node.run(node.spec("b", &sandbox, &["read", "/proc/sys/kernel/hostname"])).await.unwrap();
    assert_eq!(output, "after\n", "it is the sandbox's");
    node.handle.stop().await;
}
