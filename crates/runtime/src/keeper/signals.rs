//! The signals of a process with one thread, as something to read.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::Signal;

/// Those that are passed on.
const PASSED: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::QUIT, Signal::HUP];

pub(super) struct Signals(OwnedFd);

impl Signals {
    /// From here on they wait to be read, and so does the end of a child.
    pub(super) fn block() -> io::Result<Self> {
        // SAFETY: the set is ours, made empty before it is used; the descriptor is new and nobody else's.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in PASSED.into_iter().chain([Signal::CHILD]) {
                // One that is ignored, as a shell has it for what it runs in the background, is never read.
                libc::signal(signal.as_raw(), libc::SIG_DFL);
                libc::sigaddset(&mut set, signal.as_raw());
            }
            if libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) == -1 {
                return Err(io::Error::last_os_error());
            }
            match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                descriptor => Ok(Self(OwnedFd::from_raw_fd(descriptor))),
            }
        }
    }

    /// For a child of ours, before it executes something else.
    pub(super) fn unblock() -> io::Result<()> {
        // SAFETY: the set is ours and made empty before it is used.
        let done = unsafe {
            let mut none = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut())
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Those that have come and are to be passed on.
    pub(super) fn read(&self) -> io::Result<Vec<Signal>> {
        let mut found = Vec::new();
        let mut buffer = [0; size_of::<libc::signalfd_siginfo>()];
        loop {
            match rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut buffer)) {
                // The number comes first.
                Ok(_) => {
                    let number = u32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
                    found.extend(PASSED.into_iter().find(|signal| signal.as_raw().cast_unsigned() == number));
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(found),
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
