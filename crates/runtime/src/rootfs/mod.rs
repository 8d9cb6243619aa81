//! Builds the file system that a container sees. Runs in the container's own mount namespace, before its program.

pub(crate) mod delete;
pub(crate) mod mount;
mod overlay;
pub(crate) mod places;
pub(crate) mod target;
pub(crate) mod template;

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, symlinkat};
use rustix::mount::{MountFlags, UnmountFlags, unmount};

use self::mount::{Extent, NO_DEV, NO_EXEC, NO_SUID, READ_ONLY};
use self::target::Kind;
use self::template::{Entry, Template};
use crate::spawner::{During, Failure, Step};
use crate::spec::{ContainerSpec, Mount, Root, Source};

/// What `/proc` shows of the machine as a whole; as container runtimes have it.
pub(crate) const HIDDEN: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];
pub(crate) const READ_ONLY_PATHS: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// What a root of the machine's own programs has besides, for programs that expect it.
const EXTRA_DIRECTORIES: [&str; 9] = ["dev", "proc", "sys", "tmp", "run", "root", "home", "var", "var/tmp"];
/// Only names lie in the memory of such a root; what programs write goes to `/tmp`, which is on disk.
const HOST_ROOT_BYTES: &str = "16m";
const SHARED_MEMORY: &CStr = c"mode=1777,size=64m";
const TERMINALS: &CStr = c"newinstance,ptmxmode=0666,mode=0620,gid=5";
const TERMINALS_ROOTLESS: &CStr = c"newinstance,ptmxmode=0666,mode=0620";

/// What is mounted in every container, whatever its spec says.
#[derive(Clone, Copy)]
pub(crate) struct Fixtures<'a> {
    pub(crate) template: &'a Template,
    pub(crate) rootless: bool,
    /// The machine has its controllers in one hierarchy, which a container may see its own part of.
    pub(crate) unified_cgroups: bool,
}

/// All of that, mounted where no container sees it yet.
struct Staged(Vec<(&'static str, OwnedFd)>);

/// What is there of a container's file system before anybody has asked for the container.
pub(crate) struct Ahead {
    staged: Staged,
    laid: Option<Laid>,
}

/// A root over an image that may be asked for, with all in it that every container has.
struct Laid {
    image: PathBuf,
    /// The image may have gone since, and another one have come under its name.
    identity: Identity,
    root: OwnedFd,
}

/// Of a directory; as long as something is laid over it, nothing else gets the same.
#[derive(PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(path: &Path) -> rustix::io::Result<Self> {
        let status = rustix::fs::stat(path)?;
        Ok(Self { device: status.st_dev, inode: status.st_ino })
    }
}

pub(crate) struct Builder<'a> {
    pub(crate) fixtures: Fixtures<'a>,
    pub(crate) spec: &'a ContainerSpec,
    /// The directory over which the root is mounted.
    pub(crate) place: &'a Path,
    /// A directory in memory, to be made if it is needed: see [`in_memory`].
    pub(crate) memory: &'a Path,
}

/// Whether only the places of mounts are ever made in a container's root, so that they need no disk. Whoever removes
/// the container deletes them. Before Linux 6.6 a user's memory cannot hold the marks of an overlay.
pub(crate) fn in_memory(spec: &ContainerSpec, rootless: bool) -> bool {
    spec.read_only_root && matches!(spec.root, Root::Directory(_)) && !rootless
}

/// The name of the overlay over an image.
const OVERLAY: &str = "root";

/// Makes a scratch directory with what every container of an image needs in it.
pub fn make_scratch(scratch: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(scratch)?;
    std::fs::set_permissions(scratch, std::fs::Permissions::from_mode(0o755))?;
    overlay::make_ahead(scratch, OVERLAY)
}

/// A root that is complete, but not yet this process's root.
pub(crate) struct Built {
    root: OwnedFd,
}

