//! What is left of a run: how it ended, its last words, and what it held.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use agentcube_runtime::{ContainerId, Exit, Runtime};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::sync::oneshot;

use super::{Outcome, Parts, blocking, uid};
use crate::kubelet::container::termination_message;
use crate::kubelet::logs;
use crate::kubelet::machine::{Ended, Report};

const MOST_MESSAGE: u64 = 4096;
const MOST_LOG: usize = 2048;
const MOST_LOG_LINES: usize = 80;
const TRIES: u32 = 5;
/// What a container wrote is in its log at once when it has ended, unless something else still holds its output.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Waits until a run is over.
pub(crate) async fn exit(
    parts: Arc<Parts>,
    pod: Arc<Pod>,
    spec: Container,
    attempt: u32,
    id: String,
    exit: oneshot::Receiver<Exit>,
) -> Outcome {
    let since = Timestamp::now();
    let exit = exit.await;
    let now = Timestamp::now();
    let container = spec.name.clone();
    let ended = match exit {
        Ok(exit) => {
            let log = logs::Run { pod_uid: uid(&pod), container: spec.name.clone(), attempt };
            let _late = tokio::time::timeout(LAST_WORDS, parts.logs.ended(&log)).await;
            let run = id.clone();
            let message = blocking(move || Ok(message(&parts, &spec, &log, &run, exit.code))).await;
            Ended {
                id: id.clone(),
                code: exit.code,
                reason: reason(exit).to_owned(),
                message: message.unwrap_or_default(),
                since: Some(since),
                at: Some(now),
                stopped_for: None,
                cleaned: false,
            }
        }
        // The spawner ended, and everything with it.
        Err(_) => Ended::unknown(id.clone(), Some(since), now),
    };
    Outcome::Report(Report::Exited { container, id, ended })
}

fn reason(exit: Exit) -> &'static str {
    match exit {
        Exit { out_of_memory: true, .. } => "OOMKilled",
        Exit { code: 0, .. } => "Completed",
        _ => "Error",
    }
}

/// What the program left in its file; failing that, and if the Pod wants so, the end of its log.
fn message(parts: &Parts, spec: &Container, log: &logs::Run, id: &str, code: i32) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let file = File::open(termination_message(&parts.directories.run(&log.pod_uid, id)?))?;
        let mut bytes = Vec::new();
        file.take(MOST_MESSAGE).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let falls_back = spec.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
    if !bytes.is_empty() || code == 0 || !falls_back {
        return String::from_utf8_lossy(&bytes).into_owned();
    }
    parts.logs.tail(log, MOST_LOG_LINES, MOST_LOG)
}

/// Gives back what a run held. What stays in spite of it goes with the sandbox, or at the next start.
pub(crate) async fn clean(
    parts: Arc<Parts>,
    pod: Arc<Pod>,
    runtime: Option<Arc<dyn Runtime>>,
    id: String,
) -> Outcome {
    if let (Some(runtime), Ok(container)) = (runtime, ContainerId::new(id.clone())) {
        for attempt in 1..=TRIES {
            match runtime.remove(&container).await {
                Ok(()) => break,
                Err(error) if attempt == TRIES => {
                    tracing::warn!(container = %id, "it could not be removed: {error}");
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50) * attempt).await,
            }
        }
    }
    let run = id.clone();
    let removed =
        blocking(move || parts.directories.remove_run(&uid(&pod), &run).map_err(|e| e.to_string())).await;
    if let Err(error) = removed {
        tracing::warn!(container = %id, "its directory could not be removed: {error}");
    }
    Outcome::Nothing
}
