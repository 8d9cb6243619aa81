//! What all containers of a node have alike, mounted once in the spawner's own mount namespace and copied for each: the
//! devices, and this machine's programs without its secrets. It is read-only, so that no container can leave anything
//! in it for another.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mkdirat, mknodat, openat, symlinkat};

use super::mount::{self, Extent, NO_DEV, NO_SUID, READ_ONLY};
use super::target::{self, Kind};
use crate::spawner::places_directory;

/// Device files: name, major, minor.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// The directories of this machine that hold programs, libraries and their settings.
const SYSTEM: [&str; 9] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "opt"];

/// Never shown, even where a machine's owner has left them readable to all.
const SECRETS: [&str; 13] = [
    "etc/shadow",
    "etc/shadow-",
    "etc/gshadow",
    "etc/gshadow-",
    "etc/sudoers",
    "etc/sudoers.d",
    "etc/ssl/private",
    "etc/pki/tls/private",
    "etc/kubernetes",
    "etc/rancher",
    "etc/wireguard",
    "etc/krb5.keytab",
    "etc/NetworkManager/system-connections",
];
/// Where secrets are looked for; a larger `/etc` than this is not gone through to its end.
const MOST_ENTRIES: usize = 50_000;

/// What is hidden of kernel file systems and is a directory on the kernels that were looked at.
const DIRECTORIES: [&str; 5] = ["acpi", "asound", "scsi", "devices/virtual/powercap", "firmware"];

pub(crate) struct Template {
    /// Where it is mounted, with `dev`, `empty`, `stage` and `system` in it. A path and no descriptor: each container looks in
    /// its own copy of our mounts, and could not use ours.
    path: PathBuf,
    /// What lies below every image.
    pub(super) places: PathBuf,
    pub(super) system: Vec<Entry>,
    /// Below the root; already hidden in `system`.
    pub(super) secrets: Vec<PathBuf>,
}

/// A name directly under `/` of this machine.
pub(super) enum Entry {
    Directory(&'static str),
    Link(&'static str, PathBuf),
}

impl Template {
    /// Mounts it in the runtime's directory. Rootless, nobody's secrets but our own can be read anyway.
    pub(crate) fn mount(directory: &Path, rootless: bool) -> io::Result<Self> {
        let path = directory.join("template");
        let place = openat(CWD, &path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let root = mount::filesystem("tmpfs", &[("mode", "0755"), ("size", "1m")], NO_SUID)?;
        mount::attach(&root, place)?;
        for name in ["dev", "empty", "stage", "stage/dev", "stage/proc", "stage/sys", "system"] {
            mkdirat(&root, name, Mode::from_raw_mode(0o755))?;
        }
        devices(&root)?;
        let system = system(&root)?;
        let secrets = if rootless { Vec::new() } else { secrets() };
        mount::restrict(&root, READ_ONLY, Extent::One)?;
        let template = Self { path, places: places_directory(directory), system, secrets };
        let system = openat(&root, "system", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        for secret in &template.secrets {
            template.hide(&system, secret)?;
        }
        Ok(template)
    }

    /// A copy of `/dev`, still without what belongs to one container.
    pub(super) fn devices(&self) -> io::Result<OwnedFd> {
        mount::copy_tree(CWD, self.path.join("dev"))
    }

    /// Places for `/dev`, `/proc` and `/sys` of whoever has no root yet.
    pub(super) fn stage(&self) -> PathBuf {
        self.path.join("stage")
    }

    pub(super) fn system(&self, name: &str) -> io::Result<OwnedFd> {
        mount::copy_tree(CWD, self.path.join("system").join(name))
    }

    /// Lets a path of a container show nothing: an empty directory, or a file that is always empty.
    pub(super) fn hide(&self, root: impl AsFd, path: &Path) -> io::Result<()> {
        let place = match target::open(root, path) {
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(()),
            other => other?,
        };
        let nothing = match kind(&place)? {
            Kind::Directory => "empty",
            Kind::File => "dev/null",
        };
        mount::attach(mount::copy_tree(CWD, self.path.join(nothing))?, place)
    }

    /// The same for a name in a kernel file system that is the working directory.
    pub(super) fn hide_here(&self, name: &str) -> rustix::io::Result<()> {
        let hide = |nothing: &str| mount::bind_here(self.path.join(nothing), name);
        let (likely, other) =
            if DIRECTORIES.contains(&name) { ("empty", "dev/null") } else { ("dev/null", "empty") };
        match hide(likely) {
            Err(rustix::io::Errno::NOTDIR) => hide(other),
            Err(rustix::io::Errno::NOENT) => Ok(()),
            done => done,
        }
    }
}

pub(super) fn kind(place: impl AsFd) -> io::Result<Kind> {
    let status = rustix::fs::fstat(place)?;
    let directory = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
    Ok(if directory { Kind::Directory } else { Kind::File })
}

fn devices(root: &OwnedFd) -> io::Result<()> {
    let dev = openat(root, "dev", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    for (name, major, minor) in DEVICES {
        let mode = Mode::from_raw_mode(0o666);
        if mknodat(&dev, name, FileType::CharacterDevice, mode, makedev(major, minor)).is_err() {
            // Without the right to make device files, the machine's own are shown.
            let place = target::ensure(dev.as_fd(), Path::new(name), Kind::File)?;
            mount::attach(mount::copy_tree(CWD, Path::new("/dev").join(name))?, place)?;
        }
    }
    for (name, to) in DEVICE_LINKS {
        symlinkat(to, &dev, name)?;
    }
    for name in ["pts", "shm", "mqueue"] {
        mkdirat(&dev, name, Mode::from_raw_mode(0o755))?;
    }
    // All containers share this directory read-only, so the places of mounts in it must be there already: the one
    // that orchestrators use for a program's last words.
    target::ensure(dev.as_fd(), Path::new("termination-log"), Kind::File)?;
    Ok(())
}

fn system(root: &OwnedFd) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for name in SYSTEM {
        let path = Path::new("/").join(name);
        let Ok(status) = std::fs::symlink_metadata(&path) else { continue };
        if status.is_symlink() {
            entries.push(Entry::Link(name, std::fs::read_link(&path)?));
        } else if status.is_dir() {
            let place = target::ensure(root.as_fd(), &Path::new("system").join(name), Kind::Directory)?;
            let tree = mount::copy_tree(CWD, &path)?;
            mount::restrict(&tree, READ_ONLY | NO_SUID | NO_DEV, Extent::Tree)?;
            mount::attach(tree, place)?;
            entries.push(Entry::Directory(name));
        }
    }
    Ok(entries)
}

/// What the machine's ordinary users may not read in `/etc`, a container's root may not read either.
fn secrets() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = SECRETS.iter().map(PathBuf::from).collect();
    let mut todo = vec![PathBuf::from("/etc")];
    let mut seen = 0;
    while let Some(directory) = todo.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            seen += 1;
            let Ok(status) = entry.metadata() else { continue };
            let needed = if status.is_dir() { 0o005 } else { 0o004 };
            if status.is_symlink() || seen > MOST_ENTRIES {
                continue;
            }
            if status.permissions().mode() & needed != needed {
                found.extend(entry.path().strip_prefix("/").map(Path::to_owned));
            } else if status.is_dir() {
                todo.push(entry.path());
            }
        }
    }
    found.sort();
    found.dedup();
    // What lies in a hidden directory needs no hiding of its own.
    let all = found.clone();
    found.retain(|path| !path.ancestors().skip(1).any(|above| all.iter().any(|other| other == above)));
    found
}
