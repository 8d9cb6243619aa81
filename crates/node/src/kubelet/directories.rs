//! Where Pods keep their files besides volumes: `pods/UID/{etc,runs/ID,logs/CONTAINER}` in the data directory. Only
//! this user can enter.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The directories of all Pods.
#[derive(Debug, Clone)]
pub(crate) struct Directories {
    pods: PathBuf,
}

impl Directories {
    pub(super) fn new(data_dir: &Path) -> io::Result<Self> {
        let pods = data_dir.join("pods");
        make(&pods)?;
        Ok(Self { pods: pods.canonicalize()? })
    }

    /// A uid is made by the API server, but it names a directory that is removed: nothing but a plain name will do.
    fn pod(&self, uid: &str) -> io::Result<PathBuf> {
        let plain = |c: u8| c.is_ascii_alphanumeric() || c == b'-';
        if uid.is_empty() || !uid.bytes().all(plain) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{uid:?} is not the uid of a Pod"),
            ));
        }
        Ok(self.pods.join(uid))
    }

    /// The files in `/etc` that all containers of a Pod share.
    pub(super) fn etc(&self, uid: &str) -> io::Result<PathBuf> {
        made(self.pod(uid)?.join("etc"))
    }

    /// What one run of a container writes; see [`Directories::remove_run`].
    pub(super) fn run(&self, uid: &str, id: &str) -> io::Result<PathBuf> {
        let run = made(self.pod(uid)?.join("runs").join(id))?;
        make(&run.join("scratch"))?;
        Ok(run)
    }

    pub(super) fn remove_run(&self, uid: &str, id: &str) -> io::Result<()> {
        remove(&self.pod(uid)?.join("runs").join(id))
    }

    /// Where each Pod has a directory, by its uid.
    pub(super) fn pods(&self) -> &Path {
        &self.pods
    }

    pub(super) fn remove(&self, uid: &str) -> io::Result<()> {
        remove(&self.pod(uid)?)
    }

    /// Removes the directories of Pods that are no more, and whatever runs of an earlier process left.
    pub(super) fn sweep(&self, living: &BTreeSet<String>) -> io::Result<()> {
        for entry in fs::read_dir(&self.pods)? {
            let entry = entry?;
            let lives = entry.file_name().to_str().is_some_and(|uid| living.contains(uid));
            remove(&if lives { entry.path().join("runs") } else { entry.path() })?;
        }
        Ok(())
    }
}

fn make(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn made(path: PathBuf) -> io::Result<PathBuf> {
    make(&path)?;
    Ok(path)
}

/// Removes a tree, also where a program took its own directories' permissions away.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_up(path)?;
            fs::remove_dir_all(path)
        }
        Err(error) => Err(error),
    }
}

fn open_up(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_up(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeping_keeps_the_logs_of_living_pods_only() {
        let dir = tempfile::tempdir().unwrap();
        let directories = Directories::new(dir.path()).unwrap();
        for uid in ["a", "b"] {
            directories.run(uid, "r").unwrap();
            fs::create_dir_all(dir.path().join("pods").join(uid).join("logs/c")).unwrap();
        }
        fs::set_permissions(dir.path().join("pods/b/runs/r"), fs::Permissions::from_mode(0o000)).unwrap();
        directories.sweep(&BTreeSet::from(["a".to_owned()])).unwrap();
        let exists = |path: &str| dir.path().join("pods").join(path).exists();
        assert_eq!([exists("a/logs/c"), exists("a/runs"), exists("b")], [true, false, false]);
        directories.remove("a").unwrap();
        directories.remove("a").unwrap();
        assert!(!exists("a"));
    }

    #[test]
    fn no_uid_leads_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let directories = Directories::new(dir.path()).unwrap();
        for uid in ["", ".", "..", "a/b", "/etc"] {
            assert!(directories.remove(uid).is_err(), "{uid}");
        }
    }
}
