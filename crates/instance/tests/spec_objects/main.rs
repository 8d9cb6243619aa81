//! The providers over the embedded API server: objects are made, mended and released, refusals are told, and what was
//! missing heals.
// The whole file is a test; clippy sees that of functions marked so only.
#![allow(clippy::unwrap_used, clippy::panic)]

mod drift;
mod world;

use agentcube_api::{Sandbox, SandboxPool, Task, labels};
use agentcube_apiserver::faults::Plan;
use agentcube_instance::SpecId;
use agentcube_instance::bearer::Body;
use agentcube_instance::provider::{InstanceSpecProvider, Repaired, SpecError, SpecStatus};
use agentcube_instance::revision::{Form, Revision};
use agentcube_instance::spec::BundleCache;
use agentcube_instance::token::TaskKeys;
use futures_util::{FutureExt, StreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, PodTemplate, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use world::{PATIENCE, World, agent, bundle_task, by_session, first, pod_task, set_status};

#[tokio::test]
async fn a_revision_is_made_once_and_mended() {
    let world = World::new(|_| ()).await;
    let task = world.task(pod_task(agent())).await;
    assert_eq!(world.initialize(&task, false).await.unwrap(), []);

    let api: Api<PodTemplate> = world.api();
    let object = api.get("agent-1").await.unwrap();
    let revision = Revision::read(&object).unwrap();
    assert_eq!((revision.form, &*revision.task.name), (Form::Slots, "agent"));
    assert_eq!(object.annotations()[labels::TEMPLATE_HASH], world.providers.template_hash(&task).unwrap());
    // Any Pod made from it is one that the server takes.
    world.api::<Pod>().create(&PostParams::default(), &revision.pod(0, None)).await.unwrap();

    // The keys are those of this Task: what is signed with them is verified by whoever reads the Secret.
    let secrets: Api<Secret> = world.api();
    let keys = TaskKeys::from_secret(&secrets.get("agent-token").await.unwrap()).unwrap();
    assert_eq!(Some(keys.task()), task.uid().as_deref());
    assert!(secrets.get_opt("agentcube-token-keys").await.unwrap().is_some());

    // Again: nothing is written.
    let version = object.resource_version();
    assert_eq!(world.initialize(&task, true).await.unwrap(), []);
    assert_eq!(api.get("agent-1").await.unwrap().resource_version(), version);

    // What somebody else has changed or removed comes back, and is told.
    let image = json!({ "template": { "spec": { "containers": [{ "name": "agent", "image": "evil:1" }] } } });
    api.patch("agent-1", &PatchParams::default(), &Patch::Merge(image)).await.unwrap();
    secrets.delete("agent-token", &DeleteParams::default()).await.unwrap();
    let mut repairs = Vec::new();
    let seen = &mut repairs;
    world
        .converge(async || {
            seen.extend(world.initialize(&task, true).await.unwrap());
            (seen.len() == 2).then_some(())
        })
        .await;
    repairs.sort_by(|one, other| one.0.cmp(&other.0));
    let template = ("PodTemplate agent-1".to_string(), Repaired::Restored);
    assert_eq!(repairs, [template, ("Secret agent-token".to_string(), Repaired::Recreated)]);
    let mended = Revision::read(&api.get("agent-1").await.unwrap()).unwrap();
    assert_eq!(mended.template, revision.template);
}

#[tokio::test]
async fn a_job_is_scaled_by_others_and_kept_otherwise() {
    let world = World::new(|_| ()).await;
    let mut spec = pod_task(agent());
    spec["routing"] = json!({ "routePolicy": "Oneshot" });
    spec["scaling"] = json!({ "scalingMode": "OnDemand", "minInstances": 2, "maxInstances": 9 });
    spec["deployment"]["podTemplate"]["metadata"] =
        json!({ "annotations": { "scheduling.volcano.sh/queue-name": "agents" } });
    spec["deployment"]["podTemplate"]["spec"]["schedulerName"] = json!("volcano");
    let mut task = world.task(spec).await;
    assert_eq!(world.initialize(&task, false).await.unwrap(), []);
    let api: Api<Job> = world.api();
    let job = api.get("agent-1").await.unwrap();
    let spec = job.spec.as_ref().unwrap();
    assert_eq!(
        (spec.parallelism, spec.completions, spec.backoff_limit),
        (Some(2), Some(i32::MAX), Some(i32::MAX))
    );
    let pods = spec.template.metadata.as_ref().unwrap();
    assert_eq!(pods.labels.as_ref().unwrap()[labels::SPEC_ID], "agent-1");
    assert_eq!(pods.annotations.as_ref().unwrap()["scheduling.volcano.sh/queue-name"], "agents");
    assert_eq!(spec.template.spec.as_ref().unwrap().scheduler_name.as_deref(), Some("volcano"));
    assert_eq!(Revision::read(&world.api().get("agent-1").await.unwrap()).unwrap().form, Form::Job);

    let patch = async |patch: Value| {
        api.patch("agent-1", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    };
    patch(json!({ "spec": { "parallelism": 5 } })).await;
    world.until(&task, |status| status.desired == 5).await;
    assert_eq!(world.initialize(&task, true).await.unwrap(), []);
    let parallelism = async || api.get("agent-1").await.unwrap().spec.unwrap().parallelism;
    for (least, expected) in [(3, 5), (7, 7), (0, 7)] {
        task.spec.scaling.min_instances = Some(least);
        world.providers.update_spec(&task, &first()).await.unwrap();
        assert_eq!(parallelism().await, Some(expected), "{least}");
    }

    patch(json!({ "spec": { "suspend": true } })).await;
    let mended = async || world.initialize(&task, true).await.unwrap().pop();
    let repair = world.converge(mended).await;
    assert_eq!(repair, ("Job agent-1".to_string(), Repaired::Restored));
    assert_eq!(api.get("agent-1").await.unwrap().spec.unwrap().suspend, Some(false));
    api.delete("agent-1", &DeleteParams::background()).await.unwrap();
    let repair = world.converge(mended).await;
    assert_eq!(repair, ("Job agent-1".to_string(), Repaired::Recreated));

    world.providers.release_spec(&task, &first()).await.unwrap();
    assert!(api.get_opt("agent-1").await.unwrap().is_none());
    assert!(world.api::<PodTemplate>().get_opt("agent-1").await.unwrap().is_none());
}

#[tokio::test]
async fn what_the_server_refuses_is_told() {
    let world = World::new(|_| ()).await;
    let mut task = world.task(pod_task(json!([{ "name": "Agent_1", "image": "agent:1" }]))).await;
    let Err(SpecError::Invalid(message)) = world.initialize(&task, false).await else {
        panic!("it is taken")
    };
    assert!(message.contains("PodTemplate agent-1 was refused") && message.contains("Agent_1"), "{message}");

    // A server in trouble is no fault of the Task.
    task.spec.deployment.pod_template.as_mut().unwrap().spec.as_mut().unwrap().containers[0].name =
        "agent".into();
    let faults = world.server.api().faults();
    faults.set(Plan { seed: 1, internal: 1.0, ..Plan::default() });
    let outcome = world.initialize(&task, false).await;
    assert!(matches!(outcome, Err(SpecError::Transient(_))), "{outcome:?}");
    faults.clear();
    world.initialize(&task, false).await.unwrap();

    // An object of somebody else in our place stays.
    world.providers.release_spec(&task, &first()).await.unwrap();
    let foreign =
        json!({ "metadata": { "name": "agent-1" }, "template": { "spec": { "containers": agent() } } });
    world.create::<PodTemplate>(foreign).await;
    let Err(SpecError::Blocked(message)) = world.initialize(&task, false).await else {
        panic!("it is taken")
    };
    assert!(message.contains("agent-1 exists"), "{message}");
}

#[tokio::test]
async fn what_is_missing_is_named_and_heals() {
    let world = World::new(|_| ()).await;
    let containers = json!([{ "name": "agent", "image": "agent:1", "env": [
        { "name": "KEY", "valueFrom": { "secretKeyRef": { "name": "model-key", "key": "k" } } },
    ] }]);
    let task = world.task(pod_task(containers)).await;
    let missing = async |task: &Task| match world.initialize(task, false).await {
        Err(SpecError::Missing { reason, message }) => (reason, message),
        other => panic!("{other:?}"),
    };
    let (reason, message) = missing(&task).await;
    assert_eq!(reason, "SecretMissing");
    assert!(message.contains("Secret \"model-key\" in namespace default does not exist"), "{message}");
    world.create::<Secret>(json!({ "metadata": { "name": "model-key" } })).await;
    assert_eq!(world.initialize(&task, false).await.unwrap(), []);
    world.api::<Task>().delete("agent", &DeleteParams::default()).await.unwrap();

    let sandbox = |template: Value| json!({ "deployment": { "type": "sandbox", "sandboxTemplate": template }, "routing": by_session() });
    let task = world.task(sandbox(json!({ "runtime": "gvisor", "rootfs": { "image": "box:1" } }))).await;
    let (reason, message) = missing(&task).await;
    assert_eq!(reason, "RuntimeClassMissing");
    assert!(message.starts_with("RuntimeClass \"gvisor\" does not exist"), "{message}");
    let class =
        serde_json::from_value(json!({ "metadata": { "name": "gvisor" }, "handler": "runsc" })).unwrap();
    Api::<RuntimeClass>::all(world.client.clone()).create(&PostParams::default(), &class).await.unwrap();
    assert_eq!(world.initialize(&task, false).await.unwrap(), []);
    world.api::<Task>().delete("agent", &DeleteParams::default()).await.unwrap();

    let rootfs = json!({ "image": "agent:1" });
    let on_pool = json!({ "poolRef": "fast", "runtime": "native", "rootfs": rootfs });
    let task = world.task(sandbox(on_pool)).await;
    assert_eq!(missing(&task).await.0, "SandboxPoolMissing");
    let capacity = json!({ "poolMin": 1, "poolMax": 1, "bufferMin": 0, "bufferMax": 1 });
    let pool = json!({
        "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "SandboxPool", "metadata": { "name": "fast" },
        "spec": { "capacity": capacity, "maxSandboxesPerPod": 5, "runtimeType": "runsc" },
    });
    world.create::<SandboxPool>(pool.clone()).await;
    let (reason, message) = missing(&task).await;
    assert_eq!(reason, "SandboxPoolRuntime");
    assert!(message.contains("\"runsc\"") && message.contains("\"native\""), "{message}");
    world.api::<SandboxPool>().delete("fast", &DeleteParams::default()).await.unwrap();
    let mut fitting = pool;
    fitting["spec"]["runtimeType"] = json!("native");
    world.create::<SandboxPool>(fitting).await;
    assert_eq!(world.initialize(&task, false).await.unwrap(), []);
    let revision = Revision::read(&world.api().get("agent-1").await.unwrap()).unwrap();
    assert_eq!(revision.form, Form::Sandboxes);
    let Body::Sandbox(made) = revision.instance(0, None) else { panic!("not a Sandbox") };
    // What it is made of is taken by the server as it is.
    let made = world.api::<Sandbox>().create(&PostParams::default(), &made).await.unwrap();
    assert_eq!((made.name_any().as_str(), made.spec.pool_ref.as_str()), ("agent-0", "fast"));
}

#[tokio::test]
async fn a_sandbox_is_closed_off_as_long_as_it_lives() {
    let world = World::new(|config| {
        let peer =
            json!({ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "gateways" } } });
        config.gateway_peers = vec![serde_json::from_value(peer).unwrap()];
    })
    .await;
    let task = world.closed_task().await;
    world.initialize(&task, false).await.unwrap();
    let api: Api<NetworkPolicy> = world.api();
    let policy = serde_json::to_value(api.get("agent-1").await.unwrap().spec.unwrap()).unwrap();
    assert_eq!(policy["podSelector"]["matchLabels"][labels::SPEC_ID], "agent-1");
    assert_eq!(policy["policyTypes"], json!(["Ingress", "Egress"]));
    assert_eq!(policy["egress"], Value::Null);
    assert_eq!(policy["ingress"][0]["ports"], json!([{ "port": 8080, "protocol": "TCP" }]));
    let from = json!({ "matchLabels": { "kubernetes.io/metadata.name": "gateways" } });
    assert_eq!(policy["ingress"][0]["from"], json!([{ "namespaceSelector": from }]));

    api.delete("agent-1", &DeleteParams::default()).await.unwrap();
    let repair = world.converge(async || world.initialize(&task, true).await.unwrap().pop()).await;
    assert_eq!(repair, ("NetworkPolicy agent-1".to_string(), Repaired::Recreated));

    // Released: the instance ends first, and only then is the policy removed.
    let revision = Revision::read(&world.api().get("agent-1").await.unwrap()).unwrap();
    let mut pod = revision.pod(0, None);
    pod.metadata.finalizers = Some(vec!["example.com/held".into()]);
    world.api::<Pod>().create(&PostParams::default(), &pod).await.unwrap();
    world.until(&task, |status| status.total == 1).await;
    let released = world.providers.release_spec(&task, &first()).await;
    assert!(
        matches!(&released, Err(SpecError::Transient(message)) if message.contains("1 instances")),
        "{released:?}"
    );
    assert!(world.api::<PodTemplate>().get_opt("agent-1").await.unwrap().is_none());
    assert!(api.get_opt("agent-1").await.unwrap().is_some());
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    world.api::<Pod>().patch("agent-0", &PatchParams::default(), &free).await.unwrap();
    world.until(&task, |status| status.total == 0).await;
    world.providers.release_spec(&task, &first()).await.unwrap();
    assert!(api.get_opt("agent-1").await.unwrap().is_none());
}

