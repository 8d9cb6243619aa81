//! Writes the EndpointSlices of Services with a selector, and the Endpoints that they replace. What somebody else
//! writes for a Service without selector is never touched.

mod apply;
mod desired;
mod legacy;
mod observe;
mod plan;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Client, ResourceExt};
use tokio_util::sync::CancellationToken;

use super::{Caches, Key};
use agentcube_operator::cache::Change;
use agentcube_operator::controller::{Controller, Requeue};
use agentcube_operator::events::Recorder;

const NAME: &str = "endpoint-slice-controller";

/// What a reconcile needs besides the key.
struct Context {
    client: Client,
    caches: Caches,
    events: Recorder,
}

pub async fn run(client: Client, caches: Caches, shutdown: CancellationToken) {
    let events = Recorder::start(client.clone(), NAME, None, shutdown.clone());
    let (of_pods, of_nodes) = (caches.services.clone(), caches.services.clone());
    let controller = Controller::new(NAME)
        .watch(&caches.services, |change| [Key::of(&**change.latest())])
        .watch(&caches.pods, move |change| {
            let services = of_pods.list(change.latest().namespace().as_deref());
            services
                .iter()
                .filter(|service| concerns(service, change))
                .map(|service| Key::of(&**service))
                .collect::<Vec<_>>()
        })
        .watch(&caches.endpoint_slices, |change| {
            change.sides().filter_map(|slice| service_of(slice)).collect::<Vec<_>>()
        })
        .watch(&caches.endpoints, |change: &Change<Endpoints>| {
            change.new.is_none().then(|| Key::of(&**change.latest()))
        })
        // A Pod whose node is not known yet is left out until it is.
        .watch(&caches.nodes, move |change| {
            let appeared = change.old.is_none() || change.new.is_none();
            let services = if appeared { of_nodes.list(None) } else { Vec::new() };
            services.iter().map(|service| Key::of(&**service)).collect::<Vec<_>>()
        });
    tokio::select! {
        () = shutdown.cancelled() => return,
        () = caches.endpoints.synced() => {}
    }
    // Services may have been deleted while nobody looked.
    for endpoints in caches.endpoints.list(None).iter().filter(|endpoints| legacy::is_ours(endpoints)) {
        controller.queue().add(Key::of(&**endpoints));
    }
    let context = Arc::new(Context { client, caches, events });
    controller.run(shutdown, move |key| reconcile(context.clone(), key)).await;
}

/// Whether a Service selects a Pod as it is, or as it was.
fn concerns(service: &Service, change: &Change<Pod>) -> bool {
    change.sides().any(|pod| observe::selects(service, pod))
}

fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let name = slice.labels().get(desired::SERVICE_NAME)?.clone();
    Some(Key { namespace: slice.namespace()?, name })
}

async fn reconcile(context: Arc<Context>, key: Key) -> Result<Requeue, apply::Error> {
    let observed = observe::observe(&context.caches, &key);
    let operations = plan::plan(&observed);
    apply::apply(&context, &observed, operations).await?;
    Ok(Requeue::No)
}
