//! What is around the planner.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::Duration;

use agentcube_api::Quantity;
use agentcube_api::middleware::group::Policies;
use agentcube_api::middleware::parts::PartPhase;
use agentcube_api::middleware::{Group, GroupStatus};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::app::machine::later;
use crate::group::observe::{Answers, Claim, Fault, Observed, Pod, Role, Set};
use crate::group::plan::{Operation, Plan, Question, plan};
use crate::group::revision::Revision;
use crate::group::roll::allowed;
use crate::order::Order;

pub(super) struct World {
    pub(super) group: Group,
    pub(super) policies: Policies,
    pub(super) failover: bool,
    pub(super) reloads: bool,
    pub(super) fault: Option<Fault>,
    pub(super) revisions: BTreeMap<String, (i64, Revision)>,
    pub(super) objects: BTreeMap<String, Value>,
    pub(super) pods: BTreeMap<i32, Pod>,
    pub(super) claims: BTreeMap<i32, Claim>,
    pub(super) leader: Option<String>,
    pub(super) now: Timestamp,
    made: u32,
    // How agents are.
    pub(super) reachable: bool,
    pub(super) order: Result<Order, String>,
    pub(super) check: Result<(), String>,
    /// Versions whose verification fails.
    pub(super) wrong: BTreeSet<String>,
    /// Versions whose Pods never get ready.
    pub(super) bad: BTreeSet<String>,
    pub(super) needs_restart: bool,
    /// Pods by uid whose middleware was stopped by somebody who died before the Pod was deleted, and how often the kubelet has
    /// looked since. They are silent; the probe finds out at its first look, and the agent starts it again at the second.
    stopped: BTreeMap<String, u32>,
    /// Pods that answer, and say that they do not have all that they should. Their probes may not know that yet.
    pub(super) syncing: BTreeSet<String>,
    // What was done.
    pub(super) restarts: Vec<String>,
    pub(super) failovers: Vec<(String, String)>,
    pub(super) reloads_asked: u32,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) gone: bool,
    pub(super) pause: Duration,
}

impl World {
    pub(super) fn new(spec: Value) -> World {
        let mut object = json!({
            "metadata": { "name": "g", "namespace": "here", "uid": "u", "generation": 1,
                "finalizers": ["middleware.io/stop-order"] },
            "spec": { "componentRef": { "name": "c" }, "pluginRef": { "name": "p-v1" },
                "runtime": { "name": "r", "version": "1" }, "replicas": 3, "storage": { "size": "1Gi" } } });
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let group: Group = serde_json::from_value(object).unwrap();
        World {
            policies: group.spec.policies.clone(),
            group,
            failover: true,
            reloads: true,
            fault: None,
            revisions: BTreeMap::new(),
            objects: BTreeMap::new(),
            pods: BTreeMap::new(),
            claims: BTreeMap::new(),
            leader: None,
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            made: 0,
            reachable: true,
            order: Err("not set".into()),
            check: Ok(()),
            wrong: BTreeSet::new(),
            bad: BTreeSet::new(),
            needs_restart: false,
            stopped: BTreeMap::new(),
            syncing: BTreeSet::new(),
            restarts: Vec::new(),
            failovers: Vec::new(),
            reloads_asked: 0,
            labels: BTreeMap::new(),
            gone: false,
            pause: Duration::ZERO,
        }
    }

    pub(super) fn rendered(&self) -> Revision {
        let spec = &self.group.spec;
        let size = spec.storage.as_ref().map(|storage| storage.size.to_string());
        let objects = vec![
            json!({ "kind": "ConfigMap", "metadata": { "name": "g" }, "data": spec.values }),
            json!({ "kind": "StatefulSet", "metadata": { "name": "g" }, "spec": {
                "template": { "metadata": { "labels": {} }, "spec": { "image": spec.runtime.version,
                    "resources": spec.resources } },
                "volumeClaimTemplates": [{ "metadata": { "name": "data" },
                    "spec": { "resources": { "requests": { "storage": size } } } }] } }),
        ];
        Revision::new(&spec.runtime.version, spec.replicas, objects, self.reloads)
    }

