//! CustomResourceDefinitions: accepted names become served resources; a deleted one takes its objects along.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Queue, intent, work};
use crate::api::{Api, CLEANUP_FINALIZER as CLEANUP, Creation, DeleteOptions, ListRequest, Name, now};
use crate::resource::Resource;
use crate::status::Status;
use crate::store::EventKind;

const TABLE: &str = "apiextensions.k8s.io/customresourcedefinitions";
const MANAGER: &str = "kube-apiserver";

pub(super) async fn start(api: &Api, tasks: &mut JoinSet<()>, stopped: &watch::Receiver<bool>) {
    let queue: Arc<Queue<Box<str>>> = Queue::new();
    let feed = queue.clone();
    let prefix: Box<str> = "custom/".into();
    api.store().observe(Box::new(move |table, event| {
        if &**table == TABLE {
            feed.push(event.object.name().into());
        } else if event.kind == EventKind::Deleted
            && let Some(definition) = table.strip_prefix(&*prefix)
        {
            // The definition may be waiting for its last object.
            feed.push(definition.into());
        }
    }));
    let controller = Arc::new(Controller { api: api.clone() });
    let page = api.store().list(TABLE, &crate::store::Range::default(), |_| true);
    for object in page.into_iter().flat_map(|page| page.items) {
        if let Err(problem) = controller.look(object.name()).await {
            tracing::warn!(%problem, definition = object.name(), "definition is not served yet");
        }
    }
    work(queue, tasks, stopped, move |name| {
        let controller = controller.clone();
        async move { controller.look(&name).await }
    });
}

/// The names that a definition gets, and why not all of them.
struct Names {
    accepted: Value,
    conflict: Option<(&'static str, String)>,
}

struct Controller {
    api: Api,
}

impl Controller {
    async fn look(&self, name: &str) -> Result<(), Status> {
        let Some(object) = self.api.store().get(TABLE, name) else {
            if let Some((plural, group)) = name.split_once('.') {
                self.api.update_registry(|registry| registry.remove(group, plural));
            }
            return Ok(());
        };
        let definition = object.value();
        if object.deleting {
            return self.clean_up(name, &definition).await;
        }
        let names = self.accept(name, &definition);
        if names.conflict.is_none() {
            self.serve(name, &definition);
        }
        self.report(name, definition, names).await
    }

    /// Makes every served version answer.
    fn serve(&self, name: &str, definition: &Value) {
        let resources = Resource::custom(name, definition);
        let group = definition["spec"]["group"].as_str().unwrap_or_default();
        let plural = definition["spec"]["names"]["plural"].as_str().unwrap_or_default();
        self.api.update_registry(|registry| {
            registry.remove(group, plural);
            for resource in resources {
                registry.insert(resource);
            }
        });
    }

    /// Which names are free in the group. The last conflict found is the one that is told.
    fn accept(&self, name: &str, definition: &Value) -> Names {
        let spec = &definition["spec"];
        let wanted = &spec["names"];
        let group = spec["group"].as_str().unwrap_or_default();
        let registry = self.api.registry();
        let others: Vec<_> = registry.all().filter(|r| r.group == group && !r.is_defined_by(name)).collect();
        // Resource names share one space, kinds another.
        let resource_taken = |text: &str| {
            others
                .iter()
                .any(|r| r.plural == text || r.singular == text || r.short_names.iter().any(|s| s == text))
        };
        let kind_taken = |text: &str| others.iter().any(|r| r.kind == text || r.list_kind == text);
        let mut names = Names { accepted: json!({"kind": "", "plural": ""}), conflict: None };
        let mut judge = |key: &str, taken: &dyn Fn(&str) -> bool, reason: &'static str| {
            let Some(text) = wanted[key].as_str() else { return };
            match taken(text) {
                true => names.conflict = Some((reason, format!("\"{text}\" is already in use"))),
                false => names.accepted[key] = text.into(),
            }
        };
        judge("plural", &resource_taken, "PluralConflict");
        judge("singular", &resource_taken, "SingularConflict");
        judge("kind", &kind_taken, "KindConflict");
        judge("listKind", &kind_taken, "ListKindConflict");
        let short: Vec<&str> =
            wanted["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        match short.iter().find(|text| resource_taken(text)) {
            Some(text) => {
                names.conflict = Some(("ShortNamesConflict", format!("\"{text}\" is already in use")))
            }
            None if !short.is_empty() => names.accepted["shortNames"] = json!(short),
            None => {}
        }
        if let Some(categories) = wanted["categories"].as_array().filter(|list| !list.is_empty()) {
            names.accepted["categories"] = categories.clone().into();
        }
        names
    }

