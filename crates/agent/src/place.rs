//! The directories of runs: `runs/ID/{etc,tmp,files,scratch,logs}` in the agent's own. Blocks on the disk.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::Path;

use agentcube_protos::session::File as Given;
use agentcube_runtime::make_scratch;
use agentcube_runtime::spec::User;
use rustix::fs::IFlags;

use crate::describe::{ETC, NAMES, Place, SCRATCH, file_mode};
use crate::network::{Attached, Identity};

/// Where an agent has them.
pub(crate) const RUNS: &str = "runs";

/// Runs have nothing to do with each other, so that a file system may keep them apart. ext4 does, if it is told so: it
/// takes long to find a place for a file where many were deleted just before.
pub(crate) fn keep_apart(runs: &Path) {
    let hint = || {
        let directory = File::open(runs)?;
        let flags = rustix::fs::ioctl_getflags(&directory)?;
        rustix::fs::ioctl_setflags(&directory, flags | IFlags::TOPDIR)?;
        io::Result::Ok(())
    };
    // Others know no such hint.
    let _unknown = hint();
}

/// The part of what a container needs on the disk that is the same for all.
pub(crate) fn make_ahead(directory: &Path) -> io::Result<()> {
    let etc = directory.join(ETC);
    DirBuilder::new().recursive(true).mode(0o700).create(&etc)?;
    for name in NAMES {
        File::create(etc.join(name))?;
    }
    make_scratch(&directory.join(SCRATCH))
}

/// Makes what is still missing of what a container needs on the disk before it starts; `/tmp` where it can write nothing
/// else.
pub(crate) fn make(place: &Place, tmp: bool, files: &[Given], user: &User) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(place.etc())?;
    if tmp {
        DirBuilder::new().recursive(true).mode(0o700).create(place.tmp())?;
        fs::set_permissions(place.tmp(), Permissions::from_mode(0o1777))?;
    }
    for (number, file) in files.iter().enumerate() {
        let path = place.file(number);
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        fs::write(&path, &file.content)?;
        fs::set_permissions(&path, Permissions::from_mode(file_mode(file)))?;
        // Without root there are no other users, and it is ours already.
        if rustix::process::geteuid().is_root() {
            chown(&path, Some(user.uid), Some(user.gid))?;
        }
    }
    Ok(())
}

/// Tells the sandbox who it is. Written in place: where they are mounted already, they change.
pub(crate) fn write_names(place: &Place, who: &Identity, attached: &Attached) -> io::Result<()> {
    let (hostname, address) = (who.hostname(), attached.address);
    let hosts =
        format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{address}\t{hostname}\n");
    let texts = [hosts, format!("{hostname}\n"), attached.resolv_conf.clone()];
    let mut files = NAMES.iter().zip(texts);
    files.try_for_each(|(name, text)| write_over(&place.etc().join(name), text.as_bytes()))
}

/// Never emptied first: a file system may have the disk write what was emptied and filled again when it is closed, and
/// somebody waits for that.
fn write_over(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(false).open(path)?;
    file.write_all(text)?;
    let length = text.len() as u64;
    if file.metadata()?.len() > length {
        file.set_len(length)?;
    }
    Ok(())
}

/// Removes a tree, also where a program took its own directories' permissions away.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_up(path)?;
            fs::remove_dir_all(path)
        }
        Err(error) => Err(error),
    }
}

fn open_up(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_up(&entry.path())?;
        }
    }
    Ok(())
}
