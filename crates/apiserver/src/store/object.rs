//! One version of one object, as it is stored: encoded, with what selectors and controllers ask of it.

use std::sync::OnceLock;

use bytes::Bytes;
use serde_json::Value;

use super::Revision;

type Pairs = Box<[(Box<str>, Box<str>)]>;

/// An immutable version of an object.
#[derive(Debug)]
pub struct Object {
    key: Box<str>,
    pub revision: Revision,
    /// The whole object, `metadata.resourceVersion` included.
    pub json: Bytes,
    pub uid: Box<str>,
    pub labels: Pairs,
    pub owners: Box<[OwnerReference]>,
    pub finalizers: Box<[Box<str>]>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    fields: OnceLock<Pairs>,
}

/// The part of an owner reference that garbage collection needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerReference {
    pub api_version: Box<str>,
    pub kind: Box<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
    pub blocks_deletion: bool,
}

impl Object {
    /// Stamps the revision on `value` and encodes it.
    pub(super) fn encode(key: Box<str>, mut value: Value, revision: Revision) -> Self {
        value["metadata"]["resourceVersion"] = revision.to_string().into();
        let json = serde_json::to_vec(&value).expect("a JSON value with string keys always encodes");
        // The encoder's buffer has room to grow; what is kept for long has none.
        Self::index(key, json.into_boxed_slice().into(), &value, revision)
    }

    /// Reads back what was stored under `key`.
    pub(super) fn decode(key: Box<str>, json: Bytes) -> Result<Self, serde_json::Error> {
        let value: Value = serde_json::from_slice(&json)?;
        let revision =
            value["metadata"]["resourceVersion"].as_str().and_then(|s| s.parse().ok()).unwrap_or(0);
        Ok(Self::index(key, json, &value, revision))
    }

    fn index(key: Box<str>, json: Bytes, value: &Value, revision: Revision) -> Self {
        let metadata = &value["metadata"];
        let text = |v: &Value| -> Box<str> { v.as_str().unwrap_or_default().into() };
        let labels = metadata["labels"]
            .as_object()
            .map(|labels| labels.iter().map(|(key, value)| (key.as_str().into(), text(value))).collect());
        let owners = metadata["ownerReferences"].as_array().map(|owners| {
            let owner = |o: &Value| OwnerReference {
                api_version: text(&o["apiVersion"]),
                kind: text(&o["kind"]),
                name: text(&o["name"]),
                uid: text(&o["uid"]),
                blocks_deletion: o["blockOwnerDeletion"].as_bool().unwrap_or(false),
            };
            owners.iter().map(owner).collect()
        });
        let finalizers =
            metadata["finalizers"].as_array().map(|finalizers| finalizers.iter().map(text).collect());
        Self {
            key,
            revision,
            finalizers: finalizers.unwrap_or_default(),
            uid: text(&metadata["uid"]),
            labels: labels.unwrap_or_default(),
            owners: owners.unwrap_or_default(),
            deleting: metadata["deletionTimestamp"].is_string(),
            json,
            fields: OnceLock::new(),
        }
    }

    /// `namespace/name`, or `name` for what lives outside namespaces.
    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    pub fn name(&self) -> &str {
        self.key.split_once('/').map_or(&self.key, |(_, name)| name)
    }

    /// The decoded object.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json).expect("what the store encoded decodes again")
    }

    /// This state under a later revision, as a watch shows what ceased to match.
    pub fn at_revision(&self, revision: Revision) -> Self {
        Self::encode(self.key.clone(), self.value(), revision)
    }

    /// The fields that selectors may ask for, read once with `extract`.
    pub fn fields(&self, extract: impl FnOnce(&Value) -> Vec<(String, String)>) -> &[(Box<str>, Box<str>)] {
        self.fields.get_or_init(|| {
            let pairs = extract(&self.value());
            pairs.into_iter().map(|(path, value)| (path.into(), value.into())).collect()
        })
    }
}
