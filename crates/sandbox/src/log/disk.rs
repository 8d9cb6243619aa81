//! Where the log is. A file has a lock beside it, and is replaced by renaming, so that there is always a whole one.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::LogError;

/// What a log is written to. Each call is over when what it did is on disk.
pub trait Disk: Send {
    /// What it is called, for those who have to look after it.
    fn name(&self) -> String;
    /// All of it; none if there is no log yet.
    fn read(&mut self) -> io::Result<Option<Vec<u8>>>;
    /// Cuts off what is torn.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Has these bytes and no others, or what was there before.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// A file, for one process at a time.
#[derive(Debug)]
pub struct FileDisk {
    path: PathBuf,
    file: Option<File>,
    /// Held as long as this lives.
    _lock: File,
}

impl FileDisk {
    /// Takes the lock of the file at this path; the directories above it are made.
    pub fn open(path: &Path) -> Result<FileDisk, LogError> {
        let log = path.display().to_string();
        let unusable = |error: io::Error| LogError::Unusable { log: log.clone(), why: error.to_string() };
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(unusable)?;
        }
        let lock = private().truncate(false).open(beside(path, ".lock")).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => Ok(FileDisk { path: path.into(), file: None, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(LogError::Locked { log }),
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    fn opened(&mut self) -> io::Result<&mut File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => OpenOptions::new().read(true).append(true).open(&self.path)?,
        };
        Ok(self.file.insert(file))
    }
}

/// A new file that nobody else reads: objects may hold what is not for everybody.
fn private() -> OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl Disk for FileDisk {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        match self.opened() {
            Ok(file) => file.read_to_end(&mut bytes).map(|_| Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        let file = self.opened()?;
        file.set_len(length)?;
        file.sync_all()
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = self.opened()?;
        file.write_all(bytes)?;
        file.sync_data()
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let fresh = beside(&self.path, ".new");
        let mut file = private().truncate(true).open(&fresh)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&fresh, &self.path)?;
        // What is open is the one that was replaced.
        self.file = None;
        match self.path.parent() {
            Some(parent) if parent != Path::new("") => File::open(parent)?.sync_all(),
            _ => File::open(".")?.sync_all(),
        }
    }
}
