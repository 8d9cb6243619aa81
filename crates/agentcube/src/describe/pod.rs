//! A Pod: where it is, and its containers: what each runs, how it fares, how it ended last.

use serde_json::Value;

use crate::output::{Paint, Table, age};

/// Parts of a Pod's status that are shown with the containers.
pub(super) const SHOWN_APART: [&str; 3] =
    ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];

/// What is asked about first.
pub(super) fn summary(pod: &Value) -> [(&'static str, String); 3] {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let status = &pod["status"];
    let phase = join(&text(&status["phase"]), &text(&status["reason"]), &text(&status["message"]));
    [("Status:", phase), ("Node:", text(&pod["spec"]["nodeName"])), ("IP:", text(&status["podIP"]))]
}

pub(super) fn containers(pod: &Value, paint: Paint) -> String {
    let mut text = String::new();
    for (title, list, statuses) in [
        ("Init containers:", "initContainers", "initContainerStatuses"),
        ("Containers:", "containers", "containerStatuses"),
    ] {
        let Some(containers) = pod["spec"][list].as_array().filter(|list| !list.is_empty()) else { continue };
        text.push_str(&format!("{}\n", paint.strong(title)));
        for container in containers {
            let statuses = pod["status"][statuses].as_array().into_iter().flatten();
            let status = statuses.into_iter().find(|status| status["name"] == container["name"]);
            text.push_str(&one(container, status.unwrap_or(&Value::Null), paint));
        }
    }
    text
}

fn one(container: &Value, status: &Value, paint: Paint) -> String {
    let name = container["name"].as_str().unwrap_or_default();
    let mut table = Table::plain();
    table.row(["Image:", container["image"].as_str().unwrap_or_default()]);
    table.row(["State:".to_owned(), state(&status["state"], paint)]);
    if status["lastState"].as_object().is_some_and(|state| !state.is_empty()) {
        table.row(["Last state:".to_owned(), state(&status["lastState"], paint)]);
    }
    table.row(["Ready:".to_owned(), status["ready"].as_bool().unwrap_or(false).to_string()]);
    table.row(["Restarts:".to_owned(), status["restartCount"].as_i64().unwrap_or(0).to_string()]);
    format!("  {name}:\n{}", table.indented(4))
}

fn state(state: &Value, paint: Paint) -> String {
    let of = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    if let Some(running) = state.get("running") {
        return format!("{} for {}", paint.good("Running"), age::stated(running["startedAt"].as_str()));
    }
    if let Some(ended) = state.get("terminated") {
        let code = ended["exitCode"].as_i64().unwrap_or_default();
        let word = if code == 0 { "Terminated".to_owned() } else { paint.bad("Terminated") };
        let signal = ended["signal"].as_i64().map(|signal| format!(", signal {signal}")).unwrap_or_default();
        let when = age::stated(ended["finishedAt"].as_str());
        return join(
            &format!("{word} {when} ago: exit code {code}{signal}"),
            &of(ended, "reason"),
            &of(ended, "message"),
        );
    }
    match state.get("waiting") {
        Some(waiting) => join(&paint.warning("Waiting"), &of(waiting, "reason"), &of(waiting, "message")),
        None => "Unknown".to_owned(),
    }
}

fn join(head: &str, reason: &str, message: &str) -> String {
    let mut text = head.to_owned();
    if !reason.is_empty() {
        text.push_str(&format!(" ({reason})"));
    }
    if !message.is_empty() {
        text.push_str(&format!(": {}", message.trim()));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_summary_says_why() {
        let pod = json!({"status": {"phase": "Failed", "reason": "Evicted", "message": "the disk is full"}});
        let expected = [("Status:", "Failed (Evicted): the disk is full"), ("Node:", ""), ("IP:", "")];
        assert_eq!(summary(&pod), expected.map(|(name, text)| (name, text.to_owned())));
    }

    #[test]
    fn states_are_told_with_their_reasons() {
        let pod = json!({
            "spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "j"}]},
            "status": {"containerStatuses": [{
                "name": "a", "ready": true, "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
                "lastState": {"terminated": {"exitCode": 137, "signal": 9, "reason": "OOMKilled"}},
            }]},
        });
        let expected = "Containers:
  a:
    Image:        i
    State:        Waiting (CrashLoopBackOff): back-off 10s
    Last state:   Terminated <unknown> ago: exit code 137, signal 9 (OOMKilled)
    Ready:        true
    Restarts:     3
  b:
    Image:      j
    State:      Unknown
    Ready:      false
    Restarts:   0
";
        assert_eq!(containers(&pod, Paint::on(Default::default())), expected);
    }
}
