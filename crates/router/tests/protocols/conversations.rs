//! Whole conversations of the official clients and servers of MCP and A2A, in Python. Each instance counts what reaches
//! it, and each client compares: a message that went astray is missing in the count, or is one too many elsewhere. For
//! every front the same.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::replicas::Runs;

/// Where `cargo xtask setup` keeps the libraries.
const CACHED: &str = "protocols-mcp-2.3.0-a2a-1.3.0";
const LONG: std::time::Duration = std::time::Duration::from_secs(180);

/// Two routers over one API server, and a way in.
pub(crate) trait Front {
    /// With instances made by `make`, which is told the name and the address of each.
    async fn start(make: impl Fn(&str, SocketAddr) -> Runs + Send + Sync + 'static) -> Self;

    /// Serves a Task, with so many instances at most. Says where; each connection there may be another router's.
    async fn serve(&mut self, name: &'static str, routing: Value, most: u32) -> SocketAddr;

    /// How many instances were ever started.
    fn started(&self) -> usize;
}

pub(crate) fn cache() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || variable("HOME").unwrap_or_default().join(".cache");
    variable("AGENTCUBE_CACHE")
        .unwrap_or_else(|| variable("XDG_CACHE_HOME").unwrap_or_else(home).join("agentcube"))
}

/// The libraries; none if they are not here.
pub(crate) fn libraries() -> Option<PathBuf> {
    Some(cache().join(CACHED)).filter(|libraries| libraries.is_dir())
}

/// Says that something is missing; fails where nothing may be skipped.
pub(crate) fn missing(what: &str) {
    let strict = std::env::var("CI").is_ok_and(|value| value == "true");
    // Past the harness, which keeps what a passing test prints to itself.
    let line = format!("SKIPPED: {what}: `cargo xtask setup` gets them\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
    assert!(!strict, "{what}: they are not installed");
}

fn python(libraries: &Path, script: &str) -> Command {
    let mut command = Command::new("python3");
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../router/tests/protocols/python"));
    command.arg("-B").arg(directory.join(script)).env("PYTHONPATH", libraries).env("NO_PROXY", "*");
    command
}

/// A front whose instances run a script.
async fn start<F: Front>(libraries: &Path, script: &'static str) -> F {
    let libraries = libraries.to_owned();
    F::start(move |name, address| {
        let mut program = python(&libraries, script);
        program.arg(name).arg(address.ip().to_string()).arg(address.port().to_string());
        program.stdout(Stdio::null()).stderr(Stdio::null());
        Runs::Program(program)
    })
    .await
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

pub(crate) async fn mcp_with_sessions<F: Front>(session_ids: &str) {
    let Some(libraries) = libraries() else { return };
    let mut front: F = start(&libraries, "mcp_agent.py").await;
    let mcp = json!({ "sessionIds": session_ids });
    let routing = json!({ "protocol": "MCP", "mcp": mcp, "reserveTimeout": "2m" });
    let url = format!("http://{}/default/tools/mcp", front.serve("tools", routing, 2).await);
    // More clients than instances: those that come later get what others have given back.
    let said = converse(&libraries, "mcp_client.py", &[&url, "legacy", "4"]).await;
    // An instance that is not given back in time, since a stream of it is still open, is not used again.
    let started = front.started();
    assert!(said.len() == 4 && (2..=4).contains(&started), "{started} started: {said:?}");
    assert!(places(&said).len() >= 2, "{said:?}");
    assert!(said.iter().all(|one| one["version"] == "2025-11-25" && one["count"] == 16), "{said:?}");
}

pub(crate) async fn mcp_without_sessions<F: Front>() {
    let Some(libraries) = libraries() else { return };
    let mut front: F = start(&libraries, "mcp_agent.py").await;
    let mcp = json!({ "sessionParam": "who" });
    let routing = json!({ "protocol": "MCP", "mcp": mcp, "reserveTimeout": "2m" });
    let url = format!("http://{}/default/tools/mcp", front.serve("tools", routing, 4).await);
    let said = converse(&libraries, "mcp_client.py", &[&url, "auto", "3"]).await;
    assert_eq!(places(&said).len(), 3, "{said:?}");
    assert!(said.iter().all(|one| one["version"] == "2026-07-28" && one["count"] == 8), "{said:?}");
}

pub(crate) async fn a2a<F: Front>(binding: &str, version: &str) {
    let Some(libraries) = libraries() else { return };
    let mut front: F = start(&libraries, "a2a_agent.py").await;
    let path = if binding == "JSONRPC" { "/" } else { "/rest" };
    let card = json!({ "name": "counter", "version": "1", "capabilities": { "streaming": true },
        "supportedInterfaces": [{ "url": path, "protocolBinding": binding, "protocolVersion": version }] });
    let routing = json!({ "protocol": "A2A", "a2a": { "agentCard": card }, "reserveTimeout": "2m" });
    let url = format!("http://{}/default/agent", front.serve("agent", routing, 3).await);
    let said = converse(&libraries, "a2a_client.py", &[&url, binding, version, "3"]).await;
    assert_eq!((places(&said).len(), front.started()), (3, 3), "{said:?}");
    assert!(said.iter().all(|one| one["count"] == 9), "{said:?}");
}

/// All of them through a front.
macro_rules! through {
    ($front:ty) => {
        #[test]
        fn the_libraries_are_here_where_nothing_may_be_skipped() {
            if conversations::libraries().is_none() {
                conversations::missing("the official clients of MCP and A2A");
            }
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn mcp_with_sessions() {
            conversations::mcp_with_sessions::<$front>("Shared").await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn mcp_with_sealed_sessions() {
            conversations::mcp_with_sessions::<$front>("Sealed").await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn mcp_without_sessions() {
            conversations::mcp_without_sessions::<$front>().await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a2a_by_json_rpc() {
            conversations::a2a::<$front>("JSONRPC", "1.0").await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a2a_by_json_rpc_of_old() {
            conversations::a2a::<$front>("JSONRPC", "0.3").await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a2a_by_rest() {
            conversations::a2a::<$front>("HTTP+JSON", "1.0").await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a2a_by_rest_of_old() {
            conversations::a2a::<$front>("HTTP+JSON", "0.3").await;
        }
    };
}
pub(crate) use through;
