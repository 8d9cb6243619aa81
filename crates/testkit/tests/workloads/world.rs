//! The objects of one namespace as watches bring them, and whether the controllers have come to rest over them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The kinds that are followed: how they are named here, and where their lists are.
pub(crate) const KINDS: [(&str, &str); 10] = [
    ("Deployment", "apis/apps/v1/namespaces/{ns}/deployments"),
    ("ReplicaSet", "apis/apps/v1/namespaces/{ns}/replicasets"),
    ("StatefulSet", "apis/apps/v1/namespaces/{ns}/statefulsets"),
    ("ControllerRevision", "apis/apps/v1/namespaces/{ns}/controllerrevisions"),
    ("Job", "apis/batch/v1/namespaces/{ns}/jobs"),
    ("Pod", "api/v1/namespaces/{ns}/pods"),
    ("PersistentVolumeClaim", "api/v1/namespaces/{ns}/persistentvolumeclaims"),
    ("EndpointSlice", "apis/discovery.k8s.io/v1/namespaces/{ns}/endpointslices"),
    ("Endpoints", "api/v1/namespaces/{ns}/endpoints"),
    ("Event", "api/v1/namespaces/{ns}/events"),
];

/// More Events than this about one object are not recorded at once.
const MOST_TOLD: i64 = 25;

