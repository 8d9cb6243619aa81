//! The official clients and servers of MCP and A2A, in Python, through two gateways over one API server. Every request of
//! a client comes in by the other gateway than the one before. Each instance counts what reaches it, and each client
//! compares: a message that went astray is missing in the count, or is one too many elsewhere.

// What a test sets up itself is there, or the test has failed.
#![allow(clippy::unwrap_used, clippy::panic)]

// The gateway's tests use more of it.
#[allow(dead_code)]
#[path = "../gateway/replicas.rs"]
mod replicas;
#[allow(dead_code)]
#[path = "../gateway/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

use replicas::{Runs, World};

/// Where `cargo xtask setup` keeps the libraries.
const CACHED: &str = "protocols-mcp-2.3.0-a2a-1.3.0";
const LONG: std::time::Duration = std::time::Duration::from_secs(180);

/// The libraries; none if they are not here.
fn libraries() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || variable("HOME").unwrap_or_default().join(".cache");
    let cache = variable("AGENTCUBE_CACHE")
        .unwrap_or_else(|| variable("XDG_CACHE_HOME").unwrap_or_else(home).join("agentcube"));
    Some(cache.join(CACHED)).filter(|libraries| libraries.is_dir())
}

fn python(libraries: &Path, script: &str) -> Command {
    let mut command = Command::new("python3");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/protocols/python");
    command.arg("-B").arg(directory.join(script)).env("PYTHONPATH", libraries).env("NO_PROXY", "*");
    command
}

/// A world whose instances run a script.
async fn world(libraries: &Path, script: &'static str) -> World {
    let libraries = libraries.to_owned();
    World::with(move |name, address| {
        let mut program = python(&libraries, script);
        program.arg(name).arg(address.ip().to_string()).arg(address.port().to_string());
        program.stdout(Stdio::null()).stderr(Stdio::null());
        Runs::Program(program)
    })
    .await
}

/// Spreads connections over both gateways, in turn.
async fn spread(world: &World) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let ports = world.ports;
    tokio::spawn(async move {
        for turn in 0.. {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut gateway = TcpStream::connect((Ipv4Addr::LOCALHOST, ports[turn % 2])).await.unwrap();
            tokio::spawn(async move {
                // Either side may leave.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut gateway).await;
            });
        }
    });
    address
}

/// What the clients of a script say of their conversations.
async fn converse(libraries: &Path, script: &str, arguments: &[&str]) -> Vec<Value> {
    let mut client = python(libraries, script);
    let running =
        client.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).output();
    let output = tokio::time::timeout(LONG, running).await.expect("an end").unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script} {arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{script} {arguments:?}: {errors}"))
}

fn places(conversations: &[Value]) -> BTreeSet<&str> {
    conversations.iter().map(|one| one["at"].as_str().unwrap()).collect()
}

#[test]
fn the_libraries_are_here_where_nothing_may_be_skipped() {
    if libraries().is_none() {
        let strict = std::env::var("CI").is_ok_and(|value| value == "true");
        // Past the harness, which keeps what a passing test prints to itself.
        writeln!(
            std::io::stdout(),
            "SKIPPED: the official clients of MCP and A2A: `cargo xtask setup` gets them"
        )
        .unwrap();
        assert!(!strict, "the libraries of MCP and A2A are not installed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mcp_with_sessions() {
    let Some(libraries) = libraries() else { return };
    for session_ids in ["Shared", "Sealed"] {
        let world = world(&libraries, "mcp_agent.py").await;
        let mcp = json!({ "sessionIds": session_ids });
        world.task("tools", json!({ "protocol": "MCP", "mcp": mcp, "reserveTimeout": "2m" }), 2).await;
        let url = format!("http://{}/default/tools/mcp", spread(&world).await);
        // More clients than instances: those that come later get what others have given back.
        let said = converse(&libraries, "mcp_client.py", &[&url, "legacy", "4"]).await;
        // An instance that is not given back in time, since a stream of it is still open, is not used again.
        assert!(
            said.len() == 4 && (2..=4).contains(&world.started()),
            "{} started: {said:?}",
            world.started()
        );
        assert!(places(&said).len() >= 2, "{said:?}");
        assert!(said.iter().all(|one| one["version"] == "2025-11-25" && one["count"] == 16), "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mcp_without_sessions() {
    let Some(libraries) = libraries() else { return };
    let world = world(&libraries, "mcp_agent.py").await;
    let mcp = json!({ "sessionParam": "who" });
    world.task("tools", json!({ "protocol": "MCP", "mcp": mcp, "reserveTimeout": "2m" }), 4).await;
    let url = format!("http://{}/default/tools/mcp", spread(&world).await);
    let said = converse(&libraries, "mcp_client.py", &[&url, "auto", "3"]).await;
    assert_eq!(places(&said).len(), 3, "{said:?}");
    assert!(said.iter().all(|one| one["version"] == "2026-07-28" && one["count"] == 8), "{said:?}");
}

async fn a2a(binding: &str, version: &str) {
    let Some(libraries) = libraries() else { return };
    let world = world(&libraries, "a2a_agent.py").await;
    let path = if binding == "JSONRPC" { "/" } else { "/rest" };
    let card = json!({ "name": "counter", "version": "1", "capabilities": { "streaming": true },
        "supportedInterfaces": [{ "url": path, "protocolBinding": binding, "protocolVersion": version }] });
    let routing = json!({ "protocol": "A2A", "a2a": { "agentCard": card }, "reserveTimeout": "2m" });
    world.task("agent", routing, 3).await;
    let url = format!("http://{}/default/agent", spread(&world).await);
    let said = converse(&libraries, "a2a_client.py", &[&url, binding, version, "3"]).await;
    assert_eq!((places(&said).len(), world.started()), (3, 3), "{said:?}");
    assert!(said.iter().all(|one| one["count"] == 9), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a2a_by_json_rpc() {
    a2a("JSONRPC", "1.0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a2a_by_json_rpc_of_old() {
    a2a("JSONRPC", "0.3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a2a_by_rest() {
    a2a("HTTP+JSON", "1.0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a2a_by_rest_of_old() {
    a2a("HTTP+JSON", "0.3").await;
}
