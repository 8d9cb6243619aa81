//! A token for the agents of each pool, derived from one secret of the operator's: who can read that of one pool can call
//! the agents of no other. Kept for agents in a Secret beside the pool, which goes with it.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use agentcube_api::{SandboxPool, labels};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use ring::hmac;

/// The entry of the Secret.
const TOKEN: &str = "token";
/// What a token is derived from, before the pool's UID.
const DERIVATION: &str = "agentcube-agents:";

/// Where the tokens of all pools come from.
#[derive(Clone, PartialEq, Eq)]
pub struct Tokens(Arc<str>);

impl Debug for Tokens {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

impl Tokens {
    /// From a text that nobody can guess.
    pub fn new(secret: &str) -> Tokens {
        Tokens(secret.into())
    }

    /// The token of the pool with this UID.
    pub fn of(&self, pool: &str) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.0.as_bytes());
        let tag = hmac::sign(&key, format!("{DERIVATION}{pool}").as_bytes());
        tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The Secret that a pool's agents get.
    pub(super) fn secret(&self, pool: &SandboxPool) -> Secret {
        let name = pool.name_any();
        let labels = BTreeMap::from([(labels::SANDBOX_POOL.to_owned(), name.clone())]);
        let token = ByteString(self.of(&pool.uid().unwrap_or_default()).into_bytes());
        Secret {
            metadata: ObjectMeta {
                name: Some(secret_name(&name)),
                namespace: pool.namespace(),
                labels: Some(labels),
                owner_references: Some(pool.controller_owner_ref(&()).into_iter().collect()),
                ..ObjectMeta::default()
            },
            data: Some([(TOKEN.to_owned(), token)].into()),
            type_: Some("Opaque".into()),
            ..Secret::default()
        }
    }
}

/// What the Secret of a pool's agents is called.
pub(super) fn secret_name(pool: &str) -> String {
    format!("{pool}-agent-token")
}
