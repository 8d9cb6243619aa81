//! What can be asked of the images of a node: find, import, pull, hold, remove.
//!
//! Several processes may use one store at once. Whoever reads sees a whole image or none, because directories and
//! `names.json` appear by being renamed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use super::archive::{self, Layout};
use super::decode::{Decoder, Limited};
use super::digest::Digest;
use super::disk::{Disk, Names, Record, at, private, write_whole};
use super::manifest::{Config, Configuration, Platform};
use super::reference::Reference;
use super::registry::{self, Registry};
use super::unpack::{Limits, Unpacker};
use super::{Credentials, Error, HOST, Image, Progress, Report};
use crate::spec::Root;

/// How a store behaves; the default knows no registry.
#[derive(Clone)]
pub struct Options {
    /// The registry of names that say none, with its port if need be.
    pub default_registry: Option<String>,
    /// Registries besides those on loopback that may be spoken to without encryption.
    pub insecure_registries: Vec<String>,
    /// PEM; trusted for registries besides what the machine trusts.
    pub registry_ca: Option<Vec<u8>>,
    pub limits: Limits,
    /// Before the first retry of a transfer; doubles with each.
    pub retry_pause: Duration,
    /// Directories that containers of the image `host` see besides the machine's programs.
    pub host_also: Vec<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            default_registry: None,
            insecure_registries: Vec::new(),
            registry_ca: None,
            limits: Limits::default(),
            retry_pause: Duration::from_millis(250),
            host_also: Vec::new(),
        }
    }
}

/// What [`Store::remove`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    pub names: Vec<String>,
    /// The id of the image, if that was its last name.
    pub image: Option<String>,
}

/// While it lives, no process removes the image.
#[derive(Debug)]
pub struct Held {
    _directory: Option<File>,
}

/// Which names there were: while it is the same, so is the image of every name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamp {
    file: u64,
    changed: (i64, i64),
}

/// A handle; cheap to clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    disk: Disk,
    options: Options,
    /// One pull at a time for each name; the others then find that there is nothing to do.
    pulls: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    registry: OnceLock<Registry>,
}

impl Store {
    pub fn open(data_dir: &Path) -> Result<Self, Error> {
        Self::open_with(data_dir, Options::default())
    }

