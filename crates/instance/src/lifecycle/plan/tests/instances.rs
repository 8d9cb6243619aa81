//! Which instances go, and which are started.

use super::bed::{Bed, IDLE, secs};
use crate::identity::{Kind, SpecId};
use crate::lifecycle::view::{Deaths, SeenInstance, place};
use crate::record::{Hold, Life};
use crate::revision::Form;

fn mark(pod: &mut SeenInstance) {
    (pod.mark, pod.record.releasing) = (Some("InstanceExcess".into()), true);
}

fn old(pod: &mut SeenInstance) {
    pod.record.spec_id = SpecId("agent-1".into());
}

#[test]
fn the_minimum_is_kept_in_the_lowest_free_slots() {
    let none = [""; 0];
    assert_eq!(Bed::new(0, 3).planned(), none);
    assert_eq!(Bed::new(2, 3).planned(), ["start agent-2 in 0", "start agent-2 in 1"]);
    assert_eq!(Bed::new(2, 3).pod(1).planned(), ["start agent-2 in 0"]);
    // A held one is one of the minimum.
    assert_eq!(Bed::new(1, 3).pod(0).session(0).planned(), none);
    // One of another revision is not, but takes a slot.
    let held_by_old = Bed::new(2, 2).pod_with(0, old).session(0);
    assert_eq!(held_by_old.planned(), ["start agent-2 in 1"]);
    let going = Bed::new(1, 2).pod_with(0, |pod| pod.record.life = Life::Terminating);
    assert_eq!(going.planned(), ["start agent-2 in 1"]);
    let full = Bed::new(1, 1).pod_with(0, |pod| pod.record.life = Life::Terminating);
    assert_eq!(full.planned(), none);
    let mut blocked = Bed::new(1, 3);
    blocked.view.blocked.insert(0);
    assert_eq!(blocked.planned(), ["start agent-2 in 1"]);
}

#[test]
fn nothing_starts_without_a_revision_or_for_a_task_that_goes() {
    assert_eq!(Bed::new(2, 3).task(|task| task.current = None).planned(), [""; 0]);
    assert_eq!(Bed::new(2, 3).task(|task| task.deleted = true).planned(), [""; 0]);
    let mut unread = Bed::new(2, 3);
    unread.view.form = None;
    assert_eq!(unread.planned(), [""; 0]);
}

#[test]
fn excess_goes_when_it_has_been_idle_for_long() {
    let used = |ago: u64| {
        let bed = Bed::new(0, 3);
        let at = bed.wall(ago);
        bed.pod_with(0, |pod| pod.record.last_active = Some(at))
    };
    assert_eq!((used(IDLE - 1).planned(), used(IDLE - 1).again()), (vec![], Some(1)));
    assert_eq!(used(IDLE).planned(), ["mark agent-0: InstanceExcess"]);
    // Without a timeout of its own the Task has the default one, which is 300 s too.
    assert_eq!(used(299).task(|task| task.idle = None).planned(), [""; 0]);
    assert_eq!(used(300).task(|task| task.idle = None).planned(), ["mark agent-0: InstanceExcess"]);
    // With a fixed number there is nothing to wait for.
    assert_eq!(used(0).task(|task| task.fixed = true).planned(), ["mark agent-0: InstanceExcess"]);
    // What the minimum asks for stays.
    assert_eq!(used(1000).task(|task| task.min = 1).planned(), [""; 0]);
}

#[test]
fn the_least_valuable_goes_first() {
    let bed = Bed::new(0, 9);
    let (early, late) = (bed.wall(900), bed.wall(400));
    let bed = bed
        .pod_with(0, |pod| pod.record.last_active = Some(late))
        .pod_with(1, |pod| pod.record.last_active = Some(early))
        .pod_with(2, |_| ())
        .pod_with(3, |_| ())
        .pod_with(4, |pod| pod.record.life = Life::Starting)
        .pod_with(5, |pod| pod.record.life = Life::Unready);
    let order = ["agent-5", "agent-4", "agent-3", "agent-2", "agent-1", "agent-0"];
    for gone in 0..=order.len() {
        let planned = bed.clone().task(|task| task.min = (order.len() - gone) as u32).planned();
        let expected: Vec<_> =
            order[..gone].iter().map(|name| format!("mark {name}: InstanceExcess")).collect();
        assert_eq!(planned, expected);
    }
    // Whichever the routers were asked about stays the first.
    let asked = bed.task(|task| task.min = 5).router("a", 1, 0, 50);
    let mut asked_of_0 = asked.clone();
    mark(asked_of_0.view.instances.get_mut("agent-0").unwrap());
    assert_eq!(asked_of_0.planned(), ["delete agent-0: InstanceExcess if unchanged"]);
    assert_eq!(asked.planned(), ["mark agent-5: InstanceExcess"]);
}

