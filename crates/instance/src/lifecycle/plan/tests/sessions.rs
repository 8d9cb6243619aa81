//! How sessions end.

use agentcube_api::agentcube::task::ReusePolicy;

use super::bed::{Bed, IDLE, ending, idle_for, marked, secs};
use crate::identity::{InstanceId, Kind};
use crate::lifecycle::view::{SeenInstance, Wanted, place};
use crate::record::{Hold, Life};

/// What is planned, but for the instances that are started in place of others.
trait Ended {
    fn ended(&self) -> Vec<String>;
}

impl Ended for Bed {
    fn ended(&self) -> Vec<String> {
        self.planned().into_iter().filter(|planned| !planned.starts_with("start")).collect()
    }
}

/// A session that has been idle for so long, on an instance that is kept by the minimum.
fn idle(seconds: u64) -> Bed {
    let bed = Bed::new(1, 3);
    let now = bed.now.wall;
    bed.pod(0).session_with(0, |lease| idle_for(lease, now, seconds))
}

fn change(mut bed: Bed, change: impl FnOnce(&mut crate::lifecycle::view::SeenLease)) -> Bed {
    change(bed.view.sessions.values_mut().next().unwrap());
    bed
}

fn pod(mut bed: Bed, change: impl FnOnce(&mut crate::lifecycle::view::SeenInstance)) -> Bed {
    change(bed.view.instances.values_mut().next().unwrap());
    bed
}

#[test]
fn an_idle_session_is_marked_when_its_time_has_come() {
    assert_eq!(idle(0).planned(), [""; 0]);
    assert_eq!(idle(100).again(), Some(IDLE - 100));
    assert_eq!(idle(IDLE - 1).planned(), [""; 0]);
    assert_eq!(idle(IDLE).planned(), ["mark lease-0: SessionIdle"]);
    // A Task may have no timeout at all.
    let endless = idle(1_000_000).task(|task| task.idle = None);
    assert_eq!((endless.planned(), endless.again()), (vec![], None));
}

#[test]
fn a_marked_session_ends_when_all_routers_have_seen_the_mark() {
    let asked = |seen_by_a, seen_by_b| {
        change(idle(IDLE), marked).router("a", 1, seen_by_a, 0).router("b", 2, seen_by_b, 0)
    };
    assert_eq!(change(idle(IDLE), marked).planned(), ["end lease-0: SessionIdle"]);
    assert_eq!(asked(60, 99).planned(), ["end lease-0: SessionIdle"]);
    let fresh = |bed: Bed| change(bed, |lease| lease.since += secs(495));
    assert_eq!(fresh(asked(59, 99)).planned(), [""; 0]);
    assert!(fresh(asked(59, 99)).plan().waits_for_routers);
    // The mark has been there for 5 s; after 15 s it is taken back, since requests wait for it.
    assert_eq!(fresh(asked(59, 99)).again(), Some(10));
    assert_eq!(asked(59, 99).planned(), ["unmark lease-0"]);
}

#[test]
fn a_mark_whose_reason_has_passed_is_taken_back() {
    assert_eq!(change(idle(10), marked).planned(), ["unmark lease-0"]);
    assert_eq!(change(idle(IDLE), marked).task(|task| task.idle = None).planned(), ["unmark lease-0"]);
}

#[test]
fn a_session_rests_after_its_mark_was_taken_back() {
    let mut resting = idle(IDLE);
    resting.view.rests.insert("lease-0".into(), resting.now.instant + secs(7));
    assert_eq!((resting.planned(), resting.again()), (vec![], Some(7)));
    resting.now.instant += secs(7);
    assert_eq!(resting.planned(), ["mark lease-0: SessionIdle"]);
}

#[test]
fn a_silent_router_holds_back_what_ends_for_being_idle() {
    // 15 s are silence, 600 s are death. What it has seen does not count while it is silent.
    for (silent_for, planned) in [
        (14, vec!["mark lease-0: SessionIdle"]),
        (15, vec![]),
        (599, vec![]),
        (600, vec!["mark lease-0: SessionIdle"]),
    ] {
        let bed = idle(IDLE).router("a", silent_for, 99, 99).router("b", 1, 99, 99);
        assert_eq!(bed.planned(), planned, "{silent_for}");
    }
    let held_back = idle(IDLE).router("a", 15, 99, 99);
    assert!(held_back.plan().waits_for_routers);
    assert_eq!(held_back.again(), Some(585));
    let asked = change(idle(IDLE), marked).router("a", 15, 99, 99);
    assert_eq!(asked.planned(), ["unmark lease-0"]);
}

