//! Looks at what a Group has on the server, from the caches, and turns it into what the planner knows.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use agentcube_api::labels::{
    MIDDLEWARE_APP, MIDDLEWARE_CONFIGURATION, MIDDLEWARE_GROUP, MIDDLEWARE_REVISION, MIDDLEWARE_ROLE,
};
use agentcube_api::{Group, Plugin, Quantity};
use agentcube_operator::children::{self, Standing};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod as KubePod};
use kube::api::Api;
use kube::{Resource, ResourceExt};
use serde_json::Value;

use super::observe::{Claim, Fault, Pod, Set};
use super::revision::Revision;
use crate::agents::{Place, Token};
use crate::core::{Core, Error, MANAGER, TAKEN_FOR, owner};
use crate::outputs::agent_secret;
use crate::preview;

fn is_of<K: Resource>(object: &Arc<K>, group: &Group) -> bool {
    object.meta().labels.as_ref().and_then(|labels| labels.get(MIDDLEWARE_GROUP)) == Some(&group.name_any())
}

fn namespace(group: &Group) -> String {
    group.namespace().unwrap_or_default()
}

/// The Pods of the group's StatefulSet, by ordinal.
pub(crate) fn pods(core: &Core, group: &Group) -> Vec<(Arc<KubePod>, Pod)> {
    let all = core.caches.pods.list(Some(&namespace(group)));
    let mut pods: Vec<(Arc<KubePod>, Pod)> = all
        .into_iter()
        .filter(|pod| is_of(pod, group))
        .filter_map(|pod| Some((pod.clone(), seen(&pod)?)))
        .collect();
    pods.sort_by_key(|(_, pod)| pod.ordinal);
    pods
}

pub(crate) fn seen(pod: &KubePod) -> Option<Pod> {
    let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    if owner.kind != "StatefulSet" {
        return None;
    }
    let name = pod.name_any();
    let ordinal = name.strip_prefix(&owner.name)?.strip_prefix('-')?.parse().ok()?;
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let label = |key: &str| pod.labels().get(key).cloned();
    let homeless = conditions.iter().find(|one| {
        one.type_ == "PodScheduled" && one.status == "False" && one.reason.as_deref() == Some("Unschedulable")
    });
    let ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
    Some(Pod {
        homeless: homeless.map(|one| one.message.clone().unwrap_or_default()),
        ordinal,
        uid: pod.uid().unwrap_or_default(),
        ready,
        shown_ready: ready,
        terminating: pod.metadata.deletion_timestamp.is_some(),
        revision: label(MIDDLEWARE_REVISION).unwrap_or_default(),
        configuration: pod.annotations().get(MIDDLEWARE_CONFIGURATION).cloned().unwrap_or_default(),
        created: pod.creation_timestamp().map_or(Timestamp::MIN, |time| time.0),
        labelled: label(MIDDLEWARE_ROLE),
        taken_for: pod.annotations().get(TAKEN_FOR).cloned(),
        address: pod.status.as_ref().and_then(|status| status.pod_ip.clone()),
        name,
    })
}

pub(crate) fn place(core: &Core, pod: &KubePod) -> Place {
    let namespace = pod.namespace().unwrap_or_default();
    let app = pod.labels().get(MIDDLEWARE_APP).cloned().unwrap_or_default();
    let secret = core.caches.secrets.get(&namespace, &agent_secret(&app));
    let token = secret.and_then(|secret| secret.data.as_ref()?.get("token").cloned());
    Place {
        token: token.and_then(|token| String::from_utf8(token.0).ok()).map(Token::new),
        namespace,
        pod: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        address: pod.status.as_ref().and_then(|status| status.pod_ip.clone()),
    }
}

/// Where agents of a group can be asked.
pub(crate) fn places(core: &Core, group: &Group) -> Vec<Place> {
    let ready = pods(core, group).into_iter().filter(|(_, pod)| pod.ready && !pod.terminating);
    ready.map(|(pod, _)| place(core, &pod)).collect()
}

pub(crate) fn set(core: &Core, group: &Group) -> Option<Set> {
    let sets = core.caches.sets.list(Some(&namespace(group)));
    let set = sets.iter().find(|set| is_of(set, group))?;
    let spec = set.spec.as_ref()?;
    let templates = spec.volume_claim_templates.as_ref();
    let templates = templates.and_then(|templates| serde_json::to_value(templates).ok()).map(plain);
    Some(Set { replicas: spec.replicas.unwrap_or(1), claim_templates: templates.unwrap_or(Value::Null) })
}