/// What there is, and what there has been.
#[derive(Debug, Default)]
pub(crate) struct World {
    objects: BTreeMap<(&'static str, String), Value>,
    /// Every Pod that there ever was: name, generateName, and the uid of its controller when it was made.
    pub(crate) pods: BTreeMap<String, (String, Option<String>)>,
    /// How many Pods there ever were of a name, by the uid of the controller that made them.
    pub(crate) made: BTreeMap<(String, String), i64>,
    /// Hashes of templates and revisions, in the order in which they came.
    pub(crate) hashes: Vec<String>,
    /// Every Pod that there ever was as it was seen last, by uid.
    last: BTreeMap<String, Value>,
    /// The uids of all that is gone.
    gone: BTreeSet<String>,
    /// Pods that the user deleted, by uid: no controller tells of those.
    by_hand: BTreeSet<String>,
}

impl World {
    /// Takes in one event of a watch.
    pub(crate) fn take(&mut self, kind: &'static str, event: &Value) {
        let object = &event["object"];
        let name = text(object, "/metadata/name").to_owned();
        match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") => {
                self.remember(kind, &name, object);
                self.objects.insert((kind, name), object.clone());
            }
            Some("DELETED") => {
                self.remember(kind, &name, object);
                self.gone.insert(text(object, "/metadata/uid").to_owned());
                self.objects.remove(&(kind, name));
            }
            _ => {}
        }
    }

    fn remember(&mut self, kind: &str, name: &str, object: &Value) {
        for label in ["pod-template-hash", "controller.kubernetes.io/hash"] {
            let hash = object["metadata"]["labels"][label].as_str().map(str::to_owned);
            self.hashes.extend(hash.filter(|hash| !self.hashes.contains(hash)));
        }
        let uid = text(object, "/metadata/uid").to_owned();
        if kind == "Pod" && self.last.insert(uid, object.clone()).is_none() {
            let prefix = text(object, "/metadata/generateName").to_owned();
            let owner = controller(object).map(str::to_owned);
            *self.made.entry((name.to_owned(), owner.clone().unwrap_or_default())).or_default() += 1;
            self.pods.insert(name.to_owned(), (prefix, owner));
        }
    }

    /// Notes that the user deletes a Pod.
    pub(crate) fn deleted_by_hand(&mut self, pod: &str) {
        let uid = self.get("Pod", pod).map(|pod| text(pod, "/metadata/uid").to_owned());
        self.by_hand.extend(uid);
    }

    /// Whether all that a list showed, and all that it no longer showed, has been taken in.
    pub(crate) fn has_seen(&self, kind: &'static str, list: &Value) -> bool {
        let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let name = |object: &Value| text(object, "/metadata/name").to_owned();
        let seen = |item: &Value| match self.get(kind, &name(item)) {
            Some(held) => revision(held) >= revision(item),
            None => self.gone.contains(text(item, "/metadata/uid")),
        };
        let listed = |held: &Value| items.iter().any(|item| name(item) == name(held));
        items.iter().all(seen) && self.all(kind).all(|held| listed(held) || revision(held) > revision(list))
    }

    /// All objects of a kind, by name.
    pub(crate) fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |((held, _), _)| *held == kind).map(|(_, object)| object)
    }

    pub(crate) fn get(&self, kind: &'static str, name: &str) -> Option<&Value> {
        self.objects.get(&(kind, name.to_owned()))
    }

    /// Names of Pods for which something holds.
    pub(crate) fn pods_where(&self, holds: impl Fn(&Value) -> bool) -> Vec<String> {
        self.all("Pod").filter(|pod| holds(pod)).map(|pod| text(pod, "/metadata/name").to_owned()).collect()
    }

    /// A number in the status (or elsewhere) of an object; what is missing is zero.
    pub(crate) fn number(&self, kind: &'static str, name: &str, pointer: &str) -> i64 {
        self.get(kind, name).map_or(0, |object| number(object, pointer))
    }

    /// The reason of a condition of an object.
    pub(crate) fn reason(&self, kind: &'static str, name: &str, condition: &str) -> &str {
        let conditions = self.get(kind, name).and_then(|object| object["status"]["conditions"].as_array());
        let found = conditions.into_iter().flatten().find(|one| one["type"] == condition);
        found.map_or("", |one| text(one, "/reason"))
    }

    /// How often an Event of this reason was recorded about an object of this uid.
    fn events(&self, uid: &str, reason: &str) -> i64 {
        let about =
            |event: &&Value| text(event, "/involvedObject/uid") == uid && text(event, "/reason") == reason;
        self.all("Event").filter(about).map(|event| number(event, "/count")).sum()
    }

    /// How often a Pod of this name was made.
    pub(crate) fn times_made(&self, pod: &str) -> i64 {
        self.made.iter().filter(|((name, _), _)| *name == pod).map(|(_, count)| *count).sum()
    }

    /// Whether the Deployments and ReplicaSets report exactly what is there, and Events tell of it.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.all("ReplicaSet").all(|set| self.set_is_at_rest(set))
            && self.all("Deployment").all(|deployment| self.deployment_is_at_rest(deployment))
    }

    fn set_is_at_rest(&self, set: &Value) -> bool {
        let uid = text(set, "/metadata/uid");
        let own: Vec<&Value> = self.all("Pod").filter(|pod| controller(pod) == Some(uid)).collect();
        let count = |of: fn(&Value) -> bool| own.iter().filter(|pod| of(pod)).count() as i64;
        let failing = set["status"]["conditions"].is_array();
        let made = self.pods.values().filter(|(_, owner)| owner.as_deref() == Some(uid)).count() as i64;
        let deleting = !set["metadata"]["deletionTimestamp"].is_null();
        let told = self.events(uid, "SuccessfulCreate") + self.events(uid, "SuccessfulDelete");
        let labels = &set["spec"]["template"]["metadata"]["labels"];
        let labelled = own.iter().filter(|pod| is_active(pod) && has_labels(pod, labels)).count() as i64;
        observed(set)
            && number(set, "/status/fullyLabeledReplicas") == labelled
            && number(set, "/status/replicas") == count(is_active)
            && number(set, "/status/readyReplicas") == count(|pod| is_active(pod) && is_ready(pod))
            && number(set, "/status/terminatingReplicas") == count(is_terminating)
            && (failing || deleting || number(set, "/spec/replicas") == count(is_active))
            && (deleting || told >= (made + self.ended(uid)).min(MOST_TOLD))
    }

    /// How many Pods a controller has ended.
    fn ended(&self, controller_uid: &str) -> i64 {
        let ended = |(uid, pod): &(&String, &Value)| {
            let there = self.get("Pod", text(pod, "/metadata/name"));
            let there = there.is_some_and(|held| text(held, "/metadata/uid") == uid.as_str());
            controller(pod) == Some(controller_uid)
                && !is_finished(pod)
                && !self.by_hand.contains(uid.as_str())
                && (!there || !is_active(pod))
        };
        self.last.iter().filter(ended).count() as i64
    }

    fn deployment_is_at_rest(&self, deployment: &Value) -> bool {
        let uid = text(deployment, "/metadata/uid");
        let own: Vec<&Value> = self.all("ReplicaSet").filter(|set| controller(set) == Some(uid)).collect();
        let sum = |pointer: &str| own.iter().map(|set| number(set, pointer)).sum::<i64>();
        let same = |field: &str| {
            let pointer = format!("/status/{field}");
            number(deployment, &pointer) == sum(&pointer)
        };
        let revision = |object: &Value| -> i64 {
            let text = &object["metadata"]["annotations"]["deployment.kubernetes.io/revision"];
            text.as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        let latest = own.iter().map(|set| revision(set)).max().unwrap_or(0);
        let unavailable = (sum("/spec/replicas") - sum("/status/availableReplicas")).max(0);
        observed(deployment)
            && ["replicas", "readyReplicas", "availableReplicas", "terminatingReplicas"].into_iter().all(same)
            && number(deployment, "/status/unavailableReplicas") == unavailable
            && revision(deployment) == latest
            && own.iter().all(|set| self.scaling_is_told(deployment, set))
            && self.progress_is_told(deployment)
    }

    /// Whether the last scaling of a ReplicaSet has its Event, of this Deployment or of a former one of its name.
    fn scaling_is_told(&self, deployment: &Value, set: &Value) -> bool {
        let (name, size) = (text(set, "/metadata/name"), number(set, "/spec/replicas"));
        let told = |event: &Value| {
            text(event, "/involvedObject/name") == text(deployment, "/metadata/name")
                && text(event, "/message").contains(&format!("replica set {name} from "))
                && text(event, "/message").ends_with(&format!(" to {size}"))
        };
        let adopted = set["metadata"]["annotations"]["deployment.kubernetes.io/desired-replicas"].is_null();
        adopted || number(set, "/metadata/generation") == 1 && size == 0 || self.all("Event").any(told)
    }

    /// Whether a rollout that is complete says so.
    fn progress_is_told(&self, deployment: &Value) -> bool {
        let wanted = number(deployment, "/spec/replicas");
        let complete = ["replicas", "updatedReplicas", "availableReplicas"]
            .into_iter()
            .all(|field| number(deployment, &format!("/status/{field}")) == wanted);
        let paused = deployment["spec"]["paused"] == true;
        let deadline = number(deployment, "/spec/progressDeadlineSeconds") != i64::from(i32::MAX);
        let name = text(deployment, "/metadata/name");
        let reason = self.reason("Deployment", name, "Progressing");
        if paused {
            reason == "DeploymentPaused"
        } else {
            !complete || !deadline || reason == "NewReplicaSetAvailable"
        }
    }
}

/// The number of a version; what has none is the oldest.
fn revision(object: &Value) -> u64 {
    text(object, "/metadata/resourceVersion").parse().unwrap_or(0)
}

fn has_labels(pod: &Value, labels: &Value) -> bool {
    let labels = labels.as_object().into_iter().flatten();
    labels.into_iter().all(|(key, value)| pod["metadata"]["labels"][key] == *value)
}

fn observed(object: &Value) -> bool {
    number(object, "/status/observedGeneration") == number(object, "/metadata/generation")
}

pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

/// The uid of an object's controller.
pub(crate) fn controller(object: &Value) -> Option<&str> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["controller"] == true)?["uid"].as_str()
}

fn is_finished(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

pub(crate) fn is_active(pod: &Value) -> bool {
    !is_finished(pod) && pod["metadata"]["deletionTimestamp"].is_null()
}

pub(crate) fn is_terminating(pod: &Value) -> bool {
    !is_finished(pod) && !pod["metadata"]["deletionTimestamp"].is_null()
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
}
