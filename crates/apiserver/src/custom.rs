//! A version of a CustomResourceDefinition, compiled: schema, rules, columns, subresources.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::builtin::metadata::{self, NameRule};
use crate::builtin::{Errors, Path};
use crate::merge::FieldSet;
use crate::resource::Subresource;
use crate::schema::parse::Names;
use crate::schema::{self, Definitions, JsonPath, Rules, Schema};
use crate::status::{FieldError, Status};
use crate::table::{Column, CustomColumn, custom_cells, custom_columns};

pub(crate) struct Custom {
    /// The name of the CustomResourceDefinition.
    pub(crate) definition: String,
    pub(crate) schema: Schema,
    /// The same with `metadata` described, as field ownership needs it.
    pub(crate) merge_schema: Schema,
    rules: Rules,
    /// The schema as written, encoded.
    openapi: String,
    columns: Vec<Column>,
    cells: Vec<CustomColumn<Finder>>,
    pub(crate) selectable: Vec<(String, JsonPath)>,
    status: bool,
    scale: Option<Scale>,
    generation: String,
    /// Whether there are defaults, and the definition has changed since it was made: objects may be stored that
    /// are older than a default.
    late_defaults: bool,
}

type Finder = Box<dyn Fn(&Value) -> Vec<Value> + Send + Sync>;

struct Scale {
    replicas: String,
    status: String,
    selector: Option<String>,
}

impl Custom {
    /// A definition was validated before it was stored, so what does not parse here is simply not enforced.
    pub(crate) fn new(name: &str, definition: &Value, version: &Value) -> Self {
        let openapi = &version["schema"]["openAPIV3Schema"];
        let parse = || Schema::from_json(openapi, &Names::none()).unwrap_or_else(|_| anything());
        let (rules, _) = Rules::compile(openapi);
        let mut merge_schema = parse();
        if let Some(meta) = Definitions::builtin().get("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta") {
            merge_schema.properties.insert("metadata".into(), meta);
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let columns = version["additionalPrinterColumns"].as_array().map(Vec::as_slice).unwrap_or_default();
        let scale = &version["subresources"]["scale"];
        let selectable = version["selectableFields"].as_array().into_iter().flatten().filter_map(|field| {
            let path = field["jsonPath"].as_str()?;
            Some((path.trim_start_matches('.').to_owned(), JsonPath::parse(path).ok()?))
        });
        Self {
            definition: name.to_owned(),
            schema: parse(),
            merge_schema,
            rules,
            late_defaults: has_default(openapi) && definition["metadata"]["generation"].as_i64() > Some(1),
            openapi: openapi.to_string(),
            columns: custom_columns(columns),
            cells: finders(columns),
            selectable: selectable.collect(),
            status: !version["subresources"]["status"].is_null(),
            scale: scale.is_object().then(|| Scale {
                replicas: text(&scale["specReplicasPath"]),
                status: text(&scale["statusReplicasPath"]),
                selector: scale["labelSelectorPath"].as_str().map(str::to_owned),
            }),
            generation: format!(
                "{}/{}",
                text(&definition["metadata"]["uid"]),
                definition["metadata"]["generation"]
            ),
        }
    }

    pub(crate) fn openapi(&self) -> Value {
        serde_json::from_str(&self.openapi).unwrap_or_default()
    }

    pub(crate) fn revision(&self) -> String {
        self.generation.clone()
    }

    /// What writers cannot own on the main endpoint, and on `/status`.
    pub(crate) fn reset_fields(&self) -> (FieldSet, FieldSet) {
        let main = if self.status { FieldSet::of_fields(&[&["status"]]) } else { FieldSet::new() };
        let mut others: Vec<Vec<&str>> = vec![vec!["metadata"], vec!["spec"]];
        let described = self.schema.properties.keys().map(String::as_str);
        others.extend(
            described.filter(|key| !matches!(*key, "status" | "metadata" | "spec")).map(|key| vec![key]),
        );
        let paths: Vec<&[&str]> = others.iter().map(Vec::as_slice).collect();
        (main, FieldSet::of_fields(&paths))
    }

    pub(crate) fn subresources<'a>(&'a self, kind: &'a str) -> Vec<Subresource<'a>> {
        let verbs = || vec!["get", "patch", "update"];
        let mut found = Vec::new();
        if self.status {
            found.push(Subresource { name: "status", group: "", version: "", kind, verbs: verbs() });
        }
        if self.scale.is_some() {
            found.push(Subresource {
                name: "scale",
                group: "autoscaling",
                version: "v1",
                kind: "Scale",
                verbs: verbs(),
            });
        }
        found
    }

    pub(crate) fn has_subresource(&self, name: &str) -> bool {
        match name {
            "status" => self.status,
            "scale" => self.scale.is_some(),
            _ => false,
        }
    }

    /// Whether objects stored before a default was added must be completed when read.
    pub(crate) fn defaults_on_read(&self) -> bool {
        self.late_defaults
    }

    pub(crate) fn default_on_read(&self, value: &mut Value) {
        if self.late_defaults {
            schema::apply_defaults(&self.schema, value);
        }
    }

    pub(crate) fn prepare_create(&self, value: &mut Value) {
        if self.status
            && let Some(object) = value.as_object_mut()
        {
            object.remove("status");
        }
        value["metadata"]["generation"] = 1.into();
    }

    pub(crate) fn prepare_update(&self, new: &mut Value, old: &Value) {
        if self.status {
            copy(new, old, "status");
        }
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
        let bump = match (new.as_object(), old.as_object()) {
            (Some(new), Some(old)) => {
                let counts = |key: &str| key != "metadata" && !(self.status && key == "status");
                let changed = |a: &serde_json::Map<String, Value>, b: &serde_json::Map<String, Value>| {
                    a.iter().any(|(key, value)| counts(key) && b.get(key) != Some(value))
                };
                changed(new, old) || changed(old, new)
            }
            _ => true,
        };
        new["metadata"]["generation"] = (generation + i64::from(bump)).into();
    }

    /// On `/status`, nothing but the status and the record of who wrote it changes.
    pub(crate) fn prepare_status(&self, new: &mut Value, old: &Value) {
        let status = new.get("status").cloned();
        let managed = new["metadata"].get("managedFields").cloned();
        let version = new["metadata"].get("resourceVersion").cloned();
        *new = old.clone();
        for (key, value) in [("managedFields", managed), ("resourceVersion", version)] {
            set(&mut new["metadata"], key, value);
        }
        set(new, "status", status);
    }

    pub(crate) fn validate(&self, value: &Value, namespaced: bool) -> Vec<FieldError> {
        let mut errors = self.validate_metadata(value, namespaced);
        errors.extend(schema::validate(&self.schema, value));
        schema::validate::add_rule_errors(&self.rules, value, None, &mut errors);
        errors.extend(self.validate_scale(value));
        errors
    }

    pub(crate) fn validate_update(
        &self,
        new: &Value,
        old: &Value,
        subresource: &str,
        namespaced: bool,
    ) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if subresource != "status" {
            errors = self.validate_metadata(new, namespaced);
        }
        // The server and the kind both judge the metadata, and what is wrong with it is told twice.
        for _ in 0..2 {
            metadata::validate_update(
                &new["metadata"],
                &old["metadata"],
                &Path::root("metadata"),
                &mut errors,
            );
        }
        errors.extend(match subresource {
            "status" => schema::validate::validate_status(&self.schema, new, old),
            _ => schema::validate_update(&self.schema, new, old),
        });
        schema::validate::add_rule_errors(&self.rules, new, Some(old), &mut errors);
        errors.extend(self.validate_scale(new));
        errors
    }

