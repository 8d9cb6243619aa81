//! A stage for the controllers: an API server, something that runs Pods, agents, and controllers that can die.

pub(crate) mod agents;
pub(crate) mod denial;
pub(crate) mod fuse;
pub(crate) mod server;
pub(crate) mod workloads;

use std::sync::Arc;
use std::time::Duration;

use agentcube_api::middleware::change::{ChangeStatus, ChangeTask};
use agentcube_api::{App, Component, Group, Plugin};
use agentcube_apiserver::Server;
use agentcube_middleware::options::{Batches, GroupSettings, Settings};
use agentcube_middleware::{Controllers, Options};
use agentcube_operator::metrics::Registry;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use agents::Fakes;
use denial::Denial;
use fuse::Fuse;
use workloads::World;

pub(crate) const NAMESPACE: &str = "here";
/// Another one, where nobody runs Pods.
pub(crate) const ELSEWHERE: &str = "there";
/// Longer than anything takes, unless it is broken.
const LONG: Duration = Duration::from_secs(120);

/// The recipe of the tests: a StatefulSet with a volume, a configuration, and two Services.
pub(crate) fn plugin() -> Value {
    let set = r#"
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ .Values.name }}
spec:
  serviceName: {{ .Values.name }}
  selector:
    matchLabels: {{ toYaml .Values.selectorLabels | nindent 6 }}
  template:
    spec:
      containers:
      - name: main
        image: {{ .Values.image | quote }}
        resources: {{ toYaml (.Values.resources | default dict) | nindent 10 }}
        env:
        - name: PASSWORD
          valueFrom: {secretKeyRef: {name: {{ .Values.connectionSecret }}, key: password}}
  {{- with .Values.storage }}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: {{ .size }}}}
  {{- end }}
"#;
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Values.name }}}\ndata:\n  main: {{ toJson .Values.config | quote }}\n";
    let service = |suffix: &str, selector: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {{{{ .Values.name }}}}{suffix}}}\nspec:\n  ports: [{{port: 6379}}]\n  \
             selector: {selector}\n"
        )
    };
    let primary = service(
        "-primary",
        "{ {{ range $k, $v := .Values.selectorLabels }}{{ $k }}: {{ $v }}{{ end }}, middleware.io/role: master }",
    );
    json!({ "metadata": { "name": "redis-v1" }, "spec": {
        "name": "redis", "version": "1",
        "runtimes": [{ "name": "redis", "versions": ["7.0", "7.2", "7.4", "bad"] }],
        "images": { "7.0": "redis:7.0", "7.2": "redis:7.2", "7.4": "redis:7.4", "bad": "redis:bad" },
        "compatibility": { "migrateFrom": { "7.2": ["7.0"], "7.4": ["7.0", "7.2"], "bad": ["7.0"] } },
        "capabilities": { "scaling": true, "failover": true, "configReload": true },
        "connection": { "component": "nodes", "port": 6379, "user": "default" },
        "defaultValues": { "maxmemory": "1gb" },
        "highAvailability": { "passive": { "roleDetection": { "command": "role", "interval": "100ms" } } },
        "templates": [
            { "name": "config", "type": "configmap", "template": config },
            { "name": "headless", "type": "service", "template": service("", "{{ toJson .Values.selectorLabels }}") },
            { "name": "primary", "type": "service", "template": primary },
            { "name": "pods", "type": "statefulset", "template": set },
        ] } })
}

pub(crate) fn app(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": {
        "plugin": { "name": "redis", "version": "1" }, "runtime": { "name": "redis", "version": "7.0" },
        "components": [{ "name": "nodes", "groups": [
            { "name": "main", "replicas": 3, "storage": { "size": "1Gi" } }] }] } })
}

/// Without a pause between Pods.
pub(crate) fn options() -> Options {
    let rolling_update = Batches { batch_size: 1, interval: Duration::ZERO.into() };
    let group = GroupSettings { rolling_update, ..GroupSettings::default() };
    Options { settings: Settings { group, ..Settings::default() }, ..Options::default() }
}

/// Controllers that run.
pub(crate) struct Running {
    shutdown: CancellationToken,
    running: JoinHandle<()>,
}

impl Running {
    /// Ends them as a crash would.
    #[allow(dead_code, reason = "the suite on kube-apiserver has no deaths")]
    pub(crate) async fn crash(self) {
        self.running.abort();
        let _ = self.running.await;
    }

    /// Ends them in order.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.running.await.expect("nothing panicked");
    }
}

pub(crate) struct Stage {
    _server: Option<Server>,
    pub(crate) client: Client,
    pub(crate) world: Arc<World>,
    /// What the controllers may not write.
    pub(crate) denial: Denial,
    playing: CancellationToken,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.playing.cancel();
    }
}

