use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    merge::typed::testing::{any_json, built_in, custom},
    status::Status,
};

fn pod_spec(spec: Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": spec})
}

fn pod(doc: Value, patch: Value) -> Result<Value, PatchError> {
    apply(built_in("io.k8s.api.core.v1.Pod"), &doc, &patch)
}

#[test]
fn never_fails_without_reason() {
    let doc = pod_spec(json!({"containers": [{"name": "a", "image": "1"}]}));
    assert_eq!(pod(doc.clone(), json!(null)), Ok(doc.clone()));
    assert_eq!(pod(doc.clone(), json!({})), Ok(doc));
}

proptest! {
    #[test]
    fn never_panics(doc in any_json(), patch in any_json()) {
        let schema = custom(&json!({"properties": {
            "list": {"items": {}, "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name"},
            "set": {"items": {}, "x-kubernetes-patch-strategy": "merge"},
        }}));
        let _ = apply(&schema, &doc, &patch);
        let _ = Status::from(apply(&schema, &json!({}), &patch).err().unwrap_or(PatchError::Malformed(String::new())));
    }
}
