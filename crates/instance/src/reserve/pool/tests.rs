//! Who gets what and what is started, as tables, and what must hold whatever happens.

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::identity::{InstanceId, SessionKey};
use crate::record::Reservation;

const NOW: Duration = Duration::from_secs(100);

fn rules() -> Rules {
    Rules {
        spec: SpecId("agent-1".into()),
        max: 10,
        on_demand: true,
        capacity: 1,
        once: false,
        job: false,
        most_waiting: 100,
        patience: Duration::from_secs(2),
    }
}

fn pool(change: impl FnOnce(&mut Rules)) -> Pool {
    let mut rules = rules();
    change(&mut rules);
    Pool::new("router-a".into(), rules)
}

fn instance(slot: u32) -> Instance {
    Instance {
        namespace: "prod".into(),
        id: InstanceId::pod(format!("agent-{slot}"), format!("p{slot}")),
        version: 1,
        task_uid: "t1".into(),
        spec_id: SpecId("agent-1".into()),
        slot: Some(slot),
        address: Some([10, 0, 0, 7].into()),
        port: None,
        life: Life::Ready,
        hold: Hold::Free,
        paused: false,
        woken: None,
        releasing: false,
        created_for: None,
        created: Timestamp::UNIX_EPOCH,
        last_active: None,
    }
}

fn held() -> Hold {
    let reservation = Reservation { lease: "l1".into(), binding: 1 };
    Hold::Held { key: SessionKey::new("k").unwrap(), reservation }
}

fn starting(slot: u32, router: &str) -> Instance {
    Instance { life: Life::Starting, created_for: Some(router.into()), ..instance(slot) }
}

fn put(pool: &mut Pool, instance: Instance) {
    pool.apply(Arc::new(instance), NOW, false);
}

fn ask(pool: &mut Pool, count: u32) {
    for _ in 0..count {
        pool.ask(None).unwrap();
    }
}

fn names(given: &[Given]) -> Vec<&str> {
    given.iter().map(|(_, instance)| &*instance.id.name).collect()
}

#[test]
fn only_what_is_free_is_given() {
    let unfit = [
        Instance { life: Life::Starting, ..instance(0) },
        Instance { life: Life::Unready, ..instance(1) },
        Instance { life: Life::Terminating, ..instance(2) },
        Instance { life: Life::Dead, ..instance(3) },
        Instance { hold: held(), ..instance(4) },
        Instance { hold: Hold::Spoilt, ..instance(5) },
        Instance { releasing: true, ..instance(6) },
        Instance { address: None, ..instance(7) },
        Instance { spec_id: SpecId("agent-0".into()), ..instance(8) },
    ];
    let mut pool = pool(|_| ());
    unfit.into_iter().for_each(|one| put(&mut pool, one));
    let place = pool.ask(None).unwrap();
    assert_eq!(pool.assign(NOW), []);
    put(&mut pool, instance(9));
    let given = pool.assign(NOW);
    assert_eq!((given[0].0, names(&given)), (place, vec!["agent-9"]));
    // It is set aside, and comes back when it was not used.
    pool.ask(None).unwrap();
    assert_eq!(pool.assign(NOW), []);
    pool.give_back("p9", false);
    assert_eq!(names(&pool.assign(NOW)), ["agent-9"]);
}

#[test]
fn as_many_start_as_own_waiters_lack() {
    for (waiting, own, foreign, slots) in [
        (0, 0, 0, vec![]),
        (1, 0, 0, vec![0]),
        (3, 0, 0, vec![0, 1, 2]),
        (3, 2, 0, vec![2]),
        (3, 3, 0, vec![]),
        // What another router starts is for its own waiters, but takes up slots and room.
        (2, 0, 2, vec![2, 3]),
        (5, 0, 8, vec![8, 9]),
        (12, 0, 0, (0..10).collect()),
    ] {
        let mut pool = pool(|_| ());
        ask(&mut pool, waiting);
        (0..own).for_each(|slot| put(&mut pool, starting(slot, "router-a")));
        (0..foreign).for_each(|slot| put(&mut pool, starting(slot, "router-b")));
        assert_eq!(pool.starts(NOW, 0, 1), slots, "{waiting} {own} {foreign}");
        assert_eq!(pool.starts(NOW, 0, 1), [0; 0], "each is started once");
    }
}

#[test]
fn routers_look_at_different_slots_first() {
    for (rank, slots) in [(0, [0, 3, 6, 9, 1]), (1, [1, 4, 7, 0, 2]), (2, [2, 5, 8, 0, 1])] {
        let mut pool = pool(|_| ());
        ask(&mut pool, 5);
        assert_eq!(pool.starts(NOW, rank, 3), slots);
    }
}

