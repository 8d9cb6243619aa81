//! Writes to the API.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{Api, DeleteParams, PostParams, Preconditions};

use super::{Outcome, Parts, Written, uid};
use crate::kubelet::machine::{Report, printed_pod};

/// Between tries while the API server does not answer.
const PAUSE: Duration = Duration::from_secs(1);

fn api(parts: &Parts, pod: &Pod) -> (Api<Pod>, String) {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    (Api::namespaced(parts.client.clone(), namespace), pod.metadata.name.clone().unwrap_or_default())
}

/// Replaces the status of the version that it was computed from: what others wrote since then is never lost.
pub(crate) async fn write(parts: Arc<Parts>, pod: Arc<Pod>, status: PodStatus) -> Outcome {
    let (api, name) = api(&parts, &pod);
    let _turn = parts.writes.acquire().await;
    let mut object = pod.as_ref().clone();
    object.metadata.managed_fields = None;
    object.status = Some(status.clone());
    let params = PostParams { field_manager: Some("kubelet".to_owned()), ..PostParams::default() };
    let written = match api.replace_status(&name, &params, &object).await {
        Ok(pod) => Written::Accepted { pod: Arc::new(pod), status: Box::new(status) },
        Err(kube::Error::Api(answer)) if answer.code == 409 => match api.get(&name).await {
            Ok(latest) if latest.metadata.uid == pod.metadata.uid => Written::Outdated(Arc::new(latest)),
            // The watch will tell that it is gone.
            _ => paused(Written::Failed).await,
        },
        Err(error) => {
            tracing::debug!(pod = %printed_pod(&pod), "a status was not written: {error}");
            paused(Written::Failed).await
        }
    };
    Outcome::Written(written)
}

async fn paused<T>(value: T) -> T {
    tokio::time::sleep(PAUSE).await;
    value
}

/// Deletes the object itself, if it is still the same Pod.
pub(crate) async fn delete(parts: Arc<Parts>, pod: Arc<Pod>) -> Outcome {
    let (api, name) = api(&parts, &pod);
    let preconditions = Preconditions { uid: Some(uid(&pod)), ..Preconditions::default() };
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(preconditions),
        ..DeleteParams::default()
    };
    Outcome::Report(match api.delete(&name, &params).await {
        Ok(_) => Report::Deleted,
        // It is gone, or another one has its name.
        Err(kube::Error::Api(answer)) if answer.code == 404 || answer.code == 409 => Report::Deleted,
        Err(error) => Report::DeletionFailed(error.to_string()),
    })
}
