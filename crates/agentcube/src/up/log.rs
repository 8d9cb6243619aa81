//! The log of a process in the background: a file that cannot grow without end.
//!
//! The file is copied aside and emptied, never renamed: standard error, where panics go, has it open too.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use tracing_subscriber::fmt::MakeWriter;

/// Past this size the file starts anew; one older file of the same size is kept.
const LIMIT: u64 = 8 << 20;

pub(crate) struct Bounded {
    file: Mutex<File>,
    path: PathBuf,
    limit: u64,
}

/// Opens a log for appending.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

impl Bounded {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = open(path).with_context(|| format!("cannot open the log {}", path.display()))?;
        Ok(Self { file: Mutex::new(file), path: path.to_owned(), limit: LIMIT })
    }
}

impl<'a> MakeWriter<'a> for Bounded {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Whoever panicked while writing left a line unfinished, nothing worse.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.metadata()?.len() >= self.limit {
            std::fs::copy(&self.path, self.path.with_extension("log.1"))?;
            file.set_len(0)?;
        }
        file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_within_its_limit_and_keeps_the_last_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("up.log");
        let mut log = Bounded::open(&path).unwrap();
        log.limit = 100;
        for line in 0..1000 {
            writeln!(&log, "line {line}").unwrap();
        }
        let now = std::fs::read_to_string(&path).unwrap();
        let older = std::fs::read_to_string(directory.path().join("up.log.1")).unwrap();
        assert!(now.len() < 120 && older.len() < 120, "{} {}", now.len(), older.len());
        assert!(format!("{older}{now}").ends_with("line 998\nline 999\n"));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
