use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::json;

use super::super::super::ownership::controller_reference;
use super::super::status;
use super::*;
use agentcube_operator::controller::Requeue;

fn now() -> Timestamp {
    "2026-01-02T00:00:00Z".parse().unwrap()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Owner {
    This,
    Another,
    Nobody,
}

/// What may be true of a Pod.
#[derive(Clone, Copy, Debug)]
struct Traits {
    owner: Owner,
    selected: bool,
    phase: &'static str,
    terminating: bool,
    ready: bool,
}

const PLAIN: Traits =
    Traits { owner: Owner::This, selected: true, phase: "Running", terminating: false, ready: true };

fn observed(replicas: usize, deleting: bool, pods: &[Traits]) -> Observed {
    let mut set = json!({
        "metadata": { "namespace": "ns", "name": "web", "uid": "this", "generation": 3 },
        "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": "web" } },
            "template": { "metadata": { "labels": { "app": "web", "tier": "front" } } } },
    });
    if deleting {
        set["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    let pods: Vec<Arc<Pod>> = pods.iter().enumerate().map(|(index, traits)| pod(index, traits)).collect();
    Observed {
        set: Arc::new(serde_json::from_value(set).unwrap()),
        selector: [("app".to_owned(), "web".to_owned())].into_iter().collect(),
        related: pods.clone(),
        pods,
    }
}

fn pod(index: usize, traits: &Traits) -> Arc<Pod> {
    let app = if traits.selected { "web" } else { "else" };
    let mut pod = json!({
        "metadata": { "namespace": "ns", "name": format!("pod-{index}"), "uid": format!("uid-{index}"),
            "labels": { "app": app } },
        "status": { "phase": traits.phase, "conditions": [{ "type": "Ready",
            "status": if traits.ready { "True" } else { "False" },
            "lastTransitionTime": "2026-01-01T23:59:55Z" }] },
    });
    let uid = match traits.owner {
        Owner::This => Some("this"),
        Owner::Another => Some("another"),
        Owner::Nobody => None,
    };
    if let Some(uid) = uid {
        let owner = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": uid, "controller": true });
        pod["metadata"]["ownerReferences"] = json!([owner]);
    }
    if traits.terminating {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// The world after the operations, if all of them succeed.
fn applied(mut observed: Observed, operations: &[Operation]) -> Observed {
    let reference = controller_reference(&*observed.set);
    let owner = |pods: &mut Vec<Arc<Pod>>, pod: &Pod, owner: Option<Vec<OwnerReference>>| {
        let held = pods.iter_mut().find(|held| held.uid() == pod.uid()).unwrap();
        Arc::make_mut(held).metadata.owner_references = owner;
    };
    for operation in operations {
        match operation {
            Operation::Adopt(pod) => owner(&mut observed.pods, pod, Some(vec![reference.clone()])),
            Operation::Release(pod) => owner(&mut observed.pods, pod, None),
            Operation::Create { count } => {
                let first = observed.pods.len() + 1000;
                let made = Traits { phase: "Pending", ready: false, ..PLAIN };
                observed.pods.extend((first..first + count).map(|index| self::pod(index, &made)));
            }
            Operation::Delete(pod) => observed.pods.retain(|held| held.uid() != pod.uid()),
        }
    }
    observed
}

#[test]
fn plans() {
    let of = |replicas, pods: &[Traits]| {
        let operations = plan(&observed(replicas, false, pods), now());
        operations
            .iter()
            .map(|operation| match operation {
                Operation::Adopt(pod) => format!("adopt {}", pod.name_any()),
                Operation::Release(pod) => format!("release {}", pod.name_any()),
                Operation::Create { count } => format!("create {count}"),
                Operation::Delete(pod) => format!("delete {}", pod.name_any()),
            })
            .collect::<Vec<_>>()
            .join(", ")
    };
    let ended = Traits { phase: "Failed", ready: false, ..PLAIN };
    let leaving = Traits { terminating: true, ..PLAIN };
    let waiting = Traits { ready: false, ..PLAIN };
    let stray = Traits { owner: Owner::Nobody, ..PLAIN };
    let lost = Traits { selected: false, ..PLAIN };
    let foreign = Traits { owner: Owner::Another, ..PLAIN };
    assert_eq!(of(3, &[]), "create 3");
    assert_eq!(of(1, &[PLAIN]), "");
    assert_eq!(of(1, &[ended, leaving, foreign]), "create 1", "what has ended or is leaving does not count");
    assert_eq!(of(1, &[PLAIN, waiting, PLAIN]), "delete pod-1, delete pod-0");
    assert_eq!(of(0, &[stray, lost]), "adopt pod-0, release pod-1", "claims are settled first");
    assert_eq!(of(600, &[]), "create 500", "only so many at once");
    assert!(plan(&observed(3, true, &[stray]), now()).is_empty(), "a ReplicaSet being deleted does nothing");
}

#[test]
fn the_status_counts_and_says_when_to_look_again() {
    let mut observed =
        observed(3, false, &[PLAIN, Traits { ready: false, ..PLAIN }, Traits { terminating: true, ..PLAIN }]);
    let set = Arc::make_mut(&mut observed.set);
    set.spec.as_mut().unwrap().min_ready_seconds = Some(15);
    let next = status::next(&observed, None, now());
    let status = next.status.unwrap();
    assert_eq!(
        (status.replicas, status.ready_replicas, status.available_replicas, status.terminating_replicas),
        (2, Some(1), None, Some(1))
    );
    assert_eq!((status.fully_labeled_replicas, status.observed_generation), (None, Some(3)));
    assert_eq!(next.requeue, Requeue::After(std::time::Duration::from_secs(10)));

    let failed = status::next(&observed, Some(("FailedCreate", "no".to_owned())), now()).status.unwrap();
    let condition = &failed.conditions.as_ref().unwrap()[0];
    assert_eq!(
        (condition.type_.as_str(), condition.reason.as_deref()),
        ("ReplicaFailure", Some("FailedCreate"))
    );
    Arc::make_mut(&mut observed.set).status = Some(failed);
    let again = Some(("FailedCreate", "another".to_owned()));
    assert!(status::next(&observed, again, now()).status.is_none(), "the first failure stays");
    assert_eq!(status::next(&observed, None, now()).status.unwrap().conditions, None);
}

fn traits() -> impl Strategy<Value = Traits> {
    let owner = prop_oneof![Just(Owner::This), Just(Owner::Another), Just(Owner::Nobody)];
    let phase = prop_oneof![Just("Pending"), Just("Running"), Just("Failed"), Just("Succeeded")];
    (owner, any::<bool>(), phase, any::<bool>(), any::<bool>()).prop_map(
        |(owner, selected, phase, terminating, ready)| Traits { owner, selected, phase, terminating, ready },
    )
}

proptest! {
    #[test]
    fn two_steps_settle_everything(
        replicas in 0..8usize,
        deleting in any::<bool>(),
        pods in proptest::collection::vec(traits(), 0..12),
    ) {
        let mut observed = observed(replicas, deleting, &pods);
        let foreign = |observed: &Observed| -> Vec<Arc<Pod>> {
            observed.pods.iter()
                .filter(|pod| claim(&observed.set.metadata, &observed.selector, &pod.metadata) == Claim::Foreign)
                .cloned().collect()
        };
        let others = foreign(&observed);
        for _ in 0..2 {
            let operations = plan(&observed, now());
            observed = applied(observed, &operations);
        }
        prop_assert_eq!(plan(&observed, now()), vec![]);
        if !deleting {
            prop_assert_eq!(active(&observed).len(), replicas);
        }
        let left = foreign(&observed);
        prop_assert!(others.iter().all(|pod| left.contains(pod)), "someone else's Pod was touched");
    }
}
