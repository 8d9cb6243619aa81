//! The life of containers, as the spawner keeps it: cloned, executed, ended, removed.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType};

use super::child::{self, Alike, Common};
use super::clone::{self, Born, Ended, NEW_MOUNT, NEW_PID};
use super::oci::{Drive, Made};
use super::process::{Process, Role};
use super::protocol::{Answer, Failure, Streams, What};
use super::removal::Removal;
use super::server::{Sandbox, Server, Token};
use super::{During, Step, channel};
use crate::Exit;
use crate::cgroup::{Controller, Freezer, Group, Version};
use crate::oci::Program;
use crate::oci::program::Verb;
use crate::rootfs::Fixtures;
use crate::spec::{ContainerId, ContainerSpec, ExecSpec, check_files, check_tag};

type Reply = Result<(Answer, Vec<OwnedFd>), Failure>;

pub(super) struct Container {
    pub(super) spec: Box<ContainerSpec>,
    pub(super) group: Group,
    /// Goes with its scratch directory: what takes the writes to a root that was laid before anybody asked for it.
    pub(super) laid: Option<PathBuf>,
    /// By an OCI runtime.
    pub(super) made: Option<Made>,
    /// The number of its first process, until that is reaped.
    pub(super) first: Option<u64>,
    /// It is not told yet what to run.
    pub(super) prepared: bool,
    /// Its program has been executed.
    pub(super) running: bool,
    /// The cgroup of its program, if that is somebody else's.
    pub(super) program: Option<PathBuf>,
    /// The request under whose number its end is told.
    pub(super) asked: u64,
    /// How its program has ended.
    pub(super) exit: Option<Exit>,
    /// For whoever adopts it.
    pub(super) kept: Vec<OwnedFd>,
    /// Where it was frozen, if it ever was.
    pub(super) freezer: Option<Freezer>,
    /// It stands still, or is about to.
    pub(super) frozen: bool,
    /// It was killed while it stood still.
    pub(super) killed: bool,
    /// How long it goes on after somebody was last heard of.
    pub(super) patience: Option<Duration>,
    /// Processes that are not reaped yet, the first among them.
    pub(super) processes: usize,
    pub(super) removal: Option<Removal>,
}

impl Container {
    /// All that it may have written to.
    pub(super) fn written(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.spec.scratch.as_path()).chain(self.laid.as_deref())
    }
}

impl Streams {
    /// Puts the descriptors of a message in their places; the rest is what is to be kept.
    pub(super) fn split(self, descriptors: Vec<OwnedFd>) -> ([Option<OwnedFd>; 3], Vec<OwnedFd>) {
        let mut descriptors = descriptors.into_iter();
        let streams = self.0.map(|given| if given { descriptors.next() } else { None });
        (streams, descriptors.collect())
    }
}