impl Builder<'_> {
    pub(crate) fn build(&self, ahead: Option<Ahead>, reached: impl Fn(Step)) -> Result<Built, Failure> {
        let root = match ahead.map(|ahead| ahead.root_for(self)) {
            Some(Ok(root)) => root,
            Some(Err(staged)) => {
                let root = self.root(&reached)?;
                staged.move_to(&root)?;
                root
            }
            None => {
                let root = self.root(&reached)?;
                self.fixtures.mount(&root, &reached)?;
                root
            }
        };
        for mount in &self.spec.mounts {
            reached(Step::Mount);
            self.mount(&root, mount)?;
        }
        // A working directory that is missing is made, as long as the root can still be written.
        let _ = target::ensure(root.as_fd(), &self.spec.cwd, Kind::Directory);
        if self.spec.read_only_root {
            mount::restrict(&root, READ_ONLY, Extent::One).during(Step::Root)?;
        }
        Ok(Built { root })
    }

    /// For another runtime: only the root, and what is to be mounted in it, each mounted on a number in `staged`.
    pub(crate) fn lay_out(&self, staged: &Path, reached: impl Fn(Step)) -> Result<(), Failure> {
        let root = self.root(&reached)?;
        for name in ["dev", "proc", "sys"] {
            target::ensure(root.as_fd(), Path::new(name), Kind::Directory).during_at(Step::Root, name)?;
        }
        let staged = openat(CWD, staged, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .during(Step::Mount)?;
        for (number, mount) in self.spec.mounts.iter().enumerate() {
            reached(Step::Mount);
            let (tree, kind) = tree(mount)?;
            let about = mount.target.display();
            // A place in another mount is for the runtime to make, when that is there.
            let above = self.spec.mounts.iter().take(number);
            if !above.into_iter().any(|above| mount.target.starts_with(&above.target)) {
                target::ensure(root.as_fd(), &mount.target, kind).during_at(Step::Mount, &about)?;
            }
            let place = target::ensure(staged.as_fd(), Path::new(&number.to_string()), kind);
            mount::attach(tree, place.during_at(Step::Mount, &about)?).during_at(Step::Mount, about)?;
        }
        let _ = target::ensure(root.as_fd(), &self.spec.cwd, Kind::Directory);
        Ok(())
    }

    fn root(&self, reached: &impl Fn(Step)) -> Result<OwnedFd, Failure> {
        make_own(self.own())?;
        match &self.spec.root {
            Root::Directory(image) => self.image(image),
            Root::Host { also } => {
                reached(Step::System);
                self.host(also)
            }
            Root::Snapshot(name) => {
                let message = format!("{name:?} is an image of another runtime's: this one cannot use it");
                Err(Failure::Invalid(message))
            }
        }
    }

    /// What takes the writes to the root: the scratch directory, or memory.
    fn own(&self) -> &Path {
        if in_memory(self.spec, self.fixtures.rootless) { self.memory } else { &self.spec.scratch }
    }

    fn image(&self, image: &Path) -> Result<OwnedFd, Failure> {
        let root = self.fixtures.over(image, self.own())?;
        self.attach_root(&root)?;
        Ok(root)
    }

    fn host(&self, also: &[std::path::PathBuf]) -> Result<OwnedFd, Failure> {
        let options = [("mode", "0755"), ("size", HOST_ROOT_BYTES)];
        let root = mount::filesystem("tmpfs", &options, NO_SUID | NO_DEV).during(Step::Root)?;
        let temporary = self.scratch_directory("tmp", 0o1777)?;
        // Open before the root hides it.
        let overlays = self.overlays()?;
        self.attach_root(&root)?;
        for name in EXTRA_DIRECTORIES {
            mkdirat(&root, name, Mode::from_raw_mode(0o755)).during_at(Step::Root, name)?;
        }
        for entry in &self.fixtures.template.system {
            match entry {
                Entry::Link(name, to) => symlinkat(to, &root, *name).during_at(Step::System, name)?,
                Entry::Directory(name) => {
                    let overlay = overlays.iter().find(|(overlaid, _)| overlaid == name);
                    self.system(&root, name, overlay.map(|(_, tree)| tree))?;
                }
            }
        }
        if !self.spec.read_only_root {
            let place = target::open(&root, Path::new("tmp")).during(Step::Root)?;
            mount::attach(temporary, place).during_at(Step::Root, "/tmp")?;
        }
        for directory in also {
            // The operator's own choice: links in it are followed.
            let source = directory.canonicalize().during_at(Step::System, directory.display())?;
            let mount = Mount { target: directory.clone(), source: Source::Bind(source), read_only: true };
            self.mount(&root, &mount)?;
        }
        Ok(root)
    }

    fn system(&self, root: &OwnedFd, name: &str, overlay: Option<&OwnedFd>) -> Result<(), Failure> {
        let place =
            target::ensure(root.as_fd(), Path::new(name), Kind::Directory).during_at(Step::System, name)?;
        let Some(overlay) = overlay else {
            let tree = self.fixtures.template.system(name).during_at(Step::System, name)?;
            return mount::attach(tree, place).during_at(Step::System, name);
        };
        mount::attach(overlay, place).during_at(Step::System, name)?;
        let template = self.fixtures.template;
        for secret in template.secrets.iter().filter(|secret| secret.starts_with(name)) {
            template.hide(root, secret).during_at(Step::System, secret.display())?;
        }
        Ok(())
    }

    /// A system directory in which a mount's place is missing becomes an overlay, so that the place can be made.
    fn overlays(&self) -> Result<Vec<(&'static str, OwnedFd)>, Failure> {
        let mut overlays = Vec::new();
        for entry in &self.fixtures.template.system {
            let Entry::Directory(name) = entry else { continue };
            let directory = Path::new("/").join(name);
            let missing = |mount: &Mount| mount.target.starts_with(&directory) && !mount.target.exists();
            if self.spec.mounts.iter().any(missing) {
                let scratch = self::directory(&self.spec.scratch)?;
                let tree = overlay::mount(&[&directory], &scratch, name, self.fixtures.rootless)?;
                mount::restrict(&tree, NO_SUID | NO_DEV, Extent::One).during_at(Step::System, name)?;
                overlays.push((*name, tree));
            }
        }
        Ok(overlays)
    }

    /// The place may be the directory that takes the writes: what is in that has been opened by now.
    fn attach_root(&self, root: &OwnedFd) -> Result<(), Failure> {
        mount::attach(root, directory(self.place)?).during(Step::Root)
    }

    fn scratch_directory(&self, name: &str, mode: u32) -> Result<OwnedFd, Failure> {
        let path = self.spec.scratch.join(name);
        match mkdirat(CWD, &path, Mode::from_raw_mode(mode)) {
            Err(rustix::io::Errno::EXIST) => {}
            other => other.during_at(Step::Root, path.display())?,
        }
        let tree = mount::copy_tree(CWD, &path).during_at(Step::Root, path.display())?;
        mount::restrict(&tree, NO_SUID | NO_DEV, Extent::One).during(Step::Root)?;
        Ok(tree)
    }

    fn mount(&self, root: &OwnedFd, mount: &Mount) -> Result<(), Failure> {
        let about = mount.target.display();
        let (tree, kind) = tree(mount)?;
        let place = target::ensure(root.as_fd(), &mount.target, kind).during_at(Step::Mount, &about)?;
        mount::attach(tree, place).during_at(Step::Mount, about)
    }
}

