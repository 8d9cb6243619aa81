//! What containers stand on: volumes, the sandbox, directories.

use std::fs;
use std::sync::Arc;

use agentcube_runtime::{Runtime, SandboxId, SandboxSpec};
use k8s_openapi::api::core::v1::Pod;

use super::{Outcome, Parts, blocking, uid};
use crate::kubelet::container::{Names, hosts, names};
use crate::kubelet::machine::{Report, printed_pod};
use crate::kubelet::worker::Ground;

pub(crate) async fn volumes(parts: Arc<Parts>, pod: Arc<Pod>) -> Outcome {
    let (worker, subject) = (parts.clone(), pod.clone());
    match blocking(move || worker.volumes.prepare(&subject).map_err(|error| error.to_string())).await {
        Ok(prepared) => Outcome::Volumes(prepared),
        Err(message) => {
            parts.recorder.warning(pod.as_ref(), "FailedMount", message.clone());
            Outcome::Report(Report::VolumesFailed(message))
        }
    }
}

pub(crate) async fn sandbox(parts: Arc<Parts>, pod: Arc<Pod>) -> Outcome {
    match create(&parts, &pod).await {
        Ok(ground) => Outcome::Sandbox(ground),
        Err(message) => {
            let said = format!("Failed to create pod sandbox: {message}");
            parts.recorder.warning(pod.as_ref(), "FailedCreatePodSandBox", said);
            Outcome::Report(Report::SandboxFailed(message))
        }
    }
}

async fn create(parts: &Arc<Parts>, pod: &Arc<Pod>) -> Result<Ground, String> {
    let runtime = runtime(parts, pod)?;
    let names = Arc::new(names(pod, &parts.options.cluster_domain)?);
    let id = SandboxId::new(uid(pod)).map_err(|error| error.to_string())?;
    let address = parts.network.allocate().map_err(|error| error.to_string())?;
    let name_server = parts.network.gateway();
    let spec = SandboxSpec { id: id.clone(), hostname: names.hostname.clone(), address, name_server };
    let sockets = match parts.sandboxes.create(spec).await {
        Ok(sockets) => sockets,
        Err(error) => {
            parts.network.free(address);
            return Err(error.to_string());
        }
    };
    if let Err(error) = parts.network.attach(id.clone(), address, pod, sockets) {
        parts.network.free(address);
        discard(parts, &id).await;
        return Err(format!("cannot serve its network: {error}"));
    }
    let ground = Ground { address, names, runtime };
    if let Err(error) = write_files(parts, pod, &ground).await {
        parts.network.detach(&id);
        discard(parts, &id).await;
        return Err(error);
    }
    Ok(ground)
}

async fn discard(parts: &Parts, id: &SandboxId) {
    if let Err(error) = parts.sandboxes.remove(id).await {
        tracing::warn!(sandbox = %id, "a sandbox that is of no use could not be removed: {error}");
    }
}

/// The runtime that the Pod's RuntimeClass names.
fn runtime(parts: &Parts, pod: &Pod) -> Result<Arc<dyn Runtime>, String> {
    let class =
        pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref()).filter(|it| !it.is_empty());
    let handler = match class {
        None => String::new(),
        Some(class) => match parts.caches.runtime_classes.get("", class) {
            Some(found) => found.handler.clone(),
            None => return Err(format!("runtimeclasses.node.k8s.io \"{class}\" not found")),
        },
    };
    let known = parts.handlers.get(&handler).cloned();
    known.ok_or_else(|| format!("no runtime for \"{handler}\" is configured on this node"))
}

async fn write_files(parts: &Arc<Parts>, pod: &Arc<Pod>, ground: &Ground) -> Result<(), String> {
    let (parts, pod, ground) = (parts.clone(), pod.clone(), ground.clone());
    blocking(move || {
        let Ground { address, names, .. } = &ground;
        let Names { hostname, .. } = names.as_ref();
        let files = [
            ("hosts", hosts(&pod, names, *address)),
            ("hostname", format!("{hostname}\n")),
            ("resolv.conf", parts.network.resolv_conf(&pod)),
        ];
        let write = || -> std::io::Result<()> {
            let directory = parts.directories.etc(&uid(&pod))?;
            files.iter().try_for_each(|(name, text)| fs::write(directory.join(name), text))
        };
        write().map_err(|error| format!("cannot write the files of its network: {error}"))
    })
    .await
}

pub(crate) async fn remove_sandbox(parts: Arc<Parts>, pod: Arc<Pod>) -> Outcome {
    let Ok(id) = SandboxId::new(uid(&pod)) else { return Outcome::Report(Report::SandboxRemoved) };
    parts.network.detach(&id);
    Outcome::Report(match parts.sandboxes.remove(&id).await {
        // With the spawner, every sandbox has ended.
        Ok(()) | Err(agentcube_runtime::Error::SpawnerGone) => Report::SandboxRemoved,
        Err(error) => {
            let said = format!("error killing pod: {error}");
            parts.recorder.warning(pod.as_ref(), "FailedKillPod", said);
            Report::SandboxStuck
        }
    })
}

pub(crate) async fn remove_volumes(parts: Arc<Parts>, pod: Arc<Pod>) -> Outcome {
    let subject = pod.clone();
    let removed =
        blocking(move || parts.volumes.remove(&uid(&subject)).map_err(|error| error.to_string())).await;
    Outcome::Report(match removed {
        Ok(()) => Report::VolumesRemoved,
        Err(error) => {
            tracing::warn!(pod = %printed_pod(&pod), "its volumes could not be removed: {error}");
            Report::VolumesStuck
        }
    })
}

pub(crate) async fn remove_directory(parts: Arc<Parts>, pod: Arc<Pod>) -> Outcome {
    let subject = pod.clone();
    let removed =
        blocking(move || parts.directories.remove(&uid(&subject)).map_err(|error| error.to_string())).await;
    Outcome::Report(match removed {
        Ok(()) => Report::DirectoryRemoved,
        Err(error) => {
            tracing::warn!(pod = %printed_pod(&pod), "its directory could not be removed: {error}");
            Report::DirectoryStuck
        }
    })
}
