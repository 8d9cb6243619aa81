//! Carries out what was planned for an App.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentcube_api::labels::{
    MIDDLEWARE_APP, MIDDLEWARE_CANCEL_CONTROL, MIDDLEWARE_CONTROL_TAKEN, MIDDLEWARE_PENDING_CHANGE,
    MIDDLEWARE_PLUGIN, MIDDLEWARE_RETRY_CONTROL,
};
use agentcube_api::middleware::ComponentSpec;
use agentcube_api::{App, Component, Plugin};
use agentcube_operator::controller::Requeue;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::json;

use super::plan::{Observed, Operation, component_name, plan, plugin_name};
use crate::core::{Core, Error, Name, REFUSED_LOOK, owner};
use crate::group::observe::Fault;
use crate::outputs;
use crate::refusals::{self, Key, Refused, form};

/// As what Secrets, policy and ConfigMap of an App are refused.
const OUTPUTS: &str = "outputs";

/// One pass over an App.
pub(crate) async fn reconcile(core: Arc<Core>, key: Name) -> Result<Requeue, Error> {
    let Some(app) = core.caches.apps.get(&key.namespace, &key.name) else {
        core.refused.forget(&(OUTPUTS, key));
        return Ok(Requeue::No);
    };
    let plugin = core.plugin(&key.namespace, &plugin_name(&app.spec.plugin.name, &app.spec.plugin.version));
    let components = components(&core, &app);
    let refused = refused(&core, &app);
    let outputs = leave(&core, &app, plugin.as_deref()).await?;
    let limits = core.options.settings.limits();
    let now = Timestamp::now();
    let plan = plan(&Observed {
        app: &app,
        plugin: plugin.as_deref(),
        components: &components,
        refused: &refused,
        outputs: outputs.as_ref(),
        now,
        since: core.begun,
        limits: &limits,
    });
    core.tell(&*app, &plan.notes);
    for operation in &plan.operations {
        if !apply(&core, &app, &components, operation).await? {
            return Ok(Requeue::After(REFUSED_LOOK));
        }
    }
    if app.metadata.deletion_timestamp.is_none() && outputs.is_none() {
        let ensured = outputs::ensure_metadata(&core, &app).await;
        if keep(&core, &app, ensured)?.is_some() {
            return Ok(Requeue::After(REFUSED_LOOK));
        }
    }
    let resync = core.options.settings.app.resync_period.to_std();
    let wait =
        plan.again.map(|again| std::time::Duration::try_from(again.duration_since(now)).unwrap_or_default());
    Ok(Requeue::After(wait.map_or(resync, |wait| wait.min(resync))))
}

/// Leaves what Pods may need to begin. What the server refuses of that is said, and asked of it again after a while.
async fn leave(core: &Core, app: &App, plugin: Option<&Plugin>) -> Result<Option<Fault>, Error> {
    let Some(plugin) = plugin.filter(|_| app.metadata.deletion_timestamp.is_none()) else { return Ok(None) };
    if let Some(refused) = core.refused.get(&(OUTPUTS, Name::of(app))) {
        return Ok(Some(refused.fault));
    }
    keep(core, app, outputs::ensure(core, app, &plugin.spec).await)
}

/// Keeps and tells what was refused.
fn keep(core: &Core, app: &App, ensured: Result<(), Error>) -> Result<Option<Fault>, Error> {
    let Err(error) = ensured else { return Ok(None) };
    let fault = refusals::of(error)?;
    core.events.warning(app, fault.reason, &fault.message);
    core.refused.keep((OUTPUTS, Name::of(app)), Refused { what: String::new(), fault: fault.clone() });
    Ok(Some(fault))
}

/// The Components of an App, by their names in it.
fn components(core: &Core, app: &App) -> BTreeMap<String, Component> {
    let owned = core.caches.components.owned_by(app.metadata.uid.as_deref().unwrap_or_default());
    let prefix = component_name(&app.name_any(), "");
    let named = |component: &Arc<Component>| {
        Some((component.name_any().strip_prefix(&prefix)?.to_owned(), (**component).clone()))
    };
    owned.iter().filter_map(named).collect()
}

/// What the server does not let Components be, by their names in the App.
fn refused(core: &Core, app: &App) -> BTreeMap<String, Refused> {
    let names = app.spec.components.iter().map(|component| &component.name);
    names.filter_map(|name| Some((name.clone(), core.refused.get(&key(app, name))?))).collect()
}

/// As what a Component is refused.
fn key(app: &App, component: &str) -> Key {
    let (namespace, name) = (app.namespace().unwrap_or_default(), component_name(&app.name_any(), component));
    ("Component", Name { namespace, name })
}

/// Says whether the server took it.
async fn apply(
    core: &Core,
    app: &App,
    components: &BTreeMap<String, Component>,
    operation: &Operation,
) -> Result<bool, Error> {
    let apps = &core.caches.apps;
    let written = match operation {
        Operation::Hold => core.set_finalizer(apps, app, true).await,
        Operation::Release => core.set_finalizer(apps, app, false).await,
        Operation::Take(taken) => {
            let taken = serde_json::to_string(taken).unwrap_or_default();
            let patch = json!({ "metadata": { "resourceVersion": app.resource_version(), "annotations": {
                MIDDLEWARE_RETRY_CONTROL: null, MIDDLEWARE_CANCEL_CONTROL: null, MIDDLEWARE_CONTROL_TAKEN: taken } } });
            core.patch(apps, app, &patch).await.map(drop)
        }
        Operation::DropControl => {
            let patch = json!({ "metadata": { "annotations": { MIDDLEWARE_CONTROL_TAKEN: null } } });
            core.patch(apps, app, &patch).await.map(drop)
        }
        Operation::MarkPending(pending) => {
            let mark = pending.then_some("true");
            let patch = json!({ "metadata": { "annotations": { MIDDLEWARE_PENDING_CHANGE: mark } } });
            core.patch(apps, app, &patch).await.map(drop)
        }
        Operation::WriteStatus(status) => {
            let object = App { status: Some((**status).clone()), ..app.clone() };
            core.write_status(apps, object).await
        }
        Operation::Tell { component, spec } => {
            let (cache, desired) = (&core.caches.components, object(app, component, spec));
            return core.ensure_or_keep(cache, &desired, app, (key(app, component), form(spec))).await;
        }
        Operation::Remove { component } => match components.get(component) {
            Some(component) => core.delete(&core.caches.components, component).await,
            None => Ok(()),
        },
    };
    written.map(|()| true)
}

/// A Component as it is applied.
pub(crate) fn object(app: &App, component: &str, spec: &ComponentSpec) -> Component {
    let mut labels = BTreeMap::from([
        (MIDDLEWARE_APP.to_owned(), app.name_any()),
        (MIDDLEWARE_PLUGIN.to_owned(), app.spec.plugin.name.clone()),
    ]);
    labels.insert("app.kubernetes.io/managed-by".into(), "agentcube".into());
    Component {
        metadata: ObjectMeta {
            name: Some(component_name(&app.name_any(), component)),
            namespace: app.namespace(),
            labels: Some(labels),
            owner_references: owner(app).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: spec.clone(),
        status: None,
    }
}
