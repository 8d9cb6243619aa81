//! Tables and properties over `plan`.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::RollingUpdateStatefulSetStrategy;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::identity;
use super::plan::Operation;
use super::world::{SET_UID, World, set};

/// Operations on Pods and claims, in one line each.
fn told(operations: &[Operation]) -> Vec<String> {
    operations
        .iter()
        .filter_map(|operation| match operation {
            Operation::CreatePod(pod) => Some(format!("create {}", pod.name_any())),
            Operation::DeletePod { name, .. } => Some(format!("delete {name}")),
            Operation::CreateClaim { claim, .. } => Some(format!("claim {}", claim.name_any())),
            Operation::SetClaimOwners { name, owners } => {
                let kinds: Vec<&str> = owners.iter().map(|owner| owner.kind.as_str()).collect();
                Some(format!("own {name} {kinds:?}"))
            }
            Operation::UpdatePod { name, .. } => Some(format!("update {name}")),
            Operation::AdoptPod { name, .. } => Some(format!("adopt {name}")),
            Operation::ReleasePod { name, .. } => Some(format!("release {name}")),
            _ => None,
        })
        .collect()
}

fn step(world: &mut World) -> Vec<String> {
    told(&world.step())
}

fn nothing() -> Vec<String> {
    Vec::new()
}

#[test]
fn creates_in_order_and_waits_for_readiness() {
    let mut world = World::new(set(3, json!({})));
    assert_eq!(step(&mut world), ["create web-0"]);
    assert_eq!(step(&mut world), nothing());
    world.report("web-0", "Running", false);
    assert_eq!(step(&mut world), nothing());
    world.report("web-0", "Running", true);
    assert_eq!(step(&mut world), ["create web-1"]);
    world.run("web-1");
    // An earlier one that falls ill holds up the rest.
    world.report("web-0", "Running", false);
    assert_eq!(step(&mut world), nothing());
    world.report("web-0", "Running", true);
    assert_eq!(step(&mut world), ["create web-2"]);
}

#[test]
fn parallel_creates_and_deletes_all_at_once() {
    let mut world = World::new(set(3, json!({"podManagementPolicy": "Parallel"})));
    assert_eq!(step(&mut world), ["create web-0", "create web-1", "create web-2"]);
    world.edit(|spec| spec.replicas = Some(0));
    assert_eq!(step(&mut world), ["delete web-2", "delete web-1", "delete web-0"]);
}

#[test]
fn a_pod_is_who_its_ordinal_says() {
    let mut world = World::new(set(
        1,
        json!({
            "ordinals": {"start": 5},
            "volumeClaimTemplates": [{"metadata": {"name": "data", "labels": {"a": "b"}}, "spec": {}}],
        }),
    ));
    assert_eq!(step(&mut world), ["claim data-web-5", "create web-5"]);
    let pod = world.pod("web-5").expect("created");
    let revision = world.observed.revisions[0].name_any();
    assert_eq!(
        serde_json::to_value(&pod.metadata.labels).expect("labels"),
        json!({
            "app": "web", "apps.kubernetes.io/pod-index": "5", "controller-revision-hash": revision,
            "statefulset.kubernetes.io/pod-name": "web-5",
        })
    );
    let spec = serde_json::to_value(&pod.spec).expect("a spec");
    assert_eq!((&spec["hostname"], &spec["subdomain"]), (&json!("web-5"), &json!("web")));
    assert_eq!(
        spec["volumes"],
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-web-5"}}])
    );
    let claim = serde_json::to_value(&*world.observed.claims["data-web-5"]).expect("a claim");
    assert_eq!(claim["metadata"]["labels"], json!({"a": "b", "app": "web"}));
    assert_eq!(claim["metadata"]["ownerReferences"], Value::Null);
}

#[test]
fn removes_the_highest_and_waits_until_it_is_gone() {
    let mut world = World::new(set(3, json!({})));
    world.settle();
    world.edit(|spec| spec.replicas = Some(1));
    assert_eq!(step(&mut world), ["delete web-2"]);
    assert_eq!(step(&mut world), nothing());
    world.run("web-2");
    assert_eq!(step(&mut world), ["delete web-1"]);
    world.settle();
    assert_eq!(world.ordinals(), [0]);
}

