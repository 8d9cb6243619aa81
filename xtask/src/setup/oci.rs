//! Obtains the OCI runtimes that tests run containers by: `runc` and `crun` from Debian's packages, without installing
//! them, and gVisor's `runsc` built from its Go module. What the user has on `PATH` is used instead.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{go, go_command};
use crate::Settings;
use crate::process::{find_program, quietly, timed};

/// Of gVisor's branch that builds with Go alone.
const GVISOR: &str = "v0.0.0-20260224225140-573d5e7127a8";
/// Where all of them are in the cache; the tests know it too.
const DIRECTORY: &str = "oci-20260224";
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
            unpack(settings, &directory, &packages)
        })?;
    }
    if missing.contains(&"runsc") {
        let go = go(settings)?;
        timed("building runsc (minutes when nothing is cached)", || build_gvisor(settings, &go, &directory))?;
    }
    Ok(())
}

/// Downloads packages with lists of our own, which needs no rights on this machine.
fn unpack(settings: &Settings, directory: &Path, packages: &[&str]) -> Result<()> {
    let apt = find_program(&settings.path, "apt-get").context(
        "there is no apt-get here to get runc and crun by: install them, and they are found on PATH",
    )?;
    let work = settings.cache.join("build").join(format!("oci.{}", std::process::id()));
    for below in ["state/lists/partial", "cache/archives/partial", "root"] {
        std::fs::create_dir_all(work.join(below))?;
    }
    let apt = |arguments: &[&str]| {
        let mut command = Command::new(&apt);
        command.current_dir(&work).args(["-q", "-o", "Debug::NoLocking=1"]);
        command.arg("-o").arg(format!("Dir::State={}", work.join("state").display()));
        command.arg("-o").arg(format!("Dir::Cache={}", work.join("cache").display()));
        quietly(command.args(arguments))
    };
    apt(&["update"])?;
    apt(&[&["download"], packages, &LIBRARIES].concat())?;
    let root = work.join("root");
    for entry in std::fs::read_dir(&work)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            quietly(Command::new("dpkg-deb").arg("-x").arg(path).arg(&root))?;
        }
    }
    let kept = directory.join("debian");
    let _ = std::fs::remove_dir_all(&kept);
    std::fs::rename(&root, &kept)?;
    let _ = std::fs::remove_dir_all(&work);
    for package in packages {
        let script = wrapper(&kept, package)?;
        quietly(Command::new("sh").arg("-c").arg(format!("{script} --version")).env_clear())?;
        put_script(directory, package, &script)?;
    }
    Ok(())
}

/// The command that runs an unpacked program with the libraries that were unpacked beside it.
fn wrapper(root: &Path, name: &str) -> Result<String> {
    let program = ["usr/bin", "usr/sbin"].map(|place| root.join(place).join(name));
    let program = program.into_iter().find(|path| path.is_file());
    let program = program.with_context(|| format!("Debian's package {name} has no program {name}"))?;
    let libraries: Vec<String> = ["lib", "usr/lib"]
        .into_iter()
        .flat_map(|place| std::fs::read_dir(root.join(place)).into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .map(|path| path.display().to_string())
        .collect();
    ensure!(
        !root.display().to_string().contains(['\'', ' ']),
        "the path of the cache has a blank or a quote in it"
    );
    Ok(format!("LD_LIBRARY_PATH='{}' '{}'", libraries.join(":"), program.display()))
}

fn put_script(directory: &Path, name: &str, command: &str) -> Result<()> {
    let unfinished = directory.join(format!(".{name}.{}", std::process::id()));
    let (variable, program) = command.split_once(' ').context("a wrapper sets one variable")?;
    std::fs::write(&unfinished, format!("#!/bin/sh\nexport {variable}\nexec {program} \"$@\"\n"))?;
    std::fs::set_permissions(&unfinished, std::fs::Permissions::from_mode(0o755))?;
    std::fs::rename(&unfinished, directory.join(name))?;
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
