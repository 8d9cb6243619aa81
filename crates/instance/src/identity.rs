//! What tells Tasks, revisions, instances and sessions apart. Newtypes, so that one is never taken for another.

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ring::rand::{SecureRandom, SystemRandom};

/// The longest key that a session may have, in bytes. It is stored in annotations.
pub const LONGEST_KEY: usize = 512;

/// A Task, told apart from an earlier one of the same name by its UID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
}

impl Display for TaskId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A revision of a Task's instances, `<task>-<generation>`; also the name of its `PodTemplate`, and of its Job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpecId(pub Arc<str>);

impl Display for SpecId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an instance is on the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    #[default]
    Pod,
    /// A Sandbox on a SandboxPool.
    Sandbox,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Pod => "Pod",
            Kind::Sandbox => "Sandbox",
        }
    }
}

/// What a Sandbox has before its name where it is named together with its UID.
const SANDBOX: &str = "sandbox";

/// One instance: a Pod or a Sandbox of the Task's namespace. One that comes later under the same name is another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId {
    pub kind: Kind,
    pub name: Arc<str>,
    pub uid: Arc<str>,
}

impl Display for InstanceId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Pod => write!(f, "{}/{}", self.name, self.uid),
            Kind::Sandbox => write!(f, "{SANDBOX}/{}/{}", self.name, self.uid),
        }
    }
}

impl InstanceId {
    /// A Pod.
    pub fn pod(name: impl Into<Arc<str>>, uid: impl Into<Arc<str>>) -> InstanceId {
        InstanceId { kind: Kind::Pod, name: name.into(), uid: uid.into() }
    }

    /// Reads what [`Display`] wrote.
    pub fn parse(text: &str) -> Option<InstanceId> {
        let (rest, uid) = text.rsplit_once('/')?;
        let (kind, name) = match rest.split_once('/') {
            None => (Kind::Pod, rest),
            Some((SANDBOX, name)) => (Kind::Sandbox, name),
            Some(_) => return None,
        };
        let whole = !name.is_empty() && !uid.is_empty() && !name.contains('/');
        whole.then(|| InstanceId { kind, name: name.into(), uid: uid.into() })
    }
}

/// Where an instance listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    pub host: IpAddr,
    pub port: u16,
}

impl From<Endpoint> for SocketAddr {
    fn from(endpoint: Endpoint) -> SocketAddr {
        SocketAddr::new(endpoint.host, endpoint.port)
    }
}

impl Display for Endpoint {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        SocketAddr::from(*self).fmt(f)
    }
}

/// What a session is known by. Comes from a client; never empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(Arc<str>);

/// Why a text cannot be a session's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    #[error("the session key is empty")]
    Empty,
    #[error("the session key has {0} bytes; at most {LONGEST_KEY} are allowed")]
    TooLong(usize),
    #[error("the session key contains a control character")]
    Control,
}

impl SessionKey {
    pub fn new(text: &str) -> Result<SessionKey, BadKey> {
        match text {
            "" => Err(BadKey::Empty),
            long if long.len() > LONGEST_KEY => Err(BadKey::TooLong(long.len())),
            bad if bad.chars().any(char::is_control) => Err(BadKey::Control),
            text => Ok(SessionKey(text.into())),
        }
    }

    /// A key that nobody has had and nobody can guess: `<kind>-<128 bits>`.
    pub fn random(kind: &'static str) -> SessionKey {
        let mut bits = [0; 16];
        SystemRandom::new().fill(&mut bits).expect("the kernel always has random bits for a running process");
        SessionKey(format!("{kind}-{:032x}", u128::from_be_bytes(bits)).into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Display for SessionKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_read_as_it_was_written() {
        for kind in [Kind::Pod, Kind::Sandbox] {
            let id = InstanceId { kind, name: "agent-3".into(), uid: "0a1b".into() };
            assert_eq!(InstanceId::parse(&id.to_string()), Some(id));
        }
        for bad in ["", "agent-3", "/0a1b", "agent-3/", "a/b/c", "sandbox/a/", "sandbox//b", "sandbox/a/b/c"]
        {
            assert_eq!(InstanceId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn keys_are_checked() {
        assert_eq!(SessionKey::new("").unwrap_err(), BadKey::Empty);
        assert_eq!(SessionKey::new(&"x".repeat(513)).unwrap_err(), BadKey::TooLong(513));
        assert_eq!(SessionKey::new("a\nb").unwrap_err(), BadKey::Control);
        assert_eq!(SessionKey::new("Grüße 1").map(|key| key.to_string()), Ok("Grüße 1".into()));
    }
}
