//! One thing at a time.

use std::pin::Pin;
use std::time::Duration;

use agentcube_api::conditions;
use agentcube_api::middleware::Backup;
use agentcube_api::middleware::app::AppPhase;
use agentcube_api::middleware::change::ChangeStatus;
use agentcube_api::middleware::taken::BackupPhase;
use agentcube_api::{App, Component, Group, Plugin};
use agentcube_middleware::Options;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::json;

use crate::stage::{self, Stage};

/// One case, on whichever server the stage is set up on.
#[allow(dead_code, reason = "for the suite on kube-apiserver; here each is a test")]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn() -> Pin<Box<dyn Future<Output = ()>>>,
}

macro_rules! cases {
    ($($name:ident,)*) => {
        #[allow(dead_code, reason = "for the suite on kube-apiserver; here each is a test")]
        pub(crate) fn all() -> Vec<Case> {
            vec![$(Case { name: stringify!($name), run: || Box::pin($name()) }),*]
        }

        mod embedded {
            $(#[tokio::test]
            async fn $name() {
                Box::pin(super::$name()).await;
            })*
        }
    };
}

cases! {
    an_app_is_installed_and_can_be_connected_to,
    an_upgrade_takes_one_pod_after_another_and_the_leader_last,
    configuration_volumes_and_replicas_change_in_place,
    what_does_not_come_up_goes_back_and_what_comes_after_it_works,
    a_cancelled_upgrade_goes_back,
    a_broken_template_is_said_with_its_place_and_mended,
    templates_without_end_are_said_with_their_place_and_apply_nothing,
    what_the_server_refuses_is_said,
    what_belongs_to_another_fails_the_task_at_once,
    what_an_app_cannot_leave_is_said,
    a_full_quota_for_secrets_is_said,
    volumes_that_may_not_grow_are_said,
    revisions_that_may_not_be_kept_are_said,
    a_backup_that_the_server_refuses_fails_with_its_reason,
    what_others_change_is_put_right,
    an_app_goes_with_everything,
    only_the_watched_namespace_is_looked_after,
    agents_are_closed_to_everybody_but_the_controllers,
}

fn version(version: &str) -> serde_json::Value {
    json!({ "runtime": { "name": "redis", "version": version } })
}

async fn images(stage: &Stage) -> Vec<String> {
    let pods: Api<Pod> = stage.api();
    let pods = pods.list(&ListParams::default()).await.unwrap().items;
    pods.into_iter().map(|pod| pod.spec.unwrap().containers[0].image.clone().unwrap()).collect()
}

pub(crate) async fn an_app_is_installed_and_can_be_connected_to() {
    let stage = Stage::with_app().await;
    let running = stage.start();
    let app = stage.until_done().await;
    let ready = conditions::find(&app.status.as_ref().unwrap().conditions, conditions::READY).unwrap();
    assert_eq!(ready.status, "True");
    let secret: Secret = stage.until("cache-connection", |_: &Secret| true).await;
    let data = secret.data.unwrap();
    let text = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
    assert_eq!((text("host").as_str(), text("port").as_str()), ("cache-nodes-main-primary.here.svc", "6379"));
    assert_eq!(text("password").len(), 48);
    stage
        .until("cache-metadata", |map: &ConfigMap| {
            let said = &map.data.as_ref().unwrap()["app.json"];
            said.contains("\"phase\":\"Running\"") && said.contains("\"leader\":true")
        })
        .await;
    let service: Service = stage.until("cache-nodes-main-primary", |_: &Service| true).await;
    let selector = service.spec.unwrap().selector.unwrap();
    assert_eq!(selector["middleware.io/role"], "master");
    let leader = stage.world.leader().unwrap();
    let role = |pod: &Pod| pod.labels().get("middleware.io/role").cloned();
    stage.until(&leader, |pod: &Pod| role(pod).as_deref() == Some("master")).await;
    // The label follows the role.
    stage.world.lead("cache-nodes-main-2");
    stage.until("cache-nodes-main-2", |pod: &Pod| role(pod).as_deref() == Some("master")).await;
    stage.until(&leader, |pod: &Pod| role(pod).as_deref() == Some("slave")).await;
    stage.until_event("TaskDone").await;
    running.stop().await;
}

