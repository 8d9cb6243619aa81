//! A directory that one process uses at a time. Whoever has its lock knows that the one before has ended, and need not
//! wait for its Lease to lapse.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use agentcube_sandbox::Log;
use anyhow::{Context, bail};

use crate::paths::write_private;

/// A process that was killed holds its lock until the kernel has taken it apart.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

/// Nobody else uses the directory while this lives.
pub(super) struct Held {
    pub(super) identity: String,
    /// Who used it before, and has ended.
    pub(super) predecessor: Option<String>,
    // Closed with the process, however it ends, and with it the lock goes.
    _lock: File,
}

impl Held {
    pub(super) fn take(directory: &Path, name: Option<&str>) -> anyhow::Result<Held> {
        let failed = || format!("cannot use the data directory {}", directory.display());
        std::fs::create_dir_all(directory).with_context(failed)?;
        let path = directory.join("controller.lock");
        let lock =
            File::options().create(true).truncate(false).write(true).open(path).with_context(failed)?;
        let begun = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if begun.elapsed() < PATIENCE => std::thread::sleep(LOOK),
                Err(TryLockError::WouldBlock) => {
                    bail!("another process uses {}: choose another --data-dir", directory.display())
                }
                Err(TryLockError::Error(error)) => return Err(error).with_context(failed),
            }
        }
        let record = directory.join("controller");
        let predecessor = std::fs::read_to_string(&record).ok().filter(|text| !text.is_empty());
        let identity = identity(name.unwrap_or("controller"));
        // Before it is used: whoever comes next has to know it.
        write_private(&record, identity.as_bytes()).with_context(failed)?;
        Ok(Held { identity, predecessor, _lock: lock })
    }
}

/// The log of the directory, for a leader of this term. What is in it is believed only if the last leader used this
/// directory, too: another knows nothing of it, and may have deleted since what it would have made.
pub(super) fn log(directory: &Path, term: u64) -> anyhow::Result<Log> {
    let (path, record) = (directory.join("wal"), directory.join("wal.term"));
    let failed = || format!("cannot use the log in {}", directory.display());
    let last: Option<u64> = std::fs::read_to_string(&record).ok().and_then(|text| text.trim().parse().ok());
    if path.exists() && last.is_none_or(|last| last + 1 != term) {
        let aside = directory.join(format!("wal.before-term-{term}"));
        tracing::warn!(
            "another process led since, so what this log promised is left to what agents say: it is now {}",
            aside.display()
        );
        std::fs::rename(&path, aside).with_context(failed)?;
    }
    write_private(&record, term.to_string().as_bytes()).with_context(failed)?;
    Log::open(&path).with_context(failed)
}

/// No other process has the same, not even one of the same name.
pub(crate) fn identity(name: &str) -> String {
    use std::hash::{BuildHasher, RandomState};
    let random = || RandomState::new().hash_one(std::process::id());
    format!("{name}_{:016x}{:016x}", random(), random())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_believed_only_by_the_next_leader() {
        let directory = tempfile::tempdir().unwrap();
        let aside = |term: u64| directory.path().join(format!("wal.before-term-{term}")).exists();
        for (term, expected) in [(3, false), (4, false), (5, false), (7, true), (8, false), (8, true)] {
            let before = directory.path().join("wal").exists();
            drop(log(directory.path(), term).unwrap());
            assert_eq!(aside(term) && before, expected, "{term}");
        }
    }

    #[test]
    fn the_next_knows_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let first = Held::take(directory.path(), Some("a")).unwrap();
        assert_eq!(first.predecessor, None);
        let identity = first.identity.clone();
        drop(first);
        let second = Held::take(directory.path(), Some("a")).unwrap();
        assert_eq!(second.predecessor, Some(identity.clone()));
        assert_ne!(second.identity, identity);
    }
}
