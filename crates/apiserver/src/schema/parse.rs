//! Reading schemas: those of CRDs, and the built-in definitions that the OpenAPI documents name.
//!
//! Definitions are indexed at first use and each is parsed when first asked for: a server that only serves
//! ConfigMaps never pays for Pods.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{Link, ListType, Named, Schema, Type};

const BUILTIN: &str = include_str!("../builtin/schemas.json");
/// Schemas nested deeper than this are refused; real ones stay far below.
const MAX_SCHEMA_DEPTH: usize = 64;
const REFERENCE: &str = "#/components/schemas/";

/// Why a schema could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{path}: must be {expected}")]
    Kind { path: String, expected: &'static str },
    #[error("{path}: unknown type {ty:?}")]
    Type { path: String, ty: String },
    #[error("{path}: nested too deeply")]
    Deep { path: String },
}

/// What `$ref`s mean while a schema is read.
pub struct Names<'a> {
    named: Option<&'a Definitions>,
}

impl<'a> Names<'a> {
    /// References mean nothing: what CRDs are held to.
    pub fn none() -> Names<'static> {
        Names { named: None }
    }

    fn link(&self, name: &str) -> Link {
        let known = self.named.and_then(|d| d.index.get(name)).map(|entry| entry.named.clone());
        Link::Named(
            known.unwrap_or_else(|| Arc::new(Named { name: name.to_owned(), schema: OnceLock::new() })),
        )
    }
}

/// The definitions of the built-in kinds.
pub struct Definitions {
    index: HashMap<&'static str, Entry>,
}

struct Entry {
    text: &'static RawValue,
    named: Arc<Named>,
}

impl Definitions {
    /// The definitions that this server was built with.
    pub fn builtin() -> &'static Definitions {
        static LOADED: OnceLock<Definitions> = OnceLock::new();
        LOADED.get_or_init(|| {
            let texts: HashMap<&'static str, &'static RawValue> =
                serde_json::from_str(BUILTIN).expect("the embedded definitions are JSON, as a test checks");
            let entry = |(name, text): (&'static str, &'static RawValue)| {
                (name, Entry { text, named: Arc::new(Named { name: name.into(), schema: OnceLock::new() }) })
            };
            Definitions { index: texts.into_iter().map(entry).collect() }
        })
    }

    /// The schema with this name, such as `io.k8s.api.core.v1.Pod`.
    pub fn get(&self, name: &str) -> Option<Link> {
        self.index.get(name).map(|entry| Link::Named(entry.named.clone()))
    }

    /// The definition as it stands in the OpenAPI documents.
    pub fn text(&self, name: &str) -> Option<&'static str> {
        self.index.get(name).map(|entry| entry.text.get())
    }

    /// All names, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.index.keys().copied()
    }

    /// Parses a definition anew; [`Link::get`] does so once and keeps it.
    pub(super) fn read(&self, name: &str) -> Option<Schema> {
        let entry = self.index.get(name)?;
        let json: Value = serde_json::from_str(entry.text.get()).ok()?;
        let mut schema = Schema::from_json(&json, &Names { named: Some(self) }).ok()?;
        accept_what_go_accepts(name, &mut schema);
        schema.name = Some(name.to_owned());
        Some(schema)
    }
}

/// `metadata` of every object.
pub fn object_meta() -> &'static Schema {
    static META: OnceLock<Link> = OnceLock::new();
    META.get_or_init(|| {
        let name = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
        Definitions::builtin().get(name).expect("ObjectMeta is among the embedded definitions")
    })
    .get()
}

/// Types with decoders of their own take more than their OpenAPI text says.
fn accept_what_go_accepts(name: &str, schema: &mut Schema) {
    match name.rsplit('.').next().unwrap_or(name) {
        "RawExtension"
        | "FieldsV1"
        | "JSON"
        | "Patch"
        | "JSONSchemaPropsOrArray"
        | "JSONSchemaPropsOrBool"
        | "JSONSchemaPropsOrStringArray" => {
            schema.ty = None;
            schema.preserve_unknown_fields = true;
        }
        "IntOrString" => {
            schema.ty = None;
            schema.int_or_string = true;
            schema.one_of.clear();
        }
        "Quantity" => {
            schema.ty = None;
            schema.format = Some("quantity".to_owned());
            schema.one_of.clear();
        }
        _ => {}
    }
}

impl Schema {
    /// Reads an OpenAPI v3 schema. Keywords that nothing here uses are ignored.
    pub fn from_json(json: &Value, names: &Names<'_>) -> Result<Schema, Error> {
        Reader { names }.schema(json, "", 0)
    }
}

struct Reader<'a> {
    names: &'a Names<'a>,
}