pub(crate) async fn an_upgrade_takes_one_pod_after_another_and_the_leader_last() {
    let stage = Stage::with_app().await;
    let running = stage.start();
    stage.until_done().await;
    stage.world.lead("cache-nodes-main-1");
    let leads = |group: &Group| {
        let pods = &group.status.as_ref().unwrap().pods;
        pods.iter().any(|pod| pod.leader && pod.name == "cache-nodes-main-1")
    };
    stage.until("cache-nodes-main", leads).await;
    stage.world.forget();
    stage.edit(json!({}), version("7.2")).await;
    stage.until_done().await;
    assert_eq!(stage.world.restarted(), ["cache-nodes-main-2", "cache-nodes-main-0", "cache-nodes-main-1"]);
    assert_eq!(images(&stage).await, vec!["redis:7.2"; 3]);
    assert_eq!(stage.group().await.status.unwrap().current_version.as_deref(), Some("7.2"));
    stage.until_event("Switchover").await;
    stage.world.check();
    running.stop().await;
}

pub(crate) async fn configuration_volumes_and_replicas_change_in_place() {
    let stage = Stage::with_app().await;
    let running = stage.start();
    stage.until_done().await;
    stage.world.forget();
    stage
        .edit(
            json!({ "replicas": 4, "storage": { "size": "2Gi" } }),
            json!({ "config": { "maxmemory": "2gb" } }),
        )
        .await;
    let app = stage.until_done().await;
    let ids: Vec<String> = app.status.unwrap().tasks.into_iter().map(|task| task.task_id).collect();
    assert_eq!(ids, ["1-nodes-provision", "2-nodes-resources", "2-nodes-config", "2-nodes-storage"]);
    assert_eq!(stage.world.restarted(), Vec::<String>::new());
    assert!(stage.world.count("reload") >= 3);
    let claims: Api<PersistentVolumeClaim> = stage.api();
    let claims = claims.list(&ListParams::default()).await.unwrap().items;
    let sizes: Vec<String> = claims
        .iter()
        .map(|claim| {
            claim.spec.as_ref().unwrap().resources.as_ref().unwrap().requests.as_ref().unwrap()["storage"]
                .0
                .clone()
        })
        .collect();
    assert_eq!(sizes, vec!["2Gi"; 4]);
    let map: ConfigMap = stage.api().get("cache-nodes-main").await.unwrap();
    assert_eq!(map.data.unwrap()["main"], "{\"maxmemory\":\"2gb\"}");
    stage.edit(json!({ "replicas": 2 }), json!({})).await;
    stage.until_done().await;
    assert_eq!(images(&stage).await.len(), 2);
    stage.world.check();
    running.stop().await;
}

pub(crate) async fn what_does_not_come_up_goes_back_and_what_comes_after_it_works() {
    let stage = Stage::with_app().await;
    let mut options = stage::options();
    // It waits for its next attempt until somebody has looked.
    options.settings.app.retry_backoff = Duration::from_secs(60).into();
    let running = stage.start_as(options);
    stage.until_done().await;
    stage.edit(json!({ "rollingUpdate": { "timeout": "5s" } }), json!({})).await;
    stage.until_done().await;
    // One attempt is enough.
    stage.edit(json!({}), version("bad")).await;
    stage.until_task("3-nodes-upgrade", ChangeStatus::RetryPending).await;
    assert_eq!(images(&stage).await, vec!["redis:7.0"; 3]);
    stage
        .patch::<App>(
            "cache",
            json!({ "metadata": { "annotations": {
        "middleware.io/cancel-control": "{\"cancelTaskIds\": [\"3-nodes-upgrade\"]}" } } }),
        )
        .await;
    let task = stage.until_task("3-nodes-upgrade", ChangeStatus::Cancelled).await;
    assert!(task.last_error.unwrap().contains("no progress within 5s"));
    let app = stage
        .until("cache", |app: &App| !app.annotations().contains_key("middleware.io/control-taken"))
        .await;
    assert!(!app.annotations().contains_key("middleware.io/cancel-control"));
    stage.edit(json!({ "rollingUpdate": { "timeout": "60s" } }), version("7.2")).await;
    stage.until_done().await;
    assert_eq!(images(&stage).await, vec!["redis:7.2"; 3]);
    stage.world.check();
    running.stop().await;
}