impl Ahead {
    /// Lays a root over an image, which may turn out not to be the one. `own` takes what is written; the root is mounted
    /// there as well.
    pub(crate) fn lay(&mut self, fixtures: &Fixtures<'_>, image: PathBuf, own: &Path) -> Result<(), Failure> {
        let identity = Identity::of(&image).during_at(Step::Root, image.display())?;
        make_own(own)?;
        let root = fixtures.over(&image, own)?;
        mount::attach(&root, directory(own)?).during(Step::Root)?;
        self.staged.move_to(&root)?;
        self.laid = Some(Laid { image, identity, root });
        Ok(())
    }

    /// The root that is laid, if it is the right one; otherwise what is to be moved to the right one.
    fn root_for(self, builder: &Builder<'_>) -> Result<OwnedFd, Staged> {
        let fits = |laid: &Laid| {
            !in_memory(builder.spec, builder.fixtures.rootless)
                && matches!(&builder.spec.root, Root::Directory(image) if *image == laid.image)
                && Identity::of(&laid.image).is_ok_and(|now| now == laid.identity)
        };
        self.laid.filter(fits).map(|laid| laid.root).ok_or(self.staged)
    }
}

impl Staged {
    fn move_to(&self, root: &OwnedFd) -> Result<(), Failure> {
        for (name, tree) in &self.0 {
            let place = target::ensure(root.as_fd(), Path::new(name), Kind::Directory);
            mount::attach(tree, place.during_at(Step::Mount, name)?).during_at(Step::Mount, name)?;
        }
        Ok(())
    }
}

