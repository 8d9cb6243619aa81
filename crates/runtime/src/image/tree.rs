//! A directory that nothing written through it can leave, whatever paths, links and whiteouts ask for.
//!
//! Every path is resolved by the kernel with this directory as its root (`openat2` with `RESOLVE_IN_ROOT`), and what is
//! made or removed is named by one component in a directory that is open. There is no check that could be raced.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// How deep directories may be: removing a tree holds one descriptor for each level.
pub(super) const DEPTH: u16 = 200;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const INSIDE: ResolveFlags =
    ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_XDEV);

/// One component of a path: not empty, no slash, neither `.` nor `..`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Component<'a>(&'a OsStr);

impl<'a> Component<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Option<Self> {
        let plain = !bytes.is_empty() && bytes != b"." && bytes != b".." && !bytes.contains(&b'/');
        (plain && !bytes.contains(&0)).then(|| Self(OsStr::from_bytes(bytes)))
    }

    pub(super) fn as_os_str(self) -> &'a OsStr {
        self.0
    }
}

/// An open directory of the tree.
pub(super) struct Directory {
    fd: OwnedFd,
    inode: u64,
}

impl Directory {
    pub(super) fn inode(&self) -> u64 {
        self.inode
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(super) struct Tree {
    root: OwnedFd,
    /// By inode: every directory here was made by this value, and none is ever moved.
    depths: HashMap<u64, u16>,
    /// What the present layer has, by the inode of its directory. A name seen through a symbolic link is the same name.
    fresh: HashSet<(u64, OsString)>,
    /// The directory that was asked for last; most entries of an archive follow a neighbour.
    last: Option<(Vec<u8>, std::rc::Rc<Directory>)>,
}

impl Tree {
    /// `root` must be an empty directory.
    pub(super) fn new(root: &Path) -> io::Result<Self> {
        let root = fs::open(root, DIRECTORY, Mode::empty())?;
        let depths = HashMap::from([(fs::fstat(&root)?.st_ino, 0)]);
        Ok(Self { root, depths, fresh: HashSet::new(), last: None })
    }

    /// What was made until now belongs to the layers below: whiteouts apply to it.
    pub(super) fn begin_layer(&mut self) {
        self.fresh.clear();
    }

    /// The directory at `path`, made with its parents where missing.
    pub(super) fn directory(&mut self, path: &[Component<'_>]) -> io::Result<std::rc::Rc<Directory>> {
        let joined = join(path);
        if let Some((last, directory)) = &self.last
            && *last == joined
        {
            return Ok(directory.clone());
        }
        let directory = match self.open(&joined, DIRECTORY) {
            Ok(fd) => Directory { inode: fs::fstat(&fd)?.st_ino, fd },
            Err(Errno::NOENT) => self.make(path)?,
            Err(error) => return Err(error.into()),
        };
        let directory = std::rc::Rc::new(directory);
        self.last = Some((joined, directory.clone()));
        Ok(directory)
    }

    /// Opens what is there, following symbolic links inside the tree.
    pub(super) fn open(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let path: &[u8] = if path.is_empty() { b"." } else { path };
        fs::openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), INSIDE)
    }

    fn make(&mut self, path: &[Component<'_>]) -> io::Result<Directory> {
        let Some((&name, above)) = path.split_last() else {
            return Err(io::Error::other("the root directory is gone"));
        };
        let parent = self.directory(above)?;
        self.make_directory(&parent, name)?;
        let fd = self.open(&join(path), DIRECTORY)?;
        Ok(Directory { inode: fs::fstat(&fd)?.st_ino, fd })
    }

    /// A directory that all may pass through, for when the image says nothing of it.
    pub(super) fn make_directory(&mut self, parent: &Directory, name: Component<'_>) -> io::Result<()> {
        let depth = self.depths.get(&parent.inode).copied().unwrap_or(DEPTH) + 1;
        if depth > DEPTH {
            return Err(io::Error::other(format!("directories are nested deeper than {DEPTH}")));
        }
        let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
        fs::mkdirat(parent, name.0, mode)?;
        // The process's umask is no property of the image.
        fs::chmodat(parent, name.0, mode, AtFlags::empty())?;
        let inode = fs::statat(parent, name.0, AtFlags::SYMLINK_NOFOLLOW)?.st_ino;
        self.depths.insert(inode, depth);
        self.made(parent, name);
        Ok(())
    }

    /// Remembers that the present layer has this name.
    pub(super) fn made(&mut self, parent: &Directory, name: Component<'_>) {
        self.fresh.insert((parent.inode, name.0.to_owned()));
    }

    /// What `name` is, if anything.
    pub(super) fn kind(&self, parent: &Directory, name: Component<'_>) -> io::Result<Option<FileType>> {
        match fs::statat(parent, name.0, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes `name` with all below it.
    pub(super) fn remove(&mut self, parent: &Directory, name: Component<'_>) -> io::Result<()> {
        self.last = None;
        remove_at(parent.as_fd(), name.0)
    }

    /// Removes what the layers below have at `name`; what the present layer has stays.
    pub(super) fn hide(&mut self, parent: &Directory, name: Component<'_>) -> io::Result<()> {
        self.last = None;
        self.hide_at(parent.as_fd(), parent.inode, name.0)
    }

    /// Removes what the layers below have in `directory`; what the present layer has stays.
    pub(super) fn hide_content(&mut self, directory: &Directory) -> io::Result<()> {
        self.last = None;
        self.hide_all(directory.as_fd(), directory.inode)
    }

    fn hide_at(&self, parent: BorrowedFd<'_>, inode: u64, name: &OsStr) -> io::Result<()> {
        let stat = match fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let fresh = self.fresh.contains(&(inode, name.to_owned()));
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return if fresh { Ok(()) } else { Ok(fs::unlinkat(parent, name, AtFlags::empty())?) };
        }
        let directory = fs::openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        self.hide_all(directory.as_fd(), stat.st_ino)?;
        if fresh {
            return Ok(());
        }
        match fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            // Something of the present layer is in it.
            Err(Errno::NOTEMPTY) => Ok(()),
            other => Ok(other?),
        }
    }

    fn hide_all(&self, directory: BorrowedFd<'_>, inode: u64) -> io::Result<()> {
        names_in(directory)?.iter().try_for_each(|name| self.hide_at(directory, inode, name))
    }
}

/// Removes a whole tree, made by a [`Tree`] or not, even where its modes forbid its owner to. Not being there is fine.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    match fs::open(parent, DIRECTORY, Mode::empty()) {
        Ok(parent) => remove_at(parent.as_fd(), name),
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn remove_at(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM | Errno::ACCESS) => {}
        Err(error) => return Err(error.into()),
    }
    let directory = match fs::openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::ACCESS) => {
            fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
            fs::openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?
        }
        other => other?,
    };
    let mode = fs::fstat(&directory)?.st_mode;
    if Mode::from_raw_mode(mode).intersection(Mode::RWXU) != Mode::RWXU {
        fs::fchmod(&directory, Mode::RWXU)?;
    }
    for child in names_in(directory.as_fd())? {
        remove_at(directory.as_fd(), &child)?;
    }
    Ok(fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

fn names_in(directory: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in fs::Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    Ok(names)
}

pub(super) fn join(path: &[Component<'_>]) -> Vec<u8> {
    path.iter().map(|component| component.0.as_bytes()).collect::<Vec<_>>().join(&b'/')
}
