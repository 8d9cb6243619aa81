//! Where the operator's keys are kept: a Secret in its namespace, made once by whoever comes first. A Secret that
//! cannot be read is never replaced: tokens out there may depend on it.

use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::core::ObjectMeta;
use ring::rand::{SecureRandom, SystemRandom};

use super::{BadKeys, KeyId, Keys};

/// Name of the Secret with the operator's keys.
pub const MASTER_SECRET: &str = "agentcube-token-keys";
const FIRST_KEY: &str = "k1";
/// The entry of Secrets with one token.
const TOKEN: &str = "token";
const SHORTEST_TOKEN: usize = 16;

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

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("the Secret {secret} cannot be read or made: {source}")]
    Request { secret: String, source: Box<kube::Error> },
    #[error(
        "the Secret {secret} has no entry `{TOKEN}` of {SHORTEST_TOKEN} printable characters or more; mend it, or \
         delete it to get a new one"
    )]
    Spoilt { secret: String },
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

/// A text that nobody can guess, in the entry `token` of a Secret, made if there is none. However many do this at once,
/// all get the same; what somebody else has put there is used as it is.
pub async fn ensure_token(client: Client, namespace: &str, name: &str) -> Result<String, TokenError> {
    let api: Api<Secret> = Api::namespaced(client, namespace);
    let place = || format!("{namespace}/{name}");
    let failed = |source| TokenError::Request { secret: place(), source: Box::new(source) };
    let secret = match api.get_opt(name).await.map_err(failed)? {
        Some(secret) => secret,
        None => {
            let mut bits = [0; 32];
            SystemRandom::new().fill(&mut bits).expect("the kernel always has random bits for a process");
            let text: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
            let secret = Secret {
                metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
                string_data: Some([(TOKEN.to_owned(), text)].into()),
                type_: Some("Opaque".into()),
                ..Secret::default()
            };
            match api.create(&PostParams::default(), &secret).await {
                Err(error) => api.get_opt(name).await.map_err(failed)?.ok_or_else(|| failed(error))?,
                Ok(secret) => secret,
            }
        }
    };
    let bytes = secret.data.and_then(|mut data| data.remove(TOKEN)).map(|bytes| bytes.0);
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).map(|text| text.trim().to_owned());
    let fits =
        |text: &String| text.len() >= SHORTEST_TOKEN && text.bytes().all(|byte| byte.is_ascii_graphic());
    text.filter(fits).ok_or_else(|| TokenError::Spoilt { secret: place() })
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