#[tokio::test]
async fn code_is_prepared_before_the_first_instance() {
    let world = World::new(|_| ()).await;
    let mut task = world.task(bundle_task()).await;
    world.initialize(&task, false).await.unwrap();
    let pods: Api<Pod> = world.api();
    let maps: Api<ConfigMap> = world.api();
    let pod = pods.get("agent-1-prepare").await.unwrap();
    // Nobody takes it for an instance.
    assert_eq!(pod.labels().keys().collect::<Vec<_>>(), [labels::PREPARES, labels::TASK]);
    assert_eq!(pod.spec.as_ref().unwrap().restart_policy.as_deref(), Some("OnFailure"));
    let status = world.status(&task);
    assert!(status.preparing && status.trouble.is_none() && status.total == 0, "{status:?}");
    let code = || async { maps.list_metadata(&Default::default()).await.unwrap().items };
    assert_eq!(code().await.len(), 1);

    // The first try fails, and the node tries again.
    let log = "cannot unpack the code: this is no zip archive\n";
    let failed = json!({ "exitCode": 1, "message": log, "reason": "Error" });
    let container = json!({
        "name": "fetch", "image": "agentcube:1", "imageID": "", "ready": false, "restartCount": 3,
        "state": { "waiting": { "reason": "CrashLoopBackOff" } }, "lastState": { "terminated": failed },
    });
    set_status(&pods, "agent-1-prepare", json!({ "phase": "Running", "containerStatuses": [container] }))
        .await;
    let status = world.until(&task, |status| status.trouble.is_some()).await;
    let expected = "the code cannot be prepared: container fetch ended with code 1 again and again: cannot unpack the \
                    code: this is no zip archive";
    assert_eq!((status.preparing, status.trouble.as_deref()), (true, Some(expected)));

    set_status(&pods, "agent-1-prepare", json!({ "phase": "Succeeded", "containerStatuses": [] })).await;
    world
        .converge(async || {
            world.initialize(&task, true).await.unwrap();
            (!world.status(&task).preparing).then_some(())
        })
        .await;
    assert!(pods.get_opt("agent-1-prepare").await.unwrap().is_none());
    // It stays prepared, without the Pod.
    assert_eq!(world.initialize(&task, true).await.unwrap(), []);
    assert!(pods.get_opt("agent-1-prepare").await.unwrap().is_none());

    // Two revisions with the same code share it; it goes with the last.
    task.spec.request_handling.backend.port = 9000;
    let second = SpecId("agent-2".into());
    world.providers.initialize_spec(&task, &second, false, false).await.unwrap();
    assert!(world.providers.spec_status(&task, &second).preparing);
    world.providers.release_spec(&task, &first()).await.unwrap();
    assert_eq!(code().await.len(), 1);
    world.providers.release_spec(&task, &second).await.unwrap();
    assert_eq!(code().await.len(), 0);
    assert!(
        pods.get_opt("agent-2-prepare")
            .await
            .unwrap()
            .is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
    );
}

