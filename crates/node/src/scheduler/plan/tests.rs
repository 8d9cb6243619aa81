use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn of<K: serde::de::DeserializeOwned>(value: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(value).unwrap())
}

fn node(cpu: &str) -> Arc<Node> {
    of(json!({"metadata": {"name": "n"}, "status": {
        "conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": cpu, "pods": "110"}}}))
}

fn pod(name: &str, cpu: &str, more: Value) -> Arc<Pod> {
    let mut spec = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    of(json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")}, "spec": spec}))
}

fn placed(name: &str, cpu: &str, priority: i32) -> Arc<Pod> {
    pod(name, cpu, json!({"nodeName": "n", "priority": priority}))
}

fn decided(snapshot: &Snapshot) -> Vec<String> {
    let name = |pod: &Pod| pod.metadata.name.clone().unwrap_or_default();
    let decisions = plan(snapshot, &["default-scheduler".to_owned(), "ours".to_owned()]);
    let line = |decision: Decision| match decision {
        Decision::Bind { pod, node } => format!("bind {} {node}", name(&pod)),
        Decision::Select { claim, node } => {
            format!("select {} {node}", claim.metadata.name.clone().unwrap_or_default())
        }
        Decision::Wait { pod, message, nominated: None } => format!("wait {}: {message}", name(&pod)),
        Decision::Wait { pod, message, nominated: Some(node) } => {
            format!("wait {} for {node}: {message}", name(&pod))
        }
        Decision::Evict { pod, by, node } => format!("evict {} from {node} for {}", name(&pod), name(&by)),
    };
    decisions.into_iter().map(line).collect()
}

fn on(cpu: &str, pods: Vec<Arc<Pod>>) -> Vec<String> {
    decided(&Snapshot { nodes: vec![node(cpu)], pods, ..Snapshot::default() })
}

#[test]
fn important_ones_first_then_old_ones() {
    let aged = |name: &str, second: u8, priority: i32| {
        let mut pod = pod(name, "1", json!({"priority": priority}));
        let at = format!("2026-01-01T00:00:{second:02}Z");
        Arc::make_mut(&mut pod).metadata.creation_timestamp =
            Some(serde_json::from_value(json!(at)).unwrap());
        pod
    };
    let pods = vec![
        aged("young", 9, 0),
        aged("old", 1, 0),
        aged("urgent", 10, 100),
        aged("b", 5, 0),
        aged("a", 5, 0),
    ];
    let bound = on("3", pods);
    assert_eq!(bound[..3], ["bind urgent n", "bind old n", "bind a n"]);
    assert!(bound[3].starts_with("wait b: 0/1 nodes are available: 1 Insufficient cpu."), "{}", bound[3]);
}

#[test]
fn only_pods_that_wait_for_us() {
    let mut ended = pod("ended", "1", json!({}));
    Arc::make_mut(&mut ended).status = serde_json::from_value(json!({"phase": "Failed"})).unwrap();
    let mut leaving = pod("leaving", "1", json!({}));
    Arc::make_mut(&mut leaving).metadata.deletion_timestamp =
        Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    let pods = vec![
        pod("gated", "1", json!({"schedulingGates": [{"name": "g"}]})),
        pod("foreign", "1", json!({"schedulerName": "other"})),
        pod("there", "1", json!({"nodeName": "n"})),
        ended,
        leaving,
        pod("ours", "1", json!({"schedulerName": "ours"})),
    ];
    assert_eq!(on("4", pods), ["bind ours n"]);
}

#[test]
fn what_ended_takes_no_room_and_what_is_assumed_does() {
    let mut ended = placed("ended", "4", 0);
    Arc::make_mut(&mut ended).status = serde_json::from_value(json!({"phase": "Succeeded"})).unwrap();
    assert_eq!(on("4", vec![ended, pod("p", "4", json!({}))]), ["bind p n"]);
    let mut snapshot = Snapshot {
        nodes: vec![node("4")],
        pods: vec![pod("just-bound", "4", json!({})), pod("p", "4", json!({}))],
        ..Snapshot::default()
    };
    snapshot.assumed.insert("uid-just-bound".into(), "n".into());
    assert_eq!(
        decided(&snapshot),
        [
            "wait p: 0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption \
          victims found for incoming pod."
        ]
    );
}

#[test]
fn reasons_in_the_words_of_kubernetes() {
    assert_eq!(
        decided(&Snapshot { pods: vec![pod("p", "1", json!({}))], ..Snapshot::default() }),
        ["wait p: no nodes available to schedule pods"]
    );
    assert_eq!(
        on("1", vec![pod("p", "1", json!({"nodeSelector": {"a": "b"}}))]),
        [
            "wait p: 0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. preemption: 0/1 nodes \
          are available: 1 Preemption is not helpful for scheduling."
        ]
    );
}

#[test]
fn the_least_important_make_room() {
    let running = || vec![placed("low", "1", 0), placed("lower", "1", -5), placed("high", "2", 50)];
    let with = |name: &str, cpu: &str, more: Value| {
        let mut pods = running();
        pods.push(pod(name, cpu, more));
        on("4", pods)
    };
    let short = "0/1 nodes are available: 1 Insufficient cpu.";
    assert_eq!(
        with("p", "1", json!({"priority": 10})),
        ["evict lower from n for p".to_owned(), format!("wait p for n: {short}")]
    );
    assert_eq!(
        with("p", "2", json!({"priority": 10})),
        ["evict low from n for p", "evict lower from n for p", &format!("wait p for n: {short}")]
    );
    assert_eq!(
        with("p", "3", json!({"priority": 10})),
        [format!(
            "wait p: {short} preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
        )]
    );
    assert_eq!(
        with("p", "1", json!({"priority": 10, "preemptionPolicy": "Never"})),
        [format!("wait p: {short} preemption: not eligible due to preemptionPolicy=Never.")]
    );
}

#[test]
fn room_that_is_being_made_is_kept_and_made_once() {
    let mut leaving = placed("leaving", "1", -5);
    Arc::make_mut(&mut leaving).metadata.deletion_timestamp =
        Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    let pods = vec![
        leaving,
        placed("low", "1", -5),
        pod("p", "1", json!({"priority": 10})),
        pod("q", "1", json!({})),
    ];
    let decisions = on("2", pods);
    assert_eq!(decisions[0], "wait p for n: 0/1 nodes are available: 1 Insufficient cpu.");
    // `q` is worth more than `low`, but not more than what `p` waits for.
    assert_eq!(decisions[1], "evict low from n for q");
}

fn storage(claims: &[Value], volumes: &[Value]) -> Storage {
    let class = |name: &str, mode: &str, provisioner: &str| -> (String, Arc<StorageClass>) {
        let class =
            json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode});
        (name.to_owned(), of(class))
    };
    Storage {
        claims: claims
            .iter()
            .map(|claim| {
                let claim: Arc<PersistentVolumeClaim> = of(claim.clone());
                (("ns".to_owned(), claim.metadata.name.clone().unwrap()), claim)
            })
            .collect(),
        volumes: volumes
            .iter()
            .map(|volume| {
                let volume: Arc<PersistentVolume> = of(volume.clone());
                (volume.metadata.name.clone().unwrap(), volume)
            })
            .collect(),
        classes: [
            class("now", "Immediate", "p"),
            class("later", "WaitForFirstConsumer", "p"),
            class("manual", "WaitForFirstConsumer", "kubernetes.io/no-provisioner"),
        ]
        .into(),
    }
}