    async fn report(&self, name: &str, mut definition: Value, names: Names) -> Result<(), Status> {
        let before = definition.clone();
        definition["status"]["acceptedNames"] = names.accepted;
        match names.conflict {
            Some((reason, message)) => {
                set_condition(&mut definition, "NamesAccepted", "False", reason, &message);
                if !condition_is(&definition, "Established", "True") {
                    set_condition(
                        &mut definition,
                        "Established",
                        "False",
                        "NotAccepted",
                        "not all names are accepted",
                    );
                }
            }
            None => {
                set_condition(&mut definition, "NamesAccepted", "True", "NoConflicts", "no conflicts found");
                let message = "the initial names have been accepted";
                set_condition(&mut definition, "Established", "True", "InitialNamesAccepted", message);
            }
        }
        store_version(&mut definition);
        if definition == before { Ok(()) } else { self.write(name, definition, "status").await }
    }

    /// Deletes every object of the kind, then the definition itself.
    async fn clean_up(&self, name: &str, definition: &Value) -> Result<(), Status> {
        let finalizers = definition["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        if !finalizers.iter().any(|f| f == CLEANUP) {
            return Ok(());
        }
        let served = self.api.registry().all().find(|r| r.is_defined_by(name)).cloned();
        if let Some(resource) = served {
            let everything = ListRequest::default();
            self.api.delete_collection(&resource, &everything, &DeleteOptions::default()).await?;
            if !self.api.list(&resource, &everything)?.items.is_empty() {
                return Ok(());
            }
        }
        let mut released = definition.clone();
        let rest: Vec<Value> = finalizers.into_iter().filter(|f| f != CLEANUP).collect();
        released["metadata"]["finalizers"] = rest.into();
        self.write(name, released, "").await
    }

    async fn write(&self, name: &str, mut value: Value, subresource: &str) -> Result<(), Status> {
        let Some(resource) =
            self.api.registry().by_kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")
        else {
            return Ok(());
        };
        value["apiVersion"] = "apiextensions.k8s.io/v1".into();
        value["kind"] = "CustomResourceDefinition".into();
        let named = Name { namespace: None, name };
        let body = Creation::from(value);
        match self.api.update(&resource, &named, subresource, body, &intent(MANAGER)).await {
            Ok(_) => Ok(()),
            Err(status) if status.reason == "NotFound" => Ok(()),
            Err(status) => Err(status),
        }
    }
}

fn condition_is(definition: &Value, kind: &str, status: &str) -> bool {
    let conditions = definition["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == kind && c["status"] == status)
}

fn set_condition(definition: &mut Value, kind: &str, status: &str, reason: &str, message: &str) {
    if !definition["status"]["conditions"].is_array() {
        definition["status"]["conditions"] = json!([]);
    }
    let Some(conditions) = definition["status"]["conditions"].as_array_mut() else { return };
    let condition = json!({
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now(),
    });
    match conditions.iter_mut().find(|c| c["type"] == kind) {
        Some(existing) if existing["status"] == status && existing["reason"] == reason => {}
        Some(existing) => *existing = condition,
        None => conditions.push(condition),
    }
}

fn store_version(definition: &mut Value) {
    let versions = definition["spec"]["versions"].as_array().cloned().unwrap_or_default();
    let stored = versions.iter().find(|v| v["storage"] == true).map(|v| v["name"].clone());
    let mut all = definition["status"]["storedVersions"].as_array().cloned().unwrap_or_default();
    if let Some(stored) = stored
        && !all.contains(&stored)
    {
        all.push(stored);
    }
    definition["status"]["storedVersions"] = all.into();
}
