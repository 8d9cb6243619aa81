//! The load: a thousand Tasks, then a thousand instances of ten of them.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use agentcube_api::Task;
use agentcube_api::agentcube::task::TaskPhase;
use agentcube_testkit::cluster::real::{Controllers, Real};
use agentcube_testkit::cluster::{Binaries, free_port};
use agentcube_testkit::supervise::Process;
use agentcube_testkit::{HttpClient, Request};
use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use http::Method;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::roles::{self, SYSTEM};
use crate::{idle, kubelet};

pub(crate) const TASKS: usize = 1_000;
/// Of how many Tasks, and how many each.
const SCALED: usize = 10;
const INSTANCES: i32 = 100;
const AT_ONCE: usize = 32;
const LIMIT: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(20);
/// How long all has been quiet before it is looked at, and how long it is looked at.
const SETTLE: Duration = Duration::from_secs(15);
const IDLE: Duration = Duration::from_secs(30);

/// What was measured.
pub(crate) struct Measured {
    /// Until the server has all Tasks.
    pub(crate) applied: Duration,
    /// Until all of them are served.
    pub(crate) serving: Duration,
    /// Of the controllers, when all are served.
    pub(crate) controller_bytes: u64,
    pub(crate) router_bytes: u64,
    /// From asking for a thousand instances until all are known to be idle.
    pub(crate) scaled: Duration,
    pub(crate) controller: idle::Idle,
    pub(crate) router: idle::Idle,
}

pub(crate) async fn measure(binaries: &Binaries) -> Result<Measured> {
    let server = Real::start(binaries, Controllers::Api).await?;
    let directory = tempfile::tempdir()?;
    let kubeconfig = directory.path().join("kubeconfig");
    std::fs::write(&kubeconfig, server.kubeconfig())?;
    install(&server.client()?).await?;
    let client = roles::connect(&kubeconfig).await?;
    let kubelet = tokio::spawn(kubelet::run(client.clone(), "default"));
    let controller = role(roles::CONTROLLER, &kubeconfig)?;
    let router = role(roles::ROUTER, &kubeconfig)?;
    let http = server.client()?;
    eprintln!("    {TASKS} Tasks");
    let begun = Instant::now();
    let (applied, serving) = tokio::try_join!(
        async {
            apply(&http).await?;
            anyhow::Ok(begun.elapsed())
        },
        async {
            until(&client, |tasks| serving(tasks) == TASKS).await.with_context(|| {
                format!("not all Tasks are served\n{}\n{}", controller.log_tail(), router.log_tail())
            })?;
            Ok(begun.elapsed())
        }
    )?;
    let (controller_bytes, router_bytes) = (controller.resident_bytes()?, router.resident_bytes()?);
    eprintln!("    {} instances", SCALED as i32 * INSTANCES);
    let begun = Instant::now();
    scale(&client).await?;
    until(&client, |tasks| instances(tasks) == i64::from(SCALED as i32 * INSTANCES))
        .await
        .with_context(|| format!("not all instances are idle\n{}", controller.log_tail()))?;
    let scaled = begun.elapsed();
    eprintln!("    idle for {IDLE:?}");
    tokio::time::sleep(SETTLE).await;
    let (of_controller, of_router) = ([controller.pid()], [router.pid()]);
    let (idle_controller, idle_router) =
        tokio::try_join!(idle::measure(&of_controller, IDLE), idle::measure(&of_router, IDLE))?;
    kubelet.abort();
    Ok(Measured {
        applied,
        serving,
        controller_bytes,
        router_bytes,
        scaled,
        controller: idle_controller,
        router: idle_router,
    })
}

/// This program as one of the processes that are measured.
fn role(name: &str, kubeconfig: &Path) -> Result<Process> {
    let log = kubeconfig.with_file_name(format!("{name}.log"));
    let args = [name.to_owned(), kubeconfig.display().to_string()];
    Process::start(&std::env::current_exe()?, &args, &log)
}

async fn post(http: &HttpClient, path: &str, body: &Value) -> Result<()> {
    let reply = http.send(Request::new(Method::POST, path).json(body)).await?;
    ensure!(reply.is_success(), "{path}: {}", reply.value());
    Ok(())
}

