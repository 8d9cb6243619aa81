//! Namespaces: the ones that are always there, and the emptying of those that go.

use std::collections::{BTreeMap, BTreeSet};
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

pub(super) async fn start(api: &Api, tasks: &mut JoinSet<()>, stopped: &watch::Receiver<bool>) {
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
    let keeper = Arc::new(Keeper { api: api.clone() });
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
    match api.create(&resource, namespace, creation, &intent("kube-apiserver")).await {
        Ok(_) => {}
        Err(status) if status.reason == "AlreadyExists" => {}
        // A namespace on its way out needs nothing more.
        Err(status) => tracing::debug!(%status, kind, "not created"),
    }
}

/// What is still in a namespace that is on its way out.
#[derive(Default)]
struct Remaining {
    /// `deployments.apps` → how many.
    resources: BTreeMap<String, usize>,
    finalizers: BTreeMap<String, usize>,
}

impl Remaining {
    fn conditions(&self) -> Vec<Value> {
        let list = |map: &BTreeMap<String, usize>, between: &str| {
            map.iter()
                .map(|(what, n)| format!("{what} {between} {n} resource instances"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let condition = |kind: &str, status: bool, reason: &str, message: String| {
            json!({
                "type": kind, "status": if status { "True" } else { "False" }, "reason": reason, "message": message,
                "lastTransitionTime": now(),
            })
        };
        let held = !self.finalizers.is_empty();
        vec![
            condition(
                "NamespaceDeletionDiscoveryFailure",
                false,
                "ResourcesDiscovered",
                "All resources successfully discovered".into(),
            ),
            condition(
                "NamespaceDeletionGroupVersionParsingFailure",
                false,
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed".into(),
            ),
            condition(
                "NamespaceDeletionContentFailure",
                false,
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization".into(),
            ),
            condition(
                "NamespaceContentRemaining",
                true,
                "SomeResourcesRemain",
                format!("Some resources are remaining: {}", list(&self.resources, "has")),
            ),
            condition(
                "NamespaceFinalizersRemaining",
                held,
                if held { "SomeFinalizersRemain" } else { "ContentHasNoFinalizers" },
                match held {
                    true => format!(
                        "Some content in the namespace has finalizers remaining: {}",
                        list(&self.finalizers, "in")
                    ),
                    false => "All content-preserving finalizers finished".into(),
                },
            ),
        ]
    }
}

struct Keeper {
    api: Api,
}

impl Keeper {
    async fn look(&self, name: &str) -> Result<(), Status> {
        let Some(namespace) = self.api.store().get("namespaces", name) else { return Ok(()) };
        if namespace.deleting { self.empty(name).await } else { Ok(()) }
    }

    /// Deletes what is in a namespace; once nothing is left, lets the namespace go.
    async fn empty(&self, name: &str) -> Result<(), Status> {
        let registry = self.api.registry();
        let mut seen = BTreeSet::new();
        let mut left = Remaining::default();
        for resource in registry.all().filter(|resource| resource.namespaced) {
            if seen.insert(resource.storage.clone()) {
                self.clear(resource, name, &mut left).await?;
            }
        }
        if left.resources.is_empty() { self.finalize(name).await } else { self.report(name, &left).await }
    }

    async fn clear(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        left: &mut Remaining,
    ) -> Result<(), Status> {
        let request = ListRequest { namespace: Some(namespace), ..ListRequest::default() };
        if self.api.list(resource, &request)?.items.is_empty() {
            return Ok(());
        }
        self.api.delete_collection(resource, &request, &DeleteOptions::default()).await?;
        let items = self.api.list(resource, &request)?.items;
        if !items.is_empty() {
            left.resources.insert(format!("{}.{}", resource.plural, resource.group), items.len());
        }
        for finalizer in items.iter().flat_map(|item| &item.finalizers) {
            *left.finalizers.entry(finalizer.to_string()).or_default() += 1;
        }
        Ok(())
    }

    /// Says what still holds the namespace, as `kubectl describe` shows it.
    async fn report(&self, name: &str, left: &Remaining) -> Result<(), Status> {
        let conditions = left.conditions();
        self.change(name, "status", |namespace| {
            let told = |condition: &Value| {
                let old = namespace["status"]["conditions"].as_array().into_iter().flatten();
                old.into_iter()
                    .any(|o| o["type"] == condition["type"] && o["message"] == condition["message"])
            };
            if !conditions.iter().all(told) {
                namespace["status"]["conditions"] = conditions.clone().into();
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
