//! The built-in runtime: containers made by the spawner, without any other program.

use crate::spawner::Handle;
use crate::spec::{ContainerId, ContainerSpec, ExecSpec};
use crate::{Answer, Process, Runtime, Stdio, Usage};

#[derive(Clone)]
pub struct Native {
    spawner: Handle,
}

impl Native {
    pub fn new(spawner: Handle) -> Self {
        Self { spawner }
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

    fn usage<'a>(&'a self, id: &'a ContainerId) -> Answer<'a, Usage> {
        Box::pin(self.spawner.usage(id))
    }
}
