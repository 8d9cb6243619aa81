//! From a Task to what its instances are made of. Pure: the same Task and configuration give the same result, which
//! knows nothing of the revision's name, so that its hash says whether it is a new revision.

use std::collections::BTreeMap;

use agentcube_api::Task;
use agentcube_api::agentcube::deployment::DeploymentType;
use agentcube_api::agentcube::routing::RoutePolicy;
use agentcube_api::agentcube::task::ReusePolicy;
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, Probe, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;

use super::config::Config;
use super::{code, on_pool, pod, sandbox};
use crate::provider::SpecError;
use crate::revision::Form;

/// Labels and annotations below this are ours to set.
const OURS: &str = "agentcube.io/";

/// What a revision is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    pub form: Form,
    pub template: PodTemplateSpec,
    /// What has to be there besides.
    pub children: Vec<Child>,
    /// Containers that have to succeed once before instances are started, the last one after all others.
    pub prepare: Vec<Container>,
}

/// What a revision needs besides its template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Child {
    /// Nobody but the gateway reaches this port of its instances, and they reach nobody.
    Closed { port: i32 },
    /// Code that stands in the Task itself, as a ConfigMap.
    Code { name: String, files: BTreeMap<String, String> },
    /// A claim for bundles by digest, kept by all revisions.
    Cache { name: String },
}

impl Child {
    pub(super) fn is_config_map(&self, called: &str) -> bool {
        matches!(self, Child::Code { name, .. } if name == called)
    }

    pub(super) fn is_claim(&self, called: &str) -> bool {
        matches!(self, Child::Cache { name } if name == called)
    }
}

impl Rendered {
    /// Hash of all that an instance is made of.
    pub fn hash(&self) -> String {
        #[derive(Serialize)]
        struct Hashed<'a>(&'a str, &'a PodTemplateSpec, &'a [Child]);
        let hashed = Hashed(self.form.label(), &self.template, &self.children);
        let bytes = serde_json::to_vec(&hashed).expect("typed objects can be written");
        hex(&ring::digest::digest(&ring::digest::SHA256, &bytes).as_ref()[..16])
    }
}

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What instances of this Task are made of.
pub fn render(task: &Task, config: &Config) -> Result<Rendered, SpecError> {
    if let Some(pool) = task.spec.deployment.pool_ref() {
        return on_pool::render(task, pool, config);
    }
    let form = form(task);
    let mut rendered = match task.spec.deployment.type_ {
        DeploymentType::Pod => pod::render(task)?,
        DeploymentType::Sandbox => sandbox::render(task, config)?,
        DeploymentType::CodeBundle => code::render(task, config)?,
    };
    rendered.form = form;
    complete(&mut rendered.template, form, task.spec.request_handling.backend.port)?;
    Ok(rendered)
}

/// How instances are made: work that runs to completion is a Job's, everything else stands in slots.
fn form(task: &Task) -> Form {
    let lifecycle = task.spec.scaling.instance_lifecycle.as_ref();
    let reuse = lifecycle.map(|lifecycle| lifecycle.reuse_policy).unwrap_or_default();
    match (task.spec.routing.route_policy, reuse) {
        (RoutePolicy::Oneshot, ReusePolicy::Never) => Form::Job,
        (RoutePolicy::Oneshot, ReusePolicy::Always) | (RoutePolicy::BySession, _) => Form::Slots,
    }
}

/// What every template needs, whatever it was made from.
fn complete(template: &mut PodTemplateSpec, form: Form, port: i32) -> Result<(), SpecError> {
    reserved_names(template)?;
    let Some(spec) = template.spec.as_mut() else {
        return Err(SpecError::Invalid("podTemplate.spec is missing: it says what an instance runs".into()));
    };
    restart_policy(spec, form)?;
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        container.termination_message_policy.get_or_insert_with(|| "FallbackToLogsOnError".into());
    }
    if let Some(serving) = serving(spec, port) {
        serving.readiness_probe.get_or_insert_with(|| listens(port));
    }
    Ok(())
}

fn reserved_names(template: &PodTemplateSpec) -> Result<(), SpecError> {
    let meta = template.metadata.iter();
    let names = meta.flat_map(|meta| {
        let labels = meta.labels.iter().flatten().map(|(name, _)| ("label", name));
        labels.chain(meta.annotations.iter().flatten().map(|(name, _)| ("annotation", name)))
    });
    match names.into_iter().find(|(_, name)| name.starts_with(OURS)) {
        Some((what, name)) => Err(SpecError::Invalid(format!(
            "podTemplate.metadata: the {what} {name} cannot be set: what begins with {OURS} is set by AgentCube"
        ))),
        None => Ok(()),
    }
}

fn restart_policy(spec: &mut PodSpec, form: Form) -> Result<(), SpecError> {
    match (form, spec.restart_policy.as_deref()) {
        (Form::Slots | Form::Sandboxes, _) | (Form::Job, Some("Never")) => Ok(()),
        (Form::Job, None) => {
            spec.restart_policy = Some("Never".into());
            Ok(())
        }
        (Form::Job, Some(other)) => Err(SpecError::Invalid(format!(
            "podTemplate.spec.restartPolicy is {other}, but with routePolicy Oneshot and reusePolicy Never each \
             instance ends after its request: leave it out, or set reusePolicy Always"
        ))),
    }
}

/// The container that is to listen on the port: the one that says so, else the first.
fn serving(spec: &mut PodSpec, port: i32) -> Option<&mut Container> {
    let names =
        |container: &Container| container.ports.iter().flatten().any(|named| named.container_port == port);
    let place = spec.containers.iter().position(names).unwrap_or(0);
    spec.containers.get_mut(place)
}

/// Ready means: listens. Asked every second, because a request waits for it.
fn listens(port: i32) -> Probe {
    Probe {
        tcp_socket: Some(TCPSocketAction { port: IntOrString::Int(port), host: None }),
        period_seconds: Some(1),
        timeout_seconds: Some(1),
        failure_threshold: Some(3),
        ..Probe::default()
    }
}
