//! From what a client asks for to an object, and from an object to what an agent is asked for. Pure.

use agentcube_api::agentcube::deployment::{EnvVar, SandboxResources};
use agentcube_api::sandbox::{
    AllocationInfo, FailurePolicy, KeyRef, SandboxDefaults, SandboxEgress, SandboxFile, SandboxNetwork,
    SandboxSpec,
};
use agentcube_api::{Quantity, Sandbox, SandboxPool, labels};
use agentcube_protos::agent::{Claim, SandboxSpec as AgentSpec, StartRequest};
use agentcube_protos::fastpath::{CreateRequest, FailurePolicy as AskedPolicy};
use agentcube_protos::session::{Egress, File, Resources};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crate::names::{AgentId, Name, PoolKey, RunId};
use crate::validate::Invalid;

/// Annotation of a Sandbox: who asked for it on the fast path, which writes objects with rights of its own.
pub(crate) const CREATED_BY: &str = "sandbox.fast.io/created-by";
/// Annotation of a Sandbox: it was made from an agent's record, because the controller that started it did not get to.
pub(crate) const ADOPTED: &str = "sandbox.fast.io/adopted";

/// The object that a client asks for, without an allocation.
pub(crate) fn sandbox(
    request: &CreateRequest,
    name: &Name,
    subject: &str,
    now: Timestamp,
) -> Result<Sandbox, Invalid> {
    let mut sandbox = Sandbox::new(&name.name, spec(request, now)?);
    sandbox.metadata.namespace = Some(name.namespace.clone());
    sandbox.metadata.finalizers = Some(vec![labels::SANDBOX_FINALIZER.into()]);
    let own = (labels::SANDBOX_POOL.to_string(), request.pool_ref.clone());
    let pool_fits = own.1.len() <= 63;
    sandbox.metadata.labels =
        Some(request.labels.clone().into_iter().chain(pool_fits.then_some(own)).collect());
    let annotations = sandbox.annotations_mut();
    annotations.insert(CREATED_BY.into(), subject.into());
    if !request.request_id.is_empty() {
        annotations.insert(labels::SANDBOX_REQUEST_ID.into(), request.request_id.clone());
    }
    Ok(sandbox)
}

fn spec(request: &CreateRequest, now: Timestamp) -> Result<SandboxSpec, Invalid> {
    let expire_time = match request.expire_seconds {
        0 => None,
        seconds => Some(expire_at(now, seconds)?),
    };
    let mut envs: Vec<EnvVar> = request
        .envs
        .iter()
        .map(|(name, value)| EnvVar { name: name.clone(), value: value.clone() })
        .collect();
    envs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(SandboxSpec {
        image: request.image.clone(),
        pool_ref: request.pool_ref.clone(),
        command: request.command.clone(),
        args: request.args.clone(),
        envs,
        working_dir: (!request.working_dir.is_empty()).then(|| request.working_dir.clone()),
        exposed_ports: request.ports.clone(),
        resources: request.resources.as_ref().map(asked_resources).transpose()?,
        read_only_root: request.read_only_root,
        network: asked_egress(request.egress()).map(|egress| SandboxNetwork { egress }),
        files: request.files.iter().map(asked_file).collect::<Result<_, _>>()?,
        expire_time,
        failure_policy: policy(request.failure_policy()),
        recovery_timeout_seconds: request.recovery_timeout_seconds.unwrap_or(60),
        ..SandboxSpec::default()
    })
}

/// When something ends that lasts for so many seconds.
pub(crate) fn expire_at(now: Timestamp, seconds: i64) -> Result<Time, Invalid> {
    let invalid = || Invalid("expire_seconds has to be between 1 and 315360000 (ten years)".into());
    if !(1..=315_360_000).contains(&seconds) {
        return Err(invalid());
    }
    let at =
        now.checked_add(std::time::Duration::from_secs(seconds.unsigned_abs())).map_err(|_| invalid())?;
    Ok(Time(at))
}

pub(crate) fn policy(asked: AskedPolicy) -> FailurePolicy {
    match asked {
        AskedPolicy::PolicyUnset | AskedPolicy::Manual => FailurePolicy::Manual,
        AskedPolicy::AutoRecreate => FailurePolicy::AutoRecreate,
    }
}

fn asked_resources(asked: &Resources) -> Result<SandboxResources, Invalid> {
    let quantity = |text: &str, what: &str| -> Result<Option<Quantity>, Invalid> {
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| Invalid(format!("resources.{what} is no quantity: {text:?}")))
    };
    Ok(SandboxResources {
        cpu: quantity(&asked.cpu, "cpu")?,
        memory: quantity(&asked.memory, "memory")?,
        disk_size: quantity(&asked.disk, "disk")?,
    })
}

fn asked_egress(asked: Egress) -> Option<SandboxEgress> {
    match asked {
        Egress::Unset => None,
        Egress::Closed => Some(SandboxEgress::Closed),
        Egress::Public => Some(SandboxEgress::Public),
        Egress::Open => Some(SandboxEgress::Open),
    }
}

