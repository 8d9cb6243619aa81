//! What Pods do on a real node.

use std::path::PathBuf;
use std::sync::Arc;

use agentcube_runtime::spawner::Handle;
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::cluster::{Cluster, NODE, first, inside, phase, ready, waiting};

fn never(container: Value) -> Value {
    json!({"restartPolicy": "Never", "containers": [container]})
}

fn with(mut container: Value, more: Value) -> Value {
    if let (Value::Object(all), Value::Object(more)) = (&mut container, more) {
        all.extend(more);
    }
    container
}

/// A probe or hook that runs this program.
fn command(words: &[&str]) -> Value {
    json!({"exec": {"command": inside("", words)["command"]}})
}

fn ended(pod: &Pod) -> Result<ContainerStateTerminated> {
    first(pod).state.and_then(|state| state.terminated).with_context(|| format!("it ended: {:?}", pod.status))
}

fn restarts(pod: &Pod) -> i32 {
    first(pod).restart_count
}

fn running(pod: &Pod) -> bool {
    first(pod).state.is_some_and(|state| state.running.is_some())
}

/// Deletes a Pod and waits until it is gone; its last version.
async fn ends(cluster: &Cluster, name: &str, grace: u32) -> Result<Pod> {
    let version = cluster.version().await?;
    cluster.delete(name, Some(grace)).await?;
    cluster.follow(name, &version, None, |pod| pod.is_none()).await?.context("it was there")
}

pub(crate) async fn runs_to_completion(cluster: Arc<Cluster>) -> Result<()> {
    let message = with(
        inside("c", &["message", "/dev/termination-log", "all is well", "0"]),
        json!({"terminationMessagePath": "/dev/termination-log"}),
    );
    cluster.create("completes", never(message)).await?;
    let pod = cluster.until_phase("completes", "Succeeded").await?;
    let end = ended(&pod)?;
    ensure!(end.exit_code == 0 && end.reason.as_deref() == Some("Completed"), "{end:?}");
    ensure!(end.message.as_deref() == Some("all is well"), "{end:?}");
    let status = pod.status.clone().context("a status")?;
    ensure!(status.start_time.is_some() && status.qos_class.as_deref() == Some("BestEffort"), "{status:?}");
    ensure!(status.pod_ip.is_some_and(|address| address.starts_with("10.244.")), "an address");
    ensure!(first(&pod).container_id.is_some_and(|id| id.starts_with("agentcube://")), "an id");
    for (reason, words) in [("Pulled", "already present"), ("Created", "created"), ("Started", "started")] {
        cluster.until_event("completes", reason, words).await?;
    }
    cluster.delete("completes", None).await?;
    gone(&cluster, "completes").await?;
    Ok(())
}

pub(crate) async fn fails_and_stays_failed(cluster: Arc<Cluster>) -> Result<()> {
    let container = with(
        inside("c", &["say", "what went wrong", "3"]),
        json!({"terminationMessagePolicy": "FallbackToLogsOnError"}),
    );
    cluster.create("fails", never(container)).await?;
    let pod = cluster.until_phase("fails", "Failed").await?;
    let end = ended(&pod)?;
    ensure!((end.exit_code, restarts(&pod)) == (3, 0), "{end:?}");
    ensure!(end.message.as_deref() == Some("what went wrong\n"), "{end:?}");
    Ok(())
}

pub(crate) async fn backs_off(cluster: Arc<Cluster>) -> Result<()> {
    cluster.create("crashes", json!({"containers": [inside("c", &["exit", "1"])]})).await?;
    let pod =
        cluster.until_pod("crashes", |pod| waiting(pod) == "CrashLoopBackOff" && restarts(pod) >= 2).await?;
    let status = first(&pod);
    let message = status.state.and_then(|it| it.waiting).and_then(|it| it.message).context("a message")?;
    ensure!(
        message.starts_with("back-off ")
            && message.contains("restarting failed container=c pod=crashes_default("),
        "{message}"
    );
    ensure!(phase(&pod) == "Running" && !ready(&pod), "{:?}", pod.status);
    let last = status.last_state.and_then(|it| it.terminated).context("the run before")?;
    ensure!((last.exit_code, last.reason.as_deref()) == (1, Some("Error")), "{last:?}");
    cluster
        .until_event("crashes", "BackOff", "Back-off restarting failed container c in pod crashes_default")
        .await?;
    cluster.delete("crashes", None).await?;
    gone(&cluster, "crashes").await?;
    Ok(())
}