#[test]
fn a_marked_instance_goes_when_all_routers_have_seen_the_mark() {
    let asked = |seen, silent_for, age| {
        let bed = Bed::new(0, 3);
        let since = bed.ago(age);
        bed.pod_with(0, |pod| {
            mark(pod);
            pod.since = since;
        })
        .router("a", silent_for, 0, seen)
    };
    assert_eq!(asked(50, 1, 1).planned(), ["delete agent-0: InstanceExcess if unchanged"]);
    assert_eq!(asked(49, 1, 1).planned(), [""; 0]);
    assert!(asked(49, 1, 1).plan().waits_for_routers);
    assert_eq!(asked(49, 1, 15).planned(), ["unmark agent-0"]);
    assert_eq!(asked(50, 15, 1).planned(), ["unmark agent-0"]);
    assert_eq!(asked(49, 600, 1).planned(), ["delete agent-0: InstanceExcess if unchanged"]);
    let needed = asked(50, 1, 1).task(|task| task.min = 1);
    assert_eq!(needed.planned(), ["unmark agent-0"]);
}

#[test]
fn an_instance_that_was_started_for_a_router_is_left_to_it_for_a_while() {
    let started = |created: u64, life, for_life: u64| {
        let bed = Bed::new(0, 3).task(|task| task.idle = Some(secs(1)));
        let (at, since) = (bed.wall(created), bed.ago(for_life));
        bed.pod_with(0, |pod| {
            pod.record.created_for = Some("router-a".into());
            pod.record.created = at;
            (pod.record.life, pod.life_since) = (life, since);
        })
    };
    let gone = ["mark agent-0: InstanceExcess"];
    assert_eq!(
        (started(100, Life::Ready, 19).planned(), started(100, Life::Ready, 19).again()),
        (vec![], Some(1))
    );
    assert_eq!(started(100, Life::Ready, 20).planned(), gone);
    assert_eq!(started(299, Life::Starting, 299).planned(), [""; 0]);
    assert_eq!(started(300, Life::Starting, 300).planned(), gone);
    // Once used it is like any other.
    let mut used = started(100, Life::Ready, 0);
    let at = used.wall(2);
    used.view.instances.get_mut("agent-0").unwrap().record.last_active = Some(at);
    assert_eq!(used.planned(), gone);
}

#[test]
fn an_instance_that_a_session_names_is_not_excess() {
    let named = Bed::new(0, 3).pod(0).session(0);
    let mut half_bound = named;
    let pod = half_bound.view.instances.get_mut("agent-0").unwrap();
    (pod.record.hold, pod.mark) = (Hold::Free, Some("InstanceExcess".into()));
    half_bound.view.sessions.values_mut().for_each(|lease| lease.since += secs(500));
    assert_eq!(half_bound.planned(), ["unmark agent-0"]);
}

#[test]
fn old_revisions_are_drained() {
    let drained = ["mark agent-0: RevisionDrained", "start agent-2 in 1"];
    assert_eq!(Bed::new(1, 3).pod_with(0, old).planned(), drained);
    let held = Bed::new(0, 3).pod_with(0, old).session(0);
    assert_eq!(held.planned(), [""; 0]);
    let unknown = Bed::new(1, 3).pod_with(0, old).task(|task| task.current = None);
    assert_eq!(unknown.planned(), [""; 0]);
}

#[test]
fn instances_beyond_the_maximum_go_at_once() {
    let bed = Bed::new(1, 2);
    let now = bed.now.wall;
    let bed = bed.pod(0).pod_with(2, |pod| pod.record.last_active = Some(now));
    assert_eq!(bed.planned(), ["mark agent-2: InstanceExcess"]);
    assert_eq!(Bed::new(0, 2).pod(2).session(2).planned(), [""; 0]);
    // They do not count for the minimum.
    assert_eq!(Bed::new(1, 1).pod(2).planned(), ["mark agent-2: InstanceExcess", "start agent-2 in 0"]);
}

#[test]
fn an_instance_without_a_session_ends_at_its_age() {
    let bed = |ttl| Bed::new(1, 3).pod(0).task(|task| task.ttl = Some(secs(ttl)));
    let planned = ["delete agent-0: InstanceExpired if unchanged", "start agent-2 in 1"];
    assert_eq!(bed(1000).planned(), planned);
    assert_eq!((bed(1002).planned(), bed(1002).again()), (vec![], Some(2)));
}

#[test]
fn a_held_instance_without_its_session_is_a_leftover() {
    let leftover = |age: u64| {
        let bed = Bed::new(0, 3);
        let since = bed.ago(age);
        let mut bed = bed.pod_with(0, |pod| pod.since = since).session(0);
        bed.view.sessions.clear();
        bed
    };
    assert_eq!((leftover(9).planned(), leftover(9).again()), (vec![], Some(1)));
    assert_eq!(leftover(10).planned(), ["mark agent-0: OrphanRemoved unless held"]);
    let mut asked = leftover(1).router("a", 1, 0, 50);
    mark(asked.view.instances.get_mut("agent-0").unwrap());
    assert_eq!(asked.planned(), ["delete agent-0: OrphanRemoved if unchanged unless held"]);
    // Its session was pointed elsewhere.
    let moved = |since: u64| {
        let bed = Bed::new(0, 3).pod(0);
        let at = bed.ago(since);
        bed.session_with(0, |lease| {
            lease.since = at;
            lease.session.as_mut().unwrap().binding = 1;
        })
    };
    assert!(moved(10).planned().contains(&"mark agent-0: OrphanRemoved unless held".into()));
    assert_eq!(moved(9).planned(), [""; 0]);
    // A session that ends gives it back itself.
    let ends = moved(100).router("a", 1, 0, 0);
    let mut ends = ends;
    ends.view.sessions.values_mut().for_each(super::bed::ending);
    assert_eq!(ends.planned(), [""; 0]);
    // Marked and then bound: it is its session's.
    let mut bound = Bed::new(0, 3).pod(0).session(0);
    mark(bound.view.instances.get_mut("agent-0").unwrap());
    assert_eq!(bound.planned(), ["unmark agent-0"]);
}