impl Fixtures<'_> {
    /// Mounts them where only this process sees them, for a root that is not there yet.
    pub(crate) fn stage(&self, reached: impl Fn(Step)) -> Result<Ahead, Failure> {
        let staged = self.mount(&directory(&self.template.stage())?, &reached)?;
        Ok(Ahead { staged, laid: None })
    }

    /// An overlay even where the root is read-only: the places for mounts have to be made somewhere.
    fn over(&self, image: &Path, own: &Path) -> Result<OwnedFd, Failure> {
        let root = overlay::mount(&[image, &self.template.places], &directory(own)?, OVERLAY, self.rootless)?;
        mount::restrict(&root, NO_DEV, Extent::One).during(Step::Root)?;
        Ok(root)
    }

    fn mount(&self, root: &OwnedFd, reached: &impl Fn(Step)) -> Result<Staged, Failure> {
        reached(Step::Devices);
        let mut staged = vec![("/dev", self.devices(root)?)];
        reached(Step::Proc);
        staged.push(("/proc", self.proc(root)?));
        reached(Step::Sys);
        staged.extend(self.sys(root)?.map(|tree| ("/sys", tree)));
        Ok(Staged(staged))
    }

    fn devices(&self, root: &OwnedFd) -> Result<OwnedFd, Failure> {
        let place = target::ensure(root.as_fd(), Path::new("/dev"), Kind::Directory).during(Step::Devices)?;
        let devices = self.template.devices().during(Step::Devices)?;
        mount::attach(&devices, place).during(Step::Devices)?;
        // From here on relative to it: nothing in it is of a container's making.
        rustix::process::fchdir(&devices).during(Step::Devices)?;
        // The group of terminals; without a map for it, those of our own.
        let terminals = if self.rootless { TERMINALS_ROOTLESS } else { TERMINALS };
        let quiet = MountFlags::NOSUID | MountFlags::NOEXEC;
        let mounts = [
            ("pts", "devpts", terminals, quiet),
            ("shm", "tmpfs", SHARED_MEMORY, quiet | MountFlags::NODEV),
            ("mqueue", "mqueue", c"", quiet | MountFlags::NODEV),
        ];
        for (name, kind, options, flags) in mounts {
            match mount::filesystem_here(kind, name, options, flags) {
                // Kernels without POSIX message queues.
                Err(error) if name == "mqueue" && error.raw_os_error() == Some(libc::ENODEV) => {}
                other => other.during_at(Step::Devices, name)?,
            }
        }
        Ok(devices)
    }

    fn proc(&self, root: &OwnedFd) -> Result<OwnedFd, Failure> {
        let place = target::ensure(root.as_fd(), Path::new("/proc"), Kind::Directory).during(Step::Proc)?;
        let tree = match mount::filesystem("proc", &[], NO_SUID | NO_DEV | NO_EXEC) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                return Err(Failure::Unsupported(
                    "this machine does not let us mount /proc, as when we run in a container that hides parts of \
                     its own /proc: start that container with those parts unmasked"
                        .to_owned(),
                ));
            }
            other => other.during(Step::Proc)?,
        };
        mount::attach(&tree, place).during(Step::Proc)?;
        rustix::process::fchdir(&tree).during(Step::Proc)?;
        for path in READ_ONLY_PATHS.iter().filter_map(|path| path.strip_prefix("/proc/")) {
            match mount::read_only_here(path) {
                Err(rustix::io::Errno::NOENT) => {}
                other => other.during_at(Step::Proc, path)?,
            }
        }
        self.hide_here("/proc/", Step::Proc)?;
        Ok(tree)
    }

    /// A machine that does not let us mount `/sys` leaves it empty: few programs need it.
    fn sys(&self, root: &OwnedFd) -> Result<Option<OwnedFd>, Failure> {
        let place = target::ensure(root.as_fd(), Path::new("/sys"), Kind::Directory).during(Step::Sys)?;
        let Ok(tree) = mount::filesystem("sysfs", &[], READ_ONLY | NO_SUID | NO_DEV | NO_EXEC) else {
            return Ok(None);
        };
        mount::attach(&tree, place).during(Step::Sys)?;
        if self.unified_cgroups {
            self.cgroups(root);
        }
        rustix::process::fchdir(&tree).during(Step::Sys)?;
        self.hide_here("/sys/", Step::Sys)?;
        Ok(Some(tree))
    }

    /// Where language runtimes look for their limits. Those that do not find it see the machine's.
    fn cgroups(&self, root: &OwnedFd) {
        let mounted = mount::filesystem("cgroup2", &[], READ_ONLY | NO_SUID | NO_DEV | NO_EXEC);
        let place = target::open(root, Path::new("/sys/fs/cgroup"));
        if let (Ok(tree), Ok(place)) = (mounted, place) {
            let _ = mount::attach(tree, place);
        }
    }

    /// In a kernel file system that is the working directory.
    fn hide_here(&self, below: &str, step: Step) -> Result<(), Failure> {
        for path in HIDDEN.iter().filter_map(|path| path.strip_prefix(below)) {
            self.template.hide_here(path).during_at(step, path)?;
        }
        Ok(())
    }
}

