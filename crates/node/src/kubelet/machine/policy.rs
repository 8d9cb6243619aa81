//! Which containers are started again after they ended.

use k8s_openapi::api::core::v1::{Container, PodSpec};

/// A restartable init container: started in order, then kept running beside the others.
pub(crate) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Whether a container that ended with a code runs again. `init` says that it is among the init containers.
pub(crate) fn restarts(spec: &PodSpec, container: &Container, init: bool, code: i32) -> bool {
    for rule in container.restart_policy_rules.iter().flatten() {
        let Some(codes) = &rule.exit_codes else { continue };
        let listed = codes.values.as_ref().is_some_and(|values| values.contains(&code));
        let matches = match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        };
        if matches && rule.action == "Restart" {
            return true;
        }
    }
    let policy = container.restart_policy.as_deref().or(spec.restart_policy.as_deref()).unwrap_or("Always");
    match policy {
        "Never" => false,
        "OnFailure" => code != 0,
        // An init container that succeeded is done, but for a sidecar.
        _ => !init || code != 0 || is_sidecar(container),
    }
}
