//! What an agent that has ended has left in its directory, for whoever knows that it has. Blocks on the disk.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::describe::ETC;
use crate::place::{self, RUNS};
use crate::start::PREFIX;

/// The longest name that a machine can have.
const LONGEST_NAME: u64 = 64;

/// A run that was going on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    pub run: String,
    /// Of its container.
    pub container: String,
    /// What it was called, if that is known. Its program may have written something else there.
    pub name: Option<String>,
    pub directory: PathBuf,
}

/// The runs in the directory of an agent, without what it had only made ahead.
pub fn runs(data: &Path) -> io::Result<Vec<Left>> {
    let entries = match fs::read_dir(data.join(RUNS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut runs = Vec::new();
    for entry in entries {
        let entry = entry?;
        // What was prepared has a dot in its name, and no run has.
        let Some(run) = entry.file_name().into_string().ok().filter(|name| !name.contains('.')) else {
            continue;
        };
        let directory = entry.path();
        runs.push(Left { container: format!("{PREFIX}{run}"), name: name(&directory), directory, run });
    }
    Ok(runs)
}

fn name(directory: &Path) -> Option<String> {
    let mut text = String::new();
    let file = File::open(directory.join(ETC).join("hostname")).ok()?;
    file.take(LONGEST_NAME).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Removes a directory with all that is in it; one that is not there is no error.
pub fn remove(directory: &Path) -> io::Result<()> {
    place::remove(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_with(data: &tempfile::TempDir, hostname: &str) -> Option<String> {
        let directory = data.path().join(RUNS).join("a1");
        fs::write(directory.join(ETC).join("hostname"), hostname).unwrap();
        name(&directory)
    }

    #[test]
    fn runs_are_told_from_what_was_made_ahead() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(runs(data.path()).unwrap(), []);
        for (run, hostname) in
            [("a1", Some("box\n")), ("b2", Some("")), ("c3", None), ("prepared.x.1", Some("prepared"))]
        {
            let etc = data.path().join(RUNS).join(run).join(ETC);
            fs::create_dir_all(&etc).unwrap();
            if let Some(text) = hostname {
                fs::write(etc.join("hostname"), text).unwrap();
            }
        }
        let mut left = runs(data.path()).unwrap();
        left.sort_by(|a, b| a.run.cmp(&b.run));
        let left: Vec<_> = left.iter().map(|left| (&*left.container, left.name.as_deref())).collect();
        assert_eq!(left, [("sb-a1", Some("box")), ("sb-b2", None), ("sb-c3", None)]);
        // Whatever a program has made of it, little of that is read.
        let long = left_with(&data, &"x".repeat(1 << 20));
        assert_eq!(long.map(|name| name.len()), Some(64));
    }
}
