//! `agentcube controllers`: the controllers of Tasks and TaskGateways, their providers and the lifecycle manager, and those
//! of middleware and of front ends, as a process of its own beside a cluster's API server. Any number of them may run; one leads, and works.

use std::path::PathBuf;
use std::sync::Arc;

use agentcube_instance::lifecycle::{self, Limits};
use agentcube_instance::spec::{Config, Providers};
use agentcube_instance::timing::Timing;
use agentcube_instance::token;
use agentcube_middleware::remote::Remote;
use agentcube_operator::leader;
use agentcube_operator::metrics::Registry;
use agentcube_router::observe::admin::Ready;
use agentcube_task::{BUILT_IN_CLASS, Controllers, Envoy, Picking, RateLimits, ServicePort};
use anyhow::Context;
use clap::{Args, ValueEnum};
use futures_util::future::OptionFuture;
use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::environment::Environment;
use crate::exit::Outcome;
use crate::fastpath::identity;
use crate::router::{say, shutdown};
use crate::{admin, client, forge, memory, middleware};

/// What the Lease of the leader is called.
const LEASE: &str = "agentcube-controllers";

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube controllers --image agentcube:0.1                     # in a Pod
  agentcube controllers --envoy-gateway patch --gateway-class eg --kubeconfig ./kubeconfig
  agentcube controllers --config platform.yaml --admin-listen 127.0.0.1:9003
  agentcube controllers --middleware-config controllers.yaml --middleware-set group.rollingUpdate.interval=30s

`agentcube install` writes the Deployment that runs it, with its ServiceAccount and role. More:
docs/operations/install.md.")]
pub(crate) struct Arguments {
    /// The name of this process, for whoever looks who leads [default: the name of the machine]
    #[arg(long)]
    name: Option<String>,
    /// The operator's namespace: the Lease of the leader, the keys of tokens, the routers
    #[arg(short, long, default_value = "agentcube-system")]
    namespace: String,
    /// What the platform offers to Tasks, as YAML: isolations, runtimes of code bundles, kernels and so on
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The image that this program is in, for Pods that fetch code
    #[arg(long)]
    image: Option<String>,
    #[command(flatten)]
    envoy: EnvoyArguments,
    #[command(flatten)]
    middleware: middleware::Arguments,
    #[command(flatten)]
    forge: forge::Arguments,
    #[command(flatten)]
    admin: admin::Arguments,
    /// Take the token of --admin-listen from this Secret of the operator's namespace, and make it if there is none
    #[arg(long, value_name = "NAME", requires = "admin_listen", conflicts_with = "admin_token_file")]
    admin_token_secret: Option<String>,
    /// The kubeconfig [default: that of the Pod, $KUBECONFIG, the running `agentcube up`, ~/.kube/config]
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long, help_heading = "Connection")]
    context: Option<String>,
}

/// The way into Envoy Gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// By an EnvoyPatchPolicy, which its configuration has to enable
    Patch,
    /// By what every Envoy Gateway offers; weaker (docs/operations/install.md)
    Plain,
    /// There is none
    None,
}

impl Way {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Way::Patch => "patch",
            Way::Plain => "plain",
            Way::None => "none",
        }
    }
}

/// Who counts requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Counting {
    /// Envoy Gateway's rate limit service, for all proxies together
    Service,
    /// Each proxy by itself
    Proxy,
}

impl Counting {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Counting::Service => "service",
            Counting::Proxy => "proxy",
        }
    }
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Envoy Gateway")]
struct EnvoyArguments {
    /// How Envoy is told the instance of a request
    #[arg(long, value_enum, default_value = "none")]
    envoy_gateway: Way,
    /// The class of TaskGateways that name none
    #[arg(long, value_name = "NAME", default_value = BUILT_IN_CLASS)]
    gateway_class: String,
    /// The namespace of Envoy's Pods: only these may connect to sandboxes [default: nobody but nodes may]
    #[arg(long, value_name = "NAME")]
    gateway_namespace: Option<String>,
    /// The Service of the routers, in the operator's namespace
    #[arg(long, value_name = "NAME:PORT", default_value = "agentcube-router:9002", value_parser = service_port)]
    router_service: (String, i32),
    /// The Service that refuses what was not picked, there too
    #[arg(long, value_name = "NAME:PORT", default_value = "agentcube-deny:8080", value_parser = service_port)]
    deny_service: (String, i32),
    /// Who counts requests for rate limits
    #[arg(long, value_enum, default_value = "service")]
    rate_limits: Counting,
    /// Gateways have an EnvoyProxy of their class, which sends its access log to the routers
    #[arg(long)]
    no_access_log: bool,
}

