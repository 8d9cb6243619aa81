//! Deletes what a container has left. Never follows a symbolic link, and never leaves the file system of the directory.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, IFlags, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

/// Each level of a tree that is being deleted costs a descriptor.
const MOST_LEVELS: usize = 256;

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
    let name = CString::new(name.as_encoded_bytes())?;
    remove_tree(parent, &name, device)
}

/// A directory that is being emptied, and its name in the one above.
struct Level {
    directory: OwnedFd,
    name: CString,
}

/// Goes down without recursion: a container may have nested directories without end.
fn remove_tree(parent: OwnedFd, name: &CStr, device: u64) -> io::Result<()> {
    if remove_entry(parent.as_fd(), name)? {
        return Ok(());
    }
    let mut levels = vec![Level { directory: descend(parent.as_fd(), name, device)?, name: name.to_owned() }];
    let mut moved = 0;
    while let Some(level) = levels.last() {
        if let Some(below) = empty_once(level.directory.as_fd())? {
            let directory = descend(level.directory.as_fd(), &below, device)?;
            levels.push(Level { directory, name: below });
            if levels.len() > MOST_LEVELS {
                moved += 1;
                flatten(&mut levels, moved)?;
            }
        } else {
            let name = levels.pop().map(|level| level.name).unwrap_or_default();
            let above = levels.last().map_or(parent.as_fd(), |level| level.directory.as_fd());
            remove_directory(above, &name)?;
        }
    }
    Ok(())
}

/// Descriptors are few: moves the deepest directory into the first, under a new name, and goes on from there. What lay
/// between is found again later, and is less deep by then.
fn flatten(levels: &mut Vec<Level>, moved: u64) -> io::Result<()> {
    let Some(deepest) = levels.pop() else { return Ok(()) };
    let (Some(first), Some(above)) = (levels.first(), levels.last()) else { return Ok(()) };
    // No entry of a container's making has this name: it would have to hold a process number that is not yet known.
    let name = CString::new(format!("agentcube-{}-{moved}", std::process::id()))?;
    rustix::fs::renameat(&above.directory, &deepest.name, &first.directory, &name)?;
    levels.truncate(1);
    levels.push(Level { directory: deepest.directory, name });
    Ok(())
}

/// Removes all entries that are not full directories, and names one that is.
fn empty_once(directory: BorrowedFd<'_>) -> io::Result<Option<CString>> {
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
    loosen_directory(opened.as_fd());
    Ok(opened)
}

/// Takes away whatever keeps an entry from being deleted, as far as we may.
fn loosen(directory: BorrowedFd<'_>, name: &CStr) {
    loosen_directory(directory);
    // Opening a device or a pipe could block or do something; a place does neither, but has no flags to change.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let regular = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|status| {
        matches!(FileType::from_raw_mode(status.st_mode), FileType::RegularFile | FileType::Directory)
    });
    if regular && let Ok(opened) = openat(directory, name, flags, Mode::empty()) {
        clear_flags(opened.as_fd());
    }
}

fn loosen_directory(directory: BorrowedFd<'_>) {
    clear_flags(directory);
    let may_write = rustix::fs::fstat(directory).is_ok_and(|status| status.st_mode & 0o700 == 0o700);
    if !may_write {
        let _ = rustix::fs::fchmod(directory, Mode::RWXU);
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
fn clear_flags(opened: BorrowedFd<'_>) {
    let Ok(flags) = rustix::fs::ioctl_getflags(opened) else { return };
    let cleared = flags - (IFlags::IMMUTABLE | IFlags::APPEND);
    if cleared != flags {
        let _ = rustix::fs::ioctl_setflags(opened, cleared);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn follows_no_link_and_takes_all() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "x").unwrap();
        let parent = tempfile::tempdir().unwrap();
        let tree = parent.path().join("tree");
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        symlink(outside.path(), tree.join("a/link")).unwrap();
        fs::write(tree.join("a/b/file"), "x").unwrap();
        fs::set_permissions(tree.join("a/b"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(tree.join("a"), fs::Permissions::from_mode(0o500)).unwrap();
        delete(&tree).unwrap();
        assert!(!tree.exists());
        assert!(outside.path().join("kept").exists());
        delete(&tree).unwrap();

        symlink(outside.path(), &tree).unwrap();
        delete(&tree).unwrap();
        assert!(fs::symlink_metadata(&tree).is_err());
        assert!(outside.path().join("kept").exists());
    }

    #[test]
    fn takes_trees_that_are_deeper_than_descriptors_go() {
        let parent = tempfile::tempdir().unwrap();
        let tree = parent.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = openat(CWD, &tree, flags, Mode::empty()).unwrap();
        for _ in 0..2 * MOST_LEVELS + 2 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = openat(&at, "d", flags, Mode::empty()).unwrap();
        }
        delete(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn takes_what_is_marked_immutable() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let tree = parent.path().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("file"), "x").unwrap();
        for path in [tree.join("file"), tree.clone()] {
            let opened = fs::File::open(path).unwrap();
            if rustix::fs::ioctl_setflags(&opened, IFlags::IMMUTABLE).is_err() {
                return; // A file system without such marks.
            }
        }
        assert!(fs::remove_file(tree.join("file")).is_err());
        delete(&tree).unwrap();
        assert!(!tree.exists());
    }
}