/// All definitions, the operator's namespace, and a gateway of our own class.
async fn install(http: &HttpClient) -> Result<()> {
    let definitions = agentcube_api::crds().into_iter().chain(agentcube_task::definitions());
    for definition in definitions {
        let definition = serde_json::to_value(definition)?;
        post(http, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await?;
    }
    post(http, "/api/v1/namespaces", &json!({"metadata": {"name": SYSTEM}})).await?;
    let class = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": agentcube_task::BUILT_IN_CLASS},
        "spec": {"controllerName": agentcube_router::CONTROLLER},
    });
    until_posted(http, "/apis/gateway.networking.k8s.io/v1/gatewayclasses", &class).await?;
    let gateway = json!({
        "apiVersion": "agentcube.io/v1alpha1", "kind": "TaskGateway", "metadata": {"name": "default"},
        "spec": {"listeners": [{"name": "http", "protocol": "HTTP", "port": free_port()?}]},
    });
    until_posted(http, "/apis/agentcube.io/v1alpha1/namespaces/default/taskgateways", &gateway).await
}

/// As soon as the server serves the kind.
async fn until_posted(http: &HttpClient, path: &str, body: &Value) -> Result<()> {
    let served = async {
        while http.send(Request::new(Method::GET, path)).await?.status == 404 {
            tokio::time::sleep(POLL).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(LIMIT, served).await.with_context(|| format!("{path} is not served"))??;
    post(http, path, body).await
}

async fn apply(http: &HttpClient) -> Result<()> {
    let path = "/apis/agentcube.io/v1alpha1/namespaces/default/tasks";
    let tasks = stream::iter(0..TASKS).map(|number| async move {
        let task = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": {"name": format!("agent-{number}")},
            "spec": {
                "deployment": {
                    "type": "pod",
                    "podTemplate": {"spec": {"containers": [{"name": "agent", "image": "agent:1"}]}},
                },
                "scaling": {"scalingMode": "OnDemand", "maxInstances": INSTANCES},
                "routing": {
                    "routePolicy": "BySession",
                    "sessionIdentifier": {"extractors": [{"type": "httpHeader", "name": "X-Session-ID"}]},
                },
            },
        });
        post(http, path, &task).await
    });
    tasks.buffer_unordered(AT_ONCE).try_collect().await
}

async fn scale(client: &Client) -> Result<()> {
    let tasks: Api<Task> = Api::namespaced(client.clone(), "default");
    let change = Patch::Merge(json!({"spec": {"scaling": {"minInstances": INSTANCES}}}));
    for number in 0..SCALED {
        tasks.patch(&format!("agent-{number}"), &PatchParams::default(), &change).await?;
    }
    Ok(())
}

/// Follows all Tasks until something holds of them.
async fn until(client: &Client, holds: impl Fn(&HashMap<String, Task>) -> bool) -> Result<()> {
    let tasks: Api<Task> = Api::namespaced(client.clone(), "default");
    let mut seen = HashMap::new();
    let events = watcher(tasks, watcher::Config::default()).default_backoff().applied_objects();
    // A watch that breaks begins anew.
    let mut events = std::pin::pin!(events.filter_map(|event| std::future::ready(event.ok())));
    let follow = async {
        while !holds(&seen) {
            let task = events.next().await.context("the watch has ended")?;
            seen.insert(task.name_any(), task);
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(LIMIT, follow).await.context("it took too long")?
}

fn serving(tasks: &HashMap<String, Task>) -> usize {
    let is_served = |task: &&Task| {
        let status = task.status.as_ref();
        status.is_some_and(|status| status.phase == Some(TaskPhase::Serving))
    };
    tasks.values().filter(is_served).count()
}

/// Instances that all Tasks together count as idle.
fn instances(tasks: &HashMap<String, Task>) -> i64 {
    let idle = |task: &Task| Some(i64::from(task.status.as_ref()?.instances.as_ref()?.idle));
    tasks.values().filter_map(idle).sum()
}
