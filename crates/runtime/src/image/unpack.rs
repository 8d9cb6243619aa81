//! Flattens the layers of an image, in order, into one root directory.
//!
//! Trusts nothing in a layer: writes go through a [`Tree`], sizes and counts are limited, and the digests of the blob
//! and of its content are checked. What was written before a digest turned out wrong is the caller's to throw away.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::decode::{Decoder, Limited, TooLarge};
use super::digest::{Digest, Hasher, Hashing};
use super::tar::{self, Archive, Entry, Kind};
use super::tree::{Component, Directory, Tree, join};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Bookkeeping of a file system that images were once made with.
const AUFS: &[u8] = b".wh..wh.";

/// How large an image may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub layers: usize,
    /// One layer as it is stored or sent.
    pub layer_bytes: u64,
    /// All layers together, decompressed.
    pub unpacked_bytes: u64,
    /// Files, directories and links of all layers together.
    pub entries: u64,
    pub path_bytes: usize,
    /// A manifest, an index or a configuration.
    pub manifest_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            layers: 512,
            layer_bytes: 16 << 30,
            unpacked_bytes: 48 << 30,
            entries: 2_000_000,
            path_bytes: 4096,
            manifest_bytes: 4 << 20,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("layer {layer}: {cause}")]
    Archive { layer: Digest, cause: tar::Error },
    #[error("layer {layer}: cannot read it: {cause}")]
    Read { layer: Digest, cause: io::Error },
    #[error("layer {layer}: {path:?}: {cause}")]
    Write { layer: Digest, path: String, cause: io::Error },
    #[error("layer {layer}: the entry {path:?} {why}")]
    Refused { layer: Digest, path: String, why: &'static str },
    #[error("the image is too large: {what}")]
    TooLarge { what: String },
    #[error("the {what} {expected} is damaged: its content has the digest {found}")]
    Digest { what: &'static str, expected: Digest, found: Digest },
    #[error("the image cannot be written to {path:?}: {cause}")]
    Root { path: String, cause: io::Error },
    #[error("it was interrupted")]
    Interrupted,
}

/// What was said about files and could not be kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Skipped {
    pub(super) devices: u64,
    /// Files that belong to this process's user instead of their owner.
    pub(super) owners: u64,
}

/// Mode and time of a directory, set when nothing more is written to it.
struct Later {
    mode: u32,
    modified: (i64, u32),
}

pub(super) struct Unpacker<'a> {
    tree: Tree,
    root: &'a Path,
    limits: Limits,
    entries_left: u64,
    bytes_left: u64,
    /// By path; a path that is gone at the end is passed over.
    directories: BTreeMap<Vec<u8>, Later>,
    /// Only the superuser can give files away.
    privileged: bool,
    interrupted: &'a (dyn Fn() -> bool + 'a),
    pub(super) skipped: Skipped,
    /// Content of all files, hidden ones included.
    pub(super) bytes: u64,
}

