//! `fsGroup`: gives a volume to the group that the containers of a Pod share. Works on open files and follows no link,
//! so that what containers put into a volume cannot lead out of it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Directories deeper than this are left as they are: each level holds two open files.
const DEEPEST: usize = 256;
const SHARED_DIRECTORY: u32 = 0o2770;
const SHARED_FILE: u32 = 0o660;

/// The group that a Pod asks for.
pub(super) fn group(pod: &Pod) -> Option<u32> {
    let group = pod.spec.as_ref()?.security_context.as_ref()?.fs_group?;
    u32::try_from(group).ok()
}

/// Whether only a volume whose root does not fit is looked at.
pub(super) fn only_on_mismatch(pod: &Pod) -> bool {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    context.and_then(|context| context.fs_group_change_policy.as_deref()) == Some("OnRootMismatch")
}

/// Gives a file to a group. Without privileges that is not possible, nor needed: then everything runs as one user.
pub(super) fn give(file: &File, group: u32) -> io::Result<()> {
    match rustix::fs::fchown(file, None, Some(Gid::from_raw(group))) {
        Ok(()) => Ok(()),
        Err(Errno::PERM | Errno::INVAL) if !rustix::process::geteuid().is_root() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Gives everything in a directory to a group, which may then write it.
pub(super) fn share(directory: &Path, group: u32, only_on_mismatch: bool) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(directory, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&root)?;
    if only_on_mismatch && stat.st_gid == group && stat.st_mode & SHARED_DIRECTORY == SHARED_DIRECTORY {
        return Ok(());
    }
    share_entries(&root, group, 0)?;
    // The root last: it says that the rest is done.
    change(root.as_fd().try_clone_to_owned()?.into(), &stat, group)
}

fn share_entries(directory: &OwnedFd, group: u32, depth: usize) -> io::Result<()> {
    if depth > DEEPEST {
        return Ok(());
    }
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            stat => stat?,
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        // Opening a pipe or a device could block or have effects.
        let extra = match kind {
            FileType::Directory => OFlags::DIRECTORY,
            FileType::RegularFile => OFlags::NONBLOCK,
            _ => continue,
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | extra;
        let file = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
            // Gone, or became a link in the meantime.
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => continue,
            file => file?,
        };
        let stat = rustix::fs::fstat(&file)?;
        if kind == FileType::Directory {
            share_entries(&file, group, depth + 1)?;
        }
        change(file.into(), &stat, group)?;
    }
    Ok(())
}

fn change(file: File, stat: &Stat, group: u32) -> io::Result<()> {
    let mask = if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        SHARED_DIRECTORY
    } else {
        // What its owner may execute, so may the group.
        SHARED_FILE | if stat.st_mode & 0o100 == 0 { 0 } else { 0o110 }
    };
    if stat.st_gid != group {
        give(&file, group)?;
    }
    if stat.st_mode & mask != mask || stat.st_gid != group {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(stat.st_mode & 0o7777 | mask))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn everything_below_but_nothing_behind_links() {
        let directory = tempfile::tempdir().unwrap();
        let (volume, outside) = (directory.path().join("v"), directory.path().join("outside"));
        fs::create_dir_all(volume.join("sub")).unwrap();
        for file in [&outside, &volume.join("sub/file")] {
            fs::write(file, "x").unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o700)).unwrap();
        }
        symlink(&outside, volume.join("link")).unwrap();
        symlink(directory.path(), volume.join("linked-directory")).unwrap();
        let root = rustix::process::geteuid().is_root();
        let group = if root { 4242 } else { fs::metadata(&volume).unwrap().gid() };
        share(&volume, group, false).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&volume) & 0o2070, 0o2070);
        assert_eq!(mode(&volume.join("sub")) & 0o2070, 0o2070);
        assert_eq!(mode(&volume.join("sub/file")), 0o770);
        assert_eq!(fs::metadata(volume.join("sub/file")).unwrap().gid(), group);
        assert_eq!(mode(&outside), 0o700);

        // The root fits: what is below is not looked at.
        fs::set_permissions(volume.join("sub/file"), fs::Permissions::from_mode(0o600)).unwrap();
        share(&volume, group, true).unwrap();
        assert_eq!(mode(&volume.join("sub/file")), 0o600);
        share(&volume, group, false).unwrap();
        assert_eq!(mode(&volume.join("sub/file")), 0o660);
    }
}
