//! A schema as merging sees it: at every place a scalar, a list or a map, or any of the three.

use std::{collections::BTreeMap, sync::Arc, sync::OnceLock};

use serde_json::Value;

use crate::{
    merge::PathElement,
    schema::{Link, ListType, Schema, Type},
};

/// A place in an object.
#[derive(Clone, Copy)]
pub(in crate::merge) enum Node<'s> {
    Schema {
        schema: &'s Schema,
        /// Members that the schema does not declare are kept.
        open: bool,
        /// The value is an API object: it has `metadata`, whatever the schema says.
        object: bool,
    },
    /// No schema: maps are merged, lists are one value.
    Deduced,
    /// No schema, and the value is one value, whatever it is.
    Opaque,
}

/// The JSON type a place has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::merge) enum Form {
    Map,
    Scalar,
    List,
}

/// What a scalar must be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    Numeric,
    String,
    Boolean,
    Any,
}

/// Which forms a place may take.
struct Forms {
    map: bool,
    scalar: Option<Scalar>,
    list: bool,
}

impl<'s> Node<'s> {
    pub(in crate::merge) fn root(schema: &'s Schema) -> Self {
        Self::Schema { schema, open: schema.preserve_unknown_fields, object: true }
    }

    fn child(self, link: &'s Link) -> Self {
        let inherited = matches!(self, Self::Schema { open: true, .. });
        match link {
            Link::Named(named) if named.name.ends_with(".runtime.RawExtension") => Self::Opaque,
            Link::Named(_) => Self::of(link.get(), false),
            Link::Own(schema) => Self::of(schema, inherited),
        }
    }

    fn of(schema: &'s Schema, inherited: bool) -> Self {
        let open = inherited || schema.preserve_unknown_fields;
        Self::Schema { schema, open, object: schema.embedded_resource }
    }

    fn forms(self) -> Forms {
        let all = Forms { map: true, scalar: Some(Scalar::Any), list: true };
        let Self::Schema { schema, .. } = self else { return all };
        let scalar = |scalar| Forms { map: false, scalar: Some(scalar), list: false };
        match schema.ty {
            None => all,
            Some(Type::Object) => Forms { map: true, scalar: None, list: false },
            Some(Type::Array) => Forms { map: false, scalar: None, list: true },
            Some(Type::Integer | Type::Number) => scalar(Scalar::Numeric),
            Some(Type::Boolean) => scalar(Scalar::Boolean),
            Some(Type::String) => match schema.format.as_deref() {
                None | Some("" | "byte") => scalar(Scalar::String),
                Some(_) => scalar(Scalar::Any),
            },
        }
    }

    /// The form that a value takes here, and whether it decided that. A value that fits no form of a place
    /// with several, like null, takes the first of map, scalar, list.
    fn fit(self, value: &Value) -> (Form, bool) {
        let forms = self.forms();
        match value {
            Value::Object(_) if forms.map => (Form::Map, true),
            Value::Array(_) if forms.list => (Form::List, true),
            Value::Bool(_) | Value::Number(_) | Value::String(_) if forms.scalar.is_some() => {
                (Form::Scalar, true)
            }
            _ if forms.map => (Form::Map, false),
            _ if forms.scalar.is_some() => (Form::Scalar, false),
            _ => (Form::List, false),
        }
    }

    pub(super) fn form(self, value: &Value) -> Form {
        self.fit(value).0
    }

    /// The forms under which two values are to be compared: one if they agree, else that of each.
    pub(super) fn forms_of(self, left: &Value, right: &Value) -> (Form, Option<Form>) {
        let (a, b) = (self.fit(left), self.fit(right));
        let forms = self.forms();
        let single =
            usize::from(forms.map) + usize::from(forms.list) + usize::from(forms.scalar.is_some()) == 1;
        if single || a == b { (b.0, None) } else { (a.0, Some(b.0)) }
    }

    pub(super) fn scalar(self) -> Scalar {
        self.forms().scalar.unwrap_or(Scalar::Any)
    }

    /// Whether a map here is one value.
    pub(super) fn is_atomic_map(self) -> bool {
        match self {
            Self::Schema { schema, .. } => schema.atomic_map,
            Self::Deduced => false,
            Self::Opaque => true,
        }
    }

    /// Whether a list here is one value.
    pub(super) fn is_atomic_list(self) -> bool {
        match self {
            Self::Schema { schema, .. } => schema.list_type == ListType::Atomic,
            Self::Deduced | Self::Opaque => true,
        }
    }

    /// Whether the schema declares this member of a map by name.
    pub(super) fn declares(self, name: &str) -> bool {
        self.declared(name).is_some()
    }

    fn declared(self, name: &str) -> Option<Self> {
        let Self::Schema { schema, object, .. } = self else { return None };
        if object && let Some(meta) = object_schema().properties.get(name) {
            return Some(Self::of(meta.get(), false));
        }
        schema.properties.get(name).map(|link| self.child(link))
    }

