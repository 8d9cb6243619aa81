//! Tasks of type sandbox: an instance is a Pod under a RuntimeClass that isolates it, with nothing that the code in it
//! could use against others: no privileges, no service account, no network but requests from the gateway.

use std::collections::BTreeMap;

use agentcube_api::agentcube::deployment::{EnvVar as OwnVar, SandboxResources, SandboxTemplateSpec};
use agentcube_api::conditions::task::REASON_RUNTIME_CLASS_MISSING;
use agentcube_api::{Quantity, Task};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, PodSecurityContext, PodSpec,
    PodTemplateSpec, ResourceRequirements, SeccompProfile, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use kube::core::ObjectMeta;

use super::config::{Config, Guard, Isolation};
use super::render::{Child, Rendered};
use crate::provider::SpecError;
use crate::revision::Form;

const CONTAINER: &str = "sandbox";
/// Strangers' code is not waited for long.
const GRACE: i64 = 5;
const KATA: &str = "io.katacontainers.config.hypervisor";
/// Tells gVisor that only this container uses a volume, so that it may keep the volume in its own memory.
const GVISOR_MOUNT: &str = "dev.gvisor.spec.mount";

pub(super) fn render(task: &Task, config: &Config) -> Result<Rendered, SpecError> {
    let Some(wanted) = &task.spec.deployment.sandbox_template else {
        let message = "deployment.sandboxTemplate is missing, which type sandbox needs";
        return Err(SpecError::Invalid(message.into()));
    };
    let isolation = isolation(wanted, config)?;
    let port = task.spec.request_handling.backend.port;
    let mut annotations = annotations(wanted, isolation, config)?;
    let mut volumes = Vec::new();
    let mut container = container(wanted, isolation, port)?;
    if wanted.rootfs.as_ref().is_some_and(|rootfs| rootfs.read_only) {
        volumes.push(scratch(&mut container));
        if isolation.guard == Guard::Gvisor {
            for (key, value) in [("type", "tmpfs"), ("share", "container"), ("options", "rw,rprivate")] {
                annotations.insert(format!("{GVISOR_MOUNT}.tmp.{key}"), value.into());
            }
        }
    }
    let spec = PodSpec {
        containers: vec![container],
        volumes: (!volumes.is_empty()).then_some(volumes),
        runtime_class_name: Some(isolation.runtime_class.clone()),
        node_selector: (!wanted.node_selector.is_empty()).then(|| wanted.node_selector.clone()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(GRACE),
        security_context: Some(of_pod(config.sandbox_user)),
        ..PodSpec::default()
    };
    let annotations = (!annotations.is_empty()).then_some(annotations);
    let metadata = Some(ObjectMeta { annotations, ..ObjectMeta::default() });
    Ok(Rendered {
        form: Form::Slots,
        template: PodTemplateSpec { metadata, spec: Some(spec) },
        children: vec![Child::Closed { port }],
        prepare: Vec::new(),
    })
}

fn isolation<'a>(wanted: &SandboxTemplateSpec, config: &'a Config) -> Result<&'a Isolation, SpecError> {
    let name = wanted.runtime.as_deref().unwrap_or(&config.default_isolation);
    config.isolations.get(name).ok_or_else(|| {
        let known: Vec<&str> = config.isolations.keys().map(String::as_str).collect();
        SpecError::Missing {
            reason: REASON_RUNTIME_CLASS_MISSING,
            message: format!(
                "sandboxTemplate.runtime {name:?} has no RuntimeClass in the operator's configuration, which knows \
                 {}",
                known.join(", ")
            ),
        }
    })
}

