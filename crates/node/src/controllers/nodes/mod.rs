//! Taints that repeat what a Node says of itself: its conditions, and that it is cordoned. New Nodes come with the
//! taint `not-ready`, which goes once they are ready. Never touches the taints of others.

mod taints;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Caches;
use agentcube_operator::cache::Cache;
use agentcube_operator::controller::{Controller, Requeue};

pub async fn run(client: Client, caches: Caches, shutdown: CancellationToken) {
    let nodes = caches.nodes;
    let controller =
        Controller::new("node-lifecycle-controller").watch(&nodes, |change| [change.latest().name_any()]);
    controller.run(shutdown, move |name| reconcile(client.clone(), nodes.clone(), name)).await;
}

async fn reconcile(client: Client, nodes: Cache<Node>, name: String) -> Result<Requeue, kube::Error> {
    let Some(node) = nodes.get("", &name) else { return Ok(Requeue::No) };
    let Some(taints) = taints::wanted(&node, Timestamp::now()) else { return Ok(Requeue::No) };
    // The list is replaced as a whole, so it must be the one that was read.
    let patch = json!({
        "metadata": { "resourceVersion": node.metadata.resource_version },
        "spec": { "taints": taints },
    });
    let api: Api<Node> = Api::all(client);
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(written) => nodes.put(written),
        Err(kube::Error::Api(status)) if status.code == 404 => nodes.gone(&node),
        Err(error) => return Err(error),
    }
    Ok(Requeue::No)
}
