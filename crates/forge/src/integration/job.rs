//! The Job of a build.

use agentcube_api::labels::{FORGE, FORGE_FI_NAME, FORGE_MANAGED_BY, FORGE_SPEC_HASH, hash_label};
use k8s_openapi::api::batch::v1::Job;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::names;
use crate::options::{Access, Options};
use crate::raw::Integration;
use crate::runner::environment as variables;

/// The key of the token in its Secret.
pub(super) const TOKEN: &str = "token";

pub(super) fn job(
    options: &Options,
    integration: &Integration,
    hash: &str,
    name: &str,
) -> Result<Job, serde_json::Error> {
    let fi = integration.name_any();
    let labels = json!({
        FORGE_MANAGED_BY: FORGE, FORGE_FI_NAME: names::label(&fi), FORGE_SPEC_HASH: hash_label(hash),
        "app.kubernetes.io/managed-by": "agentcube",
    });
    let accounts = options.access == Access::ServiceAccounts;
    let mut pod = json!({
        "restartPolicy": "Never",
        "automountServiceAccountToken": accounts,
        "containers": [{
            "name": "runner",
            "image": options.image,
            "command": [options.program, "forge-runner"],
            "env": environment(options, integration, hash, name),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": { "requests": { "cpu": "10m", "memory": "32Mi" }, "limits": { "memory": "256Mi" } },
        }],
    });
    if accounts {
        pod["serviceAccountName"] = json!(names::access(&fi));
    }
    if options.restricted {
        pod["securityContext"] = json!({
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": { "type": "RuntimeDefault" },
        });
        pod["containers"][0]["securityContext"] = json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
        });
    }
    serde_json::from_value(json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "name": name, "namespace": integration.namespace(), "labels": labels,
            "ownerReferences": integration.controller_owner_ref(&()).map(|owner| vec![owner]),
        },
        "spec": {
            // Another attempt is another Job.
            "backoffLimit": 0,
            "activeDeadlineSeconds": options.limits.job().as_secs(),
            "template": { "metadata": { "labels": labels }, "spec": pod },
        },
    }))
}

fn environment(options: &Options, integration: &Integration, hash: &str, job: &str) -> Vec<Value> {
    let fi = integration.name_any();
    let bundle = names::bundle(&fi);
    let mut values = vec![
        (variables::FI_NAMESPACE, integration.namespace().unwrap_or_default()),
        (variables::SPEC_HASH, hash.to_owned()),
        (variables::JSBUNDLE_NAME, bundle),
        (variables::BUILD_JOB, job.to_owned()),
        (variables::BUILD_SERVICE_BASE_URL, options.build_service.clone()),
        (variables::BUILD_SERVICE_TIMEOUT_SECONDS, options.limits.build.as_secs().to_string()),
        (variables::STALE_CHECK_GRACE_SECONDS, options.limits.stale_grace.as_secs().to_string()),
    ];
    values.push((variables::FI_NAME, fi.clone()));
    if let Access::Gate(address) = &options.access {
        values.push((variables::API_BASE_URL, address.clone()));
    }
    let token = json!({ "name": variables::BUILD_SERVICE_TOKEN, "valueFrom": {
        "secretKeyRef": { "name": names::access(&fi), "key": TOKEN } } });
    let plain = values.into_iter().map(|(name, value)| json!({ "name": name, "value": value }));
    plain.chain([token]).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube::api::ObjectMeta;

    use super::*;
    use crate::options::Limits;
    use crate::runner::Settings;
    use crate::token::Key;

    /// Else the Job is killed first, and nobody says what went wrong.
    #[test]
    fn the_runner_gives_up_before_its_job_does() {
        let long = Limits {
            build: Duration::from_secs(3600),
            stale_grace: Duration::from_secs(600),
            ..Limits::default()
        };
        for limits in [Limits::default(), long] {
            let options = Options {
                image: "agentcube".into(),
                program: "agentcube".into(),
                build_service: "http://build".into(),
                key: Key::new("a key that nobody else knows").unwrap(),
                access: Access::ServiceAccounts,
                restricted: true,
                watch_namespace: None,
                limits,
            };
            let metadata = ObjectMeta {
                name: Some("tasks".into()),
                namespace: Some("team".into()),
                ..ObjectMeta::default()
            };
            let integration = Integration::new(metadata, json!({}));
            let job = job(&options, &integration, &integration.hash(), "fi-tasks-1").unwrap().spec.unwrap();
            let variables = job.template.spec.unwrap().containers[0].env.clone().unwrap();
            let told = |name: &str| {
                let variable = variables.iter().find(|variable| variable.name == name)?;
                Some(variable.value.clone().unwrap_or_else(|| "secret".into()))
            };
            let settings = Settings::read(told).ok().unwrap();
            let runner = settings.build_limit + settings.stale_grace;
            let deadline = u64::try_from(job.active_deadline_seconds.unwrap()).unwrap();
            assert!(runner < Duration::from_secs(deadline), "{runner:?} and {deadline} s");
        }
    }
}
