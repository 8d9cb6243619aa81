//! `agentcube fastpath`: the controllers of Sandboxes and SandboxPools, and the fast path, as a process of its own beside
//! a cluster's API server. Any number of them may run; one leads, and serves.

mod agents;
mod place;
mod serve;
mod timing;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use agentcube_api::GoDuration;
use agentcube_extproc::Tls;
use agentcube_operator::leader;
use agentcube_operator::metrics::Registry;
use agentcube_router::observe::admin::Ready;
use agentcube_sandbox::{Access, Controllers, Leading, OneToken, Options, PodFleet, PodOptions, Reviews};
use anyhow::Context;
use clap::Args;
use kube::Client;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::environment::Environment;
use crate::exit::{Outcome, Usage};
use crate::router::{say, shutdown};
use crate::sandbox_agent::read_token;
use crate::{admin, client, memory};
use agents::Agents;
use place::Held;
pub(crate) use place::identity;
use serve::Front;
use timing::Change;

/// What the Lease of the leader is called.
const LEASE: &str = "agentcube-fastpath";

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube fastpath --agent-token-file token --agent-image agentcube:0.1     # in a Pod, or beside `agentcube up`
  agentcube fastpath --kubeconfig ./kubeconfig --token-file clients --agent-token-file agents
  agentcube fastpath --listen 0.0.0.0:9100 --tls-cert tls.crt --tls-key tls.key --data-dir /var/lib/agentcube \\
      --agent-tls-cert agents.crt --agent-tls-key agents.key --agent-ca agents-ca.crt --agent-secret agents

Clients show the token of a user or service account, which the API server reviews; with --token-file they show that one.
Agents are Pods: `agentcube sandbox-agent`. More: docs/sandboxes.md.")]
pub(crate) struct Arguments {
    /// Where to listen for clients
    #[arg(long, default_value = "127.0.0.1:9100")]
    listen: SocketAddr,
    /// The certificate to show them; read anew when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Whoever shows this token may do everything; for API servers that review none
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The name of this process, for whoever looks who leads [default: the name of the machine]
    #[arg(long)]
    name: Option<String>,
    /// The operator's namespace, where the Lease of the leader is
    #[arg(short, long, default_value = "agentcube-system")]
    namespace: String,
    /// How long others wait for a leader that is silent. So long the leader goes on without the API server, less 10 s
    #[arg(long, value_name = "DURATION", default_value = "80s")]
    lease: GoDuration,
    /// A directory that one process uses at a time: who takes it over leads at once, without waiting for the Lease
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Write FAST creates to a log in the data directory before they are answered: they outlive this process and their
    /// agent, as long as no other data directory's process leads in between
    #[arg(long, requires = "data_dir")]
    wal: bool,
    #[command(flatten)]
    agents: Agents,
    /// How long a create waits for a new agent when all are full
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    wait_for_agent: GoDuration,
    #[command(flatten)]
    admin: admin::Arguments,
    /// Changes a time of the protocol, for tests: NAME=DURATION
    #[arg(long, value_name = "NAME=DURATION", hide = true)]
    timing: Vec<Change>,
    /// The kubeconfig [default: that of the Pod, $KUBECONFIG, the running `agentcube up`, ~/.kube/config]
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long, help_heading = "Connection")]
    context: Option<String>,
}

impl Arguments {
    fn tls(&self) -> anyhow::Result<Option<Tls>> {
        let (Some(certificate), Some(key)) = (self.tls_cert.clone(), self.tls_key.clone()) else {
            return Ok(None);
        };
        let tls = Tls { certificate, key, client_authorities: None };
        tls.check().context("--tls-cert or --tls-key")?;
        Ok(Some(tls))
    }

    fn access(&self, client: &Client) -> anyhow::Result<Arc<dyn Access>> {
        Ok(match &self.token_file {
            Some(path) => Arc::new(OneToken::new(&read_token(path)?)),
            None => Arc::new(Reviews::new(client.clone())),
        })
    }

