//! The keys behind signed tokens. Master keys stay with the operator; each Task has keys derived from them, which its
//! instances may have: they verify this Task's tokens and are good for nothing else.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use agentcube_api::labels;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::core::ObjectMeta;
use ring::hmac;

use crate::identity::TaskId;
use crate::revision::{label_value, owner};

/// Entry of a Secret that names the key to sign with.
const CURRENT: &str = "current";
/// Entry of a Task's Secret with its UID.
const TASK: &str = "task";
/// How the entries with keys end.
const KEY: &str = ".key";
const SHORTEST_KEY: usize = 32;
const LONGEST_KEY: usize = 1024;
/// What a Task's key is derived from, before the UID.
const DERIVATION: &str = "agentcube-task:";

/// The same of the key that seals texts for its clients.
const SEALING: &str = "agentcube-seal:";
/// What ids are hidden by in logs is derived from a master key by HMAC-SHA-256 of this.
const HIDING: &str = "agentcube-hide:";

/// Name of the Secret with the keys of a Task, in its namespace.
pub fn task_secret_name(task: &str) -> String {
    format!("{task}-token")
}

/// What tells keys apart: 1 to 32 letters, digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(Arc<str>);

impl KeyId {
    pub fn new(text: &str) -> Option<KeyId> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        ((1..=32).contains(&text.len()) && text.bytes().all(fits)).then(|| KeyId(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why keys cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKeys {
    #[error("there is no entry {0:?}")]
    Missing(&'static str),
    #[error("the entry {0:?} is not text")]
    NotText(&'static str),
    #[error("there is no entry {0:?}, which `current` names")]
    NoCurrent(String),
    #[error(
        "the entry {0:?} is no key: its name has to be 1 to 32 letters, digits, `-` or `_`, and then `.key`"
    )]
    Name(String),
    #[error("the entry {name:?} has {length} bytes; a key has {SHORTEST_KEY} to {LONGEST_KEY}")]
    Length { name: String, length: usize },
}

/// Keys by their ids, and which is the current one. Never empty.
#[derive(Clone)]
struct Ring {
    keys: Vec<(KeyId, Secretive)>,
    current: usize,
}

/// Bytes that are not printed, and the key made of them.
#[derive(Clone)]
struct Secretive {
    bytes: Arc<[u8]>,
    key: hmac::Key,
}

impl Secretive {
    fn new(bytes: &[u8]) -> Secretive {
        Secretive { bytes: bytes.into(), key: hmac::Key::new(hmac::HMAC_SHA256, bytes) }
    }
}

impl Debug for Ring {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ids = self.keys.iter().map(|(id, _)| id.as_str());
        write!(f, "{:?} with current {}", ids.collect::<Vec<_>>(), self.keys[self.current].0)
    }
}

impl Ring {
    fn read(entries: &BTreeMap<String, ByteString>) -> Result<Ring, BadKeys> {
        let mut keys = Vec::new();
        for (name, ByteString(bytes)) in entries {
            let Some(id) = name.strip_suffix(KEY) else { continue };
            let id = KeyId::new(id).ok_or_else(|| BadKeys::Name(name.clone()))?;
            if !(SHORTEST_KEY..=LONGEST_KEY).contains(&bytes.len()) {
                return Err(BadKeys::Length { name: name.clone(), length: bytes.len() });
            }
            keys.push((id, Secretive::new(bytes)));
        }
        let wanted = text(entries, CURRENT)?;
        let current = keys.iter().position(|(id, _)| id.as_str() == wanted);
        let current = current.ok_or_else(|| BadKeys::NoCurrent(format!("{wanted}{KEY}")))?;
        Ok(Ring { keys, current })
    }

    fn entries(&self) -> BTreeMap<String, ByteString> {
        let keys = self.keys.iter().map(|(id, key)| (format!("{id}{KEY}"), ByteString(key.bytes.to_vec())));
        let current = self.keys[self.current].0.as_str().as_bytes().to_vec();
        keys.chain([(CURRENT.to_owned(), ByteString(current))]).collect()
    }
}

/// An entry that people write: white space around it does not count.
fn text<'a>(entries: &'a BTreeMap<String, ByteString>, name: &'static str) -> Result<&'a str, BadKeys> {
    let ByteString(bytes) = entries.get(name).ok_or(BadKeys::Missing(name))?;
    std::str::from_utf8(bytes).map(str::trim).map_err(|_| BadKeys::NotText(name))
}

/// The operator's keys.
#[derive(Clone, Debug)]
pub struct Keys(Ring);

impl Keys {
    /// One new key.
    pub fn generate(id: KeyId) -> Keys {
        let mut bytes = [0; SHORTEST_KEY];
        for half in bytes.chunks_mut(16) {
            half.copy_from_slice(&super::Nonce::random().0);
        }
        Keys(Ring { keys: vec![(id, Secretive::new(&bytes))], current: 0 })
    }

    /// The keys in a Secret: an entry `<id>.key` for each, and `current`, which names the one to sign with.
    pub fn read(secret: &Secret) -> Result<Keys, BadKeys> {
        Ring::read(secret.data.as_ref().unwrap_or(&BTreeMap::new())).map(Keys)
    }

    /// The entries that [`Keys::read`] reads.
    pub fn entries(&self) -> BTreeMap<String, ByteString> {
        self.0.entries()
    }

    /// The keys of a Task. To be kept: each costs an HMAC per master key.
    pub fn for_task(&self, uid: &str) -> TaskKeys {
        let derive = |master: &Secretive| {
            let derived = hmac::sign(&master.key, format!("{DERIVATION}{uid}").as_bytes());
            Secretive::new(derived.as_ref())
        };
        let keys = self.0.keys.iter().map(|(id, master)| (id.clone(), derive(master))).collect();
        TaskKeys { task: uid.into(), ring: Ring { keys, current: self.0.current } }
    }
}

impl Keys {
    /// What texts for clients of a Task are sealed with. No instance has these, so none can make such a text.
    pub fn seal_keys(&self, uid: &str) -> super::SealKeys {
        let derive = |master: &Secretive| hmac::sign(&master.key, format!("{SEALING}{uid}").as_bytes());
        let keys = self.0.keys.iter().map(|(id, master)| (id.clone(), derive(master)));
        super::SealKeys::new(keys.collect(), self.0.current)
    }

    /// What ids of sessions are hidden by in logs: the same in every router that has these keys, known to no instance.
    /// With another current key they look different.
    pub fn hiding_key(&self) -> hmac::Key {
        let (_, current) = &self.0.keys[self.0.current];
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&current.key, HIDING.as_bytes()).as_ref())
    }
}

