//! Keeps as many Pods of a template as a ReplicaSet asks for.

mod apply;
mod observe;
mod plan;
mod rank;
mod status;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use kube::core::SelectorExt;
use kube::{Client, ResourceExt};
use tokio_util::sync::CancellationToken;

use super::ownership::controller_of;
use super::{Caches, Key};
use agentcube_operator::cache::Change;
use agentcube_operator::controller::{Controller, Requeue};
use agentcube_operator::events::Recorder;

const NAME: &str = "replicaset-controller";

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
    let lookup = caches.clone();
    let controller = Controller::new(NAME)
        .watch(&caches.replica_sets, |change| [Key::of(&**change.latest())])
        .watch(&caches.pods, move |change| concerned(&lookup, change));
    let context = Arc::new(Context { client, caches, events });
    controller.run(shutdown, move |key| reconcile(context.clone(), key)).await;
}

/// The ReplicaSets that a change of a Pod may concern.
fn concerned(caches: &Caches, change: &Change<Pod>) -> Vec<Key> {
    change.sides().flat_map(|pod| owners(caches, pod)).collect()
}

/// The controller of a Pod, or everyone who could adopt it.
fn owners(caches: &Caches, pod: &Pod) -> Vec<Key> {
    let namespace = pod.namespace().unwrap_or_default();
    if let Some(controller) = controller_of(&pod.metadata) {
        let owner = caches.replica_sets.get(&namespace, &controller.name);
        return owner
            .filter(|owner| owner.uid().as_deref() == Some(&controller.uid))
            .map(|owner| Key::of(&*owner))
            .into_iter()
            .collect();
    }
    let selects = |set: &Arc<ReplicaSet>| {
        let selector = set.spec.as_ref().map(|spec| spec.selector.clone()).unwrap_or_default();
        kube::core::Selector::try_from(selector).is_ok_and(|selector| selector.matches(pod.labels()))
    };
    caches
        .replica_sets
        .list(Some(&namespace))
        .iter()
        .filter(|set| selects(set))
        .map(|set| Key::of(&**set))
        .collect()
}

async fn reconcile(context: Arc<Context>, key: Key) -> Result<Requeue, Error> {
    let Some(observed) = observe::observe(&context.caches, &key)? else { return Ok(Requeue::No) };
    let now = Timestamp::now();
    let operations = plan::plan(&observed, now);
    let outcome = apply::apply(&context, &observed, &operations).await;
    // What was written is seen through the caches, which ask for the next reconcile.
    if outcome.is_ok() && !operations.is_empty() {
        return Ok(Requeue::No);
    }
    let failure = outcome.as_ref().err().and_then(|error| Some((error.reason()?, error.to_string())));
    let next = status::next(&observed, failure, now);
    if let Some(status) = next.status {
        apply::write_status(&context, &observed, status).await.map_err(Error::Status)?;
    }
    outcome?;
    Ok(next.requeue)
}
