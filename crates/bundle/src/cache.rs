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
/// How many entries stay; those that were not used for longest go first.
const MOST: usize = 64;

/// A directory of unpacked archives.
pub(crate) struct Cache<'a>(pub(crate) &'a Path);

impl Cache<'_> {
    /// The unpacked archive of this digest, if it is there.
    pub(crate) fn find(&self, digest: &Digest) -> Option<PathBuf> {
        let place = self.0.join(digest.to_string());
        place.is_dir().then(|| {
            // By its time it is known when it was used last; where that cannot be set, it was when it was made.
            let _ = std::fs::File::open(&place).and_then(|entry| entry.set_modified(SystemTime::now()));
            place
        })
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
            other => {
                self.thin_out(&place);
                other.map(|()| place)
            }
        }
    }

    /// Removes the oldest entries beyond the number that stays, and never this one. Whoever copies one of them just now
    /// does without the cache.
    fn thin_out(&self, new: &Path) {
        let entries = std::fs::read_dir(self.0).into_iter().flatten().flatten().filter(|entry| {
            let name = entry.file_name();
            entry.path() != new && name.to_str().is_some_and(|name| name.parse::<Digest>().is_ok())
        });
        let mut by_age: Vec<(SystemTime, PathBuf)> = entries
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        by_age.sort();
        let surplus = by_age.len().saturating_sub(MOST - 1);
        for (_, entry) in by_age.into_iter().take(surplus) {
            // Gone at once for everybody, whatever becomes of its files.
            if let Ok(away) = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(self.0) {
                let _ = std::fs::rename(&entry, away.path());
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entries_that_were_not_used_for_longest_go() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache(directory.path());
        let digest = |n: usize| format!("{n:064x}").parse::<Digest>().unwrap();
        let add = |n: usize| {
            let unpacked = cache.unfinished().unwrap();
            std::fs::write(unpacked.path().join("file"), "").unwrap();
            cache.keep(unpacked.path(), &digest(n)).unwrap()
        };
        let long_ago = SystemTime::now() - Duration::from_secs(3600);
        for n in 0..MOST {
            let entry = std::fs::File::open(add(n)).unwrap();
            entry.set_modified(long_ago + Duration::from_secs(n as u64)).unwrap();
        }
        assert!(cache.find(&digest(0)).is_some(), "it is used");
        add(MOST);
        assert!(cache.find(&digest(0)).is_some() && cache.find(&digest(MOST)).is_some());
        assert!(cache.find(&digest(1)).is_none() && cache.find(&digest(2)).is_some());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), MOST);
    }
}
