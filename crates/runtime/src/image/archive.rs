//! Images in files: an OCI layout (a directory or a tar) or a docker archive (a tar), gzipped or not.
//!
//! Finds what is in them and hands out readers; the bytes are verified where they are unpacked.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::digest::Digest;
use super::manifest::{self, CONTAINERD_NAME, Configuration, Descriptor, Document, Platform, REF_NAME};
use super::reference::Reference;
use super::tar::{self, Archive, Kind};
use super::unpack::Limits;

/// Files in an archive, and images in one.
const MEMBERS: usize = 100_000;
const IMAGES: usize = 1000;
/// Links that lead from a name to its file, and indexes that lead to a manifest.
const HOPS: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read it: {0}")]
    Read(io::Error),
    #[error(transparent)]
    Tar(#[from] tar::Error),
    #[error(transparent)]
    Manifest(#[from] manifest::Error),
    #[error("it is neither an OCI layout nor a docker archive: it has no manifest.json and no index.json")]
    Unknown,
    #[error("it has no images")]
    Empty,
    #[error("it lacks {0:?}, which it names")]
    Missing(String),
    #[error("{name:?} is larger than {limit} bytes")]
    TooLarge { name: String, limit: u64 },
    #[error("it has more than {0} files or images")]
    TooMany(usize),
    #[error("{expected} is damaged: its content has the digest {found}")]
    Digest { expected: Digest, found: Digest },
}

// Not `#[from]`: the message has the cause already, and a chain of causes would say it twice.
impl From<io::Error> for Error {
    fn from(cause: io::Error) -> Self {
        Self::Read(cause)
    }
}

/// One image in an archive.
pub(super) struct Found {
    pub(super) names: Vec<Reference>,
    pub(super) id: Digest,
    pub(super) configuration: Configuration,
    pub(super) layers: Vec<Stored>,
}

/// A layer's file in the archive, and its digest as it is stored where that is known.
pub(super) struct Stored {
    pub(super) name: String,
    pub(super) blob: Option<Digest>,
}

pub(super) enum Layout {
    Directory(PathBuf),
    Archive { file: Arc<File>, members: HashMap<String, Member> },
}

pub(super) enum Member {
    At { offset: u64, size: u64 },
    Link(String),
}

impl Layout {
    pub(super) fn directory(path: &Path) -> Self {
        Self::Directory(path.to_owned())
    }

    /// Reads through a tar that is not compressed and remembers where everything is.
    pub(super) fn archive(file: File) -> Result<Self, Error> {
        let file = Arc::new(file);
        let size = file.metadata()?.len();
        let mut members = HashMap::new();
        let mut archive = Archive::new(Section { file: file.clone(), offset: 0, end: size });
        while let Some(entry) = archive.next()? {
            if members.len() >= MEMBERS {
                return Err(Error::TooMany(MEMBERS));
            }
            let Some(name) = plain(&String::from_utf8_lossy(&entry.path)) else { continue };
            let link = String::from_utf8_lossy(&entry.link).into_owned();
            match entry.kind {
                Kind::File => {
                    members.insert(name, Member::At { offset: archive.position(), size: entry.size });
                }
                // Docker writes a layer that two images share once, and links for the others.
                Kind::Symlink => {
                    let beside = name.rsplit_once('/').map_or("", |(folder, _)| folder);
                    let target = format!("{beside}/{link}");
                    members.extend(plain(&target).map(|target| (name, Member::Link(target))));
                }
                Kind::HardLink => members.extend(plain(&link).map(|target| (name, Member::Link(target)))),
                Kind::Directory | Kind::Fifo | Kind::Device => {}
            }
        }
        Ok(Self::Archive { file, members })
    }

    pub(super) fn open(&self, name: &str) -> Result<Box<dyn Read + Send>, Error> {
        let missing = || Error::Missing(name.to_owned());
        let mut wanted = plain(name).ok_or_else(missing)?;
        match self {
            Self::Directory(path) => {
                let file = File::open(path.join(&wanted)).map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => missing(),
                    _ => error.into(),
                })?;
                if file.metadata()?.is_file() { Ok(Box::new(file)) } else { Err(missing()) }
            }
            Self::Archive { file, members } => {
                for _ in 0..HOPS {
                    match members.get(&wanted).ok_or_else(missing)? {
                        Member::Link(target) => wanted.clone_from(target),
                        Member::At { offset, size } => {
                            let end = offset.saturating_add(*size);
                            return Ok(Box::new(Section { file: file.clone(), offset: *offset, end }));
                        }
                    }
                }
                Err(missing())
            }
        }
    }

    fn small(&self, name: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.open(name)?.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(Error::TooLarge { name: name.to_owned(), limit });
        }
        Ok(bytes)
    }

    fn blob(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, Error> {
        let bytes = self.small(&blob_name(digest), limit)?;
        verified(bytes, digest)
    }

    /// All images in it that this machine can run.
    pub(super) fn images(&self, limits: &Limits, machine: &Platform) -> Result<Vec<Found>, Error> {
        // Docker writes both; this one has the names as they were typed.
        let found = match self.small("manifest.json", limits.manifest_bytes) {
            Ok(bytes) => self.archived(&bytes, limits, machine)?,
            Err(Error::Missing(_)) => match self.small("index.json", limits.manifest_bytes) {
                Ok(bytes) => self.indexed(&bytes, limits, machine)?,
                Err(Error::Missing(_)) => return Err(Error::Unknown),
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error),
        };
        if found.is_empty() { Err(Error::Empty) } else { Ok(found) }
    }

    fn archived(&self, bytes: &[u8], limits: &Limits, machine: &Platform) -> Result<Vec<Found>, Error> {
        let archived = manifest::archived(bytes)?;
        if archived.len() > IMAGES {
            return Err(Error::TooMany(IMAGES));
        }
        let found = archived.into_iter().map(|image| {
            let bytes = self.small(&image.config, limits.manifest_bytes)?;
            let id = Digest::of(&bytes);
            if let Some(expected) = digest_in(&image.config).filter(|expected| *expected != id) {
                return Err(Error::Digest { expected, found: id });
            }
            let configuration = manifest::configuration(&bytes, machine)?;
            let layers = image.layers.unwrap_or_default().into_iter();
            let layers = layers.map(|name| {
                let blob = if name.starts_with("blobs/") { digest_in(&name) } else { None };
                Stored { name, blob }
            });
            let names = names(image.repo_tags.unwrap_or_default().iter().map(String::as_str));
            complete(Found { names, id, configuration, layers: layers.collect() })
        });
        found.collect()
    }

    fn indexed(&self, bytes: &[u8], limits: &Limits, machine: &Platform) -> Result<Vec<Found>, Error> {
        let Document::Index(mut entries) = manifest::document(bytes)? else { return Err(Error::Unknown) };
        if entries.len() > IMAGES {
            return Err(Error::TooMany(IMAGES));
        }
        // One image for several platforms, rather than several images.
        if entries.len() > 1 && entries.iter().all(|e| e.platform.is_some() && name_of(e).is_none()) {
            entries = vec![manifest::choose(entries, machine)?];
        }
        entries.into_iter().map(|entry| self.described(entry, limits, machine)).collect()
    }

    fn described(&self, entry: Descriptor, limits: &Limits, machine: &Platform) -> Result<Found, Error> {
        let names = names(name_of(&entry).into_iter());
        let mut digest = entry.digest;
        for _ in 0..HOPS {
            let bytes = self.blob(&digest, limits.manifest_bytes)?;
            let manifest = match manifest::document(&bytes)? {
                Document::Index(entries) => {
                    digest = manifest::choose(entries, machine)?.digest;
                    continue;
                }
                Document::Manifest(manifest) => manifest,
            };
            let bytes = self.blob(&manifest.config.digest, limits.manifest_bytes)?;
            let configuration = manifest::configuration(&bytes, machine)?;
            let layers = manifest.layers.into_iter();
            let layers =
                layers.map(|layer| Stored { name: blob_name(&layer.digest), blob: Some(layer.digest) });
            let layers = layers.collect();
            return complete(Found { names, id: manifest.config.digest, configuration, layers });
        }
        Err(manifest::Error::Nested.into())
    }
}

