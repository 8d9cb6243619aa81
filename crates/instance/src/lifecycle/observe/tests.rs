//! Whom a change concerns, and what is kept in mind of it.

use k8s_openapi::api::core::v1::PodTemplate;
use kube::Client;
use serde_json::{Value, json};

use super::*;
use crate::identity::{SessionKey, TaskId};
use crate::lifecycle::view::Limits;
use crate::record::lease_name;
use crate::revision::owner;
use crate::timing::Timing;

/// An index over caches that are filled by hand. Every object that is put is newer than all before.
struct Desk {
    index: Index,
    version: u64,
}

impl Desk {
    async fn new() -> Desk {
        let nobody = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Ok::<_, std::io::Error>(http::Response::new(kube::client::Body::empty()))
        });
        let caches = Caches::new(&Client::new(nobody, "default"));
        let rules = Rules { timing: Timing::default(), limits: Limits::default() };
        let mut desk = Desk { index: Index::new(caches, rules, "system".into()), version: 0 };
        assert_eq!(desk.task("agent", "t1", |_| ()), ["t1"]);
        desk
    }

    fn object<K: serde::de::DeserializeOwned>(&mut self, mut object: Value) -> K {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        serde_json::from_value(object).unwrap()
    }

    fn task(&mut self, name: &str, uid: &str, change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut task = json!({ "apiVersion": "agentcube.io/v1alpha1", "kind": "Task",
            "metadata": { "name": name, "namespace": "prod", "uid": uid },
            "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} } },
            "status": { "specID": "agent-1" } });
        change(&mut task);
        let task = self.object(task);
        self.index.caches.tasks.put(task);
        names(self.index.task("prod", name))
    }

    fn pod(&mut self, namespace: &str, change: impl FnOnce(&mut Value)) -> Vec<String> {
        let task = TaskId { namespace: "prod".into(), name: "agent".into(), uid: "t1".into() };
        let mut pod = json!({
            "metadata": { "name": "agent-0", "namespace": namespace, "uid": format!("{namespace}-p0"),
                "labels": { labels::TASK_UID: "t1", labels::SPEC_ID: "agent-1", labels::SLOT: "0" },
                "annotations": {}, "ownerReferences": [owner(&task)] },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        change(&mut pod);
        let pod = self.object(pod);
        self.index.caches.pods.put(pod);
        names(self.index.pod(namespace, "agent-0"))
    }

    fn session(&mut self, change: impl FnOnce(&mut Value)) -> Vec<String> {
        let name = lease_name("t1", &SessionKey::new("user-1").unwrap());
        let mut lease = json!({
            "metadata": { "name": name, "namespace": "prod", "uid": "l1",
                "labels": { labels::LEASE: labels::LEASE_OF_SESSION, labels::TASK_UID: "t1" },
                "annotations": { labels::RESERVE_KEY: "user-1" }, "finalizers": [labels::SESSION_FINALIZER] },
            "spec": { "holderIdentity": "agent-0/prod-p0", "renewTime": "2026-01-01T00:00:00.000000Z" },
        });
        change(&mut lease);
        let lease = self.object(lease);
        self.index.caches.leases.put(lease);
        names(self.index.lease("prod", &name))
    }

    fn router(&mut self, namespace: &str) -> Concerned {
        let lease = json!({
            "metadata": { "name": "router-a", "namespace": namespace, "uid": format!("{namespace}-r"),
                "labels": { labels::LEASE: labels::LEASE_OF_ROUTER } },
            "spec": { "renewTime": "2026-01-01T00:00:00.000000Z" },
        });
        let lease = self.object(lease);
        self.index.caches.leases.put(lease);
        self.index.lease(namespace, "router-a")
    }

    fn view(&self) -> &View {
        &self.index.views[&TaskKey { namespace: "prod".into(), uid: "t1".into() }]
    }
}

fn names(concerned: Concerned) -> Vec<String> {
    let mut names: Vec<String> = concerned.tasks.iter().map(|key| key.uid.to_string()).collect();
    names.sort();
    names
}

const NOBODY: [&str; 0] = [];

#[tokio::test]
async fn what_only_puts_things_off_concerns_nobody() {
    let mut desk = Desk::new().await;
    assert_eq!(desk.pod("prod", |_| ()), ["t1"]);
    assert_eq!(
        desk.pod("prod", |pod| pod["metadata"]["annotations"][labels::LAST_ACTIVE] =
            json!("2026-01-01T00:00:01Z")),
        NOBODY
    );
    assert_eq!(desk.pod("prod", |pod| pod["status"]["podIP"] = json!("10.0.0.7")), NOBODY);
    assert_eq!(desk.session(|_| ()), ["t1"]);
    assert_eq!(
        desk.session(|lease| lease["spec"]["renewTime"] = json!("2026-01-01T00:01:00.000000Z")),
        NOBODY
    );
    let counted = |task: &mut Value| task["status"]["instances"] = json!({ "total": 7 });
    assert_eq!(desk.task("agent", "t1", counted), NOBODY);
    // But it is known.
    let session = desk.view().sessions.values().next().unwrap().session.clone().unwrap();
    assert_eq!(session.renewed.to_string(), "2026-01-01T00:01:00Z");
    // What is marked, or ends, is another matter.
    assert_eq!(
        desk.session(|lease| lease["metadata"]["annotations"][labels::RELEASING] = json!("SessionIdle")),
        ["t1"]
    );
    assert_eq!(desk.pod("prod", |pod| pod["status"]["phase"] = json!("Failed")), ["t1"]);
    assert_eq!(desk.task("agent", "t1", |task| task["status"]["specID"] = json!("agent-2")), ["t1"]);
}

#[tokio::test]
async fn a_heartbeat_concerns_only_those_who_wait_for_it() {
    let mut desk = Desk::new().await;
    assert_eq!(desk.router("system"), Concerned { tasks: vec![], routers: true });
    desk.pod("prod", |pod| {
        pod["metadata"]["annotations"] =
            json!({ labels::RESERVE_KEY: "user-1", labels::RESERVATION: "l1.0" });
    });
    desk.session(|lease| lease["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    let key = TaskKey { namespace: "prod".into(), uid: "t1".into() };
    // The session ends, and the router has yet to say that it has seen that.
    assert!(desk.index.plan(&key).waits_for_routers);
    assert_eq!(desk.router("system").tasks, [key]);
    // Anybody could write a Lease elsewhere.
    assert_eq!(desk.router("prod"), Concerned::default());
    assert_eq!(desk.index.routers().0.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_vanishes_is_followed_by_rest() {
    let mut desk = Desk::new().await;
    let marked =
        |pod: &mut Value| pod["metadata"]["annotations"][labels::RELEASING] = json!("InstanceExcess");
    desk.pod("prod", marked);
    assert!(desk.view().rests.is_empty());
    desk.pod("prod", |_| ());
    assert_eq!(desk.view().rests.get("prod-p0"), Some(&(Instant::now() + Limits::default().rest)));
    // Another Pod of the same name has nothing to do with it.
    desk.pod("prod", |pod| pod["metadata"]["uid"] = json!("p9"));
    assert!(desk.view().rests.is_empty());
}

#[tokio::test(start_paused = true)]
async fn how_long_something_is_as_it_is_is_remembered() {
    let mut desk = Desk::new().await;
    let begun = Instant::now();
    desk.pod("prod", |_| ());
    tokio::time::advance(Duration::from_secs(5)).await;
    desk.pod("prod", |pod| pod["metadata"]["labels"]["another"] = json!("label"));
    let instance = &desk.view().instances["agent-0"];
    assert_eq!((instance.since, instance.life_since), (begun + Duration::from_secs(5), begun));
    // Reading the same again changes nothing.
    tokio::time::advance(Duration::from_secs(5)).await;
    desk.index.pod("prod", "agent-0");
    assert_eq!(desk.view().instances["agent-0"].since, begun + Duration::from_secs(5));
}

#[tokio::test]
async fn a_label_is_not_believed_across_namespaces_nor_without_an_owner() {
    let mut desk = Desk::new().await;
    desk.pod("evil", |_| ());
    assert!(desk.view().instances.is_empty());
    desk.pod("prod", |pod| pod["metadata"]["ownerReferences"] = json!([]));
    assert!(desk.view().instances.is_empty());
    desk.pod("prod", |_| ());
    assert_eq!(desk.view().instances.len(), 1);
}

#[tokio::test]
async fn a_task_made_anew_under_the_same_name_is_another() {
    let mut desk = Desk::new().await;
    desk.pod("prod", |_| ());
    assert_eq!(desk.task("agent", "t2", |_| ()), ["t1", "t2"]);
    assert_eq!(desk.view().task, None);
    assert_eq!(desk.view().instances.len(), 1);
}

#[tokio::test]
async fn the_form_of_a_revision_is_read_from_its_template() {
    let mut desk = Desk::new().await;
    let task = TaskId { namespace: "prod".into(), name: "agent".into(), uid: "t1".into() };
    let template: PodTemplate = desk.object(json!({
        "metadata": { "name": "agent-1", "namespace": "prod", "uid": "pt1",
            "labels": { labels::FORM: "job" }, "ownerReferences": [owner(&task)] },
        "template": { "spec": { "containers": [] } },
    }));
    desk.index.caches.templates.put(template.clone());
    assert_eq!(desk.view().form, None);
    assert_eq!(names(desk.index.template(&template.metadata)), ["t1"]);
    assert_eq!(desk.view().form, Some(Form::Job));
}
