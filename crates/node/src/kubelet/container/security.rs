//! What a container may do: capabilities, privilege escalation, system calls.

use std::collections::BTreeSet;

use agentcube_runtime::capabilities;
use agentcube_runtime::spec::Capability;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::{Allowed, Refusal};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Security {
    pub(super) capabilities: BTreeSet<Capability>,
    pub(super) no_new_privileges: bool,
    pub(super) seccomp: bool,
    pub(super) read_only_root: bool,
}

pub(super) fn of(pod: &Pod, container: &Container, allowed: &Allowed) -> Result<Security, Refusal> {
    let own = container.security_context.clone().unwrap_or_default();
    let shared = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let privileged = own.privileged == Some(true);
    if privileged && !allowed.privileged {
        return Err(Refusal::config(format!(
            "container {:?} is privileged, which this node does not allow; drop securityContext.privileged, or start \
             the node with privileged containers allowed",
            container.name
        )));
    }
    let profile = own.seccomp_profile.as_ref().or(shared.and_then(|shared| shared.seccomp_profile.as_ref()));
    let seccomp = match profile.map(|profile| profile.type_.as_str()) {
        None | Some("RuntimeDefault") => !privileged,
        Some("Unconfined") => false,
        Some(other) => {
            return Err(Refusal::config(format!(
                "seccompProfile {other} is not supported by this node; use RuntimeDefault or Unconfined"
            )));
        }
    };
    let escalates = own.allow_privilege_escalation.unwrap_or(true);
    Ok(Security {
        capabilities: capabilities(&own.capabilities.unwrap_or_default(), privileged)?,
        no_new_privileges: !escalates,
        seccomp,
        read_only_root: own.read_only_root_filesystem == Some(true),
    })
}

fn capabilities(
    wanted: &k8s_openapi::api::core::v1::Capabilities,
    privileged: bool,
) -> Result<BTreeSet<Capability>, Refusal> {
    let named = |name: &String| {
        Capability::named(name).ok_or_else(|| Refusal::create(format!("unknown capability {name:?}")))
    };
    let (add, drop) = (wanted.add.as_deref().unwrap_or_default(), wanted.drop.as_deref().unwrap_or_default());
    let all = |names: &[String]| names.iter().any(|name| name.eq_ignore_ascii_case("ALL"));
    let mut set = match (privileged || all(add), all(drop)) {
        (true, _) => capabilities::all(),
        (false, true) => BTreeSet::new(),
        (false, false) => capabilities::default_set(),
    };
    let single = |names: &[String]| -> Result<Vec<Capability>, Refusal> {
        names.iter().filter(|name| !name.eq_ignore_ascii_case("ALL")).map(named).collect()
    };
    let (added, dropped) = (single(add)?, single(drop)?);
    set.extend(added);
    if !privileged {
        for capability in dropped {
            set.remove(&capability);
        }
    }
    Ok(set)
}
