//! One fetch from beginning to end: get the code from where it is, check it, and put it where it runs. What is at the
//! destination is either all of the code or nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::archive;
use crate::cache::Cache;
use crate::copy;
use crate::download::{self, Digest, Downloader, Patience};
use crate::limits::Limits;
use crate::path::Relative;

/// Name of the directory of the code, below the destination.
pub const CODE: &str = "code";

/// What to fetch, and how it has to be.
#[derive(Clone, Debug)]
pub struct Order {
    pub origin: Origin,
    /// The directory that is to have the code in its directory [`CODE`].
    pub into: PathBuf,
    pub limits: Limits,
    /// Files that must be there.
    pub required: Vec<Relative>,
    /// Files that are copied to the destination itself, if they are there.
    pub lifted: Vec<Relative>,
    pub patience: Patience,
}

/// Where the code is.
#[derive(Clone, Debug)]
pub enum Origin {
    /// An archive at an address; kept by its digest in `cache`, if both are given.
    Url { address: String, sha256: Option<Digest>, cache: Option<PathBuf> },
    /// A directory, in which some files are to get other names.
    Directory { path: PathBuf, renamed: BTreeMap<String, Relative> },
}

/// Why the code is not there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot fetch the code: {0}")]
    Download(#[from] download::Error),
    #[error("cannot unpack the code: {0}")]
    Archive(#[from] archive::Error),
    #[error("cannot copy the code: {0}")]
    Copy(#[from] copy::Error),
    #[error("the code has no file {file}; it has {found}")]
    Required { file: Relative, found: String },
    #[error("{what}: {cause}")]
    Io { what: &'static str, cause: io::Error },
    #[error("unpacking was cut off")]
    CutOff,
}

impl Error {
    /// Whether files could not be read or written, which may go better elsewhere.
    fn is_of_storage(&self) -> bool {
        matches!(
            self,
            Error::Io { .. }
                | Error::Download(download::Error::File(_))
                | Error::Archive(archive::Error::Write { .. })
                | Error::Copy(copy::Error::Io { .. } | copy::Error::Escapes(_) | copy::Error::Special(_))
        )
    }
}

fn io(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |cause| Error::Io { what, cause }
}

impl Order {
    /// Carries it out; says what happens to `tell`.
    pub async fn carry_out(self, tell: &(dyn Fn(String) + Sync)) -> Result<(), Error> {
        // In a Pod it is a volume; in a Sandbox nobody has made it.
        let made = fs::create_dir_all(&self.into);
        let work = made.and_then(|()| tempfile::Builder::new().prefix(".fetch-").tempdir_in(&self.into));
        let work = work.map_err(io("cannot write to the destination"))?;
        let code = match &self.origin {
            Origin::Url { address, sha256, cache } => {
                let cached = cache.as_deref().zip(*sha256);
                self.fetched(address, *sha256, cached, &work, tell).await?
            }
            Origin::Directory { path, renamed } => self.copied(path.clone(), renamed.clone(), &work).await?,
        };
        for file in &self.required {
            check(&code, file)?;
        }
        let place = self.into.join(CODE);
        // An earlier try of this container may have left it.
        match fs::remove_dir_all(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::Io { what: "cannot replace the code that is there", cause: error });
            }
            _ => {}
        }
        for file in &self.lifted {
            self.lift(&code, file)?;
        }
        fs::rename(&code, &place).map_err(io("cannot put the code in its place"))?;
        tell(format!("the code is in {}", place.display()));
        Ok(())
    }

    async fn fetched(
        &self,
        address: &str,
        sha256: Option<Digest>,
        cached: Option<(&Path, Digest)>,
        work: &TempDir,
        tell: &(dyn Fn(String) + Sync),
    ) -> Result<PathBuf, Error> {
        let Some((directory, digest)) = cached else {
            return self.unpacked(address, sha256, work.path(), tell).await;
        };
        let cached = self.by_cache(&Cache(directory), address, digest, work, tell).await;
        match cached {
            Err(error) if error.is_of_storage() => {
                tell(format!("the cache cannot be used: {error}; going on without it"));
                // What was copied in part is in the way.
                match fs::remove_dir_all(work.path().join(CODE)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        Err(Error::Io { what: "cannot write to the destination", cause: error })
                    }
                    _ => self.unpacked(address, sha256, work.path(), tell).await,
                }
            }
            other => other,
        }
    }

    /// The code by way of the cache.
    async fn by_cache(
        &self,
        cache: &Cache<'_>,
        address: &str,
        digest: Digest,
        work: &TempDir,
        tell: &(dyn Fn(String) + Sync),
    ) -> Result<PathBuf, Error> {
        if let Some(entry) = cache.find(&digest) {
            tell(format!("{digest} is in the cache"));
            return self.replicated(entry, work).await;
        }
        let unfinished = cache.unfinished().map_err(io("cannot write to it"))?;
        let unpacked = self.unpacked(address, Some(digest), unfinished.path(), tell).await?;
        let entry = match cache.keep(&unpacked, &digest) {
            Ok(entry) => entry,
            Err(error) => {
                tell(format!("the cache cannot keep {digest}: {error}"));
                unpacked
            }
        };
        self.replicated(entry, work).await
    }

    /// Downloads and unpacks below `work`.
    async fn unpacked(
        &self,
        address: &str,
        sha256: Option<Digest>,
        work: &Path,
        tell: &(dyn Fn(String) + Sync),
    ) -> Result<PathBuf, Error> {
        let file = tempfile::tempfile_in(work).map_err(io("cannot write to the destination"))?;
        let mut file = tokio::fs::File::from_std(file);
        let downloader = Downloader::new(self.patience)?;
        downloader.download(address, sha256, self.limits.archive, &mut file, tell).await?;
        let (archive, limits, code) = (file.into_std().await, self.limits, new_directory(work)?);
        let place = code.clone();
        let unpacked = blocking(move || Ok(archive::unpack(archive, &place, limits)?)).await?;
        tell(format!("unpacked {} bytes in {} files and directories", unpacked.bytes, unpacked.entries));
        Ok(code)
    }

    async fn copied(
        &self,
        from: PathBuf,
        renamed: BTreeMap<String, Relative>,
        work: &TempDir,
    ) -> Result<PathBuf, Error> {
        let (limits, code) = (self.limits, new_directory(work.path())?);
        let place = code.clone();
        blocking(move || Ok(copy::copy(&from, &place, &renamed, limits)?)).await?;
        Ok(code)
    }

    async fn replicated(&self, from: PathBuf, work: &TempDir) -> Result<PathBuf, Error> {
        let (limits, code) = (self.limits, new_directory(work.path())?);
        let place = code.clone();
        blocking(move || Ok(copy::replicate(&from, &place, limits)?)).await?;
        Ok(code)
    }

    fn lift(&self, code: &Path, file: &Relative) -> Result<(), Error> {
        let name = file.names().next_back().expect("a path has a name");
        match is_file_inside(code, file) {
            true => {
                fs::copy(file.below(code), self.into.join(name)).map(drop).map_err(io("cannot copy a file"))
            }
            false => Ok(()),
        }
    }
}

/// Everybody may read it: the runtime may run as another user.
fn new_directory(below: &Path) -> Result<PathBuf, Error> {
    let directory = below.join(CODE);
    fs::create_dir(&directory).map_err(io("cannot write to the destination"))?;
    Ok(directory)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(Error::CutOff))
}

/// Whether there is such a file, links followed, that is inside.
fn is_file_inside(code: &Path, file: &Relative) -> bool {
    let (Ok(root), Ok(real)) = (code.canonicalize(), file.below(code).canonicalize()) else { return false };
    real.starts_with(root) && real.is_file()
}

fn check(code: &Path, file: &Relative) -> Result<(), Error> {
    if is_file_inside(code, file) {
        return Ok(());
    }
    let mut names: Vec<String> = fs::read_dir(code)
        .map_err(io("cannot read the code"))?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let more = names.len().saturating_sub(10);
    names.truncate(10);
    let mut found = if names.is_empty() { "nothing".into() } else { names.join(", ") };
    if more > 0 {
        found.push_str(&format!(" and {more} more"));
    }
    Err(Error::Required { file: file.clone(), found })
}