fn service_port(text: &str) -> Result<(String, i32), String> {
    let wrong = || format!("{text:?} is no Service and port: write it like agentcube-router:9002");
    let (name, port) = text.split_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
    if name.is_empty() { Err(wrong()) } else { Ok((name.to_owned(), port.into())) }
}

impl Arguments {
    fn tasks(&self) -> agentcube_task::Options {
        let service = |(name, port): &(String, i32)| ServicePort {
            namespace: self.namespace.clone(),
            name: name.clone(),
            port: *port,
        };
        let picking = match self.envoy.envoy_gateway {
            Way::Patch => Some(Picking::PatchPolicy),
            Way::Plain => Some(Picking::Header),
            Way::None => None,
        };
        let envoy = picking.map(|picking| Envoy {
            ext_proc: service(&self.envoy.router_service),
            placeholder: service(&self.envoy.deny_service),
            picking,
            rate_limits: match self.envoy.rate_limits {
                Counting::Service => RateLimits::Service,
                Counting::Proxy => RateLimits::PerProxy,
            },
            access_log: !self.envoy.no_access_log,
        });
        agentcube_task::Options {
            gateway_class: self.envoy.gateway_class.clone(),
            envoy,
            ..agentcube_task::Options::default()
        }
    }

    fn config(&self) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            None => Config::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.with_context(|| format!("cannot read {}", path.display()))?;
                serde_saphyr::from_str(&text).with_context(|| path.display().to_string())?
            }
        };
        config.namespace.clone_from(&self.namespace);
        if let Some(image) = &self.image {
            config.program.image.clone_from(image);
        }
        if let Some(namespace) = &self.envoy.gateway_namespace {
            config.gateway_peers.push(of_namespace(namespace));
        }
        Ok(config)
    }

    /// Agents in Pods are to know these controllers from other Pods.
    fn middleware(&self) -> anyhow::Result<Option<agentcube_middleware::Options>> {
        let mut peer = of_namespace(&self.namespace);
        peer.pod_selector = Some(LabelSelector {
            match_labels: Some([("app.kubernetes.io/name".to_owned(), LEASE.to_owned())].into()),
            ..LabelSelector::default()
        });
        self.middleware.options(&self.namespace, vec![peer])
    }

    fn election(&self) -> leader::Options {
        let machine = || rustix::system::uname().nodename().to_string_lossy().to_lowercase();
        let name = self.name.clone().unwrap_or_else(machine);
        leader::Options::new(&self.namespace, LEASE, &identity(&name))
    }

    async fn admin_token(&self, client: &Client) -> anyhow::Result<Option<String>> {
        let Some(name) = &self.admin_token_secret else { return Ok(None) };
        Ok(Some(token::ensure_token(client.clone(), &self.namespace, name).await?))
    }
}

/// All Pods of a namespace.
fn of_namespace(name: &str) -> NetworkPolicyPeer {
    let labels = [("kubernetes.io/metadata.name".to_owned(), name.to_owned())].into();
    let selector = LabelSelector { match_labels: Some(labels), ..LabelSelector::default() };
    NetworkPolicyPeer { namespace_selector: Some(selector), ..NetworkPolicyPeer::default() }
}

/// What a leader works with.
struct Work {
    client: Client,
    config: Config,
    tasks: agentcube_task::Options,
    middleware: Option<agentcube_middleware::Options>,
    forge: Option<agentcube_forge::Options>,
    namespace: String,
    metrics: Registry,
}

