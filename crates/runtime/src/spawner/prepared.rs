//! Containers that are made before it is known what they are to run.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::channel::{Packet, is_gone};
use super::child::{self, Claim};
use super::protocol::{Answer, Failure, What};
use super::server::{Server, Token};
use super::{During, Step};
use crate::spec::{ContainerId, ContainerSpec, check_files, check_tag};

impl Server<'_> {
    pub(super) fn prepare(&mut self, id: u64, spec: Box<ContainerSpec>) {
        self.begin(id, spec, None, true, [None, None, None]);
    }

    /// Prepares a container that nobody will claim: it keeps its namespaces, and what is kept for its program.
    pub(super) fn hold(&mut self, id: u64, spec: Box<ContainerSpec>, kept: Vec<OwnedFd>) {
        let container = spec.id.clone();
        self.prepare(id, spec);
        // Not of another one of that name, which is why this one failed.
        if let Some(entry) = self.containers.get_mut(&container).filter(|entry| entry.asked == id) {
            entry.kept = kept;
        }
    }

    /// Where a container that waits is; its first process is the first of its pid namespace.
    pub(super) fn namespaces(&mut self, container: &ContainerId) -> Result<(Answer, Vec<OwnedFd>), Failure> {
        let entry = self.containers.get(container).filter(|entry| entry.removal.is_none());
        let first =
            entry.and_then(|entry| self.processes.get(&entry.first?)).filter(|first| first.is_waiting());
        let (Some(entry), Some(first)) = (entry, first) else {
            return Err(Failure::NotFound(What::Container, container.to_string()));
        };
        let mut open = self.sandbox_of(&entry.spec)?.namespaces.copies().during(Step::Namespaces)?;
        let path = format!("/proc/{}/ns/pid", first.pid);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        open.push(openat(CWD, path, flags, Mode::empty()).during(Step::Namespaces)?);
        Ok((Answer::Done, open))
    }

    /// Has a prepared container become its program, which happens once.
    pub(super) fn claim(
        &mut self,
        id: u64,
        container: &ContainerId,
        mut claim: Claim,
        mut streams: Vec<OwnedFd>,
    ) -> Result<(), Failure> {
        let tag = claim.program.tag.take();
        check_files(&claim.program.files)
            .and_then(|()| check_tag(tag.as_deref().unwrap_or_default()))
            .map_err(Failure::Invalid)?;
        let given = claim.streams.0.iter().filter(|given| **given).count();
        let kept = streams.split_off(given.min(streams.len()));
        let entry = self.containers.get_mut(container).filter(|entry| entry.removal.is_none());
        let entry = entry.ok_or_else(|| Failure::NotFound(What::Container, container.to_string()))?;
        let first = entry.first.and_then(|first| self.processes.get_mut(&first));
        let Some(first) = first.filter(|first| entry.prepared && first.is_waiting()) else {
            let message = format!("container {:?} does not wait to be told what to run", container.as_str());
            return Err(Failure::Invalid(message));
        };
        if let Some(hostname) = &claim.program.hostname
            && let Some(sandbox) = self.sandboxes.get_mut(&entry.spec.sandbox)
        {
            self.factory.rename(&sandbox.namespaces, hostname)?;
            sandbox.spec.hostname.clone_from(hostname);
        }
        streams.iter().for_each(|stream| child::give(stream, &entry.spec.user, self.hello.rootless));
        let packet = Packet::new(&claim, streams).during(Step::Claim)?;
        match first.claim(id, &packet) {
            // It has ended, and we are yet to hear of that.
            Err(error) if is_gone(&error) => {
                return Err(Failure::NotFound(What::Container, container.to_string()));
            }
            other => other.during(Step::Claim)?,
        }
        super::die_if_asked(self.hello.die_at.as_deref(), "spawner", Step::Claim);
        (entry.asked, entry.kept) = (id, kept);
        entry.spec.tag = tag.unwrap_or_else(|| std::mem::take(&mut entry.spec.tag));
        let first = entry.first.and_then(|number| Some((number, self.processes.get(&number)?.report()?)));
        first.map_or(Ok(()), |(number, report)| self.watch_on(report, Token::Report(number)))
    }
}
