//! A directory that is never written, under one that takes what is written.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::mount::MountAttrFlags;

use super::mount::filesystem;
use crate::spawner::{During, Failure, Step};

const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Lays `<name>.upper` of a directory over those below it, of which the first is on top.
///
/// The directories are named by descriptor: their paths may be longer than an option can be, or hold its separators.
pub(super) fn mount(
    lower: &[&Path],
    scratch: &OwnedFd,
    name: &str,
    rootless: bool,
) -> Result<OwnedFd, Failure> {
    let upper = make(scratch, &format!("{name}.upper")).during(Step::Root)?;
    let work = make(scratch, &format!("{name}.work")).during(Step::Root)?;
    let lower: io::Result<Vec<OwnedFd>> = lower.iter().map(|path| open(path)).collect();
    let lower = lower.during(Step::Root)?;
    let named = |open: &OwnedFd| format!("/proc/self/fd/{}", open.as_raw_fd());
    let [upperdir, workdir] = [&upper, &work].map(named);
    let lowerdir = lower.iter().map(named).collect::<Vec<_>>().join(":");
    let mut options = vec![("lowerdir", &*lowerdir), ("upperdir", &*upperdir), ("workdir", &*workdir)];
    if rootless {
        // Without privileges, overlay keeps its marks where a user may write them.
        options.push(("userxattr", ""));
    }
    filesystem("overlay", &options, MountAttrFlags::empty()).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::ENODEV | libc::EINVAL | libc::EOPNOTSUPP) => {
            Failure::Unsupported(format!("{}: {error}", crate::host::NO_OVERLAY))
        }
        _ => Failure::Step(Step::Root, error.to_string()),
    })
}

fn make(scratch: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match mkdirat(scratch, name, Mode::from_raw_mode(0o755)) {
        Err(rustix::io::Errno::EXIST) => {}
        other => other?,
    }
    Ok(openat(scratch, name, PLACE, Mode::empty())?)
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    openat(CWD, path, PLACE, Mode::empty())
        .map_err(io::Error::from)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
