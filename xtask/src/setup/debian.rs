//! Programs from Debian's packages, without installing them: each is a script that runs what was unpacked.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::Settings;
use crate::process::{find_program, quietly};

/// Downloads packages with lists of our own, which needs no rights on this machine.
pub(super) fn unpack(
    settings: &Settings,
    directory: &Path,
    packages: &[&str],
    programs: &[&str],
) -> Result<()> {
    let apt = find_program(&settings.path, "apt-get").with_context(|| {
        format!("there is no apt-get here to get {programs:?} by: install them, and they are found on PATH")
    })?;
    let work = settings.cache.join("build").join(format!("debian.{}", std::process::id()));
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
    apt(&[&["download"], packages].concat())?;
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
    for program in programs {
        let script = wrapper(&kept, program)?;
        // Some have only the one, some only the other.
        let tried = ["--version", "-v"]
            .map(|word| quietly(Command::new("sh").arg("-c").arg(format!("{script} {word}")).env_clear()));
        if let [Err(error), Err(_)] = tried {
            return Err(error);
        }
        put_script(directory, program, &script)?;
    }
    Ok(())
}

/// The command that runs an unpacked program with the libraries that were unpacked beside it.
fn wrapper(root: &Path, name: &str) -> Result<String> {
    let program = ["usr/bin", "usr/sbin"].map(|place| root.join(place).join(name));
    let program = program.into_iter().find(|path| path.is_file());
    let program = program.with_context(|| format!("Debian's packages have no program {name}"))?;
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
