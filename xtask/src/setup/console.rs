//! Obtains what the web console is built and tried with: the modules that `console/package-lock.json` names, from npm into
//! the cache, and a Chromium from Debian's packages. Neither is needed to build AgentCube: what is built is committed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{debian, install_debian};
use crate::Settings;
use crate::process::{find_program, quietly, timed};

/// Where the browser is in the cache; the tests know it too.
const BROWSER: &str = "chromium-debian";
const SHELL: &str = "chromium-headless-shell";

/// Node, with npm beside it: the user's, or Debian's.
pub(crate) fn node(settings: &Settings) -> Result<PathBuf> {
    let both = || find_program(&settings.path, "npm").and_then(|_| find_program(&settings.path, "node"));
    if let Some(node) = both() {
        return Ok(node);
    }
    install_debian(settings, &["nodejs", "npm"])?;
    both().context("node and npm are missing; install them and run again")
}

/// Makes sure that the console's modules are there, at `console/node_modules`.
pub(crate) fn modules(settings: &Settings) -> Result<()> {
    let console = settings.root.join("console");
    let lock = std::fs::read(console.join("package-lock.json"))?;
    let link = console.join("node_modules");
    // Somebody's own `npm install` is left alone.
    if link.is_dir() && !link.is_symlink() {
        return Ok(());
    }
    let mut hasher = DefaultHasher::new();
    lock.hash(&mut hasher);
    let directory = settings.cache.join(format!("console-modules-{:016x}", hasher.finish()));
    // npm writes this last. `npm ci` in `console/` follows the link, and empties what it leads to.
    if directory.join("node_modules/.package-lock.json").is_file() {
        eprintln!("    modules of the console: present");
    } else {
        if directory.is_dir() {
            std::fs::remove_dir_all(&directory)?;
        }
        let npm = node(settings)?.with_file_name("npm");
        let unfinished = settings.cache.join(format!(".console-modules.{}", std::process::id()));
        std::fs::create_dir_all(&unfinished)?;
        for name in ["package.json", "package-lock.json", ".npmrc"] {
            std::fs::copy(console.join(name), unfinished.join(name))?;
        }
        timed("installing the modules of the console", || {
            // Nothing of theirs runs while they are installed.
            let arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];
            quietly(Command::new(&npm).current_dir(&unfinished).args(arguments))
        })?;
        std::fs::rename(&unfinished, &directory)?;
    }
    let target = directory.join("node_modules");
    if std::fs::read_link(&link).is_ok_and(|present| present == target) {
        return Ok(());
    }
    if link.is_symlink() {
        std::fs::remove_file(&link)?;
    }
    symlink(&target, &link).with_context(|| format!("cannot make {}", link.display()))
}

/// Makes sure that there is a browser.
pub(crate) fn browser(settings: &Settings) -> Result<()> {
    let directory = settings.cache.join(BROWSER);
    if directory.join(SHELL).is_file() {
        eprintln!("    Chromium: present");
        return Ok(());
    }
    std::fs::create_dir_all(&directory)?;
    timed("unpacking Chromium of Debian", || {
        let root = debian::fetch(settings, &directory, &[SHELL], debian::Extent::WithDependencies)?;
        let mut libraries = debian::libraries(&root);
        // Debian's libpulse looks for its other half there by a path that it was built with.
        libraries.extend(libraries.clone().into_iter().map(|place| place.join("pulseaudio")));
        let program = root.join("usr/lib/chromium").join(SHELL);
        ensure!(program.is_file(), "Debian's package has no {}", program.display());
        let command = debian::command(&libraries, &program)?;
        debian::try_out(&command)?;
        debian::put_script(&directory, SHELL, &command)
    })
}
