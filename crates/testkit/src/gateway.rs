//! The built-in gateway as a process of its own, which the program has only within `agentcube up`: a suite or a
//! measurement starts itself anew with [`ROLE`].

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use agentcube_instance::reserve::{self, Reserver};
use agentcube_instance::timing::Timing;
use agentcube_instance::token::ensure_master_keys;
use agentcube_router::{CONTROLLER, Gateway, Options, Tcp};
use anyhow::{Context, Result, ensure};
use http::Method;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::supervise::Process;
use crate::{HttpClient, Request};

/// Makes a program that calls [`run`] a gateway: `ROLE KUBECONFIG ADDRESS NAME`.
pub const ROLE: &str = "__gateway";
/// What it says once it can be asked.
const READY: &str = "ready at ";
/// The operator's namespace.
const SYSTEM: &str = "agentcube-system";
const CLASSES: &str = "/apis/gateway.networking.k8s.io/v1/gatewayclasses";
const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/default/gateways";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

pub async fn connect(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// All definitions, and the class of the built-in gateway.
pub async fn install(http: &HttpClient) -> Result<()> {
    for definition in agentcube_api::crds().into_iter().chain(agentcube_task::definitions()) {
        post(http, DEFINITIONS, &serde_json::to_value(definition)?).await?;
    }
    let class = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": { "name": agentcube_task::BUILT_IN_CLASS }, "spec": { "controllerName": CONTROLLER } });
    for path in [CLASSES, GATEWAYS, "/apis/agentcube.io/v1alpha1/tasks"] {
        served(http, path).await?;
    }
    post(http, CLASSES, &class).await
}

/// A Gateway that listens at this port for the Tasks that name it.
pub async fn listen(http: &HttpClient, name: &str, port: u16) -> Result<()> {
    let gateway = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": { "name": name }, "spec": { "gatewayClassName": agentcube_task::BUILT_IN_CLASS,
        "listeners": [{ "name": "http", "port": port, "protocol": "HTTP" }] } });
    post(http, GATEWAYS, &gateway).await
}

async fn served(http: &HttpClient, path: &str) -> Result<()> {
    let served = async {
        while http.send(Request::new(Method::GET, path)).await?.status == 404 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        anyhow::Ok(())
    };
    let limited = tokio::time::timeout(std::time::Duration::from_secs(60), served).await;
    limited.with_context(|| format!("{path} is not served"))?
}

async fn post(http: &HttpClient, path: &str, body: &Value) -> Result<()> {
    let reply = http.send(Request::new(Method::POST, path).json(body)).await?;
    ensure!(reply.is_success(), "{path}: {}", reply.value());
    Ok(())
}

/// This program as a gateway; comes back when it is ready.
pub async fn start(kubeconfig: &Path, address: SocketAddr, name: &str, log: &Path) -> Result<Process> {
    let arguments = [ROLE.to_owned(), kubeconfig.display().to_string(), address.to_string(), name.to_owned()];
    let process = Process::start(&std::env::current_exe()?, &arguments, log)?;
    process.told(READY).await?;
    Ok(process)
}

/// The body of that process: serves until it is told to stop, and then until requests have ended.
pub async fn run(kubeconfig: &Path, listen: SocketAddr, name: &str) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let client = connect(kubeconfig).await?;
    let bound = std::net::TcpListener::bind(listen)?;
    let options = reserve::Options {
        name: name.to_owned(),
        namespace: SYSTEM.to_owned(),
        keys: ensure_master_keys(client.clone(), SYSTEM).await?,
        timing: Timing::default(),
    };
    let reserver = Reserver::new(client.clone(), options);
    let (stop, stop_reserver) = (CancellationToken::new(), CancellationToken::new());
    let reserving = tokio::spawn(reserver.clone().run(stop_reserver.clone()));
    reserver.ready().await;
    // Replicas on one machine differ in their addresses, and say the same of themselves.
    let (address, advertised) = (listen.ip(), Some(Ipv4Addr::LOCALHOST.to_string()));
    let options = Options { address, advertised, bound: vec![bound], ..Options::default() };
    let gateway = Gateway::new(client, Arc::new(reserver), Arc::new(Tcp), options);
    let serving = tokio::spawn(gateway.run(stop.clone()));
    println!("{READY}{listen}");
    terminate.recv().await;
    stop.cancel();
    serving.await?;
    stop_reserver.cancel();
    reserving.await?;
    Ok(())
}
