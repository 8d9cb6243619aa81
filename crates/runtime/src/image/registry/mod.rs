//! Pulls images by the registry protocol (HTTP API v2). Blobs go to files, verified as they come; layers are unpacked in
//! order while later ones are still on their way.

mod auth;
mod client;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use http_body_util::{BodyExt, Limited};
use hyper::StatusCode;
use hyper::header::{CONTENT_RANGE, HeaderValue};
use tokio::io::{AsyncSeekExt, AsyncWriteExt};

pub(super) use client::Registry;
use client::{SILENCE, Session};

use super::digest::{Digest, Hasher};
use super::disk::{Work, at};
use super::manifest::{self, ACCEPTED, Configuration, Descriptor, Document, Manifest, Platform};
use super::reference::Reference;
use super::store::{Options, Store, in_registry};
use super::{Credentials, Error as ImageError, Image, Progress, Report, unpack};

/// Blobs on their way at once.
const TRANSFERS: usize = 3;
/// Attempts in a row that brought nothing.
const ATTEMPTS: u32 = 5;
/// Indexes that lead to a manifest.
const HOPS: usize = 4;
/// Progress is told of at most this often.
const TOLD_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot reach the registry at {host}: {}", root_cause(cause))]
    Connection { host: String, cause: hyper_util::client::legacy::Error },
    #[error("the registry at {host} does not answer")]
    Silent { host: String },
    #[error("the connection to the registry broke off")]
    Interrupted,
    #[error("not found in the registry: check the name and the tag")]
    NotFound,
    #[error(
        "the registry refused access: {}",
        if *credentials { "check the credentials" } else { "no credentials were given for it" }
    )]
    Denied { credentials: bool },
    #[error("the registry forbids to read this repository")]
    Forbidden,
    #[error("the registry answered {0}")]
    Status(StatusCode),
    #[error("the registry's token server gave no token")]
    Token,
    #[error("the registry leads from an encrypted connection to one that is not; it was not followed")]
    Plain,
    #[error("the registry redirects in circles or to nowhere")]
    Redirect,
    #[error("the registry's address is not valid")]
    Address,
    #[error("the certificates given for registries cannot be read: write PEM")]
    Ca,
    #[error("cannot set up TLS: {0}")]
    Tls(rustls::Error),
    #[error("{what} is larger than {limit} bytes")]
    TooLarge { what: String, limit: u64 },
    #[error("{expected} is damaged: what the registry sent has the digest {found}")]
    Digest { expected: Digest, found: Digest },
    #[error(transparent)]
    Manifest(#[from] manifest::Error),
    #[error("{path}: {cause}")]
    File { path: String, cause: std::io::Error },
    #[error("it took longer than allowed")]
    Deadline,
}

impl Error {
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Connection { .. } => !self.is_certificate(),
            Self::Silent { .. } | Self::Interrupted | Self::Deadline => true,
            Self::Status(status) => status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS,
            _ => false,
        }
    }

    /// The registry was reached and is not who it should be.
    fn is_certificate(&self) -> bool {
        let Self::Connection { cause, .. } = self else { return false };
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(cause);
        while let Some(error) = cause {
            if let Some(rustls::Error::InvalidCertificate(_)) = error.downcast_ref() {
                return true;
            }
            // An I/O error names as its source not what it wraps, but the source of that.
            cause = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
                Some(wrapped) => Some(wrapped),
                None => error.source(),
            };
        }
        false
    }
}

/// The last cause is the one that says something.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// Pulls `reference`, whose host is `host`, into the store.
pub(super) async fn pull(
    store: &Store,
    registry: &Registry,
    host: &str,
    reference: &Reference,
    credentials: Option<&Credentials>,
    report: &Report,
) -> Result<Image, ImageError> {
    let failed = in_registry(reference);
    let session = registry.session(host, reference.path(), credentials).await.map_err(failed)?;
    let transfer = Transfer { session, options: store.options(), report };
    let (pinned, manifest) = transfer.manifest(reference).await.map_err(failed)?;
    let names = [reference.clone(), reference.pinned(pinned)];
    let limit = store.options().limits.manifest_bytes;
    let bytes = transfer.document("blobs", &manifest.config, limit).await.map_err(failed)?;
    let configuration = manifest::configuration(&bytes, &Platform::of_this_machine())?;
    let (layers, contents) = (manifest.layers.len(), configuration.contents.len());
    if layers != contents {
        return Err(manifest::Error::Layers { manifest: layers, config: contents }.into());
    }
    transfer.layers(store, reference, manifest, configuration, names).await
}

struct Transfer<'a> {
    session: Session<'a>,
    options: &'a Options,
    report: &'a Report,
}

