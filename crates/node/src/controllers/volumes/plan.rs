//! What to do about one claim, or one volume, as they are now. Pure: every operation that is planned is one that the
//! cluster does not show yet, so planning again after all of them gives none, and after some of them gives the rest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::matching::{self, BIND_COMPLETED, BOUND_BY_CONTROLLER, PROVISIONED_BY, SELECTED_NODE, annotation};
use super::{FINALIZER, PROVISIONER};
use agentcube_operator::events::Severity;

const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// A change that is needed. Each can be done twice without harm.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// Gives a claim the class that is the default.
    AssignClass {
        class: String,
    },
    /// Says on the claim who is to provision for it.
    NameProvisioner {
        provisioner: String,
    },
    /// Makes a directory and the volume that is it.
    Provision {
        class: Arc<StorageClass>,
        volume: String,
    },
    /// Promises the volume to the claim.
    BindVolume {
        volume: Arc<PersistentVolume>,
    },
    VolumePhase {
        volume: String,
        phase: &'static str,
        message: Option<String>,
    },
    /// Gives the claim its volume.
    BindClaim {
        volume: String,
    },
    ClaimStatus(ClaimStatus),
    /// Makes the volume say that it is larger. Nothing else is needed: a directory has no size of its own.
    Grow {
        volume: String,
        storage: Quantity,
    },
    /// Takes back a promise to a claim that is bound elsewhere.
    Unbind {
        volume: String,
    },
    /// Removes the directory of a volume whose claim is gone, and then the volume.
    Reclaim {
        volume: Arc<PersistentVolume>,
        path: PathBuf,
    },
    /// Lets a volume that is being deleted go, and its directory be.
    LetGo {
        volume: Arc<PersistentVolume>,
    },
    Tell {
        severity: Severity,
        reason: &'static str,
        message: String,
    },
}

/// What a claim says of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClaimStatus {
    pub phase: &'static str,
    pub access_modes: Option<Vec<String>>,
    pub capacity: Option<BTreeMap<String, Quantity>>,
}

/// What there is for claims.
#[derive(Debug, Default)]
pub struct Supply {
    pub volumes: Vec<Arc<PersistentVolume>>,
    pub classes: Vec<Arc<StorageClass>>,
}

impl Supply {
    fn volume(&self, name: &str) -> Option<&Arc<PersistentVolume>> {
        self.volumes.iter().find(|volume| volume.metadata.name.as_deref() == Some(name))
    }

    fn class(&self, name: &str) -> Option<&Arc<StorageClass>> {
        self.classes.iter().find(|class| class.metadata.name.as_deref() == Some(name))
    }

    /// The newest of the classes that say that they are the default.
    fn default_class(&self) -> Option<&Arc<StorageClass>> {
        let defaults =
            self.classes.iter().filter(|class| annotation(&class.metadata, DEFAULT_CLASS) == Some("true"));
        defaults.max_by_key(|class| (class.metadata.creation_timestamp.clone(), class.metadata.name.clone()))
    }
}

fn tell(severity: Severity, reason: &'static str, message: impl Into<String>) -> Operation {
    Operation::Tell { severity, reason, message: message.into() }
}

fn volume_name(volume: &PersistentVolume) -> String {
    volume.metadata.name.clone().unwrap_or_default()
}

/// What to do about a claim.
pub(super) fn claim(claim: &PersistentVolumeClaim, supply: &Supply) -> Vec<Operation> {
    if claim.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let named =
        claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).filter(|name| !name.is_empty());
    match (annotation(&claim.metadata, BIND_COMPLETED), named) {
        (Some(_), name) => bound(claim, name.unwrap_or_default(), supply),
        (None, Some(name)) => wants(claim, name, supply),
        (None, None) => unbound(claim, supply),
    }
}

