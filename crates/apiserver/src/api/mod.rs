//! The operations on objects, below HTTP: create, read, update, patch, delete, watch.
//!
//! Every write is: read what is there, compute what should be, write it on the condition that nobody wrote in
//! between, and start over if somebody did. Nothing here holds a lock across an await.

mod create;
mod delete;
mod identity;
mod patch;
mod read;
mod subresources;
mod update;
mod watch;

use std::sync::Arc;

use parking_lot::RwLock;
use serde_json::Value;

pub use create::Creation;
pub(crate) use delete::CLEANUP_FINALIZER;
pub use delete::{DeleteOptions, Propagation};
pub use identity::now;
pub use patch::PatchKind;
pub use read::{ListRequest, Listing};
pub use watch::{WatchRequest, Watcher};

use crate::allocate::Addresses;
use crate::builtin::pod;
use crate::faults::Faults;
use crate::hooks::Hooks;
use crate::merge::managed::Writer;
use crate::registry::Registry;
use crate::resource::Resource;
use crate::status::{FieldError, Status};
use crate::store::{Object, Store};

/// A cheap handle to the whole API.
#[derive(Clone)]
pub struct Api {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    registry: RwLock<Arc<Registry>>,
    addresses: Addresses,
    faults: Faults,
    hooks: RwLock<Hooks>,
}

/// Who writes and how strictly.
#[derive(Debug, Clone, Default)]
pub struct Intent {
    /// The field manager.
    pub manager: String,
    pub dry_run: bool,
    pub validation: FieldValidation,
}

/// What to do about fields that the schema does not know, or that stand twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// What a write left behind.
#[derive(Debug)]
pub struct Written {
    pub body: Body,
    /// Whether the object is new.
    pub created: bool,
    /// For the `Warning` header.
    pub warnings: Vec<String>,
}

/// An answer: as it is stored, or made for this request alone.
#[derive(Debug, Clone)]
pub enum Body {
    Stored(Arc<Object>),
    Fresh(Value),
}

impl Body {
    pub fn into_value(self) -> Value {
        match self {
            Self::Stored(object) => object.value(),
            Self::Fresh(value) => value,
        }
    }
}

/// The name of an object within its resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name<'a> {
    pub namespace: Option<&'a str>,
    pub name: &'a str,
}

impl Name<'_> {
    pub fn key(&self) -> Box<str> {
        match self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name).into(),
            None => self.name.into(),
        }
    }
}

impl Api {
    pub fn new(store: Store, faults: Faults) -> Self {
        let addresses = Addresses::default();
        let page = store.list("services", &crate::store::Range::default(), |_| true);
        for object in page.into_iter().flat_map(|page| page.items) {
            addresses.adopt(&object.value());
        }
        let registry = RwLock::new(Arc::new(Registry::builtin()));
        let inner = Inner { store, registry, addresses, faults, hooks: RwLock::new(Hooks::default()) };
        Self { inner: Arc::new(inner) }
    }

    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    pub fn faults(&self) -> &Faults {
        &self.inner.faults
    }

    pub fn hooks(&self) -> Hooks {
        self.inner.hooks.read().clone()
    }

    /// Gives the server what only a node can answer: logs and exec.
    pub fn set_hooks(&self, hooks: Hooks) {
        *self.inner.hooks.write() = hooks;
    }

    /// The resources served now.
    pub fn registry(&self) -> Arc<Registry> {
        self.inner.registry.read().clone()
    }

    pub(crate) fn update_registry(&self, change: impl FnOnce(&mut Registry)) {
        let mut current = self.inner.registry.write();
        let mut next = (**current).clone();
        change(&mut next);
        *current = Arc::new(next);
    }

    /// The object, or the 404 that clients know.
    pub fn find(&self, resource: &Resource, name: &Name<'_>) -> Result<Arc<Object>, Status> {
        self.store()
            .get(&resource.storage, &name.key())
            .ok_or_else(|| Status::not_found(&resource.group, &resource.plural, name.name))
    }

    /// Refuses writes into namespaces that are not there; new objects also in those that are going away.
    fn check_namespace(&self, resource: &Resource, name: &Name<'_>, creating: bool) -> Result<(), Status> {
        let Some(namespace) = name.namespace else { return Ok(()) };
        let Some(found) = self.store().get("namespaces", namespace) else {
            return Err(Status::not_found("", "namespaces", namespace));
        };
        if creating && found.deleting {
            let detail = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            let mut status = Status::forbidden(&resource.group, &resource.plural, name.name, &detail);
            let cause = serde_json::json!([{
                "reason": "NamespaceTerminating",
                "message": format!("namespace {namespace} is being terminated"),
                "field": "metadata.namespace",
            }]);
            status.details.insert("causes".into(), cause);
            return Err(status);
        }
        Ok(())
    }

    fn invalid(&self, resource: &Resource, name: &str, errors: &[FieldError]) -> Result<(), Status> {
        if errors.is_empty() {
            return Ok(());
        }
        Err(Status::invalid(resource.spoken_group(), &resource.kind, name, errors))
    }

    /// Resolves what a new Pod refers to outside itself. A refusal calls it `name`.
    fn admit(&self, resource: &Resource, name: &str, value: &mut Value) -> Result<(), Status> {
        resource.admit(value);
        if &*resource.storage != "pods" {
            return Ok(());
        }
        let Some(class) = value["spec"]["priorityClassName"].as_str().filter(|name| !name.is_empty()) else {
            return Ok(());
        };
        match self.store().get("scheduling.k8s.io/priorityclasses", class) {
            Some(found) => {
                pod::set_priority(value, &found.value());
                Ok(())
            }
            None => {
                let detail = format!("no PriorityClass with name {class} was found");
                Err(Status::forbidden("", "pods", name, &detail))
            }
        }
    }

    /// Gives a Service the addresses and ports it asks for but does not name.
    fn allocate(
        &self,
        resource: &Resource,
        value: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
    ) -> Result<(), Status> {
        if &*resource.storage != "services" {
            return Ok(());
        }
        self.inner.addresses.assign(value, old, dry_run).map_err(|errors| {
            Status::invalid(
                &resource.group,
                &resource.kind,
                value["metadata"]["name"].as_str().unwrap_or_default(),
                &errors,
            )
        })?;
        Ok(())
    }
}

impl FieldValidation {
    /// Unknown and duplicate fields: an error or a warning, as the caller asked.
    fn judge(
        self,
        resource: &Resource,
        problems: Vec<String>,
        warnings: &mut Vec<String>,
    ) -> Result<(), Status> {
        match self {
            Self::Strict if !problems.is_empty() => {
                return Err(Status::bad_request(resource.strict_decoding_error(&problems)));
            }
            Self::Strict | Self::Ignore => {}
            Self::Warn => warnings.extend(problems),
        }
        Ok(())
    }
}

impl Intent {
    fn writer<'a>(&'a self, subresource: &'a str, now: &'a str) -> Writer<'a> {
        // Writes through `/scale` are recorded without a time, as in the real server.
        let now = if subresource == "scale" { "" } else { now };
        Writer { manager: &self.manager, subresource, now }
    }
}
