//! One round of scheduling: all Pods that wait, in order of priority and age, against the nodes as they are.
//! Decides and does nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};

use super::claims::{self, Storage};
use super::demand::{Demand, Load};
use super::fit::{Reason, fit};

/// What a round sees.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub nodes: Vec<Arc<Node>>,
    pub pods: Vec<Arc<Pod>>,
    pub storage: Storage,
    /// Pods (by uid) that were bound, but do not look it yet, and their nodes.
    pub assumed: HashMap<String, String>,
}

/// What a round wants done.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    Bind {
        pod: Arc<Pod>,
        node: String,
    },
    /// Tells a claim for which node its volume is to be made; its Pod is bound after that.
    Select {
        claim: Arc<PersistentVolumeClaim>,
        node: String,
    },
    /// The Pod stays where it is, for now. Nominated if Pods were evicted for it.
    Wait {
        pod: Arc<Pod>,
        message: String,
        nominated: Option<String>,
    },
    Evict {
        pod: Arc<Pod>,
        by: Arc<Pod>,
        node: String,
    },
}

/// A node and who is on it.
struct Place {
    node: Arc<Node>,
    load: Load,
    pods: Vec<(Arc<Pod>, Demand)>,
}

/// Whether a Pod waits for this scheduler.
pub(super) fn is_waiting(pod: &Pod, schedulers: &[String]) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let scheduler =
        spec.scheduler_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("default-scheduler");
    spec.node_name.as_deref().unwrap_or_default().is_empty()
        && pod.metadata.deletion_timestamp.is_none()
        && !is_over(pod)
        && spec.scheduling_gates.as_ref().is_none_or(Vec::is_empty)
        && schedulers.iter().any(|known| known == scheduler)
}

fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or_default()
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Decides about every Pod that waits.
pub fn plan(snapshot: &Snapshot, schedulers: &[String]) -> Vec<Decision> {
    let mut round = Round::new(snapshot);
    let mut waiting: Vec<&Arc<Pod>> = snapshot
        .pods
        .iter()
        .filter(|pod| is_waiting(pod, schedulers) && !snapshot.assumed.contains_key(uid(pod)))
        .collect();
    let age = |pod: &Pod| pod.metadata.creation_timestamp.clone();
    waiting.sort_by(|a, b| {
        let names = || a.metadata.name.cmp(&b.metadata.name);
        priority(b).cmp(&priority(a)).then_with(|| age(a).cmp(&age(b))).then_with(names)
    });
    for pod in waiting {
        round.schedule(pod);
    }
    round.decisions
}

struct Round<'a> {
    storage: &'a Storage,
    places: Vec<Place>,
    /// The claims that Pods with a node use.
    in_use: HashSet<(String, String)>,
    decisions: Vec<Decision>,
}

