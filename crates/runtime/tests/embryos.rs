//! First processes of containers that are made before anybody has asked for one.

#![allow(clippy::unwrap_used, reason = "these are tests, their own functions among them")]

mod harness;

use std::collections::BTreeSet;
use std::path::Path;

use agentcube_runtime::spec::{Resources, Root, User};
use agentcube_runtime::{ContainerId, ContainerSpec, Exit, Runtime, SandboxId, Sandboxes, Stdio};
use rustix::event::{PollFd, PollFlags};

use harness::place::{Place, kill, spawner_pid, waiting};
use harness::{Node, is_root, pipe, read_until};

#[test]
fn without_root() {
    harness::again_without_root("without_root");
}

/// All that a program can find out about itself, but for numbers that no two containers have alike.
const ABOUT_ITSELF: &str = "cut -d' ' -f4- /proc/self/mountinfo | sed 's/scratch[^,]*//g; s/fd.[0-9]*//g' | sort; \
     grep -E '^(Name|Umask|PPid|NSpid|Uid|Gid|Groups|Cap|NoNew|Seccomp|Sig|Shd)' /proc/self/status; \
     cat /proc/self/limits /proc/self/oom_score_adj /proc/self/cgroup /proc/self/comm; \
     hostname; env; pwd; ls -l /proc/self/fd | sed 's/.* //; s/pipe.*/pipe/; s/proc.[0-9]*/proc/'; stat -c '%A %u %g %t %T %n' /* /dev/* /proc/sys/*; \
     ls /sys/class/net; cat /proc/net/route; ulimit -a; ps 2>&1 | head -3";

fn about_itself(mut spec: ContainerSpec) -> ContainerSpec {
    spec.args = ["/bin/sh", "-c", ABOUT_ITSELF].map(str::to_owned).into();
    spec.user = if is_root() { User { uid: 1234, gid: 1235, groups: vec![1236] } } else { User::default() };
    spec.resources = Resources { processes: Some(50), memory_bytes: Some(256 << 20), ..Resources::default() };
    spec
}

#[tokio::test]
async fn becomes_what_is_made_from_nothing() {
    let node = Node::start();
    let (plain, _plain_sockets) = node.sandbox("pod").await;
    let (_, expected) = node.run(about_itself(node.spec("one", &plain, &[]))).await.unwrap();
    node.handle.remove(&plain).await.unwrap();
    node.embryos(1).await;
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let found = node.run(about_itself(node.spec("two", &sandbox, &[]))).await.unwrap();
    assert_same(&expected, &found);
    node.handle.stop().await;
}

