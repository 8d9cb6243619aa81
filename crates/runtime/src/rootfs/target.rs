//! Finds and makes places in a container's file system. Every lookup treats the container's root as `/`, so no symbolic
//! link of an image leads out of it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, readlinkat};
use rustix::io::Errno;

/// As the kernel allows for one lookup.
const MOST_LINKS: u32 = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File,
}

/// Opens a path of the container, as a place only.
pub(crate) fn open(root: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Opens a path of the container and makes what is missing of it.
pub(crate) fn ensure(root: BorrowedFd<'_>, path: &Path, kind: Kind) -> io::Result<OwnedFd> {
    ensure_through(root, path, kind, MOST_LINKS)
}

fn ensure_through(root: BorrowedFd<'_>, path: &Path, kind: Kind, links: u32) -> io::Result<OwnedFd> {
    match open(root, path) {
        Err(Errno::NOENT) => {}
        other => return Ok(other?),
    }
    let path = normalize(path);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(open(root, Path::new("/"))?);
    };
    let directory = ensure_through(root, parent, Kind::Directory, links)?;
    match make(&directory, name, kind) {
        // Something is there although nothing was found: a symbolic link to what does not exist yet.
        Err(Errno::EXIST) => {
            let to = readlinkat(&directory, name, Vec::new())?;
            let links = links.checked_sub(1).ok_or(Errno::LOOP)?;
            ensure_through(root, &parent.join(OsStr::from_bytes(to.as_bytes())), kind, links)
        }
        other => Ok(other?),
    }
}

fn make(directory: &OwnedFd, name: &OsStr, kind: Kind) -> rustix::io::Result<OwnedFd> {
    let place = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match kind {
        Kind::Directory => mkdirat(directory, name, Mode::from_raw_mode(0o755))?,
        Kind::File => {
            let create = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            openat(directory, name, create, Mode::from_raw_mode(0o644))?;
        }
    }
    openat(directory, name, place, Mode::empty())
}

/// Takes `.` and `..` out of a path by its text; `..` stops at the root.
pub(crate) fn normalize(path: &Path) -> PathBuf {
    let mut normal = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => {
                normal.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A root with links that lead out of it, and what `path` becomes in it.
    fn made(path: &str, kind: Kind) -> (io::Result<()>, Vec<String>) {
        let outside = tempfile::tempdir().unwrap();
        let root = outside.path().join("root");
        fs::create_dir_all(root.join("etc")).unwrap();
        symlink("/run/new", root.join("etc/absolute")).unwrap();
        symlink("../../../../made", root.join("etc/relative")).unwrap();
        symlink(outside.path(), root.join("etc/out")).unwrap();
        symlink("loop", root.join("etc/loop")).unwrap();
        let opened = fs::File::open(&root).unwrap();
        let result = ensure(opened.as_fd(), Path::new(path), kind).map(drop);
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1, "{path} was made outside of the root");
        let mut found = Vec::new();
        walk(&root, &root, &mut found);
        found.sort();
        (result, found)
    }

    fn walk(root: &Path, directory: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let kind = entry.file_type().unwrap();
            if kind.is_symlink() {
                continue;
            }
            let name = entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if kind.is_dir() {
                walk(root, &entry.path(), found);
            }
            found.push(if kind.is_dir() { name + "/" } else { name });
        }
    }

    #[test]
    fn makes_targets_inside_of_the_root_only() {
        let table: &[(&str, Kind, &[&str])] = &[
            ("/etc", Kind::Directory, &["etc/"]),
            ("/data/deep/file", Kind::File, &["data/", "data/deep/", "data/deep/file", "etc/"]),
            ("/etc/absolute/x", Kind::Directory, &["etc/", "run/", "run/new/", "run/new/x/"]),
            ("/etc/relative", Kind::File, &["etc/", "made"]),
            ("/../../escape", Kind::Directory, &["escape/", "etc/"]),
        ];
        for (path, kind, expected) in table {
            let (result, found) = made(path, *kind);
            result.unwrap();
            assert_eq!(found, *expected, "{path}");
        }
    }

    #[test]
    fn follows_a_link_to_the_outside_within_the_root() {
        let (result, found) = made("/etc/out/file", Kind::File);
        result.unwrap();
        assert!(found.iter().any(|name| name.ends_with("/file")), "{found:?}");
    }

    #[test]
    fn gives_up_on_links_without_end() {
        let (result, _) = made("/etc/loop/file", Kind::File);
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }
}
