//! Starts the spawner, from the node.

use std::ffi::{CStr, CString};
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::Signal;
use rustix::thread::CapabilitySet;

use super::channel::{self, Packet};
use super::clone::{self, Ended, NEW_MOUNT, NEW_PID, NEW_SANDBOX, NEW_USER};
use super::handle::Handle;
use super::protocol::{Answer, Hello, Message};
use super::{Options, oci_directory, places_directory, scratch_directory};
use crate::Error;
use crate::cgroup::Tree;
use crate::rootfs::places;
use crate::sweep::{self, Lock, Record};

/// How long a spawner may take to end everything.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// The socket's number in the spawner.
pub(super) const SOCKET: i32 = 3;

/// A spawner that is ready, before there is an event loop to talk to it. Dropping it ends it.
pub struct Spawner {
    pub(super) socket: OwnedFd,
    pub(super) process: Child,
    pub(super) lock: Lock,
}

/// The spawner's process; killed and reaped when dropped, if it has not been before.
pub(super) struct Child {
    pub(super) pidfd: OwnedFd,
    /// Where containers may be held by a freezer, even when they are killed.
    freezers: Vec<PathBuf>,
}

impl Child {
    /// To be called once it is killed or gone: it ends after its containers, and those that are frozen may not.
    pub(super) fn release(&self) {
        for freezer in &self.freezers {
            if let Err(error) = crate::cgroup::release(freezer) {
                tracing::error!(%error, "cannot thaw {}", freezer.display());
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        self.release();
        let _ = clone::wait(self.pidfd.as_fd());
    }
}

impl Spawner {
    /// Removes what a killed predecessor left, then runs `program __spawner`, which must call [`super::main`].
    ///
    /// Call it from the main thread before other threads exist: when the calling thread ends, so does the spawner.
    pub fn start(program: &Path, options: &Options) -> Result<Self, Error> {
        check_node(&options.node)?;
        let directory = prepare_directory(&options.directory)?;
        let lock = sweep::lock(&directory)?;
        sweep::sweep(&options.node, &directory)?;
        let cgroups = Tree::open(&options.node).map_err(step("finding the cgroups"))?;
        let hello = Hello {
            node: options.node.clone(),
            directory,
            rootless: !has_privileges(),
            cgroups,
            spare_sandboxes: options.spare_sandboxes,
            adoptable: options.adoptable,
            die_at: options.die_at.clone(),
        };
        greet(program, &hello, lock).inspect_err(|_| hello.cgroups.remove())
    }

    /// What a worker needs for [`Handle::adopt`]: the socket to the spawner and a descriptor of its process. Whoever
    /// hands these out keeps the spawner alive and never uses them itself.
    pub fn descriptors(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        Ok((self.socket.try_clone()?, self.process.pidfd.try_clone()?))
    }

    pub(crate) fn process(&self) -> BorrowedFd<'_> {
        self.process.pidfd.as_fd()
    }

    /// Ends it with all that it has started, and waits for that.
    pub fn stop(self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        // It gives back what it can before it ends, unless something holds it.
        let mut ended = [PollFd::new(&self.process.pidfd, PollFlags::IN)];
        let _ = rustix::io::retry_on_intr(|| poll(&mut ended, Some(&PATIENCE)));
    }

    /// Begins to talk to it. Needs a tokio runtime.
    pub fn into_handle(self) -> Result<Handle, Error> {
        Handle::new(self)
    }
}

fn greet(program: &Path, hello: &Hello, lock: Lock) -> Result<Spawner, Error> {
    let mut record = Record::new(hello.cgroups.clone()).map_err(step("recording the start"))?;
    record.write(&hello.directory).map_err(step("recording the start"))?;
    let (socket, theirs) = channel::pair().map_err(step("making a socket"))?;
    let process = Child {
        pidfd: launch(program, theirs, hello.rootless)?,
        freezers: hello.cgroups.freezers().map(Path::to_owned).collect(),
    };
    clone::host_pid(process.pidfd.as_fd())
        .and_then(|pid| record.set_spawner(pid))
        .and_then(|()| record.write(&hello.directory))
        .map_err(step("recording the spawner"))?;
    let packet = Packet::new(hello, Vec::new()).map_err(step("greeting the spawner"))?;
    let answer = packet.send(&socket).and_then(|()| channel::receive(&socket));
    let Ok(Some(answer)) = answer else { return Err(why_ended(&process)) };
    match answer.read().map_err(step("waiting for the spawner"))? {
        Message::Answer { answer: Answer::Failed(failure), .. } => Err(failure.into()),
        _ => Ok(Spawner { socket, process, lock }),
    }
}

/// A clone that could not become the spawner ends with the error's number above this.
const FAILED: i32 = 64;

fn why_ended(process: &Child) -> Error {
    match clone::wait(process.pidfd.as_fd()) {
        Ok(Ended::Code(code)) if code > FAILED => {
            let error = io::Error::from_raw_os_error(code - FAILED);
            Error::Step { step: "executing the spawner", reason: error.to_string() }
        }
        _ => Error::SpawnerGone,
    }
}

fn step<E: std::fmt::Display>(step: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::Step { step, reason: error.to_string() }
}

/// It becomes a part of directory names.
fn check_node(node: &str) -> Result<(), Error> {
    let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if node.is_empty() || node.len() > 63 || !node.bytes().all(allowed) {
        return Err(Error::Invalid(format!(
            "{node:?} cannot be the id of a node: use at most 63 lower-case letters, digits and dashes"
        )));
    }
    Ok(())
}

fn prepare_directory(directory: &Path) -> Result<std::path::PathBuf, Error> {
    let make = || {
        for below in [scratch_directory(directory), directory.join("template"), oci_directory(directory)] {
            std::fs::create_dir_all(below)?;
        }
        places::make(&places_directory(directory))?;
        // What containers write is nobody else's on this machine.
        std::fs::set_permissions(directory, Permissions::from_mode(0o700))?;
        directory.canonicalize()
    };
    make().map_err(|error: io::Error| Error::Step {
        step: "making the runtime's directory",
        reason: format!("{}: {error}", directory.display()),
    })
}

/// Root of the machine, or of a user namespace that somebody has made for us.
pub(crate) fn has_privileges() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

fn launch(program: &Path, socket: OwnedFd, rootless: bool) -> Result<OwnedFd, Error> {
    let path = CString::new(program.as_os_str().as_bytes())
        .map_err(|_| Error::Invalid("the spawner's program has a zero byte in its name".to_owned()))?;
    let arguments = [path.as_ptr(), c"__spawner".as_ptr(), std::ptr::null()];
    let environment = [std::ptr::null()];
    let maps = rootless.then(user_maps);
    // It has no network at all: nothing that it starts can end up in the machine's by mistake. And without root, it could
    // not come back from a Pod's to one that is not its own.
    let flags = NEW_PID | NEW_MOUNT | NEW_SANDBOX | if rootless { NEW_USER } else { 0 };
    clone::clone(flags, None, || {
        // Other threads may exist in the parent, so nothing here allocates.
        if let Some((uids, gids)) = &maps
            && let Err(error) = map_user(uids, gids)
        {
            // SAFETY: ends the copy at once.
            unsafe { libc::_exit(FAILED + error.raw_os_error()) }
        }
        // SAFETY: plain system calls on this process; the strings and arrays were made before.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if socket.as_raw_fd() == SOCKET {
                libc::fcntl(SOCKET, libc::F_SETFD, 0);
            } else {
                libc::dup2(socket.as_raw_fd(), SOCKET);
            }
            libc::syscall(libc::SYS_close_range, SOCKET + 1, u32::MAX, 0);
            libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr());
            libc::_exit(FAILED + *libc::__errno_location());
        }
    })
    .map(|born| born.pidfd)
    .map_err(|error| refused(&error, rootless))
}

/// What makes our user and group the root of a new user namespace.
pub(crate) fn user_maps() -> (String, String) {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    (format!("0 {uid} 1"), format!("0 {gid} 1"))
}

/// Called in the new namespace. Does not allocate.
pub(crate) fn map_user(uids: &str, gids: &str) -> rustix::io::Result<()> {
    let write = |file: &CStr, text: &str| {
        let file = openat(CWD, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(file, text.as_bytes()).map(drop)
    };
    write(c"/proc/self/setgroups", "deny")?;
    write(c"/proc/self/uid_map", uids)?;
    write(c"/proc/self/gid_map", gids)
}

fn refused(error: &io::Error, rootless: bool) -> Error {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSPC | libc::EINVAL) if rootless => {
            Error::Unsupported(crate::host::NO_USER_NAMESPACES.to_owned())
        }
        _ => Error::Step { step: "starting the spawner", reason: error.to_string() },
    }
}