pub(crate) async fn a_cancelled_upgrade_goes_back() {
    let stage = Stage::with_app().await;
    let running = stage.start();
    stage.until_done().await;
    stage.world.forget();
    stage.edit(json!({}), version("bad")).await;
    // In the middle of it: one Pod is new, and does not come up.
    stage
        .until("cache-nodes-main", |group: &Group| {
            group.status.as_ref().is_some_and(|status| status.ready_replicas == 2)
        })
        .await;
    stage.edit(json!({}), version("7.4")).await;
    let app: App = stage
        .until("cache", |app: &App| app.annotations().contains_key("middleware.io/pending-change-detected"))
        .await;
    let status = app.status.unwrap();
    assert!(
        conditions::find(&status.conditions, "PendingChange").unwrap().message.contains("2-nodes-upgrade")
    );
    stage
        .patch::<App>(
            "cache",
            json!({ "metadata": { "annotations": {
        "middleware.io/cancel-control": "{\"cancelTaskIds\": [\"2-nodes-upgrade\"]}" } } }),
        )
        .await;
    stage.until_task("2-nodes-upgrade", ChangeStatus::Cancelled).await;
    let app = stage.until_done().await;
    assert_eq!(images(&stage).await, vec!["redis:7.4"; 3]);
    assert!(!app.annotations().contains_key("middleware.io/pending-change-detected"));
    stage.world.check();
    running.stop().await;
}

pub(crate) async fn a_broken_template_is_said_with_its_place_and_mended() {
    let stage = Stage::with_app().await;
    let running = stage.start();
    stage.until_done().await;
    let set: StatefulSet = stage.api().get("cache-nodes-main").await.unwrap();
    let mut broken = stage::plugin();
    broken["spec"]["templates"][0]["template"] = "apiVersion: v1\nkind: {{ nonsense }}\n".into();
    stage.patch::<Plugin>("redis-v1", json!({ "spec": { "templates": broken["spec"]["templates"] } })).await;
    let failed = |group: &Group| {
        let status = group.status.clone().unwrap_or_default();
        conditions::find(&status.conditions, "TemplatesRendered").is_some_and(|one| {
            one.status == "False" && one.message.contains("config:2:") && one.message.contains("nonsense")
        })
    };
    stage.until("cache-nodes-main", failed).await;
    stage.until("cache", |app: &App| app.status.as_ref().unwrap().phase == Some(AppPhase::Degraded)).await;
    let now: StatefulSet = stage.api().get("cache-nodes-main").await.unwrap();
    assert_eq!(now.metadata.generation, set.metadata.generation);
    // A plugin that renders the same restarts nothing.
    stage.world.forget();
    let whole = stage::plugin();
    stage
        .patch::<Plugin>(
            "redis-v1",
            json!({ "spec": { "description": "the same", "templates": whole["spec"]["templates"] } }),
        )
        .await;
    stage.until("cache", |app: &App| app.status.as_ref().unwrap().phase == Some(AppPhase::Running)).await;
    assert_eq!(stage.world.restarted(), Vec::<String>::new());
    running.stop().await;
}

