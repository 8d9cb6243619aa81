//! Images, found here or fetched: one pull for all who wait for the same.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentcube_runtime::Runtime;
use agentcube_runtime::image::{Accounts, HOST, Held, Image, Reference, Source, Stamp, Store};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;

/// A pull that takes longer is given up.
const LIMIT: Duration = Duration::from_secs(1800);
/// For so long a runtime with images of its own is not asked again what a name means.
const FRESH: Duration = Duration::from_secs(1);
/// Names that are remembered.
const MOST_KNOWN: usize = 1_024;

/// An image that stays on the disk as long as this lives.
pub(crate) struct Loaded {
    pub(crate) image: Image,
    pub(crate) accounts: Accounts,
    _held: Option<Held>,
}

type Pull = Shared<BoxFuture<'static, Result<Arc<Loaded>, String>>>;

#[derive(Clone)]
pub(crate) struct Images {
    store: Store,
    /// May have images of its own, instead of the store's.
    runtime: Arc<dyn Runtime>,
    known: Arc<Mutex<Known>>,
}

/// An image that was loaded, and when.
struct Loading {
    loaded: Arc<Loaded>,
    at: Instant,
    /// Which names the store had before; of a runtime's own image, none.
    stamp: Option<Stamp>,
}

#[derive(Default)]
struct Known {
    loaded: HashMap<String, Loading>,
    /// What there was when somebody looked last.
    listed: Option<Vec<String>>,
    pulls: HashMap<String, Pull>,
}

impl Images {
    pub(crate) fn new(store: Store, runtime: Arc<dyn Runtime>) -> Self {
        Self { store, runtime, known: Arc::default() }
    }

    /// The image of that name. Dropping this does not end a pull that others may wait for, too.
    pub(crate) async fn get(&self, name: &str) -> Result<Arc<Loaded>, String> {
        if let Some(loaded) = self.unchanged(name) {
            return Ok(loaded);
        }
        if let Some(source) = self.runtime.images() {
            return self.of_runtime(source, name).await;
        }
        let reference = Reference::parse(name).map_err(|error| error.to_string())?;
        if let Some(loaded) = self.present(name, reference.clone()).await? {
            return Ok(loaded);
        }
        self.pull(name, reference).await
    }

    /// What was loaded under that name, if that cannot have changed. Blocks no longer than the kernel needs to look.
    fn unchanged(&self, name: &str) -> Option<Arc<Loaded>> {
        let stamp = self.runtime.images().is_none().then(|| self.store.stamp());
        let known = self.known.lock();
        let Loading { loaded, at, stamp: then } = known.loaded.get(name)?;
        let same = if stamp.is_some() { stamp == *then } else { at.elapsed() < FRESH };
        same.then(|| loaded.clone())
    }

    /// The image of that name if it is here; it is not fetched.
    pub(crate) async fn held(&self, name: &str) -> Option<Arc<Loaded>> {
        if let Some(source) = self.runtime.images() {
            return self.of_runtime(source, name).await.ok();
        }
        let reference = Reference::parse(name).ok()?;
        self.present(name, reference).await.ok()?
    }

    async fn of_runtime(&self, source: &dyn Source, name: &str) -> Result<Arc<Loaded>, String> {
        let (image, accounts) = source.get(name).await.map_err(|error| error.to_string())?;
        let loaded = Arc::new(Loaded { image, accounts, _held: None });
        self.known.lock().remember(name, loaded.clone(), None);
        Ok(loaded)
    }

    /// The names by which images can be had at once. What others brought here since is seen by looking `anew`.
    pub(crate) async fn names(&self, anew: bool) -> Vec<String> {
        let listed = self.known.lock().listed.clone().filter(|_| !anew);
        let listed = match listed {
            Some(listed) => listed,
            None => self.list().await,
        };
        let mut known = self.known.lock();
        let names: BTreeSet<&String> = listed.iter().chain(known.loaded.keys()).collect();
        let names = names.into_iter().take(MOST_KNOWN).cloned().collect();
        known.listed = Some(listed);
        names
    }

    async fn list(&self) -> Vec<String> {
        if let Some(source) = self.runtime.images() {
            let names = source.names().await.unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot list the images");
                Vec::new()
            });
            return names.into_iter().take(MOST_KNOWN).collect();
        }
        let store = self.store.clone();
        let listed = tokio::task::spawn_blocking(move || store.list()).await;
        let mut names = vec![HOST.to_owned()];
        match listed {
            Ok(Ok(images)) => names.extend(images.into_iter().flat_map(|image| image.names)),
            Ok(Err(error)) => tracing::warn!(%error, "cannot list the images"),
            Err(error) => tracing::warn!(%error, "cannot list the images"),
        }
        names.truncate(MOST_KNOWN);
        names
    }

    async fn present(&self, name: &str, reference: Reference) -> Result<Option<Arc<Loaded>>, String> {
        let store = self.store.clone();
        let stamp = self.store.stamp();
        let old = self.known.lock().loaded.get(name).map(|known| known.loaded.clone());
        let found = tokio::task::spawn_blocking(move || -> Result<_, agentcube_runtime::image::Error> {
            let Some(image) = store.resolve(&reference)? else { return Ok(None) };
            match old.filter(|old| old.image.id == image.id && old.image.root == image.root) {
                Some(same) => Ok(Some(same)),
                None => load(&store, image).map(Some),
            }
        });
        let found = found.await.map_err(|error| error.to_string())?;
        let found = found.map_err(|error| error.to_string())?;
        if let Some(loaded) = &found {
            self.known.lock().remember(name, loaded.clone(), Some(stamp));
        }
        Ok(found)
    }

    async fn pull(&self, name: &str, reference: Reference) -> Result<Arc<Loaded>, String> {
        let pull = {
            let mut known = self.known.lock();
            let begin = || begin(self.clone(), name.to_owned(), reference);
            known.pulls.entry(name.to_owned()).or_insert_with(begin).clone()
        };
        pull.await
    }
}

impl Known {
    fn remember(&mut self, name: &str, loaded: Arc<Loaded>, stamp: Option<Stamp>) {
        if self.loaded.len() >= MOST_KNOWN && !self.loaded.contains_key(name) {
            self.loaded.clear();
        }
        self.loaded.insert(name.to_owned(), Loading { loaded, at: Instant::now(), stamp });
    }
}

fn load(store: &Store, image: Image) -> Result<Arc<Loaded>, agentcube_runtime::image::Error> {
    let held = store.hold(&image)?;
    let accounts = Accounts::read(&image.root);
    Ok(Arc::new(Loaded { image, accounts, _held: Some(held) }))
}

fn begin(images: Images, name: String, reference: Reference) -> Pull {
    let pulling = tokio::spawn(async move {
        let deadline = Instant::now() + LIMIT;
        let pulled = images.store.pull(&reference, None, Arc::new(|_| {}), deadline).await;
        let loaded = match pulled.map_err(|error| error.to_string()) {
            Ok(image) => {
                let store = images.store.clone();
                let loading = tokio::task::spawn_blocking(move || load(&store, image));
                let loaded = loading.await.map_err(|error| error.to_string());
                loaded.and_then(|loaded| loaded.map_err(|error| error.to_string()))
            }
            Err(error) => Err(error),
        };
        let mut known = images.known.lock();
        known.pulls.remove(&name);
        if let Ok(loaded) = &loaded {
            // What it is called from now on is asked once more.
            known.remember(&name, loaded.clone(), None);
        }
        loaded
    });
    pulling.map(|ended| ended.unwrap_or_else(|error| Err(error.to_string()))).boxed().shared()
}
