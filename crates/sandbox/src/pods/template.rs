//! The Pod that an agent is. Pure.

use agentcube_api::{SandboxPool, labels};
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource, ObjectFieldSelector, Pod, PodSpec,
    SecretVolumeSource, SecurityContext, Volume, VolumeMount,
};
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};

use super::tokens::{self, Tokens};

/// The container that is the agent; the first one where none is called so.
const AGENT: &str = "agent";
const DATA: &str = "agentcube-data";
const SECRET: &str = "agentcube-credentials";
const DATA_PATH: &str = "/var/lib/agentcube";
const SECRET_PATH: &str = "/etc/agentcube/agent";
/// With what follows it a name still fits where names of machines do.
const LONGEST_POOL: usize = 48;

/// How agents are made where their pool does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodOptions {
    /// Where agents listen.
    pub port: u16,
    /// The image of agents whose pool has no template.
    pub image: Option<String>,
    /// The Secret in a pool's namespace by which its agents know the controller.
    pub secret: Option<String>,
    /// Instead: a Secret for each pool, made with its first agent.
    pub tokens: Option<Tokens>,
    /// That holds certificates (`tls.crt`, `tls.key`, `ca.crt`), not a `token`.
    pub certificates: bool,
    /// Ranges of addresses that no sandbox reaches.
    pub closed_to: Vec<String>,
}

impl Default for PodOptions {
    fn default() -> PodOptions {
        PodOptions {
            port: 7070,
            image: None,
            secret: None,
            tokens: None,
            certificates: false,
            closed_to: Vec::new(),
        }
    }
}

impl PodOptions {
    /// The Secret that the agents of a pool get.
    fn secret_of(&self, pool: &SandboxPool) -> Option<String> {
        let own = self.tokens.is_some().then(|| tokens::secret_name(&pool.name_any()));
        self.secret.clone().or(own)
    }
}

/// The Pod of a pool's agent, or why there is none.
pub(super) fn pod(pool: &SandboxPool, index: u32, options: &PodOptions) -> Result<Pod, String> {
    let name = pool.name_any();
    if name.len() > LONGEST_POOL {
        return Err(format!(
            "the name of a pool whose agents are Pods has at most {LONGEST_POOL} characters"
        ));
    }
    let template = pool.spec.agent_template.clone().unwrap_or_default();
    let mut metadata = template.metadata.unwrap_or_default();
    metadata.name = Some(format!("{name}-agent-{index}"));
    metadata.namespace = pool.namespace();
    let own = [(labels::SANDBOX_POOL, name.clone()), (labels::SANDBOX_AGENT, index.to_string())];
    let labels = metadata.labels.get_or_insert_default();
    labels.extend(own.map(|(key, value)| (key.to_owned(), value)));
    metadata.owner_references = Some(pool.controller_owner_ref(&()).into_iter().collect());
    let metadata = ObjectMeta { uid: None, resource_version: None, ..metadata };
    let mut spec = template.spec.unwrap_or_default();
    if spec.containers.is_empty() {
        spec.containers.push(Container { name: AGENT.into(), ..Container::default() });
    }
    let at = spec.containers.iter().position(|container| container.name == AGENT).unwrap_or(0);
    complete(&mut spec.containers[at], pool, options)?;
    volumes(&mut spec, at, options.secret_of(pool));
    // It gets no token for the API server: it never asks it anything.
    spec.automount_service_account_token.get_or_insert(false);
    Ok(Pod { metadata, spec: Some(spec), status: None })
}

/// What the template leaves open of the agent's container.
fn complete(container: &mut Container, pool: &SandboxPool, options: &PodOptions) -> Result<(), String> {
    if container.image.is_none() {
        let missing = "the pool's agentTemplate names no image for its agent, and this controller has none either: \
                       give it --agent-image";
        container.image = Some(options.image.clone().ok_or(missing)?);
    }
    if container.command.is_none() && container.args.is_none() {
        container.command = Some(vec!["agentcube".into(), "sandbox-agent".into()]);
    }
    // It makes namespaces, mounts and cgroups, whoever the image says that it is.
    container.security_context.get_or_insert_with(|| SecurityContext {
        privileged: Some(true),
        run_as_user: Some(0),
        ..SecurityContext::default()
    });
    let port = ContainerPort { container_port: options.port.into(), ..ContainerPort::default() };
    let ports = container.ports.get_or_insert_default();
    if ports.iter().all(|known| known.container_port != port.container_port) {
        ports.push(port);
    }
    let env = container.env.get_or_insert_default();
    let who = [
        field("UID", "metadata.uid"),
        field("NAME", "metadata.name"),
        field("NAMESPACE", "metadata.namespace"),
        value("POOL", pool.name_any()),
    ];
    // Who it is, it cannot say otherwise.
    env.retain(|one| who.iter().all(|own| own.name != one.name));
    env.extend(who);
    let mut defaults = vec![
        field("NODE", "spec.nodeName"),
        field("ADDRESS", "status.podIP"),
        field("HOST", "status.hostIP"),
        value("LISTEN", format!("0.0.0.0:{}", options.port)),
        value("CAPACITY", pool.spec.max_sandboxes_per_pod.to_string()),
        value("RUNTIME", pool.spec.runtime_type.clone()),
        value("DATA_DIR", DATA_PATH.into()),
    ];
    if !options.closed_to.is_empty() {
        defaults.push(value("CLOSED_TO", options.closed_to.join(",")));
    }
    if options.secret_of(pool).is_some() {
        let file = |name: &str, file: &str| value(name, format!("{SECRET_PATH}/{file}"));
        match options.certificates {
            false => defaults.push(file("TOKEN_FILE", "token")),
            true => defaults.extend([
                file("TLS_CERT", "tls.crt"),
                file("TLS_KEY", "tls.key"),
                file("CLIENT_CA", "ca.crt"),
            ]),
        }
    }
    let open: Vec<EnvVar> =
        defaults.into_iter().filter(|one| env.iter().all(|known| known.name != one.name)).collect();
    env.extend(open);
    Ok(())
}

fn volumes(spec: &mut PodSpec, at: usize, secret: Option<String>) {
    let mut wanted = vec![(
        DATA_PATH,
        Volume { name: DATA.into(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() },
    )];
    if let Some(secret) = secret {
        let secret = SecretVolumeSource { secret_name: Some(secret), ..SecretVolumeSource::default() };
        wanted.push((SECRET_PATH, Volume { name: SECRET.into(), secret: Some(secret), ..Volume::default() }));
    }
    let mounts = spec.containers[at].volume_mounts.get_or_insert_default();
    let volumes = spec.volumes.get_or_insert_default();
    for (path, volume) in wanted {
        // A template may have something of its own there.
        if mounts.iter().any(|mount| mount.mount_path == path) {
            continue;
        }
        let read_only = volume.secret.is_some().then_some(true);
        mounts.push(VolumeMount {
            name: volume.name.clone(),
            mount_path: path.into(),
            read_only,
            ..VolumeMount::default()
        });
        if volumes.iter().all(|known| known.name != volume.name) {
            volumes.push(volume);
        }
    }
}

fn value(name: &str, value: String) -> EnvVar {
    EnvVar { name: format!("AGENTCUBE_AGENT_{name}"), value: Some(value), value_from: None }
}

fn field(name: &str, path: &str) -> EnvVar {
    let field = ObjectFieldSelector { field_path: path.into(), api_version: None };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    EnvVar { name: format!("AGENTCUBE_AGENT_{name}"), value: None, value_from: Some(source) }
}
