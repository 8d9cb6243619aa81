//! What a spawner keeps for a worker that is yet to come, from the spawner's side.

use std::ops::Bound;
use std::os::fd::OwnedFd;

use rustix::process::Signal;

use super::containers::Container;
use super::page::{self, After, ContainerSeen, Page, SandboxSeen, State};
use super::process::Role;
use super::protocol::{Answer, Failure, What};
use super::server::Server;
use super::{During, Step};
use crate::spec::{ContainerId, SandboxId, check_tag};

type Reply = Result<(Answer, Vec<OwnedFd>), Failure>;

impl Server<'_> {
    /// A page of all that there is. Whoever asks for the first one is a new worker.
    pub(super) fn adopted(&mut self, after: Option<&After>) -> Reply {
        if after.is_none() {
            self.forget_worker();
        }
        let from = page::from(after);
        let sandboxes =
            from.sandboxes.map(|from| self.sandboxes.range::<SandboxId, _>((from, Bound::Unbounded)));
        let sandboxes = sandboxes.into_iter().flatten().map(|(_, sandbox)| SandboxSeen {
            spec: sandbox.spec.clone(),
            removing: sandbox.removing.is_some(),
        });
        let containers =
            from.containers.map(|from| self.containers.range::<ContainerId, _>((from, Bound::Unbounded)));
        let containers = containers.into_iter().flatten().map(|(_, container)| self.seen(container));
        let notes = self.notes.all().range::<String, _>((from.notes, Bound::Unbounded));
        let notes = notes.map(|(key, value)| (key.clone(), value.clone()));
        let page: Page = page::fill(self.last, sandboxes, containers, notes);
        Ok((Answer::Page(Box::new(page)), Vec::new()))
    }

    /// The old one is gone: nobody reads what it was to be told, or the output of what it has executed.
    fn forget_worker(&mut self) {
        self.unsent.clear();
        while let Some((id, spec)) = self.waiting.pop_front() {
            self.make_sandbox(id, &spec);
        }
        for process in self.processes.values().filter(|process| matches!(process.role, Role::Exec(_))) {
            let _ = rustix::process::pidfd_send_signal(&process.pidfd, Signal::KILL);
        }
    }

    fn seen(&self, container: &Container) -> ContainerSeen {
        ContainerSeen {
            id: container.spec.id.clone(),
            sandbox: container.spec.sandbox.clone(),
            tag: container.spec.tag.clone(),
            state: self.state_of(container),
            frozen: container.frozen,
            kept: container.kept.len(),
            asked: container.asked,
        }
    }

    fn state_of(&self, container: &Container) -> State {
        if container.removal.is_some() {
            return State::Removing;
        }
        if let Some(exit) = container.exit {
            return State::Ended(exit);
        }
        let first = container.first.and_then(|first| self.processes.get(&first));
        match first {
            Some(first) if container.running => State::Running { pid: first.pid },
            Some(first) if first.is_waiting() => State::Prepared,
            // A claim has another number than the preparation.
            Some(first) if container.prepared && container.first == Some(first.asked) => State::Preparing,
            _ => State::Starting,
        }
    }

    pub(super) fn retag(&mut self, container: &ContainerId, tag: String) -> Reply {
        check_tag(&tag).map_err(Failure::Invalid)?;
        let entry = self.containers.get_mut(container);
        let entry = entry.ok_or_else(|| Failure::NotFound(What::Container, container.to_string()))?;
        entry.spec.tag = tag;
        Ok((Answer::Done, Vec::new()))
    }

    pub(super) fn note(&mut self, key: String, value: Option<String>) -> Reply {
        self.notes.set(key, value)?;
        Ok((Answer::Done, Vec::new()))
    }

    pub(super) fn kept(&mut self, container: &ContainerId) -> Reply {
        let entry = self.containers.get(container);
        let entry = entry.ok_or_else(|| Failure::NotFound(What::Container, container.to_string()))?;
        Ok((Answer::Done, copies(&entry.kept)?))
    }

    pub(super) fn sockets(&mut self, sandbox: &SandboxId) -> Reply {
        let found = self.sandboxes.get(sandbox);
        let found = found.ok_or_else(|| Failure::NotFound(What::Sandbox, sandbox.to_string()))?;
        Ok((Answer::Done, copies(&found.sockets)?))
    }
}

pub(super) fn copies(descriptors: &[OwnedFd]) -> Result<Vec<OwnedFd>, Failure> {
    descriptors.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>().during(Step::Streams)
}
