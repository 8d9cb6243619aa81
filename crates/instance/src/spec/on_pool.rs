//! Tasks whose instances are Sandboxes on a pool. The revision's PodTemplate carries what a Sandbox is as an annotation;
//! its Pod is there for those who read it, and nobody starts it. What a pool cannot do is refused here, by name.

use std::collections::BTreeMap;

use agentcube_api::agentcube::deployment::{CodeBundleSpec, EnvVar, SandboxTemplateSpec};
use agentcube_api::sandbox::{FailurePolicy, KeyRef, SandboxFile, SandboxSpec};
use agentcube_api::{Task, labels};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, Volume};
use kube::core::ObjectMeta;

use super::code;
use super::config::{Config, Runtime};
use super::render::{Child, Rendered};
use crate::provider::SpecError;
use crate::revision::Form;

const CONTAINER: &str = "sandbox";
/// After so many seconds what a silent agent runs stands still for certain; no less is promised.
const FENCE: i32 = 15;
/// What a Sandbox may have.
const MOST_VARIABLES: usize = 128;
const LONGEST_WORD: usize = 4096;
const MOST_OF_FILES: usize = 256 << 10;
/// What fits into an annotation, with something left for others.
const LONGEST_SPEC: usize = 200 << 10;

pub(super) fn render(task: &Task, pool: &str, config: &Config) -> Result<Rendered, SpecError> {
    let deployment = &task.spec.deployment;
    let mut made = match (&deployment.sandbox_template, &deployment.code_bundle) {
        (Some(template), _) => of_template(template)?,
        (None, Some(bundle)) => of_bundle(task, bundle, config)?,
        (None, None) => return Err(invalid("poolRef stands in neither sandboxTemplate nor codeBundle")),
    };
    let port = task.spec.request_handling.backend.port;
    let sandbox = &mut made.sandbox;
    sandbox.pool_ref = pool.into();
    sandbox.exposed_ports = vec![port];
    if !sandbox.envs.iter().any(|variable| variable.name == "PORT") {
        sandbox.envs.insert(0, EnvVar { name: "PORT".into(), value: port.to_string() });
    }
    // A session must not be given another process in the place of the one that it had.
    sandbox.failure_policy = FailurePolicy::Manual;
    sandbox.recovery_timeout_seconds = FENCE;
    check(sandbox)?;
    Ok(Rendered {
        form: Form::Sandboxes,
        template: template(&made)?,
        children: made.children,
        prepare: made.prepare,
    })
}

/// What a revision is made of, before it is written down.
#[derive(Default)]
struct Made {
    sandbox: SandboxSpec,
    children: Vec<Child>,
    prepare: Vec<Container>,
    /// What the containers that prepare mount.
    volumes: Vec<Volume>,
}

fn invalid(message: impl Into<String>) -> SpecError {
    SpecError::Invalid(message.into())
}

fn template(made: &Made) -> Result<PodTemplateSpec, SpecError> {
    let sandbox = &made.sandbox;
    let text = serde_json::to_string(sandbox).expect("typed objects can be written");
    if text.len() > LONGEST_SPEC {
        return Err(invalid(format!(
            "what an instance is made of has {} bytes, and at most {LONGEST_SPEC} fit on a SandboxPool: bring less in \
             args and env",
            text.len()
        )));
    }
    let list = |words: &[String]| (!words.is_empty()).then(|| words.to_vec());
    let container = Container {
        name: CONTAINER.into(),
        image: Some(sandbox.image.clone()),
        command: list(&sandbox.command),
        args: list(&sandbox.args),
        ..Container::default()
    };
    let annotations = BTreeMap::from([(labels::SANDBOX_SPEC.into(), text)]);
    let spec = PodSpec {
        containers: vec![container],
        volumes: (!made.volumes.is_empty()).then(|| made.volumes.clone()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        ..PodSpec::default()
    };
    let metadata = ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() };
    Ok(PodTemplateSpec { metadata: Some(metadata), spec: Some(spec) })
}

/// The server would refuse it too, but only when the first request starts an instance.
fn check(sandbox: &SandboxSpec) -> Result<(), SpecError> {
    if sandbox.envs.len() > MOST_VARIABLES {
        let count = sandbox.envs.len();
        return Err(invalid(format!("env has {count} variables, and a Sandbox at most {MOST_VARIABLES}")));
    }
    let mut words = sandbox.command.iter().chain(&sandbox.args);
    if let Some(long) = words.find(|word| word.chars().count() > LONGEST_WORD) {
        let length = long.chars().count();
        return Err(invalid(format!(
            "a word of command or args has {length} characters, and in a Sandbox at most {LONGEST_WORD}"
        )));
    }
    Ok(())
}

fn of_template(wanted: &SandboxTemplateSpec) -> Result<Made, SpecError> {
    if wanted.kernel.is_some() {
        return Err(invalid(
            "sandboxTemplate.kernel cannot be used with poolRef: the pool's runtime boots none",
        ));
    }
    if !wanted.node_selector.is_empty() {
        return Err(invalid(
            "sandboxTemplate.nodeSelector cannot be used with poolRef: it is for the pool's agentTemplate to say where \
             its agents are",
        ));
    }
    let Some(rootfs) = &wanted.rootfs else {
        return Err(invalid(
            "sandboxTemplate.rootfs.image is missing: a SandboxPool has no image of its own",
        ));
    };
    let sandbox = SandboxSpec {
        image: rootfs.image.clone(),
        read_only_root: rootfs.read_only,
        command: wanted.command.clone(),
        args: wanted.args.clone(),
        envs: wanted.env.clone(),
        working_dir: wanted.working_dir.clone(),
        resources: wanted.resources.clone(),
        ..SandboxSpec::default()
    };
    Ok(Made { sandbox, ..Made::default() })
}

