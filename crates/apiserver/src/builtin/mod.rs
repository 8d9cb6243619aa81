//! The built-in kinds: what they are called, their defaults, their rules and how they are prepared for storage.
//!
//! Everything is a pure function of objects. State that a rule needs (a free cluster IP, a PriorityClass) is the
//! caller's to provide. A write passes through, in this order: [`Kind::decode`], [`Kind::admit_create`] or
//! [`Kind::admit_update`], [`Kind::prepare_create`] (with uid, name and timestamps already set) or
//! [`Kind::prepare_update`], then validation.

pub(crate) mod access;
mod cluster;
mod config;
mod cron;
mod definitions;
mod diff;
mod endpoints;
pub mod events;
mod fields;
mod job;
mod kinds;
mod layout;
pub mod metadata;
pub(crate) mod names;
mod network;
pub mod pod;
pub mod quantity;
mod rbac;
mod resources;
pub mod scale;
pub(crate) mod selector;
pub mod service;
pub mod shape;
mod storage;
#[cfg(test)]
mod tests;
mod workloads;

use serde_json::Value;

pub use access::{Errors, Path};
use access::{Peek, Poke, top};
pub use kinds::KINDS;
use metadata::NameRule;

/// A built-in kind as the server serves it.
pub struct Kind {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub namespaced: bool,
    /// Its name in `schemas.json`.
    pub definition: &'static str,
    /// Its name in `shapes.json`.
    pub shape: &'static str,
    pub verbs: &'static [&'static str],
    pub subresources: &'static [Subresource],
    /// Beside `metadata.name` and, for namespaced kinds, `metadata.namespace`.
    pub selectable: &'static [&'static str],
    /// Kinds with the same storage are views of the same objects.
    pub storage: &'static str,
    pub storage_hash: &'static str,
    pub name_rule: NameRule,
    /// Finalizers need a prefix, or are Kubernetes' own.
    pub known_finalizers: bool,
    pub recheck: Recheck,
    pub generation: Generation,
    /// The struct of `status` in `shapes.json`, for kinds whose main endpoint leaves the status alone.
    pub status: Option<&'static str>,
    /// An update without `resourceVersion` is allowed.
    pub unconditional_update: bool,
    /// A PUT of an object that does not exist creates it.
    pub create_on_update: bool,
    pub strategy: &'static Strategy,
}

/// Something served under an object: `pods/log`.
pub struct Subresource {
    pub name: &'static str,
    /// Group and version, where they differ from those of the kind.
    pub group_version: Option<(&'static str, &'static str)>,
    pub kind: &'static str,
    pub verbs: &'static [&'static str],
}

/// What a kind says about changed metadata on its own account. Every change is checked once anyway; the real server
/// repeats itself in `details.causes`, and so do we.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recheck {
    Nothing,
    /// How metadata changed.
    Change,
    /// How metadata changed, and what it is now.
    Whole,
}

/// Which changes raise `metadata.generation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// The kind has none.
    None,
    /// Changes of `spec`.
    Spec,
    /// Changes of `spec` or of annotations.
    SpecOrAnnotations,
    /// Changes of `template`.
    Template,
    /// Changes of anything but metadata, or of labels.
    AllOrLabels,
    /// It stays 1.
    Fixed,
}

/// What a kind does with its objects. The fields that all objects share are not its business.
pub struct Strategy {
    /// A new object may bring its status along: nodes.
    pub status_on_create: bool,
    /// The defaults of the API version; applied to whatever a client sends.
    pub defaults: fn(&mut Value),
    /// What admission adds to a new object.
    pub admit: fn(&mut Value),
    /// What admission adds to a changed object.
    pub admit_update: fn(&mut Value, &Value),
    /// The last preparation of a new object; the text is the time.
    pub create: fn(&mut Value, &str),
    /// The last preparation of a changed object.
    pub update: fn(&mut Value, &Value),
    /// As `update`, on the status endpoint.
    pub update_status: fn(&mut Value, &Value, &str),
    pub validate: fn(&Value, &mut Errors),
    /// Runs after metadata is validated; includes what `validate` says where the real server does.
    pub validate_update: fn(&Value, &Value, &mut Errors),
    pub validate_status: fn(&Value, &Value, &mut Errors),
}

/// A strategy that does nothing; the base of all others.
pub(crate) const PLAIN: Strategy = Strategy {
    status_on_create: false,
    defaults: |_| {},
    admit: |_| {},
    admit_update: |_, _| {},
    create: |_, _| {},
    update: |_, _| {},
    update_status: |_, _, _| {},
    validate: |_, _| {},
    validate_update: |_, _, _| {},
    validate_status: |_, _, _| {},
};

/// The kind served as `group/version`, by its plural name.
pub fn by_resource(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
}

/// The kind of an object.
pub fn by_kind(api_version: &str, name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.kind == name && kind.is_version(api_version))
}

impl Kind {
    fn is_version(&self, api_version: &str) -> bool {
        match api_version.split_once('/') {
            Some((group, version)) => self.group == group && self.version == version,
            None => self.group.is_empty() && self.version == api_version,
        }
    }

    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Brings what a client sent into the form of the kind: empty values, quantities, times, defaults.
    pub fn decode(&self, object: &mut Value) {
        shape::conform(object, self.shape);
        if let Some(metadata) = object.part("metadata") {
            metadata.unset("selfLink");
        }
        (self.strategy.defaults)(object);
    }