/// A claim that had its volume.
fn bound(claim: &PersistentVolumeClaim, name: &str, supply: &Supply) -> Vec<Operation> {
    let lost = |reason, message: &str| {
        let mut operations = status(claim, ClaimStatus { phase: "Lost", ..ClaimStatus::default() });
        if !operations.is_empty() {
            operations.push(tell(Severity::Warning, reason, message));
        }
        operations
    };
    let Some(volume) = supply.volume(name) else {
        return lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!");
    };
    let promised = volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_some());
    if promised && !matching::is_for(volume, claim) {
        return lost(
            "ClaimMisbound",
            "Two claims are bound to the same volume, this one is bound incorrectly",
        );
    }
    let mut operations = bind(claim, volume);
    operations.extend(grow(claim, volume, supply));
    operations
}

/// A claim that asks for one volume by name.
fn wants(claim: &PersistentVolumeClaim, name: &str, supply: &Supply) -> Vec<Operation> {
    let mut pending = status(claim, ClaimStatus { phase: "Pending", ..ClaimStatus::default() });
    let Some(volume) = supply.volume(name) else { return pending };
    if matching::is_for(volume, claim) {
        return bind(claim, volume);
    }
    if volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_some()) {
        let message = format!("volume {name:?} already bound to a different claim.");
        pending.push(tell(Severity::Warning, "FailedBinding", message));
    } else if let Some(reason) = matching::mismatch(volume, claim) {
        let message = format!("Cannot bind to requested volume {name:?}: {reason}");
        pending.push(tell(Severity::Warning, "VolumeMismatch", message));
    } else {
        return bind(claim, volume);
    }
    pending
}

/// A claim that takes what suits it.
fn unbound(claim: &PersistentVolumeClaim, supply: &Supply) -> Vec<Operation> {
    let volumes = || supply.volumes.iter();
    let promised = volumes()
        .find(|volume| matching::is_for(volume, claim) && matching::mismatch(volume, claim).is_none());
    let class_name = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
    let class = class_name.as_deref().and_then(|name| supply.class(name));
    let waits = class.and_then(|class| class.volume_binding_mode.as_deref()) == Some("WaitForFirstConsumer")
        && annotation(&claim.metadata, SELECTED_NODE).is_none();
    let found = promised.cloned().or_else(|| {
        let best = matching::best(claim, volumes().map(AsRef::as_ref).filter(|_| !waits))?;
        supply.volume(&volume_name(best)).cloned()
    });
    if let Some(volume) = found {
        return bind(claim, &volume);
    }
    let mut operations = status(claim, ClaimStatus { phase: "Pending", ..ClaimStatus::default() });
    operations.extend(match (class_name.as_deref(), class) {
        (None, _) if supply.default_class().is_some() => {
            let class = supply.default_class().map(|class| class.metadata.name.clone().unwrap_or_default());
            vec![Operation::AssignClass { class: class.unwrap_or_default() }]
        }
        (None | Some(""), _) => vec![tell(
            Severity::Normal,
            "FailedBinding",
            "no persistent volumes available for this claim and no storage class is set",
        )],
        (Some(name), None) => {
            let message = format!("storageclass.storage.k8s.io {name:?} not found");
            vec![tell(Severity::Warning, "ProvisioningFailed", message)]
        }
        (Some(_), Some(_)) if waits => vec![tell(
            Severity::Normal,
            "WaitForFirstConsumer",
            "waiting for first consumer to be created before binding",
        )],
        (Some(_), Some(class)) => provision(claim, class),
    });
    operations
}

fn provision(claim: &PersistentVolumeClaim, class: &Arc<StorageClass>) -> Vec<Operation> {
    let provisioner = class.provisioner.clone();
    if provisioner == matching::NO_PROVISIONER {
        let message = format!("no volume plugin matched name: {provisioner}");
        return vec![tell(Severity::Warning, "ProvisioningFailed", message)];
    }
    let mut operations = Vec::new();
    if annotation(&claim.metadata, matching::STORAGE_PROVISIONER) != Some(&provisioner) {
        operations.push(Operation::NameProvisioner { provisioner: provisioner.clone() });
    }
    if provisioner != PROVISIONER {
        let message = format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
             system administrator. If volume creation is delayed, please verify that the provisioner is running and \
             correctly registered."
        );
        operations.push(tell(Severity::Normal, "ExternalProvisioning", message));
        return operations;
    }
    match cannot_be_made(claim) {
        Some(reason) => {
            let message = format!(
                "failed to provision volume with StorageClass {:?}: {reason}",
                class.metadata.name.as_deref().unwrap_or_default()
            );
            operations.push(tell(Severity::Warning, "ProvisioningFailed", message));
        }
        None => {
            let volume = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default());
            operations.push(Operation::Provision { class: class.clone(), volume });
        }
    }
    operations
}

