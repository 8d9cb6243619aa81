//! The parts that `up` runs, started in order and stopped in the reverse order.

use std::net::SocketAddr;
use std::path::PathBuf;

use agentcube_apiserver::{Handle, Server};
use anyhow::Context;

use super::definitions;

/// Everything that runs.
pub(super) struct Cluster {
    apiserver: Handle,
}

impl Cluster {
    /// Starts the parts; without a directory, objects live in memory.
    pub(super) async fn start(storage: Option<PathBuf>, listen: SocketAddr) -> anyhow::Result<Self> {
        let builder = Server::builder().listen(listen);
        let builder = match storage {
            Some(path) => builder.data_dir(path),
            None => builder.memory(),
        };
        let apiserver = builder.start().await.context("cannot start the API server")?;
        let client = kube::Client::new(apiserver.server().front(), "default");
        definitions::install(&client).await.context("cannot install the definitions of AgentCube's kinds")?;
        Ok(Self { apiserver })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.apiserver.addr()
    }

    pub(super) fn kubeconfig(&self) -> String {
        self.apiserver.kubeconfig_yaml()
    }

    /// Lets what is under way come to its end.
    pub(super) async fn stop(self) {
        self.apiserver.shutdown().await;
    }
}
