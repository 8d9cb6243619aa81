//! An API server in this process, with a node that pretends, and the program run against it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use agentcube_apiserver::{Handle, Server};
use agentcube_middleware::Controllers;
use agentcube_middleware::options::Settings;
use agentcube_operator::metrics::Registry;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::node;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_agentcube");

pub(crate) struct Said {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
}

impl Said {
    #[track_caller]
    pub(crate) fn well(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    /// What it printed, though it failed.
    #[track_caller]
    pub(crate) fn fails_with_output(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        self.stderr
    }
}

/// A home of its own: nothing of the user's is read or written.
pub(crate) struct Home(tempfile::TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.path().join("state/agentcube")
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.env_clear().env("HOME", self.path()).env("XDG_STATE_HOME", self.path().join("state"));
        command.current_dir(files()).args(args).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Said {
        finish(self.command(args), b"")
    }
}

/// Stops what a test that fails leaves running.
pub(crate) struct Background<'a>(pub(crate) &'a Home);

impl Drop for Background<'_> {
    fn drop(&mut self) {
        self.0.run(&["down", "--now"]);
    }
}

/// Where the manifests of the sessions are.
pub(crate) fn files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sessions/files")
}

pub(crate) fn finish(mut command: Command, input: &[u8]) -> Said {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child: Child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A program that does not read its input leaves the pipe broken, which is its right.
    let sending = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    sending.join().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { stdout: text(output.stdout), stderr: text(output.stderr), code: output.status.code() }
}

/// Controllers that run until this goes.
pub(crate) struct Middleware {
    stop: CancellationToken,
    running: tokio::task::JoinHandle<()>,
    runtime: tokio::runtime::Handle,
}

impl Middleware {
    pub(crate) fn stop(self) {
        self.stop.cancel();
        let Middleware { running, runtime, .. } = self;
        runtime.block_on(running).unwrap();
    }
}

/// A running server and a home whose kubeconfig leads to it.
pub(crate) struct Cluster {
    pub(crate) home: Home,
    pub(crate) address: String,
    // Dropped last: requests of the pretended node end with it.
    _server: Handle,
    runtime: tokio::runtime::Runtime,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let server = runtime.block_on(Server::builder().memory().start()).unwrap();
        server.server().api().set_hooks(node::hooks(runtime.handle().clone()));
        let home = Home::new();
        std::fs::create_dir(home.path().join(".kube")).unwrap();
        std::fs::write(home.path().join(".kube/config"), server.kubeconfig_yaml()).unwrap();
        Self { home, address: server.addr().to_string(), _server: server, runtime }
    }

    pub(crate) fn run(&self, args: &[&str]) -> Said {
        self.home.run(args)
    }

    /// Sends a request to the server, past the program.
    pub(crate) fn send(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Value {
        let _runtime = self.runtime.enter();
        let client = kube::Client::new(self._server.server().front(), "default");
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .body(body.to_string().into_bytes())
            .unwrap();
        self.runtime.block_on(client.request(request)).unwrap()
    }

    /// Starts the controllers of middleware, without agents to ask.
    pub(crate) fn middleware(&self, settings: Settings) -> Middleware {
        let _runtime = self.runtime.enter();
        let client = kube::Client::new(self._server.server().front(), "default");
        let agents = Arc::new(agentcube_middleware::agents::NoAgents);
        let options = agentcube_middleware::Options { settings, ..agentcube_middleware::Options::default() };
        let controllers = Controllers::new(client, agents, options, &Registry::new());
        let stop = CancellationToken::new();
        let running = self.runtime.spawn(controllers.run(stop.clone()));
        Middleware { stop, running, runtime: self.runtime.handle().clone() }
    }

    /// What a node would report of a Pod.
    pub(crate) fn report(&self, pod: &str, status: Value) {
        let path = format!("/api/v1/namespaces/default/pods/{pod}/status");
        self.send("PATCH", &path, "application/merge-patch+json", &serde_json::json!({"status": status}));
    }

    /// Puts a Pod on the pretended node.
    pub(crate) fn bind(&self, pod: &str) {
        let path = format!("/api/v1/namespaces/default/pods/{pod}/binding");
        let target = serde_json::json!({"apiVersion": "v1", "kind": "Node", "name": "here"});
        let binding = serde_json::json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target,
        });
        self.send("POST", &path, "application/json", &binding);
    }
}
