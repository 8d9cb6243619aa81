//! Does what was planned, through the API and on the disk. A write that finds the cluster changed fails, and the key
//! is planned again from what is there then.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};

use super::matching::{
    BIND_COMPLETED, BOUND_BY_CONTROLLER, OLD_STORAGE_PROVISIONER, PROVISIONED_BY, STORAGE_PROVISIONER,
};
use super::plan::{ClaimStatus, Operation};
use super::{FINALIZER, PROVISIONER, Provisioner};
use crate::kubelet::volumes::remove_directory;
use agentcube_operator::events::{Severity, reference};

/// Something that must be tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what}: {source}")]
    Api { what: String, source: Box<kube::Error> },
    #[error("{path}: {source}")]
    Disk { path: PathBuf, source: io::Error },
    #[error("the claim of volume {0} is still there")]
    StillClaimed(String),
    #[error("removing a directory was interrupted")]
    Interrupted,
}

fn failed(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
    let what = what.into();
    move |source| Error::Api { what, source: Box::new(source) }
}

fn is(error: &kube::Error, wanted: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == wanted)
}

impl Provisioner {
    /// Does the operations of a claim, in order.
    pub(super) async fn apply_to_claim(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        operations: Vec<Operation>,
    ) -> Result<(), Error> {
        for operation in operations {
            match operation {
                Operation::AssignClass { class } => {
                    self.patch_claim(claim, json!({"spec": {"storageClassName": class}})).await?;
                }
                Operation::NameProvisioner { provisioner } => {
                    let annotations = json!({STORAGE_PROVISIONER: provisioner.clone(), OLD_STORAGE_PROVISIONER: provisioner});
                    self.patch_claim(claim, json!({"metadata": {"annotations": annotations}})).await?;
                }
                Operation::BindClaim { volume } => {
                    let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
                    let mut annotations = json!({BIND_COMPLETED: "yes"});
                    if named.unwrap_or_default().is_empty() {
                        annotations[BOUND_BY_CONTROLLER] = "yes".into();
                    }
                    let change =
                        json!({"metadata": {"annotations": annotations}, "spec": {"volumeName": volume}});
                    self.patch_claim(claim, change).await?;
                }
                Operation::ClaimStatus(status) => self.report(claim, status).await?,
                Operation::Provision { class, volume } => self.provision(claim, &class, &volume).await?,
                Operation::BindVolume { volume } => self.promise(claim, &volume).await?,
                Operation::Tell { severity, reason, message } => {
                    self.events.record(reference(claim.as_ref()), severity, reason, message);
                }
                other => self.apply_to_volume(other, None).await?,
            }
        }
        Ok(())
    }

