//! What only others in the process can answer, behind traits that they fill: container logs, exec and connections to
//! Pods by the node, and what is counted.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::status::Status;

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

/// The options of `GET pods/x/log`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub container: Option<String>,
    pub follow: bool,
    pub previous: bool,
    pub timestamps: bool,
    pub tail_lines: Option<u64>,
    pub limit_bytes: Option<u64>,
    pub since_seconds: Option<u64>,
    pub since_time: Option<String>,
}

/// The options of `exec` and `attach`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecOptions {
    pub container: Option<String>,
    pub command: Vec<String>,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
    /// Join the running process instead of starting one.
    pub attach: bool,
}

/// One message between a client and a command in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecFrame {
    Stdin(Bytes),
    StdinClosed,
    Resize {
        columns: u16,
        rows: u16,
    },
    Stdout(Bytes),
    Stderr(Bytes),
    /// The last one: the `Status` that ends the session.
    Ended(Value),
}

/// The node's half of a session.
pub struct ExecSession {
    pub to_container: mpsc::Sender<ExecFrame>,
    pub from_container: mpsc::Receiver<ExecFrame>,
}

/// Reads the logs of a Pod's containers.
pub trait Logs: Send + Sync {
    /// Chunks of the log; the channel closes at its end.
    fn logs(&self, pod: Value, options: LogOptions) -> Answer<mpsc::Receiver<Bytes>>;
}

/// Runs commands in a Pod's containers.
pub trait Exec: Send + Sync {
    fn exec(&self, pod: Value, options: ExecOptions) -> Answer<ExecSession>;
}

/// A stream of bytes to a Pod.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}
pub type Connection = Box<dyn Duplex>;

/// Opens connections to Pods, for `proxy` and `portforward`.
pub trait Connect: Send + Sync {
    fn pod(&self, pod: Value, port: u16) -> Answer<Connection>;
    /// To one of the ready Pods behind this port of a Service (an entry of its `spec.ports`).
    fn service(&self, service: Value, port: Value) -> Answer<Connection>;
}

/// What was counted, in Prometheus' text format.
pub type Metrics = Arc<dyn Fn() -> String + Send + Sync>;

/// What somebody who looks for a mistake wants to see: a page below `/debug/`, by its name and its query. Nothing if there
/// is no such page; what is wrong with the query otherwise.
pub type Debug = Arc<dyn Fn(&str, Option<&str>) -> Option<Result<Value, String>> + Send + Sync>;

/// The body of a call of gRPC.
pub type GrpcBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// Answers calls of gRPC, which come in at the same socket and with the same token.
pub trait Grpc: Send + Sync {
    fn call(&self, request: Request<GrpcBody>) -> Pin<Box<dyn Future<Output = Response<GrpcBody>> + Send>>;
}

/// What has been filled in; empty until there is somebody to do it.
#[derive(Clone, Default)]
pub struct Hooks {
    pub logs: Option<Arc<dyn Logs>>,
    pub exec: Option<Arc<dyn Exec>>,
    pub connect: Option<Arc<dyn Connect>>,
    pub metrics: Option<Metrics>,
    pub debug: Option<Debug>,
    pub grpc: Option<Arc<dyn Grpc>>,
}
