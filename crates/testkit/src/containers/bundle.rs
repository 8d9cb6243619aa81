//! The root file system that all containers share: the measured program and the libraries that programs here load, where
//! the loader looks first.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Where programs are told to find the loader, by architecture.
const LOADERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
const LOADER_CACHE: &str = "/etc/ld.so.cache";
/// The measured program in the containers.
pub const PROGRAM: &str = "/bench";

pub struct RootFs {
    directory: tempfile::TempDir,
}

impl RootFs {
    pub fn make() -> Result<RootFs> {
        let directory = tempfile::Builder::new().prefix("bench-").tempdir()?;
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755))?;
        let root = RootFs { directory };
        root.link_as_the_machine()?;
        root.add(&program()?, Path::new(PROGRAM))?;
        root.add(Path::new(LOADER_CACHE), Path::new(LOADER_CACHE)).ok();
        for library in loaded()? {
            root.add(&library, &library)?;
        }
        for loader in LOADERS.map(Path::new).into_iter().filter(|loader| loader.exists()) {
            root.add(loader, loader)?;
        }
        for mount_point in ["proc", "dev", "sys", "run", "tmp", "etc"] {
            std::fs::create_dir_all(root.path().join(mount_point))?;
        }
        Ok(root)
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    /// A directory beside the root.
    pub fn beside(&self, name: &str) -> Result<PathBuf> {
        let path = self.directory.path().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// `/lib` is elsewhere on most machines.
    fn link_as_the_machine(&self) -> Result<()> {
        for name in ["lib", "lib64"] {
            if let Ok(to) = std::fs::read_link(Path::new("/").join(name)) {
                std::fs::create_dir_all(self.path().join(&to))?;
                std::os::unix::fs::symlink(to, self.path().join(name))?;
            }
        }
        Ok(())
    }

    fn add(&self, from: &Path, to: &Path) -> Result<()> {
        let to = self.path().join(to.strip_prefix("/").context("an absolute path")?);
        std::fs::create_dir_all(to.parent().context("not the root")?)?;
        std::fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        Ok(())
    }
}

/// The measured program on the machine.
pub fn program() -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("bench-program");
    ensure!(program.exists(), "{} is missing: build it with `cargo xtask bench runtime`", program.display());
    Ok(program)
}

/// The libraries that this process has loaded.
fn loaded() -> Result<BTreeSet<PathBuf>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let path = |line: &str| Some(PathBuf::from(line.split_whitespace().nth(5)?));
    let is_library = |path: &PathBuf| path.to_str().is_some_and(|path| path.contains(".so"));
    Ok(maps.lines().filter_map(path).filter(is_library).collect())
}
