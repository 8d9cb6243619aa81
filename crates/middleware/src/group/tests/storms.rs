//! Any sequence of changes, crashes, time-outs and silences ends in the last wanted revision, or in a stated failure with
//! all Pods at the one before. On the way never more Pods are down than allowed, and leaders are last: the world checks.

use std::time::Duration;

use agentcube_api::middleware::parts::PartPhase;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

use super::world::World;
use crate::app::machine::later;
use crate::order::Order;

#[derive(Clone, Debug)]
enum Step {
    Version(u8),
    Replicas(i32),
    Values(u8),
    Grow,
    Pass(usize),
    Kubelet,
    /// A Pod stops to answer, until the kubelet looks at it.
    Unready(i32),
    Time(u64),
    Reachable(bool),
    Restarting(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (1..5u8).prop_map(Step::Version),
        1 => (1..5i32).prop_map(Step::Replicas),
        1 => (0..3u8).prop_map(Step::Values),
        1 => Just(Step::Grow),
        8 => (1..6usize).prop_map(Step::Pass),
        8 => Just(Step::Kubelet),
        1 => (0..4i32).prop_map(Step::Unready),
        1 => prop_oneof![Just(5u64), Just(100), Just(400)].prop_map(Step::Time),
        1 => any::<bool>().prop_map(Step::Reachable),
        1 => any::<bool>().prop_map(Step::Restarting),
    ]
}

fn apply(world: &mut World, step: &Step) {
    match step {
        Step::Version(version) => world.version(&version.to_string()),
        Step::Replicas(count) => world.edit(|spec| spec["replicas"] = (*count).into()),
        Step::Values(value) => world.edit(|spec| spec["values"] = json!({ "key": value })),
        Step::Grow => world.edit(|spec| {
            let size: i64 = spec["storage"]["size"].as_str().unwrap().trim_end_matches("Gi").parse().unwrap();
            spec["storage"]["size"] = format!("{}Gi", size + 1).into();
        }),
        Step::Pass(writes) => drop(world.pass(*writes)),
        Step::Kubelet => world.kubelet(),
        Step::Unready(ordinal) => {
            if let Some(pod) = world.pods.get_mut(ordinal) {
                (pod.ready, pod.shown_ready) = (false, false);
            }
        }
        Step::Time(seconds) => world.now = later(world.now, Duration::from_secs(*seconds)),
        Step::Reachable(reachable) => world.reachable = *reachable,
        Step::Restarting(restart) => world.needs_restart = *restart,
    }
}

fn verdict(world: &mut World) {
    assert!(world.plan().operations.is_empty(), "a finished state is left alone");
    let version = world.group.spec.runtime.version.clone();
    let status = world.status();
    let there = i32::try_from(world.pods.len()).unwrap();
    if world.phase() == PartPhase::Ready {
        assert!(!world.bad.contains(&version));
        assert_eq!(world.versions(), vec![version; world.pods.len()]);
        assert_eq!(there, world.group.spec.replicas);
        assert_eq!(status.last_completed_revision, Some(world.rendered().name));
    } else {
        assert_eq!(world.phase(), PartPhase::Failed, "{status:#?}");
        assert!(!world.ready_message().is_empty());
        if let Some(failure) = &status.failure {
            assert_eq!(failure.revision, world.rendered().name);
            assert!(world.pods.values().all(|pod| pod.ready), "it went back: {status:#?}");
        }
    }
    assert!(world.labels.values().filter(|role| *role == "master").count() <= 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn every_storm_ends(
        steps in prop::collection::vec(step(), 1..80),
        (reloads, failover, concurrent, rollback) in any::<(bool, bool, bool, bool)>(),
        unavailable in 1..3i32,
    ) {
        let policies: Value = json!({ "rollingUpdate": { "maxUnavailable": unavailable },
            "rollback": { "enabled": rollback, "onFailure": rollback } });
        let mut world = World::new(policies);
        (world.reloads, world.failover) = (reloads, failover);
        world.bad = ["3".to_owned()].into();
        if concurrent {
            world.order = Ok(Order { names: Vec::new(), concurrent: true });
        }
        for step in &steps {
            apply(&mut world, step);
        }
        world.reachable = true;
        world.needs_restart = false;
        world.finish();
        verdict(&mut world);
        // Whatever it was, another version gets there.
        world.version("9");
        world.finish();
        verdict(&mut world);
        prop_assert_eq!(world.phase(), PartPhase::Ready);
    }
}
