//! The Job controller over the embedded API server: while the server refuses, loses answers and cuts watches, and
//! the controllers are killed at any point, every Pod is counted exactly once and never too many are at work.

use std::collections::{HashMap, HashSet};
use std::thread::JoinHandle;

use agentcube_apiserver::Server;
use agentcube_apiserver::faults::Plan;
use agentcube_node::controllers::{Caches, spawn};
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const FINALIZER: &str = "batch.kubernetes.io/job-tracking";

struct Cluster {
    server: Server,
    client: Client,
    controllers: Option<Controllers>,
}

impl Cluster {
    async fn start() -> Self {
        let server = Server::builder().memory().embed().await.expect("an embedded server");
        let client = Client::new(server.front(), "default");
        let controllers = Some(Controllers::start(&server));
        Self { server, client, controllers }
    }

    /// Ends the controllers wherever they are, and starts new ones that know nothing.
    fn crash(&mut self) {
        drop(self.controllers.take());
        self.controllers = Some(Controllers::start(&self.server));
    }

    fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }
}

/// The controllers in a runtime with one thread, so that nothing of them goes on once it is gone: as if they were a
/// process that is killed.
struct Controllers {
    alive: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Controllers {
    fn start(server: &Server) -> Self {
        let (alive, killed) = oneshot::channel();
        let front = server.front();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let client = Client::new(front, "default");
                let (mut tasks, shutdown) = (JoinSet::new(), CancellationToken::new());
                let caches = Caches::start(&client, &mut tasks, &shutdown);
                spawn(&client, &caches, &mut tasks, &shutdown);
                // An error says that the other end is gone, which is the signal.
                let _ = killed.await;
            });
        });
        Self { alive: Some(alive), thread: Some(thread) }
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        drop(self.alive.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the controllers did not panic");
        }
    }
}

fn job(name: &str, spec: Value) -> Job {
    let mut job = json!({
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "host"}]}}},
    });
    for (key, value) in spec.as_object().cloned().unwrap_or_default() {
        job["spec"][key] = value;
    }
    serde_json::from_value(job).expect("a Job")
}

