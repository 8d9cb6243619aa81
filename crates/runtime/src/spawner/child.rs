//! From `clone3` to `execve`: a copy of the spawner turns itself into a container's process. It is single-threaded, so
//! it may allocate. Whatever fails is told to the spawner over the report socket, which `execve` closes.

use std::borrow::Cow;
use std::convert::Infallible;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{DumpableBehavior, Resource, Rlimit, setrlimit};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces, unshare_unsafe};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::channel::{self, Packet};
use super::protocol::Streams;
use super::sandbox::Namespaces;
use super::{During, Failure, Step};
use super::{execute, files};
use crate::capabilities;
use crate::cgroup::Group;
use crate::rootfs::{Ahead, Builder, Fixtures, in_memory, target};
use crate::seccomp::Filter;
use crate::spec::{ContainerSpec, ExecSpec, File, User};

/// Instances are the first to go when the machine itself runs out of memory.
const OOM_SCORE: &str = "500";
/// Where the report socket is: out of the way of the three streams, and in the place of the spawner's own socket.
const REPORT: i32 = 3;

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// Brings the spawner's side of the terminal.
    Terminal,
    /// All is set up, and it is to be told what to run.
    Waiting,
    /// The next thing is `execve`.
    Ready,
    Failed(Failure),
}

/// What a prepared process is told. The streams come with it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) program: crate::spec::Program,
    pub(super) streams: Streams,
}

/// What the processes of all containers of a node have alike.
#[derive(Clone, Copy)]
pub(super) struct Alike<'a> {
    pub(super) fixtures: Fixtures<'a>,
    /// Of the usual capabilities; others are made when they are needed.
    pub(super) filter: &'a Filter,
    pub(super) open_files: Rlimit,
    pub(super) die_at: Option<&'a str>,
}

/// What every process of a container needs.
pub(super) struct Common<'a> {
    pub(super) alike: Alike<'a>,
    pub(super) spec: &'a ContainerSpec,
    pub(super) group: &'a Group,
    /// Where it may make a directory in memory.
    pub(super) memory: PathBuf,
    /// Limits that stand in for a controller which this machine lacks.
    pub(super) data_limit: Option<u64>,
    pub(super) process_limit: Option<u64>,
    pub(super) streams: [Option<OwnedFd>; 3],
}

/// What a process that was made ahead of time is told.
#[derive(Serialize, Deserialize)]
pub(super) enum Told<'a> {
    /// To lay a root over an image that the container may be of. `own` takes what is written to it.
    Lay {
        image: PathBuf,
        own: PathBuf,
    },
    Become(Box<Order<'a>>),
}

/// A container. The streams come with it.
#[derive(Serialize, Deserialize)]
pub(super) struct Order<'a> {
    pub(super) spec: Cow<'a, ContainerSpec>,
    pub(super) memory: PathBuf,
    pub(super) data_limit: Option<u64>,
    pub(super) process_limit: Option<u64>,
    pub(super) streams: Streams,
    /// It is to wait once more, see [`prepared`].
    pub(super) prepared: bool,
}

/// Becomes the first process of a container.
pub(super) fn container(common: &Common<'_>, report: &OwnedFd, sandbox: &Namespaces) {
    let Some(report) = Reporter::new(report) else { return };
    let joined = common.alike.join(common.group, sandbox);
    report.end(joined.and_then(|()| run(common, &report, None)));
}

/// The same, but it waits to be told what to run.
pub(super) fn prepared(common: &Common<'_>, report: &OwnedFd, sandbox: &Namespaces) {
    let Some(report) = Reporter::new(report) else { return };
    let joined = common.alike.join(common.group, sandbox);
    report.end(joined.and_then(|()| wait(common, &report, None)));
}

