//! `agentcube describe`: one object in full, for people. Any kind works; Pods show their containers, and our own kinds
//! what their conditions say before anything else.

pub(crate) mod events;
mod outline;
mod pod;

use clap::Args;
use serde_json::Value;

use crate::client::{Connection, Discovery, Kind, Server, query};
use crate::environment::Environment;
use crate::exit::{Outcome, Usage, say};
use crate::output::{self, Paint, Table, age};

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube describe pod web-0
  agentcube describe task/support
  agentcube describe pods -l app=web")]
pub(crate) struct Arguments {
    /// A kind, or KIND/NAME
    #[arg(value_name = "KIND")]
    kind: String,
    /// Names; all objects of the kind when absent
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Only objects with these labels
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "names")]
    selector: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let server = arguments.connection.open(environment).await?;
    let discovery = Discovery::fetch(&server).await?;
    let paint = Paint::on(environment.stdout);
    let (mut first, mut absent) = (true, false);
    for (kind, path) in paths(&arguments, &server, &discovery).await? {
        let object = match server.get(&path).await {
            Ok(object) => object,
            Err(error) if error.is_not_found() => {
                say(&format!("error: {error}"));
                absent = true;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let events = events::fetch(&server, &object).await?;
        let separator = if first { "" } else { "\n\n" };
        first = false;
        output::write(format!("{separator}{}", render(&kind, &object, &events, paint)).as_bytes())?;
    }
    if first && !absent {
        say(&format!("No resources found in {} namespace.", server.namespace));
    }
    Ok(if absent { Outcome::Absent } else { Outcome::Done })
}

async fn paths(
    arguments: &Arguments,
    server: &Server,
    discovery: &Discovery,
) -> anyhow::Result<Vec<(Kind, String)>> {
    let place = Some(server.namespace.as_str());
    if let Some((kind, name)) = arguments.kind.split_once('/') {
        if name.is_empty() || !arguments.names.is_empty() || arguments.selector.is_some() {
            return Err(Usage(format!("{:?} names one object: leave out the rest", arguments.kind)).into());
        }
        let kind = discovery.find(kind)?;
        return Ok(vec![(kind.clone(), kind.path(place, Some(name)))]);
    }
    let mut paths = Vec::new();
    for kind in discovery.find_all(&arguments.kind)? {
        let mut names = arguments.names.clone();
        if names.is_empty() {
            let options = query(&[("labelSelector", arguments.selector.as_deref())]);
            let list = server.get(&format!("{}{options}", kind.path(place, None))).await?;
            let items = list["items"].as_array().into_iter().flatten();
            names.extend(items.filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned)));
        }
        paths.extend(names.iter().map(|name| (kind.clone(), kind.path(place, Some(name)))));
    }
    Ok(paths)
}

fn render(kind: &Kind, object: &Value, events: &[Value], paint: Paint) -> String {
    let mut text = head(kind, object);
    text.push_str(&conditions(object, paint));
    if kind.group.is_empty() && kind.kind == "Pod" {
        text.push_str(&pod::containers(object, paint));
    }
    let secret = kind.group.is_empty() && kind.kind == "Secret";
    for (key, value) in object.as_object().into_iter().flatten() {
        if matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
            continue;
        }
        let mut value = value.clone();
        if key == "status"
            && let Some(status) = value.as_object_mut()
        {
            status.remove("conditions");
            if kind.kind == "Pod" {
                pod::SHOWN_APART.iter().for_each(|key| drop(status.remove(*key)));
            }
        }
        if secret && key == "data" {
            value = sizes(&value);
        }
        let empty = value.is_null() || value.as_object().is_some_and(|map| map.is_empty());
        if !empty {
            text.push_str(&format!("{}:{}", capital(key), outline::below(&value)));
        }
    }
    text.push_str(&events::render(events, paint));
    text
}

fn capital(word: &str) -> String {
    let mut characters = word.chars();
    characters.next().map(|first| first.to_uppercase().chain(characters).collect()).unwrap_or_default()
}

/// What is secret stays so; its size is told.
fn sizes(data: &Value) -> Value {
    let size = |(key, value): (&String, &Value)| {
        let text = value.as_str().unwrap_or_default();
        // Four characters of base64 stand for three bytes, less one for each sign of padding.
        let length = text.len() / 4 * 3 - text.bytes().rev().take_while(|byte| *byte == b'=').count().min(2);
        (key.clone(), Value::from(format!("{length} bytes")))
    };
    data.as_object().into_iter().flatten().map(size).collect()
}

fn head(kind: &Kind, object: &Value) -> String {
    let metadata = &object["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
    let mut rows = vec![
        ("Name:", text("name")),
        ("Namespace:", text("namespace")),
        ("Kind:", format!("{} ({})", kind.kind, kind.api_version())),
    ];
    if kind.group.is_empty() && kind.kind == "Pod" {
        rows.extend(pod::summary(object));
    }
    if let Some(time) = metadata["creationTimestamp"].as_str() {
        rows.push(("Created:", format!("{time} ({} ago)", age::stated(Some(time)))));
    }
    if let Some(time) = metadata["deletionTimestamp"].as_str() {
        rows.push(("Being deleted:", format!("since {time}")));
    }
    for owner in metadata["ownerReferences"].as_array().into_iter().flatten() {
        let of = |key: &str| owner[key].as_str().unwrap_or_default();
        rows.push(("Owned by:", format!("{}/{}", of("kind"), of("name"))));
    }
    for (name, key) in [("Labels:", "labels"), ("Annotations:", "annotations")] {
        for (index, (key, value)) in metadata[key].as_object().into_iter().flatten().enumerate() {
            let shown = format!("{key}={}", shorten(value.as_str().unwrap_or_default()));
            rows.push((if index == 0 { name } else { "" }, shown));
        }
    }
    let mut table = Table::plain();
    for (name, value) in rows.into_iter().filter(|(_, value)| !value.is_empty()) {
        table.row([name, value.as_str()]);
    }
    table.render()
}

fn shorten(text: &str) -> String {
    const MOST: usize = 160;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.to_owned(),
    }
}

fn conditions(object: &Value, paint: Paint) -> String {
    let Some(conditions) = object["status"]["conditions"].as_array().filter(|list| !list.is_empty()) else {
        return String::new();
    };
    let mut table = Table::with_header(["TYPE", "STATUS", "REASON", "AGE", "MESSAGE"]);
    for condition in conditions {
        let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
        let status = text("status");
        let painted = match status.as_str() {
            "True" => paint.good(&status),
            "False" => paint.warning(&status),
            _ => status,
        };
        let age = match condition["lastTransitionTime"].as_str() {
            Some(time) => age::stated(Some(time)),
            None => String::new(),
        };
        table.row([text("type"), painted, text("reason"), age, text("message")]);
    }
    format!("{}\n{}", paint.strong("Conditions:"), table.indented(2))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_stay_secret_and_empty_parts_are_left_out() {
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "labels": {"a": "b", "c": "d"}},
            "data": {"key": "aGVsbG8h"}, "spec": {}, "type": "Opaque",
        });
        let mut kind = Kind::pods();
        kind.kind = "Secret".into();
        let text = render(&kind, &object, &[], Paint::on(Default::default()));
        assert!(!text.contains("aGVsbG8h") && text.contains("key: 6 bytes"), "{text}");
        assert!(text.contains("Labels:   a=b\n          c=d\n"), "{text}");
        assert!(!text.contains("Spec") && text.contains("Type: Opaque\n"), "{text}");
    }
}
