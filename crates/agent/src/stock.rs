//! Directories of runs that nobody has asked for yet. Making one takes a dozen files and directories, which a file system
//! may be slow to find a place for; giving one another name takes one step. Who finds none makes one: it is no error.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::agent::Inner;
use crate::{place, start};

/// So long none may have been taken before others are made: a burst has the disk for itself.
const QUIET: Duration = Duration::from_millis(250);
/// After one that could not be made.
const PAUSE: Duration = Duration::from_secs(5);
/// However many runs an agent has room for.
const MOST: usize = 64;

pub(crate) struct Stock {
    directory: PathBuf,
    made: Mutex<Made>,
    taken: Notify,
}

#[derive(Default)]
struct Made {
    ready: Vec<PathBuf>,
    number: u64,
}

impl Stock {
    /// In a directory of its own, of which nothing is kept: an earlier process may have left things there.
    pub(crate) fn new(directory: PathBuf) -> io::Result<Stock> {
        place::remove(&directory)?;
        fs::create_dir_all(&directory)?;
        place::keep_apart(&directory);
        Ok(Stock { directory, made: Mutex::default(), taken: Notify::new() })
    }

    /// Gives one of them this name. Whether there was one.
    pub(crate) fn take(&self, name: &Path) -> bool {
        let Some(ready) = self.made.lock().ready.pop() else { return false };
        self.taken.notify_one();
        // What cannot be moved goes with the directory.
        fs::rename(ready, name).is_ok()
    }

    /// As many as an agent of this capacity may be asked for at once.
    fn fill(&self, capacity: u32) -> io::Result<()> {
        let wanted = MOST.min(capacity as usize);
        loop {
            let next = {
                let mut made = self.made.lock();
                made.number += 1;
                (made.ready.len() < wanted).then(|| self.directory.join(made.number.to_string()))
            };
            let Some(next) = next else { return Ok(()) };
            place::make_ahead(&next)?;
            self.made.lock().ready.push(next);
        }
    }

    /// Removes all of them.
    pub(crate) fn end(&self) {
        self.made.lock().ready.clear();
        if let Err(error) = place::remove(&self.directory) {
            tracing::warn!("{} stays until the next start: {error}", self.directory.display());
        }
    }
}

/// Keeps it filled until the agent ends.
pub(crate) async fn run(weak: Weak<Inner>, closing: CancellationToken) {
    while let Some(inner) = weak.upgrade() {
        let capacity = inner.read(|state| state.table.capacity());
        let stock = inner.stock.clone();
        let filled = start::blocking(move || stock.fill(capacity)).await;
        if let Err(failure) = &filled {
            tracing::warn!("no directories are made ahead: {}", failure.message);
        }
        let stock = inner.stock.clone();
        drop(inner);
        let pause = async {
            if filled.is_err() {
                return tokio::time::sleep(PAUSE).await;
            }
            stock.taken.notified().await;
            while tokio::time::timeout(QUIET, stock.taken.notified()).await.is_ok() {}
        };
        tokio::select! {
            () = closing.cancelled() => return,
            () = pause => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(directory: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry"));
        entries.map(|entry| entry.file_name().into_string().expect("of text")).collect()
    }

    #[test]
    fn gives_as_many_as_there_are_with_what_containers_need() {
        let place = tempfile::tempdir().expect("a directory");
        let (one, other) = (place.path().join("one"), place.path().join("other"));
        let stock = Stock::new(place.path().join("ahead")).expect("it can be written");
        assert!(!stock.take(&one), "there is none yet");
        stock.fill(2).expect("they are made");
        assert!(stock.take(&one) && stock.take(&other));
        assert!(!stock.take(&place.path().join("third")), "there were two");
        assert_eq!(names(&one), names(&other));
        assert_eq!(names(&one.join("etc")), ["hostname", "hosts", "resolv.conf"].map(str::to_owned).into());
        stock.fill(u32::MAX).expect("they are made");
        assert_eq!(names(&place.path().join("ahead")).len(), MOST);
        // Another process begins anew.
        let next = Stock::new(place.path().join("ahead")).expect("it can be written");
        assert!(names(&place.path().join("ahead")).is_empty() && !next.take(&place.path().join("third")));
        next.end();
        assert!(!place.path().join("ahead").exists());
    }
}
