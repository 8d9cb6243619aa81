//! Carries out what was planned for the slices and Endpoints of a Service. Every answer is written through.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};

use super::super::{is_namespace_ending, reason_of};
use super::Context;
use super::observe::Observed;
use super::plan::Operation;
use agentcube_operator::cache::{Cache, Object};

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("writing an EndpointSlice: {0}")]
    Slice(#[source] kube::Error),
    #[error("writing the Endpoints: {0}")]
    Endpoints(#[source] kube::Error),
}

pub(super) async fn apply(
    context: &Context,
    observed: &Observed,
    operations: Vec<Operation>,
) -> Result<(), Error> {
    for operation in operations {
        let result = carry_out(context, operation).await;
        if let (Err(error), Some(service)) = (&result, &observed.service) {
            tell(context, service, error);
        }
        result?;
    }
    Ok(())
}

async fn carry_out(context: &Context, operation: Operation) -> Result<(), Error> {
    let slices = &context.caches.endpoint_slices;
    let endpoints = &context.caches.endpoints;
    match operation {
        Operation::CreateSlice(slice) => create(context, slices, &slice).await.map_err(Error::Slice),
        Operation::UpdateSlice(slice) => update(context, slices, &slice).await.map_err(Error::Slice),
        Operation::DeleteSlice(slice) => delete(context, slices, &slice).await.map_err(Error::Slice),
        Operation::CreateEndpoints(object) => {
            create(context, endpoints, &object).await.map_err(Error::Endpoints)
        }
        Operation::UpdateEndpoints(object) => {
            update(context, endpoints, &object).await.map_err(Error::Endpoints)
        }
        Operation::DeleteEndpoints(object) => {
            delete(context, endpoints, &object).await.map_err(Error::Endpoints)
        }
    }
}

fn tell(context: &Context, service: &Arc<Service>, error: &Error) {
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    let (Error::Slice(reason) | Error::Endpoints(reason)) = error;
    let about = match error {
        Error::Slice(_) => ("FailedToUpdateEndpointSlices", "Error updating Endpoint Slices for Service"),
        Error::Endpoints(_) => ("FailedToUpdateEndpoint", "Failed to update endpoint"),
    };
    context.events.warning(
        &**service,
        about.0,
        format!("{} {namespace}/{name}: {}", about.1, reason_of(reason)),
    );
}

/// The two kinds that are written here.
trait Written: Object + serde::Serialize + kube::Resource<Scope = k8s_openapi::NamespaceResourceScope> {}
impl Written for EndpointSlice {}
impl Written for Endpoints {}

fn api<K: Written>(context: &Context, object: &K) -> Api<K> {
    Api::namespaced(context.client.clone(), &object.namespace().unwrap_or_default())
}

async fn create<K: Written>(context: &Context, cache: &Cache<K>, object: &K) -> Result<(), kube::Error> {
    match api(context, object).create(&PostParams::default(), object).await {
        Ok(created) => cache.put(created),
        // The namespace is going, and the Service with it.
        Err(error) if is_namespace_ending(&error) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

async fn update<K: Written>(context: &Context, cache: &Cache<K>, object: &K) -> Result<(), kube::Error> {
    let updated = api(context, object).replace(&object.name_any(), &PostParams::default(), object).await?;
    cache.put(updated);
    Ok(())
}

async fn delete<K: Written>(context: &Context, cache: &Cache<K>, object: &Arc<K>) -> Result<(), kube::Error> {
    let preconditions = Preconditions { uid: object.uid(), resource_version: None };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api(context, &**object).delete(&object.name_any(), &parameters).await {
        Ok(answer) => cache.deleted(object, answer.left()),
        // Not found, or another one of the same name by now.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => cache.gone(object),
        Err(error) => return Err(error),
    }
    Ok(())
}