/// Goes as far as every first process has to, and waits to be told of its container.
pub(super) fn embryo(alike: &Alike<'_>, group: &Group, report: &OwnedFd, sandbox: &Namespaces) {
    let Some(report) = Reporter::new(report) else { return };
    let ahead = alike.join(group, sandbox).and_then(|()| {
        // Not to keep the spawner's own descriptors open for as long as it waits.
        report.close_all_else()?;
        alike.fixtures.stage(|step| alike.reached(step))
    });
    let result = ahead.and_then(|mut ahead| {
        let name = rustix::thread::name().during(Step::Claim)?;
        let _ = rustix::thread::set_name(super::embryo::NAME);
        let (order, descriptors) = loop {
            match report.told::<Told<'_>>()? {
                // Whatever keeps it from this keeps the container from it as well, and is told then.
                (Told::Lay { image, own }, _) => drop(ahead.lay(&alike.fixtures, image, &own)),
                (Told::Become(order), descriptors) => break (*order, descriptors),
            }
        };
        let _ = rustix::thread::set_name(&name);
        // What is closed all at once is not to be closed once more.
        let common = ManuallyDrop::new(Common {
            alike: *alike,
            spec: &order.spec,
            group,
            memory: order.memory,
            data_limit: order.data_limit,
            process_limit: order.process_limit,
            streams: order.streams.split(descriptors).0,
        });
        let become_it = if order.prepared { wait } else { run };
        become_it(&common, &report, Some(ahead))
    });
    report.end(result);
}

fn run(common: &Common<'_>, report: &Reporter, ahead: Option<Ahead>) -> Result<Infallible, Failure> {
    enter_root(common, ahead)?;
    let spec = common.spec;
    let program =
        Program { args: &spec.args, env: &spec.env, cwd: &spec.cwd, user: &spec.user, files: &spec.files };
    common.finish(report, &program, spec.terminal, || new_user_namespace(&spec.user))
}

/// The rights that it is to have are all that it has while it waits.
fn wait(common: &Common<'_>, report: &Reporter, ahead: Option<Ahead>) -> Result<Infallible, Failure> {
    enter_root(common, ahead)?;
    let spec = common.spec;
    common.settle(report, &spec.user, false, || new_user_namespace(&spec.user))?;
    common.become_user(&spec.user)?;
    common.reached(Step::Claim);
    report.send(&Report::Waiting, Vec::new());
    let (claim, descriptors) = report.told::<Claim>()?;
    let (program, streams) = (claim.program, claim.streams.split(descriptors).0);
    for (number, stream) in streams.iter().enumerate() {
        stream.as_ref().map_or(Ok(()), |stream| connect(stream, number as i32))?;
    }
    common.reached(Step::Files);
    files::write_all(spec.files.iter().chain(&program.files))?;
    // After the files: it may be one that they have made.
    enter_directory(program.cwd.as_deref().unwrap_or(&spec.cwd))?;
    common.reached(Step::Exec);
    let env = merged(&spec.env, &program.env);
    Err(execute::execute(&program.args, &env, || report.send(&Report::Ready, Vec::new())))
}

fn enter_root(common: &Common<'_>, ahead: Option<Ahead>) -> Result<(), Failure> {
    common.reached(Step::Root);
    let (spec, fixtures) = (common.spec, common.alike.fixtures);
    let place = if in_memory(spec, fixtures.rootless) { &common.memory } else { &spec.scratch };
    let builder = Builder { fixtures, spec, place, memory: &common.memory };
    let built = builder.build(ahead, |step| common.reached(step))?;
    common.reached(Step::Pivot);
    built.enter()
}

/// Of variables of the same name, the later ones win.
fn merged(own: &[(String, String)], more: &[(String, String)]) -> Vec<(String, String)> {
    let replaced = |key: &str| more.iter().any(|(other, _)| other == key);
    own.iter().filter(|(key, _)| !replaced(key)).chain(more).cloned().collect()
}