impl Work {
    /// Works until the token is cancelled, and has then stopped: first what writes, last what it reads from.
    async fn lead(&self, stop: CancellationToken, term: u64) -> anyhow::Result<()> {
        let keys = token::ensure_master_keys(self.client.clone(), &self.namespace);
        let Some(keys) = stop.run_until_cancelled(keys).await else { return Ok(()) };
        keys.with_context(|| format!("the keys for tokens, in namespace {}", self.namespace))?;
        let providers = Providers::new(self.client.clone(), self.config.clone());
        let provider = Arc::new(providers.clone());
        let controllers =
            Controllers::counted(self.client.clone(), provider, self.tasks.clone(), &self.metrics);
        let options = lifecycle::Options {
            namespace: self.namespace.clone(),
            timing: Timing::default(),
            limits: Limits::default(),
        };
        let lifecycle = lifecycle::Manager::counted(self.client.clone(), options, &self.metrics);
        let after = CancellationToken::new();
        let providing = tokio::spawn(providers.run(after.clone()));
        say(&format!("leads in term {term}"));
        let middleware = self.middleware.clone().map(|options| {
            let (client, agents) = (self.client.clone(), Arc::new(Remote::default()));
            agentcube_middleware::Controllers::new(client, agents, options, &self.metrics).run(stop.clone())
        });
        let forge = self.forge.clone().map(|options| {
            agentcube_forge::Controllers::new(self.client.clone(), options, &self.metrics).run(stop.clone())
        });
        let (middleware, forge) = (OptionFuture::from(middleware), OptionFuture::from(forge));
        tokio::join!(lifecycle.run(stop.clone()), controllers.run(stop), middleware, forge);
        after.cancel();
        providing.await.context("the providers did not end well")
    }
}

/// Runs until it is told to stop, or leads no longer.
pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let (config, election) = (arguments.config()?, arguments.election());
    let middleware = arguments.middleware()?;
    let shutdown = shutdown()?;
    let (kubeconfig, context) = (arguments.kubeconfig.clone(), arguments.context.clone());
    let client = client::of_cluster(kubeconfig, context, environment).await?;
    let (metrics, stop) = (Registry::new(), CancellationToken::new());
    let made = arguments.admin_token(&client).await?;
    if let Some(admin) = arguments.admin.bind(made.as_deref()).await? {
        let stopping = shutdown.clone();
        // Who stands by is ready as well: it takes over within seconds.
        let ready: Ready = Arc::new(move || match stopping.is_cancelled() {
            true => Err("it is stopping".into()),
            false => Ok(()),
        });
        admin.serve(metrics.clone(), admin::no_sessions(), ready, stop.clone())?;
    }
    let leading = metrics.gauge("agentcube_controllers_leading", "Whether this process leads: 1, or 0.", &[]);
    let leading = leading.with(&[]);
    tokio::spawn(memory::give_back());
    let program = &config.program;
    let forge = arguments.forge.options(&client, &arguments.namespace, &program.image, &program.path).await?;
    let work = Work {
        client: client.clone(),
        config,
        tasks: arguments.tasks(),
        middleware,
        forge,
        namespace: arguments.namespace.clone(),
        metrics,
    };
    say("stands for election");
    let failed = parking_lot::Mutex::new(None);
    // What was known is of no use to a process that led and leads no longer: it ends, and is started again.
    let over = shutdown.child_token();
    let elected = leader::lead_in_terms(client, election, over.clone(), async |stop, handle| {
        leading.set(1);
        *failed.lock() = work.lead(stop, handle.term()).await.err();
        leading.set(0);
        over.cancel();
    });
    elected.await?;
    stop.cancel();
    if let Some(error) = failed.into_inner() {
        return Err(error);
    }
    if shutdown.is_cancelled() {
        return Ok(Outcome::Done);
    }
    anyhow::bail!("another process may lead by now, so this one ends; start it again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_named_with_their_port() {
        assert_eq!(service_port("agentcube-router:9002"), Ok(("agentcube-router".into(), 9002)));
        for wrong in ["", "agentcube-router", ":9002", "agentcube-router:", "agentcube-router:0"] {
            assert!(service_port(wrong).is_err(), "{wrong}");
        }
    }
}
