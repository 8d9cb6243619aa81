//! Where every container has something mounted. Images that were made from nothing lack these names, and making them for each
//! container took 0.8 of the 7 ms of its start: so they lie below all images, where whatever an image has hides them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const DIRECTORIES: [&str; 4] = ["dev", "proc", "sys", "etc"];
const FILES: [&str; 3] = ["etc/hosts", "etc/hostname", "etc/resolv.conf"];

/// On the disk of what containers write: an overlay over several file systems tells other numbers of devices for files than for
/// directories.
pub(crate) fn make(directory: &Path) -> io::Result<()> {
    for name in DIRECTORIES {
        fs::create_dir_all(directory.join(name))?;
    }
    for name in FILES {
        File::options().create(true).append(true).open(directory.join(name))?;
    }
    for (names, mode) in [(&DIRECTORIES[..], 0o755), (&FILES, 0o644)] {
        for name in names {
            fs::set_permissions(directory.join(name), fs::Permissions::from_mode(mode))?;
        }
    }
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
}