impl Stage {
    pub(crate) async fn open() -> Stage {
        let (client, server) = server::open().await;
        let world = Arc::new(World::default());
        let playing = CancellationToken::new();
        tokio::spawn(workloads::play(client.clone(), world.clone(), playing.clone()));
        Stage { _server: server, client, world, denial: Denial::default(), playing }
    }

    /// With the plugin, and one App.
    pub(crate) async fn with_app() -> Stage {
        let stage = Stage::open().await;
        stage.create::<Plugin>(plugin()).await;
        stage.create::<App>(app("cache")).await;
        stage
    }

    pub(crate) fn start(&self) -> Running {
        self.start_with(&Fuse::never())
    }

    pub(crate) fn start_with(&self, fuse: &Fuse) -> Running {
        self.start_whole(fuse, options())
    }

    pub(crate) fn start_as(&self, options: Options) -> Running {
        self.start_whole(&Fuse::never(), options)
    }

    fn start_whole(&self, fuse: &Fuse, options: Options) -> Running {
        let agents = Arc::new(Fakes { world: self.world.clone(), fuse: fuse.clone() });
        let client = fuse.client(&self.denial.client(&self.client));
        let controllers = Controllers::new(client, agents, options, &Registry::new());
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(controllers.run(shutdown.clone()));
        Running { shutdown, running }
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
    {
        let object: K = serde_json::from_value(object).unwrap();
        self.api::<K>().create(&PostParams::default(), &object).await.expect("the server takes it")
    }

    pub(crate) async fn patch<K>(&self, name: &str, patch: Value)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        self.api::<K>()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("it is taken");
    }

    /// The user changes the only group of the App `cache`, and the rest of its spec.
    pub(crate) async fn edit(&self, group: Value, rest: Value) {
        let mut spec = rest;
        let mut current = self.api::<App>().get("cache").await.unwrap().spec.components[0].groups[0].clone();
        let mut merged = serde_json::to_value(&current).unwrap();
        merged.as_object_mut().unwrap().extend(group.as_object().unwrap().clone());
        current = serde_json::from_value(merged).unwrap();
        spec["components"] = json!([{ "name": "nodes", "groups": [current] }]);
        self.patch::<App>("cache", json!({ "spec": spec })).await;
    }

    pub(crate) async fn until<K>(&self, name: &str, wanted: impl Fn(&K) -> bool) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        let last = Mutex::new(None);
        let look = async || {
            let now = self.api::<K>().get_opt(name).await.unwrap();
            last.lock().clone_from(&now);
            now.filter(|now| wanted(now))
        };
        match tokio::time::timeout(LONG, search(look)).await {
            Ok(found) => found,
            Err(_) => panic!("{name} is not as wanted: {:#?}", last.lock()),
        }
    }

    /// Until the App has carried out its present spec in full.
    pub(crate) async fn until_done(&self) -> App {
        let wanted = self.api::<App>().get("cache").await.unwrap().metadata.generation;
        self.until("cache", |app: &App| {
            let status = app.status.clone().unwrap_or_default();
            status.last_completed_generation == wanted
                && status.phase == Some(agentcube_api::middleware::app::AppPhase::Running)
        })
        .await
    }

    /// Until a task stands like this.
    pub(crate) async fn until_task(&self, id: &str, wanted: ChangeStatus) -> ChangeTask {
        let task = |app: &App| {
            let tasks = app.status.clone().unwrap_or_default().tasks;
            tasks.into_iter().find(|task| task.task_id == id)
        };
        let app = self.until("cache", |app: &App| task(app).is_some_and(|task| task.status == wanted)).await;
        task(&app).unwrap()
    }

    pub(crate) async fn group(&self) -> Group {
        self.api::<Group>().get("cache-nodes-main").await.unwrap()
    }

    pub(crate) async fn until_event(&self, reason: &str) -> Event {
        until(&format!("an Event {reason}"), async || {
            let events = self.api::<Event>().list(&ListParams::default()).await.unwrap().items;
            events.into_iter().find(|event| event.reason.as_deref() == Some(reason))
        })
        .await
    }

    pub(crate) async fn delete_app(&self) {
        let _ = self.api::<App>().delete("cache", &DeleteParams::default()).await;
    }

    pub(crate) async fn until_gone(&self) {
        until("nothing is left", async || {
            let apps = self.api::<App>().list(&ListParams::default()).await.unwrap().items.len();
            let components = self.api::<Component>().list(&ListParams::default()).await.unwrap().items.len();
            let groups = self.api::<Group>().list(&ListParams::default()).await.unwrap().items.len();
            let pods: Api<k8s_openapi::api::core::v1::Pod> = self.api();
            let pods = pods.list(&ListParams::default()).await.unwrap().items.len();
            (apps + components + groups + pods == 0).then_some(())
        })
        .await;
    }
}

async fn search<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn until<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    match tokio::time::timeout(LONG, search(look)).await {
        Ok(found) => found,
        Err(_) => panic!("waited in vain: {what}"),
    }
}
