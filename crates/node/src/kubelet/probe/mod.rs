//! Asks containers how they are: by HTTP, TCP, gRPC or a command. Also runs their lifecycle hooks, which ask the same
//! way. Connections go to the Pod's own address only, never to another host, and answers are read to a bound.

mod command;
mod grpc;
mod http;

use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use agentcube_runtime::{ContainerId, Runtime};
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::TcpStream;

use super::machine::{Verdict, seconds};
use crate::network::Network;

/// Opens connections to Pods.
pub(crate) trait Dial: Send + Sync {
    fn dial(
        &self,
        address: Ipv4Addr,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send + '_>>;
}

impl Dial for Network {
    fn dial(
        &self,
        address: Ipv4Addr,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send + '_>> {
        Box::pin(self.connect(address, port))
    }
}

/// A running container, and how to reach it.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) address: Ipv4Addr,
    pub(crate) id: ContainerId,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) env: Arc<Vec<(String, String)>>,
    pub(crate) dial: Arc<dyn Dial>,
}

/// One probe.
pub(crate) async fn probe(container: &Container, probe: &Probe, target: &Target) -> Verdict {
    let limit = seconds(probe.timeout_seconds.unwrap_or(1).max(1).into());
    let port = |port: &IntOrString| resolve(container, port).map_err(Verdict::Error);
    if let Some(exec) = &probe.exec {
        return command::probe(exec.command.as_deref().unwrap_or_default(), target, limit).await;
    }
    if let Some(get) = &probe.http_get {
        let port = match port(&get.port) {
            Ok(port) => port,
            Err(verdict) => return verdict,
        };
        return http::probe(get, port, target, limit).await;
    }
    if let Some(tcp) = &probe.tcp_socket {
        return match (port(&tcp.port), own_host(tcp.host.as_deref(), target.address)) {
            (Err(verdict), _) => verdict,
            (_, Err(message)) => Verdict::Failure(message),
            (Ok(port), Ok(())) => match connect(target, port, limit).await {
                Ok(_) => Verdict::Success,
                Err(message) => Verdict::Failure(message),
            },
        };
    }
    if let Some(call) = &probe.grpc {
        let Ok(port) = u16::try_from(call.port) else {
            return Verdict::Error(format!("invalid port number: {}", call.port));
        };
        return grpc::probe(call.service.as_deref().unwrap_or_default(), port, target, limit).await;
    }
    Verdict::Error("missing probe handler".to_owned())
}

/// One lifecycle hook. Whoever gives it less time than it needs drops the future.
pub(crate) async fn hook(
    container: &Container,
    hook: &LifecycleHandler,
    target: &Target,
) -> Result<(), String> {
    const LIMIT: Duration = Duration::from_secs(24 * 3600);
    if let Some(exec) = &hook.exec {
        let command = exec.command.as_deref().unwrap_or_default();
        return command::run(command, target, LIMIT).await.and_then(|(code, output)| match code {
            0 => Ok(()),
            code => Err(format!("command exited with {code}: {output:?}")),
        });
    }
    if let Some(get) = &hook.http_get {
        let port = resolve(container, &get.port)?;
        return http::get(get, port, target, LIMIT).await.map(drop);
    }
    if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(seconds(sleep.seconds)).await;
        return Ok(());
    }
    Err("invalid handler: it has no exec, httpGet or sleep".to_owned())
}

/// A port by its number, or by its name among the container's.
fn resolve(container: &Container, port: &IntOrString) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let ports = container.ports.as_deref().unwrap_or_default();
            let named = ports.iter().find(|port| port.name.as_deref() == Some(name));
            named.map(|port| port.container_port).or_else(|| name.parse().ok())
        }
    };
    match number.and_then(|number| u16::try_from(number).ok()).filter(|port| *port > 0) {
        Some(port) => Ok(port),
        None => Err(format!("couldn't find port: {port:?} in {:?}", container.name)),
    }
}

/// Probes of other hosts would let a Pod ask whatever the node reaches.
fn own_host(host: Option<&str>, address: Ipv4Addr) -> Result<(), String> {
    match host {
        None | Some("") => Ok(()),
        Some(host) if host == address.to_string() => Ok(()),
        Some(host) => {
            Err(format!("this node probes a Pod's own address only, not {host:?}; remove the host"))
        }
    }
}

async fn connect(target: &Target, port: u16, limit: Duration) -> Result<TcpStream, String> {
    let place = format!("{}:{port}", target.address);
    match tokio::time::timeout(limit, target.dial.dial(target.address, port)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(format!("dial tcp {place}: connect: {}", words(&error))),
        Err(_) => Err(format!("dial tcp {place}: i/o timeout")),
    }
}

/// An error without the number that Rust appends.
fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset by peer".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
