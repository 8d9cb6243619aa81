//! Names and ids: of objects, of agents, of runs.

use std::fmt;

use kube::ResourceExt;
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

/// An object of a namespace, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    pub namespace: String,
    pub name: String,
}

impl Name {
    pub fn new(namespace: &str, name: &str) -> Name {
        Name { namespace: namespace.into(), name: name.into() }
    }

    pub(crate) fn of<K: ResourceExt>(object: &K) -> Name {
        Name { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A SandboxPool.
pub type PoolKey = Name;

/// An agent. One of the same name may be another: the uid tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AgentId {
    pub name: String,
    pub uid: String,
}

/// One run of a sandbox, never used twice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(String);

impl RunId {
    /// A new one, of 128 random bits.
    pub(crate) fn mint() -> RunId {
        RunId(random_hex())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for RunId {
    fn from(id: &str) -> RunId {
        RunId(id.into())
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(crate) fn random_hex() -> String {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).expect("the kernel has random numbers");
    hex(&bytes)
}

/// The name of a sandbox that was not given one: the same for the same request of the same subject.
pub(crate) fn name_for(namespace: &str, subject: &str, request_id: &str) -> String {
    if request_id.is_empty() {
        return format!("sb-{}", &random_hex()[..20]);
    }
    let mut context = digest::Context::new(&digest::SHA256);
    for part in [namespace, subject, request_id] {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    format!("sb-{}", &hex(context.finish().as_ref())[..20])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_one_name_and_borders_matter() {
        assert_eq!(name_for("a", "b", "c"), name_for("a", "b", "c"));
        assert_ne!(name_for("a", "bc", "d"), name_for("a", "b", "cd"));
        assert_ne!(name_for("a", "b", ""), name_for("a", "b", ""));
        assert_ne!(RunId::mint(), RunId::mint());
    }
}
