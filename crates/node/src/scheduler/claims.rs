//! Whether the claims of a Pod let it be scheduled. Binds nothing: that is the volume controller's.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;

use super::fit::Reason;
use super::placement;
use crate::controllers::volumes::matching::{self, BIND_COMPLETED, NO_PROVISIONER, SELECTED_NODE};

/// What is known of volumes.
#[derive(Debug, Default)]
pub struct Storage {
    pub claims: BTreeMap<(String, String), Arc<PersistentVolumeClaim>>,
    pub volumes: BTreeMap<String, Arc<PersistentVolume>>,
    pub classes: BTreeMap<String, Arc<StorageClass>>,
}

/// The claims of a Pod that could be scheduled.
#[derive(Debug, Default)]
pub struct Wanted {
    /// Bound ones: the Pod goes where their volumes are.
    volumes: Vec<Arc<PersistentVolume>>,
    missing_volume: bool,
    /// Those that are bound once a node is chosen for them.
    waiting: Vec<Arc<PersistentVolumeClaim>>,
    /// Those that no other Pod may use at the same time.
    pub exclusive: Vec<(String, String)>,
}

/// A claim that a Pod uses.
pub(super) struct Use {
    pub(super) name: String,
    /// It is made for the Pod, by somebody else.
    ephemeral: bool,
}

/// The claims that a Pod uses.
pub(super) fn uses(pod: &Pod) -> impl Iterator<Item = Use> {
    let own = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(move |volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some(Use { name: source.claim_name.clone(), ephemeral: false }),
        (None, Some(_)) => Some(Use { name: format!("{own}-{}", volume.name), ephemeral: true }),
        (None, None) => None,
    })
}

impl Storage {
    /// The claims of a Pod, or what is wrong with them on any node.
    pub fn wanted(&self, pod: &Pod) -> Result<Wanted, String> {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let mut wanted = Wanted::default();
        let mut unbound = false;
        for Use { name, ephemeral } in uses(pod) {
            let key = (namespace.clone(), name);
            let Some(claim) = self.claims.get(&key) else {
                let who = "waiting for ephemeral volume controller to create the persistentvolumeclaim";
                return Err(match ephemeral {
                    true => format!("{who} {:?}", key.1),
                    false => format!("persistentvolumeclaim {:?} not found", key.1),
                });
            };
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("persistentvolumeclaim {:?} is being deleted", key.1));
            }
            let spec = claim.spec.as_ref();
            let modes = spec.and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
            if modes.iter().any(|mode| mode == "ReadWriteOncePod") {
                wanted.exclusive.push(key.clone());
            }
            let volume = spec.and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
            if claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Lost") {
                let name = &key.1;
                return Err(format!(
                    "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
                ));
            }
            if matching::annotation(&claim.metadata, BIND_COMPLETED).is_some() && !volume.is_empty() {
                match self.volumes.get(volume) {
                    Some(volume) => wanted.volumes.push(volume.clone()),
                    None => wanted.missing_volume = true,
                }
            } else if volume.is_empty() && self.waits_for_a_consumer(claim) {
                wanted.waiting.push(claim.clone());
            } else {
                unbound = true;
            }
        }
        if unbound { Err("pod has unbound immediate PersistentVolumeClaims".to_owned()) } else { Ok(wanted) }
    }

    fn class(&self, claim: &PersistentVolumeClaim) -> Option<&Arc<StorageClass>> {
        self.classes.get(claim.spec.as_ref()?.storage_class_name.as_deref()?)
    }

    fn waits_for_a_consumer(&self, claim: &PersistentVolumeClaim) -> bool {
        let mode = self.class(claim).and_then(|class| class.volume_binding_mode.as_deref());
        mode == Some("WaitForFirstConsumer")
    }

    /// Whether the volumes are, or can be, where the node is.
    pub fn fit(&self, wanted: &Wanted, node: &Node) -> Result<(), Reason> {
        if wanted.missing_volume {
            return Err(Reason::VolumeMissing);
        }
        let reaches = |volume: &Arc<PersistentVolume>| {
            let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
            affinity
                .and_then(|affinity| affinity.required.as_ref())
                .is_none_or(|terms| placement::matches(terms, node))
        };
        if !wanted.volumes.iter().all(reaches) {
            return Err(Reason::VolumeElsewhere);
        }
        for claim in &wanted.waiting {
            let provisioner = self.class(claim).map(|class| class.provisioner.as_str());
            let existing = self.volumes.values().filter(|volume| reaches(volume)).map(AsRef::as_ref);
            if provisioner == Some(NO_PROVISIONER) && matching::best(claim, existing).is_none() {
                return Err(Reason::NoVolume);
            }
        }
        Ok(())
    }
}

impl Wanted {
    /// The claims for which a node must be chosen before the Pod can be bound to it.
    pub fn waiting(&self) -> &[Arc<PersistentVolumeClaim>] {
        &self.waiting
    }

    /// Those that were not told yet.
    pub fn untold<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Arc<PersistentVolumeClaim>> {
        let told = move |claim: &PersistentVolumeClaim| {
            matching::annotation(&claim.metadata, SELECTED_NODE) == Some(node)
        };
        self.waiting.iter().filter(move |claim| !told(claim))
    }
}
