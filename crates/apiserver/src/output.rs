//! How objects look to the client that asked: whole, as table rows, or metadata alone.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Map, Value, json};

use crate::api::Listing;
use crate::resource::Resource;
use crate::store::{Object, Revision};

/// Lists are sent in pieces of about this size.
const PIECE: usize = 64 << 10;

/// The form that the `Accept` header chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rendering {
    Whole,
    Table {
        include: Include,
        /// Columns are described once per answer.
        headers: bool,
    },
    Metadata,
}

/// What a table row carries of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    None,
    Metadata,
    Object,
}

impl Rendering {
    /// Chooses by `Accept`; the first clause that can be served wins. `None` when nothing can.
    pub fn negotiate(accept: Option<&str>, include: &str) -> Option<Self> {
        let accept = accept.unwrap_or("").trim();
        if accept.is_empty() {
            return Some(Self::Whole);
        }
        accept.split(',').find_map(|clause| Self::clause(clause, include))
    }

    fn clause(clause: &str, include: &str) -> Option<Self> {
        let mut parts = clause.split(';').map(str::trim);
        let media = parts.next()?;
        let mut parameters: Map<String, Value> = Map::new();
        for parameter in parts {
            if let Some((key, value)) = parameter.split_once('=') {
                parameters.insert(key.to_owned(), value.into());
            }
        }
        // JSON is YAML too.
        if !matches!(media, "application/json" | "*/*" | "application/yaml") {
            return None;
        }
        let get = |key: &str| parameters.get(key).and_then(Value::as_str).unwrap_or_default();
        let known = get("g") == "meta.k8s.io" && matches!(get("v"), "v1" | "v1beta1");
        match get("as") {
            "" => Some(Self::Whole),
            "Table" if known => Some(Self::Table {
                include: match include {
                    "None" => Include::None,
                    "Object" => Include::Object,
                    _ => Include::Metadata,
                },
                headers: true,
            }),
            "PartialObjectMetadata" | "PartialObjectMetadataList" if known => Some(Self::Metadata),
            _ => None,
        }
    }

    /// Later answers of a watch leave the columns out.
    pub(crate) fn after_first(&mut self) {
        if let Self::Table { headers, .. } = self {
            *headers = false;
        }
    }

    /// Writes one object.
    pub(crate) fn object(&self, resource: &Resource, object: &Object, out: &mut BytesMut) {
        match self {
            Self::Whole => resource.write_typed(object, out),
            Self::Metadata => put(out, &partial(&object.value(), "PartialObjectMetadata")),
            Self::Table { include, headers } => {
                let mut list = json!({"resourceVersion": object.revision.to_string()});
                put(
                    out,
                    &table(
                        resource,
                        std::slice::from_ref(&resource.typed(object)),
                        &mut list,
                        *include,
                        *headers,
                    ),
                );
            }
        }
    }

    /// A value that was made for this request.
    pub(crate) fn value(&self, resource: &Resource, value: Value) -> Value {
        match self {
            Self::Whole => value,
            Self::Metadata => partial(&value, "PartialObjectMetadata"),
            Self::Table { include, headers } => {
                let mut list = json!({"resourceVersion": value["metadata"]["resourceVersion"]});
                table(resource, &[value], &mut list, *include, *headers)
            }
        }
    }

    /// A page as metadata or as a table; whole objects go through [`WholeList`].
    pub(crate) fn list(&self, resource: &Resource, listing: &Listing) -> Value {
        let mut metadata = list_metadata(resource, listing, false);
        match self {
            Self::Whole | Self::Metadata => {
                let items: Vec<Value> = listing
                    .items
                    .iter()
                    .map(|object| partial(&object.value(), "PartialObjectMetadata"))
                    .collect();
                json!({
                    "kind": "PartialObjectMetadataList",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": metadata,
                    "items": items,
                })
            }
            Self::Table { include, headers } => {
                let values: Vec<Value> = listing.items.iter().map(|object| resource.typed(object)).collect();
                table(resource, &values, &mut metadata, *include, *headers)
            }
        }
    }