/// What takes the writes to a root.
fn make_own(path: &Path) -> Result<(), Failure> {
    match mkdirat(CWD, path, Mode::from_raw_mode(0o755)) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        other => other.during_at(Step::Root, path.display()),
    }
}

fn directory(path: &Path) -> Result<OwnedFd, Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).during_at(Step::Root, path.display())
}

/// What is to be mounted, with its restrictions, mounted nowhere yet.
fn tree(mount: &Mount) -> Result<(OwnedFd, Kind), Failure> {
    let about = mount.target.display();
    let (tree, kind) = match &mount.source {
        Source::Bind(source) => {
            let tree = bind_source(source)
                .during_at(Step::Mount, format_args!("{} to {about}", source.display()))?;
            let kind = template::kind(&tree).during_at(Step::Mount, &about)?;
            (tree, kind)
        }
        Source::Tmpfs { bytes } => {
            let options = [("mode", "1777"), ("size", &bytes.to_string())];
            (
                mount::filesystem("tmpfs", &options, NO_SUID | NO_DEV).during_at(Step::Mount, &about)?,
                Kind::Directory,
            )
        }
    };
    let mut attributes = NO_SUID | NO_DEV;
    attributes.set(READ_ONLY, mount.read_only);
    mount::restrict(&tree, attributes, Extent::Tree).during_at(Step::Mount, &about)?;
    Ok((tree, kind))
}

impl Built {
    /// Makes it this process's root and lets go of the machine's.
    pub(crate) fn enter(self) -> Result<(), Failure> {
        rustix::process::fchdir(&self.root).during(Step::Pivot)?;
        rustix::process::pivot_root(c".", c".").during(Step::Pivot)?;
        // The old root now lies over the new one.
        unmount(c".", UnmountFlags::DETACH).during(Step::Pivot)?;
        rustix::process::chdir(c"/").during(Step::Pivot)
    }
}

/// What is to be mounted, opened without following any link: a container that shares a volume may put one there at any
/// moment, and it would lead out of the volume.
fn bind_source(path: &Path) -> std::io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let source = openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    mount::copy_tree(source, c"")
}