    fn set(&self) -> Option<&Value> {
        self.objects.get("StatefulSet")
    }

    fn seen_set(&self) -> Option<Set> {
        self.set().map(|set| Set {
            replicas: i32::try_from(set["spec"]["replicas"].as_i64().unwrap()).unwrap(),
            claim_templates: set["spec"]["volumeClaimTemplates"].clone(),
        })
    }

    pub(super) fn roles(&self) -> BTreeMap<String, Role> {
        if !self.reachable {
            return BTreeMap::new();
        }
        let role = |pod: &Pod| {
            let leader = self.leader.as_ref() == Some(&pod.name);
            let name = if leader { "master" } else { "slave" }.into();
            let address = |name: &String| self.pods.values().find(|pod| pod.name == *name)?.address.clone();
            let follows = self.leader.as_ref().filter(|_| !leader).and_then(address);
            let ready = self.syncing.contains(&pod.name).then_some(false);
            Role { name, leader, follows, ready, history: Some("one".into()), ..Role::default() }
        };
        let up = self.pods.values().filter(|pod| self.serves(pod) || self.syncing.contains(&pod.name));
        up.map(|pod| (pod.name.clone(), role(pod))).collect()
    }

    /// Whether clients are served, whatever its probe has seen last.
    fn serves(&self, pod: &Pod) -> bool {
        pod.ready && !pod.terminating && !self.stopped.contains_key(&pod.uid)
    }

    /// Plans, and answers what is asked.
    pub(super) fn plan(&mut self) -> Plan {
        let mut answers = Answers { roles: self.roles(), ..Answers::default() };
        let rendered = self.rendered();
        let set = self.seen_set();
        for _ in 0..20 {
            let pods: Vec<Pod> =
                self.pods.values().map(|pod| pod.as_said(answers.roles.get(&pod.name))).collect();
            let claims: Vec<Claim> = self.claims.values().cloned().collect();
            let stands = |object: &Value| self.objects.get(object["kind"].as_str().unwrap()) == Some(object);
            let plan = plan(&Observed {
                group: &self.group,
                policies: &self.policies,
                failover: self.failover,
                rendered: self.fault.as_ref().map_or(Ok(&rendered), Err),
                revisions: &self.revisions,
                stands: &stands,
                set: set.as_ref(),
                others_ready: true,
                pods: &pods,
                claims: &claims,
                answers: &answers,
                pause: self.pause,
                since: Timestamp::MIN,
                now: self.now,
            });
            let cut = "nobody answers".to_owned();
            match plan.question.clone() {
                None => return plan,
                Some(Question::Order { .. }) => {
                    answers.order = Some(if self.reachable { self.order.clone() } else { Err(cut) });
                }
                Some(Question::Check) => {
                    answers.checked = Some(if self.reachable { self.check.clone() } else { Err(cut) });
                }
                Some(Question::Verify) => {
                    let wrong = self.wrong.contains(&self.group.spec.runtime.version);
                    let verified = if wrong { Err("not as expected".into()) } else { Ok(()) };
                    answers.verified = Some(if self.reachable { verified } else { Err(cut) });
                }
                Some(Question::Reload { uid, .. }) => {
                    self.reloads_asked += 1;
                    let listens = self.reachable && !self.stopped.contains_key(&uid);
                    let answer = if listens { Ok(self.needs_restart) } else { Err(cut) };
                    answers.reloaded.insert(uid, answer);
                }
            }
        }
        panic!("it asks for ever");
    }

