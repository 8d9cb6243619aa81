//! Replaces what differs from run to run by stable tokens: identifiers and versions are numbered in the order
//! in which a case first sees them, so that equality and change stay visible. What a client relies on is
//! never masked away.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::{Map, Value};

static UUID: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").expect("a constant")
});
/// Only times of this decade and later: older ones were written by the test itself and must come back.
static TIME: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"20(2[4-9]|[3-9]\d)-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?(Z|\+00:00)").expect("a constant")
});
static CLUSTER_IP: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\b10\.\d{1,3}\.\d{1,3}\.\d{1,3}\b").expect("a constant"));
static VERSION_IN_MESSAGE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(resource version: |object meta: |in precondition: |precondition \(|record \(|current: )(\d+)( \(\d+\))?")
        .expect("a constant")
});
static VERSION_IN_QUERY: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(resourceVersion=|continue=)([^&]+)").expect("a constant"));

/// Some refusals quote the whole object in the field order of Go's structs, which nobody reads back.
static QUOTED_OBJECT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"(?s)Invalid value: "\{\\".*\}": "#).expect("a constant"));

/// Column names of tables whose cells are ages.
const AGE_COLUMNS: [&str; 5] = ["Age", "Last Seen", "First Seen", "Duration", "Last Schedule"];

/// The masks of one case.
pub struct Masker {
    /// Literal texts and what stands for them: the namespace, generated names, the server's address.
    literals: Vec<(String, String)>,
    uids: Numbered,
    versions: Numbered,
    list_versions: HashSet<String>,
}

/// Tokens in order of first appearance.
struct Numbered {
    prefix: &'static str,
    seen: HashMap<String, usize>,
}

impl Numbered {
    fn new(prefix: &'static str) -> Numbered {
        Numbered { prefix, seen: HashMap::new() }
    }

    fn token(&mut self, value: &str) -> String {
        let next = self.seen.len() + 1;
        format!("{{{}{}}}", self.prefix, self.seen.entry(value.to_owned()).or_insert(next))
    }

    fn known(&self, value: &str) -> Option<String> {
        self.seen.get(value).map(|number| format!("{{{}{number}}}", self.prefix))
    }
}

impl Masker {
    /// Masks for a case in `namespace` on the server at `addr`.
    pub fn new(namespace: &str, addr: &str) -> Masker {
        Masker {
            literals: vec![
                (namespace.to_owned(), "{ns}".to_owned()),
                (addr.to_owned(), "{address}".to_owned()),
            ],
            uids: Numbered::new("uid"),
            versions: Numbered::new("rv"),
            list_versions: HashSet::new(),
        }
    }

    /// Remembers the version of a list that a later request starts from.
    pub fn learn_list_version(&mut self, list: &Value) {
        if let (Some(version), None) =
            (list["metadata"]["resourceVersion"].as_str(), list["metadata"].get("uid"))
        {
            self.list_versions.insert(version.to_owned());
        }
    }

    /// Masks a path with its query.
    pub fn path(&mut self, path: &str) -> String {
        let path = self.text(path);
        VERSION_IN_QUERY
            .replace_all(&path, |found: &Captures<'_>| {
                let (key, value) = (&found[1], &found[2]);
                if key == "continue=" && value.len() > 20 {
                    return format!("{key}{{continue}}");
                }
                match self.versions.known(value) {
                    Some(token) => format!("{key}{token}"),
                    None if self.list_versions.contains(value) => format!("{key}{{rv}}"),
                    None => found[0].to_owned(),
                }
            })
            .into_owned()
    }

    /// Masks any text that is not JSON.
    pub fn text(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for (literal, token) in &self.literals {
            text = text.replace(literal, token);
        }
        let text = UUID.replace_all(&text, |found: &Captures<'_>| self.uids.token(&found[0]));
        let text = TIME.replace_all(&text, |found: &Captures<'_>| match found.get(2) {
            Some(_) => "{microtime}".to_owned(),
            None => "{time}".to_owned(),
        });
        CLUSTER_IP.replace_all(&text, "{ip}").into_owned()
    }

    /// Masks a document.
    pub fn value(&mut self, value: &Value) -> Value {
        self.learn_names(value);
        self.node("", value)
    }

    /// Generated names are learnt before anything is masked: they may occur ahead of the object itself.
    fn learn_names(&mut self, value: &Value) {
        match value {
            Value::Object(map) => {
                if let (Some(Value::String(prefix)), Some(Value::String(name))) =
                    (map.get("generateName"), map.get("name"))
                    && name.len() == prefix.len() + 5
                    && name.starts_with(prefix.as_str())
                    && self.literals.iter().all(|(literal, _)| literal != name)
                {
                    let number = self.literals.len() - 1;
                    self.literals.push((name.clone(), format!("{prefix}{{random{number}}}")));
                }
                map.values().for_each(|value| self.learn_names(value));
            }
            Value::Array(items) => items.iter().for_each(|item| self.learn_names(item)),
            _ => {}
        }
    }

    fn node(&mut self, key: &str, value: &Value) -> Value {
        match value {
            Value::Object(map) => self.object(key, map),
            Value::Array(items) => {
                let mut items: Vec<Value> = items.iter().map(|item| self.node(key, item)).collect();
                if key == "managedFields" {
                    // Their order depends on whether a second went by between two writes.
                    items.sort_by_key(|entry| {
                        ["operation", "manager", "subresource", "apiVersion"]
                            .map(|key| entry[key].to_string())
                    });
                }
                Value::Array(items)
            }
            Value::String(text) => Value::String(match key {
                "storageVersionHash" => "{hash}".to_owned(),
                "continue" if !text.is_empty() => "{continue}".to_owned(),
                "message" | "reason" => self.message(text),
                _ => self.text(text),
            }),
            Value::Number(_) if matches!(key, "nodePort" | "healthCheckNodePort") => "{port}".into(),
            other => other.clone(),
        }
    }

    fn message(&mut self, text: &str) -> String {
        let text = self.text(text);
        let text = QUOTED_OBJECT.replace_all(&text, "Invalid value: \"{object}\": ");
        VERSION_IN_MESSAGE
            .replace_all(&text, |found: &Captures<'_>| {
                let latest = if found.get(3).is_some() { " ({rv})" } else { "" };
                match self.versions.known(&found[2]) {
                    Some(token) => format!("{}{token}{latest}", &found[1]),
                    None if found[2].len() < 3 => format!("{}{}{latest}", &found[1], &found[2]),
                    None => format!("{}{{rv}}{latest}", &found[1]),
                }
            })
            .into_owned()
    }

    fn object(&mut self, key: &str, map: &Map<String, Value>) -> Value {
        let table = table_ages(map);
        let mut masked = Map::new();
        for (name, value) in map {
            let value = match (name.as_str(), value) {
                ("resourceVersion", Value::String(version)) if key == "metadata" => {
                    Value::String(self.version(version, map.contains_key("uid")))
                }
                ("resourceVersion", Value::String(version)) if key == "preconditions" => {
                    Value::String(self.versions.known(version).unwrap_or_else(|| version.clone()))
                }
                ("rows", Value::Array(rows)) if !table.is_empty() => {
                    Value::Array(rows.iter().map(|row| self.row(row, &table)).collect())
                }
                _ => self.node(name, value),
            };
            masked.insert(self.text(name), value);
        }
        Value::Object(masked)
    }

    /// The version of a list or a bookmark moves with every write on the server, so only that there is one
    /// can be compared; an object's version is followed.
    fn version(&mut self, version: &str, of_object: bool) -> String {
        match (version.is_empty() || version == "0", of_object) {
            (true, _) => version.to_owned(),
            (false, true) => self.versions.token(version),
            (false, false) => "{rv}".to_owned(),
        }
    }

    fn row(&mut self, row: &Value, ages: &[usize]) -> Value {
        let mut row = self.node("", row);
        for index in ages {
            if let Some(cell) = row["cells"].get_mut(*index)
                && cell.as_str().is_some_and(|text| text.starts_with(|first: char| first.is_ascii_digit()))
            {
                *cell = "{age}".into();
            }
        }
        row
    }
}