#[test]
fn slots_that_are_taken_are_passed_over() {
    let mut pool = pool(|rules| rules.max = 4);
    put(&mut pool, Instance { life: Life::Dead, ..instance(0) });
    pool.block(1, NOW);
    ask(&mut pool, 9);
    assert_eq!(pool.starts(NOW, 0, 1), [2, 3]);
    pool.created(2);
    pool.created(3);
    assert_eq!(pool.starts(NOW + BLOCKED, 0, 1), [1, 2, 3]);
}

#[test]
fn slots_above_a_lowered_maximum_count() {
    let mut pool = pool(|rules| rules.max = 3);
    for slot in [3, 4] {
        put(&mut pool, Instance { hold: held(), ..instance(slot) });
    }
    ask(&mut pool, 9);
    assert_eq!(pool.starts(NOW, 0, 1), [0]);
}

#[test]
fn without_scaling_nothing_starts() {
    let mut pool = pool(|rules| rules.on_demand = false);
    pool.ask(None).unwrap();
    assert_eq!(pool.starts(NOW, 0, 1), [0; 0]);
    assert!(pool.why().contains("scalingMode None"), "{}", pool.why());
}

#[test]
fn there_is_a_bound_on_waiting() {
    let mut pool = pool(|rules| rules.most_waiting = 2);
    let place = pool.ask(None).unwrap();
    pool.ask(None).unwrap();
    assert_eq!(pool.ask(None), Err(Full));
    pool.withdraw(place);
    assert!(pool.ask(None).is_ok());
}

#[test]
fn what_another_router_started_is_left_to_it_for_a_while() {
    let mut pool = pool(|_| ());
    put(&mut pool, starting(0, "router-b"));
    put(&mut pool, Instance { life: Life::Ready, ..starting(0, "router-b") });
    pool.ask(None).unwrap();
    assert_eq!(pool.assign(NOW), []);
    let later = NOW + Duration::from_secs(2);
    assert_eq!(pool.next_look(NOW), Some(later));
    assert_eq!(names(&pool.assign(later)), ["agent-0"]);
    // What was there when this router came is nobody's to wait for.
    let mut pool = self::pool(|_| ());
    pool.apply(Arc::new(Instance { created_for: Some("router-b".into()), ..instance(0) }), NOW, true);
    pool.ask(None).unwrap();
    assert_eq!(pool.assign(NOW).len(), 1);
}

#[test]
fn own_instances_come_first_and_routers_do_not_meet_before_all_are_in_use() {
    let order = |rank, routers, requests| {
        let seat = Arc::<Seat>::default();
        seat.set(rank, routers);
        let mut pool = Pool::new("router-a".into(), rules()).at(seat);
        (0..8).for_each(|slot| put(&mut pool, instance(slot)));
        ask(&mut pool, requests);
        pool.assign(NOW).iter().map(|(_, given)| given.id.name.to_string()).collect::<Vec<_>>()
    };
    for of_first in 0..=8 {
        let mut chosen = [order(0, 2, of_first), order(1, 2, 8 - of_first)].concat();
        chosen.sort();
        chosen.dedup();
        assert_eq!(chosen.len(), 8, "{of_first}");
    }
    let mut all = order(2, 3, 8);
    all.sort();
    assert_eq!(all.len(), 8, "whatever the seat, each is given once: {all:?}");
    let mut pool = pool(|_| ());
    (0..8).for_each(|slot| put(&mut pool, instance(slot)));
    put(&mut pool, Instance { created_for: Some("router-a".into()), ..instance(8) });
    pool.ask(None).unwrap();
    assert_eq!(names(&pool.assign(NOW)), ["agent-8"]);
}

#[test]
fn the_least_used_instance_comes_first() {
    let mut pool = pool(|rules| rules.capacity = 2);
    (0..2).for_each(|slot| put(&mut pool, instance(slot)));
    let mut loads = Vec::new();
    for _ in 0..5 {
        pool.ask(None).unwrap();
        pool.assign(NOW);
        loads.push((pool.load("p0"), pool.load("p1")));
    }
    assert!(loads[0] == (1, 0) || loads[0] == (0, 1));
    assert_eq!((loads[1], loads[3], loads[4]), ((1, 1), (2, 2), (2, 2)));
    assert_eq!(pool.starts(NOW, 0, 1).len(), 1, "one instance has room for two");
}

#[test]
fn what_serves_once_is_given_once() {
    let mut pool = pool(|rules| (rules.once, rules.job, rules.capacity) = (true, true, 5));
    put(&mut pool, instance(0));
    put(&mut pool, Instance { last_active: Some(Timestamp::UNIX_EPOCH), ..instance(1) });
    ask(&mut pool, 2);
    assert_eq!(names(&pool.assign(NOW)), ["agent-0"]);
    pool.give_back("p0", true);
    assert_eq!(pool.assign(NOW), []);
    let counts = pool.statistics(&SpecId("agent-1".into()));
    assert_eq!((counts.total, counts.ready, counts.idle), (2, 2, 0));
}