/// Code that stands in the Task or in a ConfigMap is given to the Sandbox as files. An archive is fetched inside of it, by
/// our own program, before the runtime runs: so that has to be in the image.
fn of_bundle(task: &Task, bundle: &CodeBundleSpec, config: &Config) -> Result<Made, SpecError> {
    if bundle.dependencies.is_some() {
        return Err(invalid(
            "codeBundle.dependencies cannot be installed on a SandboxPool: let the archive or the image bring them",
        ));
    }
    let runtime = code::runtime(bundle, config)?;
    let entrypoint = code::relative("entrypoint", &bundle.entrypoint)?;
    let program: Vec<String> = {
        let path = format!("{}/{entrypoint}", code::CODE);
        runtime.command.iter().map(|word| code::place(word, &path)).collect()
    };
    let sandbox = SandboxSpec {
        image: code::image(bundle, runtime),
        command: program,
        args: bundle.args.clone(),
        envs: environment(bundle, runtime, &format!("{}/{entrypoint}", code::CODE)),
        resources: bundle.resources.clone(),
        ..SandboxSpec::default()
    };
    let mut made = Made { sandbox, ..Made::default() };
    if bundle.zip_url.is_some() {
        fetched(&mut made, task, bundle, config)?;
    } else if let Some(files) = &bundle.inline {
        let size: usize = files.values().map(String::len).sum();
        if size > MOST_OF_FILES {
            return Err(invalid(format!(
                "codeBundle.inline has {size} bytes, and on a SandboxPool at most {MOST_OF_FILES} fit: use zipUrl"
            )));
        }
        let source = code::inline(task, files)?;
        let Some(Child::Code { name, .. }) = source.children.first() else {
            return Err(invalid("codeBundle.inline is empty"));
        };
        let keys = files.keys().enumerate().map(|(number, path)| (format!("file-{number}"), path.as_str()));
        made.sandbox.files = as_files(name, keys, &bundle.entrypoint)?;
        made.sandbox.working_dir = Some(code::CODE.into());
        made.children = source.children;
    } else if let Some(map) = &bundle.config_map {
        let keys = map.items.iter().map(|item| (item.key.clone(), item.path.as_str()));
        made.sandbox.files = as_files(&map.name, keys, &bundle.entrypoint)?;
        made.sandbox.working_dir = Some(code::CODE.into());
    } else {
        return Err(invalid(
            "codeBundle.pvc cannot be used with poolRef: a Sandbox has no volumes; use zipUrl",
        ));
    }
    Ok(made)
}

fn environment(bundle: &CodeBundleSpec, runtime: &Runtime, entrypoint: &str) -> Vec<EnvVar> {
    let own = |name: &str| bundle.env.iter().any(|variable| variable.name == name);
    let of_runtime = runtime.env.iter().filter(|(name, _)| !own(name));
    let of_runtime =
        of_runtime.map(|(name, value)| EnvVar { name: name.clone(), value: code::place(value, entrypoint) });
    bundle.env.iter().cloned().chain(of_runtime).collect()
}

/// Keys of a ConfigMap as files of the code.
fn as_files<'a>(
    map: &str,
    keys: impl Iterator<Item = (String, &'a str)>,
    entrypoint: &str,
) -> Result<Vec<SandboxFile>, SpecError> {
    let mut files = Vec::new();
    let mut found = false;
    for (key, path) in keys {
        let path = code::relative("inline", path)?;
        found |= path.as_str() == entrypoint;
        files.push(SandboxFile {
            path: format!("{}/{path}", code::CODE),
            config_map_key_ref: Some(KeyRef { name: map.into(), key }),
            ..SandboxFile::default()
        });
    }
    match found {
        true => Ok(files),
        false => Err(invalid(format!(
            "codeBundle.entrypoint {entrypoint:?} is not among the files; those of a ConfigMap have to be listed as \
             items to be used with poolRef"
        ))),
    }
}

/// An archive, fetched inside of the sandbox.
fn fetched(made: &mut Made, task: &Task, bundle: &CodeBundleSpec, config: &Config) -> Result<(), SpecError> {
    let own = &config.program.image;
    if made.sandbox.image != *own {
        return Err(invalid(format!(
            "codeBundle.zipUrl with poolRef needs codeRuntime.image {own:?}: the archive is fetched inside of the \
             sandbox, by AgentCube's own program, which the image {:?} does not have",
            made.sandbox.image
        )));
    }
    let entrypoint = code::relative("entrypoint", &bundle.entrypoint)?;
    let source = code::source(task, bundle, config)?;
    // Before the first request, as for Pods.
    made.prepare = vec![code::fetch(bundle, config, &entrypoint, &source, None)?];
    let mut url = code::words(["--url", bundle.zip_url.as_deref().unwrap_or_default()]);
    if let Some(sha256) = &bundle.sha256 {
        url.extend(code::words(["--sha256", sha256]));
    }
    let limit = code::limit(bundle)?.to_string();
    let [program, into] = [config.program.path.as_str(), code::ROOT];
    let mut command = code::words([program, "bundle", "run", "--into", into]);
    command.extend(code::words(["--limit", &limit, "--entrypoint", entrypoint.as_str()]));
    command.extend(url);
    command.push("--".into());
    command.append(&mut made.sandbox.command);
    made.sandbox.command = command;
    (made.children, made.volumes) = (source.children, source.volumes);
    made.volumes.push(code::empty_dir("bundle"));
    Ok(())
}
