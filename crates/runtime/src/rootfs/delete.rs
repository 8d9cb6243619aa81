//! Deletes what a container has left. Never follows a symbolic link, and never leaves the file system of the directory.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, IFlags, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

/// Deletes a directory and everything in it; one that is not there is no error.
pub(crate) fn delete(path: &Path) -> io::Result<()> {
    let Some(parent) = path.parent() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the root cannot be deleted"));
    };
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a path that ends in .. cannot be deleted"));
    };
    let parent = match openat(CWD, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let device = match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?.st_dev,
    };
    let name = std::ffi::CString::new(name.as_encoded_bytes())?;
    remove_tree(parent, &name, device)
}

/// A directory that is being emptied, its parent, and its name there.
struct Level {
    directory: OwnedFd,
    name: std::ffi::CString,
}

/// Goes down without recursion: a container may have nested directories without end.
fn remove_tree(parent: OwnedFd, name: &CStr, device: u64) -> io::Result<()> {
    if remove_entry(parent.as_fd(), name)? {
        return Ok(());
    }
    let mut levels = vec![Level { directory: descend(parent.as_fd(), name, device)?, name: name.to_owned() }];
    while let Some(level) = levels.last() {
        match empty_once(level.directory.as_fd())? {
            Some(below) => {
                let directory = descend(level.directory.as_fd(), &below, device)?;
                levels.push(Level { directory, name: below });
                if levels.len() > 512 {
                    flatten(&mut levels, &parent)?;
                }
            }
            None => {
                let name = levels.pop().map(|level| level.name).unwrap_or_default();
                let above = levels.last().map_or(parent.as_fd(), |level| level.directory.as_fd());
                remove_directory(above, &name)?;
            }
        }
    }
    Ok(())
}

/// Descriptors are few: moves the deepest directory next to the first and begins again from there.
fn flatten(levels: &mut Vec<Level>, parent: &OwnedFd) -> io::Result<()> {
    let (Some(deepest), Some(first)) = (levels.pop(), levels.first()) else { return Ok(()) };
    let holder = levels.last().map_or(parent.as_fd(), |level| level.directory.as_fd());
    let unique = std::ffi::CString::new(format!("deep-{}", first.directory.as_raw_fd()))?;
    rustix::fs::renameat(holder, &deepest.name, &first.directory, &unique)?;
    levels.truncate(1);
    levels.push(Level { directory: deepest.directory, name: unique });
    Ok(())
}

/// Removes all entries that are not full directories, and names one that is.
fn empty_once(directory: BorrowedFd<'_>) -> io::Result<Option<std::ffi::CString>> {
    let mut full = None;
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            if unlinkat(directory, name, AtFlags::REMOVEDIR).is_err() {
                full = Some(name.to_owned());
            }
        } else if !remove_entry(directory, name)? {
            full = Some(name.to_owned());
        }
    }
    Ok(full)
}

/// Removes what is no directory; `false` if it is one.
fn remove_entry(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    for attempt in 0..2 {
        match unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(true),
            Err(Errno::ISDIR) => return Ok(false),
            Err(Errno::PERM | Errno::ACCESS) if attempt == 0 => loosen(directory, name),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

fn remove_directory(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Err(Errno::PERM | Errno::ACCESS) => loosen(directory, name),
        Err(Errno::NOENT) => return Ok(()),
        other => return Ok(other?),
    }
    Ok(unlinkat(directory, name, AtFlags::REMOVEDIR)?)
}

/// Opens a directory that is not a link and not another file system.
fn descend(directory: BorrowedFd<'_>, name: &CStr, device: u64) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match openat(directory, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            loosen_mode(directory, name);
            openat(directory, name, flags, Mode::empty())
        }
        other => other,
    }?;
    if rustix::fs::fstat(&opened)?.st_dev != device {
        return Err(io::Error::new(io::ErrorKind::CrossesDevices, "something is mounted in it"));
    }
    loosen_one(&opened);
    Ok(opened)
}

/// Takes away whatever keeps an entry from being deleted, as far as we may.
fn loosen(directory: BorrowedFd<'_>, name: &CStr) {
    loosen_one(directory);
    // Opening a device or a pipe could block or do something; a place does neither, but has no flags to change.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let regular = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|status| {
        matches!(FileType::from_raw_mode(status.st_mode), FileType::RegularFile | FileType::Directory)
    });
    if regular && let Ok(opened) = openat(directory, name, flags, Mode::empty()) {
        clear_flags(&opened);
    }
}

fn loosen_one(directory: impl AsFd) {
    let may_write = rustix::fs::fstat(&directory).is_ok_and(|status| status.st_mode & 0o700 == 0o700);
    if !may_write {
        let _ = rustix::fs::fchmod(&directory, Mode::RWXU);
    }
}

fn loosen_mode(directory: BorrowedFd<'_>, name: &CStr) {
    let place = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if let Ok(opened) = openat(directory, name, place, Mode::empty()) {
        // A place cannot be changed directly, but by its name among our descriptors.
        let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
        let _ = rustix::fs::chmod(path, Mode::RWXU);
    }
}

/// The immutable and append-only marks keep even root from deleting.
fn clear_flags(opened: &OwnedFd) {
    let Ok(flags) = rustix::fs::ioctl_getflags(opened) else { return };
    let cleared = flags - (IFlags::IMMUTABLE | IFlags::APPEND);
    if cleared != flags {
        let _ = rustix::fs::ioctl_setflags(opened, cleared);
    }
}
