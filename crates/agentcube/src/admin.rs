//! The port at which a process beside a cluster shows operators what it does: arguments that such commands share.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use agentcube_operator::metrics::Registry;
use agentcube_router::observe::admin::{self, Admin, Ready, Secret, Sessions};
use anyhow::Context;
use clap::Args;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::exit::Usage;
use crate::router::say;

#[derive(Args, Clone, Debug, Default)]
#[group(id = "admin_arguments")]
pub(crate) struct Arguments {
    /// Show operators /metrics here, and nodes /healthz and /readyz; anywhere but on loopback only with a token
    #[arg(long, value_name = "ADDRESS")]
    admin_listen: Option<SocketAddr>,
    /// The token that opens /debug/sessions, and on other addresses than loopback /metrics
    #[arg(long, value_name = "FILE", requires = "admin_listen")]
    admin_token_file: Option<PathBuf>,
}

/// A port that is bound and not served yet.
pub(crate) struct Bound {
    listener: TcpListener,
    token: Option<Secret>,
}

impl Arguments {
    /// Binds the port, if there is to be one. `made` is a token that somebody else has found.
    pub(crate) async fn bind(&self, made: Option<&str>) -> anyhow::Result<Option<Bound>> {
        let Some(address) = self.admin_listen else { return Ok(None) };
        let token = match (&self.admin_token_file, made) {
            (Some(path), _) => {
                let read = std::fs::read_to_string(path);
                let text = read.with_context(|| format!("cannot read {}", path.display()))?;
                let short = || format!("{} has to hold a token of 16 characters or more", path.display());
                Some(Secret::new(&text).with_context(short)?)
            }
            (None, Some(made)) => Secret::new(made),
            (None, None) if !admin::is_local(&address) => {
                let message =
                    format!("--admin-listen {address}: others can reach it, so give --admin-token-file");
                return Err(Usage(message).into());
            }
            (None, None) => None,
        };
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
        Ok(Some(Bound { listener, token }))
    }
}

impl Bound {
    /// Serves until the token is cancelled.
    pub(crate) fn serve(
        self,
        metrics: Registry,
        sessions: Sessions,
        ready: Ready,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        say(&format!("admin at {}", self.listener.local_addr()?));
        let admin = Admin { metrics, sessions, ready, token: self.token };
        tokio::spawn(admin.serve(self.listener, stop));
        Ok(())
    }
}

/// For processes that have no sessions to show.
pub(crate) fn no_sessions() -> Sessions {
    Arc::new(|_| Err("sessions are with the routers".to_owned()))
}
