//! Obtains the OCI runtimes that tests run containers by: `runc` and `crun` from Debian's packages, without installing
//! them, and gVisor's `runsc` built from its Go module. What the user has on `PATH` is used instead.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{debian, go, go_command};
use crate::Settings;
use crate::process::{find_program, quietly, timed};

/// Of gVisor's branch that builds with Go alone.
pub(super) const GVISOR: &str = "v0.0.0-20260224225140-573d5e7127a8";
/// Where all of them are in the cache; the tests know it too.
pub(crate) const DIRECTORY: &str = "oci-20260224";
/// What the two runtimes load that a small machine may lack.
const LIBRARIES: [&str; 3] = ["libyajl2", "libseccomp2", "libcap2"];

/// Makes sure that every runtime is there.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    let directory = settings.cache.join(DIRECTORY);
    let missing: Vec<&str> = ["runc", "crun", "runsc"]
        .into_iter()
        .filter(|name| !directory.join(name).is_file() && find_program(&settings.path, name).is_none())
        .collect();
    if missing.is_empty() {
        eprintln!("    runc, crun and runsc: present");
        return Ok(());
    }
    std::fs::create_dir_all(&directory)?;
    let packages: Vec<&str> = missing.iter().copied().filter(|&name| name != "runsc").collect();
    if !packages.is_empty() {
        timed(&format!("unpacking {} of Debian", packages.join(" and ")), || {
            debian::unpack(settings, &directory, &[&*packages, &LIBRARIES].concat(), &packages)
        })?;
    }
    if missing.contains(&"runsc") {
        let go = go(settings)?;
        timed("building runsc (minutes when nothing is cached)", || build_gvisor(settings, &go, &directory))?;
    }
    Ok(())
}

fn build_gvisor(settings: &Settings, go: &Path, directory: &Path) -> Result<PathBuf> {
    let module = settings.cache.join("build").join("gvisor");
    std::fs::create_dir_all(&module)?;
    let manifest = format!("module agentcube.io/tools\n\ngo 1.21\n\nrequire gvisor.dev/gvisor {GVISOR}\n");
    std::fs::write(module.join("go.mod"), manifest)?;
    let unfinished = directory.join(format!(".runsc.{}", std::process::id()));
    let mut command = go_command(go, &module);
    command.args(["build", "-mod=mod", "-trimpath", "-ldflags", "-s -w", "-o"]).arg(&unfinished);
    quietly(command.arg("gvisor.dev/gvisor/runsc"))?;
    let target = directory.join("runsc");
    std::fs::rename(&unfinished, &target)?;
    Ok(target)
}
