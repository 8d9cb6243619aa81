//! Where containers write their output. One file for each run, as the program wrote it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use super::directories::Directories;

/// Files of earlier runs that are kept.
const KEPT: u32 = 1;

/// Takes what containers write.
pub trait Output: Send + Sync {
    /// The standard output and error of a run that begins.
    fn open(&self, uid: &str, container: &str, attempt: u32) -> io::Result<(OwnedFd, OwnedFd)>;
    /// The end of what a run wrote, at most `bytes`.
    fn tail(&self, uid: &str, container: &str, attempt: u32, bytes: u64) -> io::Result<Vec<u8>>;
}

/// Plain files in the Pod's directory.
#[derive(Debug, Clone)]
pub struct Files {
    directories: Directories,
}

impl Files {
    pub fn new(directories: Directories) -> Self {
        Self { directories }
    }

    /// The file of a run.
    pub fn path(&self, uid: &str, container: &str, attempt: u32) -> io::Result<PathBuf> {
        Ok(self.directories.logs(uid, container)?.join(format!("{attempt}.log")))
    }
}

impl Output for Files {
    fn open(&self, uid: &str, container: &str, attempt: u32) -> io::Result<(OwnedFd, OwnedFd)> {
        if let Some(old) = attempt.checked_sub(KEPT + 1) {
            match fs::remove_file(self.path(uid, container, old)?) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let path = self.path(uid, container, attempt)?;
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        Ok((file.try_clone()?.into(), file.into()))
    }

    fn tail(&self, uid: &str, container: &str, attempt: u32, bytes: u64) -> io::Result<Vec<u8>> {
        let mut file = File::open(self.path(uid, container, attempt)?)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
        let mut tail = Vec::new();
        file.take(bytes).read_to_end(&mut tail)?;
        Ok(tail)
    }
}
