//! Tables over the comparison.

use serde_json::json;

use super::*;

/// A child as it is wanted, with this in its spec.
fn wanted(spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Thing",
        "metadata": {
            "name": "a", "namespace": "default", "creationTimestamp": null,
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Task", "name": "t", "uid": "u1", "controller": true }],
        },
        "spec": spec,
    });
    stamp(&mut object);
    object
}

/// The same as the server has it, with no record of managers.
fn there(mut object: Value, spec: Value) -> Value {
    object["spec"] = spec;
    object["metadata"]["uid"] = "c1".into();
    object["metadata"]["resourceVersion"] = "5".into();
    object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    object["status"] = json!({ "phase": "Ready" });
    object
}

fn drifted(at: &str) -> Standing {
    Standing::Drifted { at: at.into() }
}

#[test]
fn what_is_wanted_has_to_be_a_part_of_what_is_there() {
    let table = [
        // Defaults of the server, at any depth.
        (json!({ "a": 1 }), json!({ "a": 1, "b": 2 }), None),
        (json!({ "list": [{ "name": "x" }] }), json!({ "list": [{ "name": "x", "protocol": "TCP" }] }), None),
        // What nobody asked for, and what is left out for being empty.
        (json!({ "a": null, "b": {}, "c": [], "d": "", "e": false, "f": 0 }), json!({}), None),
        (json!({ "a": { "b": null } }), json!({}), None),
        (json!({ "a": {} }), json!({ "a": null }), None),
        // Amounts, but only where there are any.
        (
            json!({ "limits": { "cpu": "1000m", "memory": 1024 } }),
            json!({ "limits": { "cpu": "1", "memory": "1Ki" } }),
            None,
        ),
        (
            json!({ "limits": { "cpu": "1000m" } }),
            json!({ "limits": { "cpu": "2" } }),
            Some("/spec/limits/cpu"),
        ),
        (json!({ "env": "1000m" }), json!({ "env": "1" }), Some("/spec/env")),
        // Changes.
        (json!({ "a": 1 }), json!({ "a": 2 }), Some("/spec/a")),
        (json!({ "a": 1 }), json!({}), Some("/spec/a")),
        (json!({ "replicas": 0 }), json!({ "replicas": 1 }), Some("/spec/replicas")),
        (json!({ "a": true }), json!({ "a": "true" }), Some("/spec/a")),
        (json!({ "a/b": { "c~": 1 } }), json!({ "a/b": { "c~": 2 } }), Some("/spec/a~1b/c~0")),
        // Lists are compared whole and in order.
        (json!({ "list": [1, 2] }), json!({ "list": [1, 2, 3] }), Some("/spec/list")),
        (json!({ "list": [1, 2] }), json!({ "list": [1] }), Some("/spec/list")),
        (json!({ "list": [1, 2] }), json!({ "list": [2, 1] }), Some("/spec/list/0")),
        (
            json!({ "list": [{ "a": 1 }, { "a": 2 }] }),
            json!({ "list": [{ "a": 1 }, { "a": 3 }] }),
            Some("/spec/list/1/a"),
        ),
        (json!({ "list": [] }), json!({ "list": [1] }), Some("/spec/list")),
    ];
    for (spec, found, at) in table {
        let desired = wanted(spec.clone());
        let current = there(desired.clone(), found.clone());
        let expected = at.map_or(Standing::Same, drifted);
        assert_eq!(compare(&desired, Some(&current), "m"), expected, "{spec} in {found}");
    }
    assert_eq!(compare(&wanted(json!({})), None, "m"), Standing::Missing);
}

#[test]
fn others_may_add_to_metadata_but_not_take_away() {
    let mut desired = wanted(json!({}));
    desired["metadata"]["labels"] = json!({ "app": "a" });
    desired["metadata"]["finalizers"] = json!(["ours"]);
    stamp(&mut desired);
    let same = there(desired.clone(), json!({}));
    let with = |pointer: &str, value: Value| {
        let mut current = same.clone();
        *current.pointer_mut(pointer).unwrap() = value;
        compare(&desired, Some(&current), "m")
    };
    assert_eq!(with("/metadata/labels", json!({ "app": "a", "team": "x" })), Standing::Same);
    assert_eq!(with("/metadata/finalizers", json!(["theirs", "ours"])), Standing::Same);
    assert_eq!(with("/metadata/finalizers", json!(["theirs"])), drifted("/metadata/finalizers/0"));
    assert_eq!(with("/metadata/labels", json!({ "app": "b" })), drifted("/metadata/labels/app"));
    let mut owners = desired["metadata"]["ownerReferences"].clone();
    owners.as_array_mut().unwrap().insert(0, json!({ "kind": "Other", "name": "o", "uid": "u9" }));
    assert_eq!(with("/metadata/ownerReferences", owners), Standing::Same);
    assert_eq!(with("/metadata/ownerReferences", json!([])), drifted("/metadata/ownerReferences/0"));
}

