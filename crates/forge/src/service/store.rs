//! Results on disk, each in a directory that is called after what it was made of. One appears by a rename, when everything in it is
//! on the disk; so it is whole, or not there. Digests are looked at whenever it is read.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agentcube_api::frontend::bundle::BundleFile;
use serde::{Deserialize, Serialize};

use crate::{files, hash};

/// Says what a directory holds; written last.
const LIST: &str = "build.json";
/// How long a bundler that has been killed may take to die, on a machine with much else to do.
const DYING: Duration = Duration::from_secs(30);

#[derive(Serialize, Deserialize)]
struct List {
    files: Vec<Listed>,
}

#[derive(Serialize, Deserialize)]
struct Listed {
    path: String,
    sha256: String,
}

pub(super) struct Store {
    builds: PathBuf,
    work: PathBuf,
    most: u64,
}

impl Store {
    pub(super) fn open(directory: &Path, most: u64) -> io::Result<Store> {
        let store = Store { builds: directory.join("builds"), work: directory.join("work"), most };
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        // What is half done, or half removed, is nobody's any more.
        sweep(&store.work)?;
        builder.create(&store.builds)?;
        builder.create(&store.work)?;
        Ok(store)
    }

    /// An empty directory that goes when it is let go.
    pub(super) fn work(&self) -> io::Result<tempfile::TempDir> {
        tempfile::Builder::new().prefix("build-").tempdir_in(&self.work)
    }

    pub(super) fn has(&self, id: &str) -> bool {
        self.builds.join(id).join(LIST).is_file()
    }

    /// Keeps a result. If it is there already, that one stays.
    pub(super) fn put(&self, id: &str, content: &[(&'static str, Vec<u8>)]) -> io::Result<()> {
        let beside = self.work()?;
        let listed = |(path, content): &(&'static str, Vec<u8>)| Listed {
            path: (*path).to_owned(),
            sha256: hash::hex(content),
        };
        for (path, content) in content {
            write(&beside.path().join(path), content)?;
        }
        let list = serde_json::to_vec(&List { files: content.iter().map(listed).collect() })?;
        write(&beside.path().join(LIST), &list)?;
        File::open(beside.path())?.sync_all()?;
        match fs::rename(beside.path(), self.builds.join(id)) {
            Ok(()) => {
                // It is no longer where it would be removed from.
                let _kept = beside.keep();
                File::open(&self.builds)?.sync_all()?;
                self.make_room(id)
            }
            Err(_) if self.has(id) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The files of a result; `None` if there is none. One that is damaged is removed.
    pub(super) fn get(&self, id: &str) -> io::Result<Option<Vec<BundleFile>>> {
        let place = self.builds.join(id);
        match read(&place) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !place.exists() => Ok(None),
            Err(error) => {
                tracing::warn!(%error, id, "a result is damaged, and is removed");
                self.remove(&place)?;
                Ok(None)
            }
        }
    }

    /// Takes it out of sight before it is taken apart.
    fn remove(&self, place: &Path) -> io::Result<()> {
        let aside = self.work()?;
        match fs::rename(place, aside.path().join("gone")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The oldest go until what is left fits; never the newest.
    fn make_room(&self, newest: &str) -> io::Result<()> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.builds)? {
            let entry = entry?;
            let bytes: u64 = fs::read_dir(entry.path())?
                .flatten()
                .filter_map(|file| Some(file.metadata().ok()?.len()))
                .sum();
            all.push((entry.metadata()?.modified()?, bytes, entry.path()));
        }
        all.sort();
        let mut total: u64 = all.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, place) in all {
            if total <= self.most {
                break;
            }
            if !place.ends_with(newest) {
                self.remove(&place)?;
                total -= bytes;
            }
        }
        Ok(())
    }
}

/// Removes a directory. A bundler of whoever died here may be about to die too, and write into it meanwhile.
fn sweep(directory: &Path) -> io::Result<()> {
    let deadline = Instant::now() + DYING;
    loop {
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            ended => return ended,
        }
    }
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn read(place: &Path) -> io::Result<Vec<BundleFile>> {
    let damaged = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let list: List = serde_json::from_slice(&fs::read(place.join(LIST))?)?;
    let mut found = Vec::new();
    for (path, content_type) in files::ALL {
        let listed = list.files.iter().find(|listed| listed.path == path);
        let listed = listed.ok_or_else(|| damaged("a file is not listed"))?;
        let content = fs::read(place.join(path))?;
        if hash::hex(&content) != listed.sha256 {
            return Err(damaged(path));
        }
        found.push(files::file(path, content_type, &content));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(text: &str) -> Vec<(&'static str, Vec<u8>)> {
        files::ALL.iter().map(|(path, _)| (*path, text.as_bytes().to_vec())).collect()
    }

    #[test]
    fn a_result_is_whole_or_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), 1 << 20).unwrap();
        assert!(!store.has("a") && store.get("a").unwrap().is_none());
        store.put("a", &content("one")).unwrap();
        store.put("a", &content("two")).unwrap();
        let found = store.get("a").unwrap().unwrap();
        assert_eq!(files::check(&found), Ok(()));
        assert_eq!(files::content(&found[0]).unwrap(), b"one");
        // One that died in the middle: its beginnings are beside, and are swept.
        let half = store.work().unwrap().keep();
        fs::write(half.join(files::MODULE), "half").unwrap();
        let store = Store::open(directory.path(), 1 << 20).unwrap();
        assert!(!half.exists() && store.has("a"));
    }

    #[test]
    fn is_swept_although_somebody_still_writes() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), 1 << 20).unwrap();
        let half = store.work().unwrap().keep();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..5000 {
                    // Until it is gone from under it.
                    if fs::write(half.join(number.to_string()), "").is_err() {
                        break;
                    }
                }
            });
            while !half.join("0").exists() {
                std::thread::yield_now();
            }
            Store::open(directory.path(), 1 << 20).unwrap();
        });
        assert!(!half.exists());
    }

    #[test]
    fn what_is_damaged_is_not_given_out() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), 1 << 20).unwrap();
        for (number, spoil) in [
            |place: &Path| fs::write(place.join(files::MODULE), "other"),
            |place: &Path| fs::write(place.join(LIST), "{"),
        ]
        .iter()
        .enumerate()
        {
            let id = number.to_string();
            store.put(&id, &content("one")).unwrap();
            spoil(&store.builds.join(&id)).unwrap();
            assert!(store.get(&id).unwrap().is_none() && !store.has(&id));
        }
    }

    #[test]
    fn there_is_room_for_so_much_only() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), 5000).unwrap();
        for id in ["a", "b", "c"] {
            store.put(id, &content(&"x".repeat(1000))).unwrap();
        }
        assert!(store.has("c"));
        assert!(["a", "b", "c"].iter().filter(|id| store.has(id)).count() == 1);
    }
}
