//! The embedded API server as a test cluster: the only file that knows how it is started.

use agentcube_apiserver::{Handle, Server};
use anyhow::Result;

use crate::http_client::HttpClient;

/// A running embedded server.
pub struct Embedded {
    handle: Handle,
}

impl Embedded {
    /// Starts one with its storage in memory on a free port.
    pub async fn start() -> Result<Embedded> {
        Ok(Embedded { handle: Server::builder().memory().start().await? })
    }

    /// A client that trusts the server's certificate and holds its token.
    pub fn client(&self) -> Result<HttpClient> {
        HttpClient::new(self.handle.addr(), self.handle.ca_pem(), self.handle.token())
    }

    /// The kubeconfig that the server generated.
    pub fn kubeconfig(&self) -> String {
        self.handle.kubeconfig_yaml()
    }
}
