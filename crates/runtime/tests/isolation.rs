//! Programs that try to get out of their container. Each attempt must be refused, and the machine must go on.

#![allow(clippy::unwrap_used, reason = "these are tests, their own functions among them")]

mod harness;

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use agentcube_runtime::spec::{Resources, User};
use agentcube_runtime::{ContainerSpec, SandboxId};
use harness::{Node, bind, copy_program, is_root, probe};

#[test]
fn without_root() {
    harness::again_without_root("without_root");
}

#[test]
fn with_embryos() {
    harness::again_with_embryos("with_embryos");
}

/// What every container is tried with: as root and as somebody, with the filter and without.
fn variants(node: &Node, sandbox: &SandboxId, args: &[&str], filterless: bool) -> Vec<ContainerSpec> {
    let mut variants = Vec::new();
    for (name, uid, seccomp) in
        [("root", 0, true), ("user", 1000, true), ("root-nofilter", 0, false), ("user-nofilter", 1000, false)]
    {
        if seccomp || filterless {
            let mut spec = node.spec(name, sandbox, args);
            spec.user = User { uid, gid: uid, groups: Vec::new() };
            spec.seccomp = seccomp;
            variants.push(spec);
        }
    }
    variants
}

/// Runs an attempt in every variant and expects each to be refused.
async fn refused(args: &[&str], filterless: bool) {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let args: Vec<_> = std::iter::once("try").chain(args.iter().copied()).collect();
    for spec in variants(&node, &sandbox, &args, filterless) {
        let name = spec.id.to_string();
        let (exit, output) = node.run(spec).await.unwrap();
        assert_eq!(exit.code, 0, "{args:?} as {name}: {output}");
        assert!(output.starts_with("refused: "), "{args:?} as {name}: {output}");
    }
    node.handle.stop().await;
}

fn own_pid() -> String {
    std::process::id().to_string()
}

#[tokio::test]
async fn sees_no_other_process() {
    refused(&["processes"], true).await;
}

#[tokio::test]
async fn kills_no_other_process() {
    refused(&["kill", &own_pid()], true).await;
}

#[tokio::test]
async fn traces_no_process() {
    refused(&["ptrace", &own_pid()], false).await;
}

#[tokio::test]
async fn mounts_nothing() {
    refused(&["mount"], true).await;
    refused(&["remount"], true).await;
    refused(&["unmount"], true).await;
}

#[tokio::test]
async fn makes_no_devices() {
    refused(&["mknod", "/tmp"], true).await;
    refused(&["mknod", "/dev"], true).await;
}

#[tokio::test]
async fn makes_and_enters_no_namespaces() {
    refused(&["unshare"], false).await;
    refused(&["setns", "/proc/self/ns/net"], false).await;
}

#[tokio::test]
async fn uses_no_dangerous_calls() {
    for attempt in ["bpf", "keyctl", "io-uring"] {
        refused(&[attempt], false).await;
    }
    refused(&["raw-socket"], true).await;
}

#[tokio::test]
async fn writes_nothing_of_the_machine() {
    for path in ["/usr/x", "/etc/x", "/usr/bin/x", "/dev/x", "/proc/x", "/sys/x"] {
        refused(&["create", path], true).await;
    }
    for path in [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper",
        "/etc/passwd",
    ] {
        refused(&["overwrite", path], true).await;
    }
}

#[tokio::test]
async fn reads_no_secrets_of_the_machine() {
    for path in [
        "/etc/shadow",
        "/etc/gshadow",
        "/etc/sudoers",
        "/etc/ssl/private",
        "/proc/kcore",
        "/proc/keys",
        "/root",
    ] {
        refused(&["read", path], true).await;
    }
    for path in ["/var/lib", "/mnt", "/boot"] {
        refused(&["see", path], true).await;
    }
}

#[tokio::test]
async fn does_not_see_the_nodes_own_files() {
    let marker = tempfile::NamedTempFile::new().unwrap();
    refused(&["see", marker.path().to_str().unwrap()], true).await;
}

#[tokio::test]
async fn holds_no_descriptor_but_its_streams() {
    refused(&["descriptors"], true).await;
}

#[tokio::test]
async fn does_not_climb_out_of_its_root() {
    let mut marker = tempfile::NamedTempFile::new().unwrap();
    marker.write_all(b"of the machine").unwrap();
    std::fs::set_permissions(marker.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    refused(&["chroot", marker.path().to_str().unwrap()], true).await;
}

#[tokio::test]
async fn gains_no_capabilities() {
    refused(&["capset"], true).await;
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let mut spec = node.spec("user", &sandbox, &["whoami"]);
    spec.user = User { uid: 1000, gid: 1000, groups: Vec::new() };
    let (_, output) = node.run(spec).await.unwrap();
    for line in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert!(output.contains(&format!("{line}: 0000000000000000\n")), "{line}: {output}");
    }
    let (_, output) = node.run(node.spec("root", &sandbox, &["whoami"])).await.unwrap();
    assert!(output.contains("CapEff: 00000000a00405fb\nCapBnd: 00000000a00405fb\n"), "{output}");
    assert!(output.contains("NoNewPrivs: 1\nSeccomp: 2\n"), "{output}");
    node.handle.stop().await;
}

