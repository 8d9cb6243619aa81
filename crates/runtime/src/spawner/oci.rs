//! Containers of OCI runtimes, as the spawner keeps them. For each step the runtime's program is run as a child, in mounts
//! of its own; what it leaves running becomes our child too, because we are the first process of this pid namespace.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{Pid, PidfdFlags, Rlimit, pidfd_open};

use super::child::{self, Common};
use super::clone::{self, Born, Ended, NEW_MOUNT};
use super::console;
use super::containers::exit;
use super::process::{Process, Role};
use super::protocol::{Answer, Failure};
use super::server::{Server, Token};
use super::{During, Step, channel};
use crate::Exit;
use crate::oci::bundle::{self, Config, Surroundings};
use crate::oci::program::{Verb, complaint};
use crate::oci::{Kind, Program};
use crate::rootfs::Builder;
use crate::rootfs::mount::{self, NO_DEV, NO_EXEC, NO_SUID};
use crate::spec::{ContainerId, ContainerSpec, ExecSpec};

/// Bundles and the runtimes' state. A configuration may be as large as its environment.
const STATE_BYTES: &str = "256m";
/// As much of a runtime's log as is looked at.
const LOG_BYTES: u64 = 64 * 1024;
/// Where a runtime finds what helpers it has.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What is kept of a container that an OCI runtime has made.
pub(super) struct Made {
    pub(super) program: Program,
    /// Its first process ended before its start was told.
    pub(super) early: Option<(Process, Exit)>,
    /// The runtime may know it, and is to be told to forget it.
    pub(super) known: bool,
}

impl Made {
    pub(super) fn new(program: Program) -> Self {
        Self { program, early: None, known: false }
    }
}

/// What the runtime's program was run for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drive {
    Create,
    /// The first process by its number.
    Start(u64),
    Exec,
    Signal,
    Delete,
}

/// What a runtime's program has left.
enum Left {
    Running,
    Ended { terminal: Option<OwnedFd>, exit: Exit },
}

/// The names of the files of one run, in the bundle.
struct Files {
    log: String,
    pid: String,
    console: String,
    process: String,
}

impl Files {
    fn new(id: u64) -> Self {
        let name = |kind| format!("{kind}-{id}");
        Self { log: name("log"), pid: name("pid"), console: name("console"), process: name("process") }
    }

    fn remove(&self, bundle: &Path) {
        for name in [&self.log, &self.pid, &self.console, &self.process] {
            let _ = std::fs::remove_file(bundle.join(name));
        }
    }
}

