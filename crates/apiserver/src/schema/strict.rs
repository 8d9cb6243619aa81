//! Strict decoding of a request body: unknown and duplicate fields, in the order of the document.
//!
//! [`serde_json::Value`] keeps neither duplicates nor the order, so this reads the text itself. It never fails:
//! text that is not JSON is reported by whoever parses it for real.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::parse::object_meta;
use super::path::Path;
use super::{Link, Schema};

/// `unknown field "spec.foo"` and `duplicate field "metadata.name"`, for a built-in kind.
pub fn strict_errors(schema: &Schema, body: &[u8]) -> Vec<String> {
    run(Some(schema), body)
}

/// Only `duplicate field "…"`: for custom resources, whose unknown fields come from
/// [`super::unknown_fields`] and are listed after the duplicates.
pub fn duplicate_fields(body: &[u8]) -> Vec<String> {
    run(None, body)
}

fn run(schema: Option<&Schema>, body: &[u8]) -> Vec<String> {
    let mut errors = Vec::new();
    let root = Path::root("");
    let walk = Walk { schema, path: &root, errors: &mut errors };
    let mut reader = serde_json::Deserializer::from_slice(body);
    // The reader's own recursion limit bounds this walk.
    let _ = walk.deserialize(&mut reader);
    errors
}

/// Reads one value; without a schema only duplicates are looked for.
struct Walk<'a, 's> {
    schema: Option<&'s Schema>,
    path: &'a Path<'a>,
    errors: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Walk<'_, '_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            let at = self.path.field(&key);
            let child = match self.schema {
                None => None,
                Some(_) if self.path.is_root() && key == "metadata" => Some(object_meta()),
                Some(schema) => match schema.child(&key) {
                    Some(child) => Some(child),
                    None if schema.preserve_unknown_fields => None,
                    None => {
                        self.errors.push(format!("unknown field {:?}", at.dotted()));
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                },
            };
            if !seen.insert(key.clone()) {
                self.errors.push(format!("duplicate field {:?}", at.dotted()));
            }
            map.next_value_seed(Walk { schema: child, path: &at, errors: self.errors })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let items = self.schema.and_then(|schema| schema.items.as_ref()).map(Link::get);
        for i in 0.. {
            let at = self.path.index(i);
            let walk = Walk { schema: items, path: &at, errors: self.errors };
            if list.next_element_seed(walk)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Definitions;
    use super::*;

    fn schema(name: &str) -> Link {
        Definitions::builtin().get(&format!("io.k8s.api.core.v1.{name}")).expect("known")
    }

    #[test]
    fn errors_come_in_the_order_of_the_document() {
        let body =
            br#"{"kind":"Pod","metadata":{"name":"x","zed":1},"spec":{"foo":1,"containers":[{"name":"a",
            "bar":{},"ports":[{"z":1}]}],"Containers":[]},"zz":1}"#;
        assert_eq!(
            strict_errors(schema("Pod").get(), body),
            [
                "unknown field \"metadata.zed\"",
                "unknown field \"spec.foo\"",
                "unknown field \"spec.containers[0].bar\"",
                "unknown field \"spec.containers[0].ports[0].z\"",
                "unknown field \"spec.Containers\"",
                "unknown field \"zz\""
            ]
        );
    }

    #[test]
    fn duplicates_are_found() {
        let body = br#"{"metadata":{"name":"x","name":"y"},"data":{"a":"b","a":"c"}}"#;
        let want = ["duplicate field \"metadata.name\"", "duplicate field \"data.a\""];
        assert_eq!(strict_errors(schema("ConfigMap").get(), body), want);
        assert_eq!(duplicate_fields(body), want);
        assert!(duplicate_fields(b"{\"a\": [1, nul").is_empty());
    }
}
