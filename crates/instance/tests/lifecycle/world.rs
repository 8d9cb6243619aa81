//! A world for the lifecycle manager: Tasks with revisions, instances and sessions made by hand on the embedded API
//! server, and routers that acknowledge, object, or say nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::{Task, labels};
use agentcube_apiserver::Server;
use agentcube_apiserver::faults::Faults;
use agentcube_apiserver::http::Front;
use agentcube_instance::lifecycle::{Limits, Manager, Options, Reclaimed};
use agentcube_instance::record::{Instance, lease_name};
use agentcube_instance::revision::{Revision, labels_of, owner};
use agentcube_instance::timing::Timing;
use agentcube_instance::{SessionKey, SpecId, TaskId};
use agentcube_operator::cache::Cache;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod, PodTemplate};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Where the routers' Leases are.
pub(crate) const SYSTEM: &str = "agentcube-system";
/// Longer than any test takes that works.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct World {
    server: Arc<Server>,
    /// Where the Tasks are.
    pub(crate) namespace: String,
    pub(crate) client: Client,
    pub(crate) pods: Cache<Pod>,
    pub(crate) leases: Cache<Lease>,
    pub(crate) jobs: Cache<Job>,
    pub(crate) events: Cache<Event>,
    shutdown: CancellationToken,
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Time limits so short that nobody waits for them, and so long that a busy machine keeps them.
pub(crate) fn timing() -> Timing {
    Timing {
        grace: Duration::from_millis(200),
        heartbeat: Duration::from_millis(500),
        silent: Duration::from_secs(20),
        out_of_touch: Duration::from_secs(60),
    }
}

pub(crate) fn limits() -> Limits {
    Limits { rest: Duration::from_millis(200), dead: Duration::from_millis(50), ..Limits::default() }
}

pub(crate) fn options() -> Options {
    Options { namespace: SYSTEM.into(), timing: timing(), limits: limits() }
}

/// A manager that runs until it is dropped.
pub(crate) struct Running {
    pub(crate) reclaimed: Reclaimed,
    shutdown: CancellationToken,
    ended: Option<tokio::task::JoinHandle<()>>,
}

impl Running {
    /// Ends it as a crash does, without a last word.
    pub(crate) fn abort(mut self) {
        self.ended.take().expect("it was started").abort();
    }

    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        self.ended.take().expect("it was started").await.expect("the manager does not panic");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

pub(crate) fn run(client: Client, options: Options) -> Running {
    let manager = Manager::new(client, options);
    let (reclaimed, shutdown) = (manager.reclaimed(), CancellationToken::new());
    let ended = Some(tokio::spawn(manager.run(shutdown.clone())));
    Running { reclaimed, shutdown, ended }
}

impl World {
    pub(crate) async fn new() -> World {
        let server = Server::builder().memory().embed().await.expect("a server in memory starts");
        let client = Client::new(server.front(), "default");
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let task = agentcube_api::crds().into_iter().find(|crd| crd.name_any() == "tasks.agentcube.io");
        definitions.create(&PostParams::default(), &task.expect("Tasks are defined")).await.unwrap();
        let established = kube::runtime::conditions::is_crd_established();
        let defined = kube::runtime::wait::await_condition(definitions, "tasks.agentcube.io", established);
        defined.await.unwrap();
        create_namespace(&client, SYSTEM).await;
        let shutdown = CancellationToken::new();
        let config = watcher::Config::default;
        let world = World {
            pods: Cache::new(client.clone(), config()),
            leases: Cache::new(client.clone(), config()),
            jobs: Cache::new(client.clone(), config()),
            events: Cache::new(client.clone(), config()),
            server: Arc::new(server),
            namespace: "default".into(),
            client,
            shutdown: shutdown.clone(),
        };
        tokio::spawn(world.pods.clone().run(shutdown.clone()));
        tokio::spawn(world.leases.clone().run(shutdown.clone()));
        tokio::spawn(world.jobs.clone().run(shutdown.clone()));
        tokio::spawn(world.events.clone().run(shutdown.clone()));
        world.pods.synced().await;
        world.leases.synced().await;
        world.events.synced().await;
        world
    }

    /// Another namespace of the same world.
    pub(crate) async fn elsewhere(&self, namespace: &str) -> World {
        create_namespace(&self.client, namespace).await;
        World {
            server: self.server.clone(),
            namespace: namespace.into(),
            client: self.client.clone(),
            pods: self.pods.clone(),
            leases: self.leases.clone(),
            jobs: self.jobs.clone(),
            events: self.events.clone(),
            // What follows the server belongs to the first.
            shutdown: CancellationToken::new(),
        }
    }

    /// The server, for a client of one's own.
    pub(crate) fn front(&self) -> Front {
        self.server.front()
    }