impl Reader<'_> {
    fn schema(&self, json: &Value, path: &str, depth: usize) -> Result<Schema, Error> {
        if depth > MAX_SCHEMA_DEPTH {
            return Err(Error::Deep { path: path.to_owned() });
        }
        let map =
            json.as_object().ok_or_else(|| Error::Kind { path: path.to_owned(), expected: "an object" })?;
        let mut schema = Schema {
            description: text(map, "description"),
            ty: self.ty(map, path)?,
            format: text(map, "format"),
            nullable: flag(map, "nullable"),
            default: map.get("default").filter(|d| !d.is_null()).cloned(),
            properties: self.properties(map, path, depth)?,
            required: texts(map, "required"),
            additional: self.additional(map, path, depth)?,
            items: match map.get("items") {
                Some(items @ Value::Object(_)) => {
                    Some(self.link(items, &format!("{path}.items"), depth + 1)?)
                }
                _ => None,
            },
            all_of: self.list(map, "allOf", path, depth)?,
            any_of: self.list(map, "anyOf", path, depth)?,
            one_of: self.list(map, "oneOf", path, depth)?,
            not: match map.get("not") {
                Some(not @ Value::Object(_)) => {
                    Some(Box::new(self.schema(not, &format!("{path}.not"), depth + 1)?))
                }
                _ => None,
            },
            ..Schema::default()
        };
        constraints(map, &mut schema);
        extensions(map, &mut schema);
        Ok(schema)
    }

    fn ty(&self, map: &Map<String, Value>, path: &str) -> Result<Option<Type>, Error> {
        match map.get("type").and_then(Value::as_str) {
            None | Some("") => Ok(None),
            Some("object") => Ok(Some(Type::Object)),
            Some("array") => Ok(Some(Type::Array)),
            Some("string") => Ok(Some(Type::String)),
            Some("integer") => Ok(Some(Type::Integer)),
            Some("number") => Ok(Some(Type::Number)),
            Some("boolean") => Ok(Some(Type::Boolean)),
            Some(ty) => Err(Error::Type { path: path.to_owned(), ty: ty.to_owned() }),
        }
    }

    fn properties(
        &self,
        map: &Map<String, Value>,
        path: &str,
        depth: usize,
    ) -> Result<BTreeMap<String, Link>, Error> {
        let Some(Value::Object(properties)) = map.get("properties") else { return Ok(BTreeMap::new()) };
        properties
            .iter()
            .map(|(name, json)| {
                let link = self.link(json, &format!("{path}.properties[{name}]"), depth + 1)?;
                Ok((name.clone(), link))
            })
            .collect()
    }

    fn additional(&self, map: &Map<String, Value>, path: &str, depth: usize) -> Result<Option<Link>, Error> {
        Ok(match map.get("additionalProperties") {
            Some(json @ Value::Object(_)) => {
                Some(self.link(json, &format!("{path}.additionalProperties"), depth + 1)?)
            }
            // Keys of any name are kept, and nothing is known of their values: not even that they are kept whole.
            Some(Value::Bool(true)) => {
                Some(Link::Own(Arc::new(Schema { nullable: true, ..Schema::default() })))
            }
            _ => None,
        })
    }

    fn list(
        &self,
        map: &Map<String, Value>,
        key: &str,
        path: &str,
        depth: usize,
    ) -> Result<Vec<Schema>, Error> {
        let Some(Value::Array(list)) = map.get(key) else { return Ok(Vec::new()) };
        list.iter()
            .enumerate()
            .map(|(i, json)| self.schema(json, &format!("{path}.{key}[{i}]"), depth + 1))
            .collect()
    }

    fn link(&self, json: &Value, path: &str, depth: usize) -> Result<Link, Error> {
        if let (Some(definitions), Some(name)) = (self.names.named, referenced(json)) {
            let strategy = json.get("x-kubernetes-patch-strategy").is_some();
            if !strategy && json.get("x-kubernetes-map-type").is_none() {
                return Ok(self.names.link(name));
            }
            // The few wrappers that say more than a default get a copy of their own.
            if let (Some(mut schema), Some(map)) = (definitions.read(name), json.as_object()) {
                extensions(map, &mut schema);
                return Ok(Link::Own(Arc::new(schema)));
            }
        }
        Ok(Link::Own(Arc::new(self.schema(json, path, depth)?)))
    }
}

/// The name behind `{$ref}` or `{allOf: [{$ref}], …}`.
fn referenced(json: &Value) -> Option<&str> {
    let reference = match json.get("allOf") {
        Some(Value::Array(list)) if list.len() == 1 => list[0].get("$ref"),
        _ => json.get("$ref"),
    };
    reference.and_then(Value::as_str)?.strip_prefix(REFERENCE)
}

fn constraints(map: &Map<String, Value>, schema: &mut Schema) {
    let number = |key: &str| map.get(key).and_then(Value::as_f64);
    let count = |key: &str| map.get(key).and_then(Value::as_u64);
    schema.enumeration = map.get("enum").and_then(Value::as_array).filter(|e| !e.is_empty()).cloned();
    schema.pattern = text(map, "pattern");
    schema.minimum = number("minimum");
    schema.maximum = number("maximum");
    schema.exclusive_minimum = flag(map, "exclusiveMinimum");
    schema.exclusive_maximum = flag(map, "exclusiveMaximum");
    schema.multiple_of = number("multipleOf");
    schema.min_length = count("minLength");
    schema.max_length = count("maxLength");
    schema.min_items = count("minItems");
    schema.max_items = count("maxItems");
    schema.unique_items = flag(map, "uniqueItems");
    schema.min_properties = count("minProperties");
    schema.max_properties = count("maxProperties");
}

