//! The console of `up`: on loopback, and with no rights of its own. Whoever has the kubeconfig has the token to log in by.

use std::net::{SocketAddr, TcpListener};

use anyhow::Context;
use kube::config::Kubeconfig;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::gateway::bind_by_habit;
use crate::console::{USUAL_PORT, make, of_kubeconfig, on_loopback};

/// Takes the wanted port; with port 0, that of the last run, the usual one, or any.
pub(super) fn bind(wanted: SocketAddr, last: Option<SocketAddr>) -> anyhow::Result<TcpListener> {
    on_loopback("--console-listen", wanted)?;
    bind_by_habit(wanted, last, USUAL_PORT).with_context(|| {
        format!("cannot listen on {wanted} for the console: choose another --console-listen")
    })
}

/// A console that runs.
pub(super) struct Console {
    address: SocketAddr,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Console {
    /// Serves the console of the API server that a kubeconfig names.
    pub(super) async fn start(listener: TcpListener, kubeconfig: &str) -> anyhow::Result<Console> {
        let kubeconfig = Kubeconfig::from_yaml(kubeconfig).context("our own kubeconfig cannot be read")?;
        let console = make(listener, of_kubeconfig(kubeconfig, None).await?, false)?;
        let address = console.address().context("the console's socket has no address")?;
        let stop = CancellationToken::new();
        Ok(Console { address, running: tokio::spawn(console.run(stop.clone())), stop })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.running.await {
            tracing::error!(%error, "the console did not end well");
        }
    }
}