/// Why a directory is not what the claim wants.
fn cannot_be_made(claim: &PersistentVolumeClaim) -> Option<&'static str> {
    let spec = claim.spec.as_ref()?;
    if spec.volume_mode.as_deref() == Some("Block") {
        Some("block volumes are not supported")
    } else if spec.selector.is_some() {
        Some("claim Selector is not supported")
    } else if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        Some("dataSource is not supported")
    } else {
        None
    }
}

/// The steps that bind the two, less those that are done. The order is that of the real controller: whoever stops
/// half-way leaves a promise on the volume that says how to go on.
fn bind(claim: &PersistentVolumeClaim, volume: &Arc<PersistentVolume>) -> Vec<Operation> {
    let mut operations = Vec::new();
    let name = volume_name(volume);
    let spec = volume.spec.as_ref();
    let reference = spec.and_then(|spec| spec.claim_ref.as_ref());
    if reference.is_none_or(|reference| reference.uid != claim.metadata.uid) {
        operations.push(Operation::BindVolume { volume: volume.clone() });
    }
    if volume.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
        operations.push(Operation::VolumePhase { volume: name.clone(), phase: "Bound", message: None });
    }
    let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    if named != Some(&name) || annotation(&claim.metadata, BIND_COMPLETED).is_none() {
        operations.push(Operation::BindClaim { volume: name });
    }
    let capacity = spec.and_then(|spec| spec.capacity.clone());
    // A claim that is bound keeps what it has until it is grown.
    let has = claim.status.as_ref().filter(|status| status.phase.as_deref() == Some("Bound"));
    let capacity = has.and_then(|status| status.capacity.clone()).or(capacity);
    let access_modes = spec.and_then(|spec| spec.access_modes.clone());
    operations.extend(status(claim, ClaimStatus { phase: "Bound", access_modes, capacity }));
    operations
}

/// Makes a bound claim as large as it asks to be.
fn grow(claim: &PersistentVolumeClaim, volume: &Arc<PersistentVolume>, supply: &Supply) -> Vec<Operation> {
    let asks =
        claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
    let has = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage"));
    let (Some(asks), Some(has)) = (asks, has) else { return Vec::new() };
    let amount = |quantity: &Quantity| quantity.0.parse::<agentcube_api::Quantity>().ok();
    if amount(asks) <= amount(has) {
        return Vec::new();
    }
    let class = claim.spec.as_ref().and_then(|spec| supply.class(spec.storage_class_name.as_deref()?));
    let may = class.is_some_and(|class| class.allow_volume_expansion == Some(true));
    if !may || annotation(&volume.metadata, PROVISIONED_BY) != Some(PROVISIONER) {
        let message = "only claims of a storage class of this node that allows expansion can be resized";
        return vec![tell(Severity::Warning, "VolumeResizeFailed", message)];
    }
    let mut operations = Vec::new();
    let name = volume_name(volume);
    if matching::capacity(volume) < amount(asks) {
        operations.push(Operation::Grow { volume: name.clone(), storage: asks.clone() });
    }
    let access_modes = volume.spec.as_ref().and_then(|spec| spec.access_modes.clone());
    let capacity = Some([("storage".to_owned(), asks.clone())].into());
    operations.extend(status(claim, ClaimStatus { phase: "Bound", access_modes, capacity }));
    operations.push(tell(
        Severity::Normal,
        "VolumeResizeSuccessful",
        format!("ExpandVolume succeeded for volume {name}"),
    ));
    operations
}

/// A status, unless the claim says that already.
fn status(claim: &PersistentVolumeClaim, wanted: ClaimStatus) -> Vec<Operation> {
    let has = claim.status.clone().unwrap_or_default();
    let same = has.phase.as_deref() == Some(wanted.phase)
        && has.access_modes.unwrap_or_default() == wanted.access_modes.clone().unwrap_or_default()
        && has.capacity.unwrap_or_default() == wanted.capacity.clone().unwrap_or_default();
    if same { Vec::new() } else { vec![Operation::ClaimStatus(wanted)] }
}

