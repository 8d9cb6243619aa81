//! Unpacks zip archives of strangers. Sizes in headers are not believed, names and links that lead out are refused, and
//! no link exists while files are written.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::Path;

use zip::ZipArchive;
use zip::result::ZipError;

use crate::limits::{Budget, Limits, TooMuch};
use crate::path::{BadPath, Relative, link_stays_inside};

const TYPE: u32 = 0o170_000;
const FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const LINK: u32 = 0o120_000;
const LONGEST_TARGET: u64 = 1024;

/// Why an archive is not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("this is no zip archive, or a damaged one: {0}")]
    Damaged(ZipError),
    #[error("{name:?} in the archive: {cause}")]
    Name { name: String, cause: BadPath },
    #[error("{name:?} in the archive is damaged: {cause}")]
    Content { name: String, cause: io::Error },
    #[error("{name:?} in the archive cannot be read: {cause}")]
    Entry { name: String, cause: ZipError },
    #[error("{name:?} in the archive is encrypted; bundles must not be")]
    Encrypted { name: String },
    #[error("{name:?} in the archive is a device, a pipe or something else that no code needs")]
    Special { name: String },
    #[error("{name:?} in the archive is a link to {target:?}, which may lead out of the bundle")]
    Escapes { name: String, target: String },
    #[error("{name:?} in the archive is there twice, or is both a file and a directory")]
    Twice { name: String },
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
    #[error("cannot write {name:?}: {cause}")]
    Write { name: String, cause: io::Error },
}

/// How much was unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpacked {
    pub bytes: u64,
    pub entries: usize,
}

/// Unpacks the archive into `directory`, which must be empty and nobody else's. What was written stays there if it
/// fails; the caller removes it.
pub fn unpack(archive: File, directory: &Path, limits: Limits) -> Result<Unpacked, Error> {
    let mut archive = ZipArchive::new(io::BufReader::new(archive)).map_err(Error::Damaged)?;
    if archive.len() > limits.entries {
        return Err(TooMuch::Entries(limits.entries).into());
    }
    let mut unpacking = Unpacking { directory, budget: Budget::new(limits), links: BTreeMap::new() };
    for index in 0..archive.len() {
        unpacking.entry(&mut archive, index)?;
    }
    unpacking.link()
}

struct Unpacking<'a> {
    directory: &'a Path,
    budget: Budget,
    /// Made last, so that nothing is ever written through one.
    links: BTreeMap<Relative, String>,
}

impl Unpacking<'_> {
    fn entry(&mut self, archive: &mut ZipArchive<impl Read + io::Seek>, index: usize) -> Result<(), Error> {
        let entry = archive.by_index_raw(index).map_err(Error::Damaged)?;
        let (name, encrypted) = (entry.name().map_err(Error::Damaged)?.into_owned(), entry.encrypted());
        drop(entry);
        if encrypted {
            return Err(Error::Encrypted { name });
        }
        let opened = archive.by_index(index);
        let mut entry = opened.map_err(|cause| Error::Entry { name: name.clone(), cause })?;
        let mode = entry.unix_mode().unwrap_or(0);
        match mode & TYPE {
            _ if name.ends_with('/') || mode & TYPE == DIRECTORY => {
                let bare = name.trim_end_matches('/');
                // The root itself, as some tools write it.
                if matches!(bare, "." | "") && !name.starts_with('/') {
                    return Ok(());
                }
                let path = parse(bare)?;
                self.directories(&path, path.as_str())
            }
            0 | FILE => {
                let path = parse(&name)?;
                self.parents(&path)?;
                self.file(&path, mode, &mut entry)
            }
            LINK => {
                let path = parse(&name)?;
                self.parents(&path)?;
                self.remember(path, &mut entry)
            }
            _ => Err(Error::Special { name }),
        }
    }

    fn parents(&mut self, path: &Relative) -> Result<(), Error> {
        match path.as_str().rsplit_once('/') {
            Some((parent, _)) => self.directories(path, parent),
            None => Ok(()),
        }
    }

    /// Makes a directory and all above it. There is no link among them: links come last.
    fn directories(&mut self, of: &Relative, directory: &str) -> Result<(), Error> {
        let ends = directory.match_indices('/').map(|(at, _)| at).chain([directory.len()]);
        for end in ends {
            let place = self.directory.join(&directory[..end]);
            match fs::create_dir(&place) {
                Ok(()) => self.budget.entry()?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && place.is_dir() => {}
                Err(error) => return Err(failed(of, error)),
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Relative, mode: u32, entry: &mut impl Read) -> Result<(), Error> {
        self.budget.entry()?;
        let place = path.below(self.directory);
        let mode = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
        let options = OpenOptions::new().write(true).create_new(true).mode(mode).open(&place);
        let mut file = options.map_err(|cause| failed(path, cause))?;
        let written = io::copy(&mut Reading(entry.take(self.budget.rest())), &mut file);
        let written =
            written.map_err(|cause| match cause.get_ref().is_some_and(|inner| inner.is::<Unreadable>()) {
                true => Error::Content { name: path.to_string(), cause },
                false => failed(path, cause),
            })?;
        Ok(self.budget.took(written)?)
    }

    fn remember(&mut self, path: Relative, entry: &mut impl Read) -> Result<(), Error> {
        self.budget.entry()?;
        let mut target = String::new();
        let read = entry.take(LONGEST_TARGET + 1).read_to_string(&mut target);
        let read = read.map_err(|cause| Error::Content { name: path.to_string(), cause })?;
        self.budget.took(read as u64)?;
        if read as u64 > LONGEST_TARGET || !link_stays_inside(&path, &target) {
            return Err(Error::Escapes { name: path.to_string(), target });
        }
        match self.links.insert(path.clone(), target) {
            Some(_) => Err(Error::Twice { name: path.to_string() }),
            None => Ok(()),
        }
    }

    /// All directories of a link are real: were one of them a link too, it would be in the way of the directory that
    /// was made for what is in it.
    fn link(self) -> Result<Unpacked, Error> {
        for (path, target) in &self.links {
            symlink(target, path.below(self.directory)).map_err(|cause| failed(path, cause))?;
        }
        Ok(Unpacked { bytes: self.budget.bytes, entries: self.budget.entries })
    }
}

fn parse(name: &str) -> Result<Relative, Error> {
    name.parse().map_err(|cause| Error::Name { name: name.into(), cause })
}

fn failed(path: &Relative, cause: io::Error) -> Error {
    let name = path.to_string();
    match cause.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            Error::Twice { name }
        }
        _ => Error::Write { name, cause },
    }
}

/// Marks errors of reading, to tell them from those of writing.
struct Reading<R>(R);

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Unreadable(io::Error);

impl<R: Read> Read for Reading<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => error,
            kind => io::Error::new(kind, Unreadable(error)),
        })
    }
}
