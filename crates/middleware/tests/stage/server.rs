//! The API server under the stage: the embedded one, fresh for each stage, or one that a kubeconfig names, swept for each.

use std::path::PathBuf;
use std::sync::LazyLock;

use agentcube_api::middleware::Backup;
use agentcube_api::{App, Component, Group, Plugin};
use agentcube_apiserver::Server;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{ELSEWHERE, NAMESPACE, until};

/// Made once: that takes longer than most cases.
static DEFINITIONS: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(|| {
    agentcube_api::crds().into_iter().filter(|crd| crd.spec.group == "middleware.io").collect()
});

/// The kubeconfig of the server to be used; the embedded one if there is none.
static KUBECONFIG: Mutex<Option<PathBuf>> = Mutex::new(None);

/// From now on stages are set up on this server.
#[allow(dead_code, reason = "for the suite on kube-apiserver")]
pub(crate) fn use_server(kubeconfig: PathBuf) {
    *KUBECONFIG.lock() = Some(kubeconfig);
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
    for namespace in [NAMESPACE, ELSEWHERE] {
        sweep(&client, namespace).await;
    }
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
    for name in [NAMESPACE, ELSEWHERE] {
        let namespace = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        let _there = namespaces.create(&PostParams::default(), &namespace).await;
    }
    // Only what has a class may grow.
    let classes: Api<StorageClass> = Api::all(client.clone());
    let class = json!({ "metadata": { "name": "grows", "annotations": {
        "storageclass.kubernetes.io/is-default-class": "true" } },
        "provisioner": "agentcube.io/test", "allowVolumeExpansion": true });
    let class = serde_json::from_value(class).unwrap();
    let _there = classes.create(&PostParams::default(), &class).await;
}

/// Removes what the stage before has left: first what makes others.
async fn sweep(client: &Client, namespace: &str) {
    clear::<Backup>(client, namespace).await;
    clear::<App>(client, namespace).await;
    clear::<Component>(client, namespace).await;
    clear::<Group>(client, namespace).await;
    clear::<StatefulSet>(client, namespace).await;
    clear::<Pod>(client, namespace).await;
    clear::<PersistentVolumeClaim>(client, namespace).await;
    clear::<ControllerRevision>(client, namespace).await;
    clear::<Service>(client, namespace).await;
    clear::<Secret>(client, namespace).await;
    clear::<NetworkPolicy>(client, namespace).await;
    clear::<Plugin>(client, namespace).await;
    clear::<Event>(client, namespace).await;
    clear::<ConfigMap>(client, namespace).await;
}

async fn clear<K>(client: &Client, namespace: &str)
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let (deletion, free) = (
        DeleteParams::background().grace_period(0),
        Patch::Merge(json!({ "metadata": { "finalizers": null } })),
    );
    until("nothing is left of the stage before", async || {
        let mut left = api.list(&ListParams::default()).await.unwrap().items;
        // The cluster's own come back.
        left.retain(|object| object.name_any() != "kube-root-ca.crt");
        for object in &left {
            let _gone = api.delete(&object.name_any(), &deletion).await;
            let _freed = api.patch(&object.name_any(), &PatchParams::default(), &free).await;
        }
        left.is_empty().then_some(())
    })
    .await;
}