    /// An object that says only how far a watch has come.
    pub(crate) fn bookmark(
        &self,
        resource: &Resource,
        revision: Revision,
        annotations: Option<Value>,
    ) -> Value {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if let Some(annotations) = annotations {
            metadata["annotations"] = annotations;
        }
        let object = json!({"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata});
        match self {
            Self::Whole => resource.bookmark_shape(object),
            Self::Metadata => partial(&object, "PartialObjectMetadata"),
            Self::Table { include, headers } => {
                let mut list = json!({"resourceVersion": revision.to_string()});
                table(resource, &[object], &mut list, *include, *headers)
            }
        }
    }
}

fn put(out: &mut BytesMut, value: &Value) {
    serde_json::to_writer(out.writer(), value).expect("JSON values encode into memory");
}

/// A list of whole objects, encoded piece by piece, so that a large one never stands in memory twice.
pub(crate) struct WholeList {
    resource: Arc<Resource>,
    listing: Listing,
    next: usize,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Head,
    Items,
    Done,
}

impl WholeList {
    pub(crate) fn new(resource: Arc<Resource>, listing: Listing) -> Self {
        Self { resource, listing, next: 0, stage: Stage::Head }
    }

    /// The next piece; `None` after the last.
    pub(crate) fn piece(&mut self) -> Option<Bytes> {
        if self.stage == Stage::Done {
            return None;
        }
        let mut out = BytesMut::with_capacity(8 << 10);
        if self.stage == Stage::Head {
            self.head(&mut out);
            self.stage = Stage::Items;
        }
        while out.len() < PIECE {
            let Some(object) = self.listing.items.get(self.next) else {
                out.put_slice(b"]}");
                self.stage = Stage::Done;
                break;
            };
            if self.next > 0 {
                out.put_u8(b',');
            }
            self.resource.write_item(object, &mut out);
            self.next += 1;
        }
        Some(out.freeze())
    }

    fn head(&self, out: &mut BytesMut) {
        out.put_slice(b"{\"kind\":");
        put(out, &self.resource.list_kind.as_str().into());
        out.put_slice(b",\"apiVersion\":");
        put(out, &self.resource.api_version.as_str().into());
        out.put_slice(b",\"metadata\":");
        put(out, &list_metadata(&self.resource, &self.listing, true));
        out.put_slice(b",\"items\":[");
    }
}

fn list_metadata(resource: &Resource, listing: &Listing, whole: bool) -> Value {
    let mut metadata = json!({"resourceVersion": listing.revision.to_string()});
    match &listing.resume {
        Some(resume) => metadata["continue"] = resume.encode().into(),
        // Lists of custom resources always carry the field.
        None if !resource.is_builtin() && whole => metadata["continue"] = "".into(),
        None => {}
    }
    if let Some(remaining) = listing.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    metadata
}

fn partial(value: &Value, kind: &str) -> Value {
    json!({"kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": value["metadata"]})
}

fn table(
    resource: &Resource,
    values: &[Value],
    metadata: &mut Value,
    include: Include,
    headers: bool,
) -> Value {
    let rows: Vec<Value> = values
        .iter()
        .map(|value| {
            let mut row = json!({"cells": resource.cells(value)});
            if let Some(conditions) = resource.row_conditions(value) {
                row["conditions"] = conditions;
            }
            match include {
                Include::None => row["object"] = Value::Null,
                Include::Metadata => row["object"] = partial(value, "PartialObjectMetadata"),
                Include::Object => row["object"] = value.clone(),
            }
            row
        })
        .collect();
    let mut table = json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata.take(),
        "columnDefinitions": null,
        "rows": rows,
    });
    if headers {
        table["columnDefinitions"] = resource.columns();
    }
    table
}