fn extensions(map: &Map<String, Value>, schema: &mut Schema) {
    schema.int_or_string |= flag(map, "x-kubernetes-int-or-string");
    schema.embedded_resource |= flag(map, "x-kubernetes-embedded-resource");
    schema.preserve_unknown_fields |= flag(map, "x-kubernetes-preserve-unknown-fields");
    match map.get("x-kubernetes-list-type").and_then(Value::as_str) {
        Some("set") => schema.list_type = ListType::Set,
        Some("map") => schema.list_type = ListType::Map,
        _ => {}
    }
    if map.contains_key("x-kubernetes-list-map-keys") {
        schema.list_map_keys = texts(map, "x-kubernetes-list-map-keys");
    }
    if let Some(ty) = map.get("x-kubernetes-map-type") {
        schema.atomic_map = ty == "atomic";
    }
    if let Some(strategy) = map.get("x-kubernetes-patch-strategy").and_then(Value::as_str) {
        schema.patch_strategy = strategy.split(',').map(str::to_owned).collect();
    }
    if let Some(key) = text(map, "x-kubernetes-patch-merge-key") {
        schema.patch_merge_key = Some(key);
    }
    if let Some(Value::Array(rules)) = map.get("x-kubernetes-validations") {
        schema.rules = rules.clone();
    }
}

fn text(map: &Map<String, Value>, key: &str) -> Option<String> {
    map.get(key).and_then(Value::as_str).filter(|s| !s.is_empty()).map(str::to_owned)
}

fn flag(map: &Map<String, Value>, key: &str) -> bool {
    map.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn texts(map: &Map<String, Value>, key: &str) -> Vec<String> {
    let list = map.get(key).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_builtin_definition_is_read() {
        let definitions = Definitions::builtin();
        let mut count = 0;
        for name in definitions.names() {
            let schema = definitions.read(name).expect(name);
            assert_eq!(schema.name.as_deref(), Some(name));
            count += 1;
        }
        assert!(count > 300, "{count} definitions");
    }

    #[test]
    fn references_are_followed_and_recursion_ends() {
        let definitions = Definitions::builtin();
        let pod = definitions.get("io.k8s.api.core.v1.Pod").expect("Pod");
        let containers = pod.get().properties["spec"].get().properties["containers"].get();
        assert_eq!(containers.list_type, ListType::Map);
        assert_eq!(containers.list_map_keys, ["name"]);
        assert_eq!(containers.patch_merge_key.as_deref(), Some("name"));
        let container = containers.items.as_ref().expect("items").get();
        assert_eq!(container.name.as_deref(), Some("io.k8s.api.core.v1.Container"));

        let name = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
        let props = definitions.get(name).expect("JSONSchemaProps");
        assert!(std::ptr::eq(props.get().properties["not"].get(), props.get()));
    }

    #[test]
    fn a_wrapper_keeps_its_patch_strategy() {
        let spec = Definitions::builtin().get("io.k8s.api.apps.v1.DeploymentSpec").expect("DeploymentSpec");
        let strategy = spec.get().properties["strategy"].get();
        assert_eq!(strategy.patch_strategy, ["retainKeys"]);
        assert_eq!(strategy.name.as_deref(), Some("io.k8s.api.apps.v1.DeploymentStrategy"));
        assert!(strategy.properties.contains_key("rollingUpdate"));
    }

    #[test]
    fn special_types_accept_what_go_accepts() {
        let get = |name: &str| Definitions::builtin().get(name).expect("known").get().ty;
        assert_eq!(get("io.k8s.apimachinery.pkg.api.resource.Quantity"), None);
        assert_eq!(get("io.k8s.apimachinery.pkg.util.intstr.IntOrString"), None);
        assert_eq!(get("io.k8s.apimachinery.pkg.apis.meta.v1.Time"), Some(Type::String));
        assert!(Definitions::builtin().get("io.k8s.Nothing").is_none());
    }

    #[test]
    fn bad_schemas_are_refused_with_their_place() {
        let read =
            |json: Value| Schema::from_json(&json, &Names::none()).map(|_| ()).unwrap_err().to_string();
        assert_eq!(read(json!({"properties": {"a": 1}})), ".properties[a]: must be an object");
        assert_eq!(read(json!({"items": {"type": "foo"}})), ".items: unknown type \"foo\"");
        let mut deep = json!({});
        for _ in 0..MAX_SCHEMA_DEPTH + 5 {
            deep = json!({ "items": deep });
        }
        assert!(read(deep).ends_with("nested too deeply"));
    }
}
