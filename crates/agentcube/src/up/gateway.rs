//! Where `up` takes requests for Tasks in: a socket that is bound before anything else starts, the class of the built-in
//! gateway, and the TaskGateway `default` that stands for the socket.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use agentcube_api::TaskGateway;
use agentcube_api::agentcube::routing::DEFAULT_GATEWAY;
use agentcube_instance::Endpoint;
use agentcube_node::network::Network;
use agentcube_router::{CONTROLLER, Connect};
use agentcube_task::BUILT_IN_CLASS;
use anyhow::Context;
use futures_util::future::BoxFuture;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;

/// Tried first when any port will do.
const USUAL_PORT: u16 = 8090;
const NAMESPACE: &str = "default";
const LISTENER: &str = "http";
/// Says that the port of the TaskGateway is ours to change.
const MADE_BY: &str = "agentcube.io/made-by";
const US: &str = "agentcube-up";

/// Takes the wanted port; with port 0, that of the last run, the usual one, or any.
pub(super) fn bind(wanted: SocketAddr, last: Option<SocketAddr>) -> anyhow::Result<TcpListener> {
    bind_by_habit(wanted, last, USUAL_PORT).with_context(|| {
        format!("cannot listen on {wanted} for requests to Tasks: choose another --gateway-listen")
    })
}

/// The same for any socket that has a usual port.
pub(super) fn bind_by_habit(
    wanted: SocketAddr,
    last: Option<SocketAddr>,
    usual_port: u16,
) -> io::Result<TcpListener> {
    let habits = last.into_iter().chain([SocketAddr::new(wanted.ip(), usual_port)]);
    let habits = habits.filter(|_| wanted.port() == 0);
    // A port that somebody listens on at every address could be bound at ours; it would be taken from them.
    let free = |address: &SocketAddr| !is_served(*address);
    if let Some(listener) = habits.filter(free).find_map(|address| TcpListener::bind(address).ok()) {
        return Ok(listener);
    }
    TcpListener::bind(wanted)
}

fn is_served(address: SocketAddr) -> bool {
    let address = match address.ip().is_unspecified() {
        true => SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())),
        false => address,
    };
    TcpStream::connect(address).is_ok()
}

/// Makes the class and the TaskGateway, or leads the latter to the port that was had this time.
pub(super) async fn install(client: &Client, port: u16) -> anyhow::Result<()> {
    let class = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": { "name": BUILT_IN_CLASS },
        "spec": { "controllerName": CONTROLLER, "description": "the gateway that is built into AgentCube" },
    });
    let path = "/apis/gateway.networking.k8s.io/v1/gatewayclasses";
    let request = http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(&class)?)?;
    match client.request::<serde_json::Value>(request).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        other => drop(other.context("cannot make the GatewayClass of the built-in gateway")?),
    }
    default_gateway(client, port).await.context("cannot make the TaskGateway default")
}

async fn default_gateway(client: &Client, port: u16) -> Result<(), kube::Error> {
    let api: Api<TaskGateway> = Api::namespaced(client.clone(), NAMESPACE);
    let Some(mut present) = api.get_opt(DEFAULT_GATEWAY).await? else {
        let gateway = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "TaskGateway",
            "metadata": { "name": DEFAULT_GATEWAY, "annotations": { MADE_BY: US } },
            "spec": { "listeners": [{ "name": LISTENER, "protocol": "HTTP", "port": port }] },
        });
        let gateway = serde_json::from_value(gateway).map_err(kube::Error::SerdeError)?;
        return api.create(&PostParams::default(), &gateway).await.map(drop);
    };
    let ours = present.annotations().get(MADE_BY).is_some_and(|by| by == US);
    let listener = present.spec.listeners.iter_mut().find(|listener| listener.name == LISTENER);
    match listener.filter(|listener| ours && listener.port != i32::from(port)) {
        Some(listener) => listener.port = port.into(),
        None => return Ok(()),
    }
    api.replace(DEFAULT_GATEWAY, &PostParams::default(), &present).await.map(drop)
}

/// Reaches Pods of the embedded node, whose addresses nobody else knows.
pub(super) struct PodNetwork(pub(super) Network);

impl Connect for PodNetwork {
    fn connect(&self, endpoint: Endpoint) -> BoxFuture<'_, io::Result<tokio::net::TcpStream>> {
        Box::pin(async move {
            match endpoint.host {
                std::net::IpAddr::V4(address) => self.0.connect(address, endpoint.port).await,
                std::net::IpAddr::V6(_) => Err(io::Error::from(io::ErrorKind::Unsupported)),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_had_by_habit_or_at_all() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let taken = TcpListener::bind(any).unwrap();
        let taken_at = taken.local_addr().unwrap();
        let other = bind(any, Some(taken_at)).unwrap();
        assert_ne!(other.local_addr().unwrap(), taken_at);
        let before = other.local_addr().unwrap();
        drop(other);
        assert_eq!(bind(any, Some(before)).unwrap().local_addr().unwrap(), before);
        let refused = bind(taken_at, None).unwrap_err().to_string();
        assert!(refused.contains("--gateway-listen"), "{refused}");
    }
}
