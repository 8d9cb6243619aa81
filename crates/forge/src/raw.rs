//! A FrontendIntegration with its spec as it came: the hash is over all of it, what this version does not know included.

use std::borrow::Cow;

use agentcube_api::labels::FORGE_REBUILD;
use agentcube_api::{FrontendIntegration, frontend::FrontendIntegrationStatus};
use kube::api::ObjectMeta;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::hash;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Integration {
    #[serde(default = "api_version")]
    api_version: String,
    #[serde(default = "kind")]
    kind: String,
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Value,
    /// What another version wrote and this one cannot read counts as nothing.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub status: Option<FrontendIntegrationStatus>,
}

fn api_version() -> String {
    FrontendIntegration::api_version(&()).into_owned()
}

fn kind() -> String {
    FrontendIntegration::kind(&()).into_owned()
}

fn lenient<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<FrontendIntegrationStatus>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).ok())
}

impl Integration {
    pub fn new(metadata: ObjectMeta, spec: Value) -> Integration {
        Integration { api_version: api_version(), kind: kind(), metadata, spec, status: None }
    }

    /// The hash of the spec.
    pub fn hash(&self) -> String {
        hash::of_spec(&self.spec)
    }

    pub fn is_enabled(&self) -> bool {
        self.spec.get("enabled") != Some(&Value::Bool(false))
    }

    /// The rebuild that is asked for, if one is; the same value is obeyed once.
    pub fn asks_for(&self) -> Option<&str> {
        self.annotations().get(FORGE_REBUILD).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The hash that the status is about. Statuses from before there were two hashes have only the other.
    pub fn observed_hash(&self) -> Option<&str> {
        let status = self.status.as_ref()?;
        status.observed_spec_hash.as_deref().or(status.observed_manifest_hash.as_deref())
    }
}

impl Resource for Integration {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        FrontendIntegration::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        FrontendIntegration::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        FrontendIntegration::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        FrontendIntegration::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_of_a_spec_is_lost() {
        let object = json!({ "apiVersion": "frontend-forge.io/v1alpha1", "kind": "FrontendIntegration",
            "metadata": { "name": "a" }, "spec": { "later": { "x": [1.5, null] }, "enabled": false },
            "status": { "phase": "OfALaterVersion" } });
        let read: Integration = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(read.status, None);
        assert!(!read.is_enabled());
        assert_eq!(read.hash(), hash::of(&json!({ "later": { "x": [1.5, null] } })));
        assert_eq!(serde_json::to_value(&read).unwrap()["spec"], object["spec"]);
    }

    #[test]
    fn a_status_of_old_has_one_hash() {
        let object = json!({ "metadata": { "name": "a" }, "spec": {}, "status": { "observed_manifest_hash": "sha256:old" } });
        let read: Integration = serde_json::from_value(object).unwrap();
        assert_eq!(read.observed_hash(), Some("sha256:old"));
    }
}
