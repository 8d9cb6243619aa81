//! Obtains containerd, with its shim and its client, and the `runc` that it runs, for the suite `containerd`.

use anyhow::Result;

use super::debian;
use crate::Settings;
use crate::process::{find_program, timed};

/// Where all of them are in the cache; the tests know it too.
const DIRECTORY: &str = "containerd-debian";
const PROGRAMS: [&str; 4] = ["containerd", "containerd-shim-runc-v2", "ctr", "runc"];
/// `libseccomp2` is what `runc` loads that a small machine may lack.
const PACKAGES: [&str; 3] = ["containerd", "runc", "libseccomp2"];

/// Makes sure that they are there, all in one directory.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    let directory = settings.cache.join(DIRECTORY);
    let cached = PROGRAMS.iter().all(|name| directory.join(name).is_file());
    let places: Vec<_> = PROGRAMS.iter().filter_map(|name| find_program(&settings.path, name)).collect();
    let together = places.windows(2).all(|pair| pair[0].parent() == pair[1].parent());
    if cached || (places.len() == PROGRAMS.len() && together) {
        eprintln!("    containerd: present");
        return Ok(());
    }
    std::fs::create_dir_all(&directory)?;
    timed("unpacking containerd of Debian", || debian::unpack(settings, &directory, &PACKAGES, &PROGRAMS))
}
