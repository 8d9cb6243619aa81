//! Where the operator's keys are kept: a Secret in its namespace, made once by whoever comes first. A Secret that
//! cannot be read is never replaced: tokens out there may depend on it.

use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::core::ObjectMeta;

use super::{BadKeys, KeyId, Keys};

/// Name of the Secret with the operator's keys.
pub const MASTER_SECRET: &str = "agentcube-token-keys";
const FIRST_KEY: &str = "k1";

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// To be tried again.
    #[error("the Secret {namespace}/{MASTER_SECRET} cannot be read or made: {source}")]
    Request { namespace: String, source: Box<kube::Error> },
    /// Waits for somebody to mend it.
    #[error(
        "the Secret {namespace}/{MASTER_SECRET} is spoilt: {source}; mend it, or delete it to get new keys, which \
         voids all tokens"
    )]
    Spoilt { namespace: String, source: BadKeys },
}

/// The operator's keys, made if there are none. However many do this at once, all get the same.
pub async fn ensure_master_keys(client: Client, namespace: &str) -> Result<Keys, StoreError> {
    let api: Api<Secret> = Api::namespaced(client, namespace);
    let failed = |source| StoreError::Request { namespace: namespace.into(), source: Box::new(source) };
    let secret = match api.get_opt(MASTER_SECRET).await.map_err(failed)? {
        Some(secret) => secret,
        None => match api.create(&PostParams::default(), &fresh(namespace)).await {
            // Somebody else was faster, or this was done and the answer was lost.
            Err(error) => api.get_opt(MASTER_SECRET).await.map_err(failed)?.ok_or_else(|| failed(error))?,
            Ok(secret) => secret,
        },
    };
    Keys::read(&secret).map_err(|source| StoreError::Spoilt { namespace: namespace.into(), source })
}

fn fresh(namespace: &str) -> Secret {
    let id = KeyId::new(FIRST_KEY).expect("it is letters and digits");
    Secret {
        metadata: ObjectMeta {
            name: Some(MASTER_SECRET.into()),
            namespace: Some(namespace.into()),
            ..ObjectMeta::default()
        },
        data: Some(Keys::generate(id).entries()),
        type_: Some("Opaque".into()),
        ..Secret::default()
    }
}