fn assert_same(expected: &str, (exit, found): &(Exit, String)) {
    assert!(expected.contains("/proc") && expected.contains("NoNewPrivs:\t1"), "{expected}");
    assert_eq!(exit.code, 0, "{found}");
    for (expected, found) in expected.lines().zip(found.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}

/// Of the image of tests, and tells what is in its root before and after it has written there.
fn writes(node: &Node, name: &str, sandbox: &SandboxId) -> ContainerSpec {
    let mut spec = node.image_spec(name, sandbox, &[]);
    spec.args = ["/bin/sh", "-c", "ls / && echo mine > /written && cat /written"].map(str::to_owned).into();
    spec
}

#[tokio::test]
async fn has_a_root_over_the_image_that_was_asked_for_last() {
    let place = Place::new("laid");
    let node = place.start();
    let (plain, _plain_sockets) = node.sandbox("pod").await;
    let (_, expected) = node.run(about_itself(node.image_spec("one", &plain, &[]))).await.unwrap();
    let (_, written) = node.run(writes(&node, "two", &plain)).await.unwrap();
    node.handle.remove(&plain).await.unwrap();
    node.roots(2).await;
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let found = node.run(about_itself(node.image_spec("three", &sandbox, &[]))).await.unwrap();
    assert_same(&expected, &found);
    node.handle.remove(&sandbox).await.unwrap();

    let (sandbox, _sockets) = node.sandbox("pod").await;
    let mut spec = writes(&node, "four", &sandbox);
    spec.args[2].push_str(" && sleep 60");
    let (read, write) = pipe();
    let stdio = Stdio { stdout: Some(write), ..Stdio::default() };
    let process = node.native.start(spec, stdio).await.unwrap();
    let output = read_until(&read, "mine\n").await;
    assert_eq!(output, written);
    // What takes the writes is what was laid ahead, and nobody else's.
    let written: Vec<_> = node.uppers().into_iter().filter(|upper| upper.join("written").exists()).collect();
    let [laid] = &*written else { panic!("{written:?}") };
    assert!(laid.parent().unwrap().file_name().unwrap().to_str().unwrap().starts_with(".ahead-"));
    node.native.remove(&ContainerId::new("four").unwrap()).await.unwrap();
    process.exit.await.unwrap();
    assert!(!laid.exists(), "it goes with the container");
    node.handle.stop().await;
    place.assert_clean_after_next_start().await;
}

#[tokio::test]
async fn a_root_over_another_image_is_not_taken_for_the_right_one() {
    let place = Place::new("another");
    let node = place.start();
    let root = |spec: &ContainerSpec| match &spec.root {
        Root::Directory(image) => image.clone(),
        other => panic!("{other:?}"),
    };
    // Another image under the same name, then one under another name.
    for name in ["image", "other"] {
        node.roots(1).await;
        let (sandbox, _sockets) = node.sandbox("pod").await;
        let mut spec = writes(&node, "a", &sandbox);
        let image = root(&spec);
        let new = image.with_file_name(name);
        if new.exists() {
            std::fs::rename(&image, image.with_file_name("replaced")).unwrap();
        }
        std::fs::create_dir_all(new.join("only-here")).unwrap();
        for entry in ["usr", "bin", "lib", "lib64"] {
            if let Ok(to) = std::fs::read_link(Path::new("/").join(entry)) {
                std::os::unix::fs::symlink(to, new.join(entry)).unwrap();
            }
        }
        spec.root = Root::Directory(new.clone());
        let (exit, output) = node.run(spec).await.unwrap();
        assert!(exit.code == 0 && output.contains("only-here\n"), "{name}: {output}");
        node.handle.remove(&sandbox).await.unwrap();
        std::fs::remove_dir_all(new).unwrap();
    }
    node.handle.stop().await;
    place.assert_clean_after_next_start().await;
}

#[tokio::test]
async fn an_image_that_has_gone_is_missed() {
    let node = Node::start();
    node.roots(1).await;
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let spec = writes(&node, "a", &sandbox);
    std::fs::remove_dir_all(node.directory().join("image")).unwrap();
    let error = node.run(spec).await.unwrap_err();
    assert!(error.to_string().contains("No such file"), "{error}");
    node.handle.stop().await;
}

#[tokio::test]
async fn is_the_process_of_the_first_container_only() {
    let node = Node::start();
    let ahead = node.embryos(2).await;
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let mut pids = Vec::new();
    let mut keep = Vec::new();
    for name in ["first", "second"] {
        let ((stdin, input), (read, stdout)) = (pipe(), pipe());
        let stdio = Stdio { stdin: Some(stdin), stdout: Some(stdout), stderr: None, ..Stdio::default() };
        let process = node.native.start(node.spec(name, &sandbox, &["wait"]), stdio).await.unwrap();
        read_until(&read, "waiting\n").await;
        pids.push(process.pid);
        keep.push((process.exit, input));
    }
    assert!(ahead.contains(&pids[0]), "{ahead:?} {pids:?}");
    assert!(!ahead.contains(&pids[1]), "{ahead:?} {pids:?}");
    node.handle.stop().await;
}

/// Kills a process, and comes back when it is dead.
fn end(pid: u32) {
    let number = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let open = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty()).unwrap();
    kill(number.as_raw_nonzero().get());
    rustix::event::poll(&mut [PollFd::new(&open, PollFlags::IN)], None).unwrap();
}

