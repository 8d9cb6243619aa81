//! The generated definitions against the committed files, and what every schema must have.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;

/// `UPDATE_GOLDEN=1 cargo test -p agentcube-api` writes them anew.
#[test]
fn committed_files_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    let files = crd_files();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(&folder).expect("the folder");
        for (name, text) in &files {
            std::fs::write(folder.join(name), text).expect(name);
        }
    }
    for (name, text) in &files {
        let committed = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert!(committed == *text, "deploy/crds/{name} is not current: run `cargo xtask gen`");
    }
    let committed: BTreeSet<String> = std::fs::read_dir(&folder)
        .expect("deploy/crds")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(committed, files.into_iter().map(|(name, _)| name).collect(), "files in deploy/crds");
}

/// `kubectl apply` keeps the whole object in an annotation, which may have 262144 bytes.
#[test]
fn definitions_fit_into_an_annotation() {
    for crd in crds() {
        let size = serde_json::to_string(&crd).expect("JSON").len();
        assert!(size < 250_000, "{} has {size} bytes", crd.spec.names.plural);
    }
}

#[test]
fn the_yaml_is_the_definition() {
    for crd in crds() {
        let read: serde_json::Value = serde_saphyr::from_str(&render(&crd)).expect("YAML");
        assert_eq!(read, to_json(&crd));
    }
}

fn visit(schema: &JSONSchemaProps, path: &str, check: &mut dyn FnMut(&str, &JSONSchemaProps)) {
    check(path, schema);
    for (name, property) in schema.properties.iter().flatten() {
        visit(property, &format!("{path}.{name}"), check);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        visit(items, &format!("{path}[]"), check);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        visit(values, &format!("{path}{{}}"), check);
    }
}

fn visit_all(check: &mut dyn FnMut(&str, &JSONSchemaProps)) {
    for crd in crds() {
        for version in &crd.spec.versions {
            let schema =
                version.schema.as_ref().and_then(|s| s.open_api_v3_schema.as_ref()).expect("a schema");
            visit(schema, &crd.spec.names.kind, check);
        }
    }
}

#[test]
fn every_field_is_explained() {
    visit_all(&mut |path, schema| {
        let is_field = !path.ends_with("[]") && !path.ends_with("{}");
        assert!(!is_field || schema.description.is_some(), "{path} has no description");
    });
}

#[test]
fn only_orders_are_nullable_and_nothing_is_left_of_unions() {
    visit_all(&mut |path, schema| {
        let nullable = schema.nullable == Some(true);
        let is_order = path.starts_with("Plugin.spec.orders.") && !path.ends_with("[]");
        assert_eq!(nullable, is_order, "{path}");
        assert!(schema.any_of.is_none() && schema.one_of.is_none(), "{path} has a union");
        let known =
            schema.format.as_deref().is_none_or(|f| ["int32", "int64", "date-time", "double"].contains(&f));
        assert!(known, "{path} has format {:?}", schema.format);
    });
}

#[test]
fn every_rule_has_a_message_and_names_no_snake_case_field() {
    let mut rules = 0;
    visit_all(&mut |path, schema| {
        for rule in schema.x_kubernetes_validations.iter().flatten() {
            assert!(rule.message.is_some(), "{path}: {}", rule.rule);
            assert!(!rule.rule.contains('_') || rule.rule.contains("exists_one"), "{path}: {}", rule.rule);
            rules += 1;
        }
    });
    assert!(rules > 40, "{rules} rules");
}
