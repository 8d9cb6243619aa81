//! `agentcube janitor`: removes containers of sandboxes that nobody claims any more from the containerd of this machine.
//! One on each machine whose agents use containerd.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::GoDuration;
use agentcube_containerd::Inventory;
use agentcube_janitor::{Janitor, Options};
use agentcube_operator::metrics::Registry;
use anyhow::Context;
use clap::Args;
use tokio_util::sync::CancellationToken;

use crate::environment::Environment;
use crate::exit::{Outcome, Usage};
use crate::router::{say, shutdown};
use crate::{admin, client};

/// No create is on its way to the API server for longer, and no start takes longer.
const LEAST_GRACE: Duration = Duration::from_secs(120);

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube janitor                                    # in a Pod of a DaemonSet, with containerd's socket mounted
  agentcube janitor --containerd-namespace k8s.io --node $NODE_NAME
  agentcube janitor --kubeconfig ./kubeconfig --admin-listen 127.0.0.1:9004

It removes what has the labels of a sandbox and whose agent's Pod is gone; and what has ended, though its agent lives, and
has no Sandbox, or another of the same name. Each for as long as --grace, by answers of the API server: while that is out
of reach, nothing is removed. It needs to get Pods and Sandboxes, to list and watch Pods, and to create and patch Events.")]
pub(crate) struct Arguments {
    /// containerd's socket
    #[arg(long, value_name = "FILE", default_value = "/run/containerd/containerd.sock")]
    containerd: PathBuf,
    /// The namespace of containerd in which agents have their containers
    #[arg(long, value_name = "NAME", default_value = "agentcube")]
    containerd_namespace: String,
    /// How often to look, besides when the Pod of an agent is deleted
    #[arg(long, value_name = "DURATION", default_value = "2m")]
    interval: GoDuration,
    /// How long a container has to be nobody's before it is removed; at least 2m
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    grace: GoDuration,
    /// The name of this node, for Events
    #[arg(long)]
    node: Option<String>,
    #[command(flatten)]
    admin: admin::Arguments,
    /// The kubeconfig [default: that of the Pod, $KUBECONFIG, the running `agentcube up`, ~/.kube/config]
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long, help_heading = "Connection")]
    context: Option<String>,
}

impl Arguments {
    fn options(&self) -> anyhow::Result<Options> {
        let (interval, grace) = (self.interval.to_std(), self.grace.to_std());
        if interval.is_zero() {
            return Err(Usage("--interval has to be longer than nothing".into()).into());
        }
        if grace < LEAST_GRACE {
            let message = "--grace has to be 2m or more: a create may still be on its way to the API server";
            return Err(Usage(message.into()).into());
        }
        Ok(Options { interval, grace })
    }
}

/// Runs until it is told to stop.
pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let options = arguments.options()?;
    let admin = arguments.admin.bind(None).await?;
    let shutdown: CancellationToken = shutdown()?;
    let (kubeconfig, context) = (arguments.kubeconfig.clone(), arguments.context.clone());
    let client = client::of_cluster(kubeconfig, context, environment).await?;
    let containerd = agentcube_containerd::Options {
        namespace: arguments.containerd_namespace.clone(),
        ..agentcube_containerd::Options::new(&arguments.containerd, PathBuf::new())
    };
    let inventory = Inventory::new(&containerd)?;
    // Said at once: later it would only be a line in a log, every two minutes.
    let reached = inventory.labelled(agentcube_api::labels::RUNTIME_MANAGED, None).await;
    reached.with_context(|| format!("--containerd {}", arguments.containerd.display()))?;
    let metrics = Registry::new();
    let janitor = Janitor::new(client, inventory, options, &metrics);
    if let Some(admin) = admin {
        admin.serve(metrics, admin::no_sessions(), Arc::new(|| Ok(())), shutdown.clone())?;
    }
    say(&format!("looking at {} every {}", arguments.containerd.display(), arguments.interval));
    janitor.run(arguments.node, shutdown).await;
    Ok(Outcome::Done)
}