    /// Has the server fail in the ways that a plan says.
    pub(crate) fn faults(&self) -> &Faults {
        self.server.api().faults()
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Waits until the condition holds; looks again whenever a Pod, a Lease, a Job or an Event changes.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&World) -> bool) {
        let (mut pods, mut leases) = (self.pods.subscribe(), self.leases.subscribe());
        let (mut jobs, mut events) = (self.jobs.subscribe(), self.events.subscribe());
        let holds = async {
            while !condition(self) {
                tokio::select! {
                    _ = pods.recv() => {}
                    _ = leases.recv() => {}
                    _ = jobs.recv() => {}
                    _ = events.recv() => {}
                }
            }
        };
        if tokio::time::timeout(PATIENCE, holds).await.is_err() {
            panic!("waited in vain for: {what}\n{}", self.describe());
        }
    }

    fn describe(&self) -> String {
        let pods = self.pods.list(None);
        let pods = pods.iter().map(|pod| format!("{:?}", Instance::read(&**pod)));
        let leases = self.leases.list(None);
        let leases = leases.iter().map(|lease| format!("{:?} {:?}", lease.metadata, lease.spec));
        pods.chain(leases).collect::<Vec<_>>().join("\n")
    }

    /// A Task with a revision of its own, as the Task controller leaves it.
    pub(crate) async fn task(&self, name: &str, scaling: Value) -> Made {
        let tasks: Api<Task> = self.api();
        let task = json!({ "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": { "name": name },
            "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} }, "scaling": scaling } });
        let task: Task = serde_json::from_value(task).unwrap();
        let task = tasks.create(&PostParams::default(), &task).await.unwrap();
        let id = TaskId {
            namespace: self.namespace.as_str().into(),
            name: name.into(),
            uid: task.uid().unwrap().into(),
        };
        let made = Made { id };
        self.revision(&made, 1, "slots").await;
        made
    }

    /// Makes a revision and has the Task name it as the current one.
    pub(crate) async fn revision(&self, task: &Made, number: u32, form: &str) -> SpecId {
        let spec = SpecId(format!("{}-{number}", task.id.name).into());
        let mut labels_of_revision = labels_of(&task.id, &spec);
        labels_of_revision.insert(labels::FORM.into(), form.into());
        let template = json!({ "metadata": { "name": &*spec.0, "labels": labels_of_revision,
                "ownerReferences": [owner(&task.id)] },
            "template": { "spec": { "containers": [{ "name": "agent", "image": "agent:1" }] } } });
        let template: PodTemplate = serde_json::from_value(template).unwrap();
        self.api::<PodTemplate>().create(&PostParams::default(), &template).await.unwrap();
        let status = json!({ "status": { "specID": &*spec.0 } });
        let tasks: Api<Task> = self.api();
        tasks.patch_status(&task.id.name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
        spec
    }

    pub(crate) async fn scale(&self, task: &Made, scaling: Value) {
        let change = Patch::Merge(json!({ "spec": { "scaling": scaling } }));
        self.api::<Task>().patch(&task.id.name, &PatchParams::default(), &change).await.unwrap();
    }

    /// A ready instance in a slot, of the revision of this number.
    pub(crate) async fn instance(&self, task: &Made, number: u32, slot: u32) -> Pod {
        self.instance_with(task, number, slot, |_| ()).await
    }

    pub(crate) async fn instance_with(
        &self,
        task: &Made,
        number: u32,
        slot: u32,
        change: impl FnOnce(&mut Pod),
    ) -> Pod {
        let template: PodTemplate =
            self.api().get(&format!("{}-{number}", task.id.name)).await.expect("the revision was made");
        let mut pod = Revision::read(&template).unwrap().pod(slot, None);
        change(&mut pod);
        self.api::<Pod>().create(&PostParams::default(), &pod).await.unwrap();
        self.ready(&pod.name_any()).await
    }

    /// The Job of a revision.
    pub(crate) async fn job(&self, task: &Made, spec: &SpecId, parallelism: i32) -> Job {
        let job = json!({ "metadata": { "name": &*spec.0, "labels": labels_of(&task.id, spec),
                "ownerReferences": [owner(&task.id)] },
            "spec": { "parallelism": parallelism, "completions": i32::MAX, "template": { "spec": {
                "restartPolicy": "Never", "containers": [{ "name": "agent", "image": "agent:1" }] } } } });
        let job: Job = serde_json::from_value(job).unwrap();
        self.api().create(&PostParams::default(), &job).await.unwrap()
    }

    /// A ready Pod of a Job, as the Job controller makes it.
    pub(crate) async fn pod_of_job(&self, job: &Job, number: u32) -> Pod {
        let owner = json!({ "apiVersion": "batch/v1", "kind": "Job", "name": job.name_any(), "uid": job.uid(),
            "controller": true });
        let name = format!("{}-{number}", job.name_any());
        let pod = json!({ "metadata": { "name": name, "labels": job.labels(), "ownerReferences": [owner] },
            "spec": { "containers": [{ "name": "agent", "image": "agent:1" }] } });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.api::<Pod>().create(&PostParams::default(), &pod).await.unwrap();
        self.ready(&name).await
    }

    pub(crate) async fn ready(&self, pod: &str) -> Pod {
        let ready = json!({ "status": { "phase": "Running", "podIP": "10.0.0.7",
            "conditions": [{ "type": "Ready", "status": "True" }] } });
        self.status(pod, ready).await
    }

    pub(crate) async fn status(&self, pod: &str, status: Value) -> Pod {
        self.api::<Pod>().patch_status(pod, &PatchParams::default(), &Patch::Merge(status)).await.unwrap()
    }

    pub(crate) async fn annotate(&self, pod: &str, annotations: Value) -> Pod {
        let change = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        self.api::<Pod>().patch(pod, &PatchParams::default(), &change).await.unwrap()
    }

    /// A session that is bound to an instance, last active so many seconds ago.
    pub(crate) async fn session(&self, task: &Made, key: &str, pod: &Pod, idle: i64) -> Lease {
        let holder = format!("{}/{}", pod.name_any(), pod.uid().unwrap());
        let lease = self.lease(task, key, &holder, idle).await;
        let reservation = format!("{}.0", lease.uid().unwrap());
        let held = json!({ labels::RESERVE_KEY: key, labels::RESERVATION: reservation });
        self.annotate(&pod.name_any(), held).await;
        lease
    }

    /// A session's Lease alone.
    pub(crate) async fn lease(&self, task: &Made, key: &str, holder: &str, idle: i64) -> Lease {
        let finalizers: &[&str] = if holder.is_empty() { &[] } else { &[labels::SESSION_FINALIZER] };
        let renewed = Timestamp::now() - jiff::SignedDuration::from_secs(idle);
        let lease = json!({
            "metadata": {
                "name": lease_name(&task.id.uid, &SessionKey::new(key).unwrap()),
                "labels": { labels::LEASE: labels::LEASE_OF_SESSION, labels::TASK_UID: &*task.id.uid,
                    labels::TASK: &*task.id.name },
                "annotations": { labels::RESERVE_KEY: key, labels::BINDER: "router-a" },
                "finalizers": finalizers, "ownerReferences": [owner(&task.id)],
            },
            "spec": { "holderIdentity": holder, "leaseTransitions": 0, "renewTime": micros(renewed) },
        });
        let lease: Lease = serde_json::from_value(lease).unwrap();
        self.api().create(&PostParams::default(), &lease).await.unwrap()
    }

    /// The Lease as it is now, if it is the same.
    pub(crate) fn now(&self, lease: &Lease) -> Option<Arc<Lease>> {
        self.leases.get(&self.namespace, &lease.name_any()).filter(|now| now.uid() == lease.uid())
    }

    pub(crate) fn pod(&self, name: &str) -> Option<Arc<Pod>> {
        self.pods.get(&self.namespace, name)
    }

    /// The names of the Pods that are not being deleted.
    pub(crate) fn names(&self) -> Vec<String> {
        let pods = self.pods.list(Some(&self.namespace));
        let alive = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        alive.map(|pod| pod.name_any()).collect()
    }

    /// Whether there is an Event of this reason about this object.
    pub(crate) fn told(&self, kind: &str, name: &str, reason: &str) -> bool {
        self.events.list(Some(&self.namespace)).iter().any(|event| {
            let about = &event.involved_object;
            about.kind.as_deref() == Some(kind)
                && about.name.as_deref() == Some(name)
                && event.reason.as_deref() == Some(reason)
        })
    }

    /// A router that follows Leases and Pods and says in its Lease what it has seen, until it is dropped.
    pub(crate) async fn router(&self, name: &str, behaviour: Behaviour) -> Router {
        let objected = watch::Sender::new(0);
        let objections = objected.subscribe();
        let router =
            Router { name: format!("router-{name}"), objections, shutdown: CancellationToken::new() };
        let api: Api<Lease> = Api::namespaced(self.client.clone(), SYSTEM);
        let lease = json!({
            "metadata": { "name": router.name, "labels": { labels::LEASE: labels::LEASE_OF_ROUTER } },
            "spec": { "holderIdentity": name, "renewTime": micros(Timestamp::now()) },
        });
        let lease: Lease = serde_json::from_value(lease).unwrap();
        api.create(&PostParams::default(), &lease).await.unwrap();
        if behaviour != Behaviour::Silent {
            let (name, shutdown) = (router.name.clone(), router.shutdown.clone());
            let follower = Follower { client: self.client.clone(), name, behaviour, objected, shutdown };
            tokio::spawn(follower.follow());
        }
        router
    }
}

async fn create_namespace(client: &Client, name: &str) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
}

/// A Task that was made.
pub(crate) struct Made {
    pub(crate) id: TaskId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Agrees to everything.
    Agrees,
    /// Has requests in flight on every session and every instance: takes back every mark before it says that it has
    /// seen it.
    Objects,
    /// Has requests in flight when sessions end, and says so.
    IsCut,
    /// Says nothing at all.
    Silent,
}

/// A router that runs until this is dropped, when it falls silent.
pub(crate) struct Router {
    pub(crate) name: String,
    /// How often it has taken back a mark.
    pub(crate) objections: watch::Receiver<u32>,
    shutdown: CancellationToken,
}

impl Drop for Router {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

struct Follower {
    client: Client,
    name: String,
    behaviour: Behaviour,
    objected: watch::Sender<u32>,
    shutdown: CancellationToken,
}

impl Follower {
    async fn follow(self) {
        let config = watcher::Config::default;
        let leases: Cache<Lease> = Cache::new(self.client.clone(), config());
        let pods: Cache<Pod> = Cache::new(self.client.clone(), config());
        tokio::spawn(leases.clone().run(self.shutdown.clone()));
        tokio::spawn(pods.clone().run(self.shutdown.clone()));
        let (mut of_leases, mut of_pods) = (leases.subscribe(), pods.subscribe());
        let (mut seen_leases, mut seen_pods) = (0, 0);
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => return,
                change = of_leases.recv() => match &change.new {
                    Some(lease) if lease.namespace().as_deref() != Some(SYSTEM) => {
                        self.respond(&**lease).await;
                        seen_leases = seen_leases.max(version(&**lease));
                    }
                    _ => continue,
                },
                change = of_pods.recv() => match &change.new {
                    Some(pod) => {
                        self.respond(&**pod).await;
                        seen_pods = seen_pods.max(version(&**pod));
                    }
                    None => continue,
                },
            }
            self.say(seen_leases, seen_pods).await;
        }
    }

    async fn say(&self, seen_leases: u64, seen_pods: u64) {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), SYSTEM);
        let seen = Patch::Merge(json!({
            "metadata": { "annotations": { labels::SEEN_LEASES: seen_leases.to_string(),
                labels::SEEN_PODS: seen_pods.to_string() } },
            "spec": { "renewTime": micros(Timestamp::now()) },
        }));
        while api.patch(&self.name, &PatchParams::default(), &seen).await.is_err() {
            tokio::task::yield_now().await;
        }
    }

    /// What a router does that has requests in flight, before it says that it has seen something.
    async fn respond<K>(&self, object: &K)
    where
        K: agentcube_operator::cache::Object + kube::Resource<Scope = kube::core::NamespaceResourceScope>,
    {
        let marked = object.annotations().contains_key(labels::RELEASING);
        let ends = object.meta().deletion_timestamp.is_some();
        let change = match self.behaviour {
            Behaviour::Objects if marked => json!({ labels::RELEASING: null }),
            Behaviour::IsCut if ends && K::kind(&()) == "Lease" => json!({ labels::INTERRUPTED: self.name }),
            _ => return,
        };
        let api: Api<K> = Api::namespaced(self.client.clone(), &object.namespace().unwrap());
        let change = json!({ "metadata":
            { "resourceVersion": object.resource_version(), "annotations": change } });
        let changed = api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(change)).await;
        if changed.is_ok() {
            self.objected.send_modify(|objections| *objections += 1);
        }
    }
}

fn version<K: kube::Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_ref().unwrap().parse().unwrap()
}

fn micros(time: Timestamp) -> String {
    format!("{time:.6}")
}

/// Has a Pod run on a node, so that it takes time to stop.
pub(crate) fn on_a_node(pod: &mut Pod) {
    pod.spec.as_mut().expect("a Pod has a spec").node_name = Some("node-a".into());
}

/// Removes a Pod at once, as a kubelet does when its processes have ended.
pub(crate) async fn remove(world: &World, pod: &str) {
    let at_once = DeleteParams::default().grace_period(0);
    world.api::<Pod>().delete(pod, &at_once).await.unwrap();
}

pub(crate) fn annotation(pod: &Pod, name: &str) -> String {
    pod.metadata
        .annotations
        .as_ref()
        .and_then(|all: &BTreeMap<_, _>| all.get(name).cloned())
        .unwrap_or_default()
}