pub(crate) async fn init_containers_in_order(cluster: Arc<Cluster>) -> Result<()> {
    let mounts = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let init: Vec<Value> = ["one", "two", "three"]
        .iter()
        .map(|word| with(inside(word, &["append", "/v/words", word]), mounts.clone()))
        .collect();
    let spec = json!({"restartPolicy": "Never", "volumes": [{"name": "v", "emptyDir": {}}], "initContainers": init,
        "containers": [with(inside("c", &["expect", "/v/words", "one,two,three"]), mounts)]});
    cluster.create("ordered", spec).await?;
    let pod = cluster.until_phase("ordered", "Succeeded").await?;
    let init = pod.status.and_then(|status| status.init_container_statuses).context("statuses")?;
    ensure!(init.len() == 3 && init.iter().all(|status| status.ready), "{init:?}");

    let bad = json!({"restartPolicy": "Never", "initContainers": [inside("bad", &["exit", "4"])],
        "containers": [inside("c", &["exit", "0"])]});
    cluster.create("uninitialized", bad).await?;
    let pod = cluster.until_phase("uninitialized", "Failed").await?;
    ensure!(first(&pod).restart_count == 0 && first(&pod).started == Some(false), "{:?}", pod.status);
    Ok(())
}

/// Tells the server in a Pod to answer otherwise.
async fn turn(cluster: &Cluster, pod: &Pod, path: &str) -> Result<()> {
    let address = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()).context("an address")?;
    let mut stream = cluster.network.connect(address.parse()?, 8080).await?;
    stream.write_all(format!("POST {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(answer.starts_with("HTTP/1.1 "), "{answer}");
    Ok(())
}

pub(crate) async fn readiness_follows_the_probe(cluster: Arc<Cluster>) -> Result<()> {
    let probe = json!({"httpGet": {"path": "/ready", "port": "web"}, "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 1});
    let ports = json!([{"name": "web", "containerPort": 8080}]);
    let container = with(inside("c", &["serve", "8080"]), json!({"readinessProbe": probe, "ports": ports}));
    cluster.create("flips", json!({"containers": [container]})).await?;
    cluster
        .until_event("flips", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503")
        .await?;
    let pod = cluster.until_pod("flips", running).await?;
    ensure!(!ready(&pod), "not before the probe says so");
    turn(&cluster, &pod, "/ready").await?;
    let pod = cluster.until_pod("flips", ready).await?;
    turn(&cluster, &pod, "/ready").await?;
    let pod = cluster.until_pod("flips", |pod| !ready(pod)).await?;
    ensure!(restarts(&pod) == 0 && phase(&pod) == "Running", "{:?}", pod.status);
    cluster.delete("flips", Some(1)).await?;
    gone(&cluster, "flips").await?;
    Ok(())
}

pub(crate) async fn liveness_restarts(cluster: Arc<Cluster>) -> Result<()> {
    let probe = json!({"httpGet": {"path": "/live", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 1, "terminationGracePeriodSeconds": 1});
    let startup = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 30});
    let container =
        with(inside("c", &["serve", "8080"]), json!({"livenessProbe": probe, "startupProbe": startup}));
    cluster.create("dies", json!({"containers": [container]})).await?;
    let pod = cluster.until_pod("dies", |pod| first(pod).started == Some(true)).await?;
    turn(&cluster, &pod, "/live").await?;
    let pod = cluster.until_pod("dies", |pod| restarts(pod) == 1 && running(pod)).await?;
    let last = first(&pod).last_state.and_then(|it| it.terminated).context("the run before")?;
    ensure!(last.exit_code == 137, "it does not listen to SIGTERM: {last:?}");
    cluster
        .until_event("dies", "Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 503")
        .await?;
    cluster.until_event("dies", "Killing", "Container c failed liveness probe, will be restarted").await?;
    cluster.delete("dies", Some(1)).await?;
    gone(&cluster, "dies").await?;
    Ok(())
}

pub(crate) async fn exec_probes_and_hooks(cluster: Arc<Cluster>) -> Result<()> {
    let probe = with(command(&["exists", "/v/begun"]), json!({"periodSeconds": 1, "timeoutSeconds": 30}));
    let hooks = json!({"postStart": command(&["append", "/v/begun", "x"]), "preStop": command(&["append", "/v/ended", "x"])});
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    let container = with(
        inside("c", &["until-told", "0"]),
        json!({"readinessProbe": probe, "lifecycle": hooks, "volumeMounts": mounts}),
    );
    cluster
        .create("hooked", json!({"volumes": [{"name": "v", "emptyDir": {}}], "containers": [container]}))
        .await?;
    cluster.until_pod("hooked", ready).await?;
    cluster.delete("hooked", None).await?;
    gone(&cluster, "hooked").await?;

    let failing =
        with(inside("c", &["until-told", "0"]), json!({"lifecycle": {"postStart": command(&["exit", "1"])}}));
    cluster.create("unhooked", json!({"containers": [failing]})).await?;
    cluster.until_event("unhooked", "FailedPostStartHook", "PostStartHook failed").await?;
    cluster.until_pod("unhooked", |pod| restarts(pod) >= 1).await?;
    cluster.delete("unhooked", Some(1)).await?;
    gone(&cluster, "unhooked").await?;
    Ok(())
}

pub(crate) async fn terminates_gracefully(cluster: Arc<Cluster>) -> Result<()> {
    let listens = command(&["exists", "/tmp/listens"]);
    let probe = with(listens, json!({"periodSeconds": 1, "timeoutSeconds": 30}));
    let container = with(inside("c", &["until-told", "7"]), json!({"readinessProbe": probe}));
    cluster.create("graceful", json!({"containers": [container]})).await?;
    cluster.until_pod("graceful", ready).await?;
    let pod = ends(&cluster, "graceful", 60).await?;
    let end = ended(&pod)?;
    ensure!((end.exit_code, end.reason.as_deref()) == (7, Some("Error")), "{end:?}");
    ensure!(phase(&pod) == "Failed" && !ready(&pod), "{:?}", pod.status);
    cluster.until_event("graceful", "Killing", "Stopping container c").await?;
    Ok(())
}

pub(crate) async fn kills_what_does_not_end(cluster: Arc<Cluster>) -> Result<()> {
    cluster.create("stubborn", json!({"containers": [inside("c", &["stubborn"])]})).await?;
    cluster.until_pod("stubborn", ready).await?;
    let end = ended(&ends(&cluster, "stubborn", 1).await?)?;
    ensure!(end.exit_code == 137, "{end:?}");
    Ok(())
}

pub(crate) async fn runs_out_of_memory(cluster: Arc<Cluster>) -> Result<()> {
    let container = with(inside("c", &["eat"]), json!({"resources": {"limits": {"memory": "48Mi"}}}));
    cluster.create("eats", never(container)).await?;
    let end = ended(&cluster.until_phase("eats", "Failed").await?)?;
    if !rustix::process::geteuid().is_root() {
        // Without cgroups of our own the limit is one of address space, which programs see as a failed allocation.
        ensure!(end.exit_code != 0, "{end:?}");
        return Ok(());
    }
    ensure!((end.exit_code, end.reason.as_deref()) == (137, Some("OOMKilled")), "{end:?}");
    Ok(())
}

pub(crate) async fn deleted_while_starting(cluster: Arc<Cluster>) -> Result<()> {
    for round in 0..10 {
        let name = format!("hasty-{round}");
        cluster.create(&name, json!({"containers": [inside("c", &["stubborn"])]})).await?;
        if round % 2 == 0 {
            // By the first word of the node, its work has begun.
            cluster
                .until_pod(&name, |pod| pod.status.as_ref().is_some_and(|it| it.start_time.is_some()))
                .await?;
        }
        cluster.delete(&name, Some(1)).await?;
        gone(&cluster, &name).await?;
    }
    Ok(())
}

pub(crate) async fn cannot_be_executed(cluster: Arc<Cluster>) -> Result<()> {
    let container = json!({"name": "c", "image": "host", "command": ["/no/such/program"]});
    cluster.create("unstartable", json!({"containers": [container]})).await?;
    let failed = |pod: &Pod| {
        let last = first(pod).last_state.and_then(|it| it.terminated);
        last.is_some_and(|end| end.reason.as_deref() == Some("StartError") && end.exit_code == 128)
    };
    let pod = cluster.until_pod("unstartable", failed).await?;
    ensure!(matches!(waiting(&pod).as_str(), "RunContainerError" | "CrashLoopBackOff"), "{}", waiting(&pod));
    cluster.until_event("unstartable", "Failed", "Error: ").await?;
    cluster.delete("unstartable", Some(0)).await?;
    Ok(())
}

pub(crate) async fn bad_images(cluster: Arc<Cluster>) -> Result<()> {
    let image = |name: &str, policy: &str| json!({"containers": [{"name": "c", "image": name, "imagePullPolicy": policy}]});
    cluster.create("no-image", image("not-here:1", "Never")).await?;
    cluster.until_pod("no-image", |pod| waiting(pod) == "ErrImageNeverPull").await?;
    let never = "Container image \"not-here:1\" is not present with pull policy of Never";
    cluster.until_event("no-image", "ErrImageNeverPull", never).await?;
    cluster.create("no-registry", image("not-here:1", "IfNotPresent")).await?;
    cluster.until_pod("no-registry", |pod| waiting(pod) == "ImagePullBackOff").await?;
    cluster.until_event("no-registry", "BackOff", "Back-off pulling image \"not-here:1\"").await?;
    cluster.create("no-name", image("a/UPPER", "IfNotPresent")).await?;
    let pod = cluster.until_pod("no-name", |pod| waiting(pod) == "InvalidImageName").await?;
    ensure!(phase(&pod) == "Pending", "{:?}", pod.status);
    for name in ["no-image", "no-registry", "no-name"] {
        cluster.delete(name, None).await?;
        gone(&cluster, name).await?;
    }
    Ok(())
}

pub(crate) async fn missing_configuration(cluster: Arc<Cluster>) -> Result<()> {
    let env = json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "a"}}}]);
    let container = with(inside("c", &["variables", "A=1"]), json!({"env": env}));
    cluster.create("unconfigured", never(container)).await?;
    cluster.until_pod("unconfigured", |pod| waiting(pod) == "CreateContainerConfigError").await?;
    cluster.until_event("unconfigured", "Failed", "Error: configmap \"later\" not found").await?;
    let volumes = json!([{"name": "v", "configMap": {"name": "later"}}]);
    let mounts = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let container = with(inside("c", &["expect", "/v/a", "1"]), mounts);
    cluster
        .create("unmounted", json!({"restartPolicy": "Never", "volumes": volumes, "containers": [container]}))
        .await?;
    cluster.until_event("unmounted", "FailedMount", "MountVolume.SetUp failed for volume \"v\"").await?;
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::default_namespaced(cluster.client.clone());
    let map = serde_json::from_value(json!({"metadata": {"name": "later"}, "data": {"a": "1"}}))?;
    maps.create(&Default::default(), &map).await?;
    for name in ["unconfigured", "unmounted"] {
        cluster.until_phase(name, "Succeeded").await?;
    }
    Ok(())
}

