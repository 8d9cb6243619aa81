use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of this kind")
}

fn service() -> Service {
    object(json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "service-uid", "labels": {"tier": "front"}},
        "spec": {"clusterIP": "10.96.0.9", "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }))
}

/// A Pod by its number, with one of the states in which it may be.
fn pod(number: usize, state: usize) -> Arc<Pod> {
    let (phase, ready) =
        if state == 0 { ("Succeeded", "False") } else { ("Running", ["False", "True"][state % 2]) };
    let mut pod: Pod = object(json!({
        "metadata": {"name": format!("pod-{number}"), "namespace": "shop", "uid": format!("uid-{number}")},
        "spec": {"nodeName": "node",
            "containers": [{"name": "a", "ports": [{"name": "http", "containerPort": 8000 + state / 6}]}]},
        "status": {"phase": phase, "podIP": format!("10.244.{}.{}", number / 256, number % 256),
            "conditions": [{"type": "Ready", "status": ready}]},
    }));
    if state % 5 == 4 {
        pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
    }
    Arc::new(pod)
}

fn observed(pods: Vec<Arc<Pod>>) -> Observed {
    Observed {
        service: Some(Arc::new(service())),
        pods,
        nodes: BTreeMap::from([("node".to_owned(), None)]),
        ..Observed::default()
    }
}

/// What there is after the operations; created slices get names.
fn applied(mut observed: Observed, operations: Vec<Operation>) -> Observed {
    for operation in operations {
        match operation {
            Operation::CreateSlice(mut slice) => {
                let taken = |number: &usize| {
                    !observed.slices.iter().any(|one| one.name_any() == format!("web-{number}"))
                };
                let number = (0..).find(taken).expect("there are enough numbers");
                slice.metadata.name = Some(format!("web-{number}"));
                observed.slices.push(Arc::new(*slice));
            }
            Operation::UpdateSlice(slice) => {
                let place = observed.slices.iter().position(|one| one.name_any() == slice.name_any());
                observed.slices[place.expect("only what exists is updated")] = Arc::new(*slice);
            }
            Operation::DeleteSlice(slice) => observed.slices.retain(|one| one.name_any() != slice.name_any()),
            Operation::CreateEndpoints(endpoints) | Operation::UpdateEndpoints(endpoints) => {
                observed.endpoints = Some(Arc::new(*endpoints));
            }
            Operation::DeleteEndpoints(_) => observed.endpoints = None,
        }
    }
    observed
}

fn sizes(observed: &Observed) -> Vec<usize> {
    observed.slices.iter().map(|slice| count(slice)).collect()
}

#[test]
fn a_service_without_pods_has_an_empty_slice() {
    let operations = plan(&observed(Vec::new()));
    let [Operation::CreateSlice(slice), Operation::CreateEndpoints(endpoints)] = operations.as_slice() else {
        panic!("{operations:?}");
    };
    assert_eq!((count(slice), slice.ports.clone()), (0, Some(Vec::new())));
    assert_eq!(slice.metadata.generate_name.as_deref(), Some("web-"));
    assert_eq!(endpoints.subsets, None);
}

#[test]
fn the_first_pods_take_over_the_empty_slice() {
    let empty = applied(observed(Vec::new()), plan(&observed(Vec::new())));
    let next = Observed { pods: vec![pod(1, 1)], ..empty };
    let operations = plan(&next);
    assert!(
        matches!(operations.as_slice(), [Operation::UpdateSlice(_), Operation::UpdateEndpoints(_)]),
        "{operations:?}"
    );
    assert_eq!(sizes(&applied(next, operations)), [1]);
}

#[test]
fn a_change_of_one_pod_touches_one_slice() {
    let all = || (0..250).map(|number| pod(number, 1)).collect::<Vec<_>>();
    let before = applied(observed(all()), plan(&observed(all())));
    assert_eq!(sizes(&before), [100, 100, 50]);
    let mut pods = all();
    pods[3] = pod(3, 2);
    let operations = plan(&Observed { pods, ..before.clone() });
    assert!(matches!(operations.as_slice(), [Operation::UpdateSlice(_), Operation::UpdateEndpoints(_)]));
    // New ones go where there is room for all of them.
    let mut pods = all();
    pods.extend((250..260).map(|number| pod(number, 1)));
    let next = Observed { pods, ..before };
    let operations = plan(&next);
    assert_eq!(sizes(&applied(next, operations)), [100, 100, 60]);
}

#[test]
fn nothing_is_created_for_a_service_that_is_going() {
    let mut going = observed(vec![pod(1, 1)]);
    let mut service = service();
    service.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
    going.service = Some(Arc::new(service));
    assert_eq!(plan(&going), []);
}

#[test]
fn slices_of_a_former_service_go() {
    let before = applied(observed(vec![pod(1, 1)]), plan(&observed(vec![pod(1, 1)])));
    let mut service = service();
    service.metadata.uid = Some("another".into());
    let next = Observed { service: Some(Arc::new(service)), ..before };
    let operations = plan(&next);
    assert!(
        matches!(operations.as_slice(), [Operation::CreateSlice(_), Operation::DeleteSlice(_)]),
        "{operations:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// From any state to any other: all that is wanted is there once, no slice is too full, and nothing is left to do.
    #[test]
    fn planning_comes_to_an_end(
        before in proptest::collection::btree_map(0usize..300, 0usize..12, 0..220),
        after in proptest::collection::btree_map(0usize..300, 0usize..12, 0..220),
    ) {
        let pods = |states: &BTreeMap<usize, usize>| states.iter().map(|(number, state)| pod(*number, *state)).collect();
        let first = observed(pods(&before));
        let first = applied(first.clone(), plan(&first));
        prop_assert_eq!(plan(&first), []);
        let second = Observed { pods: pods(&after), ..first };
        let second = applied(second.clone(), plan(&second));
        prop_assert_eq!(plan(&second), []);
        let mut found: Vec<String> =
            second.slices.iter().flat_map(|slice| slice.endpoints.iter().flatten()).map(|one| one.addresses[0].clone()).collect();
        let mut wanted: Vec<String> =
            second.pods.iter().filter(|pod| desired::is_member(pod, true)).filter_map(|pod| desired::address(pod)).collect();
        found.sort();
        wanted.sort();
        prop_assert_eq!(found, wanted);
        prop_assert!(!second.slices.is_empty() && sizes(&second).into_iter().all(|size| size <= MOST_ENDPOINTS));
    }
}
