//! Whatever is there: planning on the results of plans comes to an end, does nothing twice, and never breaks what the
//! protocol promises.

use std::collections::HashSet;
use std::sync::Arc;

use agentcube_api::agentcube::task::ReusePolicy;
use proptest::prelude::*;

use super::bed::{Bed, brief, ending, idle_for, secs};
use crate::identity::{InstanceId, SpecId};
use crate::lifecycle::operation::{Operation, Reason};
use crate::lifecycle::routers::{Seen, Silence};
use crate::lifecycle::view::place;
use crate::record::{Hold, Life, Reservation};

const SLOTS: u32 = 4;

#[derive(Clone, Debug)]
struct AnyPod {
    life: Life,
    hold: u8,
    old: bool,
    marked: bool,
    created_for: bool,
    age: u64,
    unchanged: u64,
    used: Option<u64>,
}

#[derive(Clone, Debug)]
struct AnyLease {
    holder: Option<bool>,
    binding: i32,
    idle: u64,
    marked: bool,
    ending: bool,
    interrupted: bool,
    finalizer: bool,
    spoilt: bool,
    unchanged: u64,
}

#[derive(Clone, Debug)]
struct AnyWorld {
    task: u8,
    bounds: (u32, u32),
    always: bool,
    fixed: bool,
    idle: Option<u64>,
    ttl: Option<u64>,
    pods: Vec<Option<AnyPod>>,
    leases: Vec<Option<AnyLease>>,
    /// Silence, and what was seen.
    routers: Vec<(u64, u64)>,
    /// A deleted Pod goes at once, or lingers.
    lingers: bool,
}

fn any_life() -> impl Strategy<Value = Life> {
    prop_oneof![
        4 => Just(Life::Ready),
        1 => Just(Life::Starting),
        1 => Just(Life::Unready),
        1 => Just(Life::Terminating),
        1 => Just(Life::Dead),
    ]
}

fn seconds() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![0, 1, 12, 100, 400, 5000])
}

fn any_pod() -> impl Strategy<Value = AnyPod> {
    let times = (seconds(), seconds(), prop::option::of(seconds()));
    (any_life(), 0..4u8, prop::bool::weighted(0.2), prop::bool::weighted(0.3), any::<bool>(), times).prop_map(
        |(life, hold, old, marked, created_for, (age, unchanged, used))| AnyPod {
            life,
            hold,
            old,
            marked,
            created_for,
            age,
            unchanged,
            used,
        },
    )
}

fn any_lease() -> impl Strategy<Value = AnyLease> {
    let flags =
        (any::<bool>(), any::<bool>(), any::<bool>(), prop::bool::weighted(0.8), prop::bool::weighted(0.1));
    (prop::option::weighted(0.8, prop::bool::weighted(0.8)), 0..2i32, seconds(), seconds(), flags).prop_map(
        |(holder, binding, idle, unchanged, (marked, ending, interrupted, finalizer, spoilt))| AnyLease {
            holder,
            binding,
            idle,
            marked,
            ending,
            interrupted,
            finalizer,
            spoilt,
            unchanged,
        },
    )
}

fn any_world() -> impl Strategy<Value = AnyWorld> {
    let slots = SLOTS as usize;
    let pods = prop::collection::vec(prop::option::weighted(0.7, any_pod()), slots);
    let leases = prop::collection::vec(prop::option::weighted(0.6, any_lease()), slots);
    let silence = prop::sample::select(vec![1u64, 100, 1000]);
    let seen = prop::sample::select(vec![0u64, 100, 1_000_000]);
    let routers = prop::collection::vec((silence, seen), 0..3);
    let times = (prop::option::of(seconds()), prop::option::of(1u64..1000));
    let task = (0..8u8, (0..3u32, 0..=SLOTS), any::<bool>(), any::<bool>());
    (task, times, pods, leases, routers, any::<bool>()).prop_map(
        |((task, (min, max), always, fixed), (idle, ttl), pods, leases, routers, lingers)| AnyWorld {
            task,
            bounds: (min.min(max), max),
            always,
            fixed,
            idle,
            ttl,
            pods,
            leases,
            routers,
            lingers,
        },
    )
}

