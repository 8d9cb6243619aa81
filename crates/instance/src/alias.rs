//! Other names of a session: ids that its instance minted, by which later requests ask for it. Each is a Lease of its
//! own, whose name is a hash of Task and id, and which belongs to the session's Lease and goes with it. The id itself is
//! written nowhere: it is a secret of those who talk.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentcube_api::labels;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::ObjectMeta;
use ring::digest::{Context, SHA256};

use crate::identity::{SessionKey, TaskId};
use crate::record::{Session, lease_name};
use crate::revision::label_value;

/// What a session is also known by.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Alias {
    /// What kind of id it is: the same text may name two things.
    pub space: &'static str,
    /// Whose it is; to everybody else it names nothing.
    pub subject: Option<Arc<str>>,
    pub text: Arc<str>,
}

impl std::fmt::Debug for Alias {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Alias({}, ..)", self.space)
    }
}

/// The session that an alias stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub key: SessionKey,
    /// UID of its Lease: a later session of the same key is another.
    pub lease: Arc<str>,
    /// Which binding the name is of; what an instance minted, only that instance knows.
    pub binding: Option<i32>,
}

/// Why a session did not get another name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("the session ended before its id was written down")]
    SessionGone,
    #[error("another session has the same id, or the Lease {0} in its place cannot be read")]
    Taken(String),
    #[error("the API server did not take the id: {0}")]
    Unwritten(String),
    #[error("the session has as many ids as it may have")]
    TooMany,
    #[error("whoever gives instances here knows no ids")]
    Unsupported,
}

/// What the name of an alias's Lease is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AliasHash([u8; 20]);

const NAME_PREFIX: &str = "alias-";

impl AliasHash {
    pub(crate) fn of(task_uid: &str, alias: &Alias) -> AliasHash {
        let mut context = Context::new(&SHA256);
        // With their lengths, so that no two lists of parts read the same.
        let mut part = |text: &str| {
            context.update(&(text.len() as u64).to_be_bytes());
            context.update(text.as_bytes());
        };
        part(task_uid);
        part(alias.space);
        part(if alias.subject.is_some() { "of" } else { "" });
        part(alias.subject.as_deref().unwrap_or_default());
        part(&alias.text);
        let mut hash = [0; 20];
        hash.copy_from_slice(&context.finish().as_ref()[..20]);
        AliasHash(hash)
    }

    pub(crate) fn lease_name(&self) -> String {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{NAME_PREFIX}{hex}")
    }

    pub(crate) fn parse(name: &str) -> Option<AliasHash> {
        let hex = name.strip_prefix(NAME_PREFIX)?;
        let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if hex.len() != 40 || !hex.bytes().all(lower) {
            return None;
        }
        let mut hash = [0; 20];
        for (n, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).ok()?;
        }
        Some(AliasHash(hash))
    }
}

/// Where an alias is looked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AliasId {
    pub(crate) namespace: Arc<str>,
    pub(crate) hash: AliasHash,
}

impl AliasId {
    pub(crate) fn of(task: &TaskId, alias: &Alias) -> AliasId {
        AliasId { namespace: task.namespace.clone(), hash: AliasHash::of(&task.uid, alias) }
    }

    /// Of the Lease of this name; nothing if that is none of an alias.
    pub(crate) fn read(meta: &ObjectMeta) -> Option<AliasId> {
        let hash = AliasHash::parse(meta.name.as_deref()?)?;
        Some(AliasId { namespace: meta.namespace.as_deref()?.into(), hash })
    }
}

/// What an alias's Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) uid: Arc<str>,
    pub(crate) version: u64,
    pub(crate) task_uid: Arc<str>,
    pub(crate) named: Named,
}

