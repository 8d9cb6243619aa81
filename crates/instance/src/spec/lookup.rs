//! Looks up whether what a Task names exists. Only the metadata of an object is asked for: nobody's Secrets are read.

use std::fmt::Debug;

use agentcube_api::SandboxPool;
use agentcube_api::conditions::task::REASON_POOL_RUNTIME;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, ServiceAccount};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use super::references::{Reference, Referent};
use crate::provider::SpecError;

/// An error unless it is there.
pub(super) async fn find(client: &Client, namespace: &str, reference: &Reference) -> Result<(), SpecError> {
    let (client, name) = (client.clone(), &reference.name);
    let found = match reference.kind {
        Referent::Secret => within::<Secret>(client, namespace, name).await,
        Referent::ConfigMap => within::<ConfigMap>(client, namespace, name).await,
        Referent::Claim => within::<PersistentVolumeClaim>(client, namespace, name).await,
        Referent::ServiceAccount => within::<ServiceAccount>(client, namespace, name).await,
        Referent::SandboxPool => within::<SandboxPool>(client, namespace, name).await,
        Referent::PriorityClass => is_there(Api::<PriorityClass>::all(client), name).await,
        Referent::RuntimeClass => is_there(Api::<RuntimeClass>::all(client), name).await,
    };
    match found {
        Ok(true) => Ok(()),
        Ok(false) => Err(reference.missing(namespace)),
        Err(error) => {
            let kind = reference.kind.kind();
            Err(SpecError::Transient(format!("cannot tell whether {kind} {name:?} exists: {error}")))
        }
    }
}

/// An error unless the pool isolates as the Task wants.
pub(super) async fn fits(
    client: &Client,
    namespace: &str,
    pool: &str,
    runtime: Option<&str>,
) -> Result<(), SpecError> {
    let Some(wanted) = runtime else { return Ok(()) };
    let api: Api<SandboxPool> = Api::namespaced(client.clone(), namespace);
    let found = api.get_opt(pool).await;
    let found =
        found.map_err(|error| SpecError::Transient(format!("cannot read SandboxPool {pool:?}: {error}")))?;
    match found.map(|found| found.spec.runtime_type) {
        Some(runtime) if runtime != wanted => Err(SpecError::Missing {
            reason: REASON_POOL_RUNTIME,
            message: format!(
                "SandboxPool {pool:?} has the runtime {runtime:?}, and sandboxTemplate.runtime is {wanted:?}: name \
                 another pool, or leave runtime out"
            ),
        }),
        _ => Ok(()),
    }
}

async fn within<K>(client: Client, namespace: &str, name: &str) -> kube::Result<bool>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    is_there(Api::<K>::namespaced(client, namespace), name).await
}

async fn is_there<K: Resource + Clone + DeserializeOwned + Debug>(
    api: Api<K>,
    name: &str,
) -> kube::Result<bool> {
    Ok(api.get_metadata_opt(name).await?.is_some())
}
