//! The tables that a server sends, as tables that people read.

use serde_json::Value;

use crate::client::Kind;
use crate::output::Table;

/// Rows of one kind, and the columns that they have.
#[derive(Debug, Default)]
pub(super) struct Rows {
    columns: Vec<(String, bool)>,
    rows: Vec<Row>,
}

#[derive(Debug, PartialEq, Eq)]
struct Row {
    name: String,
    namespace: String,
    cells: Vec<String>,
}

/// How to show rows.
pub(super) struct Layout<'a> {
    pub(super) wide: bool,
    pub(super) namespaces: bool,
    pub(super) header: bool,
    /// Put in front of names, when several kinds are shown.
    pub(super) kind: Option<&'a Kind>,
}

impl Rows {
    /// Adds a `Table`; a server that sends none sends objects, of which the names are shown.
    pub(super) fn add(&mut self, page: &Value) {
        let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
        if page["kind"] != "Table" {
            self.columns = vec![("Name".to_owned(), true)];
            let objects = if page["items"].is_array() { array(&page["items"]) } else { vec![page.clone()] };
            self.rows
                .extend(objects.iter().map(|object| row(object, vec![object["metadata"]["name"].clone()])));
            return;
        }
        // In a watch only the first table names its columns.
        if let Some(columns) = page["columnDefinitions"].as_array().filter(|columns| !columns.is_empty()) {
            let column = |column: &Value| {
                (
                    column["name"].as_str().unwrap_or_default().to_owned(),
                    column["priority"].as_i64().unwrap_or(0) == 0,
                )
            };
            self.columns = columns.iter().map(column).collect();
        }
        self.rows
            .extend(array(&page["rows"]).iter().map(|entry| row(&entry["object"], array(&entry["cells"]))));
    }

    pub(super) fn append(&mut self, other: Rows) {
        self.columns = other.columns;
        self.rows.extend(other.rows);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Forgets the rows and keeps the columns.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|row| row.name.as_str())
    }

    pub(super) fn table(&self, layout: &Layout<'_>) -> Table {
        let mut table = Table::plain();
        let chosen = |index: usize| self.columns.get(index).is_some_and(|(_, usual)| *usual || layout.wide);
        if layout.header {
            let namespace = layout.namespaces.then(|| "NAMESPACE".to_owned());
            let columns = self.columns.iter().enumerate().filter(|(index, _)| chosen(*index));
            table.row(namespace.into_iter().chain(columns.map(|(_, (name, _))| name.to_uppercase())));
        }
        for row in &self.rows {
            let namespace = layout.namespaces.then(|| row.namespace.clone());
            let cells = row.cells.iter().enumerate().filter(|(index, _)| chosen(*index));
            let cell = |(index, cell): (usize, &String)| match layout.kind {
                Some(kind) if index == 0 => kind.called(cell),
                _ => cell.clone(),
            };
            table.row(namespace.into_iter().chain(cells.map(cell)));
        }
        table
    }
}

fn row(object: &Value, cells: Vec<Value>) -> Row {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    Row { name: text("name"), namespace: text("namespace"), cells: cells.iter().map(cell).collect() }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "<none>".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn page() -> Value {
        let row = |name: &str, cells: Value| json!({"cells": cells, "object": {"metadata": {"name": name, "namespace": "n"}}});
        json!({
            "kind": "Table",
            "columnDefinitions": [{"name": "Name"}, {"name": "Ready", "priority": 0}, {"name": "Node", "priority": 1}],
            "rows": [row("a", json!(["a", 1, null])), row("b", json!(["b", true, "x"]))],
        })
    }

    #[test]
    fn columns_by_priority_and_rows_by_page() {
        let mut rows = Rows::default();
        rows.add(&page());
        let mut more = page();
        more["columnDefinitions"] = json!(null);
        rows.add(&more);
        let layout = Layout { wide: false, namespaces: false, header: true, kind: None };
        assert_eq!(
            rows.table(&layout).render(),
            "NAME   READY\na      1\nb      true\na      1\nb      true\n"
        );
        rows.clear();
        rows.add(&more);
        let layout = Layout { wide: true, namespaces: true, header: false, kind: None };
        assert_eq!(rows.table(&layout).render(), "n   a   1      <none>\nn   b   true   x\n");
        assert_eq!(rows.names().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_server_without_tables_still_shows_names() {
        let mut rows = Rows::default();
        rows.add(&json!({"kind": "PodList", "items": [{"metadata": {"name": "a"}}]}));
        let layout = Layout { wide: false, namespaces: false, header: true, kind: None };
        assert_eq!(rows.table(&layout).render(), "NAME\na\n");
    }
}
