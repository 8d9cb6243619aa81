//! What the server's refusal of a write means to a controller. A refusal alone never makes an object gone: a conflict
//! may be about its name having passed to another object, or about nothing that lasts.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, DeleteParams, Preconditions};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

/// The HTTP code of a refusal; 0 if the server did not answer.
pub(super) fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

/// Deletes only the object of this uid.
pub(super) fn only(uid: String) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
        ..DeleteParams::default()
    }
}

/// Whether a write to an object was refused because the object is gone; if not, the refusal is handed back.
pub(super) async fn is_gone<K>(
    api: &Api<K>,
    name: &str,
    uid: &str,
    refusal: kube::Error,
) -> Result<(), kube::Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    match code(&refusal) {
        404 => Ok(()),
        409 | 422 => match api.get_opt(name).await? {
            Some(there) if there.uid().as_deref() == Some(uid) => Err(refusal),
            _ => Ok(()),
        },
        _ => Err(refusal),
    }
}