pub(crate) async fn refused(cluster: Arc<Cluster>) -> Result<()> {
    let spec = with(json!({"containers": [inside("c", &["exit", "0"])]}), json!({"hostNetwork": true}));
    cluster.create("hosted", spec).await?;
    let pod = cluster.until_pod("hosted", |pod| waiting(pod) == "CreateContainerConfigError").await?;
    let message = first(&pod).state.and_then(|it| it.waiting).and_then(|it| it.message);
    ensure!(message.as_deref() == Some("hostNetwork is not supported by this node"), "{message:?}");
    cluster.until_event("hosted", "Failed", "hostNetwork is not supported").await?;
    let privileged = with(inside("c", &["exit", "0"]), json!({"securityContext": {"privileged": true}}));
    cluster.create("privileged", json!({"containers": [privileged]})).await?;
    cluster.until_pod("privileged", |pod| waiting(pod) == "CreateContainerConfigError").await?;
    let root = with(inside("c", &["exit", "0"]), json!({"securityContext": {"runAsNonRoot": true}}));
    cluster.create("rooted", json!({"containers": [root]})).await?;
    cluster.until_event("rooted", "Failed", "container has runAsNonRoot and image will run as root").await?;
    for name in ["hosted", "privileged", "rooted"] {
        cluster.delete(name, None).await?;
        gone(&cluster, name).await?;
    }
    Ok(())
}