#[tokio::test]
async fn a_cache_is_claimed_where_the_operator_wants_one() {
    let world = World::new(|config| {
        config.bundle_cache = Some(BundleCache {
            size: "2Gi".into(),
            storage_class: None,
            access_mode: "ReadWriteOnce".into(),
        });
    })
    .await;
    let mut spec = bundle_task();
    spec["deployment"]["codeBundle"] = json!({
        "zipUrl": "https://bucket.example/code.zip", "sha256": "ab".repeat(32), "entrypoint": "main.py",
        "codeRuntime": { "name": "python3.11" },
    });
    let task = world.task(spec).await;
    world.initialize(&task, false).await.unwrap();
    let claim = world.api::<PersistentVolumeClaim>().get("agent-bundles").await.unwrap();
    let spec = serde_json::to_value(claim.spec.unwrap()).unwrap();
    assert_eq!(
        (&spec["accessModes"][0], &spec["resources"]["requests"]["storage"]),
        (&json!("ReadWriteOnce"), &json!("2Gi"))
    );
    assert_eq!(world.initialize(&task, true).await.unwrap(), []);
    // It outlives revisions, which may share what is in it.
    world.providers.release_spec(&task, &first()).await.unwrap();
    assert!(world.api::<PersistentVolumeClaim>().get_opt("agent-bundles").await.unwrap().is_some());
}

