//! The kernel's mount interface by descriptors: nothing here resolves a path twice.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, mount_bind, mount_remount, move_mount,
    open_tree,
};
use rustix::path::Arg;

pub(crate) const READ_ONLY: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY;
pub(crate) const NO_SUID: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID;
pub(crate) const NO_DEV: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODEV;
pub(crate) const NO_EXEC: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOEXEC;

/// A new file system, mounted nowhere yet. An option without a value is a flag.
pub(crate) fn filesystem(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for &(key, value) in options {
        if value.is_empty() {
            fsconfig_set_flag(context.as_fd(), key)?;
        } else {
            fsconfig_set_string(context.as_fd(), key, value)?;
        }
    }
    fsconfig_create(context.as_fd())?;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// A copy of the mounts at and below a path, mounted nowhere yet.
pub(crate) fn copy_tree(directory: impl AsFd, path: impl Arg) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(open_tree(directory, path, flags)?)
}

pub(crate) enum Extent {
    One,
    Tree,
}

/// Adds attributes to a mount, or to it and all mounts below.
pub(crate) fn restrict(tree: impl AsFd, attributes: MountAttrFlags, extent: Extent) -> io::Result<()> {
    /// The kernel's `struct mount_attr`.
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    const EMPTY: &CStr = c"";
    let flags = match extent {
        Extent::One => libc::AT_EMPTY_PATH,
        Extent::Tree => libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
    };
    let attributes =
        Attributes { set: u64::from(attributes.bits()), clear: 0, propagation: 0, user_namespace: 0 };
    // SAFETY: the path and the structure are valid for the call, and the size is that of the structure.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            EMPTY.as_ptr(),
            flags,
            std::ptr::from_ref(&attributes),
            size_of::<Attributes>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Mounts a tree on what `target` is open to.
pub(crate) fn attach(tree: impl AsFd, target: impl AsFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, c"", target, c"", flags)?)
}

/// Mounts a new file system on a name in the working directory, which must be a place that is ours alone: no link can
/// lead elsewhere. Options are as in `mount -o`. Far fewer calls than by descriptors.
pub(crate) fn filesystem_here(kind: &str, name: &str, options: &CStr, flags: MountFlags) -> io::Result<()> {
    Ok(mount(kind, name, kind, flags, options)?)
}

/// Shows a file or directory at a name in the working directory, of which the same must hold.
pub(crate) fn bind_here(source: impl Arg, name: &str) -> rustix::io::Result<()> {
    mount_bind(source, name)
}

/// Lets a part of a kernel file system in the working directory be read only.
pub(crate) fn read_only_here(name: &str) -> rustix::io::Result<()> {
    mount_bind(name, name)?;
    let flags =
        MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount_remount(name, flags, c"")
}
