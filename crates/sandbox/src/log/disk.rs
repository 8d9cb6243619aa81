//! Where the log is. A file has a lock beside it, and is replaced by renaming, so that there is always a whole one.
//!
//! Behind the log the file has zeros: a sync of blocks that are there has nothing to wait for but the disk, while a file
//! that grows waits for all that the file system is about to write down. No frame ends with a zero.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
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

/// Room that is made at once, in bytes.
const ROOM: u64 = 1 << 20;

/// A file, for one process at a time.
#[derive(Debug)]
pub struct FileDisk {
    path: PathBuf,
    file: Option<Opened>,
    /// Held as long as this lives.
    _lock: File,
}

#[derive(Debug)]
struct Opened {
    file: File,
    /// Where the log ends.
    end: u64,
    /// Where the zeros behind it end.
    room: u64,
}

impl Opened {
    /// Makes room behind the log.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        let room = (self.end + bytes).next_multiple_of(ROOM) + ROOM;
        let zeros = usize::try_from(room - self.end).map_err(io::Error::other)?;
        // Written, not only reserved: blocks that were never written are the file system's to write down again.
        self.file.write_all_at(&vec![0; zeros], self.end)?;
        self.file.sync_all()?;
        self.room = room;
        Ok(())
    }
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

    fn opened(&mut self) -> io::Result<&mut Opened> {
        let opened = match self.file.take() {
            Some(opened) => opened,
            None => self.reopened()?.0,
        };
        Ok(self.file.insert(opened))
    }

    /// The file, and the log in it.
    fn reopened(&self) -> io::Result<(Opened, Vec<u8>)> {
        let mut file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let room = bytes.len() as u64;
        bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        Ok((Opened { file, end: bytes.len() as u64, room }, bytes))
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
        match self.reopened() {
            Ok((opened, bytes)) => {
                self.file = Some(opened);
                Ok(Some(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        let opened = self.opened()?;
        opened.file.set_len(length)?;
        (opened.end, opened.room) = (length, length);
        opened.file.sync_all()
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let opened = self.opened()?;
        let length = bytes.len() as u64;
        if opened.end + length > opened.room {
            opened.make_room(length)?;
        }
        opened.file.write_all_at(bytes, opened.end)?;
        opened.file.sync_data()?;
        opened.end += length;
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let fresh = beside(&self.path, ".new");
        let mut file = private().truncate(true).open(&fresh)?;
        file.write_all(bytes)?;
        let end = bytes.len() as u64;
        let mut opened = Opened { file, end, room: end };
        opened.make_room(0)?;
        std::fs::rename(&fresh, &self.path)?;
        self.file = Some(opened);
        match self.path.parent() {
            Some(parent) if parent != Path::new("") => File::open(parent)?.sync_all(),
            _ => File::open(".")?.sync_all(),
        }
    }
}
