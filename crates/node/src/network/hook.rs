//! The API server's `proxy` and `portforward`: connections to Pods and Services from the node.

use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;

use agentcube_apiserver::hooks::{Connect, Connection};
use agentcube_apiserver::status::Status;
use serde_json::Value;
use tokio::net::TcpStream;

use super::Network;

/// Answers for the Pods of this node.
pub struct PodConnect(pub Network);

type Answer = Pin<Box<dyn Future<Output = Result<Connection, Status>> + Send>>;

impl Connect for PodConnect {
    fn pod(&self, pod: Value, port: u16) -> Answer {
        let network = self.0.clone();
        Box::pin(async move {
            let address: Option<Ipv4Addr> = pod["status"]["podIP"].as_str().and_then(|ip| ip.parse().ok());
            let Some(address) = address else {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                return Err(Status::service_unavailable(format!("pod {name:?} has no address yet")));
            };
            answer(&format!("{address}:{port}"), network.connect(address, port).await)
        })
    }

    fn service(&self, service: Value, port: Value) -> Answer {
        let network = self.0.clone();
        Box::pin(async move {
            let text = |key: &str| service["metadata"][key].as_str().unwrap_or_default();
            let number = port["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or_default();
            let to = format!("{}:{number}", text("name"));
            answer(&to, network.connect_service(text("namespace"), text("name"), number).await)
        })
    }
}

fn answer(to: &str, connected: io::Result<TcpStream>) -> Result<Connection, Status> {
    match connected {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => {
            Err(Status::service_unavailable(format!("error trying to reach service: dial tcp {to}: {error}")))
        }
    }
}
