//! Containers that stand still. A process of its own does the freezing: it moves processes and waits for them, and the
//! spawner never waits.

use super::channel;
use super::clone;
use super::process::{Process, Role};
use super::protocol::{Answer, Failure, What};
use super::server::Server;
use super::{During, Step};
use crate::cgroup::Freezer;
use crate::oci::Kind;
use crate::spec::ContainerId;

/// A freeze or thaw that has to wait until something else of its container is done.
pub(super) struct Late {
    id: u64,
    container: ContainerId,
    frozen: bool,
}

impl Server<'_> {
    pub(super) fn freeze(&mut self, id: u64, container: &ContainerId, frozen: bool) {
        let waits = self.late.iter().any(|late| &late.container == container);
        if waits || self.must_wait(container, frozen) {
            self.late.push(Late { id, container: container.clone(), frozen });
            return;
        }
        let result = if frozen { self.begin_freeze(id, container) } else { self.thaw(container).map(Some) };
        match result {
            Ok(Some(answer)) => self.answer(id, answer, Vec::new()),
            Ok(None) => {}
            Err(failure) => self.answer(id, Answer::Failed(failure), Vec::new()),
        }
    }

    /// One freeze at a time; and none while a program is on its way into the container, which might arrive too late to be
    /// stopped.
    fn must_wait(&self, container: &ContainerId, frozen: bool) -> bool {
        self.processes.values().filter(|process| process.role.container() == container).any(|process| {
            matches!(process.role, Role::Freeze(_))
                || frozen && !process.is_settled() && !process.is_waiting()
        })
    }

    pub(super) fn retry_late(&mut self) {
        for Late { id, container, frozen } in std::mem::take(&mut self.late) {
            self.freeze(id, &container, frozen);
        }
    }

    /// The answer, unless that comes later.
    fn begin_freeze(&mut self, id: u64, container: &ContainerId) -> Result<Option<Answer>, Failure> {
        let entry = self.containers.get_mut(container).filter(|entry| entry.removal.is_none());
        let entry = entry.ok_or_else(|| Failure::NotFound(What::Container, container.to_string()))?;
        if !entry.running && entry.program.is_none() {
            return Err(Failure::Invalid(format!("container {:?} is not running", container.as_str())));
        }
        if entry.frozen {
            return Ok(Some(Answer::Done));
        }
        if entry.made.as_ref().is_some_and(|made| made.program.kind == Kind::Runsc) {
            // Tried: they end when they are frozen or thawed.
            return Err(Failure::Unsupported(
                "containers by runsc cannot be frozen: use another runtime".to_owned(),
            ));
        }
        if entry.freezer.is_none() {
            entry.freezer = entry.group.freezer(entry.program.as_deref());
        }
        let group = entry.program.as_deref().or(entry.group.first());
        let (Some(freezer), Some(group)) = (entry.freezer.clone(), group) else {
            return Err(Failure::Unsupported(crate::cgroup::NO_FREEZER.to_owned()));
        };
        let (ours, theirs) = channel::pair().during(Step::Clone)?;
        let born = clone::clone(0, None, || {
            super::removal::tell(&theirs, freezer.freeze(group).during(Step::Freeze));
        });
        drop(theirs);
        let born = born.during(Step::Clone)?;
        super::die_if_asked(self.hello.die_at.as_deref(), "spawner", Step::Freeze);
        // From here on nothing is started in it.
        entry.frozen = true;
        self.adopt(id, Role::Freeze(container.clone()), born, ours)?;
        Ok(None)
    }

    fn thaw(&mut self, container: &ContainerId) -> Result<Answer, Failure> {
        let entry = self.containers.get_mut(container).filter(|entry| entry.removal.is_none());
        let entry = entry.ok_or_else(|| Failure::NotFound(What::Container, container.to_string()))?;
        if let Some(freezer) = entry.freezer.as_ref().filter(|_| entry.frozen) {
            freezer.thaw().during(Step::Freeze)?;
        }
        entry.frozen = false;
        Ok(Answer::Done)
    }

    /// The process that freezes has ended.
    pub(super) fn froze(&mut self, id: u64, container: &ContainerId, mut process: Process) {
        let outcome = process.outcome();
        let Some(entry) = self.containers.get_mut(container) else { return };
        if outcome.is_err() || entry.killed {
            entry.let_go();
        }
        let answer = outcome.map_or_else(Answer::Failed, |_| Answer::Done);
        self.answer(id, answer, Vec::new());
        self.advance_removal(container);
    }
}

impl super::containers::Container {
    /// Lets the killed end.
    pub(super) fn let_go(&mut self) {
        self.frozen = false;
        let _ = self.freezer.as_ref().map(Freezer::thaw);
    }

    /// Kills all of a frozen container, and lets none of it run before it is dead.
    pub(super) fn kill_frozen(&mut self) {
        self.killed = true;
        self.group.kill();
        if self.freezer.as_ref().is_some_and(Freezer::holds_the_killed) {
            self.let_go();
        }
    }
}