pub(crate) async fn templates_without_end_are_said_with_their_place_and_apply_nothing() {
    let stage = Stage::with_app().await;
    let running = stage.start();
    stage.until_done().await;
    let set: StatefulSet = stage.api().get("cache-nodes-main").await.unwrap();
    let map: ConfigMap = stage.api().get("cache-nodes-main").await.unwrap();
    let cases = [
        ("endless", "{{ range 9223372036854775807 }}{{ end }}", "steps; is there a loop"),
        ("recursion", "{{ define \"x\" }}{{ include \"x\" . }}{{ end }}{{ include \"x\" . }}", ""),
        ("10 MB", "{{ range until 10000 }}{{ repeat 1000 \"x\" }}{{ end }}", "1048576 bytes"),
    ];
    for (name, text, wanted) in cases {
        let mut endless = stage::plugin();
        endless["spec"]["templates"][0]["template"] =
            format!("apiVersion: v1\nkind: ConfigMap # {name}\ndata: {text}\n").into();
        let templates = &endless["spec"]["templates"];
        stage.patch::<Plugin>("redis-v1", json!({ "spec": { "templates": templates } })).await;
        let said = |group: &Group| {
            let status = group.status.clone().unwrap_or_default();
            let found = conditions::find(&status.conditions, "TemplatesRendered").cloned();
            // With line and column.
            found.is_some_and(|one| {
                let place = one.message.split("config:3:").nth(1).unwrap_or_default();
                let column = place.split(':').next().unwrap_or_default();
                one.status == "False"
                    && one.reason == "TemplateError"
                    && column.parse::<u32>().is_ok()
                    && one.message.contains(wanted)
            })
        };
        stage.until("cache-nodes-main", said).await;
        stage
            .patch::<Plugin>(
                "redis-v1",
                json!({ "spec": { "templates": stage::plugin()["spec"]["templates"] } }),
            )
            .await;
        let phase = |app: &App| app.status.as_ref().unwrap().phase == Some(AppPhase::Running);
        stage.until("cache", phase).await;
    }
    let now: StatefulSet = stage.api().get("cache-nodes-main").await.unwrap();
    assert_eq!(now.metadata.generation, set.metadata.generation);
    let now: ConfigMap = stage.api().get("cache-nodes-main").await.unwrap();
    assert_eq!((&now.data, now.resource_version()), (&map.data, map.resource_version()));
    running.stop().await;
}

pub(crate) async fn what_the_server_refuses_is_said() {
    let stage = Stage::open().await;
    let mut plugin = stage::plugin();
    plugin["spec"]["templates"][1]["template"] =
        "apiVersion: v1\nkind: Service\nmetadata: {name: Not_A_Name}\nspec: {ports: [{port: 1}]}\n".into();
    stage.create::<Plugin>(plugin).await;
    stage.create::<App>(stage::app("cache")).await;
    let running = stage.start();
    let task = stage.until_task("1-nodes-provision", ChangeStatus::Failed).await;
    assert!(task.error.as_ref().unwrap().contains("Not_A_Name"), "{task:?}");
    running.stop().await;
}

pub(crate) async fn what_belongs_to_another_fails_the_task_at_once() {
    let stage = Stage::open().await;
    stage.create::<Plugin>(stage::plugin()).await;
    let runtime = json!({ "name": "redis", "version": "7.0" });
    let theirs = json!({ "appRef": { "name": "theirs" }, "pluginRef": { "name": "redis-v1" }, "runtime": runtime,
        "groups": [{ "name": "main" }] });
    let made = stage.create::<App>(stage::app("theirs")).await;
    let owner = json!({ "apiVersion": "middleware.io/v1alpha1", "kind": "App", "name": "theirs", "uid": made.uid(),
        "controller": true });
    let metadata = json!({ "name": "cache-nodes", "ownerReferences": [owner] });
    stage
        .create::<Component>(json!({ "apiVersion": "middleware.io/v1alpha1", "kind": "Component",
        "metadata": metadata, "spec": theirs }))
        .await;
    stage.create::<App>(stage::app("cache")).await;
    let running = stage.start();
    let task = stage.until_task("1-nodes-provision", ChangeStatus::Failed).await;
    assert!(task.error.as_ref().unwrap().contains("cache-nodes exists and belongs to App"), "{task:?}");
    assert_eq!(task.retry_count, task.max_retries, "{task:?}");
    running.stop().await;
}

/// Until a condition of the App is false for a reason; what it says.
async fn until_false(stage: &Stage, type_: &str, reason: &str) -> String {
    let find = |app: &App| {
        let found = conditions::find(&app.status.as_ref()?.conditions, type_)?.clone();
        (found.status == "False" && found.reason == reason).then_some(found.message)
    };
    let app = stage.until("cache", |app: &App| find(app).is_some()).await;
    find(&app).unwrap()
}

pub(crate) async fn what_an_app_cannot_leave_is_said() {
    let stage = Stage::open().await;
    let theirs = stage.create::<App>(stage::app("theirs")).await;
    let owner = json!({ "apiVersion": "middleware.io/v1alpha1", "kind": "App", "name": "theirs", "uid": theirs.uid(),
        "controller": true });
    let metadata = json!({ "name": "cache-connection", "ownerReferences": [owner] });
    stage.create::<Secret>(json!({ "metadata": metadata })).await;
    stage.create::<Plugin>(stage::plugin()).await;
    stage.create::<App>(stage::app("cache")).await;
    let running = stage.start();
    for type_ in ["TasksReady", "Ready"] {
        let message = until_false(&stage, type_, "ConfigurationInvalid").await;
        assert!(message.contains("cache-connection exists and belongs to App"), "{message}");
    }
    stage.until_event("ConfigurationInvalid").await;
    assert!(stage.api::<Component>().get_opt("cache-nodes").await.unwrap().is_none());
    let secret: Secret = stage.api().get("cache-connection").await.unwrap();
    assert_eq!(secret.data, None, "it is left alone");
    running.stop().await;
}

