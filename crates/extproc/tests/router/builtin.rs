//! The built-in gateway as a front, with the objects that make it listen.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use agentcube_instance::Endpoint;
use agentcube_instance::reserve::Reserver;
use agentcube_router::{CONTROLLER, Connect, Gateway, Options};
use anyhow::{Context, Result};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, PostParams};
use kube::{Client, CustomResourceExt, ResourceExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::client;

pub(crate) struct Builtin {
    pub(crate) address: SocketAddr,
    /// How many requests were answered until it was ready.
    pub(crate) answered: i64,
    _stop: DropGuard,
}

impl Builtin {
    /// With a service that is asked who sends a request, if there is one.
    pub(crate) async fn start(
        client: &Client,
        reserver: Reserver,
        options: Options,
        asks: Option<SocketAddr>,
    ) -> Result<Builtin> {
        define(client).await?;
        let bound = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = bound.local_addr()?;
        let class = json!({ "metadata": { "name": "agentcube" }, "spec": { "controllerName": CONTROLLER } });
        let mut gateway = json!({ "metadata": { "name": "default" }, "spec": { "gatewayClassName": "agentcube",
            "listeners": [{ "name": "http", "port": address.port(), "protocol": "HTTP" }] } });
        let classes: Api<gateway_api::gatewayclasses::GatewayClass> = Api::all(client.clone());
        classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
        if let Some(address) = asks {
            guard(client, address, &mut gateway).await?;
        }
        let gateways: Api<gateway_api::gateways::Gateway> = Api::default_namespaced(client.clone());
        gateways.create(&PostParams::default(), &serde_json::from_value(gateway)?).await?;
        let stop = CancellationToken::new();
        let options = Options { bound: vec![bound], ..options };
        let gateway = Gateway::new(client.clone(), Arc::new(reserver), Arc::new(Here), options);
        tokio::spawn(gateway.run(stop.clone()));
        // Without a session, or a badge, a request is refused as soon as its Task is known.
        let refused = if asks.is_some() { 403 } else { 400 };
        let mut answered = 0;
        loop {
            let answer = client::get(address, "/default/agent", &[]).await.ok();
            answered += i64::from(answer.is_some());
            if answer.is_some_and(|answer| answer.status == refused) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(Builtin { address, answered, _stop: stop.drop_guard() })
    }
}

/// Reaches services here: addresses of endpoints may not be of loopback.
struct Here;

impl Connect for Here {
    fn connect(&self, endpoint: Endpoint) -> BoxFuture<'_, std::io::Result<TcpStream>> {
        let address = SocketAddr::from(endpoint);
        let address =
            if address.ip().is_loopback() { address } else { (Ipv4Addr::LOCALHOST, address.port()).into() };
        Box::pin(TcpStream::connect(address))
    }
}

/// A TaskGateway whose requests are asked about, as its controller leaves it.
async fn guard(client: &Client, address: SocketAddr, gateway: &mut Value) -> Result<()> {
    let port = json!([{ "name": "http", "port": 80, "targetPort": address.port() }]);
    let service = json!({ "metadata": { "name": "auth" }, "spec": { "ports": port } });
    let services: Api<Service> = Api::default_namespaced(client.clone());
    services.create(&PostParams::default(), &serde_json::from_value(service)?).await?;
    let slice = json!({ "metadata": { "name": "auth-1", "labels": { "kubernetes.io/service-name": "auth" } },
        "addressType": "IPv4", "endpoints": [{ "addresses": ["10.9.9.9"] }],
        "ports": [{ "name": "http", "port": address.port(), "protocol": "TCP" }] });
    let slices: Api<EndpointSlice> = Api::default_namespaced(client.clone());
    slices.create(&PostParams::default(), &serde_json::from_value(slice)?).await?;
    let http = json!({ "backendRef": { "name": "auth", "port": 80 } });
    let asks = json!({ "http": http, "headersToExtAuth": ["X-Badge"] });
    let policy = json!({ "metadata": { "name": "default" }, "spec": {
        "listeners": gateway["spec"]["listeners"], "authentication": { "extAuth": asks } } });
    let policies: Api<agentcube_api::TaskGateway> = Api::default_namespaced(client.clone());
    let policy = policies.create(&PostParams::default(), &serde_json::from_value(policy)?).await?;
    gateway["metadata"]["labels"] = json!({ "agentcube.io/gateway": "default" });
    gateway["metadata"]["ownerReferences"] = json!([{ "apiVersion": "agentcube.io/v1alpha1",
        "kind": "TaskGateway", "name": "default", "uid": policy.uid(), "controller": true }]);
    Ok(())
}

async fn define(client: &Client) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for mut definition in [
        gateway_api::gateways::Gateway::crd(),
        gateway_api::gatewayclasses::GatewayClass::crd(),
        gateway_api::httproutes::HttpRoute::crd(),
        agentcube_api::TaskGateway::crd(),
    ] {
        let approved = ("api-approved.kubernetes.io".to_owned(), "https://example.com/approved".to_owned());
        definition.metadata.annotations.get_or_insert_default().extend([approved]);
        // The schemas are not the subject here.
        for version in &mut definition.spec.versions {
            let open = json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true }});
            version.schema = Some(serde_json::from_value(open)?);
        }
        let name = api.create(&PostParams::default(), &definition).await?.name_any();
        let established = kube::runtime::conditions::is_crd_established();
        let waiting = kube::runtime::wait::await_condition(api.clone(), &name, established);
        waiting.await.context("a definition is not served")?;
    }
    Ok(())
}