    /// A pass of a controller that dies after so many effects. To restart a Pod takes three: it is marked, stopped, and deleted.
    pub(super) fn pass(&mut self, effects: usize) -> bool {
        let plan = self.plan();
        let any = !plan.operations.is_empty();
        let mut left = effects;
        for operation in plan.operations {
            let takes = if matches!(operation, Operation::Restart { .. }) { 3 } else { 1 };
            match (left, &operation) {
                (0, _) => break,
                (1, Operation::Restart { uid, revision, .. }) => self.mark(uid, revision),
                (2, Operation::Restart { pod, uid, revision }) => {
                    self.mark(uid, revision);
                    self.stop(pod, uid);
                }
                _ => self.perform(operation),
            }
            left = left.saturating_sub(takes);
        }
        any
    }

    pub(super) fn settle(&mut self) {
        for _ in 0..50 {
            if self.gone || !self.pass(usize::MAX) {
                return;
            }
            if self.plan().operations.iter().all(|one| matches!(one, Operation::Failover { .. }))
                && !self.reachable
            {
                return;
            }
        }
        panic!("it never comes to rest: {:#?}", self.plan());
    }

    fn perform(&mut self, operation: Operation) {
        match operation {
            Operation::Hold => unreachable!(),
            Operation::WriteStatus(status) => {
                let json = serde_json::to_value(&*status).unwrap();
                self.group.status = Some(serde_json::from_value(json).unwrap());
            }
            Operation::Record(revision) => {
                let number = self.revisions.values().map(|(number, _)| number + 1).max().unwrap_or(1);
                self.revisions.insert(revision.name.clone(), (number, *revision));
            }
            Operation::Forget { revision } => {
                let last = self.status().last_completed_revision;
                assert_ne!(last.as_ref(), Some(&revision), "the last complete one stays");
                self.revisions.remove(&revision);
            }
            Operation::Apply(object) => {
                if let (true, Some(old)) = (object["kind"] == "StatefulSet", self.set()) {
                    let templates = |set: &Value| set["spec"]["volumeClaimTemplates"].clone();
                    assert_eq!(templates(&object), templates(old), "the server would refuse it");
                    self.check_scale_in(&object);
                }
                self.objects.insert(object["kind"].as_str().unwrap().into(), *object);
            }
            Operation::Expand { claim, size } => {
                let claim = self.claims.values_mut().find(|one| one.name == claim).unwrap();
                assert!(size > claim.requested, "volumes never shrink");
                claim.requested = size;
            }
            Operation::Fence { .. } | Operation::Promote { .. } | Operation::Follow { .. } => {
                unreachable!("nobody is chosen here")
            }
            Operation::Failover { from, to } => {
                let ready = self.pods.values().any(|pod| pod.name == to && self.serves(pod));
                if self.reachable && ready {
                    assert_eq!(self.leader.as_ref(), Some(&from));
                    self.leader = Some(to.clone());
                    self.failovers.push((from, to));
                }
            }
            Operation::Restart { pod, uid, .. } => self.restart(&pod, &uid),
            Operation::MarkConfiguration { pod, configuration } => {
                let pod = self.pods.values_mut().find(|one| one.name == pod).unwrap();
                pod.configuration = configuration;
            }
            Operation::LabelRole { pod, role } => {
                let others = self.labels.iter().filter(|(name, role)| **name != pod && *role == "master");
                let alive = others
                    .filter(|(name, _)| self.pods.values().any(|one| one.name == **name && !one.terminating));
                assert!(role != "master" || alive.count() == 0, "two are labelled as leader");
                self.labels.insert(pod.clone(), role.clone());
                let pod = self.pods.values_mut().find(|one| one.name == pod).unwrap();
                pod.labelled = Some(role).filter(|role| !role.is_empty());
            }
            Operation::Dismantle => drop(self.objects.remove("StatefulSet")),
            Operation::Release => {
                assert!(self.pods.is_empty());
                self.gone = true;
            }
        }
    }