fn asked_file(file: &File) -> Result<SandboxFile, Invalid> {
    let reference =
        |name: &str| (!name.is_empty()).then(|| KeyRef { name: name.into(), key: file.key.clone() });
    let content = String::from_utf8(file.content.clone()).map_err(|_| {
        Invalid(format!("the content of file {:?} is not UTF-8: take it from a Secret", file.path))
    })?;
    let (secret, map) = (reference(&file.secret), reference(&file.config_map));
    Ok(SandboxFile {
        path: file.path.clone(),
        mode: (file.mode != 0).then(|| i32::try_from(file.mode).unwrap_or(i32::MAX)),
        content: (secret.is_none() && map.is_none()).then_some(content),
        secret_key_ref: secret,
        config_map_key_ref: map,
    })
}

/// Whether two specs ask for the same sandbox, apart from what may change during its life.
pub(crate) fn is_same(one: &SandboxSpec, other: &SandboxSpec) -> bool {
    let fixed = |spec: &SandboxSpec| SandboxSpec {
        paused: false,
        expire_time: None,
        failure_policy: FailurePolicy::Manual,
        recovery_timeout_seconds: 0,
        reset_revision: None,
        ..spec.clone()
    };
    fixed(one) == fixed(other)
}

/// Writes the allocation into the annotations.
pub(crate) fn allocate(
    sandbox: &mut Sandbox,
    pool: &PoolKey,
    agent: &AgentId,
    node: &str,
    run: &RunId,
    started: bool,
) {
    let info = AllocationInfo {
        assigned_pod: agent.name.clone(),
        assigned_node: node.into(),
        allocated_at: Timestamp::now().to_string(),
        assigned_pod_uid: agent.uid.clone(),
        pool: pool.name.clone(),
        namespace: pool.namespace.clone(),
        sandbox_id: run.to_string(),
        started,
    };
    info.annotate(sandbox.annotations_mut());
}

pub(crate) fn defaults(pool: &SandboxPool) -> SandboxDefaults {
    pool.spec.sandbox_defaults.clone().unwrap_or_default()
}

pub(crate) fn resources(resources: Option<&SandboxResources>) -> Option<Resources> {
    let text = |quantity: &Option<Quantity>| quantity.as_ref().map(ToString::to_string).unwrap_or_default();
    resources.map(|resources| Resources {
        cpu: text(&resources.cpu),
        memory: text(&resources.memory),
        disk: text(&resources.disk_size),
    })
}

pub(crate) fn egress(network: Option<&SandboxNetwork>, pool: &SandboxPool) -> Egress {
    let network = network.copied().or(defaults(pool).network).unwrap_or_default();
    match network.egress {
        SandboxEgress::Closed => Egress::Closed,
        SandboxEgress::Public => Egress::Public,
        SandboxEgress::Open => Egress::Open,
    }
}

/// What an agent is asked to run for an object. Files that are kept in Secrets or ConfigMaps come without contents.
pub(crate) fn start_request(sandbox: &Sandbox, pool: &SandboxPool, run: &RunId) -> StartRequest {
    let (spec, defaults) = (&sandbox.spec, defaults(pool));
    let user = spec.run_as_user.or(defaults.run_as_user);
    let agent_spec = AgentSpec {
        image: spec.image.clone(),
        command: spec.command.clone(),
        args: spec.args.clone(),
        envs: spec.envs.iter().map(|env| (env.name.clone(), env.value.clone())).collect(),
        working_dir: spec.working_dir.clone().unwrap_or_default(),
        ports: spec.exposed_ports.iter().map(|port| port.max(&0).unsigned_abs()).collect(),
        resources: resources(spec.resources.as_ref().or(defaults.resources.as_ref())),
        read_only_root: spec.read_only_root,
        run_as_user: user.and_then(|user| u32::try_from(user).ok()),
        egress: egress(spec.network.as_ref(), pool).into(),
        files: spec.files.iter().map(file).collect(),
        labels: sandbox.labels().clone().into_iter().collect(),
    };
    StartRequest {
        fence: None,
        run_id: run.to_string(),
        claim: Some(claim(sandbox)),
        spec: Some(agent_spec),
        expire_unix_ms: spec.expire_time.as_ref().map_or(0, |at| at.0.as_millisecond()),
        recovery_timeout_seconds: spec.recovery_timeout_seconds.max(0).unsigned_abs(),
        wait_ready_ms: 0,
        object: Vec::new(),
    }
}

pub(crate) fn claim(sandbox: &Sandbox) -> Claim {
    Claim {
        namespace: sandbox.namespace().unwrap_or_default(),
        name: sandbox.name_any(),
        uid: sandbox.uid().unwrap_or_default(),
        pool: sandbox.spec.pool_ref.clone(),
        request_id: sandbox.annotations().get(labels::SANDBOX_REQUEST_ID).cloned().unwrap_or_default(),
    }
}

fn file(file: &SandboxFile) -> File {
    let (secret, map) = (file.secret_key_ref.clone(), file.config_map_key_ref.clone());
    let key = secret.as_ref().or(map.as_ref()).map(|reference| reference.key.clone());
    File {
        path: file.path.clone(),
        mode: file.mode.unwrap_or(0o644).max(0).unsigned_abs(),
        content: file.content.clone().unwrap_or_default().into_bytes(),
        secret: secret.map(|reference| reference.name).unwrap_or_default(),
        config_map: map.map(|reference| reference.name).unwrap_or_default(),
        key: key.unwrap_or_default(),
    }
}