    /// Opens or makes the store, and removes what crashed processes left.
    pub fn open_with(data_dir: &Path, options: Options) -> Result<Self, Error> {
        let disk = Disk::open(data_dir)?;
        let inner = Inner { disk, options, pulls: Mutex::default(), registry: OnceLock::new() };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub(super) fn disk(&self) -> &Disk {
        &self.inner.disk
    }

    pub(super) fn options(&self) -> &Options {
        &self.inner.options
    }

    /// One question to the kernel, to be asked before a name is resolved.
    pub fn stamp(&self) -> Stamp {
        let of = |status: std::fs::Metadata| Stamp {
            file: status.ino(),
            changed: (status.ctime(), status.ctime_nsec()),
        };
        // Without the file, nothing was ever named.
        std::fs::metadata(self.disk().names_file()).map(of).unwrap_or_default()
    }

    /// The image of that name, if it is here.
    pub fn resolve(&self, reference: &Reference) -> Result<Option<Image>, Error> {
        if is_host(reference) {
            return Ok(Some(self.host()));
        }
        let names = self.disk().names()?;
        match self.keys(reference).iter().find_map(|key| names.names.get(key)) {
            Some(id) => self.disk().load(id, &names),
            None => Ok(None),
        }
    }

    /// The image of a name, an id, or the beginning of an id.
    pub fn find(&self, text: &str) -> Result<Image, Error> {
        if let Ok(reference) = Reference::parse(text)
            && let Some(image) = self.resolve(&reference)?
        {
            return Ok(image);
        }
        let begins = |id: &str| {
            id.starts_with(text) || id.split_once(':').is_some_and(|(_, hex)| hex.starts_with(text))
        };
        let mut found = self.list()?.into_iter().filter(|image| !text.is_empty() && begins(&image.id));
        match (found.next(), found.next()) {
            (Some(image), None) => Ok(image),
            (Some(_), Some(_)) => Err(Error::Ambiguous(text.to_owned())),
            (None, _) => Err(Error::NotFound(text.to_owned())),
        }
    }

    /// All images, the built-in one first.
    pub fn list(&self) -> Result<Vec<Image>, Error> {
        let names = self.disk().names()?;
        let mut images = vec![self.host()];
        for id in self.disk().ids()? {
            images.extend(self.disk().load(&id, &names)?);
        }
        Ok(images)
    }

    /// Takes in all images of an OCI layout (a directory or a tar) or a docker archive. Blocks.
    /// `name` is given to the image, which must then be the only one, instead of the names in the archive.
    pub fn import(
        &self,
        path: &Path,
        name: Option<&Reference>,
        report: &Report,
    ) -> Result<Vec<Image>, Error> {
        if path.is_dir() {
            return self.import_layout(&Layout::directory(path), &path.display().to_string(), name, report);
        }
        let shown = path.display().to_string();
        let file = File::open(path).map_err(at(path))?;
        // A plain tar is read where it is; anything else is spooled first, to be able to seek.
        if !file.metadata().map_err(at(path))?.is_file() {
            return self.import_reader(file, &shown, name, report);
        }
        if Decoder::new(&file).map_err(at(path))?.is_plain() {
            let layout = Layout::archive(file).map_err(in_archive(&shown))?;
            return self.import_layout(&layout, &shown, name, report);
        }
        let file = File::open(path).map_err(at(path))?;
        self.import_reader(file, &shown, name, report)
    }

    /// As [`Store::import`], from a stream; `shown` is what errors call it.
    pub fn import_reader(
        &self,
        input: impl Read,
        shown: &str,
        name: Option<&Reference>,
        report: &Report,
    ) -> Result<Vec<Image>, Error> {
        let work = self.disk().work()?;
        let path = work.path.join("archive.tar");
        let mut file = private(&path).map_err(at(&path))?;
        let read = |cause: io::Error| in_archive(shown)(cause.into());
        let mut left = self.inner.options.limits.unpacked_bytes;
        let mut input = Limited::new(Decoder::new(input).map_err(read)?, &mut left);
        io::copy(&mut input, &mut file).map_err(read)?;
        let file = File::open(&path).map_err(at(&path))?;
        let layout = Layout::archive(file).map_err(in_archive(shown))?;
        self.import_layout(&layout, shown, name, report)
    }

    fn import_layout(
        &self,
        layout: &Layout,
        shown: &str,
        name: Option<&Reference>,
        report: &Report,
    ) -> Result<Vec<Image>, Error> {
        let limits = &self.inner.options.limits;
        let found = layout.images(limits, &Platform::of_this_machine()).map_err(in_archive(shown))?;
        if name.is_some() && found.len() != 1 {
            return Err(in_archive(shown)(archive::Error::TooMany(1)));
        }
        let mut images = Vec::new();
        for image in found {
            let mut names: Vec<_> = name.map_or(image.names, |name| vec![name.clone()]);
            // Tools write the host of official images into archives; people do not write it into Pods.
            names.extend(names.clone().iter().filter_map(Reference::short));
            if names.iter().any(is_host) {
                return Err(Error::BuiltIn);
            }
            let layers = image.layers.iter().map(|layer| {
                let input = layout.open(&layer.name).map_err(in_archive(shown))?;
                Ok((input, layer.blob.clone()))
            });
            images.push(self.install(&image.id, &image.configuration, layers, &names, report, &|| false)?);
        }
        Ok(images)
    }

    /// Gets an image from its registry, or finds that what is here is what the registry has.
    /// Gives up at `deadline`; dropping the future stops the work too.
    pub async fn pull(
        &self,
        reference: &Reference,
        credentials: Option<Credentials>,
        report: Report,
        deadline: Instant,
    ) -> Result<Image, Error> {
        if is_host(reference) {
            return Ok(self.host());
        }
        let full = match &self.inner.options.default_registry {
            Some(host) => reference.with_default_host(host),
            None => reference.clone(),
        };
        let Some(host) = full.host() else {
            return self.resolve(reference)?.ok_or_else(|| Error::NoRegistry(reference.clone()));
        };
        let registry = self.registry().map_err(in_registry(reference))?;
        let turn = self.turn(&full.key());
        let work = async {
            let _mine = turn.lock().await;
            registry::pull(self, registry, host, &full, credentials.as_ref(), &report).await
        };
        let outcome = tokio::time::timeout_at(deadline.into(), work).await;
        drop(turn);
        self.lock_pulls().retain(|_, turn| Arc::strong_count(turn) > 1);
        outcome.unwrap_or_else(|_| Err(in_registry(reference)(registry::Error::Deadline)))
    }

    fn registry(&self) -> Result<&Registry, registry::Error> {
        if let Some(registry) = self.inner.registry.get() {
            return Ok(registry);
        }
        let registry = Registry::new(&self.inner.options)?;
        Ok(self.inner.registry.get_or_init(|| registry))
    }

    fn turn(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.lock_pulls().entry(key.to_owned()).or_default().clone()
    }

    fn lock_pulls(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<tokio::sync::Mutex<()>>>> {
        self.inner.pulls.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Unpacks an image unless it is here, and gives it the names. Blocks.
    pub(super) fn install<R: Read>(
        &self,
        id: &Digest,
        configuration: &Configuration,
        layers: impl ExactSizeIterator<Item = Result<(R, Option<Digest>), Error>>,
        names: &[Reference],
        report: &Report,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Image, Error> {
        if !self.has(id) {
            let work = self.disk().work()?;
            let image = work.path.join("image");
            self.unpack(&image, configuration, layers, report, interrupted)?;
            let _lock = self.disk().lock()?;
            self.disk().place(&image, id)?;
        }
        self.name(id, names)
    }

    pub(super) fn has(&self, id: &Digest) -> bool {
        self.disk().path(id).exists()
    }

    fn unpack<R: Read>(
        &self,
        image: &Path,
        configuration: &Configuration,
        layers: impl ExactSizeIterator<Item = Result<(R, Option<Digest>), Error>>,
        report: &Report,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let limits = self.inner.options.limits;
        let of = layers.len();
        if of > limits.layers {
            let what = format!("it has {of} layers, more than {}", limits.layers);
            return Err(super::unpack::Error::TooLarge { what }.into());
        }
        let root = image.join("root");
        std::fs::create_dir_all(&root).map_err(at(&root))?;
        std::fs::set_permissions(&root, PermissionsExt::from_mode(0o755)).map_err(at(&root))?;
        let mut unpacker = Unpacker::new(&root, limits, interrupted)?;
        for (layer, (content, input)) in configuration.contents.iter().zip(layers).enumerate() {
            report(Progress::Unpacking { layer: layer + 1, of });
            let (input, blob) = input?;
            unpacker.layer(input, blob.as_ref(), content)?;
        }
        let record = Record { config: configuration.config.clone(), size: unpacker.bytes };
        let path = image.join("image.json");
        write_whole(&path, &record)?;
        unpacker.finish()?;
        let skipped = unpacker.skipped;
        if skipped.owners > 0 {
            tracing::info!(
                "{} files belong to the user that runs this, not to their owners: not root",
                skipped.owners
            );
        }
        if skipped.devices > 0 {
            tracing::info!("{} device nodes of the image were left out", skipped.devices);
        }
        Ok(())
    }

    /// Gives names to an image that is here; they leave the images that had them.
    pub(super) fn name(&self, id: &Digest, given: &[Reference]) -> Result<Image, Error> {
        let _lock = self.disk().lock()?;
        let mut names = self.disk().names()?;
        let missing = given.iter().filter(|name| names.names.get(&name.key()) != Some(id)).count();
        if missing > 0 {
            names.names.extend(given.iter().map(|name| (name.key(), id.clone())));
            self.disk().write_names(&names)?;
        }
        self.disk().load(id, &names)?.ok_or_else(|| Error::NotFound(id.to_string()))
    }

    /// Keeps an image from being removed, by this process or another.
    pub fn hold(&self, image: &Image) -> Result<Held, Error> {
        let Root::Directory(root) = &image.root else { return Ok(Held { _directory: None }) };
        let path = root.parent().unwrap_or(root);
        let gone = || Error::NotFound(image.id.clone());
        let directory = File::open(path).map_err(|_| gone())?;
        rustix::fs::flock(&directory, FlockOperation::LockShared).map_err(|error| at(path)(error.into()))?;
        let same = |now: std::fs::Metadata| directory.metadata().is_ok_and(|then| then.ino() == now.ino());
        // It may have been removed while this waited for the lock.
        if !std::fs::metadata(path).is_ok_and(same) {
            return Err(gone());
        }
        Ok(Held { _directory: Some(directory) })
    }

    /// Takes a name from an image, and removes the image with its last tag. An id removes all names.
    /// An image that `in_use` says yes for, or that any process holds, stays with its last name.
    pub fn remove(&self, text: &str, in_use: &dyn Fn(&Image) -> bool) -> Result<Removed, Error> {
        let image = self.find(text)?;
        if image.id == HOST {
            return Err(Error::BuiltIn);
        }
        let id = Digest::parse(&image.id).map_err(|_| Error::NotFound(image.id.clone()))?;
        let lock = self.disk().lock()?;
        let mut names = self.disk().names()?;
        let removed = self.names_to_remove(text, &id, &names);
        names.names.retain(|name, _| !removed.contains(name));
        if names.names.values().any(|other| *other == id) {
            self.disk().write_names(&names)?;
            return Ok(Removed { names: removed, image: None });
        }
        let path = self.disk().path(&id);
        let directory = File::open(&path).map_err(at(&path))?;
        let alone = rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok();
        if !alone || in_use(&image) {
            return Err(Error::InUse(text.to_owned()));
        }
        self.disk().write_names(&names)?;
        let work = self.disk().work_locked()?;
        let grave = work.path.join("image");
        std::fs::rename(&path, &grave).map_err(at(&path))?;
        // Deleting the files takes time, and nobody need wait for it.
        drop(lock);
        Ok(Removed { names: removed, image: Some(image.id) })
    }

    fn names_to_remove(&self, text: &str, id: &Digest, names: &Names) -> Vec<String> {
        let all = || names.names.iter().filter(|(_, other)| *other == id).map(|(name, _)| name.clone());
        let named = Reference::parse(text).ok().and_then(|reference| {
            self.keys(&reference).into_iter().find(|key| names.names.get(key) == Some(id))
        });
        let Some(named) = named else { return all().collect() };
        let repository =
            |name: &str| Reference::parse(name).map(|name| (name.repository(), name.tag().is_some()));
        let of_named = repository(&named);
        let other_tags = all().any(|name| name != named && repository(&name) == of_named);
        // With the last tag go the digests that came with it.
        let goes = |name: &String| {
            *name == named
                || !other_tags
                    && matches!((&of_named, repository(name)), (Ok((a, true)), Ok((b, false))) if *a == b)
        };
        all().filter(goes).collect()
    }

    /// What a name may be filed under, most literal first.
    fn keys(&self, reference: &Reference) -> Vec<String> {
        let mut keys = vec![reference.key()];
        if let Some(host) = &self.inner.options.default_registry {
            keys.push(reference.with_default_host(host).key());
            if reference.host() == Some(host) {
                keys.extend(reference.short().map(|short| short.key()));
                keys.push(reference.without_host().key());
            }
        }
        keys
    }

    fn host(&self) -> Image {
        Image {
            id: HOST.to_owned(),
            names: vec![HOST.to_owned()],
            root: Root::Host { also: self.inner.options.host_also.clone() },
            config: Config::default(),
            size: 0,
        }
    }
}

fn is_host(reference: &Reference) -> bool {
    reference.host().is_none() && reference.path() == HOST
}

fn in_archive(shown: &str) -> impl Fn(archive::Error) -> Error + Copy + '_ {
    |cause| Error::Archive { path: shown.to_owned(), cause }
}

pub(super) fn in_registry(reference: &Reference) -> impl Fn(registry::Error) -> Error + Copy + '_ {
    |cause| Error::Registry { reference: reference.to_string(), cause }
}
