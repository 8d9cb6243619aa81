//! A server, and providers over it.

use std::time::Duration;

use agentcube_api::Task;
use agentcube_apiserver::Server;
use agentcube_instance::SpecId;
use agentcube_instance::provider::{InstanceSpecProvider, Repaired, SpecError, SpecStatus};
use agentcube_instance::spec::{Config, Providers};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::wait::{await_condition, conditions};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server with our kinds, and providers that follow it.
pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) providers: Providers,
    stop: CancellationToken,
    pub(crate) server: Server,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl World {
    pub(crate) async fn new(change: impl FnOnce(&mut Config)) -> World {
        let server = Server::builder().memory().embed().await.expect("a server in memory starts");
        let client = Client::new(server.front(), "default");
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let ours = ["tasks.agentcube.io", "sandboxpools.sandbox.fast.io", "sandboxes.sandbox.fast.io"];
        for definition in agentcube_api::crds() {
            let name = definition.name_any();
            if !ours.contains(&name.as_str()) {
                continue;
            }
            api.create(&PostParams::default(), &definition).await.expect("a definition");
            let established = await_condition(api.clone(), &name, conditions::is_crd_established());
            tokio::time::timeout(PATIENCE, established).await.expect("in time").expect("established");
        }
        let mut config = Config { namespace: "default".into(), ..Config::default() };
        config.program.image = "agentcube:1".into();
        change(&mut config);
        let providers = Providers::new(client.clone(), config);
        let stop = CancellationToken::new();
        tokio::spawn(providers.clone().run(stop.clone()));
        World { client, providers, stop, server }
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    /// A Task whose instances are closed off, and the class of runtime that they need.
    pub(crate) async fn closed_task(&self) -> Task {
        let class = json!({ "metadata": { "name": "kata-qemu" }, "handler": "kata" });
        let class = serde_json::from_value(class).unwrap();
        Api::<RuntimeClass>::all(self.client.clone()).create(&PostParams::default(), &class).await.unwrap();
        self.task(json!({
            "deployment": { "type": "sandbox", "sandboxTemplate": { "rootfs": { "image": "box:1" } } },
            "routing": by_session(),
        }))
        .await
    }

    pub(crate) async fn task(&self, spec: Value) -> Task {
        let object = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": { "name": "agent" }, "spec": spec,
        });
        let task = serde_json::from_value(object).expect("this is a Task");
        self.api().create(&PostParams::default(), &task).await.expect("the server takes it")
    }

    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned,
        K: std::fmt::Debug + serde::Serialize,
    {
        let object = serde_json::from_value(object).expect("this is such an object");
        self.api().create(&PostParams::default(), &object).await.expect("the server takes it")
    }

    pub(crate) async fn initialize(
        &self,
        task: &Task,
        known: bool,
    ) -> Result<Vec<(String, Repaired)>, SpecError> {
        self.look(task, known, false).await
    }

    /// The same, in a full pass or not.
    pub(crate) async fn look(
        &self,
        task: &Task,
        known: bool,
        closely: bool,
    ) -> Result<Vec<(String, Repaired)>, SpecError> {
        let repairs = self.providers.initialize_spec(task, &first(), known, closely).await?;
        Ok(repairs
            .into_iter()
            .map(|repair| (format!("{} {}", repair.kind, repair.name), repair.what))
            .collect())
    }

    /// From now on the providers hear of nothing any more.
    pub(crate) fn deafen(&self) {
        self.stop.cancel();
    }

    pub(crate) fn status(&self, task: &Task) -> SpecStatus {
        self.providers.spec_status(task, &first())
    }

    /// Waits until the revision stands as wanted.
    pub(crate) async fn until(&self, task: &Task, wanted: impl Fn(&SpecStatus) -> bool) -> SpecStatus {
        let mut looks = tokio::time::interval(Duration::from_millis(10));
        let waiting = async {
            loop {
                let status = self.status(task);
                if wanted(&status) {
                    return status;
                }
                looks.tick().await;
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(status) => status,
            Err(_) => panic!("it stands at {:?}", self.status(task)),
        }
    }

    /// Has the initialization repeated at every change, as the controller does, until its outcome is as wanted.
    pub(crate) async fn converge<T>(&self, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
        let mut changes = self.providers.changes();
        let waiting = async {
            loop {
                if let Some(done) = attempt().await {
                    return done;
                }
                changes.next().await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("in time")
    }
}

pub(crate) fn first() -> SpecId {
    SpecId("agent-1".into())
}

pub(crate) fn by_session() -> Value {
    json!({ "routePolicy": "BySession", "sessionIdentifier": { "extractors": [{ "type": "httpHeader", "name": "X" }] } })
}

pub(crate) fn pod_task(containers: Value) -> Value {
    json!({
        "deployment": { "type": "pod", "podTemplate": { "spec": { "containers": containers } } },
        "routing": by_session(),
    })
}

pub(crate) fn agent() -> Value {
    json!([{ "name": "agent", "image": "agent:1" }])
}

pub(crate) fn bundle_task() -> Value {
    json!({
        "deployment": { "type": "code-bundle", "codeBundle": {
            "inline": { "main.py": "print(1)" }, "entrypoint": "main.py", "codeRuntime": { "name": "python3.11" },
        } },
        "routing": by_session(),
    })
}

pub(crate) async fn set_status(api: &Api<Pod>, name: &str, status: Value) {
    let patch = Patch::Merge(json!({ "status": status }));
    api.patch_status(name, &PatchParams::default(), &patch).await.expect("a status");
}
