//! Makes the claims that Pods bring with them. They belong to their Pod, and go with it.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Api, PostParams};
use serde_json::json;

use super::{Error, Key, Provisioner};
use agentcube_operator::cache::Change;

/// A Pod that has such volumes and can still use them.
pub(super) fn keys(change: &Change<Pod>) -> Option<Key> {
    let pod = change.new.as_ref()?;
    let key = || {
        Key::Pod(
            pod.metadata.namespace.clone().unwrap_or_default(),
            pod.metadata.name.clone().unwrap_or_default(),
        )
    };
    missing(pod).next().map(|_| key())
}

/// The claims that a Pod needs to have made for it.
fn missing(pod: &Pod) -> impl Iterator<Item = PersistentVolumeClaim> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let over = pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Succeeded" | "Failed"));
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).filter(move |_| !over);
    volumes.filter_map(|volume| {
        let template = volume.ephemeral.as_ref()?.volume_claim_template.clone()?;
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let mut claim = PersistentVolumeClaim { spec: Some(template.spec), ..Default::default() };
        claim.metadata = template.metadata.unwrap_or_default();
        claim.metadata.name = Some(format!("{name}-{}", volume.name));
        claim.metadata.namespace = pod.metadata.namespace.clone();
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.metadata.uid,
            "controller": true, "blockOwnerDeletion": true}]);
        claim.metadata.owner_references = serde_json::from_value(owner).ok();
        Some(claim)
    })
}

impl Provisioner {
    pub(super) async fn serve_pod(&self, namespace: &str, name: &str) -> Result<(), Error> {
        let Some(pod) = self.caches.pods.get(namespace, name) else { return Ok(()) };
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        for claim in missing(&pod) {
            let claim_name = claim.metadata.name.clone().unwrap_or_default();
            if let Some(found) = self.caches.claims.get(namespace, &claim_name) {
                let mut owners = found.metadata.owner_references.iter().flatten();
                if !owners.any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref()) {
                    let message = format!(
                        "ephemeral volume {claim_name}: PVC {namespace}/{claim_name} was not created for pod \
                         {namespace}/{name} (pod is not owner)"
                    );
                    self.events.warning(pod.as_ref(), "FailedBinding", message);
                }
                continue;
            }
            match api.create(&PostParams::default(), &claim).await {
                Ok(claim) => self.caches.claims.put(claim),
                Err(source) => {
                    return Err(Error::Api { what: format!("claim {claim_name}"), source: Box::new(source) });
                }
            }
        }
        Ok(())
    }
}
