//! Every line of the tables was answered by a real API server.

use super::*;

const LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
                     alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex \
                     used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";

fn base() -> Value {
    json!({"metadata": {"name": "foos.schema.probe.io"}, "spec": {
        "group": "schema.probe.io", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
            {"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}}}}]}})
}

fn errors_of(mut crd: Value) -> Vec<String> {
    default_crd(&mut crd);
    validate_crd(&crd, None).iter().map(ToString::to_string).collect()
}

/// The base, with the value at `pointer` replaced (or removed by null).
fn with(pointer: &str, value: Value) -> Value {
    let mut crd = base();
    let (parent, key) = pointer.rsplit_once('/').expect("pointer");
    crd.pointer_mut(parent).expect("parent")[key] = value;
    crd
}

fn spec_schema(schema: Value) -> Vec<String> {
    errors_of(with("/spec/versions/0/schema/openAPIV3Schema/properties/spec", schema))
}

#[test]
fn what_is_filled_in() {
    let mut crd = base();
    default_crd(&mut crd);
    assert_eq!(
        crd["spec"]["names"],
        json!({"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"})
    );
    assert_eq!(crd["spec"]["conversion"], json!({"strategy": "None"}));
    assert_eq!(crd["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(validate_crd(&crd, None), []);
}

#[test]
fn names_and_groups() {
    let label = |field: &str, name: &str| format!("{field}: Invalid value: {name:?}: {LABEL}");
    let name_error =
        "metadata.name: Invalid value: \"foos.schema.probe.io\": must be spec.names.plural+\".\"+spec.group";
    assert_eq!(errors_of(with("/spec/group", json!(""))), [name_error, "spec.group: Required value"]);
    let mut dotless = with("/spec/group", json!("x"));
    dotless["metadata"]["name"] = json!("foos.x");
    assert_eq!(
        errors_of(dotless),
        ["spec.group: Invalid value: \"x\": should be a domain with at least one dot"]
    );
    assert_eq!(
        errors_of(with("/spec/scope", json!("X"))),
        ["spec.scope: Unsupported value: \"X\": supported values: \"Cluster\", \"Namespaced\""]
    );
    assert_eq!(errors_of(with("/spec/scope", Value::Null)), ["spec.scope: Required value"]);
    assert_eq!(
        errors_of(with("/spec/names/plural", json!("Foos"))),
        [name_error.to_owned(), label("spec.names.plural", "Foos")]
    );
    assert_eq!(
        errors_of(with("/spec/names/kind", Value::Null)),
        [
            "spec.names.singular: Required value",
            "spec.names.kind: Required value",
            "spec.names.listKind: Required value"
        ]
    );
    assert_eq!(
        errors_of(with("/spec/names/listKind", json!("Foo"))),
        ["spec.names.listKind: Invalid value: \"Foo\": kind and listKind may not be the same"]
    );
    assert_eq!(
        errors_of(with("/spec/names/shortNames", json!(["A"]))),
        [label("spec.names.shortNames[0]", "A")]
    );
    let mut community = with("/spec/group", json!("foo.k8s.io"));
    community["metadata"]["name"] = json!("foos.foo.k8s.io");
    assert_eq!(
        errors_of(community),
        [
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval \
          annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111"
        ]
    );
}

#[test]
fn versions_and_their_flags() {
    let shown = |name: &str, storage: bool| {
        format!(
            "{{\"Name\":\"{name}\",\"Served\":true,\"Storage\":{storage},\"Deprecated\":false,\
             \"DeprecationWarning\":null,\"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\
             \"SelectableFields\":null}}"
        )
    };
    assert_eq!(
        errors_of(with("/spec/versions/0/storage", json!(false))),
        [
            format!(
                "spec.versions: Invalid value: [{}]: must have exactly one version marked as storage version",
                shown("v1", false)
            ),
            "status.storedVersions: Invalid value: null: must have at least one stored version".to_owned()
        ]
    );
    let mut twice = base();
    let mut second = twice["spec"]["versions"][0].clone();
    second["name"] = json!("v2");
    twice["spec"]["versions"].as_array_mut().expect("list").push(second);
    assert_eq!(
        errors_of(twice),
        [
            format!(
                "spec.versions: Invalid value: [{},{}]: must have exactly one version marked as storage version",
                shown("v1", true),
                shown("v2", true)
            ),
            "status.storedVersions: Invalid value: [\"v1\"]: must have the storage version v2".to_owned()
        ]
    );
    assert_eq!(
        errors_of(with("/spec/versions/0/schema", Value::Null)),
        ["spec.versions[0].schema.openAPIV3Schema: Required value"]
    );
    assert_eq!(
        errors_of(with("/spec/preserveUnknownFields", json!(true))),
        [
            "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields \
          to true in spec.versions[*].schema instead"
        ]
    );
    assert_eq!(
        errors_of(with("/spec/versions/0/deprecationWarning", json!("x"))),
        [
            "spec.versions[0].deprecationWarning: Invalid value: \"x\": can only be set for deprecated versions"
        ]
    );
    assert_eq!(
        errors_of(with("/spec/conversion", json!({"strategy": "Webhook"}))),
        [
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
            "spec.conversion.conversionReviewVersions: Required value"
        ]
    );
}

#[test]
fn columns_and_subresources() {
    let columns = json!([{"name": "", "type": "foo", "jsonPath": "x"}, {"name": "a", "jsonPath": ""}]);
    assert_eq!(
        errors_of(with("/spec/versions/0/additionalPrinterColumns", columns)),
        [
            "spec.additionalPrinterColumns[0].name: Required value",
            "spec.additionalPrinterColumns[0].type: Invalid value: \"foo\": must be one of boolean,date,integer,number,string",
            "spec.additionalPrinterColumns[0].JSONPath: Invalid value: \"x\": must be a simple json path starting with .",
            "spec.additionalPrinterColumns[1].type: Required value: must be one of boolean,date,integer,number,string",
            "spec.additionalPrinterColumns[1].JSONPath: Required value"
        ]
    );
    let scale = json!({"scale": {"specReplicasPath": "x", "statusReplicasPath": ""}});
    assert_eq!(
        errors_of(with("/spec/versions/0/subresources", scale)),
        [
            "spec.subresources.scale.specReplicasPath: Invalid value: \"x\": must be a simple json path starting with .",
            "spec.subresources.scale.statusReplicasPath: Required value"
        ]
    );
    let fields = json!([{"jsonPath": ".spec.zz"}, {"jsonPath": ".spec"}, {"jsonPath": ""}, {"jsonPath": ".metadata.name"}]);
    assert_eq!(
        errors_of(with("/spec/versions/0/selectableFields", fields)),
        [
            "spec.selectableFields[0].jsonPath: Invalid value: \".spec.zz\": is an invalid path: does not refer to a valid field",
            "spec.selectableFields[1].jsonPath: Invalid value: \".spec\": must point to a field of type string, boolean or \
             integer. Enum string fields and strings with formats are allowed.",
            "spec.selectableFields[2].jsonPath: Required value",
            "spec.selectableFields[3].jsonPath: Invalid value: \".metadata.name\": is an invalid path: does not refer to a \
             valid field"
        ]
    );
}

#[test]
fn schemas() {
    let string = json!({"type": "string"});
    let object = |a: Value| json!({"type": "object", "properties": {"a": a}});
    let list = |items: Value, extra: Value| {
        let mut list = json!({"type": "array", "items": items});
        for (k, v) in extra.as_object().expect("map") {
            list[k] = v.clone();
        }
        list
    };
    let (lt, lmk) = ("x-kubernetes-list-type", "x-kubernetes-list-map-keys");
    let table: &[(Value, &[&str])] = &[
        (json!({}), &[".type: Required value: must not be empty for specified object fields"]),
        (object(json!({"type": "array"})), &[".properties[a].items: Required value: must be specified"]),
        (
            object(list(json!({}), json!({}))),
            &[".properties[a].items.type: Required value: must not be empty for specified array items"],
        ),
        (
            json!({"type": "foo"}),
            &[
                ".type: Unsupported value: \"foo\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
            ],
        ),
        (
            json!({"type": "object", "properties": {"a": string}, "additionalProperties": string}),
            &[".additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"],
        ),
        (json!({"type": "object", "additionalProperties": false}), &[]),
        (
            list(string.clone(), json!({"uniqueItems": true})),
            &[
                ".uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
            ],
        ),
        (json!({"$ref": "x"}), &[".$ref: Forbidden: $ref is not supported"]),
        (
            json!({"type": "object", "patternProperties": {"a": string}}),
            &[".patternProperties: Forbidden: patternProperties is not supported"],
        ),
        (
            list(object(string.clone()), json!({lmk: ["a"]})),
            &[
                ".x-kubernetes-list-type: Required value: must be map if x-kubernetes-list-map-keys is non-empty",
            ],
        ),
        (
            list(object(string.clone()), json!({lt: "map"})),
            &[
                ".x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
            ],
        ),
        (
            list(object(string.clone()), json!({lt: "map", lmk: ["a"]})),
            &[
                ".items.properties[a].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            ],
        ),
        (
            list(object(string.clone()), json!({lt: "map", lmk: ["z"]})),
            &[
                ".x-kubernetes-list-map-keys: Invalid value: [\"z\"]: entries must all be names of item properties",
            ],
        ),
        (
            list(string.clone(), json!({lt: "map", lmk: ["z"]})),
            &[
                ".items.type: Invalid value: \"string\": must be object if parent array's x-kubernetes-list-type is map",
            ],
        ),
        (
            list(string.clone(), json!({lt: "foo"})),
            &[
                ".x-kubernetes-list-type: Unsupported value: \"foo\": supported values: \"atomic\", \"set\", \"map\"",
            ],
        ),
        (
            json!({"type": "string", lt: "set"}),
            &[".type: Invalid value: \"string\": must be array if x-kubernetes-list-type is specified"],
        ),
        (
            list(object(string.clone()), json!({lt: "set"})),
            &[
                ".items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
            ],
        ),
        (
            json!({"type": "object", "x-kubernetes-map-type": "foo"}),
            &[
                ".x-kubernetes-map-type: Unsupported value: \"foo\": supported values: \"atomic\", \"granular\"",
            ],
        ),
        (
            object(json!({"type": "string", "default": 1})),
            &[
                ".properties[a].default: Invalid value: \"integer\":  in body must be of type string: \"integer\"",
            ],
        ),
        (
            object(json!({"type": "string", "default": "c", "enum": ["a"]})),
            &[".properties[a].default: Unsupported value: \"c\": supported values: \"a\""],
        ),
        (
            json!({"type": "object", "properties": {"a": string}, "default": {"b": 1}}),
            &[".default: Invalid value: {\"b\":1}: must not have unknown fields"],
        ),
        (object(json!({"type": "string", "default": null})), &[]),
        (
            json!({"type": "object", "anyOf": [{"type": "object"}]}),
            &[".anyOf[0].type: Forbidden: must be empty to be structural"],
        ),
        (
            json!({"type": "object", "properties": {"a": string}, "allOf": [{"properties": {"a": {"default": "x", "description": "x"}}}]}),
            &[
                ".allOf[0].properties[a].default: Forbidden: must be undefined to be structural",
                ".allOf[0].properties[a].description: Forbidden: must be empty to be structural",
            ],
        ),
        (
            object(json!({"type": "string", "pattern": "("})),
            &[
                ".properties[a].pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: error parsing regexp: missing closing ): `(`",
            ],
        ),
        (
            object(
                json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
            ),
            &[],
        ),
        (
            object(json!({"type": "object", "x-kubernetes-embedded-resource": true})),
            &[
                ".properties[a].properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
            ],
        ),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false}),
            &[".x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined"],
        ),
        (
            json!({"type": "object", "x-kubernetes-validations": [{"rule": ""}]}),
            &[".x-kubernetes-validations[0].rule: Required value: rule is not specified"],
        ),
        (
            json!({"type": "object", "x-kubernetes-validations": [{"rule": "true", "reason": "X"}]}),
            &[
                ".x-kubernetes-validations[0].reason: Unsupported value: \"X\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\"",
            ],
        ),
        (
            json!({"type": "object", "x-kubernetes-validations": [{"rule": "true", "fieldPath": ".zz"}]}),
            &[".x-kubernetes-validations[0].fieldPath: Invalid value: \".zz\": must be a valid path"],
        ),
        (
            json!({"type": "object", "x-kubernetes-validations": [{"rule": "true", "message": "a\nb"}]}),
            &[".x-kubernetes-validations[0].message: Invalid value: \"a\\nb\": must not contain line breaks"],
        ),
        (
            json!({"type": "object", "x-kubernetes-validations": [{"rule": "true", "optionalOldSelf": true}]}),
            &[
                ".x-kubernetes-validations[0].optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule",
            ],
        ),
    ];
    for (schema, want) in table {
        let want: Vec<String> =
            want.iter().map(|w| format!("spec.validation.openAPIV3Schema.properties[spec]{w}")).collect();
        assert_eq!(spec_schema(schema.clone()), want, "{schema}");
    }
}

#[test]
fn the_root_of_a_schema() {
    let at = "spec.validation.openAPIV3Schema";
    let root = |schema: Value| errors_of(with("/spec/versions/0/schema/openAPIV3Schema", schema));
    assert_eq!(
        root(json!({"type": "string"})),
        [format!("{at}.type: Invalid value: \"string\": must be object at the root")]
    );
    assert_eq!(root(json!({})), [format!("{at}.type: Required value: must not be empty at the root")]);
    assert_eq!(
        root(json!({"type": "object", "additionalProperties": {"type": "string"}})),
        [format!("{at}.additionalProperties: Forbidden: must not be used at the root")]
    );
    assert_eq!(
        root(json!({"type": "object", "nullable": true})),
        [format!("{at}.nullable: Forbidden: nullable cannot be true at the root")]
    );
    assert_eq!(
        root(
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}})
        ),
        [format!(
            "{at}.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified"
        )]
    );
    assert!(root(json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}}}})).is_empty());
    assert_eq!(
        root(json!({"type": "object", "default": {}})),
        [format!("{at}.default.apiVersion: Required value"), format!("{at}.default.kind: Required value")]
    );
}

#[test]
fn what_cannot_change() {
    let mut old = base();
    default_crd(&mut old);
    old["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
    let mut new = old.clone();
    new["spec"]["scope"] = json!("Cluster");
    new["spec"]["names"]["kind"] = json!("Bar");
    new["spec"]["versions"][0]["name"] = json!("v2");
    let errors: Vec<String> = validate_crd(&new, Some(&old)).iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "spec.scope: Invalid value: \"Cluster\": field is immutable",
            "spec.names.kind: Invalid value: \"Bar\": field is immutable",
            "status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions; v1 was previously a storage \
             version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v1 \
             and removes v1 from status.storedVersions"
        ]
    );
}

#[test]
fn unknown_formats_are_warned_of() {
    let format = json!({"type": "object", "properties": {"a": {"type": "string", "format": "zz"},
        "b": {"type": "string", "format": "date-time"}, "c": {"type": "integer", "format": "int32"}}});
    let crd = with("/spec/versions/0/schema/openAPIV3Schema/properties/spec", format);
    assert_eq!(warnings(&crd), ["unrecognized format \"zz\""]);
}
