//! Images: found here, or fetched.

use std::sync::Arc;
use std::time::{Duration, Instant};

use agentcube_runtime::image::{Credentials, Error, HOST, Image, Keyring, Reference};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::{Loaded, Outcome, Parts, blocking};
use crate::kubelet::machine::Report;
use crate::kubelet::worker::about;
use agentcube_operator::events::Severity;

/// A pull that takes longer is begun anew.
const LIMIT: Duration = Duration::from_secs(1800);

struct Failure {
    reason: &'static str,
    message: String,
    /// The Event that tells more than the reason does.
    event: Option<(&'static str, String)>,
}

pub(crate) async fn pull(parts: Arc<Parts>, pod: Arc<Pod>, spec: Container) -> Outcome {
    let container = spec.name.clone();
    match ensure(&parts, &pod, &spec).await {
        Ok(loaded) => Outcome::Image { container, loaded },
        Err(Failure { reason, message, event }) => {
            let say = |reason: &str, message: String| {
                parts.recorder.record(about(&pod, &spec), Severity::Warning, reason, message);
            };
            if let Some((reason, message)) = event {
                say(reason, message);
            }
            say("Failed", format!("Error: {reason}"));
            Outcome::Report(Report::PullFailed { container, reason, message })
        }
    }
}

async fn ensure(parts: &Arc<Parts>, pod: &Pod, spec: &Container) -> Result<Loaded, Failure> {
    let name = spec.image.clone().unwrap_or_default();
    let reference = Reference::parse(&name).map_err(|error| {
        let message = format!("Failed to apply default image tag \"{name}\": {error}");
        Failure { reason: "InvalidImageName", event: Some(("InspectFailed", message.clone())), message }
    })?;
    let policy = spec.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
    if policy != "Always" || name == HOST {
        if let Some(loaded) = present(parts, &reference, &name).await? {
            let said = format!("Container image \"{name}\" already present on machine");
            parts.recorder.record(about(pod, spec), Severity::Normal, "Pulled", said);
            return Ok(loaded);
        }
        if policy == "Never" {
            let message = format!("Container image \"{name}\" is not present with pull policy of Never");
            let event = Some(("ErrImageNeverPull", message.clone()));
            return Err(Failure { reason: "ErrImageNeverPull", message, event });
        }
    }
    let asked = Instant::now();
    let _turn = parts.pulls.acquire().await;
    let begun = Instant::now();
    let said = format!("Pulling image \"{name}\"");
    parts.recorder.record(about(pod, spec), Severity::Normal, "Pulling", said);
    let failed = |error: Error| {
        let message = error.to_string();
        let event = Some(("Failed", format!("Failed to pull image \"{name}\": {message}")));
        Failure { reason: "ErrImagePull", message, event }
    };
    let image = fetch(parts, pod, &reference).await.map_err(failed)?;
    let said = format!(
        "Successfully pulled image \"{name}\" in {} ({} including waiting). Image size: {} bytes.",
        shown(begun.elapsed()),
        shown(asked.elapsed()),
        image.size
    );
    parts.recorder.record(about(pod, spec), Severity::Normal, "Pulled", said);
    hold(parts, image).await.map_err(|message| Failure { reason: "ErrImagePull", message, event: None })
}

/// As Go prints a duration, to the millisecond.
fn shown(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis < 1000 { format!("{millis}ms") } else { format!("{}.{:03}s", millis / 1000, millis % 1000) }
}

async fn present(parts: &Arc<Parts>, reference: &Reference, name: &str) -> Result<Option<Loaded>, Failure> {
    let (store, reference) = (parts.clone(), reference.clone());
    let broken = |error: String| {
        let message = format!("Failed to inspect image \"{name}\": {error}");
        Failure { reason: "ImageInspectError", event: Some(("InspectFailed", message.clone())), message }
    };
    let found = blocking(move || store.images.resolve(&reference).map_err(|error| error.to_string())).await;
    match found.map_err(broken)? {
        Some(image) => hold(parts, image).await.map(Some).map_err(broken),
        None => Ok(None),
    }
}

async fn hold(parts: &Arc<Parts>, image: Image) -> Result<Loaded, String> {
    let store = parts.clone();
    blocking(move || {
        let held = store.images.hold(&image).map_err(|error| error.to_string())?;
        Ok(Loaded { image, _held: held })
    })
    .await
}

/// Tries what the Pod's secrets know about the repository, one after the other, else nobody's name.
async fn fetch(parts: &Parts, pod: &Pod, reference: &Reference) -> Result<Image, Error> {
    let keyring = keyring(parts, pod);
    let repository = reference.repository();
    let known: Vec<Credentials> = keyring.find(&repository).cloned().collect();
    let deadline = Instant::now() + LIMIT;
    let mut last = None;
    for credentials in known.into_iter().map(Some).chain([None]) {
        if credentials.is_none() && last.is_some() {
            break;
        }
        match parts.images.pull(reference, credentials, Arc::new(|_| {}), deadline).await {
            Ok(image) => return Ok(image),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::NotFound(repository)))
}

fn keyring(parts: &Parts, pod: &Pod) -> Keyring {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let mut keyring = Keyring::default();
    for reference in pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten()) {
        let Some(secret) = parts.lookup.secret(namespace, &reference.name) else { continue };
        let Some(data) = secret.data.as_ref().and_then(|data| data.get(".dockerconfigjson")) else {
            continue;
        };
        match Keyring::parse(&data.0) {
            Ok(more) => keyring.extend(more),
            Err(error) => {
                let said = format!("Unable to use image pull secret {}: {error}", reference.name);
                parts.recorder.warning(pod, "FailedToRetrieveImagePullSecret", said);
            }
        }
    }
    keyring
}