/// The list of files and the list of digests must be one list.
fn complete(found: Found) -> Result<Found, Error> {
    let (manifest, config) = (found.layers.len(), found.configuration.contents.len());
    if manifest == config { Ok(found) } else { Err(manifest::Error::Layers { manifest, config }.into()) }
}

fn name_of(entry: &Descriptor) -> Option<&str> {
    entry.annotations.get(CONTAINERD_NAME).or_else(|| entry.annotations.get(REF_NAME)).map(String::as_str)
}

/// Names that are none are passed over: the image can still be named by whoever imports it.
fn names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Reference> {
    let parsed = names.filter_map(|name| match Reference::parse(name) {
        Ok(reference) => Some(reference),
        Err(error) => {
            tracing::warn!("a name in the archive is passed over: {error}");
            None
        }
    });
    parsed.collect()
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/{}/{}", digest.algorithm(), digest.hex())
}

/// The digest that a file is named by, if it is.
fn digest_in(name: &str) -> Option<Digest> {
    let file = name.rsplit('/').next()?;
    let hex = file.strip_suffix(".json").unwrap_or(file);
    Digest::parse(&format!("sha256:{hex}")).ok()
}

fn verified(bytes: Vec<u8>, expected: &Digest) -> Result<Vec<u8>, Error> {
    let mut hasher = super::digest::Hasher::like(expected);
    hasher.update(&bytes);
    let found = hasher.finish();
    if found == *expected { Ok(bytes) } else { Err(Error::Digest { expected: expected.clone(), found }) }
}

/// A name without `.`, `..` and empty parts; none if it leads out of the archive.
fn plain(name: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// A part of a file, read without moving the file's own position.
struct Section {
    file: Arc<File>,
    offset: u64,
    end: u64,
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.offset).unwrap_or(usize::MAX);
        let length = buffer.len().min(left);
        let count = self.file.read_at(&mut buffer[..length], self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside() {
        for (name, expected) in [
            ("a/b", Some("a/b")),
            ("./a//b/", Some("a/b")),
            ("/a", Some("a")),
            ("x/../a", Some("a")),
            ("../a", None),
            ("a/../..", None),
            (".", None),
        ] {
            assert_eq!(plain(name).as_deref(), expected, "{name}");
        }
    }
}