pub(crate) async fn environment_and_files(cluster: Arc<Cluster>) -> Result<()> {
    let env = json!([{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}, {"name": "A", "value": "a"}]);
    let container = with(inside("c", &["variables", "A=a", "HOSTNAME=named"]), json!({"env": env}));
    let spec = json!({"restartPolicy": "Never", "hostname": "named", "containers": [container,
        inside("name", &["expect", "/etc/hostname", "named"])]});
    cluster.create("environment", spec).await?;
    cluster.until_phase("environment", "Succeeded").await?;
    Ok(())
}

pub(crate) async fn sidecars_serve_and_end(cluster: Arc<Cluster>) -> Result<()> {
    let sidecar = with(inside("side", &["until-told", "0"]), json!({"restartPolicy": "Always"}));
    let spec = json!({"restartPolicy": "Never", "initContainers": [sidecar], "containers": [inside("c", &["exit", "0"])]});
    cluster.create("accompanied", spec).await?;
    let pod = cluster.until_phase("accompanied", "Succeeded").await?;
    let sidecar = pod.status.and_then(|status| status.init_container_statuses).context("statuses")?;
    let end = sidecar[0].state.clone().and_then(|state| state.terminated);
    ensure!(end.is_some(), "it ended before the Pod did: {sidecar:?}");
    Ok(())
}

