//! Sessions: commands with what they print and how they exit, committed. `AGENTCUBE_RECORD=1 cargo test -p agentcube
//! --test cli sessions` writes them anew; a reader of the difference judges it.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use regex::Regex;
use serde_json::json;

use crate::cluster::{Cluster, files, finish};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sessions").join(format!("{name}.txt"))
}

/// What differs from run to run, by what it is replaced.
fn masked(text: &str, cluster: &Cluster) -> String {
    let mut text = text.replace(&cluster.address, "ADDRESS");
    text = text.replace(&cluster.home.path().display().to_string(), "HOME");
    for (pattern, mask) in [
        // Quoted or not, as its first character has it.
        (r#"uid: "?[0-9a-f-]{36}"?"#, "uid: UID"),
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
        (r#"(resourceVersion"?: )"\d+""#, "$1\"VERSION\""),
        (r"\b(\d+[ydhms]){1,2}\b", "AGE"),
        ("AGE {2,}", "AGE   "),
        (r"agentcube \d+\.\d+\.\d+", "agentcube VERSION"),
    ] {
        text = Regex::new(pattern).unwrap().replace_all(&text, mask).into_owned();
    }
    text
}

/// Runs each `$ command` of the file; a `< file` at its end is its input.
fn replay(name: &str, cluster: &Cluster) {
    let recorded = std::fs::read_to_string(path(name)).unwrap();
    let mut played = String::new();
    for line in recorded.lines() {
        if line.starts_with('#') {
            writeln!(played, "{line}").unwrap();
        }
        let Some(command) = line.strip_prefix("$ agentcube ") else { continue };
        let (words, input) = match command.split_once(" < ") {
            Some((words, file)) => (words, std::fs::read(files().join(file)).unwrap()),
            None => (command, Vec::new()),
        };
        let words: Vec<&str> = words.split_whitespace().collect();
        let said = finish(cluster.home.command(&words), &input);
        writeln!(played, "$ agentcube {command}").unwrap();
        played.push_str(&masked(&said.stdout, cluster));
        for line in masked(&said.stderr, cluster).lines() {
            writeln!(played, "! {line}").unwrap();
        }
        match said.code {
            Some(0) => {}
            code => writeln!(played, "[exit {}]", code.unwrap_or(-1)).unwrap(),
        }
        played.push('\n');
    }
    if std::env::var_os("AGENTCUBE_RECORD").is_some() {
        std::fs::write(path(name), played).unwrap();
    } else if played != recorded {
        let (line, (is, was)) = played
            .lines()
            .zip(recorded.lines().chain(std::iter::repeat("")))
            .enumerate()
            .find(|(_, (is, was))| is != was)
            .unwrap_or((0, ("the end", "more")));
        panic!("{name}.txt, line {}:\n  was: {was}\n  is:  {is}\n\n{played}", line + 1);
    }
}

#[test]
fn objects() {
    replay("objects", &Cluster::start());
}

#[test]
fn mistakes() {
    let cluster = Cluster::start();
    // Somebody else's, by another field manager.
    let path = "/api/v1/namespaces/default/configmaps/taken?fieldManager=somebody";
    let theirs = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "taken"}, "data": {"held": "theirs"}});
    cluster.send("PATCH", path, "application/apply-patch+yaml", &theirs);
    replay("mistakes", &cluster);
}

#[test]
fn pods() {
    let cluster = Cluster::start();
    cluster.run(&["apply", "-f", "pods.yaml"]).well();
    cluster.bind("one");
    cluster.bind("two");
    cluster.report(
        "one",
        json!({
            "phase": "Running",
            "conditions": [
                {"type": "Initialized", "status": "True"},
                {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "containers with unready status: [c]"},
            ],
            "containerStatuses": [{
                "name": "c", "ready": false, "restartCount": 2, "image": "host", "imageID": "",
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s restarting failed container"}},
                "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            }],
        }),
    );
    let pod = cluster.send("GET", "/api/v1/namespaces/default/pods/one", "application/json", &json!({}));
    for (name, reason, count) in [("one.1", "Scheduled", 1), ("one.2", "BackOff", 7)] {
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "one", "namespace": "default", "uid": pod["metadata"]["uid"]},
            "type": if count > 1 { "Warning" } else { "Normal" }, "reason": reason, "message": format!("{reason} happened"),
            "source": {"component": "node"}, "count": count,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": format!("2026-01-01T00:00:0{count}Z"),
        });
        cluster.send("POST", "/api/v1/namespaces/default/events", "application/json", &event);
    }
    replay("pods", &cluster);
}
