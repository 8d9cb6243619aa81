//! `agentcube router`: finds the instance of every request for Envoys, as a process of its own beside a cluster's API
//! server. Any number of them may run.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agentcube_api::GoDuration;
use agentcube_api::labels::SUBJECT_HEADER;
use agentcube_extproc::{Front, Options, Tls, drain_for};
use agentcube_instance::reserve::{self, Reserver};
use agentcube_instance::timing::Timing;
use agentcube_instance::token;
use agentcube_operator::metrics::Registry;
use agentcube_router::observe::admin::{Ready, Sessions};
use agentcube_router::observe::{self, Hiding};
use anyhow::Context;
use clap::{Args, ValueEnum};
use http::HeaderName;
use kube::Client;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::environment::Environment;
use crate::exit::Outcome;
use crate::{access_log, admin, client, deny, memory};

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube router                          # in a Pod, or beside the running `agentcube up`
  agentcube router --kubeconfig ./kubeconfig --listen 127.0.0.1:9002
  agentcube router --listen 0.0.0.0:9002 --tls-cert tls.crt --tls-key tls.key --client-ca ca.crt
  agentcube router --admin-listen 0.0.0.0:9003 --admin-token-file token --access-log -

Envoy asks it by ext_proc, and tells it by its access log when requests have ended: docs/envoy.md. What can be seen of it:
docs/observability.md.")]
pub(crate) struct Arguments {
    /// Where to listen for Envoys
    #[arg(long, default_value = "127.0.0.1:9002")]
    listen: SocketAddr,
    /// Where to answer 503 to whatever comes: the back end of requests that have no instance
    #[arg(long, value_name = "ADDRESS")]
    deny_listen: Option<SocketAddr>,
    /// How Envoys are told the instance of a request
    #[arg(long, value_enum, default_value = "metadata")]
    pick: Pick,
    /// The certificate to show Envoys; read anew when it changes
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
    /// The address at which other routers reach this one, to tell it of requests that Envoys have told them of. Without it,
    /// what was told to another router ends here with its lease
    #[arg(long, value_name = "IP", conflicts_with = "tls_cert")]
    peer_ip: Option<IpAddr>,
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
    #[command(flatten)]
    access_log: access_log::Arguments,
    #[command(flatten)]
    admin: admin::Arguments,
    /// The kubeconfig [default: that of the Pod, $KUBECONFIG, the running `agentcube up`, ~/.kube/config]
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long, help_heading = "Connection")]
    context: Option<String>,
}

/// How Envoys are told the instance of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Pick {
    /// By metadata, which a cluster of type ORIGINAL_DST reads: no client can write it
    Metadata,
    /// By a header as well, for Envoy Gateway without patches
    Header,
}

impl Arguments {
    fn tls(&self) -> Option<Tls> {
        let (certificate, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(Tls { certificate, key, client_authorities: self.client_ca.clone() })
    }

    /// Gives requests their instances, and hides their sessions from whoever looks.
    async fn reserver(&self, client: Client, metrics: &Registry) -> anyhow::Result<(Reserver, Hiding)> {
        let namespace = self.namespace.clone();
        let keys = token::ensure_master_keys(client.clone(), &namespace).await;
        let keys = keys.with_context(|| format!("the keys for tokens, in namespace {namespace}"))?;
        let machine = || rustix::system::uname().nodename().to_string_lossy().to_lowercase();
        let name = self.name.clone().unwrap_or_else(machine);
        let hiding = Hiding::new(keys.hiding_key());
        let options = reserve::Options { name, namespace, keys, timing: Timing::default() };
        let reserver = Reserver::counted(client, options, metrics);
        if let Some(ip) = self.peer_ip.filter(|_| self.listen.port() != 0) {
            reserver.set_address((ip, self.listen.port()).into());
        }
        Ok((reserver, hiding))
    }
}

/// Runs until it is told to stop; then until requests on their way have ended.
pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    if let Some(tls) = arguments.tls() {
        tls.check().context("--tls-cert, --tls-key or --client-ca")?;
    }
    let admin = arguments.admin.bind(None).await?;
    let shutdown = shutdown()?;
    let (kubeconfig, context) = (arguments.kubeconfig.clone(), arguments.context.clone());
    let client = client::of_cluster(kubeconfig, context, environment).await?;
    let (metrics, stop) = (Registry::new(), CancellationToken::new());
    let (reserver, hiding) = arguments.reserver(client.clone(), &metrics).await?;
    let access_log = arguments.access_log.open(&hiding, &metrics)?;
    let limits = Options {
        lease: positive(arguments.lease),
        by_header: arguments.pick == Pick::Header,
        drain: arguments.drain.map_or_else(|| drain_for(positive(arguments.lease)), positive),
        subject_header: arguments.subject_header.clone(),
        tls: arguments.tls(),
        metrics: metrics.clone(),
        access_log: access_log.clone(),
        ..Options::default()
    };
    let front = Front::new(client, Arc::new(reserver.clone()), limits);
    let reserving = tokio::spawn(reserver.clone().run(stop.clone()));
    tokio::spawn(memory::give_back());
    let serves = Arc::new(AtomicBool::new(false));
    if let Some(admin) = admin {
        let (known, serves, stopping) = (reserver.clone(), serves.clone(), shutdown.clone());
        let sessions: Sessions = Arc::new(move |query| observe::sessions(&known, &hiding, query));
        let ready: Ready =
            Arc::new(move || match (serves.load(Ordering::Relaxed), stopping.is_cancelled()) {
                (_, true) => Err("it is stopping".into()),
                (false, _) => Err("it does not know all sessions yet".into()),
                (true, false) => Ok(()),
            });
        admin.serve(metrics, sessions, ready, stop.clone())?;
    }
    if let Some(address) = arguments.deny_listen {
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
        say(&format!("denies at {}", listener.local_addr()?));
        tokio::spawn(deny::serve(listener, stop.clone()));
    }
    tokio::select! {
        () = reserver.ready() => {}
        () = shutdown.cancelled() => {}
    }
    let listener = TcpListener::bind(arguments.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", arguments.listen))?;
    say(&format!("ready at {}", listener.local_addr()?));
    serves.store(true, Ordering::Relaxed);
    let holds = front.run(listener, shutdown).await;
    // Held until the reserver has stopped: others have to know that requests may still be on their way.
    stop.cancel();
    reserving.await.context("the router did not end well")?;
    drop(holds?);
    if let Some(log) = access_log {
        tokio::task::spawn_blocking(move || log.finish()).await.context("the access log did not end well")?;
    }
    Ok(Outcome::Done)
}

/// Tells where it listens. A closed standard output is no reason to stop serving.
pub(crate) fn say(line: &str) {
    let mut output = std::io::stdout();
    let _closed = writeln!(output, "{line}").and_then(|()| output.flush());
}

fn positive(duration: GoDuration) -> Duration {
    duration.to_std().max(Duration::from_secs(1))
}

/// Cancelled by the first signal to stop.
pub(crate) fn shutdown() -> anyhow::Result<CancellationToken> {
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
