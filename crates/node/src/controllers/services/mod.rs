//! Keeps the endpoints of the `kubernetes` Service: the node's address as Pods see it, and the API server's port.
//! Written once and whenever somebody changes them; no other Service is touched.

use std::net::SocketAddrV4;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints};
use k8s_openapi::api::discovery::v1::{self as discovery, Endpoint, EndpointConditions, EndpointSlice};
use kube::api::{Api, Patch, PatchParams};
use kube::core::ObjectMeta;
use kube::{Client, ResourceExt};
use tokio_util::sync::CancellationToken;

use super::Caches;
use agentcube_operator::controller::{Controller, Requeue};

const CONTROLLER: &str = "kubernetes-service-controller";
const NAMESPACE: &str = "default";
const NAME: &str = "kubernetes";
const PORT: &str = "https";

#[derive(Debug, thiserror::Error)]
#[error("writing the endpoints of the kubernetes Service: {0}")]
struct Error(#[from] kube::Error);

/// Publishes `address`, which must be none of loopback: the API server takes no such endpoints.
pub async fn run(client: Client, caches: Caches, address: SocketAddrV4, shutdown: CancellationToken) {
    let is_named = |name: String, namespace: Option<String>| {
        (name == NAME && namespace.as_deref() == Some(NAMESPACE)).then_some(())
    };
    let controller = Controller::new(CONTROLLER)
        .watch(&caches.endpoints, move |change| {
            is_named(change.latest().name_any(), change.latest().namespace())
        })
        .watch(&caches.endpoint_slices, move |change| {
            is_named(change.latest().name_any(), change.latest().namespace())
        });
    controller.queue().add(());
    let (wanted_slice, wanted_endpoints) = (Arc::new(slice(address)), Arc::new(endpoints(address)));
    controller
        .run(shutdown, move |()| {
            let (client, caches) = (client.clone(), caches.clone());
            let (slice, endpoints) = (wanted_slice.clone(), wanted_endpoints.clone());
            async move {
                let current = caches.endpoint_slices.get(NAMESPACE, NAME);
                if current.is_none_or(|current| {
                    (&current.endpoints, &current.ports) != (&slice.endpoints, &slice.ports)
                }) {
                    caches.endpoint_slices.put(write(&client, &*slice).await?);
                }
                let current = caches.endpoints.get(NAMESPACE, NAME);
                if current.is_none_or(|current| current.subsets != endpoints.subsets) {
                    caches.endpoints.put(write(&client, &*endpoints).await?);
                }
                Ok::<_, Error>(Requeue::No)
            }
        })
        .await;
}

async fn write<K>(client: &Client, object: &K) -> Result<K, kube::Error>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), NAMESPACE);
    api.patch(NAME, &PatchParams::apply(CONTROLLER).force(), &Patch::Apply(object)).await
}

fn metadata(label: (&str, &str)) -> ObjectMeta {
    ObjectMeta {
        name: Some(NAME.into()),
        namespace: Some(NAMESPACE.into()),
        labels: Some([(label.0.to_owned(), label.1.to_owned())].into()),
        ..ObjectMeta::default()
    }
}

fn slice(address: SocketAddrV4) -> EndpointSlice {
    let port = discovery::EndpointPort {
        name: Some(PORT.into()),
        port: Some(address.port().into()),
        protocol: Some("TCP".into()),
        app_protocol: None,
    };
    let endpoint = Endpoint {
        addresses: vec![address.ip().to_string()],
        conditions: Some(EndpointConditions { ready: Some(true), serving: None, terminating: None }),
        ..Endpoint::default()
    };
    EndpointSlice {
        metadata: metadata(("kubernetes.io/service-name", NAME)),
        address_type: "IPv4".into(),
        endpoints: Some(vec![endpoint]),
        ports: Some(vec![port]),
    }
}

fn endpoints(address: SocketAddrV4) -> Endpoints {
    let port = EndpointPort {
        name: Some(PORT.into()),
        port: address.port().into(),
        protocol: Some("TCP".into()),
        app_protocol: None,
    };
    let own = EndpointAddress { ip: address.ip().to_string(), ..EndpointAddress::default() };
    let subset =
        EndpointSubset { addresses: Some(vec![own]), not_ready_addresses: None, ports: Some(vec![port]) };
    Endpoints {
        metadata: metadata(("endpointslice.kubernetes.io/skip-mirror", "true")),
        subsets: Some(vec![subset]),
    }
}