#[test]
fn an_object_of_somebody_else_is_foreign() {
    let desired = wanted(json!({}));
    let mut current = there(desired.clone(), json!({}));
    current["metadata"]["ownerReferences"][0]["uid"] = "u2".into();
    assert_eq!(compare(&desired, Some(&current), "m"), Standing::Foreign { owner: "Task t".into() });
    // Made by hand: nothing says that it is ours.
    let by_hand = json!({ "metadata": { "name": "a" }, "spec": {} });
    let foreign = compare(&desired, Some(&by_hand), "m");
    assert!(matches!(foreign, Standing::Foreign { .. }), "{foreign:?}");
}

#[test]
fn an_object_that_is_being_deleted_is_left_to_go() {
    let desired = wanted(json!({ "a": 1 }));
    let mut current = there(desired.clone(), json!({ "a": 2 }));
    current["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    assert_eq!(compare(&desired, Some(&current), "m"), Standing::Ending);
}

#[test]
fn what_is_no_longer_wanted_is_seen_by_the_stamp() {
    let before = wanted(json!({ "rules": [{ "name": "x", "limit": 3 }] }));
    let current = there(before.clone(), json!({ "rules": [{ "name": "x", "limit": 3 }] }));
    let now = wanted(json!({ "rules": [{ "name": "x" }] }));
    assert_eq!(compare(&before, Some(&current), "m"), Standing::Same);
    assert_eq!(compare(&now, Some(&current), "m"), Standing::Outdated);
    // A stamp is of what is wanted, not of itself.
    let mut again = now.clone();
    stamp(&mut again);
    assert_eq!(again, now);
}

#[test]
fn what_somebody_else_manages_now_has_drifted() {
    let spec =
        json!({ "rules": [{ "name": "x" }], "ports": [{ "port": 80 }], "tags": ["a"], "deep": { "a": 1 } });
    let desired = wanted(spec.clone());
    let fields = json!({
        "f:metadata": {
            "f:annotations": { "f:agentcube.io/applied": {} },
            "f:ownerReferences": { "k:{\"uid\":\"u1\"}": {} },
        },
        "f:spec": {
            "f:rules": {},
            "f:ports": { "k:{\"port\":80,\"protocol\":\"TCP\"}": { ".": {}, "f:port": {} } },
            "f:tags": { ".": {}, "v:\"a\"": {} },
            "f:deep": { "f:a": {} },
        },
    });
    let with = |change: &dyn Fn(&mut Value)| {
        let mut current = there(desired.clone(), spec.clone());
        let mut fields = fields.clone();
        change(&mut fields);
        let entry = json!({ "manager": "m", "operation": "Apply", "fieldsV1": fields });
        current["metadata"]["managedFields"] = json!([{ "manager": "kubectl-edit" }, entry]);
        compare(&desired, Some(&current), "m")
    };
    let without = |pointer: &'static str, key: &'static str| {
        with(&move |fields| {
            fields.pointer_mut(pointer).unwrap().as_object_mut().unwrap().remove(key).unwrap();
        })
    };
    assert_eq!(with(&|_| ()), Standing::Same);
    // An entry added to a list that counts as one value: the whole list changes its manager.
    assert_eq!(without("/f:spec", "f:rules"), drifted("/spec/rules"));
    // An entry of a list that is merged: another manager has it alone.
    let ports = with(&|fields| fields["f:spec"]["f:ports"] = json!({ "k:{\"port\":81}": {} }));
    assert_eq!(ports, drifted("/spec/ports/0"));
    let tags = with(&|fields| fields["f:spec"]["f:tags"] = json!({ "v:\"b\"": {} }));
    assert_eq!(tags, drifted("/spec/tags/0"));
    assert_eq!(without("/f:spec", "f:deep"), drifted("/spec/deep"));
    let mut never = there(desired.clone(), spec.clone());
    never["metadata"]["managedFields"] =
        json!([{ "manager": "kubectl", "operation": "Update", "fieldsV1": {} }]);
    assert_eq!(compare(&desired, Some(&never), "m"), drifted(""));
}
