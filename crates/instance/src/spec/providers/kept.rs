//! The objects that are kept as they should be: what of them is nobody else's to write, how they are looked at, what had
//! to be mended, and what a failure means.

use agentcube_operator::cache::Object;
use agentcube_operator::children::{self, Ensured};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, PodTemplate, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::Serialize;

use crate::provider::{Repair, Repaired, SpecError};

/// What is kept in memory of one Task and made by us.
pub(super) trait Kept: Object + Serialize + Resource<Scope = NamespaceResourceScope> {}
impl<K: Object + Serialize + Resource<Scope = NamespaceResourceScope>> Kept for K {}

/// What is kept exactly as we want it.
pub(super) trait Alone: Kept {
    /// The fields under which nobody else may write.
    const ROOTS: &'static [&'static str];
}

impl Alone for PodTemplate {
    const ROOTS: &'static [&'static str] = &["template"];
}

impl Alone for NetworkPolicy {
    const ROOTS: &'static [&'static str] = &["spec"];
}

impl Alone for ConfigMap {
    const ROOTS: &'static [&'static str] = &["data", "binaryData"];
}

impl Alone for Secret {
    const ROOTS: &'static [&'static str] = &["data"];
}

impl Alone for PersistentVolumeClaim {
    // The server and what provides volumes write into it.
    const ROOTS: &'static [&'static str] = &[];
}

/// How the objects of a revision are looked at.
#[derive(Clone, Copy)]
pub(super) struct Look {
    /// They were made before: the absence of one is somebody's doing.
    pub(super) known: bool,
    /// Ask the server, whatever the caches say.
    pub(super) closely: bool,
}

/// What had to be put right.
pub(super) struct Repairs {
    pub(super) look: Look,
    pub(super) made: Vec<Repair>,
}

impl Repairs {
    pub(super) fn add<K: Kept>(&mut self, desired: &K, ensured: Ensured<K>) {
        let what = match ensured {
            Ensured::Created(_) if self.look.known => Repaired::Recreated,
            Ensured::Repaired { .. } => Repaired::Restored,
            _ => return,
        };
        let kind = match K::kind(&()) {
            std::borrow::Cow::Borrowed(kind) => kind,
            std::borrow::Cow::Owned(_) => "object",
        };
        self.made.push(Repair { kind, name: desired.name_any(), what });
    }
}

/// What a failed write means: the server's word that an object is wrong stays until the Task changes, everything else
/// may pass.
pub(super) fn refused<K: Kept>(error: &children::Error) -> SpecError {
    match error {
        children::Error::Write { name, source, .. } => failed::<K>(name, source),
        children::Error::Replaced { .. } => SpecError::Transient(error.to_string()),
        children::Error::Foreign { .. } => SpecError::Blocked(error.to_string()),
        children::Error::Malformed(_) => SpecError::Invalid(error.to_string()),
    }
}

pub(super) fn failed<K: Resource<DynamicType = ()>>(name: &str, error: &kube::Error) -> SpecError {
    let kind = K::kind(&());
    match error {
        kube::Error::Api(status) if matches!(status.code, 400 | 422) => {
            SpecError::Invalid(format!("{kind} {name} was refused: {}", status.message))
        }
        kube::Error::Api(status) => {
            SpecError::Transient(format!("{kind} {name} could not be written: {}", status.message))
        }
        other => SpecError::Transient(format!("{kind} {name} could not be written: {other}")),
    }
}
