use k8s_openapi::api::apps::v1::DeploymentCondition;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::limits::{max_unavailable, most};
use super::super::observe::available;
use super::super::testing::{applied, deployment, now, observed, reported, set, settled};
use super::*;

/// What a plan does, in words.
fn words(plan: &Plan) -> String {
    let one = |operation: &Operation| match operation {
        Operation::Adopt(set) => format!("adopt {}", set.name_any()),
        Operation::Release(set) => format!("release {}", set.name_any()),
        Operation::Create(set) => format!("create {}", size(set)),
        Operation::Annotate { set, annotations, .. } => {
            format!("number {} {}", set.name_any(), annotations[revision::REVISION])
        }
        Operation::Scale { set, to, .. } => format!("scale {} {}-{to}", set.name_any(), size(set)),
        Operation::Delete(set) => format!("delete {}", set.name_any()),
    };
    plan.operations.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn progressing(next: &Next) -> &DeploymentCondition {
    next.status.conditions.iter().flatten().find(|condition| condition.type_ == "Progressing").unwrap()
}

/// The sizes and availability of ReplicaSets, from the first revision on; the last is of the new template.
fn of(replicas: i32, changes: &Value, sets: &[(i32, i32)]) -> Observed {
    let deployment = deployment(replicas, changes);
    let image = |index: usize| if index + 1 == sets.len() { "new" } else { ["a", "b", "c", "d"][index] };
    let sets = sets
        .iter()
        .enumerate()
        .map(|(index, (size, available))| set(&deployment, image(index), index as i64 + 1, *size, *available))
        .collect();
    observed(deployment, sets)
}

#[test]
fn steps_of_a_rollout() {
    let surge = |surge: i32, unavailable: i32| {
        json!({ "strategy": { "type": "RollingUpdate",
            "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } } })
    };
    let recreate = json!({ "strategy": { "type": "Recreate" } });
    let paused = json!({ "paused": true });
    let table = [
        (of(3, &json!({}), &[]), "create 3"),
        (of(4, &surge(1, 1), &[(4, 4), (1, 0)]), "scale web-h1 4-3"),
        (of(4, &surge(1, 1), &[(3, 3), (1, 0)]), "scale web-h2 1-2"),
        (of(4, &surge(1, 1), &[(3, 3), (2, 0)]), ""),
        (of(4, &surge(1, 1), &[(3, 3), (2, 1)]), "scale web-h1 3-2"),
        // What is not available anyway goes first, and does not cost availability.
        (of(4, &surge(1, 1), &[(2, 0), (3, 3), (0, 0)]), "scale web-h1 2-0"),
        (of(4, &surge(1, 1), &[(0, 0), (3, 3), (0, 0)]), "scale web-h3 0-2"),
        (of(2, &surge(1, 0), &[(0, 0), (3, 3)]), "scale web-h2 3-2"),
        (of(2, &recreate, &[(2, 2), (0, 0)]), "scale web-h1 2-0"),
        (of(2, &recreate, &[(0, 0), (0, 0)]), "scale web-h2 0-2"),
        (of(2, &paused, &[(2, 2), (0, 0)]), ""),
    ];
    for (index, (observed, expected)) in table.iter().enumerate() {
        assert_eq!(words(&plan(observed, now())), *expected, "line {index}");
    }
}

#[test]
fn scaling_in_the_middle_of_a_rollout_keeps_the_proportions() {
    let surge = json!({ "strategy": { "type": "RollingUpdate",
        "rollingUpdate": { "maxSurge": 3, "maxUnavailable": 2 } } });
    let scaled = |to: i32, sets: &[(i32, i32)]| {
        let mut observed = of(10, &surge, sets);
        Arc::make_mut(&mut observed.deployment).spec.as_mut().unwrap().replicas = Some(to);
        words(&plan(&observed, now()))
    };
    assert_eq!(scaled(20, &[(8, 8), (5, 0)]), "scale web-h1 8-14, scale web-h2 5-9");
    assert_eq!(scaled(5, &[(8, 8), (5, 0)]), "scale web-h1 8-5, scale web-h2 5-3");
    assert_eq!(scaled(0, &[(8, 8), (5, 0)]), "scale web-h1 8-0, scale web-h2 5-0");
    assert_eq!(scaled(4, &[(0, 0), (10, 10)]), "scale web-h2 10-4", "only one is active");
}

#[test]
fn a_new_replica_set_is_named_numbered_and_owned() {
    let observed = of(3, &json!({ "minReadySeconds": 7 }), &[]);
    let plan = plan(&observed, now());
    let [Operation::Create(set)] = &plan.operations[..] else { panic!("{:?}", plan.operations) };
    let hash = &set.labels()["pod-template-hash"];
    assert_eq!(set.name_any(), format!("web-{hash}"));
    let spec = set.spec.as_ref().unwrap();
    assert_eq!(spec.selector.match_labels.as_ref().unwrap()["pod-template-hash"], *hash);
    assert_eq!(
        spec.template.as_ref().unwrap().metadata.as_ref().unwrap().labels.as_ref().unwrap()["pod-template-hash"],
        *hash
    );
    assert_eq!((spec.min_ready_seconds, spec.replicas), (Some(7), Some(3)));
    assert_eq!(set.metadata.owner_references.as_ref().unwrap()[0].uid, "deployment");
    assert_eq!(plan.next.revision.as_deref(), Some("1"));
    assert_eq!(progressing(&plan.next).reason.as_deref(), Some("NewReplicaSetCreated"));
    assert_eq!(set_name(&"x".repeat(300), "hash").len(), LONGEST_NAME);
}

#[test]
fn going_back_numbers_the_old_replica_set_anew() {
    let deployment = deployment(1, &json!({}));
    let sets = vec![set(&deployment, "new", 1, 0, 0), set(&deployment, "other", 2, 1, 1)];
    assert_eq!(words(&plan(&observed(deployment, sets), now())), "number web-h1 3");
}

#[test]
fn only_so_many_old_replica_sets_are_kept() {
    let mut observed = of(1, &json!({ "revisionHistoryLimit": 1 }), &[(0, 0), (0, 0), (0, 0), (1, 1)]);
    let first = plan(&observed, now());
    assert_eq!(words(&first), "", "not before the rollout is known to be complete");
    observed = reported(observed, &first.next);
    assert_eq!(words(&plan(&observed, now())), "delete web-h1, delete web-h2");
}

#[test]
fn progress_is_judged_by_change_and_by_the_deadline() {
    let mut observed = of(2, &json!({ "progressDeadlineSeconds": 10 }), &[(0, 0), (2, 0)]);
    let first = plan(&observed, now());
    assert_eq!(progressing(&first.next).reason.as_deref(), Some("ReplicaSetUpdated"));
    assert_eq!(first.requeue, Requeue::After(std::time::Duration::from_secs(11)));
    observed = reported(observed, &first.next);

    let later = now() + jiff::SignedDuration::from_secs(11);
    let late = plan(&observed, later);
    let condition = progressing(&late.next);
    assert_eq!(
        (condition.status.as_str(), condition.reason.as_deref()),
        ("False", Some("ProgressDeadlineExceeded"))
    );
    assert_eq!(condition.message.as_deref(), Some("ReplicaSet \"web-h2\" has timed out progressing."));
    assert_eq!(late.requeue, Requeue::No);

    observed = settled(reported(observed, &late.next), true);
    let done = plan(&observed, later);
    assert_eq!(progressing(&done.next).reason.as_deref(), Some("NewReplicaSetAvailable"));
    assert_eq!(done.next.status.available_replicas, Some(2));
}

#[test]
fn a_pause_is_told_and_its_end_too() {
    let paused = of(2, &json!({ "paused": true }), &[(2, 2)]);
    let first = plan(&paused, now());
    assert_eq!(progressing(&first.next).reason.as_deref(), Some("DeploymentPaused"));
    let mut resumed = reported(paused, &first.next);
    Arc::make_mut(&mut resumed.deployment).spec.as_mut().unwrap().paused = None;
    Arc::make_mut(&mut resumed.deployment).metadata.generation = Some(2);
    let mut next = Next::of(&resumed.deployment);
    next.note_pause(&resumed.deployment, now());
    assert_eq!(progressing(&next).reason.as_deref(), Some("DeploymentResumed"));
}

/// Any state of a Deployment: its size and what it was scaled for before, and its ReplicaSets.
#[derive(Clone, Debug)]
struct State {
    before: i32,
    wanted: i32,
    surge: i32,
    unavailable: i32,
    rolling: bool,
    paused: bool,
    sets: Vec<(i32, i32)>,
}

impl State {
    fn observed(&self) -> Observed {
        let strategy = match self.rolling {
            true => json!({ "type": "RollingUpdate",
                "rollingUpdate": { "maxSurge": self.surge, "maxUnavailable": self.unavailable } }),
            false => json!({ "type": "Recreate" }),
        };
        let changes = json!({ "strategy": strategy, "paused": self.paused, "revisionHistoryLimit": 2 });
        let mut observed = of(self.before, &changes, &self.sets);
        Arc::make_mut(&mut observed.deployment).spec.as_mut().unwrap().replicas = Some(self.wanted);
        observed
    }
}

fn states() -> impl Strategy<Value = State> {
    let limits = (0..4i32, 0..4i32).prop_filter("both must not be zero", |(a, b)| a + b > 0);
    let sets = proptest::collection::vec((0..6i32, 0..6i32), 0..4);
    let sizes = (0..8i32, any::<bool>(), 0..8i32);
    (sizes, limits, any::<bool>(), prop::bool::weighted(0.2), sets).prop_map(
        |((wanted, scaled, other), (surge, unavailable), rolling, paused, sets)| {
            let before = if scaled { other } else { wanted };
            let sets = sets.into_iter().map(|(size, some)| (size, some.min(size))).collect();
            State { before, wanted, surge, unavailable, rolling, paused, sets }
        },
    )
}

fn sum(observed: &Observed, of: fn(&ReplicaSet) -> i32) -> i32 {
    observed.sets.iter().map(|set| of(set)).sum()
}

/// Pods that are available and are not about to be ended.
fn kept(set: &ReplicaSet) -> i32 {
    available(set).min(size(set))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Without any change from outside, planning comes to an end, and then plans and reports nothing more.
    #[test]
    fn plans_come_to_rest(state in states(), pods_work in any::<bool>()) {
        let mut observed = state.observed();
        let mut steps = 0;
        loop {
            let plan = plan(&observed, now());
            let quiet = plan.operations.is_empty() && !plan.next.differs(&observed.deployment);
            observed = reported(applied(observed, &plan.operations), &plan.next);
            let before = observed.sets.clone();
            observed = settled(observed, pods_work);
            if quiet && before == observed.sets {
                break;
            }
            steps += 1;
            prop_assert!(steps < 100, "still {}", words(&plan));
        }
        let paused = observed.deployment.spec.as_ref().unwrap().paused == Some(true);
        if pods_work && !paused {
            let sets = Sets::of(&observed);
            prop_assert_eq!(sets.new.as_ref().map(|new| size(new)), Some(wanted(&observed.deployment)));
            prop_assert!(sets.old.iter().all(|set| size(set) == 0) && sets.old.len() <= 2);
            let next = Next::of(&observed.deployment);
            prop_assert_eq!(progressing(&next).reason.as_deref(), Some("NewReplicaSetAvailable"));
        }
    }

    /// No step makes more Pods than the surge allows, nor ends available ones below the least that must remain.
    #[test]
    fn a_rollout_stays_within_its_limits(mut state in states(), pods_work in any::<bool>()) {
        state.rolling = true;
        let mut observed = state.observed();
        for _ in 0..30 {
            let plan = plan(&observed, now());
            let (before, kept_before) = (sum(&observed, size), sum(&observed, kept));
            let scaling = is_being_scaled(&observed.deployment, &Sets::of(&observed));
            observed = reported(applied(observed, &plan.operations), &plan.next);
            let (after, kept_after) = (sum(&observed, size), sum(&observed, kept));
            let deployment = &observed.deployment;
            prop_assert!(after <= before || after <= most(deployment), "{}", words(&plan));
            let least = wanted(deployment) - max_unavailable(deployment);
            let paused = is_paused(deployment);
            prop_assert!(scaling || paused || kept_after >= kept_before.min(least), "{}", words(&plan));
            observed = settled(observed, pods_work);
        }
    }
}
