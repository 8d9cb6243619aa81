//! The volumes of Pods: directories of this node that are bound into containers, filled from the cluster where they
//! must be, and removed with their Pod. Never writes outside of its own directory, and never lets a Pod reach a path
//! of the host that the node's options do not allow.
//!
//! Secrets are on the disk like everything else, in a directory that only this user can enter: the API server's
//! store, which has them anyway, is beside it. All calls block on the disk; make them where that is allowed.

mod beneath;
mod mounts;
mod ownership;
mod payload;
mod places;
mod projection;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{self, Pod};
use parking_lot::Mutex;

pub use mounts::Error as MountError;

use super::environment::field;
use super::lookup::Lookup;

/// What volumes may use of this machine.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory of this module, `volumes` in the data directory.
    pub directory: PathBuf,
    /// Directories of the host in which hostPath volumes, and volumes that an administrator made, may lie. None
    /// unless the user said so.
    pub host_paths: Vec<PathBuf>,
}

impl Options {
    /// Where claims have their directories.
    pub fn claims(&self) -> PathBuf {
        self.directory.join("claims")
    }

    fn pods(&self) -> PathBuf {
        self.directory.join("pods")
    }
}

/// A volume that could not be set up, in the words of the Event FailedMount. It may work later.
#[derive(Debug, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume {volume:?} : {problem}")]
pub struct Error {
    pub volume: String,
    pub problem: Problem,
}