/// The keys of one Task.
#[derive(Clone, Debug)]
pub struct TaskKeys {
    task: Arc<str>,
    ring: Ring,
}

impl TaskKeys {
    /// UID of the Task.
    pub fn task(&self) -> &str {
        &self.task
    }

    pub(super) fn current(&self) -> (&KeyId, &hmac::Key) {
        let (id, key) = &self.ring.keys[self.ring.current];
        (id, &key.key)
    }

    pub(super) fn key(&self, id: &KeyId) -> Option<&hmac::Key> {
        self.ring.keys.iter().find(|(held, _)| held == id).map(|(_, key)| &key.key)
    }

    /// The Secret that the Task's instances may read.
    pub fn to_secret(&self, task: &TaskId) -> Secret {
        debug_assert_eq!(task.uid, self.task, "the keys of a Task are for that Task");
        let labels = [
            (labels::TASK.to_owned(), label_value(&task.name)),
            (labels::TASK_UID.to_owned(), self.task.to_string()),
        ];
        Secret {
            metadata: ObjectMeta {
                name: Some(task_secret_name(&task.name)),
                namespace: Some(task.namespace.to_string()),
                labels: Some(labels.into()),
                owner_references: Some(vec![owner(task)]),
                ..ObjectMeta::default()
            },
            data: Some(self.entries()),
            type_: Some("Opaque".into()),
            ..Secret::default()
        }
    }

    /// The entries of that Secret: `task`, `current`, and `<id>.key` for each key.
    pub fn entries(&self) -> BTreeMap<String, ByteString> {
        let mut entries = self.ring.entries();
        entries.insert(TASK.to_owned(), ByteString(self.task.as_bytes().to_vec()));
        entries
    }

    /// Reads what [`TaskKeys::to_secret`] wrote.
    pub fn from_secret(secret: &Secret) -> Result<TaskKeys, BadKeys> {
        TaskKeys::from_entries(secret.data.as_ref().unwrap_or(&BTreeMap::new()))
    }

    /// Reads what [`TaskKeys::entries`] wrote, be it from a Secret or from the files of one in a volume.
    pub fn from_entries(entries: &BTreeMap<String, ByteString>) -> Result<TaskKeys, BadKeys> {
        Ok(TaskKeys { task: text(entries, TASK)?.into(), ring: Ring::read(entries)? })
    }
}
