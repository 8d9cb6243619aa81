//! The built-in runtime: containers made by the spawner, without any other program.

use crate::spawner::Handle;
use crate::spec::{ContainerId, ContainerSpec, ExecSpec, Program};
use crate::{Answer, Error, Process, Runtime, Stdio, Usage};

#[derive(Clone)]
pub struct Native {
    spawner: Handle,
}

impl Native {
    pub fn new(spawner: Handle) -> Self {
        Self { spawner }
    }
}

impl Native {
    /// Makes all of a container but its program: namespaces, limits, file system, user and filter are those of the spec,
    /// and its first process waits to be told what to run. The spec's arguments are not looked at.
    pub async fn prepare(&self, spec: ContainerSpec) -> Result<(), Error> {
        self.spawner.prepare(spec).await
    }

    /// Has a prepared container run its program, which happens once; resolves when it has been executed. One that cannot
    /// be is gone afterwards, as after a [`Runtime::start`] that failed.
    pub async fn claim(&self, id: &ContainerId, program: Program, stdio: Stdio) -> Result<Process, Error> {
        self.spawner.claim(id, program, stdio).await
    }
}

impl Runtime for Native {
    fn start<'a>(&'a self, spec: ContainerSpec, stdio: Stdio) -> Answer<'a, Process> {
        Box::pin(self.spawner.start(spec, None, stdio))
    }

    fn signal<'a>(&'a self, id: &'a ContainerId, signal: i32) -> Answer<'a, ()> {
        Box::pin(self.spawner.signal(id, signal))
    }

    fn exec<'a>(&'a self, id: &'a ContainerId, spec: ExecSpec, stdio: Stdio) -> Answer<'a, Process> {
        Box::pin(self.spawner.exec(id, spec, stdio))
    }

    fn remove<'a>(&'a self, id: &'a ContainerId) -> Answer<'a, ()> {
        Box::pin(self.spawner.remove_container(id))
    }

    fn freeze<'a>(&'a self, id: &'a ContainerId, frozen: bool) -> Answer<'a, ()> {
        Box::pin(self.spawner.freeze(id, frozen))
    }

    fn usage<'a>(&'a self, id: &'a ContainerId) -> Answer<'a, Usage> {
        Box::pin(self.spawner.usage(id))
    }
}