/// What is in the way of a volume.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("configmap {0:?} not found")]
    ConfigMap(String),
    #[error("secret {0:?} not found")]
    Secret(String),
    #[error("configmap references non-existent config key: {0}")]
    ConfigMapKey(String),
    #[error("references non-existent secret key: {0}")]
    SecretKey(String),
    #[error(transparent)]
    Field(#[from] field::Error),
    #[error("invalid path {path:?}: {reason}")]
    Path { path: String, reason: &'static str },
    #[error("the files take more than {} bytes", payload::MOST_BYTES)]
    TooLarge,
    #[error("{0} are not supported by this node")]
    Unsupported(&'static str),
    #[error("{0} is not below a directory of the host that Pods may use; start the node with it allowed")]
    NotAllowed(PathBuf),
    #[error("hostPath type check failed: {path} is not {wanted}")]
    WrongType { path: PathBuf, wanted: &'static str },
    #[error("persistentvolumeclaim {0:?} not found")]
    Claim(String),
    #[error("persistentvolumeclaim {0:?} is not bound")]
    Unbound(String),
    #[error("persistentvolume {0:?} not found")]
    Volume(String),
    #[error("persistentvolume {volume:?} is bound to another claim than {claim:?}")]
    OtherClaim { volume: String, claim: String },
    #[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
    NotOwner { claim: String, pod: String },
    #[error("{0:?} cannot be the name of a directory")]
    Name(String),
    #[error("{path}: {source}")]
    Disk { path: PathBuf, source: io::Error },
}

/// Where a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// A file or directory of this machine, without links in its path.
    Path(PathBuf),
    /// Memory that the runtime makes with the container.
    Memory { bytes: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Volume {
    place: Place,
    read_only: bool,
}

/// The volumes of a Pod, ready to be mounted; see [`Prepared::mounts`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prepared {
    volumes: BTreeMap<String, Volume>,
}

/// The volumes of all Pods of this node.
pub struct Volumes {
    options: Options,
    lookup: Arc<dyn Lookup>,
    /// The Pods whose volumes are there, by uid.
    pods: Mutex<HashMap<String, Entry>>,
}

/// The Pod as its volumes show it; none once they are removed. Held while they are written or removed, so that two
/// writers never meet, and one that comes late does not bring back what was removed.
type Entry = Arc<Mutex<Option<Arc<Pod>>>>;

impl Volumes {
    pub fn new(options: Options, lookup: Arc<dyn Lookup>) -> io::Result<Self> {
        for directory in [options.directory.clone(), options.pods(), options.claims()] {
            private_directory(&directory)?;
        }
        // Without links, so that everything below has none either.
        let options = Options { directory: options.directory.canonicalize()?, ..options };
        Ok(Self { options, lookup, pods: Mutex::default() })
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Makes and fills the volumes of a Pod. Safe to repeat: what is there is kept, what changed is written.
    pub fn prepare(&self, pod: &Arc<Pod>) -> Result<Prepared, Error> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let entry = self.pods.lock().entry(uid).or_default().clone();
        let mut current = entry.lock();
        *current = Some(pod.clone());
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        let mut prepared = Prepared::default();
        for volume in volumes {
            let ready = places::prepare(&self.options, self.lookup.as_ref(), pod, volume)
                .map_err(|problem| Error { volume: volume.name.clone(), problem })?;
            prepared.volumes.insert(volume.name.clone(), ready);
        }
        Ok(prepared)
    }

    /// Writes what has changed in the volumes of a Pod that has some: its labels, or what it refers to.
    pub fn refresh(&self, pod: &Arc<Pod>) -> Result<(), Error> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let Some(entry) = self.pods.lock().get(uid).cloned() else { return Ok(()) };
        self.rewrite(&entry, |current| *current = pod.clone())
    }

    /// A ConfigMap or Secret was written: so are the volumes that show it. One that was removed stays as it was.
    pub fn changed(&self, what: &Reference) -> Vec<Error> {
        let shows = |entry: &Entry| entry.lock().as_ref().is_some_and(|pod| references(pod).contains(what));
        let entries: Vec<Entry> = self.pods.lock().values().cloned().collect();
        let concerned = entries.iter().filter(|entry| shows(entry));
        concerned.filter_map(|entry| self.rewrite(entry, |_| ()).err()).collect()
    }

    fn rewrite(&self, entry: &Entry, update: impl FnOnce(&mut Arc<Pod>)) -> Result<(), Error> {
        let mut current = entry.lock();
        let Some(pod) = current.as_mut() else { return Ok(()) };
        update(pod);
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            places::refill(&self.options, self.lookup.as_ref(), pod, volume)
                .map_err(|problem| Error { volume: volume.name.clone(), problem })?;
        }
        Ok(())
    }

    /// Removes the volumes of a Pod that has ended; those of claims stay. Call it when nothing of the Pod runs, or is
    /// being prepared.
    pub fn remove(&self, uid: &str) -> io::Result<()> {
        let entry = self.pods.lock().remove(uid).unwrap_or_default();
        let mut current = entry.lock();
        *current = None;
        match places::file_name(uid) {
            Ok(uid) => remove_directory(&self.options.pods().join(uid)),
            Err(_) => Ok(()),
        }
    }

    /// Removes the volumes of Pods that are no more. For the start, before any Pod is prepared.
    pub fn sweep(&self, living: &BTreeSet<String>) -> io::Result<()> {
        for entry in fs::read_dir(self.options.pods())? {
            let entry = entry?;
            if !entry.file_name().to_str().is_some_and(|uid| living.contains(uid)) {
                remove_directory(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// A ConfigMap or Secret that a Pod's volumes show.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reference {
    ConfigMap { namespace: String, name: String },
    Secret { namespace: String, name: String },
}

/// What the volumes of a Pod show.
pub fn references(pod: &Pod) -> BTreeSet<Reference> {
    let namespace = || pod.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let config_map = |name: &str| Reference::ConfigMap { namespace: namespace(), name: name.to_owned() };
    let secret = |name: &str| Reference::Secret { namespace: namespace(), name: name.to_owned() };
    let of = |volume: &v1::Volume| -> Vec<Reference> {
        let projected = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        let mut all: Vec<Reference> = projected
            .flat_map(|part| {
                let map = part.config_map.as_ref().map(|source| config_map(&source.name));
                map.into_iter().chain(part.secret.as_ref().map(|source| secret(&source.name)))
            })
            .collect();
        all.extend(volume.config_map.as_ref().map(|source| config_map(&source.name)));
        all.extend(volume.secret.as_ref().and_then(|source| source.secret_name.as_deref().map(secret)));
        all
    };
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).flat_map(of).collect()
}

/// Makes a directory that only this user can enter.
fn private_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn remove_directory(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
