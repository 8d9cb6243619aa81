//! The sample agent as a process: talked to, and told to stop while it speaks.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cluster::Home;

fn start(home: &Home, more: &[&str]) -> (Child, String) {
    let args = [&["sample-agent", "--port", "0"], more].concat();
    let mut child = home.command(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim().rsplit_once(':').unwrap().1.to_owned();
    (child, port)
}

fn ask(home: &Home, port: &str, session: &str, message: &str) -> Value {
    let args = ["sample-agent", "--port", port, "--session", session, "--ask", message];
    serde_json::from_str(&home.run(&args).well()).unwrap()
}

#[test]
fn two_sessions_have_two_conversations() {
    let home = Home::new();
    let (mut child, port) = start(&home, &[]);
    assert_eq!(ask(&home, &port, "a", "I am Ada")["turn"], 1);
    assert_eq!(ask(&home, &port, "b", "I am Bob")["turn"], 1);
    let second = ask(&home, &port, "a", "who am I?");
    assert_eq!((&second["session"], &second["turn"]), (&"a".into(), &2.into()));
    assert!(second["message"].as_str().unwrap().contains("I am Ada"), "{second}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let told = home.run(&["sample-agent", "--port", &port, "--ask", "hello?"]).fails(1);
    assert!(told.contains("no agent listens"), "{told}");
}

#[test]
fn an_answer_that_was_begun_is_finished() {
    let home = Home::new();
    let (mut child, port) = start(&home, &["--word-delay", "100"]);
    let mut asking = home
        .command(&["sample-agent", "--port", &port, "--stream", "--ask", "a b c"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(asking.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("data: "));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let rest: Vec<String> = lines.collect();
    assert!(rest.contains(&"event: done".to_owned()), "{rest:?}");
    assert_eq!(asking.wait().unwrap().code(), Some(0));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
