//! StatefulSets: Pods with names and storage of their own, made, replaced and removed in order.

mod apply;
mod claims;
mod identity;
mod observe;
mod plan;
mod revisions;
mod status;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Client, ResourceExt};
use tokio_util::sync::CancellationToken;

use super::ownership::{Claim, controller_of};
use super::{Caches, Key};
use agentcube_operator::controller::{Controller, Requeue};
use agentcube_operator::events::Recorder;

const NAME: &str = "statefulset-controller";

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Observe(#[from] observe::Error),
    #[error(transparent)]
    Apply(#[from] apply::Error),
}

/// What a reconcile needs besides the key.
struct Context {
    client: Client,
    caches: Caches,
    events: Recorder,
}

pub async fn run(client: Client, caches: Caches, shutdown: CancellationToken) {
    let events = Recorder::start(client.clone(), NAME, None, shutdown.clone());
    let (of_pods, of_claims) = (caches.clone(), caches.clone());
    let controller = Controller::new(NAME)
        .watch(&caches.stateful_sets, |change| [Key::of(&**change.latest())])
        .watch(&caches.pods, move |change| {
            change.sides().flat_map(|pod| owners(&of_pods, pod)).collect::<Vec<_>>()
        })
        .watch(&caches.claims, move |change| claimants(&of_claims, change.latest()))
        .needs(&caches.controller_revisions);
    let context = Arc::new(Context { client, caches, events });
    controller.run(shutdown, move |key| reconcile(context.clone(), key)).await;
}

/// The controller of a Pod, or everyone who could adopt it.
fn owners(caches: &Caches, pod: &Pod) -> Vec<Key> {
    let namespace = pod.namespace().unwrap_or_default();
    if let Some(controller) = controller_of(&pod.metadata) {
        let owner = caches.stateful_sets.get(&namespace, &controller.name);
        let owner = owner.filter(|owner| owner.uid().as_deref() == Some(&controller.uid));
        return owner.map(|owner| Key::of(&*owner)).into_iter().collect();
    }
    let adopts = |set: &Arc<StatefulSet>| {
        observe::selector(set).is_ok_and(|selector| observe::claim(set, &selector, pod) == Claim::Adopt)
    };
    let sets = caches.stateful_sets.list(Some(&namespace));
    sets.iter().filter(|set| adopts(set)).map(|set| Key::of(&**set)).collect()
}

/// The sets that would give this name to a claim: a Pod may wait for it to come or to go.
fn claimants(caches: &Caches, claim: &PersistentVolumeClaim) -> Vec<Key> {
    let name = claim.name_any();
    let Some((stem, _)) = identity::parse(&name) else { return Vec::new() };
    let gives = |set: &Arc<StatefulSet>| {
        let names =
            identity::claim_templates(set).iter().map(|one| format!("{}-{}", one.name_any(), set.name_any()));
        names.into_iter().any(|name| name == stem)
    };
    let sets = caches.stateful_sets.list(Some(&claim.namespace().unwrap_or_default()));
    sets.iter().filter(|set| gives(set)).map(|set| Key::of(&**set)).collect()
}

async fn reconcile(context: Arc<Context>, key: Key) -> Result<Requeue, Error> {
    let Some(observed) = observe::observe(&context.caches, &key)? else { return Ok(Requeue::No) };
    let plan = plan::plan(&observed, Timestamp::now());
    let apply = apply::Apply { context: &context, set: &observed.set };
    // The status tells what was observed, so it is written even if not everything could be done.
    let done = apply.all(plan.operations).await;
    if matches!(done, Ok(false)) {
        // What is newer was written through, and asks for the next reconcile.
        return Ok(Requeue::No);
    }
    if observed.set.status.as_ref().is_none_or(|held| !status::is_same(held, &plan.status)) {
        apply.status(plan.status).await?;
    }
    done?;
    Ok(plan.requeue.map_or(Requeue::No, Requeue::After))
}