fn table_ages(map: &Map<String, Value>) -> Vec<usize> {
    let Some(Value::Array(columns)) = map.get("columnDefinitions") else { return Vec::new() };
    let is_age = |column: &Value| column["name"].as_str().is_some_and(|name| AGE_COLUMNS.contains(&name));
    (0..columns.len()).filter(|index| is_age(&columns[*index])).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const UID: &str = "0b8cb2f5-73d9-4ed9-a4b3-0a2f3c6e1f11";

    #[test]
    fn equal_versions_keep_one_token_and_changed_ones_get_another() {
        let mut masker = Masker::new("case-1", "127.0.0.1:1");
        let object = |version: &str| json!({"metadata": {"uid": UID, "resourceVersion": version}});
        assert_eq!(masker.value(&object("812"))["metadata"]["resourceVersion"], "{rv1}");
        assert_eq!(masker.value(&object("815"))["metadata"]["resourceVersion"], "{rv2}");
        assert_eq!(masker.value(&object("812"))["metadata"]["resourceVersion"], "{rv1}");
        assert_eq!(masker.path("/x?resourceVersion=815&watch=1"), "/x?resourceVersion={rv2}&watch=1");
    }

    #[test]
    fn a_generated_name_is_masked_wherever_it_occurs() {
        let mut masker = Masker::new("case-1", "127.0.0.1:1");
        let reply = json!({
            "details": {"name": "job-x7k2p"},
            "metadata": {"generateName": "job-", "name": "job-x7k2p", "namespace": "case-1"},
        });
        let masked = masker.value(&reply);
        assert_eq!(masked["details"]["name"], "job-{random1}");
        assert_eq!(masked["metadata"]["namespace"], "{ns}");
    }

    #[test]
    fn times_of_the_test_stay_and_times_of_the_server_go() {
        let mut masker = Masker::new("case-1", "127.0.0.1:1");
        assert_eq!(masker.text("2001-02-03T04:05:06Z"), "2001-02-03T04:05:06Z");
        assert_eq!(masker.text("at 2026-02-03T04:05:06Z"), "at {time}");
        assert_eq!(masker.text("2026-02-03T04:05:06.000007Z"), "{microtime}");
    }
}
