//! The end of containers: killed, reaped, and all that they had given back.

use std::os::fd::OwnedFd;

use rustix::process::Signal;

use super::child::Report;
use super::process::{Process, Role};
use super::protocol::{Answer, Failure};
use super::server::Server;
use super::{During, Step, channel, clone};
use crate::cgroup::Freezer;
use crate::rootfs::delete::delete;
use crate::rootfs::in_memory;
use crate::spec::ContainerId;

/// Who waits for a container to be gone, and what each is to be told.
#[derive(Default)]
pub(super) struct Removal {
    waiting: Vec<(u64, Answer)>,
    deleting: bool,
}

impl Server<'_> {
    pub(super) fn remove(&mut self, id: u64, container: &ContainerId) {
        if self.containers.contains_key(container) {
            self.begin_removal(container, Some((id, Answer::Done)));
        } else {
            self.answer(id, Answer::Done, Vec::new());
        }
    }

    /// Kills what runs. The rest follows when it has ended.
    pub(super) fn begin_removal(&mut self, container: &ContainerId, waiting: Option<(u64, Answer)>) {
        let Some(entry) = self.containers.get_mut(container) else { return };
        let removal = entry.removal.get_or_insert_default();
        removal.waiting.extend(waiting);
        if entry.frozen {
            entry.kill_frozen();
        }
        if entry.made.is_some() {
            let of_it = |process: &&Process| process.role.container() == container;
            for process in self.processes.values().filter(of_it).filter(|process| process.role.is_instance())
            {
                let _ = rustix::process::pidfd_send_signal(&process.pidfd, Signal::KILL);
            }
        } else if let Some(first) = entry.first.and_then(|first| self.processes.get(&first)) {
            // With it, the kernel kills all others of its pid namespace.
            let _ = rustix::process::pidfd_send_signal(&first.pidfd, Signal::KILL);
        }
        self.advance_removal(container);
    }

    pub(super) fn advance_removal(&mut self, container: &ContainerId) {
        let Some(entry) = self.containers.get_mut(container) else { return };
        let Some(removal) = &mut entry.removal else { return };
        if entry.processes > 0 || removal.deleting {
            return;
        }
        if entry.made.is_some() && !self.forget(container) {
            return;
        }
        let Some(entry) = self.containers.get_mut(container) else { return };
        let freezer = entry.freezer.as_ref().map_or(Ok(()), Freezer::remove);
        match freezer.and_then(|()| entry.group.remove()) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                return self.busy.push(container.clone());
            }
            Err(error) => eprintln!("agentcube spawner: cannot remove the cgroup of {container}: {error}"),
            Ok(()) => {}
        }
        entry.removal.get_or_insert_default().deleting = true;
        // A container that has written nothing leaves nothing to go through.
        let left =
            |path| std::fs::remove_dir(path).is_err_and(|error| error.kind() != std::io::ErrorKind::NotFound);
        if !entry.written().any(left) {
            return self.removed(container, None);
        }
        if let Err(failure) = self.clone_deleter(container) {
            self.removed(container, Some(failure));
        }
    }

    pub(super) fn retry_busy(&mut self) {
        for container in std::mem::take(&mut self.busy) {
            self.advance_removal(&container);
        }
    }

    /// A process of its own, because a directory may be large.
    fn clone_deleter(&mut self, container: &ContainerId) -> Result<(), Failure> {
        let entry = &self.containers[container];
        let (ours, theirs) = channel::pair().during(Step::Clone)?;
        let born = clone::clone(0, None, || {
            let all =
                entry.written().try_for_each(|path| delete(path).during_at(Step::Scratch, path.display()));
            tell(&theirs, all);
        });
        drop(theirs);
        let id = self.internal();
        self.adopt(id, Role::Delete(container.clone()), born.during(Step::Clone)?, ours)
    }

    pub(super) fn internal(&mut self) -> u64 {
        self.next_internal -= 1;
        self.next_internal
    }

    pub(super) fn removed(&mut self, container: &ContainerId, failure: Option<Failure>) {
        let Some(entry) = self.containers.remove(container) else { return };
        if entry.made.is_some() {
            let _ = std::fs::remove_dir_all(self.bundle(container));
        }
        if in_memory(&entry.spec, self.hello.rootless) {
            let _ = delete(&self.memory(container));
        }
        for (id, answer) in entry.removal.unwrap_or_default().waiting {
            let answer = match (answer, &failure) {
                (Answer::Done, Some(failure)) => Answer::Failed(failure.clone()),
                (answer, _) => answer,
            };
            self.answer(id, answer, Vec::new());
        }
        self.finish_sandbox(&entry.spec.sandbox);
    }

    /// The node is gone: everything is killed and, as far as that is quick, given back.
    pub(super) fn end(&mut self) {
        for container in self.containers.values_mut().filter(|container| container.frozen) {
            container.kill_frozen();
        }
        clone::kill_all();
        for container in self.containers.values() {
            let _ = container.freezer.as_ref().map(Freezer::remove);
            let _ = container.group.remove();
            container.written().for_each(|path| drop(delete(path)));
        }
        let ready = self.factory.ready.iter().filter_map(|ready| ready.embryo.as_ref());
        let given = self.sandboxes.values().filter_map(|sandbox| sandbox.embryo.as_ref());
        for embryo in ready.chain(given).chain(self.discarded.iter().map(|(_, embryo)| embryo)) {
            let _ = embryo.give_back();
        }
        self.hello.cgroups.remove();
        if self.strays {
            // OCI runtimes make groups in hierarchies that we do not use.
            let directories = crate::cgroup::possible_directories(&self.hello.node).unwrap_or_default();
            directories.iter().for_each(|directory| drop(crate::cgroup::remove(directory)));
        }
    }
}

/// What a process of ours that did some work has to say of it.
pub(super) fn tell(report: &OwnedFd, result: Result<(), Failure>) {
    let report_of = result.map_or_else(Report::Failed, |()| Report::Ready);
    if let Ok(packet) = channel::Packet::new(&report_of, Vec::new()) {
        let _ = packet.send(report);
    }
}