    fn election(&self, held: Option<&Held>) -> anyhow::Result<leader::Options> {
        let machine = || rustix::system::uname().nodename().to_string_lossy().to_lowercase();
        let name = self.name.clone().unwrap_or_else(machine);
        let identity = held.map_or_else(|| place::identity(&name), |held| held.identity.clone());
        let mut options = leader::Options::new(&self.namespace, LEASE, &identity);
        options.predecessor = held.and_then(|held| held.predecessor.clone());
        let lease = std::time::Duration::from_secs(self.lease.to_std().as_secs());
        if lease < std::time::Duration::from_secs(3) {
            return Err(Usage("--lease: at least 3s, in whole seconds".into()).into());
        }
        options.lease_duration = lease;
        // The rest is for work to stop.
        let margin = (lease / 3).min(std::time::Duration::from_secs(10));
        options.renew_deadline = lease - margin;
        options.retry_period = (options.renew_deadline / 5).min(std::time::Duration::from_secs(2));
        Ok(options)
    }

    fn options(&self) -> Options {
        let mut options = Options { wait_for_agent: self.wait_for_agent.to_std(), ..Options::default() };
        self.timing.iter().for_each(|change| change.apply(&mut options.timing));
        options
    }
}

/// What a leader works with.
struct Work {
    client: Client,
    access: Arc<dyn Access>,
    pods: PodOptions,
    dial: agentcube_sandbox::Dial,
    options: Options,
    metrics: Registry,
    front: Front,
    /// Where the log is kept, if it is.
    log: Option<PathBuf>,
}

impl Work {
    /// Leads until the token is cancelled, and has then stopped.
    async fn lead(&self, stop: CancellationToken, handle: leader::Handle) -> anyhow::Result<()> {
        let term = handle.term();
        let log = self.log.as_deref().map(|path| place::log(path, term)).transpose()?;
        let leading = Leading::new(move || handle.is_leading());
        let fleet =
            PodFleet::start(self.client.clone(), self.pods.clone(), self.dial.clone(), stop.child_token());
        let Some(fleet) = stop.run_until_cancelled(fleet).await else { return Ok(()) };
        let options = Options { leading, term, log, ..self.options.clone() };
        let (client, access) = (self.client.clone(), self.access.clone());
        let controllers = Controllers::new(client, fleet, access, options, &self.metrics);
        let (service, ready) = (controllers.fastpath(), controllers.ready());
        let front = self.front.clone();
        let opening = tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            ready.await;
            front.open(service).await;
            say(&format!("leads in term {term}"));
        }));
        controllers.run(stop).await;
        let _ended = opening.await;
        self.front.close().await;
        Ok(())
    }
}

/// Runs until it is told to stop, or leads no longer.
pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let tls = arguments.tls()?;
    arguments.agents.check()?;
    let held =
        arguments.data_dir.as_deref().map(|path| Held::take(path, arguments.name.as_deref())).transpose()?;
    let election = arguments.election(held.as_ref())?;
    let shutdown = shutdown()?;
    let client =
        client::of_cluster(arguments.kubeconfig.clone(), arguments.context.clone(), environment).await?;
    let tokens = arguments.agents.tokens(&client, &arguments.namespace).await?;
    let metrics = Registry::new();
    let stop = CancellationToken::new();
    let admin = arguments.admin.bind(None).await?;
    tokio::spawn(memory::give_back());
    let listener = TcpListener::bind(arguments.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", arguments.listen))?;
    let address = listener.local_addr()?;
    let (front, serving) = serve::start(listener, tls, stop.clone())?;
    if let Some(admin) = admin {
        let front = front.clone();
        let ready: Ready = Arc::new(move || match front.is_open() {
            true => Ok(()),
            false => Err("it does not lead, so it does not serve".into()),
        });
        admin.serve(metrics.clone(), admin::no_sessions(), ready, stop.clone())?;
    }
    say(&format!("ready at {address}"));
    let work = Work {
        access: arguments.access(&client)?,
        pods: arguments.agents.pods(tokens.clone()),
        dial: arguments.agents.dial(tokens)?,
        options: arguments.options(),
        metrics,
        front,
        client: client.clone(),
        log: arguments.data_dir.clone().filter(|_| arguments.wal),
    };
    let failed = parking_lot::Mutex::new(None);
    // What was known is of no use to a process that led and leads no longer: it ends, and is started again.
    let over = shutdown.child_token();
    let leading = leader::lead_in_terms(client, election, over.clone(), async |stop, handle| {
        *failed.lock() = work.lead(stop, handle).await.err();
        over.cancel();
    });
    leading.await?;
    stop.cancel();
    serving.await.context("the server did not end well")?;
    drop(held);
    if let Some(error) = failed.into_inner() {
        return Err(error);
    }
    if shutdown.is_cancelled() {
        return Ok(Outcome::Done);
    }
    anyhow::bail!("another process may lead by now, so this one ends; start it again")
}
