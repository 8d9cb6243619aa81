//! What the spawner has, in pages: neither the number of containers nor the length of their tags makes a packet too long.

use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::Exit;
use crate::spec::{ContainerId, SandboxId, SandboxSpec};

/// A page ends with the thing that fills it. A tag may be half as long as this.
const FULL: usize = 1024 * 1024;
/// What a thing takes besides its texts.
const EACH: usize = 256;

/// The last thing of a page: the next one begins after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum After {
    Sandbox(SandboxId),
    Container(ContainerId),
    Note(String),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Page {
    /// The highest number that anybody has asked with.
    pub(super) last: u64,
    pub(super) sandboxes: Vec<SandboxSeen>,
    pub(super) containers: Vec<ContainerSeen>,
    pub(super) notes: Vec<(String, String)>,
    /// Where the next one begins, if there is one.
    pub(super) next: Option<After>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SandboxSeen {
    pub(super) spec: SandboxSpec,
    pub(super) removing: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContainerSeen {
    pub(super) id: ContainerId,
    pub(super) sandbox: SandboxId,
    pub(super) tag: String,
    pub(super) state: State,
    pub(super) frozen: bool,
    /// How many descriptors are kept for it.
    pub(super) kept: usize,
    /// The number under which its end will be told.
    pub(super) asked: u64,
}

/// How far a container is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// It is not ready to be claimed yet.
    Preparing,
    /// It waits to be claimed.
    Prepared,
    /// Its program is not executed yet.
    Starting,
    Running {
        pid: u32,
    },
    Ended(Exit),
    /// It is killed and about to be gone.
    Removing,
}

/// Where each of the three lists of a page begins; `None` if it is over.
pub(super) struct From<'a> {
    pub(super) sandboxes: Option<Bound<&'a SandboxId>>,
    pub(super) containers: Option<Bound<&'a ContainerId>>,
    pub(super) notes: Bound<&'a String>,
}

pub(super) fn from(after: Option<&After>) -> From<'_> {
    let (sandboxes, containers, notes) = (Bound::Unbounded, Bound::Unbounded, Bound::Unbounded);
    let all = From { sandboxes: Some(sandboxes), containers: Some(containers), notes };
    match after {
        None => all,
        Some(After::Sandbox(id)) => From { sandboxes: Some(Bound::Excluded(id)), ..all },
        Some(After::Container(id)) => From { sandboxes: None, containers: Some(Bound::Excluded(id)), ..all },
        Some(After::Note(key)) => From { sandboxes: None, containers: None, notes: Bound::Excluded(key) },
    }
}

/// As much of three lists, which begin after the last page, as one page holds.
pub(super) fn fill(
    last: u64,
    sandboxes: impl Iterator<Item = SandboxSeen>,
    containers: impl Iterator<Item = ContainerSeen>,
    notes: impl Iterator<Item = (String, String)>,
) -> Page {
    let mut page = Page { last, ..Page::default() };
    let mut room = FULL;
    // `true` as soon as something fills the page; then that is the last thing on it.
    let mut fills = |length: usize| {
        room = room.saturating_sub(EACH + length);
        room == 0
    };
    for seen in sandboxes {
        let full = fills(seen.spec.hostname.len());
        let after = After::Sandbox(seen.spec.id.clone());
        page.sandboxes.push(seen);
        if full {
            return Page { next: Some(after), ..page };
        }
    }
    for seen in containers {
        let full = fills(seen.tag.len());
        let after = After::Container(seen.id.clone());
        page.containers.push(seen);
        if full {
            return Page { next: Some(after), ..page };
        }
    }
    for (key, value) in notes {
        let full = fills(key.len() + value.len());
        let after = After::Note(key.clone());
        page.notes.push((key, value));
        if full {
            return Page { next: Some(after), ..page };
        }
    }
    page
}
