//! What a Task names that others have to provide. While one of them is missing the Task waits; when it appears the Task
//! is looked at again.

use std::collections::BTreeSet;

use agentcube_api::Task;
use agentcube_api::conditions::task as reasons;
use agentcube_api::sandbox::SandboxSpec;
use k8s_openapi::api::core::v1::{Container, EnvFromSource, PodSpec, Volume};
use kube::ResourceExt;

use super::render::Rendered;
use crate::provider::SpecError;
use crate::revision;
use crate::token::task_secret_name;

/// A kind of object that a Task may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Referent {
    Secret,
    ConfigMap,
    Claim,
    ServiceAccount,
    PriorityClass,
    RuntimeClass,
    SandboxPool,
}

/// An object that a Task names; in the Task's namespace, if its kind has namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    pub kind: Referent,
    pub name: String,
}

impl Referent {
    /// The kind's name.
    pub fn kind(self) -> &'static str {
        match self {
            Referent::Secret => "Secret",
            Referent::ConfigMap => "ConfigMap",
            Referent::Claim => "PersistentVolumeClaim",
            Referent::ServiceAccount => "ServiceAccount",
            Referent::PriorityClass => "PriorityClass",
            Referent::RuntimeClass => "RuntimeClass",
            Referent::SandboxPool => "SandboxPool",
        }
    }

    /// Whether objects of the kind are in namespaces.
    pub fn is_namespaced(self) -> bool {
        !matches!(self, Referent::PriorityClass | Referent::RuntimeClass)
    }

    fn reason(self) -> &'static str {
        match self {
            Referent::Secret => reasons::REASON_SECRET_MISSING,
            Referent::ConfigMap => reasons::REASON_CONFIG_MAP_MISSING,
            Referent::Claim => reasons::REASON_CLAIM_MISSING,
            Referent::ServiceAccount => reasons::REASON_SERVICE_ACCOUNT_MISSING,
            Referent::PriorityClass => reasons::REASON_PRIORITY_CLASS_MISSING,
            Referent::RuntimeClass => reasons::REASON_RUNTIME_CLASS_MISSING,
            Referent::SandboxPool => reasons::REASON_POOL_MISSING,
        }
    }
}

impl Reference {
    /// Says that it is not there.
    pub fn missing(&self, namespace: &str) -> SpecError {
        let kind = self.kind.kind();
        let place =
            if self.kind.is_namespaced() { format!(" in namespace {namespace}") } else { String::new() };
        SpecError::Missing {
            reason: self.kind.reason(),
            message: format!("{kind} {:?}{place} does not exist; the Task goes on when it does", self.name),
        }
    }
}

/// What instances of the Task need, other than what is made for them.
pub fn references(task: &Task, rendered: &Rendered) -> BTreeSet<Reference> {
    let mut found = BTreeSet::new();
    if let Some(spec) = &rendered.template.spec {
        of_spec(spec, &mut found);
    }
    if let Some(sandbox) = revision::sandbox(&rendered.template) {
        of_sandbox(&sandbox, &mut found);
    }
    if let Some(pool) = task.spec.deployment.pool_ref() {
        found.insert(Reference { kind: Referent::SandboxPool, name: pool.into() });
    }
    let token = task_secret_name(&task.name_any());
    found.retain(|Reference { kind, name }| match kind {
        Referent::Secret => *name != token,
        Referent::ConfigMap => !rendered.children.iter().any(|child| child.is_config_map(name)),
        Referent::Claim => !rendered.children.iter().any(|child| child.is_claim(name)),
        _ => true,
    });
    found
}

fn of_sandbox(sandbox: &SandboxSpec, found: &mut BTreeSet<Reference>) {
    for file in &sandbox.files {
        let secret = file.secret_key_ref.as_ref().map(|from| (Referent::Secret, from));
        let map = file.config_map_key_ref.as_ref().map(|from| (Referent::ConfigMap, from));
        let named = secret.into_iter().chain(map);
        found.extend(named.map(|(kind, from)| Reference { kind, name: from.name.clone() }));
    }
}

fn of_spec(spec: &PodSpec, found: &mut BTreeSet<Reference>) {
    let mut add = |kind, name: &str, optional: Option<bool>| {
        if !name.is_empty() && optional != Some(true) {
            found.insert(Reference { kind, name: name.into() });
        }
    };
    for secret in spec.image_pull_secrets.iter().flatten() {
        add(Referent::Secret, &secret.name, None);
    }
    if let Some(account) = spec.service_account_name.as_deref().filter(|name| *name != "default") {
        add(Referent::ServiceAccount, account, None);
    }
    // Those of the system are there in every cluster.
    if let Some(class) = spec.priority_class_name.as_deref().filter(|name| !name.starts_with("system-")) {
        add(Referent::PriorityClass, class, None);
    }
    if let Some(class) = &spec.runtime_class_name {
        add(Referent::RuntimeClass, class, None);
    }
    for volume in spec.volumes.iter().flatten() {
        of_volume(volume, &mut add);
    }
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        of_container(container, &mut add);
    }
}

fn of_volume(volume: &Volume, add: &mut impl FnMut(Referent, &str, Option<bool>)) {
    if let Some(secret) = &volume.secret {
        add(Referent::Secret, secret.secret_name.as_deref().unwrap_or_default(), secret.optional);
    }
    if let Some(map) = &volume.config_map {
        add(Referent::ConfigMap, &map.name, map.optional);
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        add(Referent::Claim, &claim.claim_name, None);
    }
    for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
        if let Some(secret) = &source.secret {
            add(Referent::Secret, &secret.name, secret.optional);
        }
        if let Some(map) = &source.config_map {
            add(Referent::ConfigMap, &map.name, map.optional);
        }
    }
}

fn of_container(container: &Container, add: &mut impl FnMut(Referent, &str, Option<bool>)) {
    for EnvFromSource { config_map_ref, secret_ref, .. } in container.env_from.iter().flatten() {
        if let Some(secret) = secret_ref {
            add(Referent::Secret, &secret.name, secret.optional);
        }
        if let Some(map) = config_map_ref {
            add(Referent::ConfigMap, &map.name, map.optional);
        }
    }
    for source in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
        if let Some(secret) = &source.secret_key_ref {
            add(Referent::Secret, &secret.name, secret.optional);
        }
        if let Some(map) = &source.config_map_key_ref {
            add(Referent::ConfigMap, &map.name, map.optional);
        }
    }
}
