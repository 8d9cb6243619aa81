//! What goes on until it is told to stop: watches, followed logs, broken pipes.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

use crate::cluster::Cluster;

fn start(cluster: &Cluster, args: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut child = cluster.home.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    (child, stdout)
}

fn line(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    line
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_watch_shows_what_is_there_and_then_every_change() {
    let cluster = Cluster::start();
    cluster.run(&["apply", "-f", "config.yaml"]).well();
    let (child, mut lines) = start(&cluster, &["get", "cm", "-w", "-l", "app=web"]);
    let words = |line: String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(line(&mut lines)), ["NAME", "DATA", "AGE"]);
    assert_eq!(words(line(&mut lines))[..2], ["settings", "2"]);
    cluster.run(&["apply", "-f", "config-changed.yaml"]).well();
    assert_eq!(words(line(&mut lines))[..2], ["settings", "2"]);
    cluster.run(&["delete", "cm", "settings"]).well();
    assert_eq!(words(line(&mut lines))[..2], ["settings", "2"]);
    end(child);

    let (child, mut lines) = start(&cluster, &["get", "cm/from-json", "-w", "-o", "name"]);
    cluster.run(&["apply", "-R", "-f", "nested"]).well();
    assert_eq!(line(&mut lines), "configmap/from-json\n", "only the one that was named");
    end(child);
}

#[test]
fn a_log_is_followed() {
    let cluster = Cluster::start();
    cluster.run(&["apply", "-f", "pods.yaml"]).well();
    cluster.bind("one");
    cluster.bind("two");
    let (child, mut lines) = start(&cluster, &["logs", "one", "-f", "--tail", "1"]);
    assert_eq!(line(&mut lines), "line 4 of c\n");
    end(child);
    let (child, mut lines) =
        start(&cluster, &["logs", "-f", "-l", "app=web", "--all-containers", "--tail", "1"]);
    let mut seen: Vec<String> = (0..3).map(|_| line(&mut lines)).collect();
    seen.sort();
    assert_eq!(seen, ["[one/c] line 4 of c\n", "[two/a] line 4 of a\n", "[two/b] line 4 of b\n"]);
    end(child);
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let cluster = Cluster::start();
    cluster.run(&["apply", "-f", "config.yaml"]).well();
    for args in [&["get", "cm", "-o", "yaml"][..], &["--help"], &["get", "--help"], &["completion", "bash"]] {
        let (mut child, lines) = start(&cluster, args);
        drop(lines);
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""), "{args:?}");
    }
}
