//! First processes of containers that nobody has asked for yet. Each waits in a sandbox that was made ahead of time, in a
//! cgroup of its own, with all mounted that containers have alike, and a root over the image that was asked for last;
//! whoever starts the first container there tells it the rest. It must never matter that there is one: where there is
//! none, or it has ended, a container is made from nothing, and where the image is another one, its root is.

use std::borrow::Cow;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::process::Signal;

use super::channel::Packet;
use super::child::{self, Order, Told};
use super::clone::{self, Born, NEW_MOUNT, NEW_PID};
use super::protocol::{Failure, Streams};
use super::sandbox::Lacking;
use super::server::Server;
use super::{During, Step, channel, scratch_directory};
use crate::cgroup::Group;
use crate::rootfs::delete::delete;
use crate::rootfs::in_memory;
use crate::spec::{ContainerId, Resources, Root, SandboxId};

/// What the machine calls such a process. As long as the kernel lets a name be.
pub(super) const NAME: &std::ffi::CStr = c"agentcube-ahead";

pub(super) struct Embryo {
    pub(super) group: Group,
    born: Born,
    report: OwnedFd,
    /// Takes what is written to the root that it was told to lay.
    pub(super) laid: Option<PathBuf>,
}

impl Embryo {
    /// All that there is of it besides the process.
    pub(super) fn give_back(&self) -> std::io::Result<()> {
        self.group.remove()?;
        self.laid.as_deref().map_or(Ok(()), delete)
    }
}

impl Server<'_> {
    /// Makes something that nobody has asked for.
    pub(super) fn make_ahead(&mut self, lacking: Lacking) {
        match lacking {
            Lacking::Namespaces => self.factory.prepare(),
            Lacking::Embryo(place) => match self.conceive(place) {
                Ok(embryo) => self.factory.ready[place].embryo = Some(embryo),
                // Whoever starts a container is told why.
                Err(_) => self.factory.give_up_embryos(),
            },
            Lacking::Root(place) => self.lay_ahead(place),
        }
    }

    /// What was asked for last may be asked for again.
    pub(super) fn remember_image(&mut self, container: &ContainerId) {
        let spec = &self.containers[container].spec;
        if let Root::Directory(image) = &spec.root
            && !in_memory(spec, self.hello.rootless)
            && self.factory.image.as_ref() != Some(image)
        {
            self.factory.image = Some(image.clone());
        }
    }

    /// Comes back at once.
    fn lay_ahead(&mut self, place: usize) {
        let own = scratch_directory(&self.hello.directory).join(format!(".ahead-{}", self.internal()));
        let (Some(image), Some(embryo)) =
            (self.factory.image.clone(), self.factory.ready[place].embryo.as_mut())
        else {
            return;
        };
        embryo.laid = Some(own.clone());
        // One that has ended is noticed by whoever needs it.
        let _ = Packet::new(&Told::Lay { image, own }, Vec::new()).and_then(|told| told.send(&embryo.report));
    }

    fn conceive(&mut self, place: usize) -> Result<Embryo, Failure> {
        let number = self.internal();
        let group = self.hello.cgroups.group_ahead(number);
        let embryo = group.create(&Resources::default()).during(Step::Cgroup).and_then(|()| {
            let cgroup = group.open().during(Step::Cgroup)?;
            let (ours, theirs) = channel::pair().during(Step::Clone)?;
            let (alike, sandbox) = (self.alike(), &self.factory.ready[place].namespaces);
            let born = clone::clone(NEW_PID | NEW_MOUNT, cgroup.as_ref().map(AsFd::as_fd), || {
                child::embryo(&alike, &group, &theirs, sandbox);
            });
            Ok((born.during(Step::Clone)?, ours))
        });
        match embryo {
            Ok((born, report)) => Ok(Embryo { group, born, report, laid: None }),
            Err(failure) => {
                let _ = group.remove();
                Err(failure)
            }
        }
    }

    /// Has what waits in a container's sandbox become its first process, if anything does.
    pub(super) fn order_embryo(
        &mut self,
        container: &ContainerId,
        streams: &[Option<OwnedFd>; 3],
    ) -> Result<Option<(Born, OwnedFd)>, Failure> {
        let spec = &self.containers[container].spec;
        let waiting = self.sandboxes.get_mut(&spec.sandbox).and_then(|sandbox| sandbox.embryo.take());
        let Some(embryo) = waiting else { return Ok(None) };
        match self.tell(&embryo, container, streams) {
            Ok(true) => {}
            // It has ended while it waited.
            told => {
                let sandbox = self.containers[container].spec.sandbox.clone();
                self.discard(Some(sandbox), Some(embryo));
                return told.map(|_| None);
            }
        }
        let Embryo { group, born, report, laid } = embryo;
        if let Some(entry) = self.containers.get_mut(container) {
            (entry.group, entry.laid) = (group, laid);
        }
        Ok(Some((born, report)))
    }

    /// `false` if it is not there any more.
    fn tell(
        &self,
        embryo: &Embryo,
        container: &ContainerId,
        streams: &[Option<OwnedFd>; 3],
    ) -> Result<bool, Failure> {
        let entry = &self.containers[container];
        embryo.group.limit(&entry.spec.resources).during(Step::Cgroup)?;
        let (data_limit, process_limit) = self.stand_ins(&entry.spec);
        let order = Order {
            spec: Cow::Borrowed(&entry.spec),
            memory: self.memory(container),
            data_limit,
            process_limit,
            streams: Streams(streams.each_ref().map(Option::is_some)),
            prepared: entry.prepared,
        };
        let given = streams.iter().flatten().map(OwnedFd::try_clone).collect::<Result<_, _>>();
        let told = Told::Become(Box::new(order));
        let packet = Packet::new(&told, given.during(Step::Streams)?).during(Step::Clone)?;
        super::die_if_asked(self.hello.die_at.as_deref(), "spawner", Step::Clone);
        match packet.send(&embryo.report) {
            Err(error) if channel::is_gone(&error) => Ok(false),
            sent => sent.during(Step::Clone).map(|()| true),
        }
    }

    pub(super) fn discard_embryo(&mut self, sandbox: &SandboxId) {
        let embryo = self.sandboxes.get_mut(sandbox).and_then(|sandbox| sandbox.embryo.take());
        self.discard(Some(sandbox.clone()), embryo);
    }

    /// Kills it. The rest follows when it has ended.
    pub(super) fn discard(&mut self, of: Option<SandboxId>, embryo: Option<Embryo>) {
        let Some(embryo) = embryo else { return };
        let _ = rustix::process::pidfd_send_signal(&embryo.born.pidfd, Signal::KILL);
        self.discarded.push((of, embryo));
    }

    pub(super) fn is_discarding_in(&self, sandbox: &SandboxId) -> bool {
        self.discarded.iter().any(|(of, _)| of.as_ref() == Some(sandbox))
    }

    pub(super) fn bury_discarded(&mut self) {
        for (of, embryo) in std::mem::take(&mut self.discarded) {
            // An error is that of one who was reaped as a stray.
            let lives = matches!(clone::reap(embryo.born.pidfd.as_fd()), Ok(None));
            let busy = |embryo: &Embryo| {
                embryo.give_back().is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
            };
            if lives || busy(&embryo) {
                self.discarded.push((of, embryo));
            } else if let Some(sandbox) = of {
                self.finish_sandbox(&sandbox);
            }
        }
    }
}
