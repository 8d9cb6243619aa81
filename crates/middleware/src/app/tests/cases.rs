//! One thing at a time.

use std::time::Duration;

use agentcube_api::middleware::app::AppPhase;
use agentcube_api::middleware::change::ChangeStatus as S;
use agentcube_api::middleware::parts::PartPhase;
use agentcube_api::{conditions, labels};
use serde_json::json;

use super::world::{World, app, plugin};
use crate::group::observe::Fault;
use crate::parts;
use crate::refusals::Refused;

fn two() -> serde_json::Value {
    json!({ "components": [{ "name": "compute", "groups": [{ "name": "a" }] },
        { "name": "storage", "groups": [{ "name": "b", "storage": { "size": "1Gi" } }] }] })
}

fn ordered() -> serde_json::Value {
    json!({ "orders": { "provision": ["storage", "compute"], "stop": ["compute", "storage"],
        "update": ["storage", "compute"], "upgrade": ["storage", "compute"] } })
}

#[test]
fn the_first_spec_is_a_change() {
    let mut world = World::new(app(json!({})), plugin(json!({})));
    world.settle();
    assert_eq!(world.is("1-nodes-provision"), S::InProgress);
    assert_eq!(world.status().phase, Some(AppPhase::Provisioning));
    assert!(world.components.contains_key("nodes"));
    world.obey();
    world.settle();
    let status = world.status();
    assert_eq!(world.is("1-nodes-provision"), S::Done);
    assert_eq!((status.phase, status.last_completed_generation), (Some(AppPhase::Running), Some(1)));
    assert!(conditions::is_true_for(&status.conditions, conditions::READY, 1));
    assert_eq!(world.plan().operations, []);
}

#[test]
fn an_order_is_kept_and_no_order_means_at_once() {
    let mut world = World::new(app(two()), plugin(ordered()));
    world.settle();
    assert_eq!(world.running(), ["1-storage-provision".to_owned()].into());
    world.obey();
    world.settle();
    assert_eq!(world.running(), ["1-compute-provision".to_owned()].into());
    let mut world = World::new(app(two()), plugin(json!({})));
    world.settle();
    assert_eq!(world.running().len(), 2);
}

#[test]
fn one_spec_becomes_tasks_in_order_with_the_upgrade_last() {
    let mut world = World::provisioned(app(two()), plugin(ordered()));
    world.edit(|spec| {
        spec["runtime"]["version"] = "7.2".into();
        spec["config"] = json!({ "maxmemory": "1gb" });
        spec["components"][0]["groups"][0]["replicas"] = 4.into();
        spec["components"][1]["groups"][0]["storage"]["size"] = "2Gi".into();
    });
    world.settle();
    let tasks = world.status().tasks;
    let ids: Vec<&str> = tasks.iter().skip(2).map(|task| task.task_id.as_str()).collect();
    let wanted = [
        "2-compute-resources",
        "2-storage-config",
        "2-compute-config",
        "2-storage-storage",
        "2-storage-upgrade",
        "2-compute-upgrade",
    ];
    assert_eq!(ids, wanted);
    assert_eq!(world.task("2-storage-storage").description, "storage: expand volumes of b from 1Gi to 2Gi");
    assert_eq!(world.task("2-compute-upgrade").description, "compute: upgrade from 7.0 to 7.2");
    for id in wanted {
        assert_eq!(world.running(), [id.to_owned()].into());
        world.obey();
        world.settle();
    }
    assert_eq!(world.completed(), parts::wanted(&world.app.spec));
    assert_eq!(world.components["compute"].spec.runtime.version, "7.2");
}

#[test]
fn a_plugin_may_have_another_order() {
    let order = json!({ "taskOrder": ["version_upgrade", "k8s_resources"] });
    let mut world = World::provisioned(app(json!({})), plugin(order));
    world.edit(|spec| {
        spec["runtime"]["version"] = "7.2".into();
        spec["components"][0]["groups"][0]["replicas"] = 4.into();
    });
    world.settle();
    assert_eq!(world.running(), ["2-nodes-upgrade".to_owned()].into());
}

