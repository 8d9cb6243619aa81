//! Jobs as a whole.

use super::bed::{Bed, IDLE};
use crate::lifecycle::view::SeenInstance;
use crate::record::Life;

/// A Job of the current revision with so many instances, each idle and unchanged for long.
fn job(parallelism: i32, pods: u32) -> Bed {
    (0..pods).fold(Bed::new(1, 5).job("agent-2", parallelism, 1000), |bed, number| {
        let mut bed = bed;
        let pod = bed.instance(&format!("agent-2-{number}"), None);
        bed.view.instances.insert(pod.record.id.name.clone(), pod);
        bed
    })
}

fn each(mut bed: Bed, change: impl Fn(&mut SeenInstance)) -> Bed {
    bed.view.instances.values_mut().for_each(change);
    bed
}

fn mark(pod: &mut SeenInstance) {
    pod.mark = Some("InstanceExcess".into());
}

#[test]
fn the_minimum_is_kept() {
    assert_eq!(job(0, 0).planned(), ["scale agent-2 from 0 to 1: MinimumKept"]);
    assert_eq!(job(1, 1).planned(), [""; 0]);
    assert_eq!(job(1, 0).planned(), [""; 0]);
}

#[test]
fn a_job_shrinks_only_when_all_its_instances_are_idle_and_all_routers_agree() {
    let marks = ["mark agent-2-0: InstanceExcess", "mark agent-2-1: InstanceExcess"];
    assert_eq!(job(2, 2).planned(), marks);
    let mut active = job(2, 2);
    let at = active.wall(1);
    active.view.instances.get_mut("agent-2-1").unwrap().record.last_active = Some(at);
    assert_eq!(active.planned(), [""; 0]);
    let asked = |seen| each(job(2, 2), mark).router("a", 1, 0, seen);
    assert_eq!(asked(50).planned(), ["scale agent-2 from 2 to 1: InstanceExcess"]);
    assert_eq!(each(asked(49), |pod| pod.since += std::time::Duration::from_secs(500)).planned(), [""; 0]);
    assert_eq!(asked(49).planned(), ["unmark agent-2-0", "unmark agent-2-1"]);
    assert_eq!(job(2, 2).router("a", 15, 0, 99).planned(), [""; 0]);
}

#[test]
fn one_that_had_its_request_and_did_not_end_is_let_go() {
    let used = |ago: u64| {
        let bed = job(1, 1);
        let at = bed.wall(ago);
        each(bed, |pod| pod.record.last_active = Some(at))
    };
    assert_eq!((used(19).planned(), used(19).again()), (vec![], Some(1)));
    assert_eq!(used(20).planned(), ["mark agent-2-0: InstanceSpent"]);
    let asked = |seen| each(used(20), mark).router("a", 1, 0, seen);
    assert_eq!(asked(50).planned(), ["delete agent-2-0: InstanceSpent if unchanged"]);
    let fresh = |bed| each(bed, |pod| pod.since += std::time::Duration::from_secs(500));
    assert_eq!(fresh(asked(49)).planned(), [""; 0], "a router has not seen it yet");
}

#[test]
fn an_objection_to_one_is_an_objection_to_all() {
    let mut bed = each(job(2, 2), mark);
    bed.view.instances.get_mut("agent-2-0").unwrap().mark = None;
    bed.view.rests.insert("uid-agent-2-0".into(), bed.now.instant + std::time::Duration::from_secs(7));
    assert_eq!((bed.planned(), bed.again()), (vec!["unmark agent-2-1".into()], Some(7)));
}

#[test]
fn those_that_are_left_are_used_again_when_the_others_are_gone() {
    assert_eq!(each(job(1, 2), mark).planned(), [""; 0]);
    assert_eq!(each(job(1, 1), mark).planned(), ["unmark agent-2-0"]);
    let mut going = each(job(1, 2), mark);
    going.view.instances.get_mut("agent-2-1").unwrap().record.life = Life::Terminating;
    assert_eq!(going.planned(), ["unmark agent-2-0"]);
}

#[test]
fn a_job_that_was_just_scaled_up_is_left_alone() {
    let grown = Bed::new(0, 5).job("agent-2", 1, IDLE - 1);
    assert_eq!((grown.planned(), grown.again()), (vec![], Some(1)));
    let unused = Bed::new(0, 5).job("agent-2", 1, IDLE);
    assert_eq!(unused.planned(), ["scale agent-2 from 1 to 0: InstanceExcess"]);
}

#[test]
fn the_job_of_an_old_revision_shrinks_to_nothing() {
    let mut bed = Bed::new(1, 5).job("agent-1", 1, 0).job("agent-2", 1, 0);
    let mut pod = bed.instance("agent-1-0", None);
    pod.record.spec_id = crate::identity::SpecId("agent-1".into());
    bed.view.instances.insert("agent-1-0".into(), pod);
    assert_eq!(bed.planned(), ["mark agent-1-0: RevisionDrained"]);
    assert_eq!(each(bed, mark).planned(), ["scale agent-1 from 1 to 0: RevisionDrained"]);
}

#[test]
fn the_finished_pods_of_a_job_are_the_jobs() {
    let finished = each(job(1, 1), |pod| pod.record.life = Life::Dead);
    assert_eq!(finished.planned(), [""; 0]);
}