    /// No leader is scaled away while somebody else could lead.
    fn check_scale_in(&self, object: &Value) {
        let replicas = i32::try_from(object["spec"]["replicas"].as_i64().unwrap()).unwrap();
        let leads = |pod: &&Pod| Some(&pod.name) == self.leader.as_ref() && pod.ready;
        let heir = self.pods.values().any(|pod| pod.ordinal < replicas && pod.ready && !pod.terminating);
        let fewer = self.seen_set().is_some_and(|set| set.replicas > replicas);
        if fewer && self.reachable && self.failover && heir {
            let lost = self.pods.values().filter(leads).any(|pod| pod.ordinal >= replicas);
            assert!(!lost, "the leader is scaled away");
        }
    }

    fn mark(&mut self, uid: &str, revision: &str) {
        let pod = self.pods.values_mut().find(|pod| pod.uid == uid);
        // Whoever is down is just deleted.
        if let Some(pod) = pod.filter(|pod| pod.shown_ready) {
            pod.taken_for = Some(revision.into());
        }
    }

    /// The middleware in a Pod is stopped, and whoever did that dies.
    fn stop(&mut self, name: &str, uid: &str) {
        self.may_go(name, uid);
        let there = self.pods.values().find(|pod| pod.name == name && pod.uid == uid);
        // Whoever is down already is not asked to stop.
        if self.reachable && there.is_some_and(|pod| self.serves(pod)) {
            self.stopped.insert(uid.into(), 0);
            self.elect();
        }
    }

    /// What has to hold whenever a Pod is taken down.
    fn may_go(&self, name: &str, uid: &str) {
        let Some(pod) = self.pods.values().find(|pod| pod.name == name && pod.uid == uid) else { return };
        if !self.serves(pod) {
            return;
        }
        let replicas = self.group.spec.replicas.min(self.seen_set().map_or(0, |set| set.replicas));
        let up = self.pods.values().filter(|pod| self.serves(pod) && pod.ordinal < replicas).count();
        let most = allowed(self.policies.rolling_update.as_ref(), replicas);
        let left = i32::try_from(up).unwrap() - 1;
        assert!(left >= replicas - most, "{left} of {replicas} are left, and {most} may be down");
        if self.reachable && Some(&pod.name) == self.leader.as_ref() && replicas > 1 {
            let target =
                self.set().unwrap()["spec"]["template"]["metadata"]["labels"]["middleware.io/revision"]
                    .clone();
            let others = self.pods.values().filter(|one| one.name != pod.name && one.ordinal < replicas);
            let old = others.clone().find(|one| one.revision != target.as_str().unwrap() && !one.terminating);
            assert!(old.is_none(), "the leader is not last: {old:?}");
            assert!(!self.failover, "the leader still leads");
        }
    }

    fn restart(&mut self, name: &str, uid: &str) {
        self.may_go(name, uid);
        let Some(pod) = self.pods.values().find(|pod| pod.name == name && pod.uid == uid) else { return };
        self.restarts.push(name.into());
        let ordinal = pod.ordinal;
        self.pods.get_mut(&ordinal).unwrap().terminating = true;
        self.elect();
    }

    /// The middleware elects by itself when its leader is gone.
    fn elect(&mut self) {
        let alive = |name: &String| self.pods.values().any(|pod| pod.name == *name && self.serves(pod));
        if !self.leader.as_ref().is_some_and(alive) {
            let next = self.pods.values().find(|pod| self.serves(pod));
            self.leader = next.map(|pod| pod.name.clone());
        }
    }