fn bed(world: &AnyWorld) -> Bed {
    let mut bed = Bed::new(world.bounds.0, world.bounds.1).task(|task| {
        task.reuse = if world.always { ReusePolicy::Always } else { ReusePolicy::Never };
        task.fixed = world.fixed;
        task.idle = world.idle.map(secs);
        task.ttl = world.ttl.map(secs);
        task.deleted = world.task == 1;
        if world.task == 2 {
            task.current = None;
        }
    });
    for (slot, pod) in (0..).zip(&world.pods) {
        let Some(pod) = pod else { continue };
        let (created, since) = (bed.wall(pod.age), bed.ago(pod.unchanged));
        let (used, doomed) = (pod.used.map(|used| bed.wall(used)), bed.wall(pod.unchanged));
        bed = bed.pod_with(slot, |seen| {
            (seen.record.life, seen.record.created, seen.record.last_active) = (pod.life, created, used);
            (seen.since, seen.life_since) = (since, since);
            seen.doomed = (pod.life == Life::Terminating).then_some(doomed);
            seen.record.created_for = pod.created_for.then(|| "router-a".into());
            seen.mark = pod.marked.then(|| "InstanceExcess".into());
            seen.record.releasing = pod.marked;
            if pod.old {
                seen.record.spec_id = SpecId("agent-1".into());
            }
        });
    }
    for (slot, lease) in (0..).zip(&world.leases) {
        if let Some(lease) = lease {
            bed = add_lease(bed, slot, lease);
        }
    }
    // What an instance says of its hold need not be what the sessions say.
    for (slot, pod) in (0..SLOTS).zip(&world.pods) {
        let seen = bed.view.instances.get_mut(&*format!("agent-{slot}"));
        let (Some(pod), Some(seen)) = (pod, seen) else { continue };
        match (pod.hold, &seen.record.hold) {
            (0, _) => seen.record.hold = Hold::Free,
            (1, _) => seen.record.hold = Hold::Spoilt,
            (2, Hold::Free) => {
                let key = crate::identity::SessionKey::new("nobody").unwrap();
                let reservation = Reservation { lease: "lease-9".into(), binding: 0 };
                seen.record.hold = Hold::Held { key, reservation };
            }
            _ => {}
        }
    }
    for (number, (silence, seen)) in world.routers.iter().enumerate() {
        bed = bed.router(&format!("router-{number}"), *silence, *seen, *seen);
    }
    if world.task == 0 { bed.without_task() } else { bed }
}

fn add_lease(bed: Bed, slot: u32, lease: &AnyLease) -> Bed {
    let (now, since) = (bed.now.wall, bed.ago(lease.unchanged));
    bed.session_with(slot, |seen| {
        idle_for(seen, now, lease.idle);
        seen.since = since;
        let session = seen.session.as_mut().unwrap();
        session.binding = lease.binding;
        match lease.holder {
            None => (seen.holder, session.holder) = (None, None),
            Some(true) => {}
            Some(false) => {
                let gone = InstanceId::pod(format!("agent-{slot}"), "former");
                (seen.holder, session.holder) = (Some(gone.clone()), Some(gone));
            }
        }
        session.releasing = lease.marked;
        seen.mark = lease.marked.then(|| "SessionIdle".into());
        seen.finalizer = lease.finalizer;
        if lease.ending {
            ending(seen);
            seen.interrupted = lease.interrupted;
            session_interrupted(seen, lease.interrupted);
        }
        if lease.spoilt {
            seen.session = None;
        }
    })
}

fn session_interrupted(lease: &mut crate::lifecycle::view::SeenLease, interrupted: bool) {
    if let Some(session) = &mut lease.session {
        session.interrupted = interrupted;
    }
}

