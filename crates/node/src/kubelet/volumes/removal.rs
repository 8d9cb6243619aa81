//! Removes what containers wrote, whatever permissions they gave it. Follows no link.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{Dir, FileType, Mode, OFlags};

/// Each level holds three open files.
const DEEPEST: usize = 256;

/// Removes a directory with everything in it; one that is not there is no error.
pub(crate) fn remove_directory(path: &Path) -> io::Result<()> {
    let removed = match fs::remove_dir_all(path) {
        // An ordinary user cannot empty a directory that says no, not even its own.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            unlock(path)?;
            fs::remove_dir_all(path)
        }
        removed => removed,
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Lets the owner into every directory.
fn unlock(path: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    unlock_below(&rustix::fs::open(path, flags, Mode::empty())?, 0)
}

fn unlock_below(directory: &OwnedFd, depth: usize) -> io::Result<()> {
    if depth > DEEPEST {
        return Ok(());
    }
    // Through its descriptor, which cannot become a link in between.
    let own = format!("/proc/self/fd/{}", directory.as_raw_fd());
    fs::set_permissions(own, Permissions::from_mode(0o700))?;
    let readable = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let readable = rustix::fs::openat(directory, c".", readable, Mode::empty())?;
    for entry in Dir::read_from(&readable)? {
        let entry = entry?;
        let name = entry.file_name();
        let known = !matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
        if known || matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if let Ok(below) = rustix::fs::openat(&readable, name, flags, Mode::empty()) {
            unlock_below(&below, depth + 1)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn directories_that_say_no_are_removed_and_what_they_point_to_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (volume, outside) = (directory.path().join("v"), directory.path().join("outside"));
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::set_permissions(&outside, Permissions::from_mode(0o500)).unwrap();
        fs::write(volume.join("a/b/file"), "x").unwrap();
        symlink(&outside, volume.join("a/link")).unwrap();
        for (path, mode) in [("a/b", 0), ("a", 0o500)] {
            fs::set_permissions(volume.join(path), Permissions::from_mode(mode)).unwrap();
        }
        unlock(&volume).unwrap();
        assert_eq!(fs::metadata(volume.join("a/b")).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(&outside).unwrap().permissions().mode() & 0o777, 0o500);
        fs::set_permissions(volume.join("a/b"), Permissions::from_mode(0o0)).unwrap();
        remove_directory(&volume).unwrap();
        assert!(!volume.exists() && outside.exists());
        remove_directory(&volume).unwrap();
    }
}