/// Asks until the server answers; faults are for the controllers.
macro_rules! persist {
    ($request:expr) => {
        loop {
            match $request.await {
                Ok(answer) => break answer,
                Err(kube::Error::Api(status)) if status.code == 404 => break Default::default(),
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
}

/// How a Pod ended, long enough ago that nobody waits before replacing it.
fn end(phase: &str) -> Value {
    let exit = i32::from(phase != "Succeeded");
    json!({"status": {"phase": phase, "containerStatuses": [{
        "name": "c", "image": "host", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": exit, "finishedAt": "2020-01-01T00:00:00Z"}},
    }]}})
}

fn is_active(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Succeeded" | "Failed"))
}

fn condition(job: &Job, kind: &str) -> bool {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|one| one.type_ == kind && one.status == "True")
}

/// Plays the node: every Pod fails or succeeds as `ends` says in turn. Returns the Job once it has ended.
async fn play(
    cluster: &mut Cluster,
    name: &str,
    ends: &[&str],
    crash_every: usize,
) -> (Job, HashMap<String, String>) {
    let mut ended: HashMap<String, String> = HashMap::new();
    let mut turn = 0;
    loop {
        let job: Job = persist!(cluster.jobs().get(name));
        if condition(&job, "Complete") || condition(&job, "Failed") {
            return (job, ended);
        }
        let parallelism = job.spec.as_ref().and_then(|spec| spec.parallelism).unwrap_or(1);
        let there = loop {
            match cluster.pods().list(&ListParams::default().labels(&format!("job-name={name}"))).await {
                Ok(list) => break list.items,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let active: Vec<&Pod> = there.iter().filter(|pod| is_active(pod)).collect();
        assert!(active.len() <= usize::try_from(parallelism).expect("a count"), "{} at work", active.len());
        for pod in active {
            let phase = ends[turn % ends.len()];
            turn += 1;
            let patch = Patch::Merge(end(phase));
            let _: Option<Pod> = persist!(async {
                cluster.pods().patch_status(&pod.name_any(), &PatchParams::default(), &patch).await.map(Some)
            });
            ended.insert(pod.uid().expect("a uid"), phase.to_owned());
            if crash_every > 0 && turn % crash_every == 0 {
                cluster.crash();
            }
        }
        tokio::task::yield_now().await;
    }
}

fn count(ended: &HashMap<String, String>, phase: &str) -> Option<i32> {
    let count = ended.values().filter(|ended| *ended == phase).count();
    (count > 0).then(|| i32::try_from(count).expect("a count"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_every_pod_once_whatever_fails() {
    let mut cluster = Cluster::start().await;
    for seed in 0..4 {
        let name = format!("job-{seed}");
        let spec = json!({"completions": 12, "parallelism": 3, "backoffLimit": 100});
        cluster.jobs().create(&PostParams::default(), &job(&name, spec)).await.expect("created");
        cluster.server.api().faults().set(Plan {
            seed,
            conflict: 0.05,
            internal: 0.05,
            unavailable: 0.02,
            lost_reply: 0.1,
            drop_watch: 0.1,
            ..Plan::default()
        });
        let (job, ended) = play(&mut cluster, &name, &["Succeeded", "Failed", "Succeeded"], 5).await;
        cluster.server.api().faults().clear();
        let status = job.status.expect("a status");
        assert_eq!(status.succeeded, count(&ended, "Succeeded"), "seed {seed}");
        assert_eq!(status.failed, count(&ended, "Failed"), "seed {seed}");
        assert_eq!(status.uncounted_terminated_pods, Some(Default::default()));
        let pods = cluster.pods().list(&ListParams::default().labels(&format!("job-name={name}"))).await;
        let pods = pods.expect("a list").items;
        assert_eq!(pods.len(), ended.len(), "nobody knows of the others");
        assert!(pods.iter().all(|pod| pod.finalizers().is_empty()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_index_succeeds_once_whatever_fails() {
    let mut cluster = Cluster::start().await;
    let spec = json!({"completions": 8, "parallelism": 3, "completionMode": "Indexed", "backoffLimit": 100});
    cluster.jobs().create(&PostParams::default(), &job("indexed", spec)).await.expect("created");
    cluster.server.api().faults().set(Plan {
        seed: 7,
        lost_reply: 0.1,
        internal: 0.1,
        drop_watch: 0.1,
        ..Plan::default()
    });
    let (job, ended) = play(&mut cluster, "indexed", &["Failed", "Succeeded"], 4).await;
    cluster.server.api().faults().clear();
    let status = job.status.expect("a status");
    assert_eq!((status.succeeded, status.completed_indexes.as_deref()), (Some(8), Some("0-7")));
    assert_eq!(status.failed, count(&ended, "Failed"));
    let pods = cluster.pods().list(&ListParams::default()).await.expect("a list").items;
    let succeeded =
        pods.iter().filter(|pod| ended.get(&pod.uid().expect("a uid")).is_some_and(|end| end == "Succeeded"));
    let indexes: HashSet<&String> =
        succeeded.map(|pod| &pod.annotations()["batch.kubernetes.io/job-completion-index"]).collect();
    assert_eq!(indexes.len(), 8);
}

/// What is left of a Job that is gone is not held for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_job_that_is_gone_are_let_go() {
    let cluster = Cluster::start().await;
    let api = cluster.pods();
    let mut events = std::pin::pin!(api.watch(&WatchParams::default(), "0").await.expect("a watch"));
    cluster.jobs().create(&PostParams::default(), &job("short", json!({}))).await.expect("created");
    while let Some(event) = events.next().await {
        if let Ok(WatchEvent::Added(pod)) = event {
            assert!(pod.finalizers().iter().any(|finalizer| finalizer == FINALIZER));
            break;
        }
    }
    cluster.jobs().delete("short", &DeleteParams::background()).await.expect("deleted");
    while let Some(event) = events.try_next().await.expect("the watch goes on") {
        if let WatchEvent::Deleted(_) = event {
            return;
        }
    }
}
