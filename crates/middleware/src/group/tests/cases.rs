//! One thing at a time.

use agentcube_api::conditions;
use agentcube_api::middleware::group::UpgradePhase;
use agentcube_api::middleware::parts::PartPhase;
use serde_json::json;

use super::world::World;
use crate::group::observe::{Fault, Pod};
use crate::group::plan::Operation;
use crate::group::roll::may_still_go;
use crate::order::Order;

fn order(names: &str, concurrent: bool) -> Result<Order, String> {
    Ok(Order { names: names.split_whitespace().map(str::to_owned).collect(), concurrent })
}

#[test]
fn it_is_installed_and_left_alone() {
    let mut world = World::running(json!({}));
    let status = world.status();
    assert_eq!((status.ready_replicas, status.current_version.as_deref()), (3, Some("1")));
    assert_eq!(status.last_completed_revision, Some(world.rendered().name));
    assert_eq!(world.labels.values().filter(|role| *role == "master").count(), 1);
    assert_eq!(world.plan().operations, []);
}

#[test]
fn pods_are_changed_in_order_with_the_leader_last_after_a_switchover() {
    let mut world = World::running(json!({}));
    world.order = order("g-0 g-2 g-1", false);
    world.version("2");
    world.finish();
    // g-0 leads, whatever the agent says.
    assert_eq!(world.restarts, ["g-2", "g-1", "g-0"]);
    assert_eq!(world.failovers, [("g-0".to_owned(), "g-1".to_owned())]);
    assert_eq!((world.phase(), world.versions()), (PartPhase::Ready, vec!["2".into(); 3]));
    let upgrade = world.status().upgrade_status.unwrap();
    assert_eq!((upgrade.phase, upgrade.updated_replicas), (Some(UpgradePhase::Completed), 3));
}

/// Until somebody says whom to follow, nobody does.
#[test]
fn after_a_switchover_it_is_looked_again_at_once() {
    let mut world = World::running(json!({}));
    world.version("2");
    let moves = |one: &Operation| matches!(one, Operation::Failover { .. });
    let again = loop {
        let plan = world.plan();
        if plan.operations.iter().any(moves) {
            break plan.again.unwrap();
        }
        world.settle();
        world.kubelet();
    };
    assert!(again.duration_since(world.now) < jiff::SignedDuration::from_secs(1));
}

#[test]
fn a_pod_that_no_node_takes_is_said_and_waited_for() {
    let mut world = World::running(json!({}));
    world.bad.insert("2".into());
    world.version("2");
    world.settle();
    world.kubelet();
    let pod = world.pods.values_mut().find(|pod| !pod.ready).unwrap();
    pod.homeless = Some("0/1 nodes are available: 1 Insufficient memory.".into());
    let said = format!("no node takes {}: 0/1 nodes are available", pod.name);
    world.settle();
    let status = world.status();
    let ready = conditions::find(&status.conditions, conditions::READY).unwrap();
    assert_eq!(
        (status.phase, ready.reason.as_str()),
        (Some(PartPhase::Progressing), "ResourcesInsufficient")
    );
    assert!(ready.message.contains(&said), "{}", ready.message);
}

#[test]
fn as_many_at_once_as_are_allowed() {
    let mut world = World::running(json!({ "replicas": 5, "rollingUpdate": { "maxUnavailable": "40%" } }));
    world.order = order("", true);
    world.version("2");
    world.settle();
    assert_eq!(world.restarts.len(), 2);
    world.finish();
    assert_eq!(world.versions(), vec!["2"; 5]);
    // Nobody to ask: one after another.
    world.reachable = false;
    world.restarts.clear();
    world.version("3");
    world.settle();
    assert_eq!(world.restarts.len(), 1);
    let status = world.status();
    let known = conditions::find(&status.conditions, conditions::middleware::ORDER_KNOWN).unwrap();
    assert_eq!((known.status.as_str(), known.reason.as_str()), ("False", "AgentUnreachable"));
}

#[test]
fn there_is_a_pause_between_two_pods() {
    let mut world = World::running(json!({}));
    world.pause = std::time::Duration::from_secs(10);
    world.version("2");
    world.settle();
    assert_eq!(world.restarts.len(), 0);
    world.now = world.plan().again.unwrap();
    world.settle();
    assert_eq!(world.restarts.len(), 1);
    world.kubelet();
    world.settle();
    assert_eq!(world.restarts.len(), 1);
    world.finish();
    assert_eq!(world.versions(), vec!["2"; 3]);
}

