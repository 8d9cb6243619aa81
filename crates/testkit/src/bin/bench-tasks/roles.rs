//! The processes that are measured, wired as the program wires them.

use std::path::Path;
use std::sync::Arc;

use agentcube_instance::lifecycle::{self, Limits, Manager};
use agentcube_instance::reserve::{self, Reserver};
use agentcube_instance::spec::{Config, Providers};
use agentcube_instance::timing::Timing;
use agentcube_instance::token::ensure_master_keys;
use agentcube_router::{Gateway, Tcp};
use agentcube_task::Controllers;
use anyhow::Result;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio_util::sync::CancellationToken;

pub(crate) const CONTROLLER: &str = "__controller";
pub(crate) const ROUTER: &str = "__router";
/// The operator's namespace.
pub(crate) const SYSTEM: &str = "agentcube-system";

pub(crate) async fn connect(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// The leader: the controllers of Tasks and the lifecycle manager.
pub(crate) async fn controller(kubeconfig: &Path) -> Result<()> {
    let client = connect(kubeconfig).await?;
    let shutdown = CancellationToken::new();
    ensure_master_keys(client.clone(), SYSTEM).await?;
    let providers = Providers::new(client.clone(), Config::default());
    let options = lifecycle::Options {
        namespace: SYSTEM.to_owned(),
        timing: Timing::default(),
        limits: Limits::default(),
    };
    let manager = Manager::new(client.clone(), options);
    let controllers =
        Controllers::new(client, Arc::new(providers.clone()), agentcube_task::Options::default());
    tokio::join!(
        providers.run(shutdown.clone()),
        manager.run(shutdown.clone()),
        controllers.run(shutdown.clone())
    );
    Ok(())
}

/// A router with the built-in gateway.
pub(crate) async fn router(kubeconfig: &Path) -> Result<()> {
    let client = connect(kubeconfig).await?;
    let shutdown = CancellationToken::new();
    let options = reserve::Options {
        name: "bench".to_owned(),
        namespace: SYSTEM.to_owned(),
        keys: ensure_master_keys(client.clone(), SYSTEM).await?,
        timing: Timing::default(),
    };
    let reserver = Reserver::new(client.clone(), options);
    let gateway =
        Gateway::new(client, Arc::new(reserver.clone()), Arc::new(Tcp), agentcube_router::Options::default());
    tokio::join!(reserver.run(shutdown.clone()), gateway.run(shutdown));
    Ok(())
}