pub(crate) async fn a_full_quota_for_secrets_is_said() {
    let stage = Stage::with_app().await;
    stage.denial.set("secrets", "secrets \"cache-agent\" is forbidden: exceeded quota: few");
    let running = stage.start();
    let message = until_false(&stage, "Ready", "ResourcesInsufficient").await;
    assert!(message.contains("Secret cache-agent could not be written"), "{message}");
    stage.until_event("ResourcesInsufficient").await;
    running.stop().await;
}

pub(crate) async fn volumes_that_may_not_grow_are_said() {
    let stage = Stage::with_app().await;
    let running = stage.start();
    stage.until_done().await;
    stage.denial.set("persistentvolumeclaims", "only dynamically provisioned pvc can be resized");
    stage.edit(json!({ "storage": { "size": "2Gi" } }), json!({})).await;
    let task = stage.until_task("2-nodes-storage", ChangeStatus::Failed).await;
    let error = task.error.unwrap();
    assert!(error.contains("PersistentVolumeClaim data-cache-nodes-main-"), "{error}");
    assert!(error.contains("can be resized"), "{error}");
    let group = stage.group().await.status.unwrap();
    assert_eq!(conditions::find(&group.conditions, "Ready").unwrap().reason, "Forbidden");
    stage.until_event("Forbidden").await;
    running.stop().await;
}

pub(crate) async fn revisions_that_may_not_be_kept_are_said() {
    let stage = Stage::with_app().await;
    stage.denial.set("controllerrevisions", "cannot create controllerrevisions");
    let running = stage.start();
    let task = stage.until_task("1-nodes-provision", ChangeStatus::Failed).await;
    let error = task.error.unwrap();
    assert!(error.contains("ControllerRevision cache-nodes-main-"), "{error}");
    running.stop().await;
}

/// A Backup is ordered, and fails: with which reason and message.
async fn failed_backup(stage: &Stage, name: &str) -> (String, String) {
    stage
        .create::<Backup>(json!({ "metadata": { "name": name }, "spec": { "appRef": { "name": "cache" } } }))
        .await;
    let backup = stage
        .until(name, |backup: &Backup| {
            backup.status.as_ref().is_some_and(|status| status.phase == Some(BackupPhase::Failed))
        })
        .await;
    let status = backup.status.unwrap();
    let ready = conditions::find(&status.conditions, conditions::READY).unwrap();
    assert_eq!(ready.status, "False");
    (ready.reason.clone(), status.message.unwrap())
}

pub(crate) async fn a_backup_that_the_server_refuses_fails_with_its_reason() {
    let stage = Stage::open().await;
    let mut plugin = stage::plugin();
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\nspec:\n  template:\n    spec:\n      restartPolicy: Never\n      \
               containers: [{name: main, image: x}]\n";
    let template = json!({ "name": "backup", "type": "job", "template": job });
    plugin["spec"]["templates"].as_array_mut().unwrap().push(template);
    stage.create::<Plugin>(plugin).await;
    stage.create::<App>(stage::app("cache")).await;
    let running = stage.start();
    stage.until_done().await;
    stage.denial.set("jobs", "user cannot create jobs");
    let (reason, message) = failed_backup(&stage, "one").await;
    assert!(reason == "Forbidden" && message.contains("user cannot create jobs"), "{reason}: {message}");
    stage.until_event("BackupFailed").await;
    let storage = |bucket: &str| json!({ "backup": { "storage": { "provider": "pvc", "bucket": bucket } } });
    stage.edit(json!({}), storage("elsewhere")).await;
    stage.until_done().await;
    stage.denial.set("persistentvolumeclaims", "exceeded quota: few");
    let (reason, message) = failed_backup(&stage, "two").await;
    assert!(reason == "ResourcesInsufficient" && message.contains("elsewhere"), "{reason}: {message}");
    stage.edit(json!({}), storage("Not_A_Name")).await;
    stage.until_done().await;
    stage.denial.set("nothing", "");
    let (reason, message) = failed_backup(&stage, "three").await;
    assert!(reason == "ConfigurationInvalid" && message.contains("Not_A_Name"), "{reason}: {message}");
    running.stop().await;
}

