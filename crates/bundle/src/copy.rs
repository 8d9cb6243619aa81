//! Copies code out of a directory that a volume shows. Links are followed where they stay inside, as the keys of a
//! ConfigMap are links; what is copied has none.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::limits::{Budget, Limits, TooMuch};
use crate::path::{BadPath, Relative};

/// Why a directory is not copied.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no {0:?} among the files of the code")]
    NoSuchFile(String),
    #[error("{name:?}: {cause}")]
    Name { name: String, cause: BadPath },
    #[error("{0:?} is a link that leads out of the code")]
    Escapes(PathBuf),
    #[error("{0:?} is a device, a pipe or something else that no code needs")]
    Special(PathBuf),
    #[error("{0:?} would be written twice")]
    Twice(PathBuf),
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
    #[error("{path:?}: {cause}")]
    Io { path: PathBuf, cause: io::Error },
}

/// Copies `source` into the empty directory `target`. Files of its top level that `renamed` names get another path.
pub fn copy(
    source: &Path,
    target: &Path,
    renamed: &BTreeMap<String, Relative>,
    limits: Limits,
) -> Result<(), Error> {
    let root = source.canonicalize().map_err(at(source))?;
    if let Some(missing) = renamed.keys().find(|name| !root.join(name).is_file()) {
        return Err(Error::NoSuchFile(missing.clone()));
    }
    let mut copying = Copying { root: &root, target, budget: Budget::new(limits) };
    for name in names(&root)? {
        // What Kubernetes keeps beside the keys of a ConfigMap, and file systems beside all.
        if name.starts_with("..") || name == "lost+found" {
            continue;
        }
        let path = match renamed.get(&name) {
            Some(path) => path.clone(),
            None => parse(&name)?,
        };
        copying.entry(&root.join(&name), &path)?;
    }
    Ok(())
}

struct Copying<'a> {
    root: &'a Path,
    target: &'a Path,
    budget: Budget,
}

impl Copying<'_> {
    fn entry(&mut self, from: &Path, to: &Relative) -> Result<(), Error> {
        self.budget.entry()?;
        let real = from.canonicalize().map_err(at(from))?;
        if !real.starts_with(self.root) {
            return Err(Error::Escapes(from.into()));
        }
        let kind = fs::metadata(&real).map_err(at(from))?;
        if kind.is_dir() {
            let place = to.below(self.target);
            fs::create_dir_all(&place).map_err(at(&place))?;
            // A link to a directory above ends where paths get too deep.
            for name in names(&real)? {
                let below = parse(&format!("{to}/{name}"))?;
                self.entry(&real.join(&name), &below)?;
            }
            Ok(())
        } else if kind.is_file() {
            self.file(&real, to, kind.permissions().mode())
        } else {
            Err(Error::Special(from.into()))
        }
    }

    fn file(&mut self, from: &Path, to: &Relative, mode: u32) -> Result<(), Error> {
        let place = to.below(self.target);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent).map_err(at(parent))?;
        }
        let mode = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
        let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(&place);
        let mut file = opened.map_err(|cause| match cause.kind() {
            io::ErrorKind::AlreadyExists => Error::Twice(to.as_str().into()),
            _ => Error::Io { path: place.clone(), cause },
        })?;
        let source = File::open(from).map_err(at(from))?;
        let copied = io::copy(&mut source.take(self.budget.rest()), &mut file).map_err(at(from))?;
        Ok(self.budget.took(copied)?)
    }
}

fn names(directory: &Path) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(at(directory))? {
        let name = entry.map_err(at(directory))?.file_name();
        let name = name.into_string().map_err(|name| Error::Name {
            name: name.to_string_lossy().into_owned(),
            cause: BadPath::Characters,
        })?;
        names.push(name);
    }
    names.sort();
    Ok(names)
}

fn parse(name: &str) -> Result<Relative, Error> {
    name.parse().map_err(|cause| Error::Name { name: name.into(), cause })
}

fn at(path: &Path) -> impl Fn(io::Error) -> Error {
    let path = path.to_path_buf();
    move |cause| Error::Io { path: path.clone(), cause }
}
