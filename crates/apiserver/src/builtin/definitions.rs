//! CustomResourceDefinitions: their defaults. What they must satisfy is the business of [`crate::schema`].

use serde_json::{Value, json};

use super::access::{Peek, Poke};
use super::{PLAIN, Strategy};

pub(crate) const DEFINITION: Strategy = Strategy {
    defaults: |definition| {
        let Some(spec) = definition.part("spec") else { return };
        if let Some(names) = spec.part("names") {
            let kind = names.str_of("kind").to_owned();
            if !kind.is_empty() {
                names.fill_str("singular", &kind.to_lowercase());
                names.fill_str("listKind", &format!("{kind}List"));
            }
        }
        if let Some(conversion) = spec.make("conversion") {
            conversion.fill_str("strategy", "None");
        }
    },
    create: |definition, _| remember_stored(definition),
    update: |definition, _| remember_stored(definition),
    ..PLAIN
};

/// `status.storedVersions` has every version that objects were ever stored in.
fn remember_stored(definition: &mut Value) {
    let versions = definition.sub("spec").list("versions").iter();
    let stored: Vec<Value> = versions
        .filter(|version| version.flag("storage"))
        .map(|version| version.sub("name").clone())
        .collect();
    let Some(status) = definition.make("status") else { return };
    status.fill("storedVersions", json!([]));
    if let Some(list) = status.get_mut("storedVersions").and_then(Value::as_array_mut) {
        for version in stored {
            if !list.contains(&version) {
                list.push(version);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::by_kind;

    #[test]
    fn names_and_stored_versions_are_filled_in() {
        let kind = by_kind("apiextensions.k8s.io/v1", "CustomResourceDefinition").expect("itself");
        let mut definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "foos.example.io"},
            "spec": {"group": "example.io", "names": {"kind": "Foo", "plural": "foos"}, "scope": "Namespaced",
                "versions": [{"name": "v1", "served": true, "storage": true, "additionalPrinterColumns": [],
                    "schema": {"openAPIV3Schema": {"type": "object"}}}]},
        });
        kind.decode(&mut definition);
        kind.prepare_create(&mut definition, "NOW");
        assert_eq!(
            definition,
            json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": "foos.example.io", "generation": 1},
                "spec": {"group": "example.io", "scope": "Namespaced", "conversion": {"strategy": "None"},
                    "names": {"kind": "Foo", "plural": "foos", "singular": "foo", "listKind": "FooList"},
                    "versions": [{"name": "v1", "served": true, "storage": true,
                        "schema": {"openAPIV3Schema": {"type": "object"}}}]},
                "status": {"conditions": null, "acceptedNames": {"plural": "", "kind": ""},
                    "storedVersions": ["v1"]},
            })
        );
    }
}