#[test]
fn removes_no_unwell_pod_while_a_lower_one_is_unwell() {
    let mut world = World::new(set(3, json!({})));
    world.settle();
    world.edit(|spec| spec.replicas = Some(1));
    world.report("web-1", "Running", false);
    world.report("web-2", "Running", false);
    assert_eq!(step(&mut world), nothing());
    // One that is unwell goes only once it is the only one.
    world.report("web-1", "Running", true);
    assert_eq!(step(&mut world), ["delete web-2"]);
}

#[test]
fn moving_the_first_ordinal_condemns_the_lower() {
    let mut world = World::new(set(2, json!({})));
    world.settle();
    world.edit(|spec| spec.ordinals.get_or_insert_default().start = Some(1));
    assert_eq!(step(&mut world), ["create web-2"]);
    world.settle();
    assert_eq!(world.ordinals(), [1, 2]);
}

#[test]
fn finished_pods_are_made_anew() {
    for phase in ["Failed", "Succeeded"] {
        let mut world = World::new(set(2, json!({})));
        world.settle();
        world.report("web-0", phase, false);
        assert_eq!(step(&mut world), ["delete web-0"]);
        assert_eq!(step(&mut world), nothing());
        world.run("web-0");
        assert_eq!(step(&mut world), ["create web-0"]);
    }
}

#[test]
fn updates_from_the_top_one_at_a_time() {
    let mut world = World::new(set(3, json!({"minReadySeconds": 10})));
    for _ in 0..3 {
        world.step();
        let newest = world.ordinals().len() - 1;
        world.run(&format!("web-{newest}"));
        world.wait(10);
    }
    assert_eq!(step(&mut world), nothing());
    let old = world.plan().status.current_revision;
    world.set_image("two");
    assert_eq!(step(&mut world), ["delete web-2"]);
    assert_eq!(step(&mut world), nothing());
    world.run("web-2");
    assert_eq!(step(&mut world), ["create web-2"]);
    world.run("web-2");
    // Ready is not enough: it must have been so for minReadySeconds.
    let plan = world.plan();
    assert_eq!((told(&plan.operations), plan.requeue.map(|wait| wait.as_secs())), (nothing(), Some(10)));
    world.wait(10);
    assert_eq!(step(&mut world), ["delete web-1"]);
    let status = world.plan().status;
    assert_eq!(status.current_revision, old);
    assert_ne!(status.update_revision, old);
    assert_eq!((status.current_replicas, status.updated_replicas), (Some(1), Some(1)));
}

#[test]
fn a_partition_keeps_the_lower_ordinals_back() {
    let mut world = World::new(set(3, json!({})));
    world.settle();
    let old = world.plan().status.current_revision.expect("a revision");
    world.edit(|spec| {
        spec.update_strategy.get_or_insert_default().rolling_update =
            Some(RollingUpdateStatefulSetStrategy { partition: Some(2), ..Default::default() });
    });
    world.set_image("two");
    world.settle();
    let at_old = |world: &World, ordinal: i32| {
        identity::revision_of(world.pod(&format!("web-{ordinal}")).expect("a Pod")) == old
    };
    assert_eq!([0, 1, 2].map(|ordinal| at_old(&world, ordinal)), [true, true, false]);
    // One that is lost comes back as it was.
    world.observed.pods.retain(|pod| pod.name_any() != "web-0");
    world.settle();
    assert!(at_old(&world, 0));
    assert_eq!(world.plan().status.current_revision, Some(old));
}

#[test]
fn on_delete_leaves_updating_to_the_user() {
    let mut world = World::new(set(2, json!({"updateStrategy": {"type": "OnDelete"}})));
    world.settle();
    world.set_image("two");
    assert_eq!(step(&mut world), nothing());
    world.observed.pods.retain(|pod| pod.name_any() != "web-0");
    world.settle();
    let image = |name: &str| world.pod(name).and_then(|pod| pod.spec.as_ref()?.containers[0].image.clone());
    assert_eq!((image("web-0").as_deref(), image("web-1").as_deref()), (Some("two"), Some("one")));
}

#[test]
fn going_back_reuses_the_revision() {
    let mut world = World::new(set(1, json!({})));
    world.settle();
    let first = world.observed.revisions[0].name_any();
    world.set_image("two");
    world.settle();
    world.set_image("one");
    world.settle();
    assert_eq!(world.observed.revisions.len(), 2);
    let back = world.observed.revisions.iter().find(|one| one.name_any() == first).expect("kept");
    assert_eq!(back.revision, 3);
}

