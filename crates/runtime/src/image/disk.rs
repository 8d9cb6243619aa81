//! The files of the store: `DATA/images/ALGORITHM/HEX/{root,image.json}`, `names.json`, and `work/` for what is being made.
//!
//! Changes are made under a lock on the file `lock`. A directory of `work/` is locked by the process that fills it, so
//! one that nobody holds is a leftover of a crash. Never follows a name that came from an image.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::manifest::Config;
use super::tree::remove_tree;
use super::{Error, Image};
use crate::spec::Root;

/// `image.json`.
#[derive(Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) config: Config,
    pub(super) size: u64,
}

/// `names.json`.
#[derive(Serialize, Deserialize, Default)]
pub(super) struct Names {
    pub(super) names: BTreeMap<String, Digest>,
}

/// Where it all is.
pub(super) struct Disk {
    directory: PathBuf,
}

impl Disk {
    /// Makes what is missing, and removes what crashed processes left.
    pub(super) fn open(data_dir: &Path) -> Result<Self, Error> {
        let directory = data_dir.join("images");
        for path in [&directory, &directory.join("work")] {
            // Images may hold set-user-id programs; nobody else gets near them.
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.map_err(at(path))?;
        }
        let disk = Self { directory };
        disk.sweep()?;
        Ok(disk)
    }

    /// The ids of all images.
    pub(super) fn ids(&self) -> Result<Vec<Digest>, Error> {
        let mut ids = Vec::new();
        for algorithm in ["sha256", "sha512"] {
            let folder = self.directory.join(algorithm);
            let names = entries(&folder).map_err(at(&folder))?;
            ids.extend(
                names.iter().filter_map(|name| {
                    Digest::parse(&format!("{algorithm}:{}", name.to_string_lossy())).ok()
                }),
            );
        }
        Ok(ids)
    }

    /// Moves a finished image to where it is found. Under the lock only.
    pub(super) fn place(&self, image: &Path, id: &Digest) -> Result<(), Error> {
        let path = self.path(id);
        let folder = path.parent().unwrap_or(&self.directory);
        std::fs::create_dir_all(folder).map_err(at(folder))?;
        match std::fs::rename(image, &path) {
            Ok(()) => sync_directory(folder),
            // Another process was faster; both have the same content.
            Err(error) if path.exists() => {
                tracing::debug!("{id} was unpacked twice: {error}");
                Ok(())
            }
            Err(cause) => Err(at(&path)(cause)),
        }
    }

    pub(super) fn path(&self, id: &Digest) -> PathBuf {
        self.directory.join(id.algorithm()).join(id.hex())
    }

    pub(super) fn load(&self, id: &Digest, names: &Names) -> Result<Option<Image>, Error> {
        let directory = self.path(id);
        let path = directory.join("image.json");
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(at(&path)(cause)),
        };
        let record: Record = serde_json::from_slice(&bytes)
            .map_err(|cause| Error::Record { path: path.display().to_string(), cause })?;
        Ok(Some(Image {
            id: id.to_string(),
            names: names
                .names
                .iter()
                .filter(|(_, other)| *other == id)
                .map(|(name, _)| name.clone())
                .collect(),
            root: Root::Directory(directory.join("root")),
            config: record.config,
            size: record.size,
        }))
    }

    /// Replaced as a whole with every change.
    pub(super) fn names_file(&self) -> PathBuf {
        self.directory.join("names.json")
    }

    pub(super) fn names(&self) -> Result<Names, Error> {
        let path = self.names_file();
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|cause| Error::Record { path: path.display().to_string(), cause }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Names::default()),
            Err(cause) => Err(at(&path)(cause)),
        }
    }

    /// Under the lock only.
    pub(super) fn write_names(&self, names: &Names) -> Result<(), Error> {
        let temporary = self.directory.join("names.json.new");
        write_whole(&temporary, names)?;
        let path = self.names_file();
        std::fs::rename(&temporary, &path).map_err(at(&path))?;
        sync_directory(&self.directory)
    }

    /// Waits for other processes and threads; never held while anything large is read or written.
    pub(super) fn lock(&self) -> Result<File, Error> {
        let path = self.directory.join("lock");
        let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = opened.map_err(at(&path))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(|error| at(&path)(error.into()))?;
        Ok(file)
    }

    /// A directory for something that is being made; removed when dropped.
    pub(super) fn work(&self) -> Result<Work, Error> {
        let _lock = self.lock()?;
        self.work_locked()
    }

    /// Under the lock only: a sweep must not see the directory before it is locked.
    pub(super) fn work_locked(&self) -> Result<Work, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = self.directory.join("work").join(name);
        // One of a process that had this id and crashed was not swept by those who could not.
        remove_tree(&path).map_err(at(&path))?;
        std::fs::create_dir(&path).map_err(at(&path))?;
        let lock = File::open(&path).map_err(at(&path))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| at(&path)(error.into()))?;
        Ok(Work { path, _lock: lock })
    }

    fn sweep(&self) -> Result<(), Error> {
        let _lock = self.lock()?;
        let folder = self.directory.join("work");
        for entry in entries(&folder).map_err(at(&folder))? {
            let path = folder.join(entry);
            let directory = match File::open(&path) {
                Ok(directory) => directory,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(cause) => return Err(at(&path)(cause)),
            };
            if rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok() {
                remove_tree(&path).map_err(at(&path))?;
            }
        }
        Ok(())
    }
}

/// A locked directory under `work/`.
pub(super) struct Work {
    pub(super) path: PathBuf,
    _lock: File,
}

impl Drop for Work {
    fn drop(&mut self) {
        // What cannot be removed now is swept at the next start.
        if let Err(error) = remove_tree(&self.path) {
            tracing::warn!("{}: cannot be removed: {error}", self.path.display());
        }
    }
}

fn entries(folder: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    match std::fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.file_name())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

pub(super) fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

pub(super) fn write_whole(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let bytes = serde_json::to_vec(value)
        .map_err(|cause| Error::Record { path: path.display().to_string(), cause })?;
    let write = || {
        let mut file = private(path)?;
        file.write_all(&bytes)?;
        file.sync_all()
    };
    write().map_err(at(path))
}

fn sync_directory(path: &Path) -> Result<(), Error> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(at(path))
}

pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    |cause| Error::Store { path: path.display().to_string(), cause }
}