    /// The StatefulSet's controller and the kubelet do all they can.
    pub(super) fn kubelet(&mut self) {
        self.pods.retain(|_, pod| !pod.terminating);
        self.now = later(self.now, Duration::from_secs(1));
        let Some(set) = self.set().cloned() else {
            self.pods.clear();
            return;
        };
        let replicas = self.seen_set().unwrap().replicas;
        self.pods.retain(|ordinal, _| *ordinal < replicas);
        for ordinal in 0..replicas {
            let size =
                set["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"].clone();
            let size = Quantity::from_str(size.as_str().unwrap()).unwrap();
            self.claims.entry(ordinal).or_insert_with(|| Claim {
                name: format!("data-g-{ordinal}"),
                template: "data".into(),
                requested: size.clone(),
                capacity: Some(size),
            });
            self.made += 1;
            let labels = &set["spec"]["template"]["metadata"]["labels"];
            let (made, now) = (self.made, self.now);
            self.pods.entry(ordinal).or_insert_with(|| Pod {
                name: format!("g-{ordinal}"),
                uid: format!("uid-{made}"),
                address: Some(format!("10.0.0.{ordinal}")),
                ordinal,
                ready: false,
                shown_ready: false,
                terminating: false,
                revision: labels["middleware.io/revision"].as_str().unwrap().into(),
                configuration: String::new(),
                created: now,
                labelled: None,
                taken_for: None,
                homeless: None,
            });
        }
        self.claims.values_mut().for_each(|claim| claim.capacity = Some(claim.requested.clone()));
        let bad = self.bad.clone();
        let versions: BTreeMap<String, String> =
            self.revisions.values().map(|(_, one)| (one.pods.clone(), one.version.clone())).collect();
        self.stopped.values_mut().for_each(|looks| *looks += 1);
        self.stopped.retain(|_, looks| *looks < 2);
        for pod in self.pods.values_mut() {
            let good = !versions.get(&pod.revision).is_some_and(|version| bad.contains(version));
            pod.ready = good && !self.stopped.contains_key(&pod.uid);
            pod.shown_ready = pod.ready;
        }
        let there: BTreeSet<String> = self.pods.values().map(|pod| pod.name.clone()).collect();
        self.labels.retain(|name, _| there.contains(name));
        for pod in self.pods.values() {
            if pod.labelled.is_none() {
                self.labels.remove(&pod.name);
            }
        }
        self.elect();
    }

    pub(super) fn edit(&mut self, change: impl FnOnce(&mut Value)) {
        let mut spec = serde_json::to_value(&self.group.spec).unwrap();
        change(&mut spec);
        self.group.spec = serde_json::from_value(spec).unwrap();
        self.group.metadata.generation = self.group.metadata.generation.map(|generation| generation + 1);
    }

    pub(super) fn version(&mut self, version: &str) {
        self.edit(|spec| spec["runtime"]["version"] = version.into());
    }

    pub(super) fn status(&self) -> GroupStatus {
        self.group.status.clone().unwrap_or_default()
    }

    pub(super) fn phase(&self) -> PartPhase {
        self.status().phase.unwrap_or_default()
    }

    pub(super) fn ready_message(&self) -> String {
        let status = self.status();
        agentcube_api::conditions::find(&status.conditions, "Ready").unwrap().message.clone()
    }

    /// Everything works from now on; ends when nothing is to be done.
    pub(super) fn finish(&mut self) {
        for _ in 0..200 {
            if self.gone {
                return;
            }
            let busy = self.pass(usize::MAX);
            self.kubelet();
            if !busy && self.plan().operations.is_empty() {
                match self.plan().again {
                    None => return,
                    Some(again) => self.now = self.now.max(again),
                }
            }
        }
        panic!("no end: {:#?}\n{:#?}", self.status(), self.plan());
    }

    pub(super) fn running(spec: Value) -> World {
        let mut world = World::new(spec);
        world.finish();
        assert_eq!(world.phase(), PartPhase::Ready, "{:#?}", world.status());
        world.restarts.clear();
        world
    }

    /// The versions that Pods have.
    pub(super) fn versions(&self) -> Vec<String> {
        let of = |pod: &Pod| {
            let mut all = self.revisions.values().map(|(_, one)| one);
            all.find(|one| one.pods == pod.revision).unwrap().version.clone()
        };
        self.pods.values().map(of).collect()
    }
}
