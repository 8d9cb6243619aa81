//! Paths below a directory that containers write to. Links are followed by the kernel, and only as long as they stay
//! below; what comes back has no links in it.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// The true path of `path` below `root`. Directories that are missing are made with the permissions of the root.
pub(super) fn resolve(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let root = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let found = match open(&root, path, OFlags::empty()) {
        Err(Errno::NOENT) => make(&root, path)?,
        found => found?,
    };
    fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

fn open(root: &OwnedFd, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC | flags, Mode::empty(), BENEATH)
}

fn make(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(root)?.st_mode & 0o7777);
    let mut parent = open(root, Path::new("."), OFlags::DIRECTORY)?;
    let mut sofar = PathBuf::new();
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        sofar.push(name);
        parent = match open(root, &sofar, OFlags::DIRECTORY) {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&parent, name, mode) {
                    Ok(()) => {
                        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                        let made = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
                        // Not what the umask left of it.
                        rustix::fs::fchmod(&made, mode)?;
                    }
                    Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                open(root, &sofar, OFlags::DIRECTORY)?
            }
            opened => opened?,
        };
    }
    Ok(parent)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn what_leads_out_is_refused_and_what_is_missing_is_made() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        let root = base.join("volume");
        fs::create_dir_all(root.join("inner")).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(root.join("inner/file"), "x").unwrap();
        symlink("/etc", root.join("absolute")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("../volume/inner", root.join("out-and-back")).unwrap();
        symlink("inner", root.join("link")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        for (path, expected) in [
            ("inner", Some("inner")),
            ("inner/file", Some("inner/file")),
            ("link/file", Some("inner/file")),
            ("new/deep", Some("new/deep")),
            ("link/new", Some("inner/new")),
            ("absolute", None),
            ("absolute/passwd", None),
            ("absolute/new", None),
            ("up", None),
            ("up/new", None),
            ("out-and-back", None),
            ("dangling", None),
            ("dangling/new", None),
            ("magic/etc", None),
            ("inner/file/new", None),
            ("../volume", None),
            ("/etc", None),
        ] {
            let found = resolve(&root, Path::new(path)).ok();
            assert_eq!(found, expected.map(|path| root.join(path)), "{path}");
        }
        assert_eq!(fs::metadata(root.join("new/deep")).unwrap().permissions().mode() & 0o777, 0o777);
        assert!(!base.join("new").exists());
    }
}
