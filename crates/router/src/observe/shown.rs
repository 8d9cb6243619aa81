//! The path of a request as it is shown: where the Task finds sessions in it, they are left out. Pure.

use agentcube_instance::SessionKey;

use crate::extract;
use crate::protocol::Spoken;
use crate::route::{Route, SessionRule};

/// The longest path that is shown, in bytes.
const LONGEST: usize = 1024;
/// A part of a key that is shorter may stand in a path by chance.
const TELLING: usize = 6;
const VERBS: [&str; 3] = [":cancel", ":subscribe", ":resubscribe"];

/// What is shown of a path.
pub(super) fn path(path: &str, route: Option<&Route>, key: Option<&SessionKey>) -> String {
    let mut shown = match route {
        Some(route) => of_route(path, route),
        None => path.to_owned(),
    };
    if let Some(key) = key {
        shown = without(&shown, key.as_str());
    }
    if shown.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|at| shown.is_char_boundary(*at)).unwrap_or(0);
        shown.truncate(end);
        shown.push_str("...");
    }
    shown
}

fn of_route(path: &str, route: &Route) -> String {
    let Some(rest) = route.rest(path) else { return path.to_owned() };
    // `rest` is the end of the path, or a slash that is not there.
    let prefix = path.strip_suffix(rest).unwrap_or(path);
    let mut rest = rest.to_owned();
    if let SessionRule::BySession(extractors) = &route.session {
        rest = extractors.hide(&rest);
    }
    if matches!(route.spoken, Spoken::A2a(_)) {
        rest = without_task(&rest);
    }
    match (prefix == path, rest.as_str()) {
        (true, "/") => path.to_owned(),
        _ => format!("{prefix}{rest}"),
    }
}

/// By REST of A2A, the id of a task follows `tasks`.
fn without_task(path: &str) -> String {
    let segments: Vec<&str> = path.split('/').collect();
    let Some(at) = segments.iter().rposition(|segment| *segment == "tasks") else { return path.to_owned() };
    let Some(id) = segments.get(at + 1).filter(|id| !id.is_empty()) else { return path.to_owned() };
    let verb = VERBS.iter().find(|verb| id.ends_with(**verb)).copied().unwrap_or_default();
    let hidden = format!("{{id}}{verb}");
    let segments = segments.iter().enumerate().map(|(n, text)| if n == at + 1 { &*hidden } else { *text });
    segments.collect::<Vec<_>>().join("/")
}

/// Clients may write the id of their session into the path, wherever the Task looks for it. The key may have something
/// before what the client knows.
fn without(path: &str, key: &str) -> String {
    let tells = |segment: &str| {
        let text = extract::decoded(segment);
        let text = text.as_deref().unwrap_or(segment);
        !text.is_empty() && (text == key || text.len() >= TELLING && key.ends_with(text))
    };
    if !path.split('/').any(tells) {
        return path.to_owned();
    }
    let segments = path.split('/').map(|segment| if tells(segment) { "{session}" } else { segment });
    segments.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn route(routing: serde_json::Value) -> Route {
        let task = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "Task",
            "metadata": { "name": "chat", "namespace": "prod", "uid": "t1" },
            "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} }, "routing": routing },
        });
        Route::read(&serde_json::from_value(task).unwrap()).unwrap()
    }

    #[test]
    fn sessions_in_paths_are_not_shown() {
        let places = json!([{ "type": "pathVar", "name": "id", "path": "/v1/u-{id}/say" }]);
        let by_path =
            route(json!({ "routePolicy": "BySession", "sessionIdentifier": { "extractors": places } }));
        let by_a2a = route(json!({ "routePolicy": "BySession", "protocol": "A2A" }));
        let oneshot = route(json!({ "routePolicy": "Oneshot" }));
        for (route, given, shown) in [
            (&by_path, "/prod/chat/v1/u-secret/say/more", "/prod/chat/v1/u-{id}/say/more"),
            (&by_path, "/prod/chat/v1/u-%73ecret/say", "/prod/chat/v1/u-{id}/say"),
            (&by_path, "/prod/chat/other", "/prod/chat/other"),
            (&by_path, "/prod/chat", "/prod/chat"),
            (&by_path, "/prod/chat/", "/prod/chat/"),
            (&by_path, "/elsewhere", "/elsewhere"),
            (&by_a2a, "/prod/chat/v1/tasks/secret:cancel", "/prod/chat/v1/tasks/{id}:cancel"),
            (&by_a2a, "/prod/chat/tasks/secret/x", "/prod/chat/tasks/{id}/x"),
            (&by_a2a, "/prod/chat/tasks", "/prod/chat/tasks"),
            (&oneshot, "/prod/chat/tasks/1", "/prod/chat/tasks/1"),
        ] {
            assert_eq!(path(given, Some(route), None), shown, "{given}");
        }
        let key = SessionKey::new("mark/secret-7").unwrap();
        let shown = |given: &str| path(given, Some(&oneshot), Some(&key));
        assert_eq!(shown("/prod/chat/secret%2D7/x"), "/prod/chat/{session}/x");
        assert_eq!(shown("/prod/chat/7/x"), "/prod/chat/7/x");
    }

    #[test]
    fn long_paths_are_cut() {
        let long = format!("/{}", "ü".repeat(5000));
        let shown = path(&long, None, None);
        assert!(shown.len() <= LONGEST + 3 && shown.ends_with("ü..."), "{shown}");
    }
}
