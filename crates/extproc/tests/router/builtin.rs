//! The built-in gateway as a front, with the objects that make it listen.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use agentcube_instance::reserve::Reserver;
use agentcube_router::{CONTROLLER, Gateway, Options, Tcp};
use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, PostParams};
use kube::{Client, CustomResourceExt, ResourceExt};
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::client;

pub(crate) struct Builtin {
    pub(crate) address: SocketAddr,
    _stop: DropGuard,
}

impl Builtin {
    pub(crate) async fn start(client: &Client, reserver: Reserver, options: Options) -> Result<Builtin> {
        define(client).await?;
        let bound = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = bound.local_addr()?;
        let class = json!({ "metadata": { "name": "agentcube" }, "spec": { "controllerName": CONTROLLER } });
        let gateway = json!({ "metadata": { "name": "default" }, "spec": { "gatewayClassName": "agentcube",
            "listeners": [{ "name": "http", "port": address.port(), "protocol": "HTTP" }] } });
        let classes: Api<gateway_api::gatewayclasses::GatewayClass> = Api::all(client.clone());
        classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
        let gateways: Api<gateway_api::gateways::Gateway> = Api::default_namespaced(client.clone());
        gateways.create(&PostParams::default(), &serde_json::from_value(gateway)?).await?;
        let stop = CancellationToken::new();
        let options = Options { bound: vec![bound], ..options };
        let gateway = Gateway::new(client.clone(), Arc::new(reserver), Arc::new(Tcp), options);
        tokio::spawn(gateway.run(stop.clone()));
        // Without a session a request is refused as soon as its Task is known.
        while client::get(address, "/default/agent", &[]).await.ok().is_none_or(|answer| answer.status != 400)
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(Builtin { address, _stop: stop.drop_guard() })
    }
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
