//! Copies code out of a directory. In one that a volume shows, links are followed where they stay inside, as the keys of
//! a ConfigMap are links, and what is copied has none. Code that was unpacked keeps the links that it has.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::limits::{Budget, Limits, TooMuch};
use crate::path::{BadPath, Relative, link_stays_inside};

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
    let mut copying = Copying { root: &root, target, budget: Budget::new(limits), links: Links::Followed };
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

/// Copies unpacked code into the empty directory `target`, as it is.
pub fn replicate(source: &Path, target: &Path, limits: Limits) -> Result<(), Error> {
    let root = source.canonicalize().map_err(at(source))?;
    let mut copying = Copying { root: &root, target, budget: Budget::new(limits), links: Links::Kept };
    for name in names(&root)? {
        copying.entry(&root.join(&name), &parse(&name)?)?;
    }
    Ok(())
}

/// What becomes of links.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    Followed,
    Kept,
}

struct Copying<'a> {
    root: &'a Path,
    target: &'a Path,
    budget: Budget,
    links: Links,
}

impl Copying<'_> {
    fn entry(&mut self, from: &Path, to: &Relative) -> Result<(), Error> {
        self.budget.entry()?;
        if self.links == Links::Kept && from.is_symlink() {
            return self.link(from, to);
        }
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

    fn link(&mut self, from: &Path, to: &Relative) -> Result<(), Error> {
        let leads_to = fs::read_link(from).map_err(at(from))?;
        // Unpacking saw to that; but whoever shares the directory may write to it.
        if !leads_to.to_str().is_some_and(|target| link_stays_inside(to, target)) {
            return Err(Error::Escapes(from.into()));
        }
        let place = to.below(self.target);
        symlink(leads_to, &place).map_err(at(&place))
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
