//! The life of containers, as the spawner keeps it: cloned, executed, ended, removed.

use std::os::fd::{AsFd, OwnedFd};

use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType};

use super::child::{self, Common, Report};
use super::clone::{self, Born, Ended, NEW_MOUNT, NEW_PID};
use super::oci::{Drive, Made};
use super::process::{Process, Role};
use super::protocol::{Answer, Failure, Streams, What};
use super::server::{Sandbox, Server, Token};
use super::{During, Step, channel};
use crate::Exit;
use crate::cgroup::{Controller, Group, Version};
use crate::oci::Program;
use crate::oci::program::Verb;
use crate::rootfs::delete::delete;
use crate::rootfs::in_memory;
use crate::spec::{ContainerId, ContainerSpec, ExecSpec};

type Reply = Result<(Answer, Vec<OwnedFd>), Failure>;

pub(super) struct Container {
    pub(super) spec: Box<ContainerSpec>,
    pub(super) group: Group,
    /// By an OCI runtime.
    pub(super) made: Option<Made>,
    /// The number of its first process, until that is reaped.
    pub(super) first: Option<u64>,
    /// It is not told yet what to run.
    pub(super) prepared: bool,
    /// Its program has been executed.
    pub(super) running: bool,
    /// Processes that are not reaped yet, the first among them.
    processes: usize,
    pub(super) removal: Option<Removal>,
}

/// Who waits for a container to be gone, and what each is to be told.
#[derive(Default)]
pub(super) struct Removal {
    waiting: Vec<(u64, Answer)>,
    deleting: bool,
}

impl Streams {
    /// Puts the descriptors of a message in their places.
    pub(super) fn attach(self, descriptors: Vec<OwnedFd>) -> [Option<OwnedFd>; 3] {
        let mut descriptors = descriptors.into_iter();
        self.0.map(|given| if given { descriptors.next() } else { None })
    }
}