pub(crate) async fn what_others_change_is_put_right() {
    let stage = Stage::with_app().await;
    let running = stage.start();
    stage.until_done().await;
    let services: Api<Service> = stage.api();
    services.delete("cache-nodes-main-primary", &DeleteParams::default()).await.unwrap();
    stage.until("cache-nodes-main-primary", |_: &Service| true).await;
    stage.patch::<ConfigMap>("cache-nodes-main", json!({ "data": { "main": "mine" } })).await;
    stage.until("cache-nodes-main", |map: &ConfigMap| map.data.as_ref().unwrap()["main"] != "mine").await;
    running.stop().await;
}

pub(crate) async fn an_app_goes_with_everything() {
    let stage = Stage::with_app().await;
    let running = stage.start();
    stage.until_done().await;
    stage.delete_app().await;
    stage.until_gone().await;
    assert!(stage.world.count("stop") >= 3, "in order");
    running.stop().await;
}

pub(crate) async fn only_the_watched_namespace_is_looked_after() {
    let stage = Stage::with_app().await;
    let there: Api<App> = Api::namespaced(stage.client.clone(), stage::ELSEWHERE);
    let plugins: Api<Plugin> = Api::namespaced(stage.client.clone(), stage::ELSEWHERE);
    let plugin: Plugin = serde_json::from_value(stage::plugin()).unwrap();
    plugins.create(&PostParams::default(), &plugin).await.unwrap();
    let app: App = serde_json::from_value(stage::app("cache")).unwrap();
    there.create(&PostParams::default(), &app).await.unwrap();
    let options = Options { watch_namespace: Some(stage::NAMESPACE.into()), ..stage::options() };
    let running = stage.start_as(options);
    stage.until_done().await;
    let untouched = there.get("cache").await.unwrap();
    assert_eq!((untouched.status, untouched.metadata.finalizers), (None, None));
    running.stop().await;
}

pub(crate) async fn agents_are_closed_to_everybody_but_the_controllers() {
    let stage = Stage::with_app().await;
    let peer: NetworkPolicyPeer =
        serde_json::from_value(json!({ "podSelector": { "matchLabels": { "app": "controllers" } } }))
            .unwrap();
    let running = stage.start_as(Options { agent_peers: Some(vec![peer]), ..stage::options() });
    stage.until_done().await;
    let policies: Api<NetworkPolicy> = stage.api();
    let spec = serde_json::to_value(policies.get("cache-agents").await.unwrap().spec).unwrap();
    assert_eq!(spec["podSelector"], json!({ "matchLabels": { "middleware.io/app": "cache" } }));
    let who = |port: i64| -> Vec<serde_json::Value> {
        let rules = spec["ingress"].as_array().unwrap().iter();
        let opens = |rule: &&serde_json::Value| {
            rule["ports"].as_array().unwrap().iter().any(|one| {
                let first = one["port"].as_i64().unwrap();
                one["protocol"] == "TCP" && (first..=one["endPort"].as_i64().unwrap_or(first)).contains(&port)
            })
        };
        rules.filter(opens).flat_map(|rule| rule["from"].as_array().unwrap().clone()).collect()
    };
    let neighbours = vec![json!({ "podSelector": {} })];
    assert_eq!(
        (who(6379), who(50050), who(50053), who(65535)),
        (neighbours.clone(), neighbours.clone(), neighbours.clone(), neighbours)
    );
    assert_eq!(who(50052), [json!({ "podSelector": { "matchLabels": { "app": "controllers" } } })]);
    assert_eq!(who(50051), Vec::<serde_json::Value>::new());
    // Whoever opens it again does so in vain.
    policies.delete("cache-agents", &DeleteParams::default()).await.unwrap();
    stage.until("cache-agents", |_: &NetworkPolicy| true).await;
    running.stop().await;
}