#[test]
fn a_partition_stays_as_it_is() {
    let mut world = World::running(json!({ "rollingUpdate": { "partition": 2 } }));
    world.version("2");
    world.finish();
    assert_eq!(
        (world.restarts.clone(), world.versions()),
        (vec!["g-2".into()], vec!["1".into(), "1".into(), "2".into()])
    );
    assert_eq!(world.phase(), PartPhase::Ready);
}

#[test]
fn what_does_not_come_up_is_undone() {
    let mut world = World::running(json!({ "rollingUpdate": { "timeout": "1m" } }));
    world.bad.insert("2".into());
    world.version("2");
    world.finish();
    assert_eq!((world.phase(), world.versions()), (PartPhase::Failed, vec!["1".into(); 3]));
    assert_eq!(world.restarts, ["g-1", "g-1"], "no other Pod was touched");
    let message = world.ready_message();
    assert!(message.contains("no progress within 1m0s: g-1 not ready"), "{message}");
    assert!(message.contains("went back to the last complete revision"), "{message}");
    assert_eq!(world.status().upgrade_status.unwrap().phase, Some(UpgradePhase::Failed));
    // It is not tried again by itself, but it is when somebody comes back to it.
    assert_eq!(world.plan().operations, []);
    world.version("1");
    world.finish();
    assert_eq!(world.phase(), PartPhase::Ready);
    world.bad.clear();
    world.version("2");
    world.finish();
    assert_eq!((world.phase(), world.versions()), (PartPhase::Ready, vec!["2".into(); 3]));
}

#[test]
fn without_rollback_it_waits_and_mends_itself() {
    let mut world = World::running(json!({ "rollback": { "enabled": false } }));
    world.bad.insert("2".into());
    world.version("2");
    world.finish();
    assert_eq!((world.phase(), world.restarts.len()), (PartPhase::Failed, 1));
    world.bad.clear();
    world.finish();
    assert_eq!((world.phase(), world.versions()), (PartPhase::Ready, vec!["2".into(); 3]));
}

#[test]
fn a_cancelled_change_is_the_former_one_wanted_again() {
    let mut world = World::running(json!({}));
    world.version("2");
    world.settle();
    world.kubelet();
    world.settle();
    assert!(!world.restarts.is_empty());
    world.version("1");
    world.finish();
    assert_eq!((world.phase(), world.versions()), (PartPhase::Ready, vec!["1".into(); 3]));
    assert_eq!(world.status().current_version.as_deref(), Some("1"));
}

#[test]
fn checks_before_and_after_an_upgrade() {
    let checks = json!({ "preUpgradeCheck": { "type": "health" },
        "postUpgradeVerify": { "type": "command", "command": "true" } });
    let mut world = World::running(checks);
    world.check = Err("replicas lag".into());
    world.version("2");
    world.finish();
    assert_eq!((world.phase(), world.restarts.len()), (PartPhase::Failed, 0));
    assert!(world.ready_message().contains("replicas lag"));
    world.version("1");
    world.finish();
    (world.check, world.wrong) = (Ok(()), ["2".to_owned()].into());
    world.version("2");
    world.finish();
    assert_eq!((world.phase(), world.versions()), (PartPhase::Failed, vec!["1".into(); 3]));
    assert!(world.ready_message().contains("not as expected"));
}

#[test]
fn a_configuration_is_taken_without_a_restart_where_possible() {
    let mut world = World::running(json!({}));
    let asked = world.reloads_asked;
    world.edit(|spec| spec["values"] = json!({ "maxmemory": "1gb" }));
    world.finish();
    assert_eq!((world.phase(), world.restarts.len(), world.reloads_asked - asked), (PartPhase::Ready, 0, 3));
    world.needs_restart = true;
    world.edit(|spec| spec["values"] = json!({ "port": 1 }));
    world.finish();
    assert_eq!((world.phase(), world.restarts.len()), (PartPhase::Ready, 3));
    assert_eq!(world.restarts.last().unwrap(), "g-0", "the leader last");
    // A middleware that cannot reload is restarted.
    let mut world = World::new(json!({}));
    world.reloads = false;
    world.finish();
    world.edit(|spec| spec["values"] = json!({ "maxmemory": "1gb" }));
    world.finish();
    assert_eq!((world.restarts.len(), world.reloads_asked), (3, 0));
}

