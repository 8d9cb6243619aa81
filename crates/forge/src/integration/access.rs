//! What a Job needs to do its work and nothing else: a token for the build service, and on a cluster an account that may read
//! this integration and write its bundle. All of it belongs to the integration, and ends with it.

use agentcube_api::labels::{FORGE, FORGE_FI_NAME, FORGE_MANAGED_BY};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::job::TOKEN;
use crate::core::{Core, Error};
use crate::names;
use crate::options::Access;
use crate::raw::Integration;

const RBAC: &str = "rbac.authorization.k8s.io";

pub(super) async fn ensure(core: &Core, integration: &Integration) -> Result<(), Error> {
    let (namespace, fi) = (integration.namespace().unwrap_or_default(), integration.name_any());
    let token = core.options.key.token(&namespace, &fi);
    // As bytes: what is written as text comes back as bytes, and would seem to have been changed.
    let token = k8s_openapi::ByteString(token.into_bytes());
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": { TOKEN: token } });
    core.ensure::<Secret>(&serde_json::from_value(complete(secret, integration))?).await?;
    if core.options.access != Access::ServiceAccounts {
        return Ok(());
    }
    let account =
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "automountServiceAccountToken": false });
    core.ensure::<ServiceAccount>(&serde_json::from_value(complete(account, integration))?).await?;
    core.ensure::<Role>(&serde_json::from_value(complete(role(&fi), integration))?).await?;
    let name = names::access(&fi);
    let binding = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding",
        "roleRef": { "apiGroup": RBAC, "kind": "Role", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": namespace }],
    });
    core.ensure::<RoleBinding>(&serde_json::from_value(complete(binding, integration))?).await
}

/// The right to create cannot be narrowed to a name.
fn role(fi: &str) -> Value {
    let group = agentcube_api::frontend::GROUP;
    json!({ "apiVersion": format!("{RBAC}/v1"), "kind": "Role", "rules": [
        { "apiGroups": [group], "resources": ["frontendintegrations"], "resourceNames": [fi], "verbs": ["get"] },
        { "apiGroups": [group], "resources": ["jsbundles"], "resourceNames": [names::bundle(fi)], "verbs": ["get", "update"] },
        { "apiGroups": [group], "resources": ["jsbundles"], "verbs": ["create"] },
    ] })
}

fn complete(mut object: Value, integration: &Integration) -> Value {
    let fi = integration.name_any();
    object["metadata"] = json!({
        "name": names::access(&fi), "namespace": integration.namespace(),
        "labels": { FORGE_MANAGED_BY: FORGE, FORGE_FI_NAME: names::label(&fi) },
        "ownerReferences": integration.controller_owner_ref(&()).map(|owner| vec![owner]),
    });
    object
}
