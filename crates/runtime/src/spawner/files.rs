//! Writes a container's files from inside of it: as its own user, after its root has become ours, and with lookups that
//! neither symbolic links nor `..` lead out of it.

use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fchmod, openat, openat2};

use super::{During, Failure, Step};
use crate::rootfs::target::{self, Kind};
use crate::spec::File;

/// Later ones overwrite earlier ones.
pub(super) fn write_all<'a>(files: impl IntoIterator<Item = &'a File>) -> Result<(), Failure> {
    for file in files {
        write(file).during_at(Step::Files, file.path.display())?;
    }
    Ok(())
}

fn write(file: &File) -> io::Result<()> {
    let root = openat(CWD, c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let path = target::normalize(&file.path);
    if let Some(parent) = path.parent() {
        target::ensure(root.as_fd(), parent, Kind::Directory)?;
    }
    // Not to wait for whoever reads a pipe, and not to get a terminal.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    // Nobody else may read it before its mode is set.
    let mode = Mode::from_raw_mode(file.mode & 0o700);
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let mut open = std::fs::File::from(openat2(&root, &path, flags, mode, resolve)?);
    let kind = open.metadata()?.file_type();
    if !kind.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is there already, and is not a file"));
    }
    fchmod(&open, Mode::from_raw_mode(file.mode))?;
    open.set_len(0)?;
    open.write_all(&file.content)
}
