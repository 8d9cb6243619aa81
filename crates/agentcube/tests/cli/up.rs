//! `up`, `status` and `down` as processes: starting, meeting each other, ending in every way.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use crate::cluster::{Background, Home};

fn status(home: &Home) -> Value {
    let said = home.run(&["status", "-o", "json"]);
    let status: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(said.code, Some(if status["running"] == true { 0 } else { 3 }), "{status}");
    status
}

fn pid(status: &Value) -> Pid {
    Pid::from_raw(i32::try_from(status["pid"].as_i64().unwrap()).unwrap()).unwrap()
}

/// Kills a process, and returns when it is gone.
fn kill(pid: Pid) {
    let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    pidfd_send_signal(&process, Signal::KILL).unwrap();
    poll(&mut [PollFd::new(&process, PollFlags::IN)], None).unwrap();
}

#[test]
fn a_life_in_the_background() {
    let home = Home::new();
    let _background = Background(&home);
    assert_eq!(status(&home)["running"], false);
    let banner = home.run(&["up", "--detach"]).well();
    let first = status(&home);
    let address = first["address"].as_str().unwrap();
    assert!(banner.contains("AgentCube is ready") && banner.contains(address), "{banner}");
    assert!(banner.contains("agentcube down\n") && banner.contains("agentcube get pods\n"), "{banner}");
    assert_eq!((&first["phase"], &first["pods"]), (&"ready".into(), &serde_json::json!({})));
    let memory = |key: &str| first["memory"][key].as_u64().unwrap();
    assert!(memory("ownBytes") > 1 << 20 && memory("totalBytes") > memory("ownBytes"), "{first}");
    assert_eq!(memory("processes"), 2, "itself, and what starts Pods");
    let mode = |name: &str| home.data_dir().join(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("kubeconfig"), mode("up.log"), mode("")), (0o600, 0o600, 0o700));
    assert!(!home.path().join(".kube").exists(), "nothing else is touched");

    // Found without being told where, and it knows our own kinds.
    home.run(&["apply", "-f", "config.yaml"]).well();
    assert!(home.run(&["get", "crds", "-o", "name"]).well().contains("tasks.agentcube.io"));
    home.run(&["sessions"]).well();
    for args in [&["sessions", "nobody"][..], &["sessions", "nobody", "-A"]] {
        let told = home.run(args).fails(3);
        assert!(told.contains("nobody") && told.lines().count() == 1, "{told}");
    }
    let text = home.run(&["status"]).well();
    assert!(text.contains("ready for") && text.contains(address), "{text}");

    for args in [&["up"][..], &["up", "--detach"], &["up", "--memory"]] {
        let told = home.run(args).fails(1);
        assert!(told.contains(&format!("process {}", first["pid"])) && told.lines().count() == 1, "{told}");
    }
    assert_eq!(status(&home)["pid"], first["pid"], "the first still runs");

    assert!(home.run(&["down"]).well().contains("has stopped"));
    let log = std::fs::read_to_string(home.data_dir().join("up.log")).unwrap();
    assert!(log.contains(" ready ") && log.contains("stopping") && !log.contains('\x1b'), "{log}");
    assert_eq!(status(&home)["running"], false);
    let told = home.run(&["down"]).fails(3);
    assert!(told.contains("does not run"), "{told}");

    // Again, where it was, with what it had; this time it is killed.
    home.run(&["up", "--detach"]).well();
    let second = status(&home);
    assert_eq!(second["address"], first["address"]);
    assert_eq!(home.run(&["get", "cm", "settings", "-o", "name"]).well(), "configmap/settings\n");
    kill(pid(&second));
    home.run(&["up", "--detach"]).well();
    assert_eq!(home.run(&["get", "cm", "settings", "-o", "name"]).well(), "configmap/settings\n");
    home.run(&["down", "--now"]).well();
    assert_eq!(status(&home)["running"], false);
}

#[test]
fn a_life_in_the_foreground() {
    let home = Home::new();
    let kubectl = home.path().join("kubectl-config");
    std::fs::write(&kubectl, "current-context: mine\ncontexts: [{name: mine, context: {}}]\n").unwrap();
    let data = home.path().join("data").display().to_string();
    // Taken by somebody else: the port of the last run is not insisted on.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(format!("{data}/address"), taken.local_addr().unwrap().to_string()).unwrap();
    let mut child = home
        .command(&["up", "--memory", "--merge-kubeconfig", "--data-dir", &data])
        .env("KUBECONFIG", &kubectl)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let banner: Vec<String> =
        lines.by_ref().map(Result::unwrap).take_while(|line| !line.contains("stop:")).collect();
    assert!(banner.join("\n").contains("in memory"), "{banner:?}");
    let merged = std::fs::read_to_string(&kubectl).unwrap();
    assert!(merged.contains("current-context: mine") && merged.contains("name: agentcube"), "{merged}");
    let kubeconfig = format!("{data}/kubeconfig");
    home.run(&["get", "ns", "default", "--kubeconfig", &kubeconfig]).well();
    home.run(&["status", "--data-dir", &data]).well();
    home.run(&["status"]).code.filter(|code| *code == 3).expect("another data directory is another matter");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "a stop that was asked for is no failure");
    home.run(&["status", "--data-dir", &data]).fails(3);
    drop(taken);
}

#[test]
fn what_keeps_it_from_starting_is_told() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for args in
        [&["up", "--memory", "--listen", &address][..], &["up", "--memory", "--detach", "--listen", &address]]
    {
        let told = home.run(args).fails(1);
        assert!(told.contains(&format!("cannot listen on {address}")) && told.lines().count() == 1, "{told}");
    }
    let file = home.path().join("a-file");
    std::fs::write(&file, "").unwrap();
    let told = home.run(&["up", "--data-dir", &file.display().to_string()]).fails(1);
    assert!(told.contains("a-file") && told.lines().count() == 1, "{told}");
    assert_eq!(status(&home)["running"], false);
}
