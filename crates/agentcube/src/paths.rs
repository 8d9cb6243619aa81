//! Where `up` keeps what it keeps. The only place that knows the names of the files.

use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::environment::Environment;

/// The data directory of one `agentcube up`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DataDir(PathBuf);

/// `$XDG_STATE_HOME/agentcube`, or `~/.local/state/agentcube`; the working directory's `.agentcube` without a home.
pub(crate) fn default_data_dir(environment: &Environment) -> DataDir {
    let home = || environment.home.as_ref().map(|home| home.join(".local/state"));
    // The XDG specification has relative paths ignored.
    let state = environment.state_home.clone().filter(|path| path.is_absolute()).or_else(home);
    DataDir(state.map_or_else(|| PathBuf::from(".agentcube"), |state| state.join("agentcube")))
}

impl DataDir {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the directory, for its owner alone.
    pub(crate) fn create(&self) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0)
    }

    /// Objects, certificates and the token.
    pub(crate) fn apiserver(&self) -> PathBuf {
        self.0.join("apiserver")
    }

    /// Pods' directories, volumes and logs.
    pub(crate) fn node(&self) -> PathBuf {
        self.0.join("node")
    }

    /// What the agents of sandboxes keep for their runs.
    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.0.join("sandboxes")
    }

    /// What the fast path has promised and the API server does not have yet.
    pub(crate) fn sandbox_log(&self) -> PathBuf {
        self.0.join("sandboxes.log")
    }

    /// What the build service has built.
    pub(crate) fn builds(&self) -> PathBuf {
        self.0.join("builds")
    }

    /// What the spawner keeps between two runs.
    pub(crate) fn runtime(&self) -> PathBuf {
        self.0.join("runtime")
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    /// Held locked as long as `up` runs.
    pub(crate) fn lock(&self) -> PathBuf {
        self.0.join("up.lock")
    }

    /// Who runs, since when and where.
    pub(crate) fn record(&self) -> PathBuf {
        self.0.join("up.json")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("up.log")
    }

    /// The address of the last run, to be taken again.
    pub(crate) fn address(&self) -> PathBuf {
        self.0.join("address")
    }

    /// Where the last run had its console.
    pub(crate) fn console(&self) -> PathBuf {
        self.0.join("console")
    }

    /// Where the last run took requests to Tasks in.
    pub(crate) fn gateway(&self) -> PathBuf {
        self.0.join("gateway")
    }
}

/// Writes a file that only its owner may read; a reader never sees half of it.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(content))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // What is left is of no use; the first error is the one to tell.
        let _left = std::fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_default_directory_follows_the_environment() {
        let environment = |home: Option<&str>, state: Option<&str>| Environment {
            home: home.map(PathBuf::from),
            state_home: state.map(PathBuf::from),
            ..Environment::default()
        };
        for (home, state, expected) in [
            (Some("/home/a"), Some("/state"), "/state/agentcube"),
            (Some("/home/a"), Some("relative"), "/home/a/.local/state/agentcube"),
            (Some("/home/a"), None, "/home/a/.local/state/agentcube"),
            (None, None, ".agentcube"),
        ] {
            assert_eq!(default_data_dir(&environment(home, state)).path(), Path::new(expected));
        }
    }

    #[test]
    fn private_files_are_private_and_replaced_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        std::fs::write(&path, "a longer text that was there before").unwrap();
        write_private(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}