pub(crate) async fn deadlines_end_pods(cluster: Arc<Cluster>) -> Result<()> {
    let spec = json!({"activeDeadlineSeconds": 1, "terminationGracePeriodSeconds": 1,
        "containers": [inside("c", &["stubborn"])]});
    cluster.create("late", spec).await?;
    let pod = cluster.until_phase("late", "Failed").await?;
    let reason = pod.status.as_ref().and_then(|status| status.reason.as_deref());
    ensure!(reason == Some("DeadlineExceeded"), "{:?}", pod.status);
    cluster.until_event("late", "DeadlineExceeded", "longer than the specified deadline").await
}

/// Conditions of others count, and stay, while the node writes its own.
pub(crate) async fn gates_hold_readiness(cluster: Arc<Cluster>) -> Result<()> {
    let gates = json!([{"conditionType": "example.com/gate"}]);
    cluster
        .create("gated", json!({"readinessGates": gates, "containers": [inside("c", &["stubborn"])]}))
        .await?;
    let pod = cluster.until_pod("gated", running).await?;
    ensure!(!ready(&pod), "{:?}", pod.status);
    let gate = json!({"type": "example.com/gate", "status": "True"});
    let patch = Patch::Strategic(json!({"status": {"conditions": [gate]}}));
    cluster.pods().patch_status("gated", &PatchParams::default(), &patch).await?;
    let pod = cluster.until_pod("gated", ready).await?;
    let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
    ensure!(conditions.iter().any(|condition| condition.type_ == "example.com/gate"), "{conditions:?}");
    cluster.delete("gated", Some(1)).await?;
    gone(&cluster, "gated").await
}

