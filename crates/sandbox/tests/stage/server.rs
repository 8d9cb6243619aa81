//! The API server under the stage: the embedded one, fresh for each stage, or one that a kubeconfig names, swept for each.

use std::path::PathBuf;
use std::sync::LazyLock;

use agentcube_api::sandbox::{Sandbox, SandboxPool};
use agentcube_apiserver::Server;
use k8s_openapi::api::core::v1::{Event, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

use super::{NAMESPACE, until};

/// Made once: that takes longer than most cases.
static DEFINITIONS: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(|| {
    agentcube_api::crds().into_iter().filter(|crd| crd.spec.group == "sandbox.fast.io").collect()
});

/// The kubeconfig of the server to be used; the embedded one if there is none.
static KUBECONFIG: Mutex<Option<PathBuf>> = Mutex::new(None);

/// From now on stages are set up on this server.
#[allow(dead_code, reason = "for the suite on kube-apiserver")]
pub(crate) fn use_server(kubeconfig: PathBuf) {
    *KUBECONFIG.lock() = Some(kubeconfig);
}

/// Whether stages have a server each, and do not meet.
pub(crate) fn is_own() -> bool {
    KUBECONFIG.lock().is_none()
}

/// A client, and the server if it is this stage's own.
pub(super) async fn open() -> (Client, Option<Server>) {
    let kubeconfig = KUBECONFIG.lock().clone();
    let Some(path) = kubeconfig else {
        let server = Server::builder().memory().embed().await.expect("a server in memory starts");
        let client = Client::new(server.front(), NAMESPACE);
        install(&client).await;
        return (client, Some(server));
    };
    let kubeconfig = Kubeconfig::read_from(path).expect("there is a kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let client = Client::try_from(config.expect("it names a server")).expect("it can be reached");
    install(&client).await;
    sweep(&client).await;
    (client, None)
}

async fn install(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in &*DEFINITIONS {
        match api.create(&PostParams::default(), definition).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => continue,
            Err(error) => panic!("{error}"),
        }
        until("it is established", async || {
            let now = api.get(&definition.name_any()).await.unwrap();
            let said = now.status.and_then(|status| status.conditions).unwrap_or_default();
            said.iter().any(|one| one.type_ == "Established" && one.status == "True").then_some(())
        })
        .await;
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } })).unwrap();
    let _ = namespaces.create(&PostParams::default(), &namespace).await;
}

/// Removes what the stage before has left, and whoever used the server before: controllers look after all namespaces.
async fn sweep(client: &Client) {
    let (every, deletion) = (ListParams::default(), DeleteParams::default());
    let events: Api<Event> = Api::namespaced(client.clone(), NAMESPACE);
    events.delete_collection(&deletion, &every).await.unwrap();
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    until("nothing is left of the stage before", async || {
        let pools = Api::<SandboxPool>::all(client.clone()).list(&every).await.unwrap().items;
        for object in &pools {
            let pools: Api<SandboxPool> = Api::namespaced(client.clone(), &object.namespace().unwrap());
            let _ = pools.delete(&object.name_any(), &deletion).await;
        }
        let left = Api::<Sandbox>::all(client.clone()).list(&every).await.unwrap().items;
        for object in &left {
            let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), &object.namespace().unwrap());
            let _ = sandboxes.delete(&object.name_any(), &deletion).await;
            let _ = sandboxes.patch(&object.name_any(), &PatchParams::default(), &free).await;
        }
        (pools.is_empty() && left.is_empty()).then_some(())
    })
    .await;
}