#[test]
fn a_spoilt_instance_goes() {
    let spoilt = |age: u64| {
        let bed = Bed::new(0, 3);
        let since = bed.ago(age);
        bed.pod_with(0, |pod| (pod.record.hold, pod.since) = (Hold::Spoilt, since))
    };
    assert_eq!((spoilt(9).planned(), spoilt(9).again()), (vec![], Some(1)));
    assert_eq!(spoilt(10).planned(), ["mark agent-0: InstanceSpoilt"]);
}

#[test]
fn the_dead_are_removed_later_and_later_and_replaced_after_that() {
    let dead = |age: u64, count: u32| {
        let mut bed = Bed::new(1, 3);
        let since = bed.ago(age);
        bed.view.deaths = Deaths { count, last: Some(bed.ago(0)) };
        bed.pod_with(0, |pod| (pod.record.life, pod.life_since) = (Life::Dead, since))
    };
    let removed = ["delete agent-0: InstanceDead", "start agent-2 in 1"];
    for (count, delay) in [(0, 2), (1, 4), (2, 8), (7, 256), (8, 300), (1000, 300)] {
        assert_eq!((dead(delay - 1, count).planned(), dead(delay - 1, count).again()), (vec![], Some(1)));
        assert_eq!(dead(delay, count).planned(), removed, "{count}");
    }
    let mut forgotten = dead(2, 8);
    forgotten.view.deaths.last = Some(forgotten.ago(600));
    assert_eq!(forgotten.planned(), removed);
}

#[test]
fn without_its_task_every_instance_goes() {
    let bed = Bed::new(1, 3).pod(0).pod(1).session(1);
    let planned = bed.clone().task(|task| task.deleted = true).planned();
    assert_eq!(planned, ["end lease-1: TaskDeleted", "delete agent-0: TaskDeleted if unchanged"]);
    let unless = "unless there is a Task";
    assert_eq!(
        bed.without_task().planned(),
        [
            format!("end lease-1: TaskDeleted {unless}"),
            format!("delete agent-0: TaskDeleted if unchanged {unless}"),
        ]
    );
}

fn sandbox(mut bed: Bed, change: impl FnOnce(&mut SeenInstance)) -> Bed {
    let mut instance = bed.view.instances.remove("agent-0").unwrap();
    instance.record.id.kind = Kind::Sandbox;
    change(&mut instance);
    bed.view.instances.insert(place(Kind::Sandbox, "agent-0"), instance);
    bed.view.form = Some(Form::Sandboxes);
    bed.task(|task| task.kind = Kind::Sandbox)
}

#[test]
fn a_sandbox_takes_the_slot_of_its_name() {
    let bed = sandbox(Bed::new(2, 3).pod(0), |_| ());
    assert_eq!(bed.planned(), ["start agent-2 in 1"]);
}

#[test]
fn a_lost_sandbox_is_replaced() {
    let lost = |bed: Bed| sandbox(bed, |it| it.record.life = Life::Unready);
    assert_eq!(lost(Bed::new(1, 3).pod(0)).planned(), ["mark agent-0: InstanceLost"]);
    // A session that has it asks for another one itself, when it needs one.
    let mut bed = lost(Bed::new(1, 3).pod(0).session(0));
    let lease = bed.view.sessions.values_mut().next().unwrap();
    lease.holder.as_mut().unwrap().kind = Kind::Sandbox;
    lease.session.as_mut().unwrap().holder.clone_from(&lease.holder);
    assert_eq!(bed.planned(), [""; 0]);
}

#[test]
fn a_sandbox_for_one_request_goes_when_it_had_it() {
    let spent = |ago: u64, life: Life| {
        let bed = Bed::new(0, 3).pod(0);
        let active = bed.wall(ago);
        let bed = sandbox(bed, |it| (it.record.last_active, it.record.life) = (Some(active), life));
        bed.task(|task| task.once = true)
    };
    assert_eq!(spent(9, Life::Ready).planned(), [""; 0]);
    assert_eq!(spent(10, Life::Ready).planned(), ["mark agent-0: InstanceSpent"]);
    assert_eq!(spent(0, Life::Dead).planned(), ["delete agent-0: InstanceSpent"]);
    // It does not count for the minimum any more.
    let kept = spent(0, Life::Ready).task(|task| task.min = 1);
    assert_eq!(kept.planned(), ["start agent-2 in 1"]);
}