#[test]
fn an_old_instance_ends_its_session_whoever_uses_it() {
    let old = |ttl| idle(0).task(|task| task.ttl = Some(secs(ttl))).router("a", 100, 0, 0);
    assert_eq!(old(1000).planned(), ["end lease-0: SessionExpired"]);
    assert_eq!((old(1001).planned(), old(1001).again()), (vec![], Some(1)));
}

/// A session whose Lease is being deleted, as all routers have seen.
fn ends() -> Bed {
    change(idle(0), ending).router("a", 1, 60, 0)
}

#[test]
fn an_ended_session_gives_its_instance_back_and_then_its_name() {
    assert_eq!(ends().ended(), ["delete agent-0: SessionEnded if unchanged"]);
    let reused = || ends().task(|task| task.reuse = ReusePolicy::Always);
    assert_eq!(reused().ended(), ["free agent-0 of lease-0.0"]);
    let free = pod(reused(), |pod| pod.record.hold = Hold::Free);
    assert_eq!(free.ended(), ["finish lease-0: SessionDeleted"]);
    let going = pod(ends(), |pod| pod.record.life = Life::Terminating).task(|task| task.min = 0);
    assert_eq!(going.ended(), ["finish lease-0: SessionDeleted"]);
    let mut gone = ends().task(|task| task.min = 0);
    gone.view.instances.clear();
    assert_eq!(gone.ended(), ["finish lease-0: SessionDeleted"]);
    // Others hold the instance by now.
    let others = idle(0).session_with(1, |lease| {
        ending(lease);
        lease.holder = Some(InstanceId::parse("agent-0/uid-agent-0").unwrap());
    });
    assert_eq!(others.ended(), ["finish lease-1: SessionDeleted"]);
}

#[test]
fn nothing_is_given_back_before_all_routers_have_seen_the_end() {
    let unseen = |silent_for| change(idle(0), ending).router("a", silent_for, 59, 99).router("b", 1, 60, 99);
    for silent_for in [1, 15, 599] {
        assert_eq!(unseen(silent_for).ended(), [""; 0], "{silent_for}");
        assert!(unseen(silent_for).plan().waits_for_routers);
    }
    assert_eq!(unseen(1).again(), Some(599));
    assert_eq!(unseen(600).ended(), ["delete agent-0: SessionEnded if unchanged"]);
    // What a router has seen it has seen, silent or not.
    let seen = change(idle(0), ending).router("a", 100, 60, 0);
    assert_eq!(seen.ended(), ["delete agent-0: SessionEnded if unchanged"]);
}

#[test]
fn an_instance_of_no_use_is_not_given_to_the_next_session() {
    let reused = || ends().task(|task| task.reuse = ReusePolicy::Always);
    let deleted = ["delete agent-0: SessionEnded if unchanged"];
    let lowered = reused().task(|task| (task.min, task.max) = (0, 0));
    assert_eq!(lowered.ended(), deleted);
    assert_eq!(pod(reused(), |pod| pod.record.life = Life::Unready).ended(), deleted);
    assert_eq!(reused().task(|task| task.ttl = Some(secs(1000))).ended(), deleted);
    let old = pod(reused().task(|task| task.min = 0), |pod| {
        pod.record.spec_id = crate::identity::SpecId("agent-1".into());
    });
    assert_eq!(old.ended(), deleted);
    assert_eq!(pod(reused(), |pod| pod.record.hold = Hold::Spoilt).ended()[..1], deleted);
}

#[test]
fn an_interrupted_session_keeps_its_name_until_its_instance_is_gone() {
    let cut =
        || change(ends(), |lease| lease.interrupted = true).task(|task| task.reuse = ReusePolicy::Always);
    assert_eq!(cut().ended(), ["delete agent-0: SessionEnded if unchanged"]);
    let going = |doomed: u64| {
        let bed = cut().task(|task| task.min = 0);
        let at = bed.wall(doomed);
        pod(bed, |pod| {
            pod.record.life = Life::Terminating;
            pod.doomed = Some(at);
        })
    };
    assert_eq!((going(1).ended(), going(1).again()), (vec![], Some(299)));
    assert_eq!(going(300).ended(), ["finish lease-0: InstanceStuck (lost)"]);
    let dead = pod(cut(), |pod| pod.record.life = Life::Dead);
    assert_eq!(dead.ended()[0], "finish lease-0: SessionDeleted (gone)");
    let mut gone = cut().task(|task| task.min = 0);
    gone.view.instances.clear();
    assert_eq!(gone.ended(), ["finish lease-0: SessionDeleted (gone)"]);
}