/// Becomes one more process of a container. The pid namespace is the container's already.
pub(super) fn exec(common: &Common<'_>, report: &OwnedFd, first: BorrowedFd<'_>, spec: &ExecSpec) {
    let Some(report) = Reporter::new(report) else { return };
    let joined = common.alike.account(common.group).and_then(|()| {
        common.reached(Step::Join);
        let namespaces = ThreadNameSpaceType::NETWORK
            | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
            | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
            | ThreadNameSpaceType::CONTROL_GROUP
            | ThreadNameSpaceType::MOUNT;
        move_into_thread_name_spaces(first, namespaces).during(Step::Join)
    });
    let env = merged(&common.spec.env, &spec.env);
    let result = joined.and_then(|()| {
        let program = Program {
            args: &spec.args,
            env: &env,
            cwd: spec.cwd.as_deref().unwrap_or(&common.spec.cwd),
            user: spec.user.as_ref().unwrap_or(&common.spec.user),
            files: &[],
        };
        common.finish(&report, &program, spec.terminal, || {
            move_into_thread_name_spaces(first, ThreadNameSpaceType::USER).during(Step::UserNamespace)
        })
    });
    report.end(result);
}

/// Becomes a program of the machine, in a directory of its own and with the streams of a container.
pub(super) fn program(
    common: &Common<'_>,
    report: &OwnedFd,
    prepare: impl FnOnce() -> Result<(), Failure>,
    directory: &Path,
    command: &[String],
    env: &[(String, String)],
) {
    let Some(report) = Reporter::new(report) else { return };
    let ready = prepare().and_then(|()| {
        rustix::process::setsid().during(Step::Terminal)?;
        common.streams(&common.spec.user)?;
        rustix::process::umask(Mode::from_raw_mode(0o022));
        rustix::process::chdir(directory).during_at(Step::WorkingDirectory, directory.display())?;
        report.close_all_else()
    });
    let result = ready.and_then(|()| {
        common.reached(Step::Exec);
        Err(execute::execute(command, env, || report.send(&Report::Ready, Vec::new())))
    });
    report.end(result);
}

struct Program<'a> {
    args: &'a [String],
    env: &'a [(String, String)],
    cwd: &'a Path,
    user: &'a User,
    files: &'a [File],
}

impl Alike<'_> {
    /// Becomes one of a group's processes.
    pub(super) fn account(&self, group: &Group) -> Result<(), Failure> {
        self.reached(Step::Cgroup);
        group.enter().during(Step::Cgroup)?;
        self.expendable()
    }

    /// What goes first when memory runs out, whoever's it is.
    pub(super) fn expendable(&self) -> Result<(), Failure> {
        self.reached(Step::OomScore);
        std::fs::write("/proc/self/oom_score_adj", OOM_SCORE).during(Step::OomScore)
    }

    fn join(&self, group: &Group, sandbox: &Namespaces) -> Result<(), Failure> {
        self.account(group)?;
        self.reached(Step::Join);
        sandbox.enter().during(Step::Join)?;
        // SAFETY: a cgroup namespace is no business of other threads, and there are none.
        let _ = unsafe { unshare_unsafe(UnshareFlags::NEWCGROUP) };
        Ok(())
    }

    /// For tests that kill at each step. The process ends as suddenly as by a signal, which the first process of a pid
    /// namespace could not send to itself.
    fn reached(&self, step: Step) {
        super::die_if_asked(self.die_at, "instance", step);
    }
}

