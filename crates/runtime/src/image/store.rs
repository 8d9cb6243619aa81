//! Images on disk: `DATA/images/ALGORITHM/HEX/{root,image.json}`, `names.json`, and `work/` for what is being made.
//!
//! Several processes may use one store. Changes are made under a lock on the file `lock`; whoever reads sees a whole
//! image or none, because directories and `names.json` appear by being renamed. A directory of `work/` is locked by the
//! process that fills it, so one that nobody holds is a leftover of a crash.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::archive::{self, Layout};
use super::decode::{Decoder, Limited};
use super::digest::Digest;
use super::manifest::{Config, Configuration, Platform};
use super::reference::Reference;
use super::registry::{self, Registry};
use super::tree::remove_tree;
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

/// A handle; cheap to clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    directory: PathBuf,
    options: Options,
    /// One pull at a time for each name; the others then find that there is nothing to do.
    pulls: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    registry: std::sync::OnceLock<Registry>,
}

/// `image.json`.
#[derive(Serialize, Deserialize)]
struct Record {
    config: Config,
    size: u64,
}

/// `names.json`.
#[derive(Serialize, Deserialize, Default)]
struct Names {
    names: BTreeMap<String, Digest>,
}

impl Store {
    pub fn open(data_dir: &Path) -> Result<Self, Error> {
        Self::open_with(data_dir, Options::default())
    }

    /// Opens or makes the store, and removes what crashed processes left.
    pub fn open_with(data_dir: &Path, options: Options) -> Result<Self, Error> {
        let directory = data_dir.join("images");
        for path in [&directory, &directory.join("work")] {
            // Images may hold set-user-id programs; nobody else gets near them.
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.map_err(at(path))?;
        }
        let pulls = Mutex::default();
        let inner = Inner { directory, options, pulls, registry: std::sync::OnceLock::new() };
        let store = Self { inner: Arc::new(inner) };
        store.sweep()?;
        Ok(store)
    }

    pub(super) fn options(&self) -> &Options {
        &self.inner.options
    }

    /// The image of that name, if it is here.
    pub fn resolve(&self, reference: &Reference) -> Result<Option<Image>, Error> {
        if is_host(reference) {
            return Ok(Some(self.host()));
        }
        let names = self.names()?;
        match self.keys(reference).iter().find_map(|key| names.names.get(key)) {
            Some(id) => self.load(id, &names),
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
        let names = self.names()?;
        let mut images = vec![self.host()];
        for algorithm in ["sha256", "sha512"] {
            let folder = self.inner.directory.join(algorithm);
            for entry in entries(&folder).map_err(at(&folder))? {
                let Ok(id) = Digest::parse(&format!("{algorithm}:{}", entry.to_string_lossy())) else {
                    continue;
                };
                images.extend(self.load(&id, &names)?);
            }
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
        let work = self.work()?;
        let path = work.path.join("archive.tar");
        let mut file = private(&path).map_err(at(&path))?;
        let read = |source: io::Error| in_archive(shown)(source.into());
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
            let work = self.work()?;
            let image = work.path.join("image");
            self.unpack(&image, configuration, layers, report, interrupted)?;
            let _lock = self.lock()?;
            let path = self.path(id);
            let folder = path.parent().unwrap_or(&self.inner.directory);
            std::fs::create_dir_all(folder).map_err(at(folder))?;
            match std::fs::rename(&image, &path) {
                Ok(()) => sync_directory(folder)?,
                // Another process was faster; both have the same content.
                Err(error) if path.exists() => tracing::debug!("{id} was unpacked twice: {error}"),
                Err(source) => return Err(at(&path)(source)),
            }
        }
        self.name(id, names)
    }

    pub(super) fn has(&self, id: &Digest) -> bool {
        self.path(id).exists()
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
        let _lock = self.lock()?;
        let mut names = self.names()?;
        let missing = given.iter().filter(|name| names.names.get(&name.key()) != Some(id)).count();
        if missing > 0 {
            names.names.extend(given.iter().map(|name| (name.key(), id.clone())));
            self.write_names(&names)?;
        }
        self.load(id, &names)?.ok_or_else(|| Error::NotFound(id.to_string()))
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
        let lock = self.lock()?;
        let mut names = self.names()?;
        let removed = self.names_to_remove(text, &id, &names);
        names.names.retain(|name, _| !removed.contains(name));
        if names.names.values().any(|other| *other == id) {
            self.write_names(&names)?;
            return Ok(Removed { names: removed, image: None });
        }
        let path = self.path(&id);
        let directory = File::open(&path).map_err(at(&path))?;
        let alone = rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok();
        if !alone || in_use(&image) {
            return Err(Error::InUse(text.to_owned()));
        }
        self.write_names(&names)?;
        let work = self.work_locked()?;
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

    fn path(&self, id: &Digest) -> PathBuf {
        self.inner.directory.join(id.algorithm()).join(id.hex())
    }

    fn load(&self, id: &Digest, names: &Names) -> Result<Option<Image>, Error> {
        let directory = self.path(id);
        let path = directory.join("image.json");
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(at(&path)(source)),
        };
        let record: Record = serde_json::from_slice(&bytes)
            .map_err(|source| Error::Record { path: path.display().to_string(), source })?;
        Ok(Some(Image {
            id: id.to_string(),
            names: names
                .names
                .iter()
                .filter(|(_, other)| *other == id)
                .map(|(name, _)| name.clone())
                .collect(),
            root: Root::Directory(directory.join("root")),
            config: record.config,
            size: record.size,
        }))
    }

    fn names(&self) -> Result<Names, Error> {
        let path = self.inner.directory.join("names.json");
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|source| Error::Record { path: path.display().to_string(), source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Names::default()),
            Err(source) => Err(at(&path)(source)),
        }
    }

