//! Landlock: from now on this thread, and what it executes, opens no file that it was not shown. Kernels before 5.13, and those
//! that were built without it, cannot; then nothing is restricted, and that is no error.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
/// All that the first version of Landlock knows.
const FIRST: u64 = (1 << 13) - 1;
/// Of the third version on.
const TRUNCATE: u64 = 1 << 14;

/// Where programs and their libraries are.
const PROGRAMS: [&str; 5] = ["/usr", "/bin", "/sbin", "/lib", "/lib64"];
/// What programs expect to be able to throw things into, and to draw from.
const DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/urandom"];

/// `struct landlock_ruleset_attr` of the first version.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent_fd: i32,
}

/// Which version the kernel has; 0 if it has none.
pub(super) fn version() -> u64 {
    const VERSION: libc::c_ulong = 1;
    // SAFETY: with this flag the kernel takes no pointer.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<c_void>(), 0_usize, VERSION)
    };
    u64::try_from(version).unwrap_or(0)
}

/// Leaves what is below `work`, and to read and execute what is below `shown` and the usual places. The thread has given up
/// gaining privileges before.
pub(super) fn restrict(work: &Path, shown: &[PathBuf]) -> io::Result<()> {
    let version = version();
    if version == 0 {
        return Ok(());
    }
    let all = if version >= 3 { FIRST | TRUNCATE } else { FIRST };
    let rules = ruleset(all)?;
    allow(&rules, work, all)?;
    let read = EXECUTE | READ_FILE | READ_DIR;
    for place in shown.iter().map(PathBuf::as_path).chain(PROGRAMS.iter().map(Path::new)) {
        allow(&rules, place, read)?;
    }
    for device in DEVICES {
        allow(&rules, Path::new(device), (READ_FILE | WRITE_FILE | TRUNCATE) & all)?;
    }
    // SAFETY: it takes a descriptor that is open, and no pointer.
    checked(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0_usize) }).map(drop)
}

fn ruleset(handled: u64) -> io::Result<OwnedFd> {
    let attributes = RulesetAttr { handled_access_fs: handled };
    // SAFETY: the structure is valid for the call, and its size is told.
    let made = checked(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::from_ref(&attributes),
            size_of::<RulesetAttr>(),
            0_usize,
        )
    })?;
    let made = i32::try_from(made).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// What is not there needs no rule.
fn allow(rules: &OwnedFd, place: &Path, access: u64) -> io::Result<()> {
    const PATH_BENEATH: usize = 1;
    let Ok(beneath) = rustix::fs::open(place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
        return Ok(());
    };
    let allowed =
        if place.is_dir() { access } else { access & (EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE) };
    let attributes = PathBeneath { allowed_access: allowed, parent_fd: beneath.as_raw_fd() };
    // SAFETY: the structure is valid for the call, and both descriptors are open.
    checked(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            rules.as_raw_fd(),
            PATH_BENEATH,
            std::ptr::from_ref(&attributes),
            0_usize,
        )
    })
    .map(drop)
}

fn checked(answer: libc::c_long) -> io::Result<libc::c_long> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
