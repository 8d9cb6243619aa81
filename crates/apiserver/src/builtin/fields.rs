//! Field selectors: which fields of a kind can be asked for, and their values.

use serde_json::Value;

use super::Kind;
use super::access::Peek;

impl Kind {
    /// Whether a field selector may name the field.
    pub fn is_selectable(&self, field: &str) -> bool {
        field == "metadata.name"
            || (self.namespaced && field == "metadata.namespace")
            || (self.plural == "pods" && field == "spec.host")
            || self.selectable.contains(&field)
    }

    /// What the real server says to a selector on any other field.
    pub fn unsupported_field(&self, field: &str) -> String {
        match self.plural {
            "jobs" => format!("field label {field:?} not supported for Job"),
            _ if self.selectable.is_empty() => {
                format!(
                    "{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                )
            }
            _ => format!("field label not supported: {field}"),
        }
    }

    /// The value of a selectable field, as selectors compare it.
    pub fn field(&self, object: &Value, field: &str) -> String {
        let field = match (self.plural, field) {
            ("pods", "spec.host") => "spec.nodeName",
            ("jobs", "status.successful") => "status.succeeded",
            (_, field) => field,
        };
        match (self.plural, field) {
            ("events", "source") => {
                let component = object.sub("source").str_of("component");
                if component.is_empty() { object.str_of("reportingComponent") } else { component }.to_owned()
            }
            ("pods", "status.podIPs") => {
                let ips = object.sub("status").list("podIPs").iter();
                ips.map(|entry| entry.str_of("ip")).collect::<Vec<_>>().join(",")
            }
            (_, "spec.hostNetwork" | "spec.unschedulable") => {
                lookup(object, field).as_bool().unwrap_or(false).to_string()
            }
            (_, "status.succeeded" | "status.replicas") => {
                lookup(object, field).as_i64().unwrap_or(0).to_string()
            }
            _ => text(lookup(object, field)),
        }
    }
}

fn lookup<'a>(object: &'a Value, field: &str) -> &'a Value {
    field.split('.').fold(object, |value, key| value.sub(key))
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