/// Tells the thread that unpacks when nobody waits for it any more.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Transfer<'_> {
    /// The manifest for this machine, and the digest of what the reference names.
    async fn manifest(&self, reference: &Reference) -> Result<(Digest, Manifest), Error> {
        let limit = self.options.limits.manifest_bytes;
        let name = reference.digest().map(Digest::as_str).or(reference.tag()).unwrap_or("latest");
        let mut bytes = self.small(&format!("manifests/{name}"), limit).await?;
        let pinned = match reference.digest() {
            Some(expected) => verified(&bytes, expected)?,
            None => Digest::of(&bytes),
        };
        for _ in 0..HOPS {
            match manifest::document(&bytes)? {
                Document::Manifest(manifest) => return Ok((pinned, manifest)),
                Document::Index(entries) => {
                    let chosen = manifest::choose(entries, &Platform::of_this_machine())?;
                    bytes = self.document("manifests", &chosen, limit).await?;
                }
            }
        }
        Err(manifest::Error::Nested.into())
    }

    async fn document(&self, kind: &str, descriptor: &Descriptor, limit: u64) -> Result<Bytes, Error> {
        let bytes = self.small(&format!("{kind}/{}", descriptor.digest), limit).await?;
        verified(&bytes, &descriptor.digest)?;
        Ok(bytes)
    }

    /// A small document, whole.
    async fn small(&self, path: &str, limit: u64) -> Result<Bytes, Error> {
        let accept = HeaderValue::try_from(ACCEPTED.join(", ")).map_err(|_| Error::Address)?;
        let size = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut attempt = 0;
        loop {
            let get = async {
                let response = self.session.get(path, Some(accept.clone()), 0).await?;
                let body = Limited::new(response.into_body(), size).collect();
                let body = tokio::time::timeout(SILENCE, body).await.map_err(|_| Error::Interrupted)?;
                body.map(http_body_util::Collected::to_bytes).map_err(|error| {
                    if error.is::<http_body_util::LengthLimitError>() {
                        Error::TooLarge { what: path.to_owned(), limit }
                    } else {
                        Error::Interrupted
                    }
                })
            };
            match get.await {
                Err(error) if error.is_transient() && attempt + 1 < ATTEMPTS => {
                    self.pause(&mut attempt).await
                }
                outcome => return outcome,
            }
        }
    }

    async fn pause(&self, attempt: &mut u32) {
        tokio::time::sleep(self.options.retry_pause * 2_u32.pow((*attempt).min(6))).await;
        *attempt += 1;
    }

    /// Fetches the layers, some at once, while a thread unpacks those that are there.
    async fn layers(
        &self,
        store: &Store,
        reference: &Reference,
        manifest: Manifest,
        configuration: Configuration,
        names: [Reference; 2],
    ) -> Result<Image, ImageError> {
        if store.has(&manifest.config.digest) {
            return store.name(&manifest.config.digest, &names);
        }
        let limits = self.options.limits;
        let sum = manifest.layers.iter().try_fold(0_u64, |sum, layer| sum.checked_add(layer.size));
        let largest = manifest.layers.iter().map(|layer| layer.size).max().unwrap_or(0);
        if largest > limits.layer_bytes || sum.is_none_or(|sum| sum > limits.unpacked_bytes) {
            let what = "its layers exceed the limit".to_owned();
            return Err(unpack::Error::TooLarge { what }.into());
        }
        let work = Arc::new(store.disk().work()?);
        let stop = Stop(Arc::default());
        let (sender, receiver) = tokio::sync::mpsc::channel(TRANSFERS);
        let unpacking = {
            let (store, report, flag) = (store.clone(), self.report.clone(), stop.0.clone());
            let arriving = Arriving { receiver, left: manifest.layers.len(), _work: work.clone() };
            let id = manifest.config.digest.clone();
            tokio::task::spawn_blocking(move || {
                let interrupted = || flag.load(Ordering::Relaxed);
                store.install(&id, &configuration, arriving, &names, &report, &interrupted)
            })
        };
        // Owned layers, or the compiler cannot see that the future may move between threads.
        let layers: Vec<_> = manifest.layers.iter().cloned().enumerate().collect();
        let fetching = futures_util::stream::iter(layers)
            .map(|(at, layer)| {
                let path = work.path.join(format!("layer-{at}"));
                async move { self.blob(&layer, path).await }
            })
            .buffered(TRANSFERS)
            .try_for_each(|fetched| async {
                // A closed channel: unpacking failed, and says why below.
                sender.send(fetched).await.map_err(|_| Error::Interrupted)
            });
        let fetched = fetching.await;
        drop(sender);
        let unpacked = unpacking.await.unwrap_or(Err(unpack::Error::Interrupted.into()));
        match (unpacked, fetched) {
            (Err(ImageError::Unpack(unpack::Error::Interrupted)), Err(error)) => {
                Err(in_registry(reference)(error))
            }
            (unpacked, _) => unpacked,
        }
    }

    /// Fetches a blob into a file, going on where a broken connection left off.
    async fn blob(&self, descriptor: &Descriptor, path: PathBuf) -> Result<(PathBuf, Digest), Error> {
        let mut partial = Partial::new(&path, descriptor).await?;
        let mut attempt = 0;
        loop {
            let before = partial.written;
            match self.fetch(descriptor, &mut partial).await {
                Ok(()) => break,
                Err(error) if error.is_transient() => {
                    if partial.written > before {
                        attempt = 0;
                    }
                    if attempt + 1 >= ATTEMPTS {
                        return Err(error);
                    }
                    tracing::debug!("{}: {error}; trying again", descriptor.digest);
                    self.pause(&mut attempt).await;
                }
                Err(error) => return Err(error),
            }
        }
        partial.finish(&descriptor.digest).await?;
        Ok((path, descriptor.digest.clone()))
    }

    async fn fetch(&self, descriptor: &Descriptor, partial: &mut Partial) -> Result<(), Error> {
        let Descriptor { digest, size, .. } = descriptor;
        if partial.written == *size && *size > 0 {
            return Ok(());
        }
        let response = self.session.get(&format!("blobs/{digest}"), None, partial.written).await?;
        let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
        let begins = format!("bytes {}-", partial.written);
        let continues = response.status() == StatusCode::PARTIAL_CONTENT
            && range.is_some_and(|range| range.starts_with(&begins));
        if partial.written > 0 && !continues {
            partial.restart(digest).await?;
        }
        let mut body = response.into_body();
        let mut told = partial.written;
        loop {
            let frame = tokio::time::timeout(SILENCE, body.frame()).await.map_err(|_| Error::Interrupted)?;
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(|_| Error::Interrupted)?.into_data() else { continue };
            if partial.written + data.len() as u64 > *size {
                return Err(Error::TooLarge { what: digest.to_string(), limit: *size });
            }
            partial.write(&data).await?;
            if partial.written - told >= TOLD_BYTES || partial.written == *size {
                told = partial.written;
                (self.report)(Progress::Downloading { blob: digest.clone(), bytes: told, total: *size });
            }
        }
        if partial.written == *size { Ok(()) } else { Err(Error::Interrupted) }
    }
}