#[tokio::test]
async fn becomes_no_other_user() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let marked = node.directory().join("marked");
    std::fs::create_dir(&marked).unwrap();
    copy_program(Path::new(&probe()), &marked.join("probe"));
    std::fs::set_permissions(marked.join("probe"), std::fs::Permissions::from_mode(0o4755)).unwrap();
    // Even where privileges may be gained: what is mounted from the machine gives none.
    for no_new_privileges in [true, false] {
        for args in [&["try", "setuid", "/marked/probe"][..], &["try", "become-root"]] {
            let mut spec = node.spec("user", &sandbox, args);
            spec.user = User { uid: 1000, gid: 1000, groups: Vec::new() };
            spec.no_new_privileges = no_new_privileges;
            spec.mounts.push(bind(&marked, Path::new("/marked"), true));
            let (exit, output) = node.run(spec).await.unwrap();
            assert_eq!(exit.code, 0, "{args:?}: {output}");
        }
    }
    node.handle.stop().await;
}

#[tokio::test]
async fn a_fork_bomb_stops_at_its_limit() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    for uid in [0, 1000] {
        let mut spec = node.spec("bomb", &sandbox, &["try", "fork-bomb", "500"]);
        spec.user = User { uid, gid: uid, groups: Vec::new() };
        spec.resources = Resources { processes: Some(20), ..Resources::default() };
        let (exit, output) = node.run(spec).await.unwrap();
        assert_eq!(
            (exit.code, output.as_str()),
            (0, "refused: after 19: Resource temporarily unavailable (os error 11)\n")
        );
        let (exit, _) = node.run(node.spec("after", &sandbox, &["exit", "3"])).await.unwrap();
        assert_eq!(exit.code, 3, "the machine goes on");
    }
    node.handle.stop().await;
}

#[tokio::test]
async fn memory_ends_at_its_limit() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let mut spec = node.spec("hungry", &sandbox, &["try", "memory", "512"]);
    spec.resources = Resources { memory_bytes: Some(64 << 20), ..Resources::default() };
    let (exit, output) = node.run(spec).await.unwrap();
    if is_root() {
        assert_eq!((exit.signal, exit.out_of_memory), (Some(9), true), "{output}");
    } else {
        // Without a cgroup the program is refused more, instead of being killed.
        assert_eq!((exit.code, exit.out_of_memory), (0, false), "{output}");
    }
    let (exit, _) = node.run(node.spec("after", &sandbox, &["exit", "3"])).await.unwrap();
    assert_eq!((exit.code, exit.out_of_memory), (3, false), "the machine goes on");
    node.handle.stop().await;
}

#[tokio::test]
async fn does_not_reach_the_machines_loopback() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    refused(&["connect", &address], true).await;
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "somebody got through");
}

#[tokio::test]
async fn a_link_in_an_image_leads_no_mount_out_of_it() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let outside = node.directory().join("outside");
    let volume = node.directory().join("volume");
    std::fs::create_dir(&outside).unwrap();
    std::fs::create_dir(&volume).unwrap();
    std::fs::write(volume.join("file"), "of the volume").unwrap();
    let mut spec = node.image_spec("a", &sandbox, &["read", "/data/in/file"]);
    let agentcube_runtime::spec::Root::Directory(image) = &spec.root else { unreachable!() };
    std::os::unix::fs::symlink(&outside, image.join("data")).unwrap();
    spec.mounts.push(bind(&volume, Path::new("/data/in"), true));
    let (_, output) = node.run(spec).await.unwrap();
    assert_eq!(output, "of the volume", "the link was followed inside of the image");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "something was made outside of the image");
    node.handle.stop().await;
}

#[tokio::test]
async fn a_link_in_a_volume_leads_no_mount_out_of_it() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let volume = node.directory().join("volume");
    std::fs::create_dir(&volume).unwrap();
    // As a container that shares the volume would do it, in place of a directory that was asked for.
    std::os::unix::fs::symlink("/etc", volume.join("part")).unwrap();
    let mut spec = node.spec("a", &sandbox, &["read", "/data/passwd"]);
    spec.mounts.push(bind(&volume.join("part"), Path::new("/data"), true));
    assert!(node.run(spec).await.is_err(), "the link was followed");
    node.handle.stop().await;
}

#[tokio::test]
async fn a_working_directory_leads_through_no_descriptor_of_ours() {
    let node = Node::start();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    for number in 3..40 {
        let mut spec = node.spec("a", &sandbox, &["whoami"]);
        spec.cwd = format!("/proc/self/fd/{number}").into();
        assert!(node.run(spec).await.is_err(), "entered descriptor {number}");
    }
    node.handle.stop().await;
}