/// Does to the bed what the API server would do.
fn apply(bed: &mut Bed, operation: &Operation, version: u64, lingers: bool) {
    let now = bed.now;
    let rest = now.instant + bed.rules.limits.rest;
    let view = &mut bed.view;
    match operation {
        Operation::MarkSession { lease, reason } => {
            let seen = view.sessions.get_mut(&lease.name).unwrap();
            (seen.mark, seen.since) = (Some(reason.as_str().into()), now.instant);
            seen.reference.version = version;
        }
        Operation::UnmarkSession { lease } => {
            let seen = view.sessions.get_mut(&lease.name).unwrap();
            (seen.mark, seen.reference.version, seen.since) = (None, version, now.instant);
            view.rests.insert(lease.uid.clone(), rest);
        }
        Operation::EndSession { lease, kept, .. } => {
            let seen = view.sessions.get_mut(&lease.name).unwrap();
            assert_eq!(*kept, seen.finalizer);
            (seen.ending, seen.reference.version, seen.since) = (true, version, now.instant);
            if let Some(session) = &mut seen.session {
                session.ending = true;
            }
            if !kept {
                view.sessions.remove(&lease.name);
            }
        }
        Operation::RestSession { lease } => {
            let seen = view.sessions.get_mut(&lease.name).unwrap();
            (seen.mark, seen.reference.version, seen.since) = (None, version, now.instant);
            if let Some(session) = &mut seen.session {
                (session.rests, session.releasing, session.version) = (Some(lease.version), false, version);
            }
        }
        Operation::PauseInstance { pod } => {
            let seen = view.instances.get_mut(&place(pod.id.kind, &pod.id.name)).unwrap();
            (seen.record.paused, seen.record.life) = (true, Life::Paused);
            (seen.record.version, seen.since) = (version, now.instant);
        }
        Operation::FinishSession { lease, .. } => drop(view.sessions.remove(&lease.name).unwrap()),
        Operation::FreeInstance { pod, .. } => {
            let seen = view.instances.get_mut(&pod.id.name).unwrap();
            if seen.mark.take().is_some() {
                view.rests.insert(pod.id.uid.clone(), rest);
            }
            (seen.record.hold, seen.record.last_active) = (Hold::Free, Some(now.wall));
            (seen.record.version, seen.since) = (version, now.instant);
        }
        Operation::MarkInstance { pod, reason, .. } => {
            let seen = view.instances.get_mut(&pod.id.name).unwrap();
            (seen.mark, seen.since) = (Some(reason.as_str().into()), now.instant);
            seen.record.version = version;
        }
        Operation::UnmarkInstance { pod } => {
            let seen = view.instances.get_mut(&pod.id.name).unwrap();
            (seen.mark, seen.record.version, seen.since) = (None, version, now.instant);
            view.rests.insert(pod.id.uid.clone(), rest);
        }
        Operation::DeleteInstance { pod, reason, .. } => {
            let seen = view.instances.get_mut(&pod.id.name).unwrap();
            if *reason == Reason::InstanceDead {
                view.deaths.add(now.instant, &bed.rules.limits);
            }
            if lingers && seen.record.life != Life::Dead {
                (seen.record.life, seen.life_since) = (Life::Terminating, now.instant);
                (seen.doomed, seen.record.version) = (Some(now.wall + secs(30)), version);
            } else {
                view.instances.remove(&pod.id.name);
            }
        }
        Operation::StartInstance { slot, .. } => {
            let name: Arc<str> = format!("agent-{slot}").into();
            let mut pod = bed.instance(&name, Some(*slot));
            (pod.record.life, pod.record.created, pod.record.version) = (Life::Starting, now.wall, version);
            pod.record.id.uid = format!("started-{version}").into();
            assert!(bed.view.instances.insert(name, pod).is_none(), "a slot is filled twice");
        }
        Operation::SetParallelism { .. } => unreachable!("there are no Jobs here"),
    }
}