impl Record {
    /// What the Lease says; nothing if it is not that of an alias, or somebody has spoilt it. Key and owner say the same
    /// twice, so that what was changed in one place alone leads nowhere.
    pub(crate) fn read(lease: &Lease) -> Option<Record> {
        let meta = &lease.metadata;
        let label = |name| meta.labels.as_ref().and_then(|labels| labels.get(name)).map(String::as_str);
        if label(labels::LEASE) != Some(labels::LEASE_OF_ALIAS) || meta.deletion_timestamp.is_some() {
            return None;
        }
        let task_uid = label(labels::TASK_UID)?;
        let key = SessionKey::new(meta.annotations.as_ref()?.get(labels::RESERVE_KEY)?).ok()?;
        let [owner] = meta.owner_references.as_deref()? else { return None };
        let owned =
            owner.kind == "Lease" && owner.name == lease_name(task_uid, &key) && !owner.uid.is_empty();
        owned.then_some(())?;
        Some(Record {
            uid: meta.uid.as_deref()?.into(),
            version: meta.resource_version.as_ref()?.parse().ok()?,
            task_uid: task_uid.into(),
            named: Named {
                key,
                lease: owner.uid.as_str().into(),
                binding: lease.spec.as_ref().and_then(|spec| spec.lease_transitions),
            },
        })
    }
}

/// The Lease of an alias.
pub(crate) fn lease(task: &TaskId, hash: &AliasHash, session: &Session) -> Lease {
    let owner = OwnerReference {
        api_version: "coordination.k8s.io/v1".into(),
        kind: "Lease".into(),
        name: lease_name(&session.task_uid, &session.key),
        uid: session.uid.to_string(),
        controller: None,
        block_owner_deletion: None,
    };
    Lease {
        metadata: ObjectMeta {
            name: Some(hash.lease_name()),
            namespace: Some(session.namespace.to_string()),
            labels: Some(BTreeMap::from([
                (labels::LEASE.into(), labels::LEASE_OF_ALIAS.into()),
                (labels::TASK.into(), label_value(&task.name)),
                (labels::TASK_UID.into(), session.task_uid.to_string()),
            ])),
            annotations: Some(BTreeMap::from([(labels::RESERVE_KEY.into(), session.key.to_string())])),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec { lease_transitions: Some(session.binding), ..LeaseSpec::default() }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn alias(space: &'static str, subject: Option<&str>, text: &str) -> Alias {
        Alias { space, subject: subject.map(Into::into), text: text.into() }
    }

    #[test]
    fn names_fit_and_differ() {
        let hash = AliasHash::of("t1", &alias("a2a-task", None, "x"));
        let name = hash.lease_name();
        assert_eq!((name.len(), AliasHash::parse(&name)), (46, Some(hash)));
        for (task, other) in [
            ("t2", alias("a2a-task", None, "x")),
            ("t1", alias("a2a-context", None, "x")),
            ("t1", alias("a2a-task", Some(""), "x")),
            ("t1", alias("a2a-task", Some("x"), "")),
            ("t1", alias("a2a-task", None, "y")),
        ] {
            assert_ne!(AliasHash::of(task, &other), hash, "{task} {other:?}");
        }
        for bad in
            ["", "alias-", "session-00", &name[1..], &name[..45], &format!("{name}0"), &name.to_uppercase()]
        {
            assert_eq!(AliasHash::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_was_spoilt_names_nothing() {
        let key = SessionKey::new("k1").unwrap();
        let good = json!({ "metadata": {
            "name": "alias-x", "namespace": "prod", "uid": "a1", "resourceVersion": "7",
            "labels": { labels::LEASE: labels::LEASE_OF_ALIAS, labels::TASK_UID: "t1" },
            "annotations": { labels::RESERVE_KEY: "k1" },
            "ownerReferences": [{ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "name": lease_name("t1", &key), "uid": "l1" }],
        }, "spec": { "leaseTransitions": 3 } });
        let read = |value: Value| Record::read(&serde_json::from_value(value).unwrap());
        let named = read(good.clone()).unwrap().named;
        assert_eq!(named, Named { key, lease: "l1".into(), binding: Some(3) });
        for (path, value) in [
            ("/metadata/labels/agentcube.io~1lease", json!("session")),
            ("/metadata/labels/agentcube.io~1task-uid", json!("t2")),
            ("/metadata/annotations/agentcube.io~1reserve-key", json!("k2")),
            ("/metadata/annotations/agentcube.io~1reserve-key", json!("")),
            ("/metadata/ownerReferences/0/name", json!("session-other")),
            ("/metadata/ownerReferences/0/kind", json!("Task")),
            ("/metadata/ownerReferences/0/uid", json!("")),
            ("/metadata/ownerReferences", json!([])),
        ] {
            let mut spoilt = good.clone();
            *spoilt.pointer_mut(path).unwrap() = value;
            assert_eq!(read(spoilt), None, "{path}");
        }
    }
}
