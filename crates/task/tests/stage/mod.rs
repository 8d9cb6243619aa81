//! A stage for the controllers: a server, a provider that keeps books, and something that pretends to be a gateway.

pub(crate) mod gateway;
pub(crate) mod provider;

use std::sync::Arc;
use std::time::Duration;

use agentcube_api::{Task, TaskGateway};
use agentcube_task::{Controllers, Options};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use provider::Books;

/// Longer than anything takes, unless it is broken.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// What is common to all tests.
pub(crate) struct Stage {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) books: Arc<Books>,
    running: JoinSet<()>,
    pub(crate) shutdown: CancellationToken,
}

impl Stage {
    /// A stage in a namespace of its own; the definitions have to be there.
    pub(crate) async fn open(client: Client, namespace: &str) -> Stage {
        let object = json!({ "metadata": { "name": namespace } });
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
        let _ = namespaces.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await;
        Stage {
            books: Arc::new(Books::new(client.clone())),
            client,
            namespace: namespace.into(),
            running: JoinSet::new(),
            shutdown: CancellationToken::new(),
        }
    }

    /// Starts the controllers.
    pub(crate) fn start(&mut self, options: Options) {
        let controllers = Controllers::new(self.client.clone(), self.books.clone(), options);
        self.running.spawn(controllers.run(self.shutdown.child_token()));
    }

    /// Starts something that takes all that is made, as a gateway would.
    pub(crate) fn pretend(&mut self, envoy: bool) {
        gateway::spawn(&self.client, envoy, &mut self.running, &self.shutdown);
    }

    /// Stops everything in order.
    pub(crate) async fn close(mut self) {
        self.shutdown.cancel();
        while let Some(ended) = self.running.join_next().await {
            ended.expect("nothing panicked");
        }
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
    {
        let object: K = serde_json::from_value(object).expect("an object of this kind");
        self.api::<K>().create(&PostParams::default(), &object).await.expect("the server takes it")
    }

    /// Waits until an object is as wanted.
    pub(crate) async fn until<K>(&self, name: &str, wanted: impl Fn(&K) -> bool) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
    {
        until(&self.api::<K>(), name, wanted).await
    }

    pub(crate) async fn until_task(&self, name: &str, wanted: impl Fn(&Task) -> bool) -> Task {
        self.until(name, wanted).await
    }

    /// Waits until an Event of this reason tells of an object in these words.
    pub(crate) async fn until_event(&self, reason: &str, words: &str) {
        let api: Api<k8s_openapi::api::core::v1::Event> = self.api();
        let told = |event: &k8s_openapi::api::core::v1::Event| {
            event.reason.as_deref() == Some(reason)
                && event.message.as_deref().is_some_and(|m| m.contains(words))
        };
        let told = tokio::time::timeout(LIMIT, until_any(&api, told)).await;
        if told.is_err() {
            let events = api.list(&Default::default()).await.expect("a list").items;
            let told: Vec<_> = events.iter().map(|event| (&event.reason, &event.message)).collect();
            panic!("no Event {reason} says {words:?}: {told:?}");
        }
    }
}

/// Waits until an object is as wanted, by watching it.
pub(crate) async fn until<K>(api: &Api<K>, name: &str, wanted: impl Fn(&K) -> bool) -> K
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default,
{
    let last = parking_lot::Mutex::new(None);
    let waiting = until_any(api, |object: &K| {
        let it = object.name_any() == name;
        if it {
            *last.lock() = Some(object.clone());
        }
        it && wanted(object)
    });
    match tokio::time::timeout(LIMIT, waiting).await {
        Ok(object) => object,
        Err(_) => panic!("{name} is not as wanted: {:#?}", last.lock()),
    }
}

async fn until_any<K>(api: &Api<K>, wanted: impl Fn(&K) -> bool) -> K
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default,
{
    use futures_util::StreamExt;
    loop {
        let list = api.list(&Default::default()).await.expect("a list");
        if let Some(found) = list.items.iter().find(|object| wanted(object)) {
            return found.clone();
        }
        let version = list.metadata.resource_version.unwrap_or_default();
        let Ok(events) = api.watch(&WatchParams::default(), &version).await else { continue };
        let mut events = std::pin::pin!(events);
        while let Some(Ok(event)) = events.next().await {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) if wanted(&object) => return object,
                _ => {}
            }
        }
    }
}

/// Waits until an object is gone.
pub(crate) async fn until_gone<K>(api: &Api<K>, name: &str)
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default,
{
    use futures_util::StreamExt;
    let waiting = async {
        loop {
            let list = api.list(&Default::default()).await.expect("a list");
            if !list.items.iter().any(|object| object.name_any() == name) {
                return;
            }
            let version = list.metadata.resource_version.unwrap_or_default();
            let Ok(events) = api.watch(&WatchParams::default(), &version).await else { continue };
            let mut events = std::pin::pin!(events);
            while let Some(Ok(event)) = events.next().await {
                if matches!(event, WatchEvent::Deleted(object) if object.name_any() == name) {
                    return;
                }
            }
        }
    };
    let gone = tokio::time::timeout(LIMIT, waiting).await;
    gone.unwrap_or_else(|_| panic!("{name} is still there"));
}

/// Installs definitions and waits until they are served.
pub(crate) async fn install(client: &Client, definitions: Vec<CustomResourceDefinition>) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in &definitions {
        let created = api.create(&PostParams::default(), definition).await;
        created.unwrap_or_else(|error| panic!("{}: {error}", definition.name_any()));
    }
    for definition in &definitions {
        let established = |definition: &CustomResourceDefinition| {
            let conditions = definition.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.into_iter().any(|one| one.type_ == "Established" && one.status == "True")
        };
        until(&api, &definition.name_any(), established).await;
    }
}

/// Status and reason of a condition of a Task.
pub(crate) fn condition(task: &Task, type_: &str) -> (String, String) {
    let conditions = task.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    agentcube_api::conditions::find(conditions, type_)
        .map(|one| (one.status.clone(), one.reason.clone()))
        .unwrap_or_default()
}

/// Status and reason of a condition of a TaskGateway.
pub(crate) fn gateway_condition(gateway: &TaskGateway, type_: &str) -> (String, String) {
    let conditions = gateway.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    agentcube_api::conditions::find(conditions, type_)
        .map(|one| (one.status.clone(), one.reason.clone()))
        .unwrap_or_default()
}

/// Whether a condition of a Task has this status and reason, about its current generation.
pub(crate) fn says(task: &Task, type_: &str, status: &str, reason: &str) -> bool {
    let current =
        task.status.as_ref().and_then(|status| status.observed_generation) == task.metadata.generation;
    current && condition(task, type_) == (status.into(), reason.into())
}