/// What has to hold of every operation, given what it was planned for.
fn check(bed: &Bed, operation: &Operation) {
    let now = bed.now.instant;
    let timing = &bed.rules.timing;
    let silent = bed.routers.any_silent(timing, now);
    let seen = |seen: Seen| {
        let living = bed.routers.0.values().filter(|router| router.silence(timing, now) != Silence::Dead);
        living.into_iter().all(|router| match seen {
            Seen::Lease(version) => router.seen_leases >= version,
            Seen::Instance(_, version) => router.seen_pods >= version,
        })
    };
    match operation {
        Operation::MarkSession { .. } | Operation::MarkInstance { .. } => assert!(!silent),
        Operation::EndSession { lease, reason: Reason::SessionIdle | Reason::SessionLost, .. } => {
            assert!(!silent && seen(Seen::Lease(lease.version)));
        }
        Operation::FinishSession { lease, .. } => assert!(seen(Seen::Lease(lease.version))),
        Operation::FreeInstance { pod, reservation } => {
            let ends =
                bed.view.sessions.values().find(|lease| lease.reference.uid == reservation.lease).unwrap();
            assert!(ends.session.is_some() && ends.ending && !ends.interrupted);
            assert!(seen(Seen::Lease(ends.reference.version)));
            let instance = &bed.view.instances[&pod.id.name];
            assert!(
                matches!(&instance.record.hold, Hold::Held { reservation: held, .. } if held == reservation)
            );
        }
        Operation::DeleteInstance { pod, reason, .. } => {
            let instance = &bed.view.instances[&pod.id.name];
            let mut sessions = bed.view.sessions.values().filter(|lease| !lease.ending);
            let bound = sessions.any(|lease| {
                lease.session.as_ref().is_some_and(|session| instance.record.is_bound_to(session))
            });
            assert!(!bound || *reason == Reason::InstanceDead, "{pod:?} is in use");
            let asked = [
                Reason::InstanceExcess,
                Reason::InstanceSpent,
                Reason::RevisionDrained,
                Reason::OrphanRemoved,
                Reason::InstanceSpoilt,
            ];
            if asked.contains(reason) {
                assert!(instance.mark.is_some() && !silent && seen(Seen::Instance(pod.id.kind, pod.version)));
            }
        }
        Operation::StartInstance { slot, .. } => {
            assert!(*slot < bed.view.task.as_ref().unwrap().max);
        }
        Operation::RestSession { lease } => assert!(!silent && seen(Seen::Lease(lease.version))),
        Operation::UnmarkSession { .. }
        | Operation::UnmarkInstance { .. }
        | Operation::PauseInstance { .. }
        | Operation::EndSession { .. }
        | Operation::SetParallelism { .. } => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_come_to_an_end(world in any_world()) {
        let mut bed = bed(&world);
        let mut done = HashSet::new();
        let mut version = 1000;
        for round in 0.. {
            prop_assert!(round < 12, "no end: {done:?}");
            let plan = bed.plan();
            if plan.operations.is_empty() {
                break;
            }
            let planned = bed.clone();
            for operation in &plan.operations {
                check(&planned, operation);
                let told = brief(operation);
                prop_assert!(done.insert(told.clone()), "done twice: {told}");
                version += 1;
                apply(&mut bed, operation, version, world.lingers);
            }
        }
        let again = bed.plan();
        prop_assert_eq!(again.operations, vec![]);
        // What is left is within the bounds, as far as it can be.
        if let Some(task) = bed.view.task.as_ref().filter(|task| !task.deleted && task.current.is_some()) {
            let alive = bed.view.instances.values().filter(|instance| instance.record.life != Life::Terminating
                && task.is_current(&instance.record.spec_id)
                && instance.record.slot.unwrap() < task.max).count();
            let free = (0..task.max).filter(|slot| !bed.view.instances.contains_key(&*format!("agent-{slot}"))).count();
            prop_assert!(alive >= task.min as usize || free == 0, "{alive} of {} with {free} free slots", task.min);
        }
    }
}
