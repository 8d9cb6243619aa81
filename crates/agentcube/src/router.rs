//! `agentcube router`: finds the instance of every request for Envoys, as a process of its own beside a cluster's API
//! server. Any number of them may run.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::GoDuration;
use agentcube_api::labels::SUBJECT_HEADER;
use agentcube_extproc::{Front, Options, Tls, drain_for};
use agentcube_instance::reserve::{self, Reserver};
use agentcube_instance::timing::Timing;
use agentcube_instance::token;
use anyhow::Context;
use clap::Args;
use http::HeaderName;
use kube::{Client, Config};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::client::Connection;
use crate::environment::Environment;
use crate::exit::Outcome;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube router                          # in a Pod, or beside the running `agentcube up`
  agentcube router --kubeconfig ./kubeconfig --listen 127.0.0.1:9002
  agentcube router --listen 0.0.0.0:9002 --tls-cert tls.crt --tls-key tls.key --client-ca ca.crt

Envoy asks it by ext_proc, and tells it by its access log when requests have ended: docs/envoy.md.")]
pub(crate) struct Arguments {
    /// Where to listen for Envoys
    #[arg(long, default_value = "127.0.0.1:9002")]
    listen: SocketAddr,
    /// The certificate to show them; read anew when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Only Envoys with a certificate of these authorities may ask
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,
    /// The name of this router, which no other has at the same time [default: the name of the machine]
    #[arg(long)]
    name: Option<String>,
    /// The operator's namespace
    #[arg(short, long, default_value = "agentcube-system")]
    namespace: String,
    /// How long a request counts as being on its way after it was last heard of: some of Envoy's flush intervals
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    lease: GoDuration,
    /// How long to listen for the end of requests when told to stop [default: a little longer than --lease]
    #[arg(long, value_name = "DURATION")]
    drain: Option<GoDuration>,
    /// The header by which a service that Envoy asks for authorisation says who sends a request; Envoy has to take it
    /// away from clients
    #[arg(long, value_name = "NAME", default_value = SUBJECT_HEADER)]
    subject_header: HeaderName,
    /// The kubeconfig [default: that of the Pod, $KUBECONFIG, the running `agentcube up`, ~/.kube/config]
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long, help_heading = "Connection")]
    context: Option<String>,
}

impl Arguments {
    fn tls(&self) -> Option<Tls> {
        let (certificate, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(Tls { certificate, key, client_authorities: self.client_ca.clone() })
    }

    async fn client(&self, environment: &Environment) -> anyhow::Result<Client> {
        let named = self.kubeconfig.is_some() || self.context.is_some() || environment.kubeconfig.is_some();
        if !named && let Ok(config) = Config::incluster() {
            return Client::try_from(config).context("the API server of this Pod's cluster cannot be used");
        }
        let (kubeconfig, context) = (self.kubeconfig.clone(), self.context.clone());
        let connection = Connection { kubeconfig, context, namespace: None };
        Ok(connection.open(environment).await?.client())
    }
}

/// Runs until it is told to stop; then until requests on their way have ended.
pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    if let Some(tls) = arguments.tls() {
        tls.check().context("--tls-cert, --tls-key or --client-ca")?;
    }
    let shutdown = shutdown()?;
    let client = arguments.client(environment).await?;
    let namespace = arguments.namespace.clone();
    let keys = token::ensure_master_keys(client.clone(), &namespace).await;
    let keys = keys.with_context(|| format!("the keys for tokens, in namespace {namespace}"))?;
    let name = arguments
        .name
        .clone()
        .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().to_lowercase());
    let options = reserve::Options { name, namespace, keys, timing: Timing::default() };
    let reserver = Reserver::new(client.clone(), options);
    let limits = Options {
        lease: positive(arguments.lease),
        drain: arguments.drain.map_or_else(|| drain_for(positive(arguments.lease)), positive),
        subject_header: arguments.subject_header.clone(),
        tls: arguments.tls(),
        ..Options::default()
    };
    let front = Front::new(client, Arc::new(reserver.clone()), limits);
    let stop = CancellationToken::new();
    let reserving = tokio::spawn(reserver.clone().run(stop.clone()));
    tokio::select! {
        () = reserver.ready() => {}
        () = shutdown.cancelled() => {}
    }
    let listener = TcpListener::bind(arguments.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", arguments.listen))?;
    println!("ready at {}", listener.local_addr()?);
    // A closed pipe on standard output is no reason to stop serving.
    let _closed = std::io::stdout().flush();
    let holds = front.run(listener, shutdown).await;
    // Held until the reserver has stopped: others have to know that requests may still be on their way.
    stop.cancel();
    reserving.await.context("the router did not end well")?;
    drop(holds?);
    Ok(Outcome::Done)
}

fn positive(duration: GoDuration) -> Duration {
    duration.to_std().max(Duration::from_secs(1))
}

/// Cancelled by the first signal to stop.
fn shutdown() -> anyhow::Result<CancellationToken> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let shutdown = CancellationToken::new();
    let told = shutdown.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        told.cancel();
    });
    Ok(shutdown)
}