/// What to do about a volume. `claim` is the one that it is promised to, if that is there. `claims` is the directory
/// in which this provisioner makes its own.
pub(super) fn volume(
    volume: &Arc<PersistentVolume>,
    claim: Option<&PersistentVolumeClaim>,
    claims: &Path,
) -> Vec<Operation> {
    let name = volume_name(volume);
    let spec = volume.spec.clone().unwrap_or_default();
    let phase = |phase, message| phase_of(volume, &name, phase, message);
    let Some(reference) = spec.claim_ref else {
        return match volume.metadata.deletion_timestamp {
            Some(_) => let_go(volume),
            None => phase("Available", None),
        };
    };
    let Some(uid) = reference.uid else { return phase("Available", None) };
    let policy = spec.persistent_volume_reclaim_policy.as_deref().unwrap_or("Retain");
    let own = own_directory(volume, claims);
    if let Some(claim) = claim.filter(|claim| claim.metadata.uid.as_ref() == Some(&uid)) {
        let bound_to = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
        if bound_to.is_empty() || bound_to == name {
            return Vec::new();
        }
        // The claim went elsewhere: a volume that was made for it has no use, another is free again.
        return match (own, policy) {
            (Some(path), "Delete") => vec![Operation::Reclaim { volume: volume.clone(), path }],
            _ if annotation(&volume.metadata, BOUND_BY_CONTROLLER).is_some() => {
                vec![Operation::Unbind { volume: name }]
            }
            _ => Vec::new(),
        };
    }
    let mut operations = match volume.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Failed") => Vec::new(),
        _ => phase("Released", None),
    };
    match (policy, own) {
        ("Delete", Some(path)) => operations.push(Operation::Reclaim { volume: volume.clone(), path }),
        _ if volume.metadata.deletion_timestamp.is_some() => operations.extend(let_go(volume)),
        ("Delete", None) => {
            let message = format!(
                "error getting deleter volume plugin for volume {name:?}: no deletable volume plugin matched"
            );
            operations = failed(volume, &name, "VolumeFailedDelete", message);
        }
        ("Recycle", _) => {
            let message = "no recyclable volume plugin matched: use Delete or Retain".to_owned();
            operations = failed(volume, &name, "VolumeFailedRecycle", message);
        }
        _ => {}
    }
    operations
}

fn phase_of(
    volume: &PersistentVolume,
    name: &str,
    phase: &'static str,
    message: Option<String>,
) -> Vec<Operation> {
    let status = volume.status.as_ref();
    let same = status.and_then(|status| status.phase.as_deref()) == Some(phase)
        && status.and_then(|status| status.message.as_ref()) == message.as_ref();
    if same { Vec::new() } else { vec![Operation::VolumePhase { volume: name.to_owned(), phase, message }] }
}

fn failed(volume: &PersistentVolume, name: &str, reason: &'static str, message: String) -> Vec<Operation> {
    let mut operations = phase_of(volume, name, "Failed", Some(message.clone()));
    if !operations.is_empty() {
        operations.push(tell(Severity::Warning, reason, message));
    }
    operations
}

fn let_go(volume: &Arc<PersistentVolume>) -> Vec<Operation> {
    let holds = volume.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER);
    if holds { vec![Operation::LetGo { volume: volume.clone() }] } else { Vec::new() }
}

/// The directory of a volume that this provisioner made. The path must be what it would have chosen: what an annotation
/// says, anybody may have written, and what is removed must never lie elsewhere.
fn own_directory(volume: &PersistentVolume, claims: &Path) -> Option<PathBuf> {
    if annotation(&volume.metadata, PROVISIONED_BY) != Some(PROVISIONER) {
        return None;
    }
    let name =
        volume.metadata.name.as_deref().filter(|name| !name.contains('/') && !name.starts_with('.'))?;
    let path = claims.join(name);
    let said = &volume.spec.as_ref()?.local.as_ref()?.path;
    (Path::new(said) == path).then_some(path)
}

#[cfg(test)]
mod tests;