/// Volume templates as they can be applied again: without what the server adds.
fn plain(mut templates: Value) -> Value {
    for template in templates.as_array_mut().into_iter().flatten() {
        if let Some(template) = template.as_object_mut() {
            template.remove("status");
        }
    }
    templates
}

/// Whether every Deployment of the group is rolled out.
pub(crate) fn others_ready(core: &Core, group: &Group) -> bool {
    let done = |deployment: &Arc<Deployment>| {
        let Some(status) = &deployment.status else { return false };
        let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        status.observed_generation == deployment.metadata.generation
            && status.updated_replicas.unwrap_or(0) == wanted
            && status.available_replicas.unwrap_or(0) == wanted
    };
    let all = core.caches.deployments.list(Some(&namespace(group)));
    all.iter().filter(|deployment| is_of(deployment, group)).all(done)
}

/// The claims that the StatefulSet has made. A name is `<template>-<set>-<ordinal>`.
pub(crate) fn claims(core: &Core, group: &Group) -> Vec<Claim> {
    let sets = core.caches.sets.list(Some(&namespace(group)));
    let Some(set) = sets.iter().find(|set| is_of(set, group)).map(|set| set.name_any()) else {
        return Vec::new();
    };
    let of = |claim: &Arc<PersistentVolumeClaim>| {
        let name = claim.name_any();
        let (front, ordinal) = name.rsplit_once('-')?;
        ordinal.parse::<i32>().ok()?;
        let template = front.strip_suffix(&set)?.strip_suffix('-')?.to_owned();
        let requested = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage")?;
        let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage"));
        let capacity = capacity.and_then(|amount| Quantity::from_str(&amount.0).ok());
        Some(Claim { requested: Quantity::from_str(&requested.0).ok()?, capacity, template, name })
    };
    let all = core.caches.claims.list(Some(&namespace(group)));
    all.iter().filter(|claim| is_of(claim, group)).filter_map(of).collect()
}

/// The revisions that are kept, by name, with their numbers.
pub(crate) fn revisions(core: &Core, group: &Group) -> BTreeMap<String, (i64, Revision)> {
    let owned = core.caches.revisions.owned_by(group.metadata.uid.as_deref().unwrap_or_default());
    let read = |kept: &Arc<ControllerRevision>| {
        let revision: Revision = serde_json::from_value(kept.data.as_ref()?.0.clone()).ok()?;
        Some((revision.name.clone(), (kept.revision, revision)))
    };
    owned.iter().filter_map(read).collect()
}

/// An object as it is wanted of the server: ours, and stamped.
pub(crate) fn desired(group: &Group, object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(owner) = owner(group).and_then(|owner| serde_json::to_value(owner).ok()) {
        object["metadata"]["ownerReferences"] = Value::Array(vec![owner]);
    }
    object
}

/// Whether an object is on the server as it should be.
pub(crate) fn stands(core: &Core, group: &Group, object: &Value) -> bool {
    let mut desired = desired(group, object);
    children::stamp(&mut desired);
    let current = core.caches.current(&desired);
    children::compare(&desired, current.as_ref(), MANAGER) == Standing::Same
}

/// The texts of a plugin's templates, by name.
pub(crate) async fn texts(
    core: &Core,
    plugin: &Plugin,
) -> Result<Result<BTreeMap<String, String>, Fault>, Error> {
    let namespace = plugin.namespace().unwrap_or_default();
    let api: Api<ConfigMap> = Api::namespaced(core.client.clone(), &namespace);
    let mut maps = BTreeMap::new();
    for reference in plugin.spec.templates.iter().filter_map(|template| template.config_map_ref.as_ref()) {
        if !maps.contains_key(&reference.name) {
            let found = api.get_opt(&reference.name).await?;
            maps.insert(&reference.name, found.and_then(|map| map.data).unwrap_or_default());
        }
    }
    let (texts, missing) =
        preview::texts(plugin, |map, key| maps.get(&map.to_owned()).and_then(|map| map.get(key).cloned()));
    Ok(match missing.first() {
        None => Ok(texts),
        Some(name) => {
            let wanted = plugin.spec.templates.iter().find(|template| template.name == *name);
            let wanted = wanted.and_then(|template| template.config_map_ref.clone()).unwrap_or_default();
            let message = format!(
                "template {name}: there is no key {} in ConfigMap {namespace}/{}",
                wanted.key, wanted.name
            );
            Err(Fault { reason: agentcube_api::conditions::middleware::REASON_CONFIGURATION, message })
        }
    })
}
