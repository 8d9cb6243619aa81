//! Slots are neither lost nor given out twice, whatever order things come in.

use proptest::prelude::*;

use super::*;

fn agent(number: u8) -> AgentId {
    AgentId { name: format!("agent-{number}"), uid: format!("uid-{number}") }
}

fn pool() -> PoolKey {
    PoolKey::new("default", "pool")
}

fn inventory(asked: u64, runs: &[RunId], capacity: u32) -> Inventory {
    Inventory { asked, runs: runs.iter().cloned().collect(), capacity, ..Inventory::default() }
}

/// Agents that were asked and run nothing.
fn registry(agents: u8, capacity: u32) -> Registry {
    let registry = Registry::default();
    for number in 0..agents {
        registry.add(&pool(), &agent(number));
        registry.take_in(&pool(), &agent(number), &inventory(1, &[], capacity));
        registry.open(&pool(), &agent(number), true);
    }
    registry
}

fn reserve(registry: &Registry, image: &str, without: &[AgentId]) -> Result<Slot, Full> {
    registry.reserve(&Want { pool: &pool(), image, without }, RunId::mint())
}

#[test]
fn the_least_loaded_agent_gets_it_and_a_full_pool_refuses() {
    let registry = registry(2, 2);
    let slots: Vec<Slot> = (0..4).map(|_| reserve(&registry, "i", &[]).expect("room")).collect();
    let agents: Vec<&str> = slots.iter().map(|slot| slot.agent().name.as_str()).collect();
    assert_eq!(agents, ["agent-0", "agent-1", "agent-0", "agent-1"]);
    assert_eq!(reserve(&registry, "i", &[]).err(), Some(Full));
    drop(slots);
    assert_eq!(registry.audit(), Audit { capacity: 4, ..Audit::default() });
}

#[test]
fn the_image_and_prepared_ones_count_and_who_refused_is_left_out() {
    let registry = registry(3, 10);
    let with = Inventory { images: ["i".to_string()].into(), ..inventory(2, &[], 10) };
    registry.take_in(&pool(), &agent(1), &with);
    assert_eq!(reserve(&registry, "i", &[]).expect("room").agent(), &agent(1));
    let prepared = Inventory { prepared: [("i".to_string(), 1)].into(), ..with };
    registry.take_in(&pool(), &agent(2), &prepared);
    assert_eq!(reserve(&registry, "i", &[]).expect("room").agent(), &agent(2));
    assert_eq!(reserve(&registry, "i", &[agent(2), agent(1)]).expect("room").agent(), &agent(0));
}

#[test]
fn nothing_goes_to_agents_that_were_not_asked_or_drain() {
    let registry = registry(1, 5);
    registry.add(&pool(), &agent(1));
    registry.drain(&pool(), &agent(0), true);
    assert_eq!(reserve(&registry, "i", &[]).err(), Some(Full));
}

#[test]
fn a_slot_is_given_back_once() {
    let registry = registry(1, 5);
    let slot = reserve(&registry, "i", &[]).expect("room");
    let run = slot.run().clone();
    slot.keep(1);
    assert_eq!(registry.audit().used, 1);
    assert!(registry.release(&pool(), &run));
    assert!(!registry.release(&pool(), &run));
    assert_eq!(registry.audit(), Audit { capacity: 5, ..Audit::default() });
}

#[test]
fn an_old_answer_does_not_take_a_young_run_away() {
    let registry = registry(1, 5);
    let slot = reserve(&registry, "i", &[]).expect("room");
    registry.take_in(&pool(), &agent(0), &inventory(7, &[], 5));
    let run = slot.run().clone();
    slot.keep(7);
    // The answer to question 7 was given before the run began.
    registry.take_in(&pool(), &agent(0), &inventory(7, &[], 5));
    assert_eq!(registry.audit().held, std::slice::from_ref(&run));
    registry.take_in(&pool(), &agent(0), &inventory(8, &[], 5));
    assert_eq!(registry.audit().held, []);
}

#[derive(Clone, Debug)]
enum Step {
    Reserve,
    Keep(usize),
    Drop(usize),
    Release(usize),
    Sync(u8, Vec<usize>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Reserve),
        2 => (0..8_usize).prop_map(Step::Keep),
        1 => (0..8_usize).prop_map(Step::Drop),
        2 => (0..8_usize).prop_map(Step::Release),
        2 => (0..2_u8, proptest::collection::vec(0..8_usize, 0..4)).prop_map(|(a, runs)| Step::Sync(a, runs)),
    ]
}

proptest! {
    #[test]
    fn counts_are_those_of_what_is_held(steps in proptest::collection::vec(step(), 0..60)) {
        let registry = registry(2, 3);
        let (mut slots, mut kept, mut asked): (Vec<Slot>, Vec<RunId>, u64) = (vec![], vec![], 1);
        for step in steps {
            match step {
                Step::Reserve => slots.extend(reserve(&registry, "i", &[])),
                Step::Keep(at) if at < slots.len() => {
                    let slot = slots.swap_remove(at);
                    kept.push(slot.run().clone());
                    slot.keep(asked);
                }
                Step::Drop(at) if at < slots.len() => drop(slots.swap_remove(at)),
                Step::Release(at) if at < kept.len() => {
                    registry.release(&pool(), &kept[at]);
                }
                Step::Sync(number, runs) => {
                    asked += 1;
                    let runs: Vec<RunId> = runs.iter().filter_map(|at| kept.get(*at).cloned()).collect();
                    registry.take_in(&pool(), &agent(number), &inventory(asked, &runs, 3));
                }
                _ => {}
            }
            let audit = registry.audit();
            prop_assert_eq!(audit.mismatched, 0);
            prop_assert_eq!(audit.used as usize, audit.held.len());
            for slot in &slots {
                prop_assert!(audit.held.contains(slot.run()), "a reservation was lost");
            }
        }
        drop(slots);
        asked += 1;
        for number in 0..2 {
            registry.take_in(&pool(), &agent(number), &inventory(asked, &[], 3));
        }
        prop_assert_eq!(registry.audit(), Audit { capacity: 6, ..Audit::default() });
    }

    #[test]
    fn no_slot_is_given_out_twice(capacity in 1..5_u32, wanted in 1..20_usize) {
        let registry = registry(2, capacity);
        let got: Vec<Slot> = (0..wanted).filter_map(|_| reserve(&registry, "i", &[]).ok()).collect();
        prop_assert_eq!(got.len(), wanted.min(capacity as usize * 2));
    }
}
