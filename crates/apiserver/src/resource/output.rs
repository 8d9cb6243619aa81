//! Between stored bytes and what clients see: types, lists, tables, scales, selections.

use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};

use super::{Origin, Resource};
use crate::api::Body;
use crate::builtin::{self, Kind, events, shape};
use crate::custom::Custom;
use crate::request::Selection;
use crate::status::Status;
use crate::store::Object;
use crate::table;

/// The table that both groups' events are in.
const EVENTS: &str = "events";

impl Resource {
    /// A stored object as this version shows it.
    pub fn typed(&self, object: &Object) -> Value {
        self.typed_value(object.value())
    }

    pub(crate) fn typed_body(&self, body: Body) -> Value {
        match body {
            Body::Stored(object) => self.typed(&object),
            Body::Fresh(value) => value,
        }
    }

    pub(crate) fn typed_value(&self, mut value: Value) -> Value {
        if self.is_view() {
            events::to_events_v1(&mut value);
        }
        value["apiVersion"] = self.api_version.as_str().into();
        value["kind"] = self.kind.as_str().into();
        if let Some(custom) = self.custom_part() {
            custom.default_on_read(&mut value);
        }
        value
    }

    /// Stored objects do not say what they are: their table does.
    pub(crate) fn for_storage(&self, mut value: Value) -> Value {
        if self.is_view() {
            events::to_core(&mut value);
        }
        if let Some(object) = value.as_object_mut() {
            object.remove("apiVersion");
            object.remove("kind");
        }
        value
    }

    /// `events.k8s.io` shows core events under other field names.
    pub(super) fn is_view(&self) -> bool {
        self.group == "events.k8s.io"
    }

    /// Whether stored bytes cannot be sent as they are.
    fn needs_decoding(&self) -> bool {
        self.is_view() || self.custom_part().is_some_and(Custom::defaults_on_read)
    }

    pub(crate) fn write_typed(&self, object: &Object, out: &mut BytesMut) {
        if self.needs_decoding() {
            let value = self.typed(object);
            serde_json::to_writer(out.writer(), &value).expect("JSON values encode into memory");
            return;
        }
        out.reserve(self.prefix.len() + object.json.len());
        out.put_slice(&self.prefix);
        out.put_slice(&object.json[1..]);
    }

    /// An object inside a list: built-in kinds leave out what the list already says.
    pub(crate) fn write_item(&self, object: &Object, out: &mut BytesMut) {
        if self.is_builtin() && !self.is_view() {
            out.put_slice(&object.json);
        } else if self.is_builtin() {
            let mut value = object.value();
            events::to_events_v1(&mut value);
            if let Some(object) = value.as_object_mut() {
                object.remove("apiVersion");
                object.remove("kind");
            }
            serde_json::to_writer(out.writer(), &value).expect("JSON values encode into memory");
        } else {
            self.write_typed(object, out);
        }
    }

    /// Built-in kinds send bookmarks with the empty parts that their Go types always write.
    pub(crate) fn bookmark_shape(&self, mut object: Value) -> Value {
        if let Some(kind) = self.kind_part() {
            shape::conform(&mut object, kind.shape);
        }
        object
    }

    pub(crate) fn selectable(&self, field: &str) -> bool {
        match &self.origin {
            Origin::Builtin { kind, .. } => kind.is_selectable(field),
            Origin::Custom(custom) => {
                field == "metadata.name"
                    || (field == "metadata.namespace" && self.namespaced)
                    || custom.selectable.iter().any(|(name, _)| name == field)
            }
        }
    }

    pub(crate) fn unsupported_field(&self, field: &str) -> String {
        match self.kind_part() {
            Some(kind) => kind.unsupported_field(field),
            None => format!("field label not supported: {field}"),
        }
    }

    pub(crate) fn selects(&self, selection: &Selection, object: &Object) -> bool {
        if !selection.labels.matches(&object.labels) {
            return false;
        }
        selection.fields.is_empty()
            || selection.fields.matches(|name| match name {
                "metadata.name" => Some(object.name()),
                "metadata.namespace" => Some(object.namespace()),
                name => {
                    let fields = object.fields(|value| self.selectable_values(value));
                    fields.iter().find(|(field, _)| &**field == name).map(|(_, value)| &**value)
                }
            })
    }

    fn selectable_values(&self, value: &Value) -> Vec<(String, String)> {
        match &self.origin {
            Origin::Builtin { kind, .. } => {
                let values = |kind: &Kind, value: &Value| -> Vec<(String, String)> {
                    kind.selectable
                        .iter()
                        .map(|field| ((*field).to_owned(), kind.field(value, field)))
                        .collect()
                };
                if &*self.storage != EVENTS {
                    return values(kind, value);
                }
                // The two views of events name the same fields differently; the values are kept once for both.
                let mut all =
                    builtin::by_kind("v1", "Event").map(|core| values(core, value)).unwrap_or_default();
                let mut view = value.clone();
                events::to_events_v1(&mut view);
                all.extend(
                    builtin::by_kind("events.k8s.io/v1", "Event")
                        .into_iter()
                        .flat_map(|kind| values(kind, &view)),
                );
                all
            }
            Origin::Custom(custom) => {
                custom.selectable.iter().map(|(name, path)| (name.clone(), path.field(value))).collect()
            }
        }
    }

    pub(crate) fn columns(&self) -> Value {
        let columns = match &self.origin {
            Origin::Builtin { kind, .. } => table::columns(kind),
            Origin::Custom(custom) => custom.columns(),
        };
        columns.iter().map(table::Column::to_json).collect()
    }

    /// What a table row says beside its cells.
    pub(crate) fn row_conditions(&self, value: &Value) -> Option<Value> {
        self.kind_part().and_then(|kind| table::row_conditions(kind, value))
    }

    pub(crate) fn cells(&self, value: &Value) -> Vec<Value> {
        match &self.origin {
            Origin::Builtin { kind, .. } => table::cells(kind, value, jiff::Timestamp::now()),
            Origin::Custom(custom) => custom.cells(value),
        }
    }

    /// The Scale of an object.
    pub(crate) fn scale_of(&self, value: &Value) -> Result<Value, Status> {
        let (replicas, current, selector) = match &self.origin {
            Origin::Builtin { .. } => return Ok(builtin::scale::of(value)),
            Origin::Custom(custom) => custom.scale_values(value)?,
        };
        let metadata = &value["metadata"];
        let mut kept = json!({});
        for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            if let Some(value) = metadata.get(key) {
                kept[key] = value.clone();
            }
        }
        let mut scale = json!({
            "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": kept,
            "spec": {}, "status": {"replicas": current},
        });
        if replicas != 0 {
            scale["spec"]["replicas"] = replicas.into();
        }
        if let Some(selector) = selector.filter(|s| !s.is_empty()) {
            scale["status"]["selector"] = selector.into();
        }
        Ok(scale)
    }

    pub(crate) fn set_replicas(&self, value: &mut Value, replicas: i64) {
        match &self.origin {
            Origin::Builtin { .. } => value["spec"]["replicas"] = replicas.into(),
            Origin::Custom(custom) => custom.set_replicas(value, replicas),
        }
    }
}