    /// The place of a member of a map; `None` where the schema does not allow it.
    pub(super) fn member(self, name: &str) -> Option<Self> {
        let Self::Schema { schema, open, .. } = self else { return Some(self) };
        if let Some(declared) = self.declared(name) {
            return Some(declared);
        }
        match &schema.additional {
            Some(link) => Some(self.child(link)),
            None if open || schema.properties.is_empty() => Some(Self::Deduced),
            None => None,
        }
    }

    /// The place of a member of a map that is there, allowed or not.
    pub(super) fn member_or_deduced(self, name: &str) -> Self {
        self.member(name).unwrap_or(Self::Deduced)
    }

    /// The place of the elements of a list.
    pub(super) fn items(self) -> Self {
        match self {
            Self::Schema { schema, .. } => {
                schema.items.as_ref().map_or(Self::Opaque, |link| self.child(link))
            }
            Self::Deduced | Self::Opaque => Self::Opaque,
        }
    }

    /// What tells an element of a list that is not one value apart from the others, or why nothing does.
    pub(super) fn element(self, item: &Value) -> Result<PathElement, String> {
        let Self::Schema { schema, .. } = self else {
            return Err("invalid indexing of non-associative list".to_owned());
        };
        match schema.list_type {
            ListType::Atomic => Err("invalid indexing of non-associative list".to_owned()),
            ListType::Map if !schema.list_map_keys.is_empty() => self.keyed_element(schema, item),
            ListType::Map | ListType::Set => match item {
                Value::Object(_) => {
                    Err("associative list without keys has an element that's a map type".to_owned())
                }
                Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
                Value::Null => {
                    Err("associative list without keys has an element that's an explicit null".to_owned())
                }
                scalar => Ok(PathElement::Value(scalar.clone())),
            },
        }
    }

    fn keyed_element(self, schema: &Schema, item: &Value) -> Result<PathElement, String> {
        let fields = match item {
            Value::Object(fields) => fields,
            Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
            _ => return Err("associative list with keys may not have non-map elements".to_owned()),
        };
        let items = self.items();
        let mut key = Vec::with_capacity(schema.list_map_keys.len());
        for name in &schema.list_map_keys {
            // A key that is left out has its default; without one, leaving it out is a key of its own.
            let value = fields.get(name).cloned().or_else(|| items.default_of(name));
            key.extend(value.map(|value| (name.clone(), value)));
        }
        if key.is_empty() {
            return Err(format!(
                "associative list with keys has an element that omits all key fields {} (and doesn't have \
                 default values for any key fields)",
                quoted(&schema.list_map_keys)
            ));
        }
        key.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(PathElement::Key(key))
    }

    fn default_of(self, name: &str) -> Option<Value> {
        let Self::Schema { schema, .. } = self else { return None };
        schema.properties.get(name)?.get().default.clone()
    }
}

fn quoted(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    format!("[{}]", shown.join(" "))
}

/// What every API object has. Schemas of custom resources do not say it.
fn object_schema() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let scalar = |ty| own(Schema { ty: Some(ty), ..Schema::default() });
        let text = || scalar(Type::String);
        let time = || {
            let format = Some("date-time".to_owned());
            own(Schema { ty: Some(Type::String), format, ..Schema::default() })
        };
        let strings =
            || own(Schema { ty: Some(Type::Object), additional: Some(text()), ..Schema::default() });
        let list = |list_type, keys: &[&str], items| {
            own(Schema {
                ty: Some(Type::Array),
                list_type,
                list_map_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
                items: Some(items),
                ..Schema::default()
            })
        };
        let uid = own(Schema {
            ty: Some(Type::String),
            default: Some(Value::String(String::new())),
            ..Schema::default()
        });
        let owner = own(Schema {
            ty: Some(Type::Object),
            atomic_map: true,
            properties: properties([
                ("apiVersion", text()),
                ("kind", text()),
                ("name", text()),
                ("uid", uid),
                ("controller", scalar(Type::Boolean)),
                ("blockOwnerDeletion", scalar(Type::Boolean)),
            ]),
            ..Schema::default()
        });
        let anything = own(Schema { preserve_unknown_fields: true, ..Schema::default() });
        let metadata = Schema {
            ty: Some(Type::Object),
            properties: properties([
                ("annotations", strings()),
                ("creationTimestamp", time()),
                ("deletionGracePeriodSeconds", scalar(Type::Integer)),
                ("deletionTimestamp", time()),
                ("finalizers", list(ListType::Set, &[], text())),
                ("generateName", text()),
                ("generation", scalar(Type::Integer)),
                ("labels", strings()),
                ("managedFields", list(ListType::Atomic, &[], anything)),
                ("name", text()),
                ("namespace", text()),
                ("ownerReferences", list(ListType::Map, &["uid"], owner)),
                ("resourceVersion", text()),
                ("selfLink", text()),
                ("uid", text()),
            ]),
            ..Schema::default()
        };
        let properties = properties([("apiVersion", text()), ("kind", text()), ("metadata", own(metadata))]);
        Schema { properties, ..Schema::default() }
    })
}

fn own(schema: Schema) -> Link {
    Link::Own(Arc::new(schema))
}

fn properties<const N: usize>(fields: [(&str, Link); N]) -> BTreeMap<String, Link> {
    fields.into_iter().map(|(name, link)| (name.to_owned(), link)).collect()
}
