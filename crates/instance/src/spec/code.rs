//! Tasks of type code-bundle: an instance is a runtime image that runs code which an init container has fetched,
//! checked and unpacked. No shell runs anywhere.

use std::collections::BTreeMap;

use agentcube_api::Task;
use agentcube_api::agentcube::deployment::{CodeBundleSpec, DependenciesSpec};
use agentcube_bundle::path::Relative;
use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource,
    ObjectFieldSelector, PersistentVolumeClaimVolumeSource, PodSecurityContext, PodSpec, PodTemplateSpec,
    SecretVolumeSource, SecurityContext, Volume, VolumeMount,
};
use kube::ResourceExt;
use kube::core::ObjectMeta;

use super::config::{Config, Installer, Runtime};
use super::render::{Child, Rendered, hex};
use super::sandbox::{default_seccomp, environment, resources};
use crate::provider::SpecError;
use crate::revision::Form;
use crate::token::task_secret_name;

const AGENT: &str = "agent";
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// Where everything of the bundle is; the runtime may write here.
pub(super) const ROOT: &str = "/bundle";
pub(super) const CODE: &str = "/bundle/code";
const SOURCE: &str = "/source";
const CACHE: &str = "/cache";
/// Where the code finds the keys to verify tokens with.
const TOKEN: &str = "/var/run/agentcube/token";
/// A program that is the first of its container and does not ask for the signal to end never gets it.
const GRACE: i64 = 10;
const DEFAULT_LIMIT: i64 = 100 << 20;
/// What fits into one ConfigMap, with something left for its names.
const MOST_INLINE: usize = 1_000_000;

pub(super) fn render(task: &Task, config: &Config) -> Result<Rendered, SpecError> {
    let Some(bundle) = &task.spec.deployment.code_bundle else {
        let message = "deployment.codeBundle is missing, which type code-bundle needs";
        return Err(SpecError::Invalid(message.into()));
    };
    let runtime = runtime(bundle, config)?;
    let entrypoint = relative("entrypoint", &bundle.entrypoint)?;
    let mut source = source(task, bundle, config)?;
    let dependencies = dependencies(bundle, runtime)?;
    let mut prepare = vec![fetch(bundle, config, &entrypoint, &source, dependencies.as_ref())?];
    prepare.extend(dependencies.iter().flat_map(|wanted| wanted.containers(bundle, runtime)));
    let port = task.spec.request_handling.backend.port;
    let container = container(bundle, runtime, &entrypoint, port);
    source.volumes.extend([empty_dir("bundle"), secret("token", &task_secret_name(&task.name_any()))]);
    let spec = PodSpec {
        init_containers: Some(prepare.clone()),
        containers: vec![container],
        volumes: Some(source.volumes),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(GRACE),
        security_context: Some(PodSecurityContext {
            seccomp_profile: Some(default_seccomp()),
            ..PodSecurityContext::default()
        }),
        ..PodSpec::default()
    };
    // Whoever asks for logs or a shell means the agent, not what fetched its code.
    let annotations = BTreeMap::from([(DEFAULT_CONTAINER.into(), AGENT.into())]);
    let metadata = ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() };
    Ok(Rendered {
        form: Form::Slots,
        template: PodTemplateSpec { metadata: Some(metadata), spec: Some(spec) },
        children: source.children,
        prepare,
    })
}

pub(super) fn runtime<'a>(bundle: &CodeBundleSpec, config: &'a Config) -> Result<&'a Runtime, SpecError> {
    let name = &bundle.code_runtime.name;
    config.runtimes.get(name).ok_or_else(|| {
        let known: Vec<&str> = config.runtimes.keys().map(String::as_str).collect();
        SpecError::Invalid(format!(
            "codeRuntime.name {name:?} is not known here; known are {}",
            known.join(", ")
        ))
    })
}

pub(super) fn relative(field: &str, path: &str) -> Result<Relative, SpecError> {
    path.parse().map_err(|error| SpecError::Invalid(format!("codeBundle.{field} {path:?}: {error}")))
}

/// Where the code comes from.
#[derive(Default)]
pub(super) struct Source {
    arguments: Vec<String>,
    mounts: Vec<VolumeMount>,
    pub(super) volumes: Vec<Volume>,
    pub(super) children: Vec<Child>,
}

pub(super) fn source(task: &Task, bundle: &CodeBundleSpec, config: &Config) -> Result<Source, SpecError> {
    if let Some(url) = &bundle.zip_url {
        return Ok(from_url(task, bundle, url, config));
    }
    if bundle.sha256.is_some() {
        let message = "codeBundle.sha256 is that of an archive: it can be used with zipUrl only";
        return Err(SpecError::Invalid(message.into()));
    }
    if let Some(files) = &bundle.inline {
        return inline(task, files);
    }
    if let Some(map) = &bundle.config_map {
        let mut source = Source { arguments: words(["--from", SOURCE]), ..Source::default() };
        for item in &map.items {
            let path = relative("configMap.items.path", &item.path)?;
            source.arguments.extend(words(["--file", &format!("{}={path}", item.key)]));
        }
        source.mount(config_map("source", &map.name), None);
        return Ok(source);
    }
    let Some(claim) = &bundle.pvc else {
        let message = "codeBundle names no code: set one of zipUrl, inline, configMap and pvc";
        return Err(SpecError::Invalid(message.into()));
    };
    let mut source = Source { arguments: words(["--from", SOURCE]), ..Source::default() };
    let below = claim.sub_path.as_deref().map(|path| relative("pvc.subPath", path)).transpose()?;
    source.mount(volume_claim("source", &claim.claim_name, true), below.map(|path| path.to_string()));
    Ok(source)
}

