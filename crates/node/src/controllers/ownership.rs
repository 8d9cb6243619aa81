//! Who controls what: which objects a controller may take as its own, which it must let go, and how that is
//! written. Pure; an object that someone else controls is never touched.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use kube::core::{ObjectMeta, Selector, SelectorExt};
use serde_json::{Value, json};

/// What an object is to an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Controlled by the owner and selected by it.
    Held,
    /// Nobody's and selected: the owner takes it.
    Adopt,
    /// Controlled by the owner but no longer selected: the owner lets it go.
    Release,
    /// None of the owner's business.
    Foreign,
}

/// What `object` is to the owner. An owner that is being deleted takes nothing and lets nothing go.
pub fn claim(owner: &ObjectMeta, selector: &Selector, object: &ObjectMeta) -> Claim {
    static NONE: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new();
    let selected = selector.matches(object.labels.as_ref().unwrap_or(&NONE));
    let deleting = owner.deletion_timestamp.is_some();
    match controller_of(object) {
        Some(controller) if Some(&controller.uid) != owner.uid.as_ref() => Claim::Foreign,
        Some(_) if selected => Claim::Held,
        Some(_) if deleting => Claim::Foreign,
        Some(_) => Claim::Release,
        None if !selected || deleting || object.deletion_timestamp.is_some() => Claim::Foreign,
        None => Claim::Adopt,
    }
}

/// The reference to the controller of an object.
pub fn controller_of(object: &ObjectMeta) -> Option<&OwnerReference> {
    object.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// The reference that makes `owner` the controller of an object.
pub fn controller_reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.meta().name.clone().unwrap_or_default(),
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The strategic merge patch by which an owner takes an object; the server refuses it for another uid, or if
/// the object has a controller by now.
pub fn adoption(owner: &OwnerReference, object: &ObjectMeta) -> Value {
    json!({ "metadata": { "uid": object.uid, "ownerReferences": [owner] } })
}

/// The strategic merge patch by which an owner lets an object go.
pub fn release(owner: &ObjectMeta, object: &ObjectMeta) -> Value {
    let references = json!([{ "$patch": "delete", "uid": owner.uid }]);
    json!({ "metadata": { "uid": object.uid, "ownerReferences": references } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(controller: Option<&str>, app: &str, deleting: bool) -> ObjectMeta {
        let reference = |uid: &str| OwnerReference {
            uid: uid.to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        ObjectMeta {
            uid: Some("object".to_owned()),
            labels: Some([("app".to_owned(), app.to_owned())].into()),
            owner_references: controller.map(|uid| vec![reference(uid)]),
            deletion_timestamp: deleting.then(|| serde_json::from_str("\"2026-01-01T00:00:00Z\"").unwrap()),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn claims() {
        let selector: Selector = [("app".to_owned(), "web".to_owned())].into_iter().collect();
        let table = [
            // owner being deleted, controller of the object, its label, the object being deleted
            (false, Some("owner"), "web", false, Claim::Held),
            (false, Some("owner"), "web", true, Claim::Held),
            (true, Some("owner"), "web", false, Claim::Held),
            (false, Some("owner"), "db", false, Claim::Release),
            (true, Some("owner"), "db", false, Claim::Foreign),
            (false, Some("other"), "web", false, Claim::Foreign),
            (false, None, "web", false, Claim::Adopt),
            (true, None, "web", false, Claim::Foreign),
            (false, None, "web", true, Claim::Foreign),
            (false, None, "db", false, Claim::Foreign),
        ];
        for (deleting, controller, app, object_deleting, expected) in table {
            let owner = ObjectMeta { uid: Some("owner".to_owned()), ..object(None, "", deleting) };
            let object = object(controller, app, object_deleting);
            assert_eq!(claim(&owner, &selector, &object), expected, "{controller:?} {app} {object_deleting}");
        }
    }
}