    fn validate_metadata(&self, value: &Value, namespaced: bool) -> Errors {
        let mut errors = Errors::new();
        let options = metadata::Options { namespaced, known_finalizers: false };
        metadata::validate(
            &value["metadata"],
            NameRule::Subdomain,
            options,
            &Path::root("metadata"),
            &mut errors,
        );
        errors
    }

    fn validate_scale(&self, value: &Value) -> Vec<FieldError> {
        let Some(scale) = &self.scale else { return Vec::new() };
        let mut errors = Vec::new();
        for path in [&scale.replicas, &scale.status] {
            if let Some(replicas) = at(value, path).as_i64().filter(|n| *n < 0) {
                errors.push(FieldError::invalid(path.as_str(), replicas, "should be a non-negative integer"));
            }
        }
        errors
    }

    pub(crate) fn columns(&self) -> &[Column] {
        &self.columns
    }

    pub(crate) fn cells(&self, value: &Value) -> Vec<Value> {
        custom_cells(&self.cells, value, Timestamp::now())
    }

    pub(crate) fn scale_values(&self, value: &Value) -> Result<(i64, i64, Option<String>), Status> {
        let Some(scale) = &self.scale else { return Err(Status::page_not_found()) };
        let replicas = at(value, &scale.replicas);
        let Some(replicas) = replicas.as_i64() else {
            return Err(Status::internal(format!(
                "the spec replicas field {:?} does not exist",
                scale.replicas
            )));
        };
        let selector = scale.selector.as_ref().and_then(|path| at(value, path).as_str().map(str::to_owned));
        Ok((replicas, at(value, &scale.status).as_i64().unwrap_or(0), selector))
    }

    pub(crate) fn set_replicas(&self, value: &mut Value, replicas: i64) {
        let Some(scale) = &self.scale else { return };
        let mut place = value;
        for key in keys(&scale.replicas) {
            if !place.is_object() {
                *place = json!({});
            }
            place = &mut place[key];
        }
        *place = replicas.into();
    }
}

fn anything() -> Schema {
    Schema { preserve_unknown_fields: true, ..Schema::default() }
}

fn has_default(openapi: &Value) -> bool {
    match openapi {
        Value::Object(map) => map.contains_key("default") || map.values().any(has_default),
        Value::Array(items) => items.iter().any(has_default),
        _ => false,
    }
}

/// What finds the values of a column; a path that cannot be read finds nothing.
fn finders(columns: &[Value]) -> Vec<CustomColumn<Finder>> {
    let finder = |column: &Value| {
        let path = JsonPath::parse(column["jsonPath"].as_str().unwrap_or_default()).ok();
        let find: Finder =
            Box::new(move |value| path.iter().flat_map(|path| path.select(value)).cloned().collect());
        CustomColumn { ty: column["type"].as_str().unwrap_or("string").to_owned(), find }
    };
    columns.iter().map(finder).collect()
}

fn keys(path: &str) -> impl Iterator<Item = &str> {
    path.split('.').filter(|key| !key.is_empty())
}

fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    keys(path).fold(value, |value, key| &value[key])
}

fn copy(new: &mut Value, old: &Value, key: &str) {
    set(new, key, old.get(key).cloned());
}

fn set(object: &mut Value, key: &str, value: Option<Value>) {
    match (value, object.as_object_mut()) {
        (Some(value), Some(object)) => {
            object.insert(key.into(), value);
        }
        (None, Some(object)) => {
            object.remove(key);
        }
        (_, None) => {}
    }
}