/// A blob as far as it came.
struct Partial {
    path: PathBuf,
    file: tokio::io::BufWriter<tokio::fs::File>,
    hasher: Hasher,
    written: u64,
}

impl Partial {
    async fn new(path: &Path, descriptor: &Descriptor) -> Result<Self, Error> {
        let file = tokio::fs::File::create(path).await.map_err(in_file(path))?;
        let file = tokio::io::BufWriter::with_capacity(256 << 10, file);
        Ok(Self { path: path.to_owned(), file, hasher: Hasher::like(&descriptor.digest), written: 0 })
    }

    async fn write(&mut self, data: &[u8]) -> Result<(), Error> {
        self.file.write_all(data).await.map_err(in_file(&self.path))?;
        self.hasher.update(data);
        self.written += data.len() as u64;
        Ok(())
    }

    /// The registry sends it from the beginning.
    async fn restart(&mut self, digest: &Digest) -> Result<(), Error> {
        self.file.seek(std::io::SeekFrom::Start(0)).await.map_err(in_file(&self.path))?;
        self.file.get_mut().set_len(0).await.map_err(in_file(&self.path))?;
        self.hasher = Hasher::like(digest);
        self.written = 0;
        Ok(())
    }

    async fn finish(mut self, expected: &Digest) -> Result<(), Error> {
        self.file.flush().await.map_err(in_file(&self.path))?;
        let found = self.hasher.finish();
        if found == *expected { Ok(()) } else { Err(Error::Digest { expected: expected.clone(), found }) }
    }
}

/// The layers for whoever unpacks, as they come in.
struct Arriving {
    receiver: tokio::sync::mpsc::Receiver<(PathBuf, Digest)>,
    left: usize,
    /// Their files are in it; removed when both sides are done.
    _work: Arc<Work>,
}

impl Iterator for Arriving {
    type Item = Result<(File, Option<Digest>), ImageError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let Some((path, digest)) = self.receiver.blocking_recv() else {
            return Some(Err(unpack::Error::Interrupted.into()));
        };
        let file = File::open(&path).and_then(|file| std::fs::remove_file(&path).map(|()| file));
        Some(file.map(|file| (file, Some(digest))).map_err(at(&path)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Arriving {}

fn verified(bytes: &[u8], expected: &Digest) -> Result<Digest, Error> {
    let mut hasher = Hasher::like(expected);
    hasher.update(bytes);
    let found = hasher.finish();
    if found == *expected { Ok(found) } else { Err(Error::Digest { expected: expected.clone(), found }) }
}

fn in_file(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    |cause| Error::File { path: path.display().to_string(), cause }
}