impl<'a> Round<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        let empty = |node: &Arc<Node>| Place { node: node.clone(), load: Load::default(), pods: Vec::new() };
        let mut round = Round {
            storage: &snapshot.storage,
            places: snapshot.nodes.iter().map(empty).collect(),
            in_use: HashSet::new(),
            decisions: Vec::new(),
        };
        for pod in snapshot.pods.iter().filter(|pod| !is_over(pod)) {
            let own =
                pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|name| !name.is_empty());
            let assumed = snapshot.assumed.get(uid(pod)).map(String::as_str);
            if let Some(node) = own.or(assumed) {
                round.place(pod, Demand::of(pod), node);
            }
        }
        round
    }

    fn place(&mut self, pod: &Arc<Pod>, demand: Demand, node: &str) {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        self.in_use.extend(claims::uses(pod).map(|used| (namespace.clone(), used.name)));
        let named = |place: &&mut Place| place.node.metadata.name.as_deref() == Some(node);
        if let Some(place) = self.places.iter_mut().find(named) {
            place.load.add(&demand);
            place.pods.push((pod.clone(), demand));
        }
    }

    fn wait(&mut self, pod: &Arc<Pod>, message: String, nominated: Option<String>) {
        self.decisions.push(Decision::Wait { pod: pod.clone(), message, nominated });
    }

    fn schedule(&mut self, pod: &Arc<Pod>) {
        let total = self.places.len();
        if total == 0 {
            return self.wait(pod, "no nodes available to schedule pods".to_owned(), None);
        }
        let wanted = match self.storage.wanted(pod) {
            Ok(wanted) => wanted,
            Err(problem) => {
                let message = format!("0/{total} nodes are available: {problem}. {}", unhelpful(total));
                return self.wait(pod, message, None);
            }
        };
        let demand = Demand::of(pod);
        let exclusive_in_use = wanted.exclusive.iter().any(|claim| self.in_use.contains(claim));
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        let mut about_others = false;
        for place in &self.places {
            let mut verdict = fit(&place.node, &place.load, pod, &demand);
            if verdict.is_ok() && exclusive_in_use {
                verdict = Err(vec![Reason::ClaimInUse]);
            }
            if verdict.is_ok() {
                verdict = self.storage.fit(&wanted, &place.node).map_err(|reason| vec![reason]);
            }
            let Err(against) = verdict else {
                let node = place.node.metadata.name.clone().unwrap_or_default();
                return self.put(pod, demand, &wanted, node);
            };
            about_others |= against.iter().all(Reason::is_about_others);
            for reason in against {
                *reasons.entry(reason.to_string()).or_default() += 1;
            }
        }
        let mut lines: Vec<String> =
            reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        lines.sort();
        let message = format!("0/{total} nodes are available: {}.", lines.join(", "));
        if about_others && !exclusive_in_use {
            self.preempt(pod, demand, message);
        } else {
            self.wait(pod, format!("{message} {}", unhelpful(total)), None);
        }
    }

    fn put(&mut self, pod: &Arc<Pod>, demand: Demand, wanted: &claims::Wanted, node: String) {
        for claim in wanted.untold(&node) {
            self.decisions.push(Decision::Select { claim: claim.clone(), node: node.clone() });
        }
        if wanted.waiting().is_empty() {
            self.decisions.push(Decision::Bind { pod: pod.clone(), node: node.clone() });
        }
        self.place(pod, demand, &node);
    }

    /// Makes room by evicting Pods of lower priority, the fewest that will do.
    fn preempt(&mut self, pod: &Arc<Pod>, demand: Demand, message: String) {
        let total = self.places.len();
        let never = pod.spec.as_ref().and_then(|spec| spec.preemption_policy.as_deref()) == Some("Never");
        if never {
            let refusal = "preemption: not eligible due to preemptionPolicy=Never.";
            return self.wait(pod, format!("{message} {refusal}"), None);
        }
        let room = self.places.iter().find_map(|place| {
            let victims = victims(place, pod, &demand)?;
            Some((place.node.metadata.name.clone().unwrap_or_default(), victims))
        });
        let Some((node, victims)) = room else {
            let none = format!(
                "preemption: 0/{total} nodes are available: {total} No preemption victims found for incoming pod."
            );
            return self.wait(pod, format!("{message} {none}"), None);
        };
        for victim in victims.into_iter().filter(|victim| victim.metadata.deletion_timestamp.is_none()) {
            self.decisions.push(Decision::Evict { pod: victim, by: pod.clone(), node: node.clone() });
        }
        self.wait(pod, message, Some(node.clone()));
        // The room that is made is not for those who come after.
        self.place(pod, demand, &node);
    }
}

fn unhelpful(total: usize) -> String {
    format!("preemption: 0/{total} nodes are available: {total} Preemption is not helpful for scheduling.")
}

/// The Pods of lower priority without which the Pod fits. Those that end already come first: they cost nothing.
fn victims(place: &Place, pod: &Arc<Pod>, demand: &Demand) -> Option<Vec<Arc<Pod>>> {
    let mut load = place.load.clone();
    let mut candidates: Vec<&(Arc<Pod>, Demand)> =
        place.pods.iter().filter(|(other, _)| priority(other) < priority(pod)).collect();
    if candidates.is_empty() {
        return None;
    }
    for (_, demand) in &candidates {
        load.subtract(demand);
    }
    fit(&place.node, &load, pod, demand).ok()?;
    // The most important are kept if they can be; of equals, those that started first.
    candidates.sort_by(|(a, _), (b, _)| {
        let ending = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        let started = |pod: &Pod| pod.status.as_ref().and_then(|status| status.start_time.clone());
        ending(a)
            .cmp(&ending(b))
            .then_with(|| priority(b).cmp(&priority(a)))
            .then_with(|| started(a).cmp(&started(b)))
    });
    let mut victims = Vec::new();
    for (other, own) in candidates {
        load.add(own);
        if fit(&place.node, &load, pod, demand).is_err() {
            load.subtract(own);
            victims.push(other.clone());
        }
    }
    Some(victims)
}

#[cfg(test)]
mod tests;