fn replicas(world: &mut World, count: i32) {
    world.edit(|spec| spec["components"][0]["groups"][0]["replicas"] = count.into());
}

/// Status and reason of two conditions.
fn said(world: &World) -> [(&'static str, &'static str, &'static str); 2] {
    let status = world.status();
    ["TasksReady", "Ready"].map(|type_| {
        let found = conditions::find(&status.conditions, type_).unwrap();
        let known = ["TaskTimedOut", "TaskFailed", "Cancelled", "AsWanted"];
        let reason = known.into_iter().find(|known| *known == found.reason).unwrap();
        (type_, if found.status == "True" { "True" } else { "False" }, reason)
    })
}

#[test]
fn a_failure_is_undone_and_tried_again_with_back_off() {
    let mut world = World::provisioned(app(json!({})), plugin(json!({})));
    replicas(&mut world, 5);
    for attempt in 1..=3 {
        world.settle();
        let id = "2-nodes-resources";
        assert_eq!((world.is(id), world.components["nodes"].spec.groups[0].replicas), (S::InProgress, 5));
        world.report("nodes", PartPhase::Failed, "Progressing", "no room");
        world.settle();
        // It goes back first.
        assert_eq!((world.is(id), world.components["nodes"].spec.groups[0].replicas), (S::InProgress, 3));
        world.obey();
        world.settle();
        if attempt < 3 {
            assert_eq!(world.is(id), S::RetryPending);
            world.pass_time(Duration::from_millis((1 << (attempt - 1)) * 1000 - 1));
            assert_eq!(world.plan().operations, [], "too early");
            world.pass_time(Duration::from_millis(1));
        } else {
            assert_eq!((world.is(id), world.task(id).error.as_deref()), (S::Failed, Some("no room")));
            assert_eq!(
                said(&world),
                [("TasksReady", "False", "TaskFailed"), ("Ready", "False", "TaskFailed")]
            );
        }
    }
    assert_eq!(world.status().phase, Some(AppPhase::Failed));
    assert_eq!(world.plan().operations, []);
    // It does not poison what comes after it.
    replicas(&mut world, 4);
    world.finish();
    assert_eq!(world.completed(), parts::wanted(&world.app.spec));
    assert_eq!(world.status().phase, Some(AppPhase::Running));
}

#[test]
fn what_cannot_change_by_itself_is_not_tried_again() {
    let mut world = World::provisioned(app(json!({})), plugin(json!({})));
    replicas(&mut world, 5);
    world.settle();
    world.report("nodes", PartPhase::Failed, "TemplateError", "line 3, column 4: no");
    world.settle();
    world.obey();
    world.settle();
    assert_eq!(world.is("2-nodes-resources"), S::Failed);
}

#[test]
fn what_takes_too_long_is_stopped_before_the_next_begins() {
    let mut world = World::provisioned(app(two()), plugin(ordered()));
    world.edit(|spec| {
        for component in [0, 1] {
            spec["components"][component]["groups"][0]["replicas"] = 2.into();
        }
    });
    world.settle();
    world.pass_time(world.limits.task_timeout);
    world.settle();
    let (first, second) = ("2-storage-resources", "2-compute-resources");
    assert_eq!((world.is(first), world.components["storage"].spec.groups[0].replicas), (S::InProgress, 1));
    assert_eq!(world.is(second), S::Pending);
    world.obey();
    world.settle();
    assert_eq!((world.is(first), world.is(second)), (S::Failed, S::Skipped));
    assert_eq!(world.task(first).error.as_deref(), Some("not done within 5m0s"));
    assert_eq!(said(&world), [("TasksReady", "False", "TaskTimedOut"), ("Ready", "False", "TaskTimedOut")]);
    // Even if it cannot be undone, it ends.
    world.edit(|spec| spec["components"][1]["groups"][0]["replicas"] = 3.into());
    world.settle();
    world.pass_time(world.limits.task_timeout);
    world.settle();
    world.pass_time(world.limits.task_timeout);
    world.settle();
    let error = world.task("3-storage-resources").error.unwrap();
    assert!(error.contains("could not be undone: it takes too long"), "{error}");
}

#[test]
fn nobody_is_late_while_nobody_looks() {
    let mut world = World::provisioned(app(json!({})), plugin(json!({})));
    replicas(&mut world, 5);
    world.settle();
    world.pass_time(Duration::from_secs(3600));
    world.since = world.now;
    world.settle();
    assert_eq!(
        (world.is("2-nodes-resources"), world.task("2-nodes-resources").in_force),
        (S::InProgress, true)
    );
    assert_eq!(world.plan().again, Some(crate::app::machine::later(world.now, world.limits.task_timeout)));
}

#[test]
fn a_change_during_a_change_waits_and_a_cancel_lets_it_begin() {
    let mut world = World::provisioned(app(json!({})), plugin(json!({})));
    replicas(&mut world, 5);
    world.settle();
    replicas(&mut world, 7);
    world.settle();
    let status = world.status();
    let pending = conditions::find(&status.conditions, conditions::middleware::PENDING_CHANGE).unwrap();
    assert_eq!(pending.status, "True");
    assert!(
        pending.message.contains("cancel-control='{\"cancelTaskIds\": [\"2-nodes-resources\"]}'"),
        "{pending:?}"
    );
    assert_eq!(world.app.metadata.annotations.as_ref().unwrap()[labels::MIDDLEWARE_PENDING_CHANGE], "true");
    assert_eq!(world.components["nodes"].spec.groups[0].replicas, 5);
    world.cancel(&["2-nodes-resources"]);
    world.settle();
    assert_eq!(world.components["nodes"].spec.groups[0].replicas, 3, "it goes back first");
    world.finish();
    assert_eq!((world.is("2-nodes-resources"), world.is("3-nodes-resources")), (S::Cancelled, S::Done));
    assert_eq!(world.components["nodes"].spec.groups[0].replicas, 7);
    let annotations = world.app.metadata.annotations.clone().unwrap();
    assert!(annotations.is_empty(), "{annotations:?}");
}

#[test]
fn tasks_have_ended_when_they_are_over_and_not_before() {
    let mut world = World::provisioned(app(two()), plugin(ordered()));
    world.edit(|spec| spec["config"] = json!({ "a": 1 }));
    world.settle();
    let (first, second) = ("2-storage-config", "2-compute-config");
    let times = |world: &World, id: &str| {
        let task = world.task(id);
        (task.completed_at.map(|at| at.0), task.undone_since.map(|at| at.0))
    };
    world.cancel(&[second]);
    world.settle();
    assert_eq!((world.is(second), times(&world, second)), (S::Cancelled, (Some(world.now), None)));
    world.report("storage", PartPhase::Failed, "Progressing", "no room");
    world.settle();
    assert_eq!((world.is(first), times(&world, first)), (S::InProgress, (None, Some(world.now))));
    world.pass_time(Duration::from_secs(1));
    world.obey();
    world.settle();
    assert_eq!((world.is(first), times(&world, first)), (S::RetryPending, (None, None)));
    world.cancel(&[first]);
    world.settle();
    assert_eq!((world.is(first), times(&world, first)), (S::Cancelled, (Some(world.now), None)));
    world.retry(&[first], false);
    world.settle();
    assert_eq!((world.is(first), times(&world, first)), (S::InProgress, (None, None)));
}

#[test]
fn a_time_out_is_forgotten_with_the_next_attempt() {
    let mut world = World::provisioned(app(json!({})), plugin(json!({})));
    replicas(&mut world, 5);
    world.settle();
    world.pass_time(world.limits.task_timeout);
    world.settle();
    world.obey();
    world.settle();
    assert!(world.is("2-nodes-resources") == S::Failed && world.task("2-nodes-resources").timed_out);
    world.retry(&["2-nodes-resources"], false);
    world.settle();
    world.report("nodes", PartPhase::Failed, "TemplateError", "no");
    world.settle();
    world.obey();
    world.settle();
    assert_eq!(said(&world)[0], ("TasksReady", "False", "TaskFailed"));
}

#[test]
fn a_retry_brings_back_what_was_skipped() {
    let mut world = World::provisioned(app(two()), plugin(ordered()));
    world.edit(|spec| spec["config"] = json!({ "a": 1 }));
    world.settle();
    world.report("storage", PartPhase::Failed, "TemplateError", "no");
    world.settle();
    world.obey();
    world.settle();
    let (first, second) = ("2-storage-config", "2-compute-config");
    assert_eq!((world.is(first), world.is(second)), (S::Failed, S::Skipped));
    // Alone it is skipped again.
    world.retry(&[second], false);
    world.settle();
    assert_eq!((world.is(first), world.is(second)), (S::Failed, S::Skipped));
    world.retry(&[second], true);
    world.settle();
    assert_eq!((world.is(first), world.is(second)), (S::InProgress, S::Pending));
    world.finish();
    assert_eq!((world.is(first), world.is(second)), (S::Done, S::Done));
    assert_eq!(world.completed(), parts::wanted(&world.app.spec));
    // An old task is history.
    world.edit(|spec| spec["config"] = json!({ "a": 2 }));
    world.finish();
    world.retry(&[first], true);
    world.finish();
    assert!(world.notes.iter().any(|note| note.contains("belongs to an older spec")), "{:?}", world.notes);
}

/// Told to be more than it can be, it fails; told to be what it was, it is.
fn fails_beyond(world: &mut World, most: i32) {
    let Some(component) = world.components.get("nodes") else { return };
    match component.spec.groups[0].replicas > most {
        true => world.report("nodes", PartPhase::Failed, "TemplateError", "no"),
        false => world.obey(),
    }
}

#[test]
fn a_control_is_obeyed_once_whenever_the_controller_dies() {
    for writes in 1..4 {
        let mut world = World::provisioned(app(json!({})), plugin(json!({})));
        replicas(&mut world, 5);
        for retries in 1..=3 {
            for _ in 0..20 {
                world.pass(writes);
                fails_beyond(&mut world, 3);
            }
            world.settle();
            assert_eq!(world.is("2-nodes-resources"), S::Failed, "{writes}");
            assert_eq!(world.starts["2-nodes-resources"], retries, "{writes}");
            world.retry(&["2-nodes-resources"], false);
        }
    }
}

#[test]
fn without_rollback_it_stays_as_it_stands() {
    let off = json!({ "rollback": { "enabled": false } });
    let mut world = World::provisioned(app(json!({})), plugin(off));
    replicas(&mut world, 5);
    world.settle();
    world.cancel(&["2-nodes-resources"]);
    world.settle();
    assert_eq!(world.is("2-nodes-resources"), S::InProgress, "it cannot be cancelled any more");
    world.report("nodes", PartPhase::Failed, "Progressing", "no room");
    world.settle();
    assert_eq!(world.is("2-nodes-resources"), S::Cancelled);
    assert_eq!(world.components["nodes"].spec.groups[0].replicas, 5);
    // The way back is a change like any other.
    replicas(&mut world, 3);
    world.settle();
    assert_eq!(world.is("3-nodes-resources"), S::InProgress);
    assert_eq!(world.components["nodes"].spec.groups[0].replicas, 3);
    world.finish();
    assert_eq!(world.completed(), parts::wanted(&world.app.spec));
}

#[test]
fn a_first_installation_is_never_taken_away() {
    let mut world = World::new(app(json!({})), plugin(json!({})));
    world.settle();
    world.cancel(&["1-nodes-provision"]);
    world.settle();
    assert_eq!(world.is("1-nodes-provision"), S::Cancelled);
    assert!(world.components["nodes"].metadata.deletion_timestamp.is_none());
    replicas(&mut world, 1);
    world.finish();
    assert_eq!(world.completed(), parts::wanted(&world.app.spec));
    // A status that was lost is harmless on what runs.
    world.app.status = None;
    world.finish();
    assert_eq!(world.completed(), parts::wanted(&world.app.spec));
}

#[test]
fn a_component_that_the_server_refuses_fails_its_task_at_once() {
    let mut world = World::new(app(json!({})), plugin(json!({})));
    world.settle();
    let told = world.components.remove("nodes").unwrap();
    let fault = Fault { reason: conditions::middleware::REASON_RESOURCES, message: "exceeded quota".into() };
    let what = crate::refusals::form(&told.spec);
    world.refused = [("nodes".to_owned(), Refused { what, fault })].into();
    world.settle();
    let task = world.status().tasks[0].clone();
    assert_eq!((task.status, task.error.as_deref()), (S::Failed, Some("exceeded quota")));
    assert!(world.components.is_empty() && world.plan().operations.is_empty());
    // There is room again.
    world.refused.clear();
    world.finish();
    assert!(world.components.contains_key("nodes"));
}

#[test]
fn an_app_whose_outputs_are_refused_waits_and_says_so() {
    let fault = Fault { reason: conditions::middleware::REASON_FORBIDDEN, message: "no Secrets here".into() };
    let said = |world: &World| {
        let status = world.status();
        let found = ["TasksReady", "Ready"].map(|type_| {
            let found = conditions::find(&status.conditions, type_).unwrap();
            (found.status == "True", found.reason.clone(), found.message.clone())
        });
        (found, status.phase)
    };
    let refused = |holds: bool| (holds, "Forbidden".to_owned(), "no Secrets here".to_owned());
    let mut world = World::new(app(json!({})), plugin(json!({})));
    world.outputs = Some(fault.clone());
    world.finish();
    assert!(world.components.is_empty() && world.status().tasks.is_empty());
    assert_eq!(said(&world), ([refused(false), refused(false)], Some(AppPhase::Pending)));
    world.outputs = None;
    world.finish();
    assert_eq!(world.status().phase, Some(AppPhase::Running));
    // What runs goes on; what is new waits.
    world.outputs = Some(fault);
    replicas(&mut world, 5);
    world.finish();
    assert_eq!(said(&world), ([refused(false), refused(true)], Some(AppPhase::Failed)));
    assert_eq!(world.components["nodes"].spec.groups[0].replicas, 3);
    world.outputs = None;
    world.finish();
    assert_eq!(world.components["nodes"].spec.groups[0].replicas, 5);
}

#[test]
fn specs_that_cannot_work_are_refused() {
    let volume = json!({ "components": [{ "name": "nodes", "groups": [{ "name": "main",
        "storage": { "size": "2Gi", "storageClass": "fast" } }] }] });
    type Edit = fn(&mut serde_json::Value);
    let cases: [(&str, &str, Edit); 6] = [
        ("RuntimeUnsupported", "not 9", |spec| spec["runtime"]["version"] = "9".into()),
        ("UpgradeRefused", "leads to 7.2 from: 7.1", |spec| spec["runtime"]["version"] = "7.2".into()),
        ("MigrationNeeded", "StorageClass", |spec| {
            spec["components"][0]["groups"][0]["storage"]["storageClass"] = "slow".into();
        }),
        ("ConfigurationInvalid", "cannot shrink", |spec| {
            spec["components"][0]["groups"][0]["storage"]["size"] = "1Gi".into();
        }),
        ("ConfigurationInvalid", "longer than 52", |spec| {
            spec["components"][0]["groups"][0]["name"] = "x".repeat(50).into();
        }),
        ("ConfigurationInvalid", "no alert Missing", |spec| {
            spec["monitoring"] = json!({ "settings": { "alerts": { "disabledRules": ["Missing"] } } });
        }),
    ];
    let narrow = json!({ "compatibility": { "migrateFrom": { "7.2": ["7.1"] } } });
    for (reason, message, edit) in cases {
        let mut world = World::provisioned(app(volume.clone()), plugin(narrow.clone()));
        let told = world.components["nodes"].spec.clone();
        world.edit(edit);
        world.finish();
        let status = world.status();
        let ready = conditions::find(&status.conditions, conditions::middleware::TASKS_READY).unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", reason));
        assert!(ready.message.contains(message), "{}", ready.message);
        assert_eq!(world.components["nodes"].spec, told);
        assert_eq!(status.phase, Some(AppPhase::Failed));
    }
    let mut world = World::new(app(json!({})), plugin(json!({})));
    let plugin = world.plugin.take();
    world.finish();
    assert_eq!(world.status().phase, Some(AppPhase::Pending));
    world.plugin = plugin;
    world.finish();
    assert_eq!(world.status().phase, Some(AppPhase::Running));
}

#[test]
fn backups_that_cannot_be_taken_are_refused() {
    let pvc = json!({ "provider": "pvc", "bucket": "b" });
    let job = json!([{ "name": "backup", "type": "Job", "template": "x" }]);
    let able = json!({ "capabilities": { "scaling": true, "backup": true }, "templates": job });
    let unable = json!({ "capabilities": { "scaling": true }, "templates": job });
    let bare = json!({ "capabilities": { "backup": true },
        "templates": [{ "name": "backup", "type": "service", "template": "x" }] });
    let with = |key: &str, value: serde_json::Value| {
        let mut backup = json!({ "enabled": true, "storage": pvc });
        backup[key] = value;
        backup
    };
    let s3 = json!({ "provider": "s3", "bucket": "b" });
    let key = json!({ "algorithm": "aes-256-gcm", "keySecretRef": { "name": "k" } });
    let cases = [
        (
            &able,
            with("schedule", json!({ "enabled": true, "cron": "0 2 * * *" })),
            Some("backup.schedule is not"),
        ),
        (
            &able,
            with("storage", s3.clone()),
            Some("backup.storage.provider s3 is not supported yet: use pvc"),
        ),
        (
            &able,
            with("settings", json!({ "archive": { "format": "zip" } })),
            Some("format zip is not supported yet: use tar.gz"),
        ),
        (&able, with("settings", json!({ "encryption": key })), Some("backup.settings.encryption is not")),
        (&able, with("retention", json!({ "keepCount": 3 })), Some("backup.retention is not")),
        (&unable, with("storage", pvc.clone()), Some("does not have the capability backup: disable it")),
        (&bare, with("storage", pvc.clone()), Some("has no template backup of type job: disable it")),
        (&able, with("settings", json!({ "archive": { "format": "tar.gz" } })), None),
        (&unable, json!({ "enabled": false, "storage": s3 }), None),
    ];
    for (plugin_spec, backup, wanted) in cases {
        let mut world = World::new(app(json!({ "backup": backup })), plugin(plugin_spec.clone()));
        world.finish();
        let status = world.status();
        let ready = conditions::find(&status.conditions, conditions::middleware::TASKS_READY).unwrap();
        match wanted {
            Some(message) => {
                assert_eq!(ready.reason, "ConfigurationInvalid", "{backup}");
                assert!(ready.message.contains(message), "{}", ready.message);
                assert!(world.components.is_empty());
            }
            None => assert_eq!(ready.status, "True", "{backup}: {}", ready.message),
        }
    }
}

#[test]
fn components_come_and_go() {
    let mut world = World::provisioned(app(json!({})), plugin(json!({})));
    world.edit(|spec| {
        let components = spec["components"].as_array_mut().unwrap();
        components.push(json!({ "name": "extra", "groups": [{ "name": "a" }] }));
    });
    world.finish();
    assert!(world.components.contains_key("extra"));
    world.edit(|spec| drop(spec["components"].as_array_mut().unwrap().pop()));
    world.finish();
    assert_eq!(world.is("3-extra-remove"), S::Done);
    assert!(!world.components.contains_key("extra"));
}

#[test]
fn the_end_keeps_the_order() {
    let mut world = World::provisioned(app(two()), plugin(ordered()));
    world.app.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now));
    world.settle();
    assert!(world.components["compute"].metadata.deletion_timestamp.is_some());
    assert!(world.components["storage"].metadata.deletion_timestamp.is_none());
    world.obey();
    world.settle();
    assert!(world.components["storage"].metadata.deletion_timestamp.is_some());
    world.obey();
    world.settle();
    assert!(world.gone);
}