impl Source {
    fn mount(&mut self, volume: Volume, sub_path: Option<String>) {
        let read_only = Some(true);
        let mount = mount(&volume.name, SOURCE);
        self.mounts.push(VolumeMount { read_only, sub_path, ..mount });
        self.volumes.push(volume);
    }
}

fn from_url(task: &Task, bundle: &CodeBundleSpec, url: &str, config: &Config) -> Source {
    let mut source = Source { arguments: words(["--url", url]), ..Source::default() };
    let Some(sha256) = &bundle.sha256 else { return source };
    source.arguments.extend(words(["--sha256", sha256]));
    if config.bundle_cache.is_some() {
        let name = format!("{}-bundles", task.name_any());
        source.arguments.extend(words(["--cache", CACHE]));
        source.mounts.push(mount("cache", CACHE));
        source.volumes.push(volume_claim("cache", &name, false));
        source.children.push(Child::Cache { name });
    }
    source
}

/// Files as keys of a ConfigMap, which is named for its content: a change is another one, and the old stays as long as
/// its revision.
pub(super) fn inline(task: &Task, files: &BTreeMap<String, String>) -> Result<Source, SpecError> {
    let size: usize = files.iter().map(|(path, text)| path.len() + text.len()).sum();
    if size > MOST_INLINE {
        return Err(SpecError::Invalid(format!(
            "codeBundle.inline has {size} bytes, at most {MOST_INLINE} fit: use zipUrl"
        )));
    }
    let mut source = Source { arguments: words(["--from", SOURCE]), ..Source::default() };
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    let mut data = BTreeMap::new();
    for (number, (path, text)) in files.iter().enumerate() {
        let path = relative("inline", path)?.to_string();
        for part in [path.as_bytes(), text.as_bytes()] {
            digest.update(&(part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let key = format!("file-{number}");
        source.arguments.extend(words(["--file", &format!("{key}={path}")]));
        data.insert(key, text.clone());
    }
    let name = format!("{}-code-{}", task.name_any(), hex(&digest.finish().as_ref()[..5]));
    source.mount(config_map("source", &name), None);
    source.children.push(Child::Code { name, files: data });
    Ok(source)
}

/// What is to be installed.
pub(super) struct Dependencies<'a> {
    installer: &'a Installer,
    file: Option<Relative>,
    packages: &'a [String],
}

fn dependencies<'a>(
    bundle: &'a CodeBundleSpec,
    runtime: &'a Runtime,
) -> Result<Option<Dependencies<'a>>, SpecError> {
    let Some(DependenciesSpec { file, packages }) = &bundle.dependencies else { return Ok(None) };
    let Some(installer) = &runtime.installer else {
        return Err(SpecError::Invalid(format!(
            "codeBundle.dependencies cannot be installed: runtime {} has no installer",
            bundle.code_runtime.name
        )));
    };
    // A package that looks like an option would be one.
    let bad = packages.iter().find(|name| name.starts_with('-') || name.trim().is_empty());
    if let Some(bad) = bad {
        return Err(SpecError::Invalid(format!(
            "codeBundle.dependencies.packages: {bad:?} names no package"
        )));
    }
    let file = match (file, packages.is_empty()) {
        (Some(file), _) => Some(relative("dependencies.file", file)?),
        (None, true) => Some(relative("dependencies.file", &installer.file)?),
        (None, false) => None,
    };
    Ok(Some(Dependencies { installer, file, packages }))
}

impl Dependencies<'_> {
    fn containers(&self, bundle: &CodeBundleSpec, runtime: &Runtime) -> Vec<Container> {
        let file = self.file.as_ref().map(|file| format!("{CODE}/{file}"));
        let fill = |command: &[String]| -> Vec<String> {
            command.iter().map(|word| word.replace("{file}", file.as_deref().unwrap_or_default())).collect()
        };
        let from_file = self.file.iter().map(|_| ("install", fill(&self.installer.from_file)));
        let packages = (!self.packages.is_empty()).then(|| {
            let command = self.installer.packages.iter().chain(self.packages).cloned().collect();
            ("install-packages", command)
        });
        let container = |(name, command): (&str, Vec<String>)| Container {
            name: name.into(),
            image: Some(image(bundle, runtime)),
            command: Some(command.iter().map(|word| place(word, "")).collect()),
            // Package managers want a home, and images of others have none for everybody.
            env: Some(vec![variable("HOME", "/tmp")]),
            working_dir: Some(ROOT.into()),
            resources: bundle.resources.as_ref().map(resources),
            volume_mounts: Some(vec![mount("bundle", ROOT)]),
            security_context: Some(unprivileged()),
            ..Container::default()
        };
        from_file.chain(packages).map(container).collect()
    }
}