#[test]
fn claims_decide_too() {
    let claim = |class: &str, more: Value| {
        let mut claim = json!({"metadata": {"name": "c", "namespace": "ns"},
            "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}}});
        for (path, value) in more.as_object().unwrap() {
            *claim.pointer_mut(path).unwrap_or(&mut Value::Null) = value.clone();
        }
        claim
    };
    let bound = |mode: &str| {
        json!({"metadata": {"name": "c", "namespace": "ns", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": "pv", "accessModes": [mode]}, "status": {"phase": "Bound"}})
    };
    let volume = |host: &str| {
        json!({"metadata": {"name": "pv"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [host]}]}]}}}})
    };
    let selected = json!({"metadata": {"name": "c", "namespace": "ns", "annotations": {"volume.kubernetes.io/selected-node": "n"}},
        "spec": {"storageClassName": "later"}});
    let using = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]});
    let one = |claims: &[Value], volumes: &[Value], others: &[Arc<Pod>]| {
        let mut pods = others.to_vec();
        pods.push(pod("p", "1", using.clone()));
        let snapshot = Snapshot {
            nodes: vec![node("4")],
            pods,
            storage: storage(claims, volumes),
            ..Snapshot::default()
        };
        decided(&snapshot)
    };
    let refused = |reason: &str| {
        let more = "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
        vec![format!("wait p: 0/1 nodes are available: {reason}. {more}")]
    };
    assert_eq!(one(&[], &[], &[]), refused("persistentvolumeclaim \"c\" not found"));
    assert_eq!(
        one(&[claim("now", json!({}))], &[], &[]),
        refused("pod has unbound immediate PersistentVolumeClaims")
    );
    assert_eq!(one(&[claim("later", json!({}))], &[], &[]), ["select c n"]);
    assert!(one(&[selected], &[], &[]).is_empty());
    assert_eq!(
        one(&[claim("manual", json!({}))], &[], &[]),
        refused("1 node(s) didn't find available persistent volumes to bind")
    );
    assert_eq!(one(&[bound("ReadWriteOnce")], &[volume("n")], &[]), ["bind p n"]);
    assert_eq!(
        one(&[bound("ReadWriteOnce")], &[volume("m")], &[]),
        refused("1 node(s) didn't match PersistentVolume's node affinity")
    );
    assert_eq!(
        one(&[bound("ReadWriteOnce")], &[], &[]),
        refused("1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")
    );
    let mut other = using.clone();
    other["nodeName"] = "n".into();
    let other = [pod("other", "1", other)];
    assert_eq!(one(&[bound("ReadWriteOnce")], &[volume("n")], &other), ["bind p n"]);
    assert_eq!(
        one(&[bound("ReadWriteOncePod")], &[volume("n")], &other),
        refused(
            "1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by \
             another pod"
        )
    );
}