    /// Under the lock only.
    fn write_names(&self, names: &Names) -> Result<(), Error> {
        let temporary = self.inner.directory.join("names.json.new");
        write_whole(&temporary, names)?;
        let path = self.inner.directory.join("names.json");
        std::fs::rename(&temporary, &path).map_err(at(&path))?;
        sync_directory(&self.inner.directory)
    }

    /// Waits for other processes and threads; never held while anything large is read or written.
    fn lock(&self) -> Result<File, Error> {
        let path = self.inner.directory.join("lock");
        let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = opened.map_err(at(&path))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(|error| at(&path)(error.into()))?;
        Ok(file)
    }

    /// A directory for something that is being made; removed when dropped.
    pub(super) fn work(&self) -> Result<Work, Error> {
        let _lock = self.lock()?;
        self.work_locked()
    }

    /// Under the lock only: a sweep must not see the directory before it is locked.
    fn work_locked(&self) -> Result<Work, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = self.inner.directory.join("work").join(name);
        // One of a process that had this id and crashed was not swept by those who could not.
        remove_tree(&path).map_err(at(&path))?;
        std::fs::create_dir(&path).map_err(at(&path))?;
        let lock = File::open(&path).map_err(at(&path))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| at(&path)(error.into()))?;
        Ok(Work { path, _lock: lock })
    }

    fn sweep(&self) -> Result<(), Error> {
        let _lock = self.lock()?;
        let folder = self.inner.directory.join("work");
        for entry in entries(&folder).map_err(at(&folder))? {
            let path = folder.join(entry);
            let directory = match File::open(&path) {
                Ok(directory) => directory,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(at(&path)(source)),
            };
            if rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok() {
                remove_tree(&path).map_err(at(&path))?;
            }
        }
        Ok(())
    }
}

/// A locked directory under `work/`.
pub(super) struct Work {
    pub(super) path: PathBuf,
    _lock: File,
}

impl Drop for Work {
    fn drop(&mut self) {
        // What cannot be removed now is swept at the next start.
        if let Err(error) = remove_tree(&self.path) {
            tracing::warn!("{}: cannot be removed: {error}", self.path.display());
        }
    }
}

fn is_host(reference: &Reference) -> bool {
    reference.host().is_none() && reference.path() == HOST
}

fn entries(folder: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    match std::fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.file_name())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

pub(super) fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

fn write_whole(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let bytes = serde_json::to_vec(value)
        .map_err(|source| Error::Record { path: path.display().to_string(), source })?;
    let write = || {
        let mut file = private(path)?;
        file.write_all(&bytes)?;
        file.sync_all()
    };
    write().map_err(at(path))
}

fn sync_directory(path: &Path) -> Result<(), Error> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(at(path))
}

pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    |source| Error::Store { path: path.display().to_string(), source }
}

fn in_archive(shown: &str) -> impl Fn(archive::Error) -> Error + Copy + '_ {
    |source| Error::Archive { path: shown.to_owned(), source }
}

pub(super) fn in_registry(reference: &Reference) -> impl Fn(registry::Error) -> Error + Copy + '_ {
    |source| Error::Registry { reference: reference.to_string(), source }
}