#[test]
fn keeps_as_many_revisions_as_it_may() {
    let mut world = World::new(set(1, json!({"revisionHistoryLimit": 1})));
    for image in ["one", "two", "three", "four"] {
        world.set_image(image);
        world.settle();
    }
    let mut kept: Vec<i64> = world.observed.revisions.iter().map(|one| one.revision).collect();
    kept.sort_unstable();
    assert_eq!(kept, [3, 4]);
}

#[test]
fn avoids_the_name_of_a_strange_revision() {
    let mut world = World::new(set(1, json!({})));
    world.step();
    let mut strange = (*world.observed.revisions[0]).clone();
    let name = strange.name_any();
    strange.data = None;
    world.observed.revisions.clear();
    world.observed.other_revisions = vec![Arc::new(strange)];
    let plan = world.plan();
    assert_eq!(plan.status.collision_count, Some(1));
    assert_ne!(plan.status.update_revision, Some(name));
}

fn claim_policy(scaled: &str, deleted: &str) -> Value {
    json!({
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
        "persistentVolumeClaimRetentionPolicy": {"whenScaled": scaled, "whenDeleted": deleted},
    })
}

#[test]
fn claims_belong_to_whom_the_policy_says() {
    for (scaled, deleted, kept, condemned) in [
        ("Retain", "Retain", json!(null), json!(null)),
        ("Retain", "Delete", json!("StatefulSet"), json!("StatefulSet")),
        ("Delete", "Retain", json!(null), json!("Pod")),
        ("Delete", "Delete", json!("StatefulSet"), json!("Pod")),
    ] {
        let mut world = World::new(set(2, claim_policy(scaled, deleted)));
        world.settle();
        world.edit(|spec| spec.replicas = Some(1));
        world.step();
        let owner = |name: &str| -> Value {
            let claim: &PersistentVolumeClaim = &world.observed.claims[name];
            claim.metadata.owner_references.iter().flatten().next().map_or(Value::Null, |one| json!(one.kind))
        };
        assert_eq!((owner("data-web-0"), owner("data-web-1")), (kept, condemned), "{scaled} {deleted}");
        world.settle();
        assert_eq!(world.observed.claims.contains_key("data-web-1"), scaled == "Retain");
    }
}

#[test]
fn waits_for_a_claim_that_goes_with_an_earlier_pod() {
    let mut world = World::new(set(2, claim_policy("Delete", "Retain")));
    world.settle();
    world.edit(|spec| spec.replicas = Some(1));
    world.step();
    let claim = world.observed.claims["data-web-1"].clone();
    world.run("web-1");
    world.observed.claims.insert("data-web-1".into(), claim);
    world.edit(|spec| spec.replicas = Some(2));
    assert_eq!(step(&mut world), nothing());
    world.observed.claims.remove("data-web-1");
    assert_eq!(step(&mut world), ["claim data-web-1", "create web-1"]);
}

#[test]
fn takes_in_orphans_and_lets_strays_go() {
    let mut world = World::new(set(2, json!({})));
    world.settle();
    let mut orphan: Pod = world.pod("web-0").expect("a Pod").clone();
    orphan.metadata.labels.get_or_insert_default().remove(identity::POD_NAME_LABEL);
    let stray = world.observed.pods.remove(1);
    world.observed.pods.clear();
    world.observed.orphans = vec![Arc::new(orphan)];
    world.observed.strays = vec![stray];
    assert_eq!(step(&mut world), ["adopt web-0", "release web-1", "update web-0", "create web-1"]);
    world.settle();
    assert_eq!(world.ordinals(), [0, 1]);
}

#[test]
fn a_set_on_its_way_out_only_reports() {
    let mut world = World::new(set(2, json!({})));
    world.settle();
    world.observed.pods.remove(0);
    world.observed.set.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now));
    let plan = world.plan();
    assert_eq!((plan.operations, plan.status.replicas), (vec![], 1));
}

#[derive(Debug, Clone)]
enum Act {
    /// Plan, and crash after this many writes.
    Step(usize),
    Run(i32),
    Fail(i32),
    Unready(i32),
    Wait(i64),
    Scale(i32),
    Image(u8),
    Partition(i32),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => prop_oneof![0..4_usize, Just(usize::MAX)].prop_map(Act::Step),
        6 => (0..5).prop_map(Act::Run),
        1 => (0..5).prop_map(Act::Fail),
        1 => (0..5).prop_map(Act::Unready),
        1 => (1..8_i64).prop_map(Act::Wait),
        1 => (0..5).prop_map(Act::Scale),
        1 => (0..3_u8).prop_map(Act::Image),
        1 => (0..4).prop_map(Act::Partition),
    ];
    prop::collection::vec(act, 1..60)
}

