//! What a Task names that may be missing. Only while something is missing are these watched, each by its name: so the
//! controllers hear of its appearance at once without following every Secret and ConfigMap of the cluster.

use agentcube_api::Task;
use k8s_openapi::api::core::v1::PodSpec;
use kube::ResourceExt;

/// An object that a Task names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reference {
    ConfigMap {
        namespace: String,
        name: String,
    },
    Secret {
        namespace: String,
        name: String,
    },
    Claim {
        namespace: String,
        name: String,
    },
    ServiceAccount {
        namespace: String,
        name: String,
    },
    PriorityClass {
        name: String,
    },
    /// Of the Task's own namespace.
    Pool {
        namespace: String,
        name: String,
    },
    /// Which one, the operator's configuration says: any may be it.
    RuntimeClass,
}

/// Everything that the Task names, each once.
pub(crate) fn references(task: &Task) -> Vec<Reference> {
    let namespace = task.namespace().unwrap_or_default();
    let deployment = &task.spec.deployment;
    let mut found = Vec::new();
    if let Some(template) = deployment.pod_template.as_ref().and_then(|template| template.spec.as_ref()) {
        of_pod(template, &namespace, &mut found);
    }
    let pool = deployment.pool_ref().map(str::to_owned);
    if deployment.sandbox_template.is_some() && pool.is_none() {
        found.push(Reference::RuntimeClass);
    }
    if let Some(bundle) = &deployment.code_bundle {
        let namespace = || namespace.clone();
        found.extend(
            bundle
                .config_map
                .iter()
                .map(|map| Reference::ConfigMap { namespace: namespace(), name: map.name.clone() }),
        );
        found.extend(
            bundle
                .pvc
                .iter()
                .map(|pvc| Reference::Claim { namespace: namespace(), name: pvc.claim_name.clone() }),
        );
    }
    found.extend(pool.map(|name| Reference::Pool { namespace: namespace.clone(), name }));
    if let Some(tls) = &task.spec.request_handling.backend.tls_policy {
        let objects = tls.ca_certificate_refs.iter().flatten().chain(&tls.client_certificate_ref);
        for object in objects {
            let (namespace, name) =
                (object.namespace.clone().unwrap_or_else(|| namespace.clone()), object.name.clone());
            found.push(match object.kind.as_str() {
                "ConfigMap" => Reference::ConfigMap { namespace, name },
                _ => Reference::Secret { namespace, name },
            });
        }
    }
    found.sort();
    found.dedup();
    found
}

fn of_pod(pod: &PodSpec, namespace: &str, found: &mut Vec<Reference>) {
    let config_map = |name: &str| Reference::ConfigMap { namespace: namespace.into(), name: name.into() };
    let secret = |name: &str| Reference::Secret { namespace: namespace.into(), name: name.into() };
    found.extend(pod.runtime_class_name.as_ref().map(|_| Reference::RuntimeClass));
    found.extend(
        pod.service_account_name
            .iter()
            .map(|name| Reference::ServiceAccount { namespace: namespace.into(), name: name.clone() }),
    );
    found.extend(pod.priority_class_name.iter().map(|name| Reference::PriorityClass { name: name.clone() }));
    found.extend(pod.image_pull_secrets.iter().flatten().map(|pull| secret(&pull.name)));
    for volume in pod.volumes.iter().flatten() {
        found.extend(volume.config_map.iter().map(|source| config_map(&source.name)));
        found.extend(volume.secret.iter().filter_map(|source| source.secret_name.as_deref().map(secret)));
        found.extend(
            volume.persistent_volume_claim.iter().map(|source| Reference::Claim {
                namespace: namespace.into(),
                name: source.claim_name.clone(),
            }),
        );
    }
    for container in pod.containers.iter().chain(pod.init_containers.iter().flatten()) {
        for source in container.env_from.iter().flatten() {
            found.extend(source.config_map_ref.iter().map(|map| config_map(&map.name)));
            found.extend(source.secret_ref.iter().map(|of| secret(&of.name)));
        }
        for source in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            found.extend(source.config_map_key_ref.iter().map(|map| config_map(&map.name)));
            found.extend(source.secret_key_ref.iter().map(|of| secret(&of.name)));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_name_is_found_once() {
        let task: Task = serde_json::from_value(json!({
            "metadata": { "name": "a", "namespace": "n" },
            "spec": { "deployment": { "type": "pod", "podTemplate": { "spec": {
                "runtimeClassName": "gvisor", "serviceAccountName": "account", "priorityClassName": "high",
                "imagePullSecrets": [{ "name": "pull" }],
                "volumes": [{ "name": "v", "configMap": { "name": "m" } }],
                "containers": [{ "name": "c", "image": "i",
                    "envFrom": [{ "configMapRef": { "name": "m" } }],
                    "env": [{ "name": "E", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }],
                }],
            } } } },
        }))
        .unwrap();
        let namespace = || "n".to_owned();
        let secret = |name: &str| Reference::Secret { namespace: namespace(), name: name.into() };
        assert_eq!(
            references(&task),
            [
                Reference::ConfigMap { namespace: namespace(), name: "m".into() },
                secret("pull"),
                secret("s"),
                Reference::ServiceAccount { namespace: namespace(), name: "account".into() },
                Reference::PriorityClass { name: "high".into() },
                Reference::RuntimeClass,
            ]
        );
    }
}
