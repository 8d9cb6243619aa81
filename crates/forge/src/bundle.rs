//! The JSBundle controller: says of a bundle whether it may be served. It changes nothing but its status.

mod plan;

use std::sync::Arc;

use agentcube_api::JSBundle;
use agentcube_operator::controller::Requeue;
use jiff::Timestamp;
use kube::ResourceExt;

use crate::core::{Core, Error, Name};
use plan::{Observed, plan};

/// One pass over a JSBundle.
pub(crate) async fn reconcile(core: Arc<Core>, key: Name) -> Result<Requeue, Error> {
    let Some(bundle) = core.caches.bundles.get(&key.namespace, &key.name) else { return Ok(Requeue::No) };
    if bundle.metadata.deletion_timestamp.is_some() {
        return Ok(Requeue::No);
    }
    let owner = bundle.owner_references().iter().find(|owner| owner.kind == "FrontendIntegration");
    let integration = owner.and_then(|owner| {
        let found = core.caches.integrations.get(&key.namespace, &owner.name)?;
        (found.uid().as_deref() == Some(&owner.uid)).then_some(found)
    });
    let observed = Observed { bundle: &bundle, integration: integration.as_deref(), now: Timestamp::now() };
    if let Some(status) = plan(&observed) {
        core.write_status(&core.caches.bundles, JSBundle { status: Some(status), ..(*bundle).clone() })
            .await?;
    }
    Ok(Requeue::No)
}