/// Mounts the memory in which bundles and state lie. It ends with our mounts.
pub(super) fn mount_state(directory: &Path) -> io::Result<()> {
    let options = [("mode", "0700"), ("size", STATE_BYTES)];
    let memory = mount::filesystem("tmpfs", &options, NO_SUID | NO_DEV | NO_EXEC)?;
    let place = openat(CWD, directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    mount::attach(memory, place)
}

/// Mounts a new file system over a directory.
fn cover(directory: &Path, kind: &str) -> io::Result<()> {
    let tree = mount::filesystem(kind, &[], NO_SUID | NO_DEV | NO_EXEC)?;
    let place = openat(CWD, directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    mount::attach(tree, place)
}

impl Server<'_> {
    /// No id of a container begins with a dot.
    fn state(&self, program: &Program) -> PathBuf {
        super::oci_directory(&self.hello.directory).join(".state").join(program.kind.name())
    }

    pub(super) fn bundle(&self, container: &ContainerId) -> PathBuf {
        super::oci_directory(&self.hello.directory).join(container.as_str())
    }

    /// Lets the runtime make a container, whose cgroup is there.
    pub(super) fn create_by(
        &mut self,
        id: u64,
        program: &Program,
        container: &ContainerId,
        streams: [Option<OwnedFd>; 3],
    ) -> Result<(), Failure> {
        if self.hello.rootless {
            let message = format!("containers by {} need root", program.kind);
            return Err(Failure::Unsupported(message));
        }
        let entry = &self.containers[container];
        let (bundle, state) = (self.bundle(container), self.state(program));
        let (root, staged) = (bundle.join(bundle::ROOT), bundle.join("mounts"));
        for directory in [&state, &root, &staged] {
            std::fs::create_dir_all(directory).during_at(Step::Oci, directory.display())?;
        }
        let sandbox = self.sandbox_of(&entry.spec)?;
        let around = Surroundings {
            kind: program.kind,
            hostname: Some(&sandbox.spec.hostname),
            namespaces: sandbox.namespaces.paths(),
            processes: None,
            cgroup: entry.group.oci_path(),
            limited: false,
            limits: self.limits(&entry.spec),
            staged: Some(&staged),
        };
        let terminal = entry.spec.terminal;
        let prepare = |common: &Common<'_>| {
            let (fixtures, spec) = (common.alike.fixtures, common.spec);
            let builder = Builder { fixtures, spec, place: &root, memory: &common.memory };
            builder.lay_out(&staged, |step| common.reached(step))?;
            let config = serde_json::to_vec(&Config::new(spec, &around)).map_err(io::Error::from);
            config.and_then(|config| std::fs::write(bundle.join("config.json"), config)).during(Step::Oci)
        };
        let verb = |files: &Files, console: bool| -> Vec<String> {
            let verb = Verb::Create { pid: &files.pid, console: console.then_some(&files.console) };
            program.command(&state, &files.log, container.as_str(), verb)
        };
        let (born, report, console) = self.clone_driver(id, container, terminal, streams, verb, prepare)?;
        self.adopt_driver(id, container, Drive::Create, born, report, console)?;
        if let Some(made) = self.containers.get_mut(container).and_then(|entry| entry.made.as_mut()) {
            made.known = true;
        }
        Ok(())
    }

    /// Runs one more program in a container, by its runtime.
    pub(super) fn exec_by(
        &mut self,
        id: u64,
        program: &Program,
        container: &ContainerId,
        spec: &ExecSpec,
        streams: [Option<OwnedFd>; 3],
    ) -> Result<(), Failure> {
        let entry = &self.containers[container];
        let (bundle, state) = (self.bundle(container), self.state(program));
        let process = bundle::Process::new(&entry.spec, spec, &self.limits(&entry.spec));
        let text = serde_json::to_vec(&process).map_err(io::Error::from).during(Step::Oci)?;
        let file = bundle.join(Files::new(id).process);
        let prepare = |_: &Common<'_>| std::fs::write(&file, &text).during(Step::Oci);
        let verb = |files: &Files, console: bool| -> Vec<String> {
            let console = console.then_some(&*files.console);
            let verb = Verb::Exec { process: &files.process, pid: &files.pid, console };
            program.command(&state, &files.log, container.as_str(), verb)
        };
        let (born, report, console) =
            self.clone_driver(id, container, spec.terminal, streams, verb, prepare)?;
        self.adopt_driver(id, container, Drive::Exec, born, report, console)
    }

    /// Asks the runtime for something without streams.
    pub(super) fn ask_by(
        &mut self,
        id: u64,
        program: &Program,
        container: &ContainerId,
        drive: Drive,
        verb: Verb<'_>,
    ) -> Result<(), Failure> {
        let state = self.state(program);
        let command = |files: &Files, _| program.command(&state, &files.log, container.as_str(), verb);
        let (born, report, _) =
            self.clone_driver(id, container, false, [None, None, None], command, |_| Ok(()))?;
        self.adopt_driver(id, container, drive, born, report, None)
    }

    pub(super) fn delete_by(&mut self, program: &Program, container: &ContainerId) -> Result<(), Failure> {
        let id = self.internal();
        self.ask_by(id, program, container, Drive::Delete, Verb::Delete)
    }

    fn clone_driver(
        &self,
        id: u64,
        container: &ContainerId,
        terminal: bool,
        streams: [Option<OwnedFd>; 3],
        command: impl FnOnce(&Files, bool) -> Vec<String>,
        prepare: impl FnOnce(&Common<'_>) -> Result<(), Failure>,
    ) -> Result<(Born, OwnedFd, Option<OwnedFd>), Failure> {
        let entry = &self.containers[container];
        let kind = entry.made.as_ref().map(|made| made.program.kind);
        let inherits = kind.is_some_and(Kind::inherits_cgroup);
        let hidden = kind.and_then(Kind::hides);
        let (bundle, files) = (self.bundle(container), Files::new(id));
        let console = terminal.then(|| console::listen(&bundle, &files.console)).transpose();
        let console = console.during(Step::Terminal)?;
        let command = command(&files, terminal);
        let cgroup = if inherits { entry.group.open().during(Step::Cgroup)? } else { None };
        let (ours, theirs) = channel::pair().during(Step::Clone)?;
        let streams = if terminal { [None, None, None] } else { streams };
        let common = self.common(entry, streams);
        let env = [("PATH".to_owned(), PATH.to_owned())];
        let born = clone::clone(NEW_MOUNT, cgroup.as_ref().map(AsFd::as_fd), || {
            let prepare = || {
                if inherits {
                    common.alike.account(common.group)?;
                } else {
                    common.alike.expendable()?;
                }
                // The runtime has to see its own children in `/proc`; the machine's counts them differently.
                cover(Path::new("/proc"), "proc").during(Step::Proc)?;
                if let Some(hidden) = hidden.filter(|hidden| hidden.exists()) {
                    cover(hidden, "tmpfs").during_at(Step::Cgroup, hidden.display())?;
                }
                prepare(&common)
            };
            child::program(&common, &theirs, prepare, &bundle, &command, &env);
        });
        Ok((born.during(Step::Clone)?, ours, console))
    }

    fn adopt_driver(
        &mut self,
        id: u64,
        container: &ContainerId,
        drive: Drive,
        born: Born,
        report: OwnedFd,
        console: Option<OwnedFd>,
    ) -> Result<(), Failure> {
        self.strays = true;
        self.adopt(id, Role::Drive(container.clone(), drive), born, report)?;
        if let Some(process) = self.processes.get_mut(&id) {
            process.console = console;
        }
        Ok(())
    }

    fn limits(&self, spec: &ContainerSpec) -> Vec<(&'static str, u64, u64)> {
        let most = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        let Rlimit { current, maximum } = self.open_files;
        let mut limits = vec![("RLIMIT_NOFILE", most(current), most(maximum)), ("RLIMIT_CORE", 0, 0)];
        let (data, processes) = self.stand_ins(spec);
        limits.extend(data.map(|bytes| ("RLIMIT_DATA", bytes, bytes)));
        limits.extend(processes.map(|most| ("RLIMIT_NPROC", most, most)));
        limits
    }

    /// The runtime's program has ended.
    pub(super) fn drove(
        &mut self,
        id: u64,
        container: &ContainerId,
        drive: Drive,
        mut process: Process,
        ended: Ended,
    ) {
        let (bundle, files) = (self.bundle(container), Files::new(id));
        let result = process.outcome().and_then(|_| match ended {
            Ended::Code(0) => Ok(()),
            _ => Err(self.complaint(container, &bundle.join(&files.log), ended)),
        });
        let result = result.and_then(|()| match drive {
            Drive::Create | Drive::Exec => {
                self.left(id, container, drive, &process, &bundle.join(&files.pid))
            }
            _ => Ok(Left::Running),
        });
        files.remove(&bundle);
        match (drive, result) {
            (Drive::Create, Ok(_)) => {
                let program = self.containers.get(container).and_then(|entry| entry.made.as_ref());
                let Some(program) = program.map(|made| made.program.clone()) else { return };
                let internal = self.internal();
                let started = self.ask_by(internal, &program, container, Drive::Start(id), Verb::Start);
                if let Err(failure) = started {
                    self.begin_removal(container, Some((id, Answer::Failed(failure))));
                }
            }
            (Drive::Create, Err(failure)) => {
                self.begin_removal(container, Some((id, Answer::Failed(failure))));
            }
            (Drive::Start(first), Ok(_)) => self.started(first, container),
            (Drive::Start(first), Err(failure)) => {
                self.begin_removal(container, Some((first, Answer::Failed(failure))));
            }
            (Drive::Exec, Ok(Left::Running)) => self.tell_started(id),
            (Drive::Exec, Ok(Left::Ended { terminal, exit })) => {
                self.answer(id, Answer::Started { pid: 0 }, terminal.into_iter().collect());
                self.send_exit(id, exit);
            }
            (Drive::Signal, Ok(_)) => self.answer(id, Answer::Done, Vec::new()),
            (Drive::Exec | Drive::Signal, Err(failure)) => {
                self.answer(id, Answer::Failed(failure), Vec::new());
            }
            (Drive::Delete, Ok(_)) => {}
            (Drive::Delete, Err(failure)) => {
                eprintln!("agentcube spawner: {container}: {}", crate::Error::from(failure));
            }
        }
        self.advance_removal(container);
    }

    /// Takes in the process that the runtime has left: its parent is gone, so it is ours. It may have been ours for a
    /// while, and have ended among the strays.
    fn left(
        &mut self,
        id: u64,
        container: &ContainerId,
        drive: Drive,
        driver: &Process,
        file: &Path,
    ) -> Result<Left, Failure> {
        let text = std::fs::read_to_string(file).during_at(Step::Oci, file.display())?;
        let pid = text.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Failure::Step(Step::Oci, format!("{text:?} is no process")))?;
        let number = pid.as_raw_nonzero().get();
        let ended = self.ended_strays.remove(&number);
        let terminal = driver.console.as_ref().map(console::accept).transpose();
        let terminal = terminal.during(Step::Terminal)?;
        let pidfd = match (pidfd_open(pid, PidfdFlags::empty()), ended, self.containers.get(container)) {
            (Err(_), Some(ended), Some(entry)) if drive == Drive::Exec => {
                return Ok(Left::Ended { terminal, exit: exit(ended, &entry.group) });
            }
            (opened, ..) => opened.during(Step::Oci)?,
        };
        self.watch(pidfd.as_fd(), Token::Exit(id))?;
        let role = match drive {
            Drive::Exec => Role::Exec(container.clone()),
            _ => Role::First(container.clone()),
        };
        self.admit(id, Process::left(id, role, Born { pidfd, number }, terminal));
        Ok(Left::Running)
    }

    fn started(&mut self, first: u64, container: &ContainerId) {
        let Some(entry) = self.containers.get_mut(container) else { return };
        match entry.made.as_mut().and_then(|made| made.early.take()) {
            None => {
                entry.running = true;
                self.tell_started(first);
            }
            Some((mut process, exit)) => {
                let terminal = process.outcome().ok().flatten();
                let answer = Answer::Started { pid: process.pid };
                entry.exit = Some(exit);
                self.answer(first, answer, terminal.into_iter().collect());
                self.send_exit(first, exit);
            }
        }
    }

    fn tell_started(&mut self, id: u64) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.settle();
        let (pid, terminal) = (process.pid, process.outcome().ok().flatten());
        self.answer(id, Answer::Started { pid }, terminal.into_iter().collect());
    }

    fn complaint(&self, container: &ContainerId, log: &Path, ended: Ended) -> Failure {
        use std::io::Read;
        let mut text = Vec::new();
        let _ = std::fs::File::open(log).map(|file| file.take(LOG_BYTES).read_to_end(&mut text));
        let name = self.containers.get(container).and_then(|entry| entry.made.as_ref());
        let name = name.map_or("the runtime", |made| made.program.kind.name());
        match complaint(&String::from_utf8_lossy(&text)) {
            // The program that was asked for cannot be run; in the words that people know.
            Some(said) if said.contains("exec: \"") => {
                let start = said.find("exec: \"").unwrap_or_default();
                Failure::Invalid(said[start..].trim_end_matches(": unknown").to_owned())
            }
            Some(said) if said.contains("executable") => Failure::Invalid(said),
            Some(said) => Failure::Step(Step::Oci, format!("{name}: {said}")),
            None => Failure::Step(Step::Oci, format!("{name} ended with {ended:?}")),
        }
    }

    /// Runtimes leave helpers behind that become our children. Those that have ended are reaped here. `false` while one that
    /// is known has ended and is not dealt with yet.
    pub(super) fn reap_strays(&mut self) -> bool {
        while self.strays
            && let Some(number) = clone::ended_child()
        {
            if self.processes.values().any(|process| process.number == number) {
                return false;
            }
            // What a runtime is about to leave may be ours before the runtime has said so, and be done before it.
            let leaves =
                |process: &Process| matches!(process.role, Role::Drive(_, Drive::Create | Drive::Exec));
            if !self.processes.values().any(leaves) {
                self.ended_strays.clear();
                clone::reap_number(number);
            } else if let Some(ended) = clone::reap_number(number) {
                self.ended_strays.insert(number, ended);
            }
        }
        true
    }

    /// Ends what a runtime has for a container besides its processes, then lets it forget the container. `false` until
    /// both are done.
    pub(super) fn forget(&mut self, container: &ContainerId) -> bool {
        let Some(entry) = self.containers.get(container) else { return true };
        // In this order: what has left the group has ended, and can be reaped.
        if entry.group.kill() > 0 || !self.reap_strays() {
            self.busy.push(container.clone());
            return false;
        }
        let made = self.containers.get_mut(container).and_then(|entry| entry.made.as_mut());
        let Some(made) = made.filter(|made| made.known) else { return true };
        made.known = false;
        let program = made.program.clone();
        match self.delete_by(&program, container) {
            Ok(()) => false,
            Err(failure) => {
                eprintln!("agentcube spawner: {container}: {}", crate::Error::from(failure));
                true
            }
        }
    }
}
