//! Obtains containerd, with its shim and its client, and the `runc` that it runs, for the suite `containerd`.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::debian;
use crate::Settings;
use crate::process::timed;

/// Where all of them are in the cache; the tests know it too.
pub(crate) const DIRECTORY: &str = "containerd-debian";
const PROGRAMS: [&str; 4] = ["containerd", "containerd-shim-runc-v2", "ctr", "runc"];
/// `libseccomp2` is what `runc` loads that a small machine may lack.
const PACKAGES: [&str; 3] = ["containerd", "runc", "libseccomp2"];

/// Makes sure that they are there, all in one directory.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    if directory(settings).is_some() {
        eprintln!("    containerd: present");
        return Ok(());
    }
    let directory = settings.cache.join(DIRECTORY);
    std::fs::create_dir_all(&directory)?;
    timed("unpacking containerd of Debian", || debian::unpack(settings, &directory, &PACKAGES, &PROGRAMS))
}

/// The directory that has all of them: one of the user's, or the one in the cache.
pub(super) fn directory(settings: &Settings) -> Option<PathBuf> {
    let has_all = |directory: &Path| PROGRAMS.iter().all(|name| directory.join(name).is_file());
    let cached = Some(settings.cache.join(DIRECTORY)).filter(|directory| has_all(directory));
    cached.or_else(|| std::env::split_paths(&settings.path).find(|directory| has_all(directory)))
}
