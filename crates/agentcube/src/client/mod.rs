//! The way to a Kubernetes API server: which one, as whom, in which namespace, and what it serves.

pub(crate) mod discovery;
mod error;
mod follow;
pub(crate) mod grpc;
pub(crate) mod kubeconfig;
mod server;

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

pub(crate) use discovery::{Discovery, Kind};
pub(crate) use error::Error;
pub(crate) use follow::Followed;
pub(crate) use server::{Server, escape, query};

use crate::environment::Environment;

/// Arguments that all commands which ask a server share.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// The kubeconfig [default: $KUBECONFIG, else the running `agentcube up`, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long)]
    pub(crate) context: Option<String>,
    /// The namespace to work in
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
}

impl Connection {
    pub(crate) async fn open(&self, environment: &Environment) -> anyhow::Result<Server> {
        let config = kubeconfig::resolve(self.kubeconfig.as_deref(), environment)?;
        let mut server = Server::connect(config, self.context.clone()).await?;
        if let Some(namespace) = &self.namespace {
            server.namespace.clone_from(namespace);
        }
        Ok(server)
    }
}

/// A client for what runs beside a cluster: in a Pod that of its own cluster, unless another is named.
pub(crate) async fn of_cluster(
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    environment: &Environment,
) -> anyhow::Result<kube::Client> {
    let named = kubeconfig.is_some() || context.is_some() || environment.kubeconfig.is_some();
    if !named && let Ok(config) = kube::Config::incluster() {
        return kube::Client::try_from(config).context("the API server of this Pod's cluster cannot be used");
    }
    let connection = Connection { kubeconfig, context, namespace: None };
    Ok(connection.open(environment).await?.client())
}
