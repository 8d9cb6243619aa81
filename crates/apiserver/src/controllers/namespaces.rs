//! Namespaces: the ones that are always there, what each new one gets, and the emptying of those that go.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{MANAGER, Queue, intent, work};
use crate::api::{Api, Creation, DeleteOptions, ListRequest, Name, now};
use crate::resource::Resource;
use crate::status::Status;
use crate::store::EventKind;

/// The finalizer in `spec` that stands for the contents.
const CONTENT: &str = "kubernetes";

pub(super) async fn start(api: &Api, tasks: &mut JoinSet<()>, stopped: &watch::Receiver<bool>, ca_pem: Option<&str>) {
    let queue: Arc<Queue<Box<str>>> = Queue::new();
    let feed = queue.clone();
    let leaving: Mutex<BTreeSet<Box<str>>> = Mutex::default();
    api.store().observe(Box::new(move |table, event| {
        let mut leaving = leaving.lock();
        if &**table == "namespaces" {
            let name: Box<str> = event.object.name().into();
            match event.kind {
                EventKind::Deleted => {
                    leaving.remove(&name);
                }
                EventKind::Added | EventKind::Modified => {
                    if event.object.deleting {
                        leaving.insert(name.clone());
                    }
                    if event.object.deleting || event.kind == EventKind::Added {
                        feed.push(name);
                    }
                }
            }
        } else if event.kind == EventKind::Deleted && leaving.contains(event.object.namespace()) {
            feed.push(event.object.namespace().into());
        }
    }));
    for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
        let namespace = json!({"metadata": {"name": name}});
        ensure(api, "v1", "Namespace", None, namespace).await;
    }
    ensure(api, "v1", "Service", Some("default"), own_service()).await;
    let keeper = Arc::new(Keeper { api: api.clone(), ca_pem: ca_pem.map(str::to_owned) });
    work(queue, tasks, stopped, move |name| {
        let keeper = keeper.clone();
        async move { keeper.look(&name).await }
    });
}

/// The Service through which Pods reach this server.
fn own_service() -> Value {
    json!({
        "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "type": "ClusterIP", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
        },
    })
}

/// Creates an object unless it is there.
async fn ensure(api: &Api, api_version: &str, kind: &str, namespace: Option<&str>, mut value: Value) {
    let Some(resource) = api.registry().by_kind(api_version, kind) else { return };
    value["apiVersion"] = api_version.into();
    value["kind"] = kind.into();
    let creation = Creation::from(value);
    match api.create(&resource, namespace, creation, &intent(MANAGER)).await {
        Ok(_) => {}
        Err(status) if status.reason == "AlreadyExists" => {}
        // A namespace on its way out needs nothing more.
        Err(status) => tracing::debug!(%status, kind, "not created"),
    }
}

struct Keeper {
    api: Api,
    ca_pem: Option<String>,
}

impl Keeper {
    async fn look(&self, name: &str) -> Result<(), Status> {
        let Some(namespace) = self.api.store().get("namespaces", name) else { return Ok(()) };
        if namespace.deleting {
            return self.empty(name).await;
        }
        let account = json!({"metadata": {"name": "default"}});
        ensure(&self.api, "v1", "ServiceAccount", Some(name), account).await;
        if let Some(ca_pem) = &self.ca_pem {
            let map = json!({
                "metadata": {"name": "kube-root-ca.crt"},
                "data": {"ca.crt": ca_pem},
            });
            ensure(&self.api, "v1", "ConfigMap", Some(name), map).await;
        }
        Ok(())
    }

    /// Deletes what is in a namespace; once nothing is left, lets the namespace go.
    async fn empty(&self, name: &str) -> Result<(), Status> {
        let registry = self.api.registry();
        let mut seen = BTreeSet::new();
        let mut remaining: Vec<(String, usize)> = Vec::new();
        for resource in registry.all().filter(|resource| resource.namespaced) {
            if seen.insert(resource.storage.clone()) {
                let left = self.clear(resource, name).await?;
                if left > 0 {
                    remaining.push((crate::status::qualified(&resource.group, &resource.plural), left));
                }
            }
        }
        if !remaining.is_empty() {
            return self.report(name, &remaining).await;
        }
        self.finalize(name).await
    }

    async fn clear(&self, resource: &Arc<Resource>, namespace: &str) -> Result<usize, Status> {
        let request = ListRequest { namespace: Some(namespace), ..ListRequest::default() };
        if self.api.list(resource, &request)?.items.is_empty() {
            return Ok(0);
        }
        self.api.delete_collection(resource, &request, &DeleteOptions::default()).await?;
        Ok(self.api.list(resource, &request)?.items.len())
    }

    /// Says what still holds the namespace, as `kubectl describe` shows it.
    async fn report(&self, name: &str, remaining: &[(String, usize)]) -> Result<(), Status> {
        let list: Vec<String> =
            remaining.iter().map(|(what, count)| format!("{what} has {count} resource instances")).collect();
        let message = format!("Some resources are remaining: {}", list.join(", "));
        self.change(name, "status", |namespace| {
            let old = namespace["status"]["conditions"].as_array();
            let told = old.into_iter().flatten().any(|c| c["message"] == message.as_str());
            if !told {
                namespace["status"]["conditions"] = json!([{
                    "type": "NamespaceContentRemaining", "status": "True", "reason": "SomeResourcesRemain",
                    "message": message, "lastTransitionTime": now(),
                }]);
            }
        })
        .await
    }

    async fn finalize(&self, name: &str) -> Result<(), Status> {
        self.change(name, "finalize", |namespace| {
            if let Some(finalizers) = namespace["spec"]["finalizers"].as_array_mut() {
                finalizers.retain(|finalizer| finalizer != CONTENT);
            }
        })
        .await
    }

    async fn change(&self, name: &str, subresource: &str, edit: impl Fn(&mut Value)) -> Result<(), Status> {
        let Some(resource) = self.api.registry().by_kind("v1", "Namespace") else { return Ok(()) };
        let named = Name { namespace: None, name };
        let Some(object) = self.api.store().get("namespaces", name) else { return Ok(()) };
        let mut value = resource.typed(&object);
        edit(&mut value);
        let body = Creation::from(value);
        match self.api.update(&resource, &named, subresource, body, &intent(MANAGER)).await {
            Ok(_) => Ok(()),
            Err(status) if status.reason == "NotFound" => Ok(()),
            Err(status) => Err(status),
        }
    }
}