impl Common<'_> {
    /// Everything after the file system is there. Comes back only with the reason why it could not.
    fn finish(
        &self,
        report: &Reporter,
        program: &Program<'_>,
        terminal: bool,
        user_namespace: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Infallible, Failure> {
        self.settle(report, program.user, terminal, user_namespace)?;
        self.reached(Step::WorkingDirectory);
        enter_directory(program.cwd)?;
        self.become_user(program.user)?;
        self.reached(Step::Files);
        files::write_all(program.files)?;
        self.reached(Step::Exec);
        Err(execute::execute(program.args, program.env, || report.send(&Report::Ready, Vec::new())))
    }

    /// What is between the file system and the user, in an order in which each step still has the rights it needs.
    fn settle(
        &self,
        report: &Reporter,
        user: &User,
        terminal: bool,
        user_namespace: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.reached(Step::Terminal);
        rustix::process::setsid().during(Step::Terminal)?;
        super::join_new_keyring();
        if terminal {
            report.send(&Report::Terminal, vec![self.terminal(user)?]);
        } else {
            self.reached(Step::Streams);
            self.streams(user)?;
        }
        self.reached(Step::Limits);
        self.limits()?;
        if self.alike.fixtures.rootless {
            // Late, because it takes away our rights over the other namespaces.
            self.reached(Step::UserNamespace);
            user_namespace()?;
        }
        // After the namespace: one that was made under the limit would hold all of our containers to it together.
        limit(Resource::Nproc, self.process_limit)?;
        // Only the report is left open from here on: neither the working directory nor the program's path can lead
        // through a descriptor of ours to the machine's files.
        report.close_all_else()
    }

    /// The container's own terminal; its other side goes to the spawner.
    fn terminal(&self, user: &User) -> Result<OwnedFd, Failure> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let master = openat(CWD, c"/dev/pts/ptmx", flags, Mode::empty()).during(Step::Terminal)?;
        rustix::pty::unlockpt(&master).during(Step::Terminal)?;
        let slave = rustix::pty::ioctl_tiocgptpeer(
            &master,
            rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY,
        )
        .during(Step::Terminal)?;
        if !self.alike.fixtures.rootless {
            let owner = rustix::fs::Uid::from_raw(user.uid);
            rustix::fs::fchown(&slave, Some(owner), None).during(Step::Terminal)?;
        }
        rustix::process::ioctl_tiocsctty(&slave).during(Step::Terminal)?;
        connect(&slave, 0)?;
        connect(&slave, 1)?;
        connect(&slave, 2)?;
        Ok(master)
    }

    fn streams(&self, user: &User) -> Result<(), Failure> {
        let mut nothing = None;
        for (number, stream) in self.streams.iter().enumerate() {
            let stream = match stream {
                Some(stream) => {
                    give(stream, user, self.alike.fixtures.rootless);
                    stream
                }
                None if nothing.is_none() => {
                    let flags = OFlags::RDWR | OFlags::CLOEXEC;
                    nothing.insert(openat(CWD, c"/dev/null", flags, Mode::empty()).during(Step::Streams)?)
                }
                None => nothing.as_ref().expect("opened just before"),
            };
            connect(stream, number as i32)?;
        }
        Ok(())
    }

    fn limits(&self) -> Result<(), Failure> {
        setrlimit(Resource::Nofile, self.alike.open_files).during_at(Step::Limits, "open files")?;
        setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
            .during_at(Step::Limits, "core")?;
        limit(Resource::Data, self.data_limit)
    }

    fn become_user(&self, user: &User) -> Result<(), Failure> {
        let spec = self.spec;
        // Until `execve` our memory is a copy of the spawner's, with what it knows of other containers. Processes that
        // are in this one already could look at it as soon as we have no more rights than they.
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).during(Step::Capabilities)?;
        self.reached(Step::Capabilities);
        capabilities::bound(&spec.capabilities).during(Step::Capabilities)?;
        self.reached(Step::User);
        if !self.alike.fixtures.rootless {
            let groups: Vec<_> = user.groups.iter().map(|&group| rustix::fs::Gid::from_raw(group)).collect();
            rustix::thread::set_thread_groups(&groups).during(Step::User)?;
            let gid = rustix::fs::Gid::from_raw(user.gid);
            rustix::thread::set_thread_res_gid(gid, gid, gid).during(Step::User)?;
        }
        if spec.no_new_privileges {
            rustix::thread::set_no_new_privs(true).during(Step::Capabilities)?;
        }
        self.reached(Step::Seccomp);
        if spec.seccomp {
            // While we may: without `no_new_privileges` this takes a capability.
            let usual = self.alike.filter;
            let own = (!usual.is_for(&spec.capabilities)).then(|| Filter::new(&spec.capabilities));
            own.as_ref().unwrap_or(usual).load().during(Step::Seccomp)?;
        }
        if !self.alike.fixtures.rootless {
            let uid = rustix::fs::Uid::from_raw(user.uid);
            rustix::thread::set_thread_res_uid(uid, uid, uid).during(Step::User)?;
        }
        capabilities::keep_only(&spec.capabilities).during(Step::Capabilities)?;
        rustix::process::umask(Mode::from_raw_mode(0o022));
        Ok(())
    }

    pub(super) fn reached(&self, step: Step) {
        self.alike.reached(step);
    }
}