#[tokio::test]
async fn instances_are_counted_and_their_trouble_is_told() {
    let world = World::new(|_| ()).await;
    let mut spec = pod_task(agent());
    spec["scaling"] = json!({ "minInstances": 3 });
    let task = world.task(spec).await;
    world.initialize(&task, false).await.unwrap();
    let revision = Revision::read(&world.api().get("agent-1").await.unwrap()).unwrap();
    let pods: Api<Pod> = world.api();
    for slot in 0..3 {
        let mut pod = revision.pod(slot, None);
        if slot == 0 {
            let held = [(labels::RESERVE_KEY, "user-1"), (labels::RESERVATION, "l1.1")];
            pod.annotations_mut().extend(held.map(|(name, value)| (name.into(), value.into())));
        }
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    let ready = json!([{ "type": "Ready", "status": "True" }]);
    set_status(&pods, "agent-0", json!({ "phase": "Running", "podIP": "10.0.0.1", "conditions": ready }))
        .await;
    let mut changes = world.providers.changes();
    while let Some(Some(_)) = changes.next().now_or_never() {}
    let waiting = json!({ "reason": "ImagePullBackOff", "message": "not found in the registry" });
    let container = json!({
        "name": "agent", "image": "agent:1", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "waiting": waiting },
    });
    set_status(&pods, "agent-1", json!({ "phase": "Pending", "containerStatuses": [container] })).await;
    // The trouble of an instance has its Task looked at.
    let woken = tokio::time::timeout(PATIENCE, changes.next()).await.expect("in time").unwrap();
    assert_eq!((&*woken.namespace, &*woken.name), ("default", "agent"));
    let status = world.until(&task, |status| status.trouble.is_some() && status.available == 1).await;
    let trouble = "1 of 3 instances fail; agent-1: container agent cannot start: ImagePullBackOff: not found in the registry";
    let expected = SpecStatus {
        desired: 3,
        available: 1,
        reserved: 1,
        total: 3,
        trouble: Some(trouble.into()),
        preparing: false,
    };
    assert_eq!(status, expected);
    // Another revision has none of them.
    let other = world.providers.spec_status(&task, &SpecId("agent-2".into()));
    assert_eq!((other.total, other.trouble), (0, None));
}

#[tokio::test]
async fn new_keys_reach_every_task() {
    let world = World::new(|_| ()).await;
    let task = world.task(pod_task(agent())).await;
    world.initialize(&task, false).await.unwrap();
    let secrets: Api<Secret> = world.api();
    let before = secrets.get("agent-token").await.unwrap().data;
    let key = "c2l4dGVlbi1ieXRlcy1vZi1rZXktYW5kLW1vcmUtb2YtaXQ=";
    let patch = Patch::Merge(json!({ "data": { "k2.key": key, "current": "azI=" } }));
    secrets.patch("agentcube-token-keys", &PatchParams::default(), &patch).await.unwrap();
    world
        .converge(async || {
            world.initialize(&task, true).await.unwrap();
            (secrets.get("agent-token").await.unwrap().data != before).then_some(())
        })
        .await;
    let data = secrets.get("agent-token").await.unwrap().data.unwrap();
    assert_eq!(data["current"].0, b"k2");
}
