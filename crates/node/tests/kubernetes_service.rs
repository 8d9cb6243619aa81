//! The endpoints of the `kubernetes` Service over the embedded API server.

use agentcube_apiserver::Server;
use agentcube_node::controllers::{Caches, services};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams};
use kube::{Client, ResourceExt};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn the_api_servers_address_is_published_and_kept() {
    let server = Server::builder().memory().embed().await.unwrap();
    let client = Client::new(server.front(), "default");
    let (shutdown, mut tasks) = (CancellationToken::new(), JoinSet::new());
    let caches = Caches::start(&client, &mut tasks, &shutdown);
    let mut changes = caches.endpoint_slices.subscribe();
    tasks.spawn(services::run(client.clone(), caches, "10.244.0.1:6443".parse().unwrap(), shutdown.clone()));
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    let mut published = async || loop {
        if let Some(slice) = changes.recv().await.new {
            return slice;
        }
    };
    let slice = published().await;
    assert_eq!(slice.name_any(), "kubernetes");
    assert_eq!(slice.endpoints.as_ref().unwrap()[0].addresses, ["10.244.0.1"]);
    assert_eq!(slice.ports.as_ref().unwrap()[0].port, Some(6443));
    slices.delete("kubernetes", &DeleteParams::default()).await.unwrap();
    let again = published().await;
    assert_ne!(again.uid(), slice.uid());
    assert_eq!(again.endpoints, slice.endpoints);
    shutdown.cancel();
    while tasks.join_next().await.is_some() {}
}
