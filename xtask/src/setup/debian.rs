//! Programs from Debian's packages, without installing them: each is a script that runs what was unpacked.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::Settings;
use crate::process::{find_program, quietly};

/// What is downloaded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// The packages that are named.
    Named,
    /// Also what they depend on and this machine does not have.
    WithDependencies,
}

/// Downloads packages with lists of our own, which needs no rights on this machine.
pub(super) fn unpack(
    settings: &Settings,
    directory: &Path,
    packages: &[&str],
    programs: &[&str],
) -> Result<()> {
    Lists::fetch(settings, programs)?.unpack(directory, packages, programs)
}

/// Unpacks packages below a directory, and says where.
pub(super) fn fetch(
    settings: &Settings,
    directory: &Path,
    packages: &[&str],
    extent: Extent,
) -> Result<PathBuf> {
    Lists::fetch(settings, packages)?.download(directory, packages, extent)
}

/// Lists of what there is, in a directory of their own that goes with them.
pub(super) struct Lists {
    apt: PathBuf,
    work: PathBuf,
}

impl Lists {
    /// `programs` are what somebody would have to install otherwise.
    pub(super) fn fetch(settings: &Settings, programs: &[&str]) -> Result<Lists> {
        let apt = find_program(&settings.path, "apt-get").with_context(|| {
            format!(
                "there is no apt-get here to get {programs:?} by: install them, and they are found on PATH"
            )
        })?;
        let work = settings.cache.join("build").join(format!("debian.{}", std::process::id()));
        let lists = Lists { apt, work };
        for below in ["state/lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(lists.work.join(below))?;
        }
        lists.run(&lists.apt, &["update"])?;
        Ok(lists)
    }

    fn archives(&self) -> PathBuf {
        self.work.join("cache/archives")
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        command.current_dir(self.archives()).args(["-q", "-o", "Debug::NoLocking=1"]);
        command.arg("-o").arg(format!("Dir::State={}", self.work.join("state").display()));
        command.arg("-o").arg(format!("Dir::Cache={}", self.work.join("cache").display()));
        quietly(command.args(arguments))
    }

    /// The versions of a package that there are, the newest first.
    pub(super) fn versions(&self, package: &str) -> Result<Vec<String>> {
        let said = self.run(&self.apt.with_file_name("apt-cache"), &["madison", package])?;
        let version = |line: &str| Some(line.split('|').nth(1)?.trim().to_owned());
        let mut versions: Vec<String> = said.lines().filter_map(version).collect();
        versions.dedup();
        ensure!(!versions.is_empty(), "Debian's lists have no package {package}");
        Ok(versions)
    }

    /// Puts packages into a directory of their own, and says which.
    fn download(&self, directory: &Path, packages: &[&str], extent: Extent) -> Result<PathBuf> {
        let root = self.work.join("root");
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root)?;
        match extent {
            Extent::Named => self.run(&self.apt, &[&["download"], packages].concat())?,
            Extent::WithDependencies => {
                let words = ["install", "-y", "--no-install-recommends", "--download-only"];
                self.run(&self.apt, &[&words, packages].concat())?
            }
        };
        for entry in std::fs::read_dir(self.archives())? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                quietly(Command::new("dpkg-deb").arg("-x").arg(&path).arg(&root))?;
                std::fs::remove_file(&path)?;
            }
        }
        let kept = directory.join("debian");
        let _ = std::fs::remove_dir_all(&kept);
        std::fs::rename(&root, &kept)?;
        Ok(kept)
    }

    /// The same, and beside that a script for each program.
    pub(super) fn unpack(&self, directory: &Path, packages: &[&str], programs: &[&str]) -> Result<()> {
        let kept = self.download(directory, packages, Extent::Named)?;
        for program in programs {
            let script = wrapper(&kept, program)?;
            try_out(&script)?;
            put_script(directory, program, &script)?;
        }
        Ok(())
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.work);
    }
}

/// Runs a program to see that it runs at all.
pub(super) fn try_out(command: &str) -> Result<()> {
    // Some have only the one, some only the other.
    let tried = ["--version", "-v"]
        .map(|word| quietly(Command::new("sh").arg("-c").arg(format!("{command} {word}")).env_clear()));
    match tried {
        [Err(error), Err(_)] => Err(error),
        _ => Ok(()),
    }
}

/// The command that runs an unpacked program with the libraries that were unpacked beside it.
fn wrapper(root: &Path, name: &str) -> Result<String> {
    let mut places = vec![root.join("usr/bin"), root.join("usr/sbin")];
    // Versions of PostgreSQL live beside each other.
    let versions = std::fs::read_dir(root.join("usr/lib/postgresql")).into_iter().flatten().flatten();
    places.extend(versions.map(|version| version.path().join("bin")));
    let program = places.iter().map(|place| place.join(name)).find(|path| path.is_file());
    let program = program.with_context(|| format!("Debian's packages have no program {name}"))?;
    command(&libraries(root), &program)
}

/// The command that runs a program with libraries.
pub(super) fn command(libraries: &[PathBuf], program: &Path) -> Result<String> {
    let libraries: Vec<String> = libraries.iter().map(|path| path.display().to_string()).collect();
    ensure!(
        !program.display().to_string().contains(['\'', ' ']),
        "the path of the cache has a blank or a quote in it"
    );
    Ok(format!("LD_LIBRARY_PATH='{}' '{}'", libraries.join(":"), program.display()))
}

pub(super) fn libraries(root: &Path) -> Vec<PathBuf> {
    let places = ["lib", "usr/lib"].map(|place| std::fs::read_dir(root.join(place)));
    let entries = places.into_iter().flatten().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Where the programs that were unpacked into `directory` are, and their libraries: for whoever measures them and must
/// not measure the script in front of them.
pub(crate) fn unpacked(directory: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let root = directory.join("debian");
    (["usr/bin", "usr/sbin"].map(|place| root.join(place)).into(), libraries(&root))
}

pub(super) fn put_script(directory: &Path, name: &str, command: &str) -> Result<()> {
    let unfinished = directory.join(format!(".{name}.{}", std::process::id()));
    let (variable, program) = command.split_once(' ').context("a wrapper sets one variable")?;
    std::fs::write(&unfinished, format!("#!/bin/sh\nexport {variable}\nexec {program} \"$@\"\n"))?;
    std::fs::set_permissions(&unfinished, std::fs::Permissions::from_mode(0o755))?;
    std::fs::rename(&unfinished, directory.join(name))?;
    Ok(())
}