/// Why an entry was not written; the layer and the path are added where they are known.
enum Fault {
    Refused(&'static str),
    Write(io::Error),
    Interrupted,
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

impl From<Errno> for Fault {
    fn from(error: Errno) -> Self {
        Self::Write(error.into())
    }
}

impl<'a> Unpacker<'a> {
    /// `root` must be an empty directory.
    pub(super) fn new(
        root: &'a Path,
        limits: Limits,
        interrupted: &'a (dyn Fn() -> bool + 'a),
    ) -> Result<Self, Error> {
        let tree =
            Tree::new(root).map_err(|cause| Error::Root { path: root.display().to_string(), cause })?;
        let privileged = rustix::process::geteuid().is_root();
        Ok(Self {
            tree,
            root,
            limits,
            entries_left: limits.entries,
            bytes_left: limits.unpacked_bytes,
            directories: BTreeMap::new(),
            privileged,
            interrupted,
            skipped: Skipped::default(),
            bytes: 0,
        })
    }

    /// Applies a layer above those before it. `blob` is the digest of the bytes as they come, where it is known.
    pub(super) fn layer(
        &mut self,
        input: impl Read,
        blob: Option<&Digest>,
        content: &Digest,
    ) -> Result<(), Error> {
        self.tree.begin_layer();
        let read = |cause| read_error(content, cause);
        let mut compressed = Hashing::new(input, blob.map_or_else(Hasher::sha256, Hasher::like));
        // Taken out so that reading and writing can both borrow.
        let mut bytes_left = self.bytes_left;
        let decoder = Decoder::new(&mut compressed).map_err(read)?;
        let limited = Limited::new(decoder, &mut bytes_left);
        let mut archive = Archive::new(Hashing::new(limited, Hasher::like(content)));
        self.entries(&mut archive, content)?;
        let mut plain = archive.into_input();
        // The digests also cover what follows the end of the archive.
        io::copy(&mut plain, &mut io::sink()).map_err(read)?;
        check("content of the layer", content, plain.finish())?;
        self.bytes_left = bytes_left;
        io::copy(&mut compressed, &mut io::sink()).map_err(read)?;
        blob.map_or(Ok(()), |blob| check("layer", blob, compressed.finish()))
    }

    fn entries(&mut self, archive: &mut Archive<impl Read>, layer: &Digest) -> Result<(), Error> {
        loop {
            let next = archive.next().map_err(|cause| match cause {
                tar::Error::Read(cause) => read_error(layer, cause),
                cause => Error::Archive { layer: layer.clone(), cause },
            })?;
            let Some(entry) = next else { return Ok(()) };
            let Some(left) = self.entries_left.checked_sub(1) else {
                let what = format!("it has more than {} entries", self.limits.entries);
                return Err(Error::TooLarge { what });
            };
            self.entries_left = left;
            self.entry(&entry, archive).map_err(|fault| self.fault(fault, layer, &entry))?;
        }
    }

    fn fault(&self, fault: Fault, layer: &Digest, entry: &Entry) -> Error {
        let path = String::from_utf8_lossy(&entry.path[..entry.path.len().min(self.limits.path_bytes)]);
        let (layer, path) = (layer.clone(), path.into_owned());
        match fault {
            Fault::Refused(why) => Error::Refused { layer, path, why },
            Fault::Write(cause) if is_too_large(&cause) => read_error(&layer, cause),
            Fault::Write(cause) => Error::Write { layer, path, cause },
            Fault::Interrupted => Error::Interrupted,
        }
    }

    fn entry(&mut self, entry: &Entry, content: &mut impl Read) -> Result<(), Fault> {
        if (self.interrupted)() {
            return Err(Fault::Interrupted);
        }
        let path = components(&entry.path, self.limits.path_bytes)?;
        let Some((&name, above)) = path.split_last() else {
            // The root directory itself.
            if entry.kind == Kind::Directory {
                self.directories.insert(Vec::new(), Later { mode: entry.mode, modified: entry.modified });
            }
            return Ok(());
        };
        let bytes = name.as_os_str().as_encoded_bytes();
        if bytes.starts_with(AUFS) && bytes != OPAQUE || above.iter().any(|part| is_aufs(*part)) {
            return Ok(());
        }
        let parent = self.tree.directory(above)?;
        if bytes == OPAQUE {
            return Ok(self.tree.hide_content(&parent)?);
        }
        if let Some(hidden) = bytes.strip_prefix(WHITEOUT) {
            let hidden = Component::new(hidden).ok_or(Fault::Refused("hides no name"))?;
            return Ok(self.tree.hide(&parent, hidden)?);
        }
        self.write(entry, &path, &parent, name, content)
    }

    fn write(
        &mut self,
        entry: &Entry,
        path: &[Component<'_>],
        parent: &Directory,
        name: Component<'_>,
        content: &mut impl Read,
    ) -> Result<(), Fault> {
        if entry.kind == Kind::Device {
            // The runtime gives containers their devices; one from an image would be the host's.
            self.skipped.devices += 1;
            return Ok(());
        }
        // Before anything is removed: a link to itself must not remove its target.
        let linked = if entry.kind == Kind::HardLink { Some(self.linked(entry)?) } else { None };
        match self.tree.kind(parent, name)? {
            Some(FileType::Directory) if entry.kind == Kind::Directory => {}
            Some(_) if linked.as_ref().is_some_and(|(above, target)| same(above, target, parent, name)) => {
                self.tree.made(parent, name);
                return Ok(());
            }
            Some(_) => {
                self.tree.remove(parent, name)?;
                self.forget(&join(path));
            }
            None => {}
        }
        match (entry.kind, linked) {
            (Kind::File, _) => self.file(entry, parent, name, content)?,
            (Kind::Directory, _) => self.directory(entry, path, parent, name)?,
            (Kind::Symlink, _) => self.symlink(entry, parent, name)?,
            (Kind::HardLink, Some((above, target))) => {
                fs::linkat(&above, target.as_os_str(), parent, name.as_os_str(), AtFlags::empty())?;
            }
            (Kind::Fifo, _) => {
                fs::mknodat(parent, name.as_os_str(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
                self.own_at(entry, parent, name)?;
                let mode = Mode::from_raw_mode(entry.mode);
                fs::chmodat(parent, name.as_os_str(), mode, AtFlags::empty())?;
            }
            (Kind::Device | Kind::HardLink, _) => {}
        }
        self.tree.made(parent, name);
        Ok(())
    }

    /// The directory and name that a hard link points to, as the tree sees them.
    fn linked<'e>(&mut self, entry: &'e Entry) -> Result<(std::rc::Rc<Directory>, Component<'e>), Fault> {
        let target = components(&entry.link, self.limits.path_bytes)?;
        let (&name, above) = target.split_last().ok_or(Fault::Refused("is a link to the root directory"))?;
        let above = self.tree.directory(above)?;
        match self.tree.kind(&above, name)? {
            None => Err(Fault::Refused("is a link to something that is not in the image")),
            Some(FileType::Directory) => Err(Fault::Refused("is a hard link to a directory")),
            Some(_) => Ok((above, name)),
        }
    }

    fn file(
        &mut self,
        entry: &Entry,
        parent: &Directory,
        name: Component<'_>,
        content: &mut impl Read,
    ) -> Result<(), Fault> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(parent, name.as_os_str(), flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(file);
        let mut watched = Watched { input: content, interrupted: self.interrupted };
        let written = io::copy(&mut watched, &mut file).map_err(|error| {
            if error.get_ref().is_some_and(|inner| inner.is::<Stopped>()) {
                Fault::Interrupted
            } else {
                Fault::Write(error)
            }
        })?;
        if written != entry.size {
            return Err(Fault::Write(io::ErrorKind::UnexpectedEof.into()));
        }
        self.bytes += written;
        if self.privileged {
            fs::fchown(&file, Some(uid(entry.uid)), Some(gid(entry.gid)))?;
        } else if entry.uid != 0 || entry.gid != 0 {
            self.skipped.owners += 1;
        }
        // After the owner: changing that clears the set-user-id bit and capabilities.
        fs::fchmod(&file, Mode::from_raw_mode(entry.mode))?;
        self.attributes(entry, &file)?;
        Ok(fs::futimens(&file, &times(entry.modified))?)
    }

    fn directory(
        &mut self,
        entry: &Entry,
        path: &[Component<'_>],
        parent: &Directory,
        name: Component<'_>,
    ) -> Result<(), Fault> {
        if self.tree.kind(parent, name)?.is_none() {
            self.tree.make_directory(parent, name)?;
        }
        self.own_at(entry, parent, name)?;
        if !entry.xattrs.is_empty() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = fs::openat(parent, name.as_os_str(), flags, Mode::empty())?;
            self.attributes(entry, &directory)?;
        }
        self.directories.insert(join(path), Later { mode: entry.mode, modified: entry.modified });
        Ok(())
    }

    fn symlink(&mut self, entry: &Entry, parent: &Directory, name: Component<'_>) -> Result<(), Fault> {
        if entry.link.is_empty() || entry.link.len() > self.limits.path_bytes {
            return Err(Fault::Refused("is a symbolic link without a target, or with one that is too long"));
        }
        fs::symlinkat(&entry.link[..], parent, name.as_os_str())?;
        self.own_at(entry, parent, name)?;
        let times = times(entry.modified);
        Ok(fs::utimensat(parent, name.as_os_str(), &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn own_at(&mut self, entry: &Entry, parent: &Directory, name: Component<'_>) -> Result<(), Fault> {
        if self.privileged {
            let (uid, gid) = (uid(entry.uid), gid(entry.gid));
            fs::chownat(parent, name.as_os_str(), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        } else if entry.uid != 0 || entry.gid != 0 {
            self.skipped.owners += 1;
        }
        Ok(())
    }

    /// Attributes of users and, for the superuser, file capabilities. Those of overlay would change what a mount shows.
    fn attributes(&self, entry: &Entry, file: &impl std::os::fd::AsFd) -> Result<(), Fault> {
        for (name, value) in &entry.xattrs {
            let user = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
            let capability = self.privileged && name == b"security.capability";
            if !user && !capability {
                continue;
            }
            match fs::fsetxattr(file, &name[..], value, XattrFlags::empty()) {
                // A file system without them; images are made to work there too.
                Ok(()) | Err(Errno::NOTSUP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// What was to be set on directories that are gone.
    fn forget(&mut self, path: &[u8]) {
        let below = [path, b"/"].concat();
        let after = [path, b"0"].concat();
        self.directories.remove(path);
        let gone: Vec<_> = self.directories.range(below..after).map(|(path, _)| path.clone()).collect();
        for path in gone {
            self.directories.remove(&path);
        }
    }

    /// Sets what waits on directories, and makes all of it durable.
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        let root = self.root;
        let failed = |cause: Errno| Error::Root { path: root.display().to_string(), cause: cause.into() };
        // Deepest first: a directory may take away the owner's right to pass through it.
        for (path, later) in self.directories.iter().rev() {
            let directory = match self.tree.open(path, OFlags::RDONLY | OFlags::DIRECTORY) {
                Ok(directory) => directory,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(error) => return Err(failed(error)),
            };
            fs::fchmod(&directory, Mode::from_raw_mode(later.mode)).map_err(failed)?;
            fs::futimens(&directory, &times(later.modified)).map_err(failed)?;
        }
        let root = self.tree.open(b"", OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
        fs::syncfs(&root).map_err(failed)
    }
}

/// Stops a long copy when the caller is gone.
struct Watched<'a, R> {
    input: &'a mut R,
    interrupted: &'a dyn Fn() -> bool,
}

#[derive(Debug, thiserror::Error)]
#[error("it was interrupted")]
struct Stopped;

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if (self.interrupted)() {
            return Err(io::Error::other(Stopped));
        }
        self.input.read(buffer)
    }
}

/// The components of a path; a leading slash means the image's root, as everything does.
fn components(path: &[u8], limit: usize) -> Result<Vec<Component<'_>>, Fault> {
    if path.len() > limit {
        return Err(Fault::Refused("has a path that is too long"));
    }
    if path.is_empty() {
        return Err(Fault::Refused("has no path"));
    }
    path.split(|&byte| byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(|part| Component::new(part).ok_or(Fault::Refused("has a path that leaves the image")))
        .collect()
}

fn is_aufs(component: Component<'_>) -> bool {
    component.as_os_str().as_encoded_bytes().starts_with(AUFS)
}

/// Whether a hard link and its target are one name.
fn same(above: &Directory, target: &Component<'_>, parent: &Directory, name: Component<'_>) -> bool {
    above.inode() == parent.inode() && *target == name
}

fn check(what: &'static str, expected: &Digest, found: Digest) -> Result<(), Error> {
    if *expected == found { Ok(()) } else { Err(Error::Digest { what, expected: expected.clone(), found }) }
}

fn is_too_large(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<TooLarge>())
}

fn read_error(layer: &Digest, cause: io::Error) -> Error {
    if is_too_large(&cause) {
        return Error::TooLarge { what: "its unpacked layers exceed the limit".to_owned() };
    }
    Error::Read { layer: layer.clone(), cause }
}

fn uid(id: u32) -> fs::Uid {
    fs::Uid::from_raw(id)
}

fn gid(id: u32) -> fs::Gid {
    fs::Gid::from_raw(id)
}

fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) };
    Timestamps { last_access: time, last_modification: time }
}
