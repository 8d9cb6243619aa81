//! `agentcube port-forward`: listens on this machine and carries each connection to a port of a Pod, over a WebSocket
//! of its own. A workload's Pod is chosen anew for each, so that forwarding outlives the Pods.

mod carry;
mod ports;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use crate::client::{Connection, Kind, Server, query};
use crate::environment::Environment;
use crate::exit::{Absent, Outcome, one_line, say};
use crate::output;
use crate::pods::{self, Target};
use ports::{Mapping, Port};

/// Connections that are carried at once; more wait.
const MOST_CONNECTIONS: usize = 512;
/// Before listening again, when this machine has no more room for connections.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube port-forward web-0 8080
  agentcube port-forward svc/web 8080:80      # port 80 of the Service, here as 8080
  agentcube port-forward deploy/web :http     # a port by name, here any free one

Of a workload or Service, each connection goes to a Pod that is ready. Ctrl-C ends it.")]
pub(crate) struct Arguments {
    /// A Pod, or KIND/NAME of what has Pods
    #[arg(value_name = "POD")]
    target: String,
    /// Ports by number or name; a LOCAL of 0, or nothing before the colon, is any free port
    #[arg(value_name = "[LOCAL:]REMOTE", required = true)]
    ports: Vec<Mapping>,
    /// Where to listen
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    #[command(flatten)]
    connection: Connection,
}

/// What connections go to.
struct Forward {
    server: Server,
    target: Target,
    room: Arc<Semaphore>,
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let server = arguments.connection.open(environment).await?;
    let target = Target::find(&server, &arguments.target).await?;
    let forward = Arc::new(Forward { server, target, room: Arc::new(Semaphore::new(MOST_CONNECTIONS)) });
    let pod = forward.pod().await?;
    let mut listeners = Vec::new();
    for mapping in &arguments.ports {
        let (wanted, remote) = forward.route(mapping, &pod)?;
        let number = ports::of_pod(&pod, &remote)?;
        let wanted = SocketAddr::new(arguments.address, wanted);
        let listener = TcpListener::bind(wanted).await.with_context(|| {
            format!(
                "cannot listen on {wanted} (:{} takes any free port)",
                mapping.remote.to_string().trim_matches('"')
            )
        })?;
        listeners.push((listener, remote, number));
    }
    for (listener, remote, number) in listeners {
        let line = format!("Forwarding from {} -> {number}\n", listener.local_addr()?);
        output::write(line.as_bytes())?;
        tokio::spawn(listen(listener, forward.clone(), remote));
    }
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(Outcome::Done)
}

async fn listen(listener: TcpListener, forward: Arc<Forward>, remote: Port) {
    loop {
        let Ok(room) = forward.room.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                say(&format!("error: cannot take a connection: {error}"));
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (forward, remote) = (forward.clone(), remote.clone());
        tokio::spawn(async move {
            if let Err(error) = forward.connect(stream, &remote).await {
                say(&format!("error: {}", one_line(&error)));
            }
            drop(room);
        });
    }
}

impl Forward {
    /// Where to listen, and the Pods' port. A Service's port leads where the Service says.
    fn route(&self, mapping: &Mapping, pod: &Value) -> anyhow::Result<(u16, Port)> {
        let (local, remote) = match &self.target {
            Target::Owner { object, called, .. } if object["kind"] == "Service" => {
                ports::of_service(object, called, &mapping.remote)?
            }
            _ => (ports::of_pod(pod, &mapping.remote)?, mapping.remote.clone()),
        };
        Ok((mapping.local.unwrap_or(local), remote))
    }

    /// The Pod that is named if it runs, else one that is ready.
    async fn pod(&self) -> anyhow::Result<Value> {
        let mut pods = self.target.pods(&self.server).await?.into_iter();
        match &self.target {
            Target::Owner { called, .. } => match pods.find(pods::is_ready) {
                Some(pod) => Ok(pod),
                None => Err(Absent(format!("{called} has no Pod that is ready")).into()),
            },
            Target::Pod(name) => match pods.next() {
                Some(pod) if pods::is_running(&pod) => Ok(pod),
                _ => bail!("pod/{name} does not run: `agentcube describe pod {name}` says why"),
            },
        }
    }

    async fn connect(&self, stream: TcpStream, remote: &Port) -> anyhow::Result<()> {
        let pod = self.pod().await?;
        let (name, port) = (pods::name(&pod), ports::of_pod(&pod, remote)?);
        let api: Api<Pod> = Api::namespaced(self.server.client(), &self.server.namespace);
        let mut forwarder = match api.portforward(name, &[port]).await {
            Ok(forwarder) => forwarder,
            Err(error) => {
                let path = Kind::pods().path(Some(&self.server.namespace), Some(name));
                let path = format!("{path}/portforward{}", query(&[("ports", Some(&port.to_string()))]));
                let what = format!("reach port {port} of pod/{name}");
                return Err(self.server.why_not_upgraded(&path, &what, error).await);
            }
        };
        let connection = forwarder.take_stream(port).context("a forwarded port has a stream")?;
        let refused = forwarder.take_error(port).context("a forwarded port has errors")?;
        let refused = async {
            match refused.await {
                Some(reason) => reason,
                // It ended without one.
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            reason = refused => bail!("port {port} of pod/{name}: {reason}"),
            ended = carry::carry(stream, connection) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, name, port, "a connection broke off");
                }
            }
        }
        Ok(())
    }
}
