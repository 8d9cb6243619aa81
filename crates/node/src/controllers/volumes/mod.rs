//! Gives claims their volumes: binds them to volumes that are there, and makes directories of this machine for the
//! rest. Removes a directory only after the server itself said that its claim is gone, and never one that it did not
//! make.
//!
//! A directory has no size of its own: what a claim asks for is recorded, shown and grown, but nothing stops a Pod from
//! writing more. The default class says so in its description.

mod apply;
mod ephemeral;
pub mod matching;
mod plan;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub use apply::Error;
pub use plan::{ClaimStatus, Operation, Supply};

use agentcube_operator::cache::{Cache, Change};
use agentcube_operator::controller::{Controller, Requeue};
use agentcube_operator::events::Recorder;

/// The class that claims without one get.
pub const CLASS: &str = "local";
pub const PROVISIONER: &str = "agentcube.io/local";
/// Keeps a volume until its directory is dealt with. The name is that of the usual provisioners.
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
const RETRY: Duration = Duration::from_millis(200);

/// What the controller reads.
#[derive(Clone, Debug)]
pub struct Caches {
    pub pods: Cache<Pod>,
    pub claims: Cache<PersistentVolumeClaim>,
    pub volumes: Cache<PersistentVolume>,
    pub classes: Cache<StorageClass>,
}

/// What may need something done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Claim(String, String),
    Volume(String),
    /// A Pod with claims of its own.
    Pod(String, String),
}

/// The controller; [`Provisioner::run`] runs it.
pub struct Provisioner {
    client: Client,
    caches: Caches,
    events: Recorder,
    /// The name of the node that this is.
    node: String,
    /// In which volumes have their directories.
    directory: PathBuf,
}

impl Provisioner {
    /// `directory` is [`crate::kubelet::volumes::Options::claims`]; it must be there, without links in its path.
    pub fn new(client: Client, caches: Caches, events: Recorder, node: String, directory: PathBuf) -> Self {
        Provisioner { client, caches, events, node, directory }
    }

    /// Serves claims until the shutdown. One key at a time: no two claims ever choose the same volume.
    pub async fn run(self, shutdown: CancellationToken) {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = self.begin() => {}
        }
        let caches = self.caches.clone();
        let (for_volumes, for_classes) = (caches.claims.clone(), caches.claims.clone());
        let provisioner = Arc::new(self);
        Controller::new("volumes")
            .concurrency(1)
            .watch(&caches.claims, keys_of_claim)
            .watch(&caches.volumes, move |change| keys_of_volume(change, &for_volumes))
            .watch(&caches.classes, move |_| unbound_claims(&for_classes))
            .watch(&caches.pods, ephemeral::keys)
            .run(shutdown, move |key| {
                let provisioner = provisioner.clone();
                async move { provisioner.reconcile(key).await.map(|()| Requeue::No) }
            })
            .await;
    }

    async fn reconcile(&self, key: Key) -> Result<(), Error> {
        match key {
            Key::Claim(namespace, name) => {
                let Some(claim) = self.caches.claims.get(&namespace, &name) else { return Ok(()) };
                let supply = Supply {
                    volumes: self.caches.volumes.list(None),
                    classes: self.caches.classes.list(None),
                };
                self.apply_to_claim(&claim, plan::claim(&claim, &supply)).await
            }
            Key::Volume(name) => {
                let Some(volume) = self.caches.volumes.get("", &name) else { return Ok(()) };
                let held = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone()).unwrap_or_default();
                let claim = self.caches.claims.get(
                    held.namespace.as_deref().unwrap_or_default(),
                    held.name.as_deref().unwrap_or_default(),
                );
                for operation in plan::volume(&volume, claim.as_deref(), &self.directory) {
                    self.apply_to_volume(operation, Some(&volume)).await?;
                }
                Ok(())
            }
            Key::Pod(namespace, name) => self.serve_pod(&namespace, &name).await,
        }
    }

    async fn begin(&self) {
        self.caches.volumes.synced().await;
        if let Err(error) = self.sweep() {
            tracing::warn!("{} was not swept: {error}", self.directory.display());
        }
        self.offer_default_class().await;
    }

    /// Makes the class `local`, if it is not there, and the default, if there is no other.
    async fn offer_default_class(&self) {
        let api: Api<StorageClass> = Api::all(self.client.clone());
        self.caches.classes.synced().await;
        loop {
            if self.caches.classes.get("", CLASS).is_some() {
                return;
            }
            let taken = self.caches.classes.list(None).iter().any(|class| {
                matching::annotation(&class.metadata, "storageclass.kubernetes.io/is-default-class")
                    == Some("true")
            });
            match api.create(&PostParams::default(), &default_class(!taken)).await {
                Ok(class) => return self.caches.classes.put(class),
                Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
                    return;
                }
                Err(error) => {
                    tracing::warn!("the storage class {CLASS} could not be made, trying again: {error}");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Removes directories that a predecessor made for volumes it did not live to make. Only empty ones: what holds
    /// data may belong to a volume that was retained and then deleted.
    fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let known =
                entry.file_name().to_str().is_some_and(|name| self.caches.volumes.get("", name).is_some());
            if !known && let Err(error) = fs::remove_dir(entry.path()) {
                tracing::debug!("{} stays: {error}", entry.path().display());
            }
        }
        Ok(())
    }
}

/// Bound at once: with one node there is no place to wait for.
fn default_class(default: bool) -> StorageClass {
    let class = json!({
        "metadata": {"name": CLASS, "annotations": {
            "storageclass.kubernetes.io/is-default-class": default.to_string(),
            "kubernetes.io/description": "Directories on this machine. Sizes are recorded, not enforced.",
        }},
        "provisioner": PROVISIONER, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
        "allowVolumeExpansion": true,
    });
    serde_json::from_value(class).expect("the class is written out above")
}

fn claim_key(claim: &PersistentVolumeClaim) -> Key {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Key::Claim(text(&claim.metadata.namespace), text(&claim.metadata.name))
}

/// A claim, its volume, and the volume that was made for it if it took another.
fn keys_of_claim(change: &Change<PersistentVolumeClaim>) -> Vec<Key> {
    let claim = change.latest();
    let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).filter(|name| !name.is_empty());
    let made = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default());
    let mut keys = vec![claim_key(claim), Key::Volume(made)];
    keys.extend(named.map(Key::Volume));
    keys
}

/// A volume and its claim; one that is free concerns whoever has none.
fn keys_of_volume(change: &Change<PersistentVolume>, claims: &Cache<PersistentVolumeClaim>) -> Vec<Key> {
    let volume = change.latest();
    let mut keys = vec![Key::Volume(volume.metadata.name.clone().unwrap_or_default())];
    let references = change.sides().filter_map(|volume| volume.spec.as_ref()?.claim_ref.as_ref());
    keys.extend(references.map(|held| {
        Key::Claim(held.namespace.clone().unwrap_or_default(), held.name.clone().unwrap_or_default())
    }));
    if volume.spec.as_ref().is_none_or(|spec| spec.claim_ref.is_none()) {
        keys.extend(unbound_claims(claims));
    }
    keys
}

fn unbound_claims(claims: &Cache<PersistentVolumeClaim>) -> Vec<Key> {
    let unbound = |claim: &Arc<PersistentVolumeClaim>| {
        claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound")
    };
    claims.list(None).iter().filter(|claim| unbound(claim)).map(|claim| claim_key(claim)).collect()
}
