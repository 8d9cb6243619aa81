//! Carries out what was planned for a Component.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentcube_api::labels::{MIDDLEWARE_APP, MIDDLEWARE_COMPONENT, MIDDLEWARE_PLUGIN};
use agentcube_api::middleware::GroupSpec;
use agentcube_api::{Component, Group};
use agentcube_operator::controller::Requeue;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ObjectMeta;

use super::plan::{Observed, Operation, Question, group_name, plan};
use crate::agents::within;
use crate::core::{Core, Error, Name, REFUSED_LOOK, owner};
use crate::group::look;
use crate::order::Order;
use crate::refusals::{Key, Refused, form};

/// One pass over a Component.
pub(crate) async fn reconcile(core: Arc<Core>, key: Name) -> Result<Requeue, Error> {
    let Some(component) = core.caches.components.get(&key.namespace, &key.name) else {
        return Ok(Requeue::No);
    };
    let groups = groups(&core, &component);
    let now = Timestamp::now();
    let refused = refused(&core, &component);
    let observed =
        |answer| Observed { component: &component, groups: &groups, refused: &refused, answer, now };
    let mut planned = plan(&observed(None));
    if let Some(question) = &planned.question {
        let answer = ask(&core, &component, &groups, question).await;
        planned = plan(&observed(Some(&answer)));
    }
    for operation in &planned.operations {
        if !apply(&core, &component, &groups, operation).await? {
            return Ok(Requeue::After(REFUSED_LOOK));
        }
    }
    Ok(Requeue::After(core.options.settings.component.resync_period.to_std()))
}

/// Any Pod that is ready can tell the order.
async fn ask(
    core: &Core,
    component: &Component,
    groups: &BTreeMap<String, Group>,
    question: &Question,
) -> Result<Order, String> {
    let limit = core.options.settings.component.grpc_timeout.to_std();
    let places = groups.values().flat_map(|group| look::places(core, group));
    let mut last = Err("no Pod of it is ready".to_owned());
    for place in places {
        let name = component.name_any();
        let answer = core.agents.group_order(&place, &name, question.scenario, &question.groups);
        last = within(limit, answer).await;
        if last.is_ok() {
            break;
        }
    }
    last
}

fn groups(core: &Core, component: &Component) -> BTreeMap<String, Group> {
    let owned = core.caches.groups.owned_by(component.metadata.uid.as_deref().unwrap_or_default());
    let prefix = group_name(&component.name_any(), "");
    let named =
        |group: &Arc<Group>| Some((group.name_any().strip_prefix(&prefix)?.to_owned(), (**group).clone()));
    owned.iter().filter_map(named).collect()
}

/// What the server does not let Groups be, by their names in the Component.
fn refused(core: &Core, component: &Component) -> BTreeMap<String, Refused> {
    let names = component.spec.groups.iter().map(|group| &group.name);
    names.filter_map(|name| Some((name.clone(), core.refused.get(&key(component, name))?))).collect()
}

/// As what a Group is refused.
fn key(component: &Component, group: &str) -> Key {
    let namespace = component.namespace().unwrap_or_default();
    ("Group", Name { namespace, name: group_name(&component.name_any(), group) })
}

/// Says whether the server took it.
async fn apply(
    core: &Core,
    component: &Component,
    groups: &BTreeMap<String, Group>,
    operation: &Operation,
) -> Result<bool, Error> {
    let components = &core.caches.components;
    let written = match operation {
        Operation::Hold => core.set_finalizer(components, component, true).await,
        Operation::Release => core.set_finalizer(components, component, false).await,
        Operation::WriteStatus(status) => {
            let object = Component { status: Some((**status).clone()), ..component.clone() };
            core.write_status(components, object).await
        }
        Operation::Tell { group, spec } => {
            let (cache, desired) = (&core.caches.groups, object(component, group, spec));
            return core
                .ensure_or_keep(cache, &desired, component, (key(component, group), form(spec)))
                .await;
        }
        Operation::Remove { group } => match groups.get(group) {
            Some(group) => core.delete(&core.caches.groups, group).await,
            None => Ok(()),
        },
    };
    written.map(|()| true)
}

/// A Group as it is applied.
pub(crate) fn object(component: &Component, group: &str, spec: &GroupSpec) -> Group {
    let mut labels = BTreeMap::from([(MIDDLEWARE_COMPONENT.to_owned(), component.name_any())]);
    for label in [MIDDLEWARE_APP, MIDDLEWARE_PLUGIN, "app.kubernetes.io/managed-by"] {
        if let Some(value) = component.labels().get(label) {
            labels.insert(label.into(), value.clone());
        }
    }
    Group {
        metadata: ObjectMeta {
            name: Some(group_name(&component.name_any(), group)),
            namespace: component.namespace(),
            labels: Some(labels),
            owner_references: owner(component).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: spec.clone(),
        status: None,
    }
}