impl Server<'_> {
    pub(super) fn start(
        &mut self,
        id: u64,
        spec: Box<ContainerSpec>,
        by: Option<Program>,
        streams: [Option<OwnedFd>; 3],
        kept: Vec<OwnedFd>,
    ) {
        let container = spec.id.clone();
        self.begin(id, spec, by.map(Made::new), false, streams);
        if let Some(entry) = self.containers.get_mut(&container).filter(|entry| entry.asked == id) {
            entry.kept = kept;
        }
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
        let entry = Container {
            spec,
            group,
            laid: None,
            made,
            first: None,
            prepared,
            running: false,
            program: None,
            asked: id,
            exit: None,
            kept: Vec::new(),
            freezer: None,
            frozen: false,
            killed: false,
            patience: None,
            processes: 0,
            removal: None,
        };
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
        self.sandbox_of(spec)?;
        super::die_if_asked(self.hello.die_at.as_deref(), "spawner", Step::Cgroup);
        if let Some(program) = entry.made.as_ref().map(|made| made.program.clone()) {
            if !spec.files.is_empty() {
                let message = format!("{} cannot be given files: use the native runtime", program.kind);
                return Err(Failure::Unsupported(message));
            }
            // What waits in the sandbox is of no use to others.
            let of = spec.sandbox.clone();
            entry.group.create(&spec.resources).during(Step::Cgroup)?;
            self.discard_embryo(&of);
            return self.create_by(id, &program, container, streams);
        }
        self.remember_image(container);
        let (born, ours) = match self.order_embryo(container, &streams)? {
            Some(told) => told,
            None => self.clone_container(container, streams)?,
        };
        self.adopt(id, Role::First(container.clone()), born, ours)?;
        if let Some(entry) = self.containers.get_mut(container) {
            // The clone has its own; what is kept here may be copied to others.
            entry.spec.files = Vec::new();
        }
        super::die_if_asked(self.hello.die_at.as_deref(), "spawner", Step::Exec);
        Ok(())
    }

    /// From nothing.
    fn clone_container(
        &self,
        container: &ContainerId,
        streams: [Option<OwnedFd>; 3],
    ) -> Result<(Born, OwnedFd), Failure> {
        let entry = &self.containers[container];
        let sandbox = self.sandbox_of(&entry.spec)?;
        entry.group.create(&entry.spec.resources).during(Step::Cgroup)?;
        super::die_if_asked(self.hello.die_at.as_deref(), "spawner", Step::Clone);
        let cgroup = entry.group.open().during(Step::Cgroup)?;
        let (ours, theirs) = channel::pair().during(Step::Clone)?;
        let common = self.common(entry, streams);
        let born = clone::clone(NEW_PID | NEW_MOUNT, cgroup.as_ref().map(AsFd::as_fd), || {
            let become_it = if entry.prepared { child::prepared } else { child::container };
            become_it(&common, &theirs, &sandbox.namespaces);
        });
        Ok((born.during(Step::Clone)?, ours))
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

    pub(super) fn alike(&self) -> Alike<'_> {
        let fixtures = Fixtures {
            template: &self.template,
            rootless: self.hello.rootless,
            unified_cgroups: self.hello.cgroups.version() == Version::V2,
        };
        let (filter, open_files) = (&self.filter, self.open_files);
        Alike { fixtures, filter, open_files, die_at: self.hello.die_at.as_deref() }
    }

    pub(super) fn common<'b>(
        &'b self,
        container: &'b Container,
        streams: [Option<OwnedFd>; 3],
    ) -> Common<'b> {
        let (data_limit, process_limit) = self.stand_ins(&container.spec);
        Common {
            alike: self.alike(),
            spec: &container.spec,
            group: &container.group,
            memory: self.memory(&container.spec.id),
            data_limit,
            process_limit,
            streams,
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
        if entry.frozen {
            let message = format!("container {:?} is frozen: thaw it first", container.as_str());
            return Err(Failure::Invalid(message));
        }
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
        let common = self.common(entry, streams);
        // The clone is born into the pid namespace that we have set for our children.
        let pids = ThreadNameSpaceType::PROCESS_ID;
        match rustix::thread::move_into_thread_name_spaces(first.pidfd.as_fd(), pids) {
            // It has ended, and we are yet to hear of it.
            Err(rustix::io::Errno::SRCH) => return Err(not_running()),
            other => other.during(Step::Join)?,
        }
        let born = clone::clone(0, cgroup.as_ref().map(AsFd::as_fd), || {
            child::exec(&common, &theirs, first.pidfd.as_fd(), spec);
        });
        let back = LinkNameSpaceType::ProcessID;
        if let Err(error) = rustix::thread::move_into_link_name_space(self.own_pids.as_fd(), Some(back)) {
            // All that we would start from now on would be born into this container.
            eprintln!("agentcube spawner: cannot return from a container's pid namespace: {error}");
            std::process::exit(1);
        }
        drop((common, theirs));
        self.adopt(id, Role::Exec(container.clone()), born.during(Step::Clone)?, ours)
    }

    pub(super) fn signal(&mut self, id: u64, container: &ContainerId, signal: i32) -> Result<(), Failure> {
        let entry = self.containers.get_mut(container);
        let entry = entry.ok_or_else(|| Failure::NotFound(What::Container, container.to_string()))?;
        if !(1..=64).contains(&signal) {
            return Err(Failure::Invalid(format!("{signal} is not the number of a signal")));
        }
        if entry.frozen && signal == libc::SIGKILL {
            entry.kill_frozen();
            self.answer(id, Answer::Done, Vec::new());
            return Ok(());
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
            Role::Delete(_) | Role::Freeze(_) | Role::Drive(..) => return,
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
        if matches!(process.role, Role::Freeze(_)) {
            return self.froze(id, &container, process);
        }
        let exit = exit(ended, &entry.group);
        let (settled, asked) = (process.is_settled(), process.asked);
        match process.role {
            Role::First(_) => {
                entry.first = None;
                entry.running = false;
                if entry.frozen {
                    // Nothing else of it is to be held.
                    entry.let_go();
                }
                if settled {
                    entry.exit = Some(exit);
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
            Role::Freeze(_) | Role::Drive(..) => {}
        }
        self.advance_removal(&container);
    }
}

fn unexplained() -> Failure {
    Failure::Step(Step::Clone, "the process ended before its program was executed".to_owned())
}

pub(super) fn exit(ended: Ended, group: &Group) -> Exit {
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
    check_files(&spec.files).and_then(|()| check_tag(&spec.tag)).map_err(Failure::Invalid)?;
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