#[test]
fn of_two_pods_that_want_a_claim_alone_one_is_bound() {
    let bound = json!({"metadata": {"name": "c", "namespace": "ns", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOncePod"]}, "status": {"phase": "Bound"}});
    let using = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]});
    let snapshot = Snapshot {
        nodes: vec![node("4")],
        pods: vec![pod("a", "1", using.clone()), pod("b", "1", using)],
        storage: storage(&[bound], &[json!({"metadata": {"name": "pv"}})]),
        ..Snapshot::default()
    };
    let decisions = decided(&snapshot);
    assert_eq!(decisions[0], "bind a n");
    assert!(decisions[1].starts_with("wait b: "), "{decisions:?}");
}

proptest! {
    /// The node is never overcommitted, nobody is forgotten, and planning again after the binds changes nothing.
    #[test]
    fn never_more_than_there_is(
        running in proptest::collection::vec((1_u32..20, 0_i32..3), 0..6),
        waiting in proptest::collection::vec((1_u32..20, 0_i32..3), 0..8),
    ) {
        let mut pods: Vec<Arc<Pod>> = Vec::new();
        let mut room = 40_i64;
        for (index, (cpu, priority)) in running.iter().enumerate() {
            if room >= i64::from(*cpu) {
                room -= i64::from(*cpu);
                pods.push(placed(&format!("r{index}"), &cpu.to_string(), *priority));
            }
        }
        for (index, (cpu, priority)) in waiting.iter().enumerate() {
            pods.push(pod(&format!("w{index}"), &cpu.to_string(), json!({"priority": priority})));
        }
        let mut snapshot = Snapshot { nodes: vec![node("40")], pods, ..Snapshot::default() };
        let schedulers = ["default-scheduler".to_owned()];
        let decisions = plan(&snapshot, &schedulers);
        let mut answered = 0;
        for decision in &decisions {
            match decision {
                Decision::Bind { pod, node } => {
                    room -= Demand::of(pod).amounts["cpu"] / 1000;
                    snapshot.assumed.insert(uid(pod).to_owned(), node.clone());
                    answered += 1;
                }
                Decision::Wait { .. } => answered += 1,
                _ => {}
            }
        }
        prop_assert!(room >= 0);
        prop_assert_eq!(answered, waiting.len());
        let again = plan(&snapshot, &schedulers);
        let binds = again.iter().filter(|decision| matches!(decision, Decision::Bind { .. })).count();
        prop_assert_eq!(binds, 0);
    }
}