#[test]
fn the_parallelism_of_a_job() {
    for (waiting, idle, used, current, wanted) in [
        (0, 0, 0, 0, None),
        (3, 0, 0, 0, Some(3)),
        // The Job has been told already, and its Pods are coming.
        (3, 0, 0, 3, None),
        (3, 0, 0, 1, Some(3)),
        (2, 0, 3, 3, Some(5)),
        (20, 0, 3, 3, Some(10)),
        (20, 0, 10, 10, None),
    ] {
        let mut pool = pool(|rules| (rules.once, rules.job) = (true, true));
        for slot in 0..idle + used {
            let last_active = (slot >= idle).then_some(Timestamp::UNIX_EPOCH);
            put(&mut pool, Instance { last_active, slot: None, ..instance(slot) });
        }
        ask(&mut pool, waiting);
        assert_eq!(pool.parallelism(current), wanted, "{waiting} {idle} {used} {current}");
    }
}

#[test]
fn what_is_left_of_an_old_revision_counts_against_the_maximum() {
    let mut pool = pool(|rules| (rules.once, rules.job) = (true, true));
    for slot in 0..8 {
        put(&mut pool, Instance { spec_id: SpecId("agent-0".into()), slot: None, ..instance(slot) });
    }
    ask(&mut pool, 5);
    assert_eq!(pool.parallelism(0), Some(2), "of at most ten");
}

#[test]
fn a_blocked_slot_is_looked_at_again() {
    let mut pool = pool(|rules| rules.max = 1);
    ask(&mut pool, 1);
    pool.block(0, NOW);
    assert_eq!(pool.starts(NOW, 0, 1), [0; 0]);
    let later = pool.next_look(NOW).unwrap();
    assert_eq!(pool.starts(later, 0, 1), [0]);
}

#[test]
fn one_that_was_ready_before_does_not_start() {
    let mut pool = pool(|_| ());
    ask(&mut pool, 1);
    put(&mut pool, starting(0, "router-a"));
    assert_eq!(pool.starts(NOW, 0, 1), [0; 0], "it is coming");
    put(&mut pool, Instance { life: Life::Ready, hold: held(), ..starting(0, "router-a") });
    put(&mut pool, starting(0, "router-a"));
    assert_eq!(pool.starts(NOW, 0, 1), [1], "it may never come back");
}

#[test]
fn failures_make_it_rest_longer_and_longer() {
    let mut pool = pool(|_| ());
    pool.ask(None).unwrap();
    pool.start_failed(NOW);
    assert_eq!(pool.starts(NOW, 0, 1), [0; 0]);
    let later = pool.next_look(NOW).unwrap();
    assert_eq!(later, NOW + FIRST_REST);
    pool.start_failed(later);
    assert_eq!(pool.next_look(later), Some(later + 2 * FIRST_REST));
    // Others that fail meanwhile are of the same failure.
    pool.start_failed(later);
    assert_eq!(pool.next_look(later), Some(later + 2 * FIRST_REST));
    let later = later + 2 * FIRST_REST;
    // One that dies while it starts is a failure too; one that gets ready ends the series.
    put(&mut pool, starting(0, "router-a"));
    pool.apply(Arc::new(Instance { life: Life::Dead, ..starting(0, "router-a") }), later, false);
    assert_eq!(pool.next_look(later), Some(later + 4 * FIRST_REST));
    put(&mut pool, starting(1, "router-a"));
    put(&mut pool, Instance { life: Life::Ready, ..starting(1, "router-a") });
    assert_eq!(pool.failures, 0);
}

#[test]
fn tenants_take_turns_only_when_there_is_not_enough() {
    for (max, order) in [(10, ["loud", "loud", "quiet"]), (1, ["loud", "quiet", "loud"])] {
        let mut pool = pool(|rules| rules.max = max);
        let tenants = ["loud", "loud", "quiet"];
        let places: Vec<_> = tenants.iter().map(|tenant| pool.ask(Some(tenant)).unwrap()).collect();
        let mut served = Vec::new();
        for _ in 0..3 {
            put(&mut pool, instance(0));
            let given = pool.assign(NOW);
            served.push(tenants[places.iter().position(|place| *place == given[0].0).unwrap()]);
            pool.give_back("p0", false);
            // Not free for a moment, so that each is given one at a time.
            put(&mut pool, Instance { hold: held(), ..instance(0) });
        }
        assert_eq!(served, order, "maximum {max}");
    }
}

