//! `agentcube router` as a process: what it shows to operators, and to nobody else.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use serde_json::json;

use crate::cluster::Cluster;

const TOKEN: &str = "0123456789abcdef-token";

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(address: &str, path: &str, token: Option<&str>) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let shown = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\n{shown}connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn operators_see_sessions_with_the_token_only() {
    let cluster = Cluster::start();
    let namespace = json!({ "metadata": { "name": "agentcube-system" } });
    cluster.send("POST", "/api/v1/namespaces", "application/json", &namespace);
    let file = cluster.home.path().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let file = file.display().to_string();
    let args =
        ["router", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--admin-token-file", &file];
    let child = cluster.home.command(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child);
    let mut said = String::new();
    let mut output = BufReader::new(running.0.stdout.take().unwrap());
    output.read_line(&mut said).unwrap();
    let address = said.trim().strip_prefix("admin at ").expect("it says where");

    let metrics = get(address, "/metrics", None);
    assert!(
        metrics.starts_with("HTTP/1.1 200") && metrics.contains("# TYPE agentcube_sessions gauge"),
        "{metrics}"
    );
    for token in [None, Some("wrong"), Some("0123456789abcdef-tokeN")] {
        let answer = get(address, "/debug/sessions", token);
        assert!(answer.starts_with("HTTP/1.1 401") && !answer.contains("sessions\""), "{answer}");
    }
    let answer = get(address, "/debug/sessions", Some(TOKEN));
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("{\"sessions\":[]}\n"), "{answer}");
    assert!(get(address, "/debug/sessions?limit=0", Some(TOKEN)).starts_with("HTTP/1.1 400"));
}

#[test]
fn others_are_not_let_in_without_a_token() {
    let cluster = Cluster::start();
    let told = cluster.run(&["router", "--admin-listen", "0.0.0.0:0"]).fails(2);
    assert!(told.contains("--admin-token-file") && told.lines().count() == 1, "{told}");
    let file = cluster.home.path().join("short");
    std::fs::write(&file, "short").unwrap();
    let file = file.display().to_string();
    let told =
        cluster.run(&["router", "--admin-listen", "127.0.0.1:0", "--admin-token-file", &file]).fails(1);
    assert!(told.contains("16 characters"), "{told}");
}