/// Lets the container's user open its own streams again, as `/dev/stdout` does. What cannot be given stays usable by its
/// number.
pub(super) fn give(stream: &OwnedFd, user: &User, rootless: bool) {
    let ours = rustix::fs::fstat(stream).is_ok_and(|status| {
        use rustix::fs::FileType;
        matches!(FileType::from_raw_mode(status.st_mode), FileType::Fifo | FileType::Socket)
    });
    if ours && !rootless && user.uid != 0 {
        let _ = rustix::fs::fchown(stream, Some(rustix::fs::Uid::from_raw(user.uid)), None);
    }
}

/// Tells the spawner how far we are.
struct Reporter(BorrowedFd<'static>);

impl Reporter {
    /// Takes the place of the spawner's own socket, which is none of a container's business.
    fn new(socket: &OwnedFd) -> Option<Self> {
        // SAFETY: this process is a copy that never uses the spawner's socket.
        let moved = unsafe { libc::dup3(socket.as_raw_fd(), REPORT, libc::O_CLOEXEC) };
        // SAFETY: nothing closes it before `execve` or the end.
        (moved == REPORT).then(|| Self(unsafe { BorrowedFd::borrow_raw(REPORT) }))
    }

    /// The spawner notices a process that ends without a word, so a report that cannot be sent is lost without harm.
    fn send(&self, message: &Report, descriptors: Vec<OwnedFd>) {
        if let Ok(packet) = Packet::new(message, descriptors) {
            let _ = packet.send(self.0);
        }
    }

    /// Waits for what is next. The spawner's end is ours too: it has our pid namespace.
    fn told<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), Failure> {
        let packet = channel::receive(self.0).during(Step::Claim)?;
        let gone = || Failure::Step(Step::Claim, "the spawner has ended".to_owned());
        let packet = packet.ok_or_else(gone)?;
        Ok((packet.read().during(Step::Claim)?, packet.descriptors))
    }

    fn end(&self, result: Result<Infallible, Failure>) {
        let Err(failure) = result;
        self.send(&Report::Failed(failure), Vec::new());
    }

    fn close_all_else(&self) -> Result<(), Failure> {
        // SAFETY: what this closes is used no more. It is not dropped either: this process ends by `execve` or `_exit`.
        match unsafe { libc::syscall(libc::SYS_close_range, REPORT + 1, u32::MAX, 0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()).during(Step::Streams),
        }
    }
}

/// Maps the container's user to ours. Over its other namespaces the container has no rights then, whoever it is.
fn new_user_namespace(user: &User) -> Result<(), Failure> {
    // SAFETY: there are no other threads whose credentials could differ.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }.during(Step::UserNamespace)?;
    let write = |file: &str, text: &str| {
        std::fs::write(format!("/proc/self/{file}"), text).during_at(Step::UserNamespace, file)
    };
    write("setgroups", "deny")?;
    write("uid_map", &format!("{} 0 1", user.uid))?;
    write("gid_map", &format!("{} 0 1", user.gid))
}

fn limit(resource: Resource, limit: Option<u64>) -> Result<(), Failure> {
    match limit {
        Some(_) => setrlimit(resource, Rlimit { current: limit, maximum: limit }).during(Step::Limits),
        None => Ok(()),
    }
}

fn connect(from: &OwnedFd, number: i32) -> Result<(), Failure> {
    // SAFETY: replaces one of the three standard descriptors of this process, which nothing owns.
    match unsafe { libc::dup2(from.as_raw_fd(), number) } {
        -1 => Err(std::io::Error::last_os_error()).during(Step::Streams),
        _ => Ok(()),
    }
}

fn enter_directory(path: &Path) -> Result<(), Failure> {
    let root = openat(CWD, c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .during(Step::WorkingDirectory)?;
    let directory = target::open(&root, path).during_at(Step::WorkingDirectory, path.display())?;
    rustix::process::fchdir(directory).during_at(Step::WorkingDirectory, path.display())
}
