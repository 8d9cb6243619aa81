//! A worker takes over the spawner of one that is gone, with all that it runs.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::sync::oneshot;

use super::fuse::Fuse;
use super::handle::{Exits, Handle};
use super::page::{After, ContainerSeen, Page, State};
use super::protocol::{ADOPTING, Answer as Reply, Request};
use crate::spec::{ContainerId, SandboxId, SandboxSpec};
use crate::{Answer, Error, Exit, SandboxSockets};

/// All that a spawner had when it was adopted.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub sandboxes: Vec<AdoptedSandbox>,
    pub containers: Vec<Adopted>,
    pub notes: BTreeMap<String, String>,
}

/// A sandbox that was there; [`Handle::sockets`] gives its sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdoptedSandbox {
    pub spec: SandboxSpec,
    /// It is about to be gone; removing it once more waits for that.
    pub removing: bool,
}

/// A container that was there. What was executed in it besides is killed.
#[derive(Debug)]
pub struct Adopted {
    pub id: ContainerId,
    pub sandbox: SandboxId,
    pub tag: String,
    pub state: State,
    /// It stands still, or was about to: ask once more for what is wanted.
    pub frozen: bool,
    /// How many descriptors [`Handle::kept`] gives.
    pub kept: usize,
    /// Of one that runs or is about to. An error where a start has failed: then the container is gone too.
    pub exit: Option<oneshot::Receiver<Exit>>,
}

impl Snapshot {
    /// Takes in a page, and says where the next one begins.
    pub(super) fn add(&mut self, page: Page, exits: &mut Exits) -> Option<After> {
        self.sandboxes.extend(
            page.sandboxes
                .into_iter()
                .map(|seen| AdoptedSandbox { spec: seen.spec, removing: seen.removing }),
        );
        self.containers.extend(page.containers.into_iter().map(|seen| adopted(seen, exits)));
        self.notes.extend(page.notes);
        page.next
    }
}

fn adopted(seen: ContainerSeen, exits: &mut Exits) -> Adopted {
    let ContainerSeen { id, sandbox, tag, state, frozen, kept, asked } = seen;
    Adopted { exit: exits.remove(&asked), id, sandbox, tag, state, frozen, kept }
}

impl ContainerSeen {
    /// Its end is yet to be told.
    pub(super) fn will_end(&self) -> bool {
        matches!(self.state, State::Starting | State::Running { .. })
    }
}

impl Handle {
    /// Takes over a spawner by the socket to it and a descriptor of its process, neither of which anybody else uses any
    /// more. Needs a tokio runtime. When this handle is dropped, the spawner stays for the next one; [`Handle::stop`]
    /// ends it.
    ///
    /// What the last worker had asked for before it ended was done, and is in the snapshot.
    pub fn adopt(socket: OwnedFd, spawner: OwnedFd) -> Answer<'static, (Self, Snapshot)> {
        Self::adopt_until(socket, spawner, None)
    }

    /// The same, with the end that tests may want of this process.
    pub(crate) fn adopt_until(
        socket: OwnedFd,
        spawner: OwnedFd,
        fuse: Option<Fuse>,
    ) -> Answer<'static, (Self, Snapshot)> {
        Box::pin(async move {
            // The answers to whoever has tried the same before us have other numbers.
            let number = ADOPTING + (RandomState::new().hash_one(std::process::id()) >> 5);
            let handle = Self::inherited(socket, spawner, number, fuse)?;
            let mut snapshot = Snapshot::default();
            let (mut after, mut last) = (None, 0);
            loop {
                let received = handle.ask(Request::Adopt { after }, Vec::new()).await?;
                let Reply::Page(page) = received.reply else { return Err(Error::SpawnerGone) };
                last = last.max(page.last);
                let mut exits = received.exits;
                after = snapshot.add(*page, &mut exits);
                if after.is_none() {
                    handle.number_from(last);
                    return Ok((handle, snapshot));
                }
            }
        })
    }

    /// Keeps words with the spawner, or takes them away, for whoever adopts it.
    pub async fn note(&self, key: &str, value: Option<&str>) -> Result<(), Error> {
        let request = Request::Note { key: key.to_owned(), value: value.map(str::to_owned) };
        self.ask(request, Vec::new()).await.map(drop)
    }

    /// Gives a container another tag.
    pub async fn retag(&self, id: &ContainerId, tag: &str) -> Result<(), Error> {
        let request = Request::Retag { container: id.clone(), tag: tag.to_owned() };
        self.ask(request, Vec::new()).await.map(drop)
    }

    /// How long a container goes on after the last [`Handle::heard`]: then it stands still, or ends if it cannot, whether
    /// or not a worker lives. `None`: for ever. To be said again after that has happened.
    pub async fn patience(&self, id: &ContainerId, patience: Option<Duration>) -> Result<(), Error> {
        let request = Request::Patience { container: id.clone(), patience };
        self.ask(request, Vec::new()).await.map(drop)
    }

    /// Somebody was heard of, so long after the machine's start (`/proc/uptime`).
    pub async fn heard(&self, at: Duration) -> Result<(), Error> {
        self.ask(Request::Heard(at), Vec::new()).await.map(drop)
    }

    /// Copies of what is kept of a container's descriptors, in the order in which they were given.
    pub async fn kept(&self, id: &ContainerId) -> Result<Vec<OwnedFd>, Error> {
        Ok(self.ask(Request::Kept(id.clone()), Vec::new()).await?.descriptors)
    }

    /// The sockets of a sandbox once more; only of a spawner that is adoptable.
    pub async fn sockets(&self, id: &SandboxId) -> Result<SandboxSockets, Error> {
        let mut descriptors =
            self.ask(Request::Sockets(id.clone()), Vec::new()).await?.descriptors.into_iter();
        match (descriptors.next(), descriptors.next()) {
            (Some(outgoing), Some(dns)) => Ok(SandboxSockets { outgoing, dns }),
            _ => Err(Error::Invalid(format!("the sockets of sandbox {:?} were not kept", id.as_str()))),
        }
    }
}
