//! Claims and volumes in use are not taken away: what admission protects with a finalizer is let go here, once
//! nothing uses it.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Queue, release, work};
use crate::api::{Api, ListRequest, Name};
use crate::status::Status;
use crate::store::EventKind;

const CLAIMS: &str = "persistentvolumeclaims";
const VOLUMES: &str = "persistentvolumes";
const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";

/// A claim or volume that is being deleted, or a namespace in which a Pod has ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Look {
    Claim(Box<str>),
    Volume(Box<str>),
    ClaimsOf(Box<str>),
}

pub(super) fn start(api: &Api, tasks: &mut JoinSet<()>, stopped: &watch::Receiver<bool>) {
    let queue: Arc<Queue<Look>> = Queue::new();
    let feed = queue.clone();
    api.store().observe(Box::new(move |table, event| {
        let object = &event.object;
        match &**table {
            CLAIMS if object.deleting => feed.push(Look::Claim(object.key().into())),
            VOLUMES if object.deleting => feed.push(Look::Volume(object.key().into())),
            "pods" if event.kind != EventKind::Added => feed.push(Look::ClaimsOf(object.namespace().into())),
            _ => {}
        }
    }));
    let api = api.clone();
    work(queue.clone(), tasks, stopped, move |look| {
        let (api, queue) = (api.clone(), queue.clone());
        async move {
            match look {
                Look::Claim(key) => claim(&api, &key).await,
                Look::Volume(name) => volume(&api, &name).await,
                Look::ClaimsOf(namespace) => {
                    let range = crate::store::Range { namespace: Some(&namespace), ..Default::default() };
                    let waiting = api.store().list(CLAIMS, &range, |claim| claim.deleting);
                    for claim in waiting.into_iter().flat_map(|page| page.items) {
                        queue.push(Look::Claim(claim.key().into()));
                    }
                    Ok(())
                }
            }
        }
    });
}

async fn claim(api: &Api, key: &str) -> Result<(), Status> {
    let Some((namespace, name)) = key.split_once('/') else { return Ok(()) };
    let Some(pods) = api.registry().by_kind("v1", "Pod") else { return Ok(()) };
    let request = ListRequest { namespace: Some(namespace), ..ListRequest::default() };
    let in_use = api.list(&pods, &request)?.items.iter().any(|pod| uses(&pod.value(), name));
    if in_use {
        return Ok(());
    }
    let_go(api, "PersistentVolumeClaim", &Name { namespace: Some(namespace), name }, CLAIM_FINALIZER).await
}

/// A Pod that has ended uses nothing any more.
fn uses(pod: &Value, claim: &str) -> bool {
    let over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let volumes = pod["spec"]["volumes"].as_array();
    !over && volumes.into_iter().flatten().any(|v| v["persistentVolumeClaim"]["claimName"] == claim)
}

async fn volume(api: &Api, name: &str) -> Result<(), Status> {
    let Some(object) = api.store().get(VOLUMES, name) else { return Ok(()) };
    if object.value()["status"]["phase"] == "Bound" {
        return Ok(());
    }
    let_go(api, "PersistentVolume", &Name { namespace: None, name }, VOLUME_FINALIZER).await
}

async fn let_go(api: &Api, kind: &str, named: &Name<'_>, finalizer: &str) -> Result<(), Status> {
    let Some(resource) = api.registry().by_kind("v1", kind) else { return Ok(()) };
    let Some(object) = api.store().get(&resource.storage, &named.key()) else { return Ok(()) };
    release(api, &resource, &object, finalizer).await
}
