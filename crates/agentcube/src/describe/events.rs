//! The events about an object, oldest first.

use serde_json::Value;

use crate::client::{Error, Server, query};
use crate::output::{Paint, Table, age};

/// Events that are shown; an object may have more.
const MOST: &str = "500";

pub(crate) async fn fetch(server: &Server, object: &Value) -> Result<Vec<Value>, Error> {
    let metadata = &object["metadata"];
    let Some(uid) = metadata["uid"].as_str() else { return Ok(Vec::new()) };
    // Events about objects without a namespace are kept in this one.
    let namespace = metadata["namespace"].as_str().unwrap_or("default");
    let selector = format!("involvedObject.uid={uid}");
    let options = query(&[("fieldSelector", Some(&selector)), ("limit", Some(MOST))]);
    match server.get(&format!("/api/v1/namespaces/{namespace}/events{options}")).await {
        Ok(list) => {
            let mut events = list["items"].as_array().cloned().unwrap_or_default();
            events.sort_by_key(last_seen);
            Ok(events)
        }
        // Whoever may see an object need not see its events.
        Err(error) if error.refusal().is_some() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// When it happened last, by whichever field says so.
fn last_seen(event: &Value) -> String {
    let times = [&event["series"]["lastObservedTime"], &event["lastTimestamp"], &event["eventTime"]];
    let created = event["metadata"]["creationTimestamp"].as_str();
    times.into_iter().find_map(Value::as_str).or(created).unwrap_or_default().to_owned()
}

pub(crate) fn render(events: &[Value], paint: Paint) -> String {
    if events.is_empty() {
        return format!("{} <none>\n", paint.strong("Events:"));
    }
    let mut table = Table::with_header(["TYPE", "REASON", "AGE", "FROM", "MESSAGE"]);
    for event in events {
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let kind = text("type");
        let painted = if kind == "Warning" { paint.warning(&kind) } else { kind };
        let count = event["series"]["count"].as_i64().or(event["count"].as_i64()).unwrap_or(1);
        let times = if count > 1 { format!(" (x{count})") } else { String::new() };
        let source = [&event["source"]["component"], &event["reportingComponent"]];
        let source =
            source.into_iter().filter_map(Value::as_str).find(|name| !name.is_empty()).unwrap_or_default();
        let age = format!("{}{times}", age::stated(Some(&last_seen(event))));
        table.row([painted, text("reason"), age, source.to_owned(), text("message").trim().to_owned()]);
    }
    format!("{}\n{}", paint.strong("Events:"), table.indented(2))
}
