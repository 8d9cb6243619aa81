//! Unpacked archives by digest, shared by whoever mounts the directory. An entry appears whole, by a rename, or not at
//! all; two who make the same one at once do no harm.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use crate::download::Digest;

const UNFINISHED: &str = ".unfinished-";
/// No fetch takes this long; what is older was left by one that died.
const LEFT: Duration = Duration::from_secs(6 * 3600);

/// A directory of unpacked archives.
pub(crate) struct Cache<'a>(pub(crate) &'a Path);

impl Cache<'_> {
    /// The unpacked archive of this digest, if it is there.
    pub(crate) fn find(&self, digest: &Digest) -> Option<PathBuf> {
        let place = self.0.join(digest.to_string());
        place.is_dir().then_some(place)
    }

    /// Somewhere to unpack; removed unless it is kept.
    pub(crate) fn unfinished(&self) -> io::Result<TempDir> {
        self.sweep();
        tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(self.0)
    }

    /// Makes an unpacked archive the entry of its digest. What another has made meanwhile is as good.
    pub(crate) fn keep(&self, unpacked: &Path, digest: &Digest) -> io::Result<PathBuf> {
        let place = self.0.join(digest.to_string());
        // An entry must not be there before what is in it.
        rustix::fs::syncfs(std::fs::File::open(unpacked)?)?;
        match std::fs::rename(unpacked, &place) {
            Err(_) if place.is_dir() => Ok(place),
            other => other.map(|()| place),
        }
    }

    /// Failing to clean up is no reason not to go on.
    fn sweep(&self) {
        for entry in std::fs::read_dir(self.0).into_iter().flatten().flatten() {
            let unfinished = entry.file_name().to_string_lossy().starts_with(UNFINISHED);
            let modified = entry.metadata().and_then(|metadata| metadata.modified()).ok();
            let age = modified.and_then(|time| SystemTime::now().duration_since(time).ok());
            if unfinished && age.is_some_and(|age| age > LEFT) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}
