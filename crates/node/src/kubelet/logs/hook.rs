//! The API server's `pods/NAME/log`: which run of a container is meant, in the words of the real kubelet.

use agentcube_apiserver::hooks::{LogOptions, Logs as Hook};
use agentcube_apiserver::status::Status;
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{Logs, Run, Selection};

/// Answers for the Pods of this node.
pub struct PodLogs(pub Logs);

impl Hook for PodLogs {
    fn logs(
        &self,
        pod: Value,
        options: LogOptions,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<mpsc::Receiver<Bytes>, Status>> + Send>> {
        let answer = chosen(&pod, &options)
            .and_then(|run| Ok((run, selection(&options, jiff::Timestamp::now())?)))
            .map(|(run, selection)| self.0.read(&run, selection));
        Box::pin(async move { answer })
    }
}

fn selection(options: &LogOptions, now: jiff::Timestamp) -> Result<Selection, Status> {
    let since = match (&options.since_time, options.since_seconds) {
        (Some(time), _) => {
            Some(time.parse().map_err(|error| Status::bad_request(format!("sinceTime {time:?}: {error}")))?)
        }
        (None, Some(seconds)) => {
            let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
            now.checked_sub(jiff::SignedDuration::from_secs(seconds)).ok()
        }
        (None, None) => None,
    };
    Ok(Selection {
        follow: options.follow && !options.previous,
        timestamps: options.timestamps,
        tail_lines: options.tail_lines,
        limit_bytes: options.limit_bytes,
        since,
    })
}

/// The run whose log is asked for.
fn chosen(pod: &Value, options: &LogOptions) -> Result<Run, Status> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pod_name = text(&pod["metadata"]["name"]);
    let name = options.container.clone().unwrap_or_default();
    let statuses = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let status = statuses
        .iter()
        .flat_map(|list| pod["status"][*list].as_array().into_iter().flatten())
        .find(|status| status["name"] == name.as_str());
    let Some(status) = status else {
        return Err(Status::bad_request(format!("container {name:?} in pod {pod_name:?} is not available")));
    };
    let restarts = status["restartCount"].as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    let ended_before = status["lastState"]["terminated"].is_object();
    let waiting = &status["state"]["waiting"];
    let attempt = if options.previous {
        if !ended_before {
            let message = format!("previous terminated container {name:?} in pod {pod_name:?} not found");
            return Err(Status::bad_request(message));
        }
        // While it waits, the one that ended last is both this one and the one before.
        if waiting.is_object() { restarts } else { restarts.saturating_sub(1) }
    } else if waiting.is_object() && !ended_before {
        return Err(Status::bad_request(waiting_message(&name, &pod_name, waiting)));
    } else {
        restarts
    };
    Ok(Run { pod_uid: text(&pod["metadata"]["uid"]), container: name, attempt })
}

fn waiting_message(container: &str, pod: &str, waiting: &Value) -> String {
    let reason = waiting["reason"].as_str().unwrap_or_default();
    match reason {
        "ErrImagePull" => {
            format!("container {container:?} in pod {pod:?} is waiting to start: image can't be pulled")
        }
        "ImagePullBackOff" => format!(
            "container {container:?} in pod {pod:?} is waiting to start: trying and failing to pull image"
        ),
        _ => format!("container {container:?} in pod {pod:?} is waiting to start: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_run_meant_is_found() {
        let ended = json!({"terminated": {"exitCode": 1}});
        let cases = [
            (json!({"state": {"running": {}}, "restartCount": 0}), false, Ok(0)),
            (json!({"state": {"running": {}}, "restartCount": 3, "lastState": ended}), false, Ok(3)),
            (json!({"state": {"running": {}}, "restartCount": 3, "lastState": ended}), true, Ok(2)),
            (
                json!({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3, "lastState": ended}),
                false,
                Ok(3),
            ),
            (
                json!({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3, "lastState": ended}),
                true,
                Ok(3),
            ),
            (json!({"state": ended, "restartCount": 0}), false, Ok(0)),
            (
                json!({"state": {"running": {}}, "restartCount": 0}),
                true,
                Err(r#"previous terminated container "c" in pod "p" not found"#),
            ),
            (
                json!({"state": {"waiting": {"reason": "ContainerCreating"}}, "restartCount": 0}),
                false,
                Err(r#"container "c" in pod "p" is waiting to start: ContainerCreating"#),
            ),
            (
                json!({"state": {"waiting": {"reason": "ImagePullBackOff"}}, "restartCount": 0}),
                false,
                Err(r#"container "c" in pod "p" is waiting to start: trying and failing to pull image"#),
            ),
        ];
        for (mut status, previous, expected) in cases {
            status["name"] = json!("c");
            let pod =
                json!({"metadata": {"name": "p", "uid": "u"}, "status": {"containerStatuses": [status]}});
            let options = LogOptions { container: Some("c".into()), previous, ..LogOptions::default() };
            let found = chosen(&pod, &options);
            match expected {
                Ok(attempt) => assert_eq!(found.expect("a run").attempt, attempt, "{pod} {previous}"),
                Err(message) => assert_eq!(found.expect_err("no run").message, message, "{pod} {previous}"),
            }
        }
    }
}