    /// What admission adds to a new object.
    pub fn admit_create(&self, object: &mut Value) {
        (self.strategy.admit)(object);
    }

    /// What admission adds to a changed object.
    pub fn admit_update(&self, new: &mut Value, old: &Value) {
        (self.strategy.admit_update)(new, old);
    }

    /// The last change to a new object before it is validated. `metadata` has its name, namespace and uid; `now` is
    /// an RFC 3339 time in seconds.
    pub fn prepare_create(&self, object: &mut Value, now: &str) {
        if let Some(shape) = self.status
            && !self.strategy.status_on_create
        {
            object.set("status", shape::zero(shape));
        }
        if self.generation != Generation::None
            && let Some(metadata) = object.make("metadata")
        {
            metadata.set("generation", 1);
        }
        (self.strategy.create)(object, now);
    }

    /// The last change to an object that the main endpoint updates: status stays, generation follows the spec.
    pub fn prepare_update(&self, new: &mut Value, old: &Value) {
        if self.status.is_some() {
            copy(new, old, "status");
        }
        keep_generation(new, old);
        (self.strategy.update)(new, old);
        if self.bumps(new, old)
            && let Some(metadata) = new.make("metadata")
        {
            let generation = old.sub("metadata").int_of("generation").unwrap_or_default();
            metadata.set("generation", generation + 1);
        }
    }

    /// The last change to an object that the status endpoint updates: only the status and metadata change.
    pub fn prepare_status_update(&self, new: &mut Value, old: &Value, now: &str) {
        keep_generation(new, old);
        if self.status.is_some() {
            copy(new, old, "spec");
        }
        (self.strategy.update_status)(new, old, now);
    }

    fn bumps(&self, new: &Value, old: &Value) -> bool {
        let differs = |key: &str| new.sub(key) != old.sub(key);
        let meta_differs = |key: &str| new.sub("metadata").sub(key) != old.sub("metadata").sub(key);
        match self.generation {
            Generation::None | Generation::Fixed => false,
            Generation::Spec => differs("spec"),
            Generation::SpecOrAnnotations => differs("spec") || meta_differs("annotations"),
            Generation::Template => differs("template"),
            Generation::AllOrLabels => {
                let keys = |value: &Value| value.as_object().map_or(0, serde_json::Map::len);
                let all = new.as_object().into_iter().flatten();
                meta_differs("labels")
                    || keys(new) != keys(old)
                    || all.filter(|(key, _)| *key != "metadata").any(|(key, value)| value != old.sub(key))
            }
        }
    }

    /// What is wrong with a new object.
    pub fn validate(&self, object: &Value) -> Errors {
        let mut errors = Errors::new();
        self.validate_metadata(object, &mut errors);
        (self.strategy.validate)(object, &mut errors);
        errors
    }

    fn validate_metadata(&self, object: &Value, errors: &mut Errors) {
        let options =
            metadata::Options { namespaced: self.namespaced, known_finalizers: self.known_finalizers };
        metadata::validate(object.sub("metadata"), self.name_rule, options, &top("metadata"), errors);
    }

    /// The checks of metadata that every change passes.
    fn validate_changed_metadata(&self, new: &Value, old: &Value, recheck: Recheck, errors: &mut Errors) {
        let (path, now, before) = (top("metadata"), new.sub("metadata"), old.sub("metadata"));
        let options = metadata::Options { namespaced: self.namespaced, known_finalizers: false };
        metadata::validate(now, NameRule::PathSegment, options, &path, errors);
        metadata::validate_update(now, before, &path, errors);
        if recheck == Recheck::Nothing {
            return;
        }
        metadata::validate_update(now, before, &path, errors);
        if self.known_finalizers {
            metadata::known_finalizers(now, &path.child("finalizers"), errors);
        }
        if recheck == Recheck::Whole {
            self.validate_metadata(new, errors);
        }
    }

    /// What is wrong with a change by the main endpoint.
    pub fn validate_update(&self, new: &Value, old: &Value) -> Errors {
        let mut errors = Errors::new();
        self.validate_changed_metadata(new, old, self.recheck, &mut errors);
        (self.strategy.validate_update)(new, old, &mut errors);
        errors
    }

    /// What is wrong with a change by the status endpoint.
    pub fn validate_status_update(&self, new: &Value, old: &Value) -> Errors {
        let mut errors = Errors::new();
        let recheck = if self.recheck == Recheck::Nothing { Recheck::Nothing } else { Recheck::Change };
        self.validate_changed_metadata(new, old, recheck, &mut errors);
        (self.strategy.validate_status)(new, old, &mut errors);
        errors
    }
}

/// Takes a field as the old object has it.
fn copy(new: &mut Value, old: &Value, key: &str) {
    match old.get(key) {
        Some(value) => new.set(key, value.clone()),
        None => {
            new.unset(key);
        }
    }
}

/// No request sets the generation.
fn keep_generation(new: &mut Value, old: &Value) {
    if let Some(metadata) = new.make("metadata") {
        copy(metadata, old.sub("metadata"), "generation");
    }
}