#[test]
fn the_reason_of_an_end_is_read_off_what_is_left() {
    let finished =
        |bed: Bed| pod(bed.task(|task| task.min = 0), |pod| pod.record.life = Life::Terminating).ended();
    assert_eq!(finished(change(ends(), marked)), ["finish lease-0: SessionIdle"]);
    assert_eq!(finished(ends().task(|task| task.ttl = Some(secs(1)))), ["finish lease-0: SessionExpired"]);
    assert_eq!(finished(ends().task(|task| task.deleted = true)), ["finish lease-0: TaskDeleted"]);
    // Of a Lease that cannot be read nobody says whether requests still run: its instance is not given to others, and
    // its name not before that is gone.
    let spoilt =
        || change(ends(), |lease| lease.session = None).task(|task| task.reuse = ReusePolicy::Always);
    assert_eq!(spoilt().ended(), ["delete agent-0: SessionEnded if unchanged"]);
    assert_eq!(finished(spoilt()), [""; 0]);
    let dead = pod(spoilt(), |pod| pod.record.life = Life::Dead);
    assert_eq!(dead.ended()[0], "finish lease-0: SessionSpoilt (gone)");
}

#[test]
fn with_the_task_every_session_ends_at_once() {
    assert_eq!(idle(0).task(|task| task.deleted = true).planned(), ["end lease-0: TaskDeleted"]);
    assert_eq!(idle(0).without_task().planned(), ["end lease-0: TaskDeleted unless there is a Task"]);
    let ended = ends().without_task().plan();
    assert_eq!(
        ended.operations.iter().map(super::bed::brief).collect::<Vec<_>>(),
        ["delete agent-0: SessionEnded if unchanged"]
    );
}

#[test]
fn an_abandoned_binding_is_undone_after_twice_the_grace() {
    let fresh = |bed: Bed, age: u64| {
        let since = bed.ago(age);
        change(bed, |lease| lease.since = since)
    };
    let waiting = |age| fresh(change(idle(0), |lease| lease.holder = None), age).task(|task| task.min = 0);
    // The instance is left as held by nobody, which is another matter.
    let lease_only = |bed: Bed| {
        bed.planned().into_iter().filter(|planned| planned.contains("lease-0")).collect::<Vec<_>>()
    };
    assert_eq!(lease_only(waiting(20)), ["end lease-0: BindingAbandoned"]);
    assert_eq!(lease_only(waiting(19)), [""; 0]);
    let untaken = |age| fresh(pod(idle(0), |pod| pod.record.hold = Hold::Free), age);
    assert_eq!(untaken(20).planned(), ["end lease-0: BindingAbandoned unless bound"]);
    assert_eq!((untaken(19).planned(), untaken(19).again()), (vec![], Some(1)));
}

#[test]
fn a_session_without_its_instance_is_kept_for_a_while() {
    let lost = |seconds, idle_timeout| {
        let mut bed = idle(seconds).task(|task| (task.min, task.idle) = (0, idle_timeout));
        bed.view.instances.clear();
        bed
    };
    assert_eq!(lost(299, None).planned(), [""; 0]);
    assert_eq!(lost(300, None).planned(), ["mark lease-0: SessionLost"]);
    assert_eq!(lost(100, Some(secs(100))).planned(), ["mark lease-0: SessionLost"]);
    let dead = pod(idle(300).task(|task| task.idle = None), |pod| pod.record.life = Life::Dead);
    assert_eq!(dead.ended(), ["mark lease-0: SessionLost", "delete agent-0: InstanceDead"]);
}

#[test]
fn a_session_whose_instance_cannot_be_deleted_ends_in_the_end() {
    let going = |doomed| {
        let bed = idle(1000).task(|task| task.min = 0);
        let at = bed.wall(doomed);
        pod(bed, |pod| {
            pod.record.life = Life::Terminating;
            pod.doomed = Some(at);
        })
    };
    assert_eq!((going(299).planned(), going(299).again()), (vec![], Some(1)));
    assert_eq!(going(300).planned(), ["end lease-0: InstanceStuck"]);
}