/// Whoever restarts a Pod for its configuration may die when the middleware is stopped and the Pod not deleted: for a while it
/// looks ready, and nobody can ask it. That was taken for a Pod that is done, and the next one went while it was down.
#[test]
fn a_pod_that_was_stopped_and_left_is_down() {
    for stopped in 1..=3 {
        let mut world = World::running(json!({}));
        world.needs_restart = true;
        world.edit(|spec| spec["values"] = json!({ "port": 1 }));
        // The world checks who may be taken down whenever somebody is.
        while world.restarts.len() + 1 < stopped {
            world.settle();
            world.kubelet();
        }
        let restart = |one: &Operation| matches!(one, Operation::Restart { .. });
        let effects = loop {
            if let Some(before) = world.plan().operations.iter().position(restart) {
                break before + 2;
            }
            world.pass(usize::MAX);
            world.kubelet();
        };
        world.pass(effects);
        assert_eq!(world.restarts.len() + 1, stopped, "it is stopped, and not deleted");
        let down = world.pods.values().filter(|pod| !world.roles().contains_key(&pod.name)).count();
        assert_eq!(down, 1);
        // Whoever comes next ends what was begun, and does nothing else.
        let gone =
            world.pods.values().find(|pod| !world.roles().contains_key(&pod.name)).unwrap().name.clone();
        world.settle();
        assert_eq!((world.restarts.len(), world.restarts.last()), (stopped, Some(&gone)));
        world.finish();
        assert_eq!((world.phase(), world.restarts.len()), (PartPhase::Ready, 3), "{:?}", world.restarts);
    }
}

/// A follower that still lacks data is not ready, and no reason to let another one go that says the same of itself, but is
/// ready for everybody else.
#[test]
fn whoever_still_serves_is_not_taken_for_down_while_another_is() {
    let active = json!({ "failoverCommand": "a", "followCommand": "b", "fenceCommand": "c" });
    let mut world = World::running(json!({ "highAvailability": { "active": active } }));
    world.order = order("g-1 g-2 g-0", false);
    world.version("2");
    world.settle();
    assert_eq!(world.restarts, ["g-1"]);
    world.kubelet();
    // The new one catches up, and meanwhile the next one has lost its leader for a moment.
    let new = world.pods.get_mut(&1).unwrap();
    (new.ready, new.shown_ready) = (false, false);
    world.syncing = ["g-1".to_owned(), "g-2".to_owned()].into();
    world.settle();
    assert_eq!(world.restarts, ["g-1"]);
    // Its probe sees it, too: nobody loses anything by its restart.
    let old = world.pods.get_mut(&2).unwrap();
    (old.ready, old.shown_ready) = (false, false);
    world.settle();
    assert_eq!(world.restarts, ["g-1", "g-2"]);
    world.syncing.clear();
    world.finish();
    assert_eq!((world.phase(), world.versions()), (PartPhase::Ready, vec!["2".into(); 3]));
    assert_eq!(world.restarts, ["g-1", "g-2", "g-0"]);
}

/// What was planned on a view of the past is not done to the Pods of the present.
#[test]
fn a_pod_may_go_if_everybody_else_is_up_as_it_was() {
    let world = World::running(json!({}));
    let pods: Vec<Pod> = world.pods.values().cloned().collect();
    let uid = |ordinal: usize| pods[ordinal].uid.clone();
    let may = |taken: &[String], before: &[Pod], now: &[Pod]| {
        may_still_go(&uid(1), taken, &before.iter().collect::<Vec<_>>(), now)
    };
    let with = |ordinal: usize, change: fn(&mut Pod)| {
        let mut pods = pods.clone();
        change(&mut pods[ordinal]);
        pods
    };
    let unready: fn(&mut Pod) = |pod| (pod.ready, pod.shown_ready) = (false, false);
    let going: fn(&mut Pod) = |pod| pod.terminating = true;
    let anew: fn(&mut Pod) = |pod| pod.uid = "another".into();
    assert!(may(&[], &pods, &pods));
    for change in [unready, going, anew] {
        let now = with(0, change);
        assert!(!may(&[], &pods, &now), "another one is down: {now:?}");
        assert!(may(&[uid(0)], &pods, &now), "we took it down ourselves");
        assert!(may(&[], &now, &now), "that was known");
    }
    assert!(may(&[], &with(0, unready), &pods), "it came back");
    let without: Vec<Pod> = pods.iter().filter(|pod| pod.uid != uid(2)).cloned().collect();
    assert!(!may(&[], &pods, &without), "another one is gone");
    assert!(!may(&[], &pods, &with(1, going)), "it goes already");
    assert!(!may(&[], &pods, &with(1, anew)), "it went already");
    assert!(may(&[], &pods, &with(1, unready)));
    assert!(may(&[], &with(1, unready), &with(1, unready)));
    assert!(!may(&[], &with(1, unready), &pods), "it was to go because it was down");
}

