//! Keeps the ReplicaSets of a Deployment: one per template, scaled so that the rollout stays within its limits.

mod apply;
mod hash;
mod limits;
mod observe;
mod plan;
mod proportion;
mod revision;
mod rollout;
mod status;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use kube::core::{Selector, SelectorExt};
use kube::{Client, ResourceExt};
use tokio_util::sync::CancellationToken;

use super::ownership::controller_of;
use super::{Caches, Key};
use agentcube_operator::cache::Change;
use agentcube_operator::controller::{Controller, Requeue};
use agentcube_operator::events::Recorder;

const NAME: &str = "deployment-controller";

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("reading what there is: {0}")]
    Observe(#[from] observe::Error),
    #[error(transparent)]
    Apply(#[from] apply::Error),
    #[error("writing the status: {0}")]
    Status(#[source] kube::Error),
}

/// What a reconcile needs besides the key.
struct Context {
    client: Client,
    caches: Caches,
    events: Recorder,
}

pub async fn run(client: Client, caches: Caches, shutdown: CancellationToken) {
    let events = Recorder::start(client.clone(), NAME, None, shutdown.clone());
    let (of_sets, of_pods) = (caches.clone(), caches.clone());
    let controller = Controller::new(NAME)
        .watch(&caches.deployments, |change| [Key::of(&**change.latest())])
        .watch(&caches.replica_sets, move |change| concerned(&of_sets, change))
        .watch(&caches.pods, move |change| waiting(&of_pods, change));
    let context = Arc::new(Context { client, caches, events });
    controller.run(shutdown, move |key| reconcile(context.clone(), key)).await;
}

/// The Deployments that a change of a ReplicaSet may concern.
fn concerned(caches: &Caches, change: &Change<ReplicaSet>) -> Vec<Key> {
    change.sides().flat_map(|set| owners(caches, set)).collect()
}

/// The controller of a ReplicaSet, or everyone who could adopt it.
fn owners(caches: &Caches, set: &ReplicaSet) -> Vec<Key> {
    let namespace = set.namespace().unwrap_or_default();
    if let Some(controller) = controller_of(&set.metadata) {
        let owner = caches.deployments.get(&namespace, &controller.name);
        let owner = owner.filter(|owner| owner.uid().as_deref() == Some(&controller.uid));
        return owner.iter().map(|owner| Key::of(&**owner)).collect();
    }
    let selects = |deployment: &Arc<Deployment>| {
        let selector = deployment.spec.as_ref().map(|spec| spec.selector.clone()).unwrap_or_default();
        Selector::try_from(selector).is_ok_and(|selector| selector.matches(set.labels()))
    };
    let deployments = caches.deployments.list(Some(&namespace));
    deployments.iter().filter(|one| selects(one)).map(|one| Key::of(&**one)).collect()
}

/// The Deployment that waits for the end of its old Pods before it makes new ones.
fn waiting(caches: &Caches, change: &Change<Pod>) -> Option<Key> {
    let (Some(pod), None) = (&change.old, &change.new) else { return None };
    let namespace = pod.namespace().unwrap_or_default();
    let set = caches.replica_sets.get(&namespace, &controller_of(&pod.metadata)?.name)?;
    let deployment = caches.deployments.get(&namespace, &controller_of(&set.metadata)?.name)?;
    (!limits::is_rolling(&deployment)).then(|| Key::of(&*deployment))
}

async fn reconcile(context: Arc<Context>, key: Key) -> Result<Requeue, Error> {
    let Some(observed) = observe::observe(&context.caches, &key)? else { return Ok(Requeue::No) };
    let now = Timestamp::now();
    let plan = plan::plan(&observed, now);
    let outcome = apply::apply(&context, &observed, &plan.operations).await;
    let next = match &outcome {
        Ok(true) => Some(plan.next),
        Ok(false) => None,
        Err(error) => status::after_failure(&observed, error, now),
    };
    if let Some(next) = next.filter(|next| next.differs(&observed.deployment)) {
        apply::write_status(&context, &observed, next).await.map_err(Error::Status)?;
    }
    outcome?;
    Ok(plan.requeue)
}
