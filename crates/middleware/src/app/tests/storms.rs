//! Any sequence of spec changes, failures, time-outs, cancels, retries and deaths ends in the last wanted spec or in a
//! stated failure.

use std::time::Duration;

use agentcube_api::middleware::change::ChangeStatus;
use agentcube_api::middleware::parts::PartPhase;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

use super::world::{World, app, plugin};
use crate::parts;

#[derive(Clone, Debug)]
enum Step {
    Edit(Edit),
    /// A pass that dies after so many writes.
    Pass(usize),
    Ready(usize),
    Fail(usize, bool),
    Time(u64),
    Cancel(usize),
    Retry(usize, bool),
}

#[derive(Clone, Debug)]
enum Edit {
    Replicas(usize, i32),
    Config(i32),
    Storage(usize),
    Version(usize),
    Components(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let edit = prop_oneof![
        (0..2usize, 1..5i32).prop_map(|(at, count)| Edit::Replicas(at, count)),
        (0..3i32).prop_map(Edit::Config),
        (0..2usize).prop_map(Edit::Storage),
        (0..3usize).prop_map(Edit::Version),
        (1..4usize).prop_map(Edit::Components),
    ];
    prop_oneof![
        3 => edit.prop_map(Step::Edit),
        6 => (0..5usize).prop_map(Step::Pass),
        4 => (0..3usize).prop_map(Step::Ready),
        2 => ((0..3usize), any::<bool>()).prop_map(|(at, lasting)| Step::Fail(at, lasting)),
        3 => prop_oneof![Just(1), Just(10), Just(200), Just(400)].prop_map(Step::Time),
        2 => (0..4usize).prop_map(Step::Cancel),
        2 => ((0..4usize), any::<bool>()).prop_map(|(at, reset)| Step::Retry(at, reset)),
    ]
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn component(name: &str) -> Value {
    json!({ "name": name, "groups": [{ "name": "main", "replicas": 2, "storage": { "size": "1Gi" } }] })
}

fn apply(world: &mut World, step: &Step) {
    match step {
        Step::Edit(edit) => world.edit(|spec| change(spec, edit)),
        Step::Pass(writes) => drop(world.pass(*writes)),
        Step::Ready(at) => {
            let name = NAMES[*at];
            world
                .components
                .retain(|one, component| one != name || component.metadata.deletion_timestamp.is_none());
            world.report(name, PartPhase::Ready, "AsWanted", "");
        }
        Step::Fail(at, lasting) => {
            let reason = if *lasting { "TemplateError" } else { "Progressing" };
            world.report(NAMES[*at], PartPhase::Failed, reason, "as the test wants it");
        }
        Step::Time(seconds) => world.pass_time(Duration::from_secs(*seconds)),
        Step::Cancel(at) => {
            let tasks = world.status().tasks;
            let active: Vec<&str> = tasks
                .iter()
                .filter(|task| !task.status.is_final())
                .map(|task| task.task_id.as_str())
                .collect();
            if let Some(id) = active.get(*at) {
                world.cancel(&[id]);
            }
        }
        Step::Retry(at, reset) => {
            let tasks = world.status().tasks;
            if let Some(task) = tasks.iter().rev().filter(|task| task.status.is_final()).nth(*at) {
                world.retry(&[&task.task_id], *reset);
            }
        }
    }
}

fn change(spec: &mut Value, edit: &Edit) {
    match edit {
        Edit::Replicas(at, count) => {
            if spec["components"].get(at).is_some() {
                spec["components"][at]["groups"][0]["replicas"] = (*count).into();
            }
        }
        Edit::Config(value) => spec["config"] = json!({ "key": value }),
        Edit::Storage(at) => {
            if let Some(size) = spec["components"].get(at).map(|one| &one["groups"][0]["storage"]["size"]) {
                let size: i64 = size.as_str().unwrap().trim_end_matches("Gi").parse().unwrap();
                spec["components"][at]["groups"][0]["storage"]["size"] = format!("{}Gi", size + 1).into();
            }
        }
        Edit::Version(at) => spec["runtime"]["version"] = ["7.0", "7.2", "7.4"][*at].into(),
        Edit::Components(count) => {
            let components = spec["components"].as_array_mut().unwrap();
            components.truncate(*count);
            for name in &NAMES[components.len()..*count] {
                components.push(component(name));
            }
        }
    }
}

/// Everything goes well from now on.
fn calm(world: &mut World) {
    for _ in 0..200 {
        world.settle();
        world.obey();
        if world.plan().operations.is_empty() {
            match world.plan().again {
                Some(again) => world.now = again.max(world.now),
                None => return,
            }
        }
    }
    panic!("no end: {:#?}", world.status());
}

fn verdict(world: &World) {
    let status = world.status();
    let generation = world.app.metadata.generation;
    assert!(status.tasks.iter().all(|task| task.status.is_final()), "{status:#?}");
    assert_eq!(world.plan().operations, [], "a finished state is left alone");
    assert!(status.tasks.len() <= 64);
    let stated = status.tasks.iter().any(|task| {
        task.generation == generation && task.status != ChangeStatus::Done && task.error.is_some()
    });
    let refused = status.conditions.iter().any(|condition| {
        condition.status == "False"
            && ["UpgradeRefused", "ConfigurationInvalid"].contains(&condition.reason.as_str())
    });
    let reached = world.completed() == parts::wanted(&world.app.spec);
    assert!(reached || stated || refused, "{status:#?}");
    assert_eq!(reached && !stated && !refused, status.last_completed_generation == generation, "{status:#?}");
    // Components are what is in force, whatever happened on the way.
    let told = parts::in_force(&world.completed(), &status.tasks);
    assert_eq!(told.keys().collect::<Vec<_>>(), world.components.keys().collect::<Vec<_>>());
    if stated || refused {
        // A new spec that can work gets there.
        let mut after = World::new(world.app.clone(), world.plugin.clone().unwrap());
        (after.components, after.version, after.now) = (world.components.clone(), world.version, world.now);
        after.edit(|spec| {
            spec["config"] = json!({ "key": "after all" });
            spec["runtime"]["version"] = "7.4".into();
            for component in spec["components"].as_array_mut().unwrap() {
                component["groups"][0]["storage"]["size"] = "99Gi".into();
            }
        });
        calm(&mut after);
        assert_eq!(after.completed(), parts::wanted(&after.app.spec), "{:#?}", after.status());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn every_storm_ends(
        steps in prop::collection::vec(step(), 1..60),
        ordered in any::<bool>(),
        rollback in any::<bool>(),
    ) {
        let orders = json!({ "provision": ["b", "a"], "update": ["a", "b", "c"], "upgrade": ["c", "a"], "stop": ["b"] });
        let plugin = plugin(json!({
            "orders": if ordered { orders } else { json!({}) },
            "rollback": { "enabled": rollback, "onFailure": rollback },
            "compatibility": { "migrateFrom": { "7.2": ["7.0", "7.4"], "7.4": ["7.0", "7.2"], "7.0": ["7.2"] } },
        }));
        let mut world = World::new(app(json!({ "components": [component("a"), component("b")] })), plugin);
        for step in &steps {
            apply(&mut world, step);
        }
        calm(&mut world);
        verdict(&world);
    }
}
