//! Tables over the plan of pools.

use agentcube_api::sandbox::SandboxPoolSpec;
use proptest::prelude::*;

use super::plan::{Observed, Operation, Seen, plan, wanted};
use crate::names::AgentId;

fn spec(pool_min: i32, pool_max: i32, buffer_min: i32, buffer_max: Option<i32>) -> SandboxPoolSpec {
    let capacity = serde_json::json!({ "poolMin": pool_min, "poolMax": pool_max, "bufferMin": buffer_min,
        "bufferMax": buffer_max });
    serde_json::from_value(serde_json::json!({ "capacity": capacity, "maxSandboxesPerPod": 5 }))
        .expect("a spec")
}

fn agent(index: u32, used: u32) -> Seen {
    let id = AgentId { name: format!("a{index}"), uid: format!("u{index}") };
    Seen { id, index, ready: true, used, ..Seen::default() }
}

fn seen(agents: &[Seen], pending: u32) -> Observed {
    let free = agents.iter().filter(|a| a.ready && !a.draining && !a.dead).map(|a| 5 - a.used).sum();
    Observed { agents: agents.to_vec(), pending, free }
}

#[test]
fn wanted_is_the_formula_of_the_seed() {
    let spec = spec(1, 10, 2, None);
    for (active, pending, expected) in [(0, 0, 1), (3, 0, 1), (4, 0, 2), (0, 9, 3), (100, 0, 10)] {
        assert_eq!(wanted(&spec, active, pending), expected, "{active} {pending}");
    }
}

#[test]
fn grows_into_free_places_only() {
    let spec = spec(0, 3, 0, None);
    let plan = plan(&seen(&[agent(0, 5), agent(2, 5)], 9), Some(&spec));
    assert_eq!((plan.wanted, plan.operations), (3, vec![Operation::Add(1)]));
}

#[test]
fn only_empty_agents_go_and_the_highest_first() {
    let spec = spec(0, 10, 0, Some(0));
    let agents = [agent(0, 1), agent(1, 0), agent(2, 0), agent(3, 1)];
    let operations = plan(&seen(&agents, 0), Some(&spec)).operations;
    assert_eq!(operations, [Operation::Remove(agents[2].id.clone())]);
    let busy = [agent(0, 1), agent(1, 1), agent(2, 1)];
    assert_eq!(plan(&seen(&busy, 0), Some(&spec)).operations, []);
}

#[test]
fn nothing_goes_while_somebody_waits_or_the_buffer_needs_it() {
    let agents = [agent(0, 0), agent(1, 0)];
    assert_eq!(plan(&seen(&agents, 1), Some(&spec(0, 10, 0, Some(0)))).operations, []);
    assert_eq!(plan(&seen(&agents, 0), Some(&spec(0, 10, 6, Some(10)))).operations, []);
}

#[test]
fn who_drains_and_is_in_use_comes_back() {
    let draining = Seen { draining: true, ..agent(0, 2) };
    let operations = plan(&seen(std::slice::from_ref(&draining), 0), Some(&spec(0, 10, 0, None))).operations;
    assert_eq!(operations, [Operation::Undrain(draining.id)]);
}

#[test]
fn a_pool_that_is_gone_takes_its_empty_agents_with_it() {
    let agents = [agent(0, 1), agent(1, 0), Seen { dead: true, ..agent(2, 0) }];
    let operations = plan(&seen(&agents, 0), None).operations;
    assert_eq!(operations, [Operation::Clear(agents[2].id.clone()), Operation::Remove(agents[1].id.clone())]);
}

proptest! {
    #[test]
    fn never_more_than_the_most_and_none_in_use_goes(
        used in proptest::collection::vec(0..=5_u32, 0..6),
        pending in 0..30_u32,
        (least, most) in (0..4_i32, 1..8_i32),
        buffer in 0..12_i32,
    ) {
        let agents: Vec<Seen> = used.iter().enumerate().map(|(at, used)| agent(at as u32, *used)).collect();
        let spec = spec(least.min(most), most, buffer, Some(buffer));
        let plan = plan(&seen(&agents, pending), Some(&spec));
        let added = plan.operations.iter().filter(|one| matches!(one, Operation::Add(_))).count();
        prop_assert!(added == 0 || agents.len() + added <= most as usize);
        for operation in &plan.operations {
            if let Operation::Remove(id) = operation {
                prop_assert!(agents.iter().any(|agent| agent.id == *id && agent.used == 0));
                prop_assert!(agents.len() > plan.wanted as usize);
            }
        }
    }
}
