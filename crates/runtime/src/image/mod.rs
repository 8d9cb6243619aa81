//! The images of this node: imported from archives or pulled from registries, each unpacked once into a plain root
//! directory that all its containers share and none writes.
//!
//! What is in an image is never trusted, and nothing is visible under a name before it was verified as a whole.

mod accounts;
mod archive;
mod credentials;
mod decode;
mod digest;
mod disk;
mod foreign;
mod manifest;
mod reference;
mod registry;
mod store;
mod tar;
mod tree;
mod unpack;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use accounts::read_within;
pub use accounts::{Account, Accounts, Unknown};
pub use credentials::{Credentials, Keyring};
pub use digest::Digest;
pub use foreign::{Described, Layer, Manifest, configured, describe};
pub use manifest::Config;
pub use reference::Reference;
pub use store::{Held, Options, Removed, Stamp, Store};
pub use unpack::Limits;

use crate::Answer;
use crate::spec::Root;

/// The name of the image that is this machine's own file system.
pub const HOST: &str = "host";

/// Why an image could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Name(#[from] reference::Error),
    #[error("{path}: {cause}")]
    Store { path: String, cause: std::io::Error },
    #[error("{path}: the record of an image is damaged: {cause}; remove the image and get it again")]
    Record { path: String, cause: serde_json::Error },
    #[error("{path}: {cause}")]
    Archive { path: String, cause: archive::Error },
    #[error(transparent)]
    Manifest(#[from] manifest::Error),
    #[error(transparent)]
    Unpack(#[from] unpack::Error),
    #[error("{reference}: {cause}")]
    Registry { reference: String, cause: registry::Error },
    #[error(
        "{0}: the name says no registry, and no image of that name was imported; import it, or write the registry \
         before the name, or configure a default registry"
    )]
    NoRegistry(Reference),
    #[error("there is no image {0:?}")]
    NotFound(String),
    #[error("{0:?} begins the ids of several images; write more of it")]
    Ambiguous(String),
    #[error("the image {0} is in use; remove its containers first")]
    InUse(String),
    #[error("the image {HOST:?} is built in and cannot be removed or replaced")]
    BuiltIn,
}

impl Error {
    /// Trying again later may help without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Registry { cause, .. } if cause.is_transient())
    }
}

/// An image that can be run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// The digest of its configuration; [`HOST`] for the built-in one.
    pub id: String,
    /// Tags and digests that it is known by, sorted.
    pub names: Vec<String>,
    pub root: Root,
    pub config: Config,
    /// The bytes of its files.
    pub size: u64,
}

/// Where images come from that no [`Store`] has.
pub trait Source: Send + Sync {
    /// The image of that name, and who is who in it.
    fn get<'a>(&'a self, name: &'a str) -> Answer<'a, (Image, Accounts)>;
    /// All names by which images can be had at once.
    fn names(&self) -> Answer<'_, Vec<String>>;
}

/// What an import or a pull is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    Downloading { blob: Digest, bytes: u64, total: u64 },
    Unpacking { layer: usize, of: usize },
}

/// Is told of progress; must return at once.
pub type Report = Arc<dyn Fn(Progress) + Send + Sync>;