#[test]
fn a_spoilt_lease_is_removed_after_the_grace() {
    let spoilt = |age| {
        let bed = idle(0);
        let since = bed.ago(age);
        change(bed, |lease| (lease.session, lease.since) = (None, since))
    };
    assert_eq!((spoilt(9).planned(), spoilt(9).again()), (vec![], Some(1)));
    assert_eq!(spoilt(10).planned(), ["end lease-0: SessionSpoilt"]);
}

/// A Sandbox in slot 0 whose session was idle for so long, of a Task that pauses.
fn pausing(seconds: u64) -> Bed {
    let mut bed = idle(seconds).task(|task| (task.pauses, task.kind) = (true, Kind::Sandbox));
    let mut instance = bed.view.instances.remove("agent-0").unwrap();
    instance.record.id.kind = Kind::Sandbox;
    bed.view.instances.insert(place(Kind::Sandbox, "agent-0"), instance);
    let lease = bed.view.sessions.values_mut().next().unwrap();
    lease.holder.as_mut().unwrap().kind = Kind::Sandbox;
    lease.session.as_mut().unwrap().holder.clone_from(&lease.holder);
    bed
}

fn resting(number: u64, change: impl FnOnce(&mut SeenInstance)) -> Bed {
    let mut bed = pausing(IDLE);
    let lease = bed.view.sessions.values_mut().next().unwrap();
    lease.session.as_mut().unwrap().rests = Some(number);
    change(bed.view.instances.values_mut().next().unwrap());
    bed
}

#[test]
fn an_idle_session_is_paused_with_the_consent_of_all_routers() {
    assert_eq!(pausing(IDLE - 1).planned(), [""; 0]);
    assert_eq!(pausing(IDLE).planned(), ["mark lease-0: SessionPaused"]);
    let mut asked = pausing(IDLE).router("a", 1, 59, 50);
    let just_now = asked.ago(1);
    let lease = asked.view.sessions.values_mut().next().unwrap();
    marked(lease);
    lease.since = just_now;
    assert_eq!(asked.planned(), [""; 0]);
    let agreed = asked.router("a", 1, 60, 50);
    assert_eq!(agreed.planned(), ["rest lease-0"]);
    // A Pod cannot be paused.
    assert_eq!(idle(IDLE).task(|task| task.pauses = true).planned(), ["mark lease-0: SessionIdle"]);
}

#[test]
fn what_rests_is_paused_once_under_each_number() {
    assert_eq!(resting(60, |_| ()).planned(), ["pause agent-0"]);
    let paused = |it: &mut SeenInstance| (it.record.paused, it.record.life) = (true, Life::Paused);
    assert_eq!(resting(60, paused).planned(), [""; 0]);
    // Woken under an older number, before it was last served.
    assert_eq!(resting(60, |it| it.record.woken = Some(40)).planned(), ["pause agent-0"]);
    // Woken since the rest that is known here.
    let now = |it: &mut SeenInstance| (it.record.woken, it.since) = (Some(61), it.since + secs(495));
    assert_eq!(resting(60, now).planned(), [""; 0]);
    // Somebody is waking it just now, or was.
    let waking = |since: u64| {
        let mut bed = resting(60, |it| it.record.woken = Some(60));
        let since = bed.ago(since);
        bed.view.instances.values_mut().next().unwrap().since = since;
        bed
    };
    assert_eq!(waking(19).planned(), [""; 0]);
    assert_eq!(waking(20).planned(), ["rest lease-0"]);
    // What has no use any more ends as ever.
    let task = |bed: Bed, change: fn(&mut Wanted)| bed.task(change).planned();
    assert_eq!(
        task(resting(60, paused), |task| task.ttl = Some(secs(1000))),
        ["end lease-0: SessionExpired"]
    );
    assert_eq!(task(resting(60, paused), |task| task.pauses = false), ["mark lease-0: SessionIdle"]);
    assert_eq!(resting(60, |it| it.record.life = Life::Unready).planned(), [""; 0]);
}

#[test]
fn a_paused_instance_is_not_handed_on() {
    let mut bed = resting(60, |it| (it.record.paused, it.record.life) = (true, Life::Paused))
        .task(|task| task.reuse = ReusePolicy::Always);
    let lease = bed.view.sessions.values_mut().next().unwrap();
    lease.finalizer = true;
    ending(lease);
    assert_eq!(bed.ended(), ["delete agent-0: SessionEnded if unchanged"]);
}