    /// Does an operation that concerns a volume alone.
    pub(super) async fn apply_to_volume(
        &self,
        operation: Operation,
        about: Option<&Arc<PersistentVolume>>,
    ) -> Result<(), Error> {
        match operation {
            Operation::VolumePhase { volume, phase, message } => {
                let change = json!({"status": {"phase": phase, "message": message}});
                let patch = Patch::Merge(change);
                let done = self.volumes().patch_status(&volume, &PatchParams::default(), &patch).await;
                self.caches.volumes.put(done.map_err(failed(format!("status of volume {volume}")))?);
            }
            Operation::Grow { volume, storage } => {
                self.patch_volume(&volume, json!({"spec": {"capacity": {"storage": storage}}})).await?;
            }
            Operation::Unbind { volume } => {
                let change = json!({"metadata": {"annotations": {BOUND_BY_CONTROLLER: null}}, "spec": {"claimRef": null}});
                self.patch_volume(&volume, change).await?;
            }
            Operation::Reclaim { volume, path } => self.reclaim(&volume, path).await?,
            Operation::LetGo { volume } => self.let_go(&volume).await?,
            Operation::Tell { severity, reason, message } => {
                if let Some(volume) = about {
                    self.events.record(reference(volume.as_ref()), severity, reason, message);
                }
            }
            // The rest needs a claim, and no plan of a volume has it.
            Operation::AssignClass { .. }
            | Operation::NameProvisioner { .. }
            | Operation::Provision { .. }
            | Operation::BindVolume { .. }
            | Operation::BindClaim { .. }
            | Operation::ClaimStatus(_) => {}
        }
        Ok(())
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    fn claims(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), claim.metadata.namespace.as_deref().unwrap_or_default())
    }

    async fn patch_claim(&self, claim: &PersistentVolumeClaim, mut change: Value) -> Result<(), Error> {
        change["metadata"]["uid"] = json!(claim.metadata.uid);
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let done = self.claims(claim).patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
        self.caches.claims.put(done.map_err(failed(format!("claim {name}")))?);
        Ok(())
    }

    async fn report(&self, claim: &PersistentVolumeClaim, status: ClaimStatus) -> Result<(), Error> {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let change = json!({"metadata": {"uid": claim.metadata.uid}, "status": {
            "phase": status.phase, "accessModes": status.access_modes, "capacity": status.capacity}});
        let done =
            self.claims(claim).patch_status(name, &PatchParams::default(), &Patch::Merge(change)).await;
        self.caches.claims.put(done.map_err(failed(format!("status of claim {name}")))?);
        Ok(())
    }

    async fn patch_volume(&self, name: &str, change: Value) -> Result<(), Error> {
        let done = self.volumes().patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
        self.caches.volumes.put(done.map_err(failed(format!("volume {name}")))?);
        Ok(())
    }

    /// Only if the volume is as it was seen: nobody else may have been promised it.
    async fn promise(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<(), Error> {
        let reserved = volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_some());
        let mut metadata =
            json!({"uid": volume.metadata.uid, "resourceVersion": volume.metadata.resource_version});
        if !reserved {
            metadata["annotations"] = json!({BOUND_BY_CONTROLLER: "yes"});
        }
        let change = json!({"metadata": metadata, "spec": {"claimRef": claim_reference(claim)}});
        self.patch_volume(volume.metadata.name.as_deref().unwrap_or_default(), change).await
    }

    /// The directory first: a volume that is there can be used.
    async fn provision(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        class: &StorageClass,
        name: &str,
    ) -> Result<(), Error> {
        let path = self.directory.join(name);
        make_directory(&path).map_err(|source| Error::Disk { path: path.clone(), source })?;
        let spec = claim.spec.clone().unwrap_or_default();
        let node = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [self.node]});
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {
                "name": name, "annotations": {PROVISIONED_BY: PROVISIONER}, "finalizers": [FINALIZER],
            },
            "spec": {
                "capacity": spec.resources.and_then(|resources| resources.requests),
                "accessModes": spec.access_modes, "volumeMode": "Filesystem",
                "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
                "storageClassName": class.metadata.name, "claimRef": claim_reference(claim),
                "local": {"path": path},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
            },
        });
        let volume = serde_json::from_value(volume).map_err(kube::Error::SerdeError);
        let volume: PersistentVolume = volume.map_err(failed(format!("volume {name}")))?;
        match self.volumes().create(&PostParams::default(), &volume).await {
            Ok(volume) => {
                self.caches.volumes.put(volume);
                let message = format!("Successfully provisioned volume {name}");
                self.events.record(
                    reference(claim.as_ref()),
                    Severity::Normal,
                    "ProvisioningSucceeded",
                    message,
                );
                Ok(())
            }
            // Made before by a predecessor that did not live to hear of it; the watch will show it.
            Err(error) if is(&error, 409) => Ok(()),
            Err(error) => Err(failed(format!("volume {name}"))(error)),
        }
    }

    /// Asks the server itself whether the claim is gone: what the cache does not have may only be late.
    async fn reclaim(&self, volume: &PersistentVolume, path: PathBuf) -> Result<(), Error> {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let held = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone()).unwrap_or_default();
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), held.namespace.as_deref().unwrap_or_default());
        let claim = claims.get_opt(held.name.as_deref().unwrap_or_default()).await;
        let claim = claim.map_err(failed(format!("claim of volume {name}")))?;
        let uses = |claim: &PersistentVolumeClaim| {
            let bound_to =
                claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
            claim.metadata.uid == held.uid && (bound_to.is_empty() || bound_to == name)
        };
        if claim.is_some_and(|claim| uses(&claim)) {
            return Err(Error::StillClaimed(name));
        }
        let removal = tokio::task::spawn_blocking(move || {
            remove_directory(&path).map_err(|source| Error::Disk { path, source })
        });
        removal.await.map_err(|_| Error::Interrupted)??;
        self.delete(volume).await?;
        self.let_go(volume).await
    }

    async fn delete(&self, volume: &PersistentVolume) -> Result<(), Error> {
        if volume.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let same = Preconditions { uid: volume.metadata.uid.clone(), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
        match self.volumes().delete(name, &parameters).await {
            Ok(answer) => self.caches.volumes.deleted(volume, answer.left()),
            Err(error) if is(&error, 404) => self.caches.volumes.gone(volume),
            Err(error) => return Err(failed(format!("deleting volume {name}"))(error)),
        }
        Ok(())
    }

    /// Takes this provisioner's finalizer off.
    async fn let_go(&self, volume: &PersistentVolume) -> Result<(), Error> {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let current = match self.volumes().get_opt(name).await {
            Ok(Some(current)) if current.metadata.uid == volume.metadata.uid => current,
            Ok(_) => return Ok(()),
            Err(error) => return Err(failed(format!("volume {name}"))(error)),
        };
        let finalizers = current.metadata.finalizers.clone().unwrap_or_default();
        let rest: Vec<&String> = finalizers.iter().filter(|finalizer| *finalizer != FINALIZER).collect();
        if rest.len() == finalizers.len() {
            return Ok(());
        }
        let change = json!({"metadata": {
            "uid": current.metadata.uid, "resourceVersion": current.metadata.resource_version, "finalizers": rest}});
        match self.volumes().patch(name, &PatchParams::default(), &Patch::Merge(change)).await {
            Ok(left) => self.caches.volumes.deleted(&current, Some(left)),
            Err(error) if is(&error, 404) => self.caches.volumes.gone(&current),
            Err(error) => return Err(failed(format!("finalizers of volume {name}"))(error)),
        }
        Ok(())
    }
}

fn claim_reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    reference(claim)
}

/// Open to all: who may use a volume is decided by who has its claim, and only this user can enter its parent.
fn make_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if !fs::symlink_metadata(path)?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "there is something else"));
    }
    fs::set_permissions(path, Permissions::from_mode(0o777))
}