impl Server<'_> {
    pub(super) fn start(
        &mut self,
        id: u64,
        spec: Box<ContainerSpec>,
        by: Option<Program>,
        streams: [Option<OwnedFd>; 3],
    ) {
        self.begin(id, spec, by.map(Made::new), false, streams);
    }

    /// A start that fails leaves nothing behind, not even the scratch directory.
    pub(super) fn begin(
        &mut self,
        id: u64,
        spec: Box<ContainerSpec>,
        made: Option<Made>,
        prepared: bool,
        streams: [Option<OwnedFd>; 3],
    ) {
        let container = spec.id.clone();
        if self.containers.contains_key(&container) {
            let failure = Failure::Exists(What::Container, container.to_string());
            return self.answer(id, Answer::Failed(failure), Vec::new());
        }
        let group = self.hello.cgroups.group(&container);
        let (first, running, processes, removal) = (None, false, 0, None);
        let entry = Container { spec, group, made, first, prepared, running, processes, removal };
        self.containers.insert(container.clone(), entry);
        if let Err(failure) = self.clone_first(id, &container, streams) {
            self.begin_removal(&container, Some((id, Answer::Failed(failure))));
        }
    }

    fn clone_first(
        &mut self,
        id: u64,
        container: &ContainerId,
        streams: [Option<OwnedFd>; 3],
    ) -> Result<(), Failure> {
        let entry = &self.containers[container];
        let spec = &entry.spec;
        check(spec)?;
        let sandbox = self.sandbox_of(spec)?;
        super::die_if_asked(self.hello.die_at.as_deref(), "spawner", Step::Cgroup);
        entry.group.create(&spec.resources).during(Step::Cgroup)?;
        super::die_if_asked(self.hello.die_at.as_deref(), "spawner", Step::Clone);
        if let Some(program) = entry.made.as_ref().map(|made| made.program.clone()) {
            return self.create_by(id, &program, container, streams);
        }
        let cgroup = entry.group.open().during(Step::Cgroup)?;
        let (ours, theirs) = channel::pair().during(Step::Clone)?;
        let common = self.common(entry, streams, theirs);
        let born = clone::clone(NEW_PID | NEW_MOUNT, cgroup.as_ref().map(AsFd::as_fd), || {
            let become_it = if entry.prepared { child::prepared } else { child::container };
            become_it(&common, &sandbox.namespaces, &self.template);
        });
        drop(common);
        self.adopt(id, Role::First(container.clone()), born.during(Step::Clone)?, ours)?;
        super::die_if_asked(self.hello.die_at.as_deref(), "spawner", Step::Exec);
        Ok(())
    }

    pub(super) fn sandbox_of(&self, spec: &ContainerSpec) -> Result<&Sandbox, Failure> {
        let sandbox = self.sandboxes.get(&spec.sandbox).filter(|sandbox| sandbox.removing.is_none());
        sandbox.ok_or_else(|| Failure::NotFound(What::Sandbox, spec.sandbox.to_string()))
    }

    /// Limits of each process, of data and of processes, where this machine lacks the controller for it.
    pub(super) fn stand_ins(&self, spec: &ContainerSpec) -> (Option<u64>, Option<u64>) {
        let lacks = |controller| !self.hello.cgroups.has(controller);
        (
            spec.resources.memory_bytes.filter(|_| lacks(Controller::Memory)),
            spec.resources.processes.filter(|_| lacks(Controller::Pids)),
        )
    }

    pub(super) fn common<'b>(
        &'b self,
        container: &'b Container,
        streams: [Option<OwnedFd>; 3],
        report: OwnedFd,
    ) -> Common<'b> {
        let (data_limit, process_limit) = self.stand_ins(&container.spec);
        Common {
            spec: &container.spec,
            group: &container.group,
            memory: self.memory(&container.spec.id),
            filter: &self.filter,
            rootless: self.hello.rootless,
            unified_cgroups: self.hello.cgroups.version() == Version::V2,
            data_limit,
            process_limit,
            open_files: self.open_files,
            streams,
            report,
            die_at: self.hello.die_at.as_deref(),
        }
    }

    /// Watches over a process that was just made.
    pub(super) fn adopt(&mut self, id: u64, role: Role, born: Born, report: OwnedFd) -> Result<(), Failure> {
        let prepared = self.containers.get(role.container()).is_some_and(|container| container.prepared);
        let token = if prepared { Token::News(id) } else { Token::Report(id) };
        let watched = channel::set_nonblocking(&report)
            .during(Step::Clone)
            .and_then(|()| self.watch(report.as_fd(), token))
            .and_then(|()| self.watch(born.pidfd.as_fd(), Token::Exit(id)));
        if let Err(failure) = watched {
            let _ = rustix::process::pidfd_send_signal(&born.pidfd, Signal::KILL);
            let _ = clone::wait(born.pidfd.as_fd());
            return Err(failure);
        }
        self.admit(id, Process::new(id, role, born, report));
        Ok(())
    }

    pub(super) fn admit(&mut self, id: u64, process: Process) {
        if let Some(container) = self.containers.get_mut(process.role.container()) {
            container.processes += 1;
            if matches!(process.role, Role::First(_)) {
                container.first = Some(id);
            }
        }
        self.processes.insert(id, process);
    }

    pub(super) fn exec(
        &mut self,
        id: u64,
        container: &ContainerId,
        spec: &ExecSpec,
        streams: [Option<OwnedFd>; 3],
    ) -> Result<(), Failure> {
        let entry = self.containers.get(container);
        let entry = entry.ok_or_else(|| Failure::NotFound(What::Container, container.to_string()))?;
        let first = entry.first.filter(|_| entry.running && entry.removal.is_none());
        let not_running = || Failure::Invalid(format!("container {:?} is not running", container.as_str()));
        let first = first.and_then(|first| self.processes.get(&first)).ok_or_else(not_running)?;
        if let Some(user) = &spec.user
            && self.hello.rootless
            && (user.uid, user.gid) != (entry.spec.user.uid, entry.spec.user.gid)
        {
            let message = "without root, a container has one user only: its own";
            return Err(Failure::Unsupported(message.to_owned()));
        }
        if let Some(program) = entry.made.as_ref().map(|made| made.program.clone()) {
            return self.exec_by(id, &program, container, spec, streams);
        }
        let cgroup = entry.group.open().during(Step::Cgroup)?;
        let (ours, theirs) = channel::pair().during(Step::Clone)?;
        let common = self.common(entry, streams, theirs);
        // The clone is born into the pid namespace that we have set for our children.
        let pids = ThreadNameSpaceType::PROCESS_ID;
        match rustix::thread::move_into_thread_name_spaces(first.pidfd.as_fd(), pids) {
            // It has ended, and we are yet to hear of it.
            Err(rustix::io::Errno::SRCH) => return Err(not_running()),
            other => other.during(Step::Join)?,
        }
        let born = clone::clone(0, cgroup.as_ref().map(AsFd::as_fd), || {
            child::exec(&common, first.pidfd.as_fd(), spec);
        });
        let back = LinkNameSpaceType::ProcessID;
        if let Err(error) = rustix::thread::move_into_link_name_space(self.own_pids.as_fd(), Some(back)) {
            // All that we would start from now on would be born into this container.
            eprintln!("agentcube spawner: cannot return from a container's pid namespace: {error}");
            std::process::exit(1);
        }
        drop(common);
        self.adopt(id, Role::Exec(container.clone()), born.during(Step::Clone)?, ours)
    }

    pub(super) fn signal(&mut self, id: u64, container: &ContainerId, signal: i32) -> Result<(), Failure> {
        let entry = self.containers.get(container);
        let entry = entry.ok_or_else(|| Failure::NotFound(What::Container, container.to_string()))?;
        if !(1..=64).contains(&signal) {
            return Err(Failure::Invalid(format!("{signal} is not the number of a signal")));
        }
        if let Some(first) = entry.first.and_then(|first| self.processes.get(&first)) {
            let program = entry.made.as_ref().filter(|_| entry.running).map(|made| made.program.clone());
            if let Some(program) = program.filter(|program| !program.kind.signals_directly(signal)) {
                return self.ask_by(id, &program, container, Drive::Signal, Verb::Kill(signal));
            }
            match send_signal(&first.pidfd, signal) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                other => other.during(Step::Signal)?,
            }
        }
        self.answer(id, Answer::Done, Vec::new());
        Ok(())
    }

    pub(super) fn usage(&mut self, container: &ContainerId) -> Reply {
        let entry = self.containers.get(container);
        let entry = entry.ok_or_else(|| Failure::NotFound(What::Container, container.to_string()))?;
        Ok((Answer::Usage(entry.group.usage()), Vec::new()))
    }

    /// A child has reported something, or closed its side.
    pub(super) fn report(&mut self, id: u64) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        if process.is_settled() {
            return;
        }
        let Some(closed) = process.hear() else {
            if process.is_waiting() {
                self.answer(id, Answer::Done, Vec::new());
            }
            return;
        };
        self.unwatch(closed.as_fd());
        let Some(process) = self.processes.get_mut(&id) else { return };
        // What failed is answered when it is reaped and cleaned up.
        let Ok(terminal) = process.outcome() else { return };
        process.settle();
        let (pid, asked) = (process.pid, process.asked);
        match &process.role {
            Role::Delete(_) | Role::Drive(..) => return,
            Role::Exec(_) => {}
            Role::First(container) => {
                if let Some(entry) = self.containers.get_mut(container) {
                    entry.running = true;
                }
            }
        }
        self.answer(asked, Answer::Started { pid }, terminal.into_iter().collect());
    }

    /// A child has ended.
    pub(super) fn exited(&mut self, id: u64) {
        // First what it has said: the order of the two events is not that of what happened.
        self.report(id);
        let Some(process) = self.processes.get(&id) else { return };
        let Ok(Some(ended)) = clone::reap(process.pidfd.as_fd()) else { return };
        let Some(mut process) = self.processes.remove(&id) else { return };
        self.unwatch(process.pidfd.as_fd());
        process.report().into_iter().for_each(|report| self.unwatch(report));
        let container = process.role.container().clone();
        let Some(entry) = self.containers.get_mut(&container) else { return };
        entry.processes -= 1;
        if let Role::Drive(_, drive) = process.role {
            return self.drove(id, &container, drive, process, ended);
        }
        let exit = exit(ended, &entry.group);
        let (settled, asked) = (process.is_settled(), process.asked);
        match process.role {
            Role::First(_) => {
                entry.first = None;
                entry.running = false;
                if settled {
                    self.send_exit(asked, exit);
                } else if let Some(made) = &mut entry.made {
                    made.early = Some((process, exit));
                } else {
                    let failure = process.outcome().err().unwrap_or_else(unexplained);
                    self.begin_removal(&container, Some((asked, Answer::Failed(failure))));
                }
            }
            Role::Exec(_) if settled => self.send_exit(id, exit),
            Role::Exec(_) => {
                let failure = process.outcome().err().unwrap_or_else(unexplained);
                self.answer(id, Answer::Failed(failure), Vec::new());
            }
            Role::Delete(_) => return self.removed(&container, process.outcome().err()),
            Role::Drive(..) => {}
        }
        self.advance_removal(&container);
    }

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
        let Some(removal) = &mut entry.removal else { return };
        match entry.group.remove() {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                return self.busy.push(container.clone());
            }
            Err(error) => eprintln!("agentcube spawner: cannot remove the cgroup of {container}: {error}"),
            Ok(()) => {}
        }
        removal.deleting = true;
        // A container that has written nothing leaves nothing to go through.
        match std::fs::remove_dir(&entry.spec.scratch) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {}
            _ => return self.removed(container, None),
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
        let scratch = &self.containers[container].spec.scratch;
        let (ours, theirs) = channel::pair().during(Step::Clone)?;
        let born = clone::clone(0, None, || {
            let report = match delete(scratch).during_at(Step::Scratch, scratch.display()) {
                Ok(()) => Report::Ready,
                Err(failure) => Report::Failed(failure),
            };
            if let Ok(packet) = channel::Packet::new(&report, Vec::new()) {
                let _ = packet.send(&theirs);
            }
        });
        drop(theirs);
        let id = self.internal();
        self.adopt(id, Role::Delete(container.clone()), born.during(Step::Clone)?, ours)
    }

    pub(super) fn internal(&mut self) -> u64 {
        self.next_internal -= 1;
        self.next_internal
    }

    fn removed(&mut self, container: &ContainerId, failure: Option<Failure>) {
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
        clone::kill_all();
        for container in self.containers.values() {
            let _ = container.group.remove();
            let _ = delete(&container.spec.scratch);
        }
        self.hello.cgroups.remove();
        if self.strays {
            // OCI runtimes make groups in hierarchies that we do not use.
            let directories = crate::cgroup::possible_directories(&self.hello.node).unwrap_or_default();
            directories.iter().for_each(|directory| drop(crate::cgroup::remove(directory)));
        }
    }
}

fn unexplained() -> Failure {
    Failure::Step(Step::Clone, "the process ended before its program was executed".to_owned())
}

fn exit(ended: Ended, group: &Group) -> Exit {
    let out_of_memory = group.out_of_memory_kills() > 0;
    match ended {
        Ended::Code(code) => Exit { code, signal: None, out_of_memory },
        Ended::Signal(signal) => Exit { code: 128 + signal, signal: Some(signal), out_of_memory },
    }
}

fn check(spec: &ContainerSpec) -> Result<(), Failure> {
    let absolute = |path: &std::path::Path, what: &str| {
        let message = || Failure::Invalid(format!("{what} {} is not an absolute path", path.display()));
        if path.is_absolute() { Ok(()) } else { Err(message()) }
    };
    absolute(&spec.scratch, "the scratch directory")?;
    absolute(&spec.cwd, "the working directory")?;
    spec.mounts.iter().try_for_each(|mount| absolute(&mount.target, "the mount's target"))
}

fn send_signal(pidfd: &OwnedFd, signal: i32) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: a system call with no memory of ours; a null pointer asks for the default information.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if sent == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