pub(super) fn fetch(
    bundle: &CodeBundleSpec,
    config: &Config,
    entrypoint: &Relative,
    source: &Source,
    dependencies: Option<&Dependencies<'_>>,
) -> Result<Container, SpecError> {
    let limit = limit(bundle)?;
    let program = [config.program.path.as_str(), "bundle", "fetch", "--into", ROOT];
    let mut command = words(program);
    command.extend(words(["--limit", &limit.to_string(), "--entrypoint", entrypoint.as_str()]));
    command.extend(source.arguments.iter().cloned());
    if let Some(Dependencies { installer, file: Some(file), .. }) = dependencies {
        command.extend(words(["--require", file.as_str()]));
        for name in &installer.lift {
            command.extend(words(["--lift", &file.beside(name)]));
        }
    }
    let mut mounts = vec![mount("bundle", ROOT)];
    mounts.extend(source.mounts.iter().cloned());
    Ok(Container {
        name: "fetch".into(),
        image: Some(config.program.image.clone()),
        command: Some(command),
        resources: bundle.resources.as_ref().map(resources),
        volume_mounts: Some(mounts),
        security_context: Some(unprivileged()),
        ..Container::default()
    })
}

/// The most that the code may measure.
pub(super) fn limit(bundle: &CodeBundleSpec) -> Result<i64, SpecError> {
    let limit = bundle.size_limit.as_ref().map_or(DEFAULT_LIMIT, |limit| limit.value());
    match limit > 0 {
        true => Ok(limit),
        false => Err(SpecError::Invalid("codeBundle.sizeLimit must be above 0".into())),
    }
}

fn container(bundle: &CodeBundleSpec, runtime: &Runtime, entrypoint: &Relative, port: i32) -> Container {
    let entrypoint = format!("{CODE}/{entrypoint}");
    let mut env: Vec<EnvVar> = environment(&bundle.env, port);
    let of_runtime = runtime.env.iter().filter(|(name, _)| bundle.env.iter().all(|var| var.name != **name));
    env.extend(of_runtime.map(|(name, value)| variable(name, &place(value, &entrypoint))));
    // By its own UID it knows that a token is meant for it.
    let uid = ObjectFieldSelector { field_path: "metadata.uid".into(), api_version: None };
    let source = EnvVarSource { field_ref: Some(uid), ..EnvVarSource::default() };
    env.push(EnvVar { name: "INSTANCE_UID".into(), value: None, value_from: Some(source) });
    let keys = VolumeMount { read_only: Some(true), ..mount("token", TOKEN) };
    Container {
        name: AGENT.into(),
        image: Some(image(bundle, runtime)),
        command: Some(runtime.command.iter().map(|word| place(word, &entrypoint)).collect()),
        args: (!bundle.args.is_empty()).then(|| bundle.args.clone()),
        env: Some(env),
        working_dir: Some(CODE.into()),
        ports: Some(vec![ContainerPort { container_port: port, ..ContainerPort::default() }]),
        resources: bundle.resources.as_ref().map(resources),
        volume_mounts: Some(vec![mount("bundle", ROOT), keys]),
        security_context: Some(unprivileged()),
        ..Container::default()
    }
}

pub(super) fn image(bundle: &CodeBundleSpec, runtime: &Runtime) -> String {
    bundle.code_runtime.image.clone().unwrap_or_else(|| runtime.image.clone())
}

/// A word of a command with what it names put in.
pub(super) fn place(word: &str, entrypoint: &str) -> String {
    word.replace("{entrypoint}", entrypoint).replace("{code}", CODE).replace("{root}", ROOT)
}

fn unprivileged() -> SecurityContext {
    SecurityContext { allow_privilege_escalation: Some(false), ..SecurityContext::default() }
}

pub(super) fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(Into::into).into()
}

fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.into(), value: Some(value.into()), value_from: None }
}

fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount { name: volume.into(), mount_path: path.into(), ..VolumeMount::default() }
}

pub(super) fn empty_dir(name: &str) -> Volume {
    Volume { name: name.into(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() }
}

fn config_map(name: &str, map: &str) -> Volume {
    let source = ConfigMapVolumeSource { name: map.into(), ..ConfigMapVolumeSource::default() };
    Volume { name: name.into(), config_map: Some(source), ..Volume::default() }
}

fn secret(name: &str, secret: &str) -> Volume {
    let source = SecretVolumeSource { secret_name: Some(secret.into()), ..SecretVolumeSource::default() };
    Volume { name: name.into(), secret: Some(source), ..Volume::default() }
}

fn volume_claim(name: &str, claim: &str, read_only: bool) -> Volume {
    let source =
        PersistentVolumeClaimVolumeSource { claim_name: claim.into(), read_only: read_only.then_some(true) };
    Volume { name: name.into(), persistent_volume_claim: Some(source), ..Volume::default() }
}