#[tokio::test]
async fn nobody_misses_one_that_has_died() {
    let place = Place::new("missed");
    let node = place.start();
    // Before it belongs to a sandbox, and after.
    for already in [false, true] {
        let ahead = node.embryos(1).await;
        let made = if already { Some(node.sandbox("pod").await) } else { None };
        ahead.iter().for_each(|pid| end(*pid));
        let (sandbox, _sockets) = match made {
            Some(made) => made,
            None => node.sandbox("pod").await,
        };
        let (exit, _) = node.run(node.spec("a", &sandbox, &["exit", "7"])).await.unwrap();
        assert_eq!(exit.code, 7);
        node.handle.remove(&sandbox).await.unwrap();
    }
    node.handle.stop().await;
    place.assert_clean_after_next_start().await;
}

#[tokio::test]
async fn goes_with_its_sandbox() {
    let place = Place::new("unused");
    let node = place.start();
    let before: BTreeSet<u32> = node.embryos(1).await.into_iter().collect();
    let (sandbox, _sockets) = node.sandbox("pod").await;
    node.handle.remove(&sandbox).await.unwrap();
    let left: BTreeSet<u32> = waiting(spawner_pid(&node.options.directory)).into_iter().collect();
    assert!(left.is_disjoint(&before), "whoever waits for its removal has waited for it: {left:?}");
    assert!(before.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
    node.handle.stop().await;
    place.assert_clean_after_next_start().await;
}

#[tokio::test]
async fn goes_when_nobody_wants_it() {
    let place = Place::new("unwanted");
    let node = place.start();
    let spawner = spawner_pid(&node.options.directory);
    node.roots(3).await;
    node.handle.spare("others", 1, true).await.unwrap();
    node.handle.spare("tests", 0, false).await.unwrap();
    node.until("one waits", || waiting(spawner).len() == 1).await;
    node.handle.spare("others", 0, false).await.unwrap();
    node.until("none waits", || waiting(spawner).is_empty()).await;
    node.until("nothing is left", || node.uppers().is_empty()).await;
    node.handle.stop().await;
    place.assert_clean_after_next_start().await;
}

#[tokio::test]
async fn ends_with_a_spawner_that_is_killed() {
    let place = Place::new("killed");
    let node = place.start();
    node.roots(3).await;
    let (_sandbox, _sockets) = node.sandbox("pod").await;
    kill(place.spawner_pid());
    node.handle.gone().await;
    place.assert_clean_after_next_start().await;
}

#[tokio::test]
async fn a_start_that_fails_leaves_nothing_of_it() {
    let place = Place::new("fails");
    let node = place.start();
    node.embryos(1).await;
    let (sandbox, _sockets) = node.sandbox("pod").await;
    let mut spec = node.spec("a", &sandbox, &[]);
    spec.args = vec!["no-such-program".to_owned()];
    let (scratch, error) = (spec.scratch.clone(), node.run(spec).await.unwrap_err());
    assert!(error.to_string().contains("executable file not found"), "{error}");
    assert!(!scratch.exists());
    node.handle.stop().await;
    place.assert_clean_after_next_start().await;
}

#[tokio::test]
async fn dies_at_each_step() {
    let place = Place::new("step");
    // As long as it waits for nobody, and when it has been told.
    let ahead = ["Cgroup", "OomScore", "Join", "Devices", "Proc", "Sys"];
    let told = ["Root", "System", "Mount", "Pivot", "Streams", "Limits", "Capabilities", "Seccomp", "Exec"];
    for (step, waits) in ahead.iter().map(|step| (step, false)).chain(told.iter().map(|step| (step, true))) {
        let node = place.start_dying_at(&format!("instance:{step}"));
        if waits {
            node.embryos(1).await;
        } else {
            node.handle.spare("tests", 1, true).await.unwrap();
        }
        let (sandbox, _sockets) = node.sandbox("pod").await;
        let error = node.run(node.image_or_host(step, &sandbox)).await.unwrap_err();
        assert!(error.to_string().contains("ended before its program was executed"), "{step}: {error}");
        node.handle.stop().await;
    }
    place.assert_clean_after_next_start().await;
}