pub(crate) async fn many_at_once(cluster: Arc<Cluster>) -> Result<()> {
    const COUNT: usize = 50;
    let labels = ListParams::default().labels("crowd=yes");
    for number in 0..COUNT {
        let name = format!("crowd-{number}");
        cluster.create(&name, json!({"containers": [inside("c", &["until-told", "0"])]})).await?;
        let patch = json!({"metadata": {"labels": {"crowd": "yes"}}});
        cluster.pods().patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    let mut addresses = std::collections::BTreeSet::new();
    for number in 0..COUNT {
        let pod = cluster.until_pod(&format!("crowd-{number}"), ready).await?;
        ensure!(restarts(&pod) == 0, "{:?}", pod.status);
        addresses.extend(pod.status.and_then(|status| status.pod_ip));
    }
    ensure!(addresses.len() == COUNT, "every Pod has an address of its own");
    for number in 0..COUNT {
        cluster.delete(&format!("crowd-{number}"), Some(1)).await?;
    }
    for number in 0..COUNT {
        gone(&cluster, &format!("crowd-{number}")).await?;
    }
    ensure!(cluster.pods().list(&labels).await?.items.is_empty(), "some are left");
    Ok(())
}

async fn gone(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.until(name, |pod| pod.is_none()).await.map(drop)
}

pub(crate) async fn registers_the_node(cluster: Arc<Cluster>) -> Result<()> {
    cluster.create("registered", never(inside("c", &["exit", "0"]))).await?;
    cluster.until_phase("registered", "Succeeded").await?;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let wanted = kube::runtime::wait::await_condition(nodes, NODE, |node: Option<&Node>| {
        let status = node.and_then(|node| node.status.as_ref());
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    });
    let node = wanted.await?.context("a node")?;
    let labels = node.metadata.labels.context("labels")?;
    ensure!(labels.get("kubernetes.io/hostname").map(String::as_str) == Some(NODE), "{labels:?}");
    let capacity = node.status.and_then(|status| status.capacity).context("a capacity")?;
    ensure!(["cpu", "memory", "pods"].iter().all(|name| capacity.contains_key(*name)), "{capacity:?}");
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "kube-node-lease");
    let there = kube::runtime::wait::await_condition(leases, NODE, |lease: Option<&Lease>| lease.is_some());
    there.await?.context("a lease")?;
    Ok(())
}

/// Containers end with their node, and the next node starts them again in place.
pub(crate) async fn a_restart_starts_pods_again(spawner: Handle, data_dir: PathBuf) -> Result<()> {
    let mut cluster = Cluster::start(spawner, data_dir).await?;
    let always = json!({"containers": [inside("c", &["until-told", "0"])]});
    cluster.create("stays", always.clone()).await?;
    cluster.create("leaves", always).await?;
    cluster.create("once", never(inside("c", &["until-told", "0"]))).await?;
    cluster.create("done", never(inside("c", &["exit", "0"]))).await?;
    for name in ["stays", "leaves", "once"] {
        cluster.until_pod(name, ready).await?;
    }
    let done = cluster.until_phase("done", "Succeeded").await?;
    cluster.stop_kubelet().await?;
    let before = cluster.until_pod("stays", |_| true).await?;
    ensure!(running(&before), "nobody told the API: {:?}", before.status);
    cluster.delete("leaves", Some(30)).await?;
    cluster.start_kubelet()?;
    let pod = cluster.until_pod("stays", |pod| restarts(pod) == 1 && ready(pod)).await?;
    let last = first(&pod).last_state.and_then(|it| it.terminated).context("the run before")?;
    ensure!((last.exit_code, last.reason.as_deref()) == (137, Some("ContainerStatusUnknown")), "{last:?}");
    gone(&cluster, "leaves").await?;
    let pod = cluster.until_phase("once", "Failed").await?;
    ensure!(restarts(&pod) == 0, "{:?}", pod.status);
    let still = cluster.until_phase("done", "Succeeded").await?;
    ensure!(first(&still) == first(&done), "{:?}", still.status);
    cluster.delete("stays", Some(1)).await?;
    gone(&cluster, "stays").await?;
    cluster.stop().await
}
