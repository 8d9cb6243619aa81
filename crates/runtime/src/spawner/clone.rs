//! `clone3` and waiting for what it made.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, waitid};

pub(crate) const NEW_USER: u64 = libc::CLONE_NEWUSER as u64;
pub(crate) const NEW_PID: u64 = libc::CLONE_NEWPID as u64;
/// Network, host name and IPC.
pub(crate) const NEW_SANDBOX: u64 = (libc::CLONE_NEWNET | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC) as u64;
/// `libc` has it as a number that is too small for it.
const INTO_CGROUP: u64 = 0x2_0000_0000;
pub(crate) const NEW_MOUNT: u64 = libc::CLONE_NEWNS as u64;

/// A child, by descriptor and by number.
pub(crate) struct Born {
    pub(crate) pidfd: OwnedFd,
    /// As this process counts.
    pub(super) number: i32,
}

/// Runs `child` in a copy of this process. The copy ends with `child`.
///
/// The copy has only the calling thread. Where others may exist, `child` must not allocate or lock.
pub(crate) fn clone(flags: u64, cgroup: Option<BorrowedFd<'_>>, child: impl FnOnce()) -> io::Result<Born> {
    let mut pidfd: RawFd = -1;
    // SAFETY: all zeroes is a valid `clone_args`: no flags, no stack, no tid to set.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = flags | libc::CLONE_PIDFD as u64;
    arguments.pidfd = std::ptr::from_mut(&mut pidfd) as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        arguments.flags |= INTO_CGROUP;
        arguments.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM and a stack this is fork: the child goes on here with a copy of the memory.
    // `arguments` and `pidfd` outlive the call.
    let pid = unsafe {
        libc::syscall(libc::SYS_clone3, std::ptr::from_mut(&mut arguments), size_of::<libc::clone_args>())
    };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // Nothing of the parent's stack may be unwound here: its destructors belong to the parent.
            let _ = catch_unwind(AssertUnwindSafe(child));
            // SAFETY: ends this process at once, without running the parent's exit handlers.
            unsafe { libc::_exit(127) }
        }
        // SAFETY: the kernel has put a new descriptor there, which nobody else knows of.
        _ => Ok(Born { pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) }, number: pid as i32 }),
    }
}

/// How a process ended; `None` while it runs. Reaps it.
pub(super) fn reap(pidfd: BorrowedFd<'_>) -> io::Result<Option<Ended>> {
    let status = waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED | WaitIdOptions::NOHANG)?;
    Ok(status.as_ref().map(Ended::from))
}

/// Waits until a process has ended, and reaps it.
pub(crate) fn wait(pidfd: BorrowedFd<'_>) -> io::Result<Ended> {
    let status = rustix::io::retry_on_intr(|| waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED))?;
    status.as_ref().map(Ended::from).ok_or_else(|| io::Error::other("nothing was waited for"))
}

/// The number of a child that has ended and is not reaped yet, whoever it is.
pub(super) fn ended_child() -> Option<i32> {
    // SAFETY: all zeroes is a valid `siginfo_t`, which the call fills in.
    unsafe {
        let mut information: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        let asked = libc::waitid(libc::P_ALL, 0, &mut information, flags);
        (asked == 0).then(|| information.si_pid()).filter(|&number| number > 0)
    }
}

/// Reaps a child that has ended.
pub(super) fn reap_number(number: i32) -> Option<Ended> {
    let pid = rustix::process::Pid::from_raw(number)?;
    let status = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG).ok()?;
    status.as_ref().map(Ended::from)
}

/// Kills and reaps everything else in this pid namespace, whose first process we are.
pub(super) fn kill_all() {
    // SAFETY: a system call without memory. To the first process of a namespace, all others are only those in it.
    unsafe { libc::kill(-1, libc::SIGKILL) };
    while rustix::io::retry_on_intr(|| waitid(WaitId::All, WaitIdOptions::EXITED)).is_ok() {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(i32),
    Signal(i32),
}

impl From<&WaitIdStatus> for Ended {
    fn from(status: &WaitIdStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Signal(libc::SIGKILL),
        }
    }
}

/// The number of a process as the owner of `/proc` counts: the spawner is in a pid namespace of its own, but keeps the
/// machine's `/proc`.
pub(super) fn host_pid(pidfd: BorrowedFd<'_>) -> io::Result<u32> {
    use std::io::Read;
    // A few short lines, which the kernel gives in one piece.
    let mut information = [0; 1024];
    let mut file = std::fs::File::open(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let length = file.read(&mut information)?;
    String::from_utf8_lossy(&information[..length])
        .lines()
        .find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok())
        .ok_or_else(|| io::Error::other("the process has ended"))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;

    use super::*;

    #[test]
    fn tells_how_a_process_ended() {
        // SAFETY: ends the copy at once.
        let pidfd = clone(0, None, || unsafe { libc::_exit(42) }).unwrap().pidfd;
        assert!(host_pid(pidfd.as_fd()).unwrap() > 0);
        assert_eq!(wait(pidfd.as_fd()).unwrap(), Ended::Code(42));

        let pidfd = clone(0, None, || {
            loop {
                // SAFETY: only waits.
                unsafe { libc::pause() };
            }
        });
        let pidfd = pidfd.unwrap().pidfd;
        assert_eq!(reap(pidfd.as_fd()).unwrap(), None);
        rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::TERM).unwrap();
        assert_eq!(wait(pidfd.as_fd()).unwrap(), Ended::Signal(libc::SIGTERM));
    }

    #[test]
    fn a_process_can_be_born_into_a_cgroup() {
        let unified = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let Some(top) = unified.into_iter().find(|top| top.join("cgroup.procs").exists()) else { return };
        let group = top.join(format!("agentcube-clone-{}", std::process::id()));
        if std::fs::create_dir(&group).is_err() {
            return; // Not ours to make.
        }
        let opened = std::fs::File::open(&group).unwrap();
        let pidfd = clone(0, Some(opened.as_fd()), || {
            loop {
                // SAFETY: only waits.
                unsafe { libc::pause() };
            }
        });
        let pidfd = pidfd.unwrap().pidfd;
        let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
        let pid = host_pid(pidfd.as_fd()).unwrap();
        rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL).unwrap();
        wait(pidfd.as_fd()).unwrap();
        crate::cgroup::remove(&group).unwrap();
        assert_eq!(members, format!("{pid}\n"));
    }
}
