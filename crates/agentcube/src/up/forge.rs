//! Front ends in `up`: the controllers, the build service, and the gate by which Jobs reach the API server, which knows one account
//! here. Jobs are Pods, and reach the socket by a Service that no Pod is behind.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use agentcube_forge::gate::Gate;
use agentcube_forge::options::{Access, Limits};
use agentcube_forge::service::{self, Service};
use agentcube_forge::{Controllers, Options};
use agentcube_node::network::Platform;
use agentcube_operator::metrics::Registry;
use anyhow::Context;
use k8s_openapi::api::core::v1::Service as KubeService;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;

use super::operator::NAMESPACE;
use crate::forge::{KEY_SECRET, SERVICE, key};
use crate::up::cluster::this_program;

const PORT: u16 = 8080;

/// What Pods reach the socket by.
pub(super) const PLATFORM: Platform = Platform { namespace: NAMESPACE, service: SERVICE };

/// Where things are on this machine.
pub(super) struct Machine {
    pub(super) listener: TcpListener,
    pub(super) directory: PathBuf,
    pub(super) bundler: Option<PathBuf>,
    pub(super) path: Vec<PathBuf>,
    /// The image that Jobs run, and our program in it.
    pub(super) image: String,
    pub(super) program: String,
}

/// On loopback, at any port: only Jobs have to find it.
pub(super) fn bind() -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen for builds on loopback")?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// What runs.
pub(super) struct Forge {
    pub(super) controllers: Controllers,
    pub(super) gate: Gate,
    pub(super) listener: tokio::net::TcpListener,
}

impl Forge {
    pub(super) async fn make(client: &Client, machine: Machine, metrics: &Registry) -> anyhow::Result<Forge> {
        let key = key(client, NAMESPACE, KEY_SECRET).await?;
        let address = format!("http://{}:{PORT}", service_address(client).await?);
        let options = service::Options {
            directory: machine.directory,
            bundler: machine.bundler,
            path: machine.path,
            confiner: this_program()?,
            key: key.clone(),
            limits: service::Limits::default(),
        };
        let builds = Service::open(options, metrics).context("cannot use the directory of builds")?;
        let options = Options {
            image: machine.image,
            program: machine.program,
            build_service: address.clone(),
            key: key.clone(),
            access: Access::Gate(address),
            restricted: false,
            watch_namespace: None,
            limits: Limits::default(),
        };
        machine.listener.set_nonblocking(true)?;
        Ok(Forge {
            controllers: Controllers::new(client.clone(), options, metrics),
            gate: Gate { client: client.clone(), key, builds },
            listener: tokio::net::TcpListener::from_std(machine.listener)?,
        })
    }
}

/// The address of the Service, which is made if there is none.
async fn service_address(client: &Client) -> anyhow::Result<String> {
    let api: Api<KubeService> = Api::namespaced(client.clone(), NAMESPACE);
    let service = serde_json::from_value(json!({
        "metadata": { "name": SERVICE, "namespace": NAMESPACE, "labels": { "app.kubernetes.io/part-of": "agentcube" } },
        "spec": { "ports": [{ "name": "http", "port": PORT }] },
    }))?;
    let made = match api.create(&PostParams::default(), &service).await {
        Err(kube::Error::Api(status)) if status.code == 409 => api.get(SERVICE).await,
        other => other,
    };
    let made = made.context("cannot make the Service of the build service")?;
    made.spec.and_then(|spec| spec.cluster_ip).context("the Service of the build service has no address")
}
