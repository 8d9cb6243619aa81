//! The answers are those of a real API server.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    merge::typed::testing::{any_json, built_in, custom},
    status::Status,
};

fn config_map(patch: Value) -> Result<Value, PatchError> {
    let doc = json!({
        "metadata": {"name": "c", "labels": {"a": "1"}, "finalizers": ["a.b/c", "a.b/d"]},
        "data": {"x": "y", "z": "w"},
    });
    apply(built_in("io.k8s.api.core.v1.ConfigMap"), &doc, &patch)
}

#[test]
fn merges_maps() {
    let cases = [
        (json!({"$patch": "replace", "metadata": {"name": "c"}}), json!(null)),
        (json!({"data": {"$patch": "replace", "q": "1"}}), json!({"q": "1"})),
        (json!({"data": {"$patch": "delete"}}), json!({})),
        (json!({"data": {"$retainKeys": ["x"], "x": "1"}}), json!({"x": "1"})),
        (json!({"data": {"$retainKeys": ["x"]}}), json!({"x": "y"})),
        (json!({"data": {"x": null, "n": "1", "m": null}}), json!({"n": "1", "z": "w"})),
        (json!({"data": null}), json!(null)),
        (json!(null), json!({"x": "y", "z": "w"})),
    ];
    for (patch, data) in cases {
        let merged = config_map(patch.clone()).unwrap_or_else(|e| json!(e.to_string()));
        assert_eq!(merged["data"], data, "{patch}");
    }
}

#[test]
fn merges_lists_of_scalars() {
    let cases = [
        (json!({"$deleteFromPrimitiveList/finalizers": ["a.b/c"]}), json!(["a.b/d"])),
        (json!({"$deleteFromPrimitiveList/finalizers": "a.b/c"}), json!(["a.b/c", "a.b/d"])),
        (
            json!({"$deleteFromPrimitiveList/finalizers": ["a.b/c"], "finalizers": ["a.b/e"]}),
            json!(["a.b/e", "a.b/d"]),
        ),
        (json!({"finalizers": ["a.b/e", "a.b/c"]}), json!(["a.b/e", "a.b/c", "a.b/d"])),
        (json!({"finalizers": []}), json!(["a.b/c", "a.b/d"])),
        (json!({"finalizers": null}), json!(null)),
        (json!({"$setElementOrder/finalizers": ["a.b/d", "a.b/c"]}), json!(["a.b/d", "a.b/c"])),
        (
            json!({"$setElementOrder/finalizers": ["a.b/e", "a.b/c"], "finalizers": ["a.b/e"]}),
            json!(["a.b/e", "a.b/c", "a.b/d"]),
        ),
    ];
    for (patch, finalizers) in cases {
        let merged = config_map(json!({"metadata": patch})).unwrap_or_else(|e| json!(e.to_string()));
        assert_eq!(merged["metadata"]["finalizers"], finalizers, "{patch}");
    }
}

#[test]
fn merges_lists_of_maps_by_key() {
    let merge = |containers: Value, patch: Value| {
        let doc = json!({"spec": {"containers": containers}});
        let result = apply(built_in("io.k8s.api.core.v1.Pod"), &doc, &json!({"spec": patch}));
        result.map(|pod| pod["spec"]["containers"].clone()).unwrap_or_else(|e| json!(e.to_string()))
    };
    let two = || json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]);
    let cases = [
        (
            json!({"containers": [{"name": "b", "image": "2"}]}),
            json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]),
        ),
        (
            json!({"containers": [{"name": "c", "image": "2"}]}),
            json!([{"name": "c", "image": "2"}, {"name": "a", "image": "1"}, {"name": "b", "image": "1"}]),
        ),
        (json!({"containers": [{"name": "a", "$patch": "delete"}]}), json!([{"name": "b", "image": "1"}])),
        (json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}), json!([{"name": "c"}])),
        (
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}),
            json!([{"name": "b", "image": "1"}, {"name": "a", "image": "1"}]),
        ),
        (
            json!({"containers": [{"image": "2"}]}),
            json!("map: map[image:2] does not contain declared merge key: name"),
        ),
        (
            json!({"containers": [{"name": "a", "$patch": "foo"}]}),
            json!("unknown patch type: foo in map: map[$patch:foo name:a]"),
        ),
    ];
    for (patch, expected) in cases {
        assert_eq!(merge(two(), patch.clone()), expected, "{patch}");
    }
}

#[test]
fn says_what_is_wrong() {
    let cases = [
        (400, json!([1]), "json: cannot unmarshal array into Go value of type map[string]interface {}"),
        (400, json!({"data": {"$retainKeys": ["x"], "y": "1"}}), "invalid patch format of retainKeys"),
        (400, json!({"data": {"$retainKeys": "x"}}), "invalid patch format of retainKeys"),
        (
            400,
            json!({"metadata": {"$deleteFromPrimitiveListfinalizers": []}}),
            "invalid patch format of primitive list",
        ),
        (
            400,
            json!({"metadata": {"$setElementOrderfinalizers": ["x"]}}),
            "invalid patch format of setElementOrder list",
        ),
        (500, json!({"$patch": "foo"}), "unknown patch type: foo in map: map[$patch:foo]"),
        (500, json!({"metadata": {"$patch": 3}}), "unknown patch type: %!s(int64=3) in map: map[$patch:3]"),
        (
            500,
            json!({"data": {"$patch": "merge", "q": "1"}}),
            "unknown patch type: merge in map: map[$patch:merge q:1]",
        ),
        (
            500,
            json!({"metadata": {"$setElementOrder/finalizers": ["x"], "finalizers": ["a.b/e"]}}),
            "The order in patch list:\n[a.b/e]\n doesn't match $setElementOrder list:\n[x]\n",
        ),
        (
            500,
            json!({"metadata": {"$setElementOrder/finalizers": {}}}),
            "expected a []interface {}, but received a map[string]interface {}",
        ),
        (
            500,
            json!({"metadata": {"finalizers": [1]}}),
            "list element types are not identical: [[a.b/c a.b/d] [1]]",
        ),
        (
            500,
            json!({"metadata": {"$setElementOrder/ownerReferences": ["x"], "ownerReferences": [{"uid": "x"}]}}),
            "expected a map[string]interface {}, but received a string",
        ),
        (
            500,
            json!({"metadata": {"$setElementOrder/labels": ["x"]}}),
            "expected a []interface {}, but received a map[string]interface {}",
        ),
    ];
    for (code, patch, message) in cases {
        let status = config_map(patch.clone()).err().map(Status::from);
        let got = status.map(|status| (status.code.as_u16(), status.message));
        assert_eq!(got, Some((code, message.to_owned())), "{patch}");
    }
}

proptest! {
    #[test]
    fn never_panics(doc in any_json(), patch in any_json()) {
        let schema = custom(&json!({"properties": {
            "list": {"items": {}, "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name"},
            "set": {"items": {}, "x-kubernetes-patch-strategy": "merge"},
        }}));
        let _ = apply(&schema, &doc, &patch).map_err(Status::from);
    }
}
