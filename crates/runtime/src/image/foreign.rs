//! Documents of images that somebody else keeps, read as those of our own store are. Pure.

use super::manifest::{self, Config, Document, Platform};
use super::{Digest, Error};

/// What a document says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Described {
    /// Of several images, the digest of the one that this machine runs best.
    Index(String),
    Manifest(Manifest),
}

/// An image as its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The digest of its configuration.
    pub config: String,
    /// From the bottom.
    pub layers: Vec<Layer>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
}

/// Reads an index or a manifest.
pub fn describe(document: &[u8]) -> Result<Described, Error> {
    Ok(match manifest::document(document)? {
        Document::Index(manifests) => {
            let chosen = manifest::choose(manifests, &Platform::of_this_machine())?;
            Described::Index(chosen.digest.to_string())
        }
        Document::Manifest(read) => {
            let layers = read.layers.into_iter();
            let layers =
                layers.map(|one| Layer { media_type: one.media_type, digest: one.digest, size: one.size });
            Described::Manifest(Manifest { config: read.config.digest.to_string(), layers: layers.collect() })
        }
    })
}

/// Reads a configuration: how to run the image, and the digests of its layers' contents.
pub fn configured(configuration: &[u8]) -> Result<(Config, Vec<Digest>), Error> {
    let read = manifest::configuration(configuration, &Platform::of_this_machine())?;
    Ok((read.config, read.contents))
}
