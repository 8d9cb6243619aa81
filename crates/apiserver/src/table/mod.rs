//! Tables: what `kubectl get` prints, one row for each object.
//!
//! Cells are a pure function of the object and the time; ages are as Kubernetes writes them.

mod age;
mod cells;
mod custom;
mod pod;
mod storage;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use jiff::Timestamp;
use serde_json::{Value, json};

pub use age::{human, since};
pub(crate) use cells::selector_text;
pub use custom::{CustomColumn, custom_cells, custom_columns};

use crate::builtin::Kind;

/// A column definition of `meta.k8s.io/v1` Table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub ty: String,
    pub format: String,
    pub description: String,
    /// Columns other than 0 are shown by `-o wide`.
    pub priority: i32,
}

impl Column {
    /// As it stands in `columnDefinitions`.
    pub fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "type": self.ty,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        })
    }
}

struct Columns {
    name: String,
    created: String,
    by_kind: BTreeMap<String, Vec<Column>>,
}

/// Name, type, format, priority and description of a column.
type Entry = (String, String, String, i32, String);

#[derive(serde::Deserialize)]
struct File {
    texts: BTreeMap<String, String>,
    columns: BTreeMap<String, Vec<Entry>>,
}

/// The columns of the real server, as captured in `columns.json`.
fn all() -> &'static Columns {
    static ALL: OnceLock<Columns> = OnceLock::new();
    ALL.get_or_init(|| {
        let file: File =
            serde_json::from_str(include_str!("columns.json")).expect("columns.json is well formed");
        let text = |key: &str| file.texts.get(key).cloned().unwrap_or_default();
        let column = |(name, ty, format, priority, description): &Entry| Column {
            name: name.clone(),
            ty: ty.clone(),
            format: format.clone(),
            description: file.texts.get(description).unwrap_or(description).clone(),
            priority: *priority,
        };
        let by_kind = file
            .columns
            .iter()
            .map(|(kind, list)| (kind.clone(), list.iter().map(column).collect()))
            .collect();
        Columns { name: text("@name"), created: text("@age"), by_kind }
    })
}

/// The columns of a built-in kind.
pub fn columns(kind: &Kind) -> &'static [Column] {
    let key = format!("{}/{}", kind.api_version(), kind.plural);
    all().by_kind.get(&key).map(Vec::as_slice).unwrap_or_default()
}

/// The cells of one object, as many as there are columns.
pub fn cells(kind: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    cells::of(kind, object, now)
}

/// What a row says about its object beside the cells: that a pod is over.
pub fn row_conditions(kind: &Kind, object: &Value) -> Option<Value> {
    if kind.plural != "pods" {
        return None;
    }
    let (reason, message) = match object.get("status").and_then(|status| status.get("phase"))?.as_str()? {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([{"type": "Completed", "status": "True", "reason": reason, "message": message}]))
}
