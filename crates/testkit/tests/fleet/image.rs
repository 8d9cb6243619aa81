//! An image of the programs that trials run, with the libraries that they load.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use agentcube_testkit::cluster::process::build_program;
use agentcube_testkit::image::archive_of;
use anyhow::Result;

const OF_THE_MACHINE: [&str; 2] = ["/bin/sh", "/bin/sleep"];

/// Writes `image.tar` into a directory.
pub(crate) fn write(work: &Path, name: &str) -> Result<()> {
    let product = build_program()?;
    let mut files: BTreeSet<(PathBuf, PathBuf)> =
        OF_THE_MACHINE.iter().map(|&path| (path.into(), path.into())).collect();
    files.insert((product, "/.agentcube/agentcube".into()));
    for program in files.clone().into_iter().map(|(program, _)| program) {
        files.extend(libraries(&program)?.into_iter().map(|library| (library.clone(), library)));
    }
    archive_of(name, files, work).map(drop)
}

/// What the loader of this machine would load; of a program that needs none, nothing.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let output = Command::new("ldd").arg(program).output()?;
    let text = String::from_utf8(output.stdout)?;
    let words = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(words.map(|word| word.trim_end_matches(':').into()).collect())
}
