//! A directory that is never written, under one that takes what is written.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
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
    let [upper, work] = parts(name).map(|part| make(scratch, &part));
    let (upper, work) = (upper.during(Step::Root)?, work.during(Step::Root)?);
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

/// Makes the directories that take what is written to an image, before they are needed.
pub(super) fn make_ahead(scratch: &Path, name: &str) -> io::Result<()> {
    for part in parts(name) {
        let directory = scratch.join(part);
        fs::create_dir(&directory)?;
        // Whatever whoever started us has masked.
        fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Where the writes go, and where the kernel prepares them.
fn parts(name: &str) -> [String; 2] {
    [format!("{name}.upper"), format!("{name}.work")]
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
