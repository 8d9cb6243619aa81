//! What a Pod may ask for that this node cannot give. Nothing of it is ignored in silence.

use k8s_openapi::api::core::v1::{Container, PodSpec};

/// What the node's owner allows beyond the ordinary, and its limits.
#[derive(Debug, Clone)]
pub struct Allowed {
    pub privileged: bool,
    /// Processes that one container may have at once.
    pub processes: u64,
}

impl Default for Allowed {
    fn default() -> Self {
        Self { privileged: false, processes: 4096 }
    }
}

/// Why this node can never run the Pod, if so.
pub(crate) fn refusal(spec: &PodSpec) -> Option<String> {
    let set = |value: Option<bool>| value == Some(true);
    let context = spec.security_context.clone().unwrap_or_default();
    let asked = [
        (set(spec.host_network), "hostNetwork"),
        (set(spec.host_pid), "hostPID"),
        (set(spec.host_ipc), "hostIPC"),
        (set(spec.share_process_namespace), "shareProcessNamespace"),
        (spec.host_users == Some(false), "hostUsers: false"),
        (spec.os.as_ref().is_some_and(|os| os.name != "linux"), "os other than linux"),
        (context.sysctls.is_some_and(|list| !list.is_empty()), "securityContext.sysctls"),
        (spec.resource_claims.as_ref().is_some_and(|list| !list.is_empty()), "resourceClaims"),
    ];
    let of_pod = asked.into_iter().find(|(asked, _)| *asked).map(|(_, what)| what.to_owned());
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let what = of_pod.or_else(|| containers.into_iter().find_map(of_container))?;
    Some(format!("{what} is not supported by this node"))
}

fn of_container(container: &Container) -> Option<String> {
    let context = container.security_context.clone().unwrap_or_default();
    let armor = context.app_armor_profile.is_some_and(|profile| profile.type_ == "Localhost");
    let ports = container.ports.as_deref().unwrap_or_default();
    let asked = [
        (ports.iter().any(|port| port.host_port.unwrap_or(0) > 0), "a hostPort"),
        (container.volume_devices.as_ref().is_some_and(|list| !list.is_empty()), "volumeDevices"),
        (armor, "an AppArmor profile of the host"),
        (context.proc_mount.as_deref() == Some("Unmasked"), "procMount Unmasked"),
    ];
    let (_, what) = asked.into_iter().find(|(asked, _)| *asked)?;
    Some(format!("container {:?}: {what}", container.name))
}