fn annotations(
    wanted: &SandboxTemplateSpec,
    isolation: &Isolation,
    config: &Config,
) -> Result<BTreeMap<String, String>, SpecError> {
    let mut annotations = isolation.annotations.clone();
    let Some(kernel) = &wanted.kernel else { return Ok(annotations) };
    if isolation.guard != Guard::Kata {
        return Err(SpecError::Invalid(format!(
            "sandboxTemplate.kernel cannot be used: RuntimeClass {} boots no kernel; leave it out, or choose a runtime \
             that does, such as kata-qemu",
            isolation.runtime_class
        )));
    }
    let Some(path) = config.kernels.get(&kernel.image) else {
        let known: Vec<&str> = config.kernels.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        return Err(SpecError::Invalid(format!(
            "sandboxTemplate.kernel.image {:?} is none of the kernels that the operator has put on the nodes ({known}); \
             leave kernel out for that of the runtime",
            kernel.image
        )));
    };
    annotations.insert(format!("{KATA}.kernel"), path.clone());
    if let Some(args) = &kernel.args {
        annotations.insert(format!("{KATA}.kernel_params"), args.clone());
    }
    Ok(annotations)
}

fn container(wanted: &SandboxTemplateSpec, isolation: &Isolation, port: i32) -> Result<Container, SpecError> {
    let of_task = wanted.rootfs.as_ref().map(|rootfs| rootfs.image.clone());
    let image = of_task.or_else(|| isolation.image.clone());
    if image.is_none() {
        return Err(SpecError::Invalid(
            "sandboxTemplate.rootfs.image is missing, and the operator's configuration has no default for this runtime"
                .into(),
        ));
    }
    let list = |words: &[String]| (!words.is_empty()).then(|| words.to_vec());
    Ok(Container {
        name: CONTAINER.into(),
        image,
        command: list(&wanted.command),
        args: list(&wanted.args),
        env: Some(environment(&wanted.env, port)),
        working_dir: wanted.working_dir.clone(),
        ports: Some(vec![ContainerPort { container_port: port, ..ContainerPort::default() }]),
        resources: wanted.resources.as_ref().map(resources),
        security_context: Some(of_container(wanted.rootfs.as_ref().is_some_and(|rootfs| rootfs.read_only))),
        ..Container::default()
    })
}

/// The Task's variables, and the port to listen on unless the Task has said it otherwise.
pub(super) fn environment(of_task: &[OwnVar], port: i32) -> Vec<EnvVar> {
    let variable =
        |name: &str, value: &str| EnvVar { name: name.into(), value: Some(value.into()), value_from: None };
    let port = (!of_task.iter().any(|var| var.name == "PORT")).then(|| variable("PORT", &port.to_string()));
    port.into_iter().chain(of_task.iter().map(|var| variable(&var.name, &var.value))).collect()
}

/// All of it is asked for and none may be exceeded, so that an instance neither starves nor takes from others.
pub(super) fn resources(wanted: &SandboxResources) -> ResourceRequirements {
    let amount = |name: &str, quantity: &Option<Quantity>| {
        quantity.as_ref().map(|quantity| (name.to_string(), Amount(quantity.to_string())))
    };
    let amounts = [
        amount("cpu", &wanted.cpu),
        amount("memory", &wanted.memory),
        amount("ephemeral-storage", &wanted.disk_size),
    ];
    let amounts: BTreeMap<String, Amount> = amounts.into_iter().flatten().collect();
    let amounts = (!amounts.is_empty()).then_some(amounts);
    ResourceRequirements { requests: amounts.clone(), limits: amounts, claims: None }
}

fn of_pod(user: Option<i64>) -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: user.map(|_| true),
        run_as_user: user,
        run_as_group: user,
        fs_group: user,
        seccomp_profile: Some(default_seccomp()),
        ..PodSecurityContext::default()
    }
}

fn of_container(read_only: bool) -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
        privileged: Some(false),
        read_only_root_filesystem: read_only.then_some(true),
        ..SecurityContext::default()
    }
}

pub(super) fn default_seccomp() -> SeccompProfile {
    SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }
}

/// Somewhere to write when nothing else can be written to.
fn scratch(container: &mut Container) -> Volume {
    container.volume_mounts =
        Some(vec![VolumeMount { name: "tmp".into(), mount_path: "/tmp".into(), ..VolumeMount::default() }]);
    Volume { name: "tmp".into(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() }
}