fn perform(world: &mut World, act: &Act) {
    let pod = |ordinal: &i32| format!("web-{ordinal}");
    match act {
        Act::Step(writes) => world.step_partly(*writes),
        Act::Run(n) if world.pod(&pod(n)).is_some() => drop(world.run(&pod(n))),
        Act::Fail(n) if world.pod(&pod(n)).is_some() => world.report(&pod(n), "Failed", false),
        Act::Unready(n) if world.pod(&pod(n)).is_some() => world.report(&pod(n), "Running", false),
        Act::Run(_) | Act::Fail(_) | Act::Unready(_) => {}
        Act::Wait(seconds) => world.wait(*seconds),
        Act::Scale(replicas) => world.edit(|spec| spec.replicas = Some(*replicas)),
        Act::Image(n) => world.set_image(&n.to_string()),
        Act::Partition(n) => world.edit(|spec| {
            spec.update_strategy.get_or_insert_default().rolling_update =
                Some(RollingUpdateStatefulSetStrategy { partition: Some(*n), ..Default::default() });
        }),
    }
}

/// What must hold of every plan of an ordered set, whatever happened before.
fn check(world: &World) -> Result<(), TestCaseError> {
    let wanted = identity::replicas(&world.observed.set);
    let touched: Vec<&str> = world
        .plan()
        .operations
        .iter()
        .filter_map(|operation| match operation {
            Operation::CreatePod(_) => Some("create"),
            Operation::DeletePod { .. } => Some("delete"),
            _ => None,
        })
        .collect();
    prop_assert!(touched.len() <= 1, "{touched:?}");
    for operation in world.plan().operations {
        if let Operation::CreatePod(pod) = operation {
            let ordinal = identity::ordinal(&pod).expect("an ordinal");
            prop_assert!(ordinal < wanted);
            for lower in 0..ordinal {
                let ready =
                    world.pod(&format!("web-{lower}")).is_some_and(crate::controllers::pods::is_ready);
                prop_assert!(ready, "web-{ordinal} before web-{lower}");
            }
        }
    }
    Ok(())
}

#[test]
fn ended_pods_hold_nobody_up() {
    let mut world = World::new(set(3, claim_policy("Delete", "Delete")));
    for act in [Act::Step(3), Act::Run(0), Act::Step(2), Act::Scale(0), Act::Fail(0), Act::Fail(1)] {
        perform(&mut world, &act);
    }
    world.settle();
    assert!(world.ordinals().is_empty());
}

proptest! {
    /// Whatever is cut short, ordinals stay in order, and the set comes to rest at what it asks for.
    #[test]
    fn stays_in_order_and_settles(acts in acts()) {
        let mut world = World::new(set(3, claim_policy("Delete", "Delete")));
        for act in &acts {
            perform(&mut world, act);
            check(&world)?;
        }
        let sick: Vec<String> = world.observed.pods.iter().map(|pod| pod.name_any()).collect();
        for name in sick {
            let pod = world.pod(&name).expect("listed");
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
            if phase.as_deref() == Some("Running") {
                world.report(&name, "Running", true);
            }
        }
        world.settle();
        let wanted = identity::replicas(&world.observed.set);
        prop_assert_eq!(world.ordinals(), (0..wanted).collect::<Vec<_>>());
        let status = world.plan().status;
        prop_assert_eq!((status.replicas, status.ready_replicas), (wanted, Some(wanted)));
        let claimed = (0..wanted).all(|n| world.observed.claims.contains_key(&format!("data-web-{n}")));
        prop_assert!(claimed);
        let owners = world.observed.claims.values().flat_map(|claim| claim.metadata.owner_references.iter().flatten());
        prop_assert!(owners.map(|owner| owner.uid.as_str()).all(|uid| uid == SET_UID));
    }

    /// A plan that was carried out leaves nothing to do until something happens.
    #[test]
    fn a_done_plan_is_done(acts in acts()) {
        let mut world = World::new(set(3, claim_policy("Retain", "Delete")));
        for act in &acts {
            perform(&mut world, act);
        }
        world.step();
        prop_assert_eq!(world.plan().operations, vec![]);
    }
}