#[test]
fn statistics_of_a_revision() {
    let mut pool = pool(|_| ());
    put(&mut pool, instance(0));
    put(&mut pool, Instance { hold: held(), ..instance(1) });
    put(&mut pool, starting(2, "router-b"));
    put(&mut pool, Instance { life: Life::Dead, ..instance(3) });
    put(&mut pool, Instance { spec_id: SpecId("agent-0".into()), ..instance(4) });
    let counts = pool.statistics(&SpecId("agent-1".into()));
    let wanted = InstanceStatistics { total: 4, creating: 1, ready: 2, reserved: 1, idle: 1 };
    assert_eq!(counts, wanted);
}

#[derive(Clone, Debug)]
enum Event {
    Put(u32, Life, bool, bool),
    Remove(u32),
    Ask(u8),
    Withdraw(usize),
    GiveBack(usize, bool),
    Start,
    Created(u32),
    Pass(u64),
    Capacity(u32),
}

fn event() -> impl Strategy<Value = Event> {
    let life = prop::sample::select(vec![Life::Starting, Life::Ready, Life::Unready, Life::Dead]);
    prop_oneof![
        4 => (0..6u32, life, any::<bool>(), any::<bool>()).prop_map(|(n, l, h, r)| Event::Put(n, l, h, r)),
        1 => (0..6u32).prop_map(Event::Remove),
        4 => (0..3u8).prop_map(Event::Ask),
        1 => (0..20usize).prop_map(Event::Withdraw),
        2 => (0..20usize, any::<bool>()).prop_map(|(n, used)| Event::GiveBack(n, used)),
        2 => Just(Event::Start),
        1 => (0..6u32).prop_map(Event::Created),
        1 => (0..3000u64).prop_map(Event::Pass),
        1 => (1..3u32).prop_map(Event::Capacity),
    ]
}

proptest! {
    /// Whatever happens: nobody is given more than there is room for, nothing that is not free is given, nobody
    /// waits while something is free, and no more than the maximum is started.
    #[test]
    fn room_is_never_given_twice(events in prop::collection::vec(event(), 1..120), once: bool) {
        let mut pool = pool(|rules| (rules.max, rules.once) = (5, once));
        let (mut now, mut places, mut grants) = (NOW, Vec::new(), Vec::<Arc<Instance>>::new());
        for event in events {
            match event {
                Event::Put(slot, life, taken, releasing) => {
                    let hold = if taken { held() } else { Hold::Free };
                    pool.apply(Arc::new(Instance { life, hold, releasing, ..instance(slot) }), now, false);
                }
                Event::Remove(slot) => {
                    pool.remove(&format!("p{slot}"));
                    // Whoever still uses it gives back what no longer exists.
                }
                Event::Ask(tenant) => places.extend(pool.ask(Some(&tenant.to_string())).ok()),
                Event::Withdraw(n) if !places.is_empty() => {
                    pool.withdraw(places.swap_remove(n % places.len()));
                }
                Event::GiveBack(n, used) if !grants.is_empty() => {
                    let instance = grants.swap_remove(n % grants.len());
                    pool.give_back(&instance.id.uid, used);
                }
                Event::Start => {
                    pool.starts(now, 0, 1);
                }
                Event::Created(slot) => pool.created(slot),
                Event::Pass(millis) => now += Duration::from_millis(millis),
                Event::Capacity(capacity) => {
                    let rules = Rules { capacity, ..pool.rules().clone() };
                    pool.set_rules(rules);
                }
                _ => {}
            }
            for (place, instance) in pool.assign(now) {
                prop_assert!(places.contains(&place), "somebody who left was served");
                places.retain(|held| *held != place);
                prop_assert!(instance.life == Life::Ready && instance.hold == Hold::Free && !instance.releasing);
                let room = if once { 1 } else { pool.rules().capacity };
                prop_assert!(pool.load(&instance.id.uid) <= room);
                grants.push(instance);
            }
            prop_assert!(pool.free.is_empty() || pool.waiting() == 0, "somebody waits for what is free");
            prop_assert_eq!(pool.waiting(), places.len());
            let below = pool.slots.keys().filter(|slot| **slot < 5).count();
            let started = pool.creating.iter().filter(|slot| !pool.slots.contains_key(slot)).count();
            prop_assert!(below + started <= 5);
        }
        // All counts come out even in the end.
        for uid in pool.members.keys().cloned().collect::<Vec<_>>() {
            pool.remove(&uid);
        }
        prop_assert!(pool.free.is_empty() && pool.kept.is_empty() && pool.slots.is_empty());
        prop_assert_eq!(pool.starting, 0);
    }
}