#[test]
fn volumes_grow_in_place() {
    let mut world = World::running(json!({}));
    world.edit(|spec| spec["storage"]["size"] = "5Gi".into());
    world.finish();
    assert_eq!((world.phase(), world.restarts.len()), (PartPhase::Ready, 0));
    assert!(world.claims.values().all(|claim| claim.requested.to_string() == "5Gi"));
    // One that is made later begins small, and grows too.
    world.edit(|spec| spec["replicas"] = 4.into());
    world.finish();
    assert_eq!(world.claims[&3].requested.to_string(), "5Gi");
}

#[test]
fn the_leader_is_not_scaled_away() {
    let mut world = World::running(json!({}));
    world.leader = Some("g-2".into());
    world.edit(|spec| spec["replicas"] = 1.into());
    world.finish();
    assert_eq!((world.phase(), world.pods.len()), (PartPhase::Ready, 1));
    assert_eq!(world.failovers, [("g-2".to_owned(), "g-0".to_owned())]);
    world.edit(|spec| spec["replicas"] = 4.into());
    world.finish();
    assert_eq!((world.pods.len(), world.leader.as_deref(), world.restarts.len()), (4, Some("g-0"), 0));
}

#[test]
fn a_broken_template_changes_nothing() {
    let mut world = World::running(json!({}));
    let (objects, before) = (world.objects.clone(), world.status());
    let message = "template pods, line 3, column 7: no such function";
    world.fault = Some(Fault { reason: "TemplateError", message: message.into() });
    world.version("2");
    world.settle();
    assert_eq!((world.phase(), &world.objects), (PartPhase::Failed, &objects));
    assert_eq!(world.ready_message(), message);
    assert_eq!(world.status().last_completed_revision, before.last_completed_revision);
}

#[test]
fn roles_that_are_not_known_stay() {
    let mut world = World::running(json!({}));
    world.reachable = false;
    world.settle();
    assert!(world.status().pods.iter().any(|pod| pod.leader && pod.role.as_deref() == Some("master")));
    world.reachable = true;
    world.leader = Some("g-1".into());
    let labelled: Vec<Operation> = world.plan().operations;
    let labels: Vec<&Operation> =
        labelled.iter().filter(|one| matches!(one, Operation::LabelRole { .. })).collect();
    let label = |pod: &str, role: &str| Operation::LabelRole { pod: pod.into(), role: role.into() };
    assert_eq!(labels, [&label("g-0", "slave"), &label("g-1", "master")], "never two at once");
}

#[test]
fn old_revisions_are_forgotten() {
    let mut world = World::running(json!({ "rollback": { "enabled": true, "onFailure": true, "limit": 2 } }));
    for version in ["2", "3", "4"] {
        world.version(version);
        world.finish();
    }
    assert_eq!(world.revisions.len(), 2);
    assert_eq!(world.phase(), PartPhase::Ready);
}

#[test]
fn an_upgrade_of_ours_restarts_nothing() {
    let mut world = World::running(json!({}));
    // Another controller finds the same world, with no memory.
    world.group.status = None;
    world.revisions.clear();
    world.finish();
    assert_eq!((world.phase(), world.restarts.len()), (PartPhase::Ready, 0));
}

#[test]
fn the_end_waits_for_pods() {
    let mut world = World::running(json!({}));
    world.group.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now));
    world.pass(usize::MAX);
    assert!(!world.gone && !world.objects.contains_key("StatefulSet"));
    world.kubelet();
    world.settle();
    assert!(world.gone);
}
