//! CustomResourceDefinitions and the resources they define.

use agentcube_testkit::tape::MERGE_PATCH;
use agentcube_testkit::{Reply, Request, Tape};
use http::Method;
use serde_json::{Value, json};

use crate::cases::{Result, cases};
use crate::fixtures::{CRDS, WIDGET_CRD, WIDGETS, widget, widget_crd, widget_crd_with};

cases!("crd":
    becomes_established, wrong_name, no_versions, two_storage_versions, bad_schema_types, needs_structure,
    bad_default, bad_list_keys, bad_printer_column, validates_types, validates_ranges, validates_strings,
    validates_required, validates_enum, validates_arrays, validates_many_errors, prunes, keeps_preserved,
    defaults, defaults_nested, int_or_string, nullable, cel_rule, cel_transition, cel_message_expression,
    cel_field_path, cel_bad_rule, status_apart, no_status_subresource, generation_rules, scale_subresource,
    two_versions, unserved_version, delete_removes_objects, printer_columns, short_names_in_discovery,
    metadata_is_checked, embedded_resource, additional_properties, selectable_fields, conflicting_names,
    cluster_scoped, update_schema, list_kind, cel_immutable, unknown_api_group, one_of, list_map_duplicates,
    formats, generate_name, cel_quantity_and_format, update_missing_version, delete_answer,
);

fn at(base: &str, name: &str) -> String {
    format!("{base}/{name}")
}

/// A refused definition is only worth its answer.
async fn refused(t: &mut Tape, crd: Value) -> Result {
    t.remove_later(&at(CRDS, WIDGET_CRD));
    t.post(CRDS, crd).await?;
    Ok(())
}

/// Defines widgets with these spec properties and creates each of the objects, recorded.
async fn try_specs(t: &mut Tape, properties: Value, specs: &[Value]) -> Result {
    t.define(widget_crd(properties), WIDGETS).await?;
    for (index, spec) in specs.iter().enumerate() {
        t.post(WIDGETS, widget(&format!("w{index}"), spec.clone())).await?;
    }
    Ok(())
}

async fn becomes_established(t: &mut Tape) -> Result {
    t.remove_later(&at(CRDS, WIDGET_CRD));
    t.post(CRDS, widget_crd(json!({"size": {"type": "integer"}}))).await?;
    t.eventually(&at(CRDS, WIDGET_CRD), |reply| {
        reply.value()["status"]["conditions"].as_array().is_some_and(|conditions| {
            conditions
                .iter()
                .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
        })
    })
    .await?;
    t.wait(WIDGETS, Reply::is_success).await?;
    t.get(WIDGETS).await?;
    Ok(())
}

async fn wrong_name(t: &mut Tape) -> Result {
    let mut crd = widget_crd(json!({}));
    crd["metadata"]["name"] = json!("other.{ns}.example.com");
    refused(t, crd).await
}

async fn no_versions(t: &mut Tape) -> Result {
    let mut crd = widget_crd(json!({}));
    crd["spec"]["versions"] = json!([]);
    refused(t, crd).await
}

async fn two_storage_versions(t: &mut Tape) -> Result {
    let mut crd = widget_crd(json!({}));
    let mut second = crd["spec"]["versions"][0].clone();
    crd["spec"]["versions"] = json!([second, null]);
    second["name"] = json!("v2");
    crd["spec"]["versions"][1] = second;
    refused(t, crd).await
}

async fn bad_schema_types(t: &mut Tape) -> Result {
    refused(t, widget_crd(json!({"size": {"type": "number-ish"}}))).await?;
    refused(t, widget_crd(json!({"list": {"type": "array"}}))).await?;
    refused(t, widget_crd(json!({"text": {"type": "string", "pattern": "("}}))).await
}

async fn needs_structure(t: &mut Tape) -> Result {
    refused(t, widget_crd_with(json!({"properties": {"spec": {"type": "object"}}}))).await?;
    refused(t, widget_crd(json!({"size": {"description": "no type"}}))).await?;
    let mut crd = widget_crd(json!({}));
    crd["spec"]["versions"][0]["schema"] = Value::Null;
    refused(t, crd).await
}

async fn bad_default(t: &mut Tape) -> Result {
    refused(t, widget_crd(json!({"size": {"type": "integer", "default": "big"}}))).await?;
    refused(t, widget_crd(json!({"size": {"type": "integer", "maximum": 3, "default": 4}}))).await
}

async fn bad_list_keys(t: &mut Tape) -> Result {
    let list = |extra: Value| {
        let mut list =
            json!({"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}});
        for (key, value) in extra.as_object().into_iter().flatten() {
            list[key] = value.clone();
        }
        json!({"list": list})
    };
    refused(t, widget_crd(list(json!({"x-kubernetes-list-type": "map"})))).await?;
    refused(
        t,
        widget_crd(list(json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["none"]}))),
    )
    .await?;
    refused(t, widget_crd(list(json!({"x-kubernetes-list-type": "odd"})))).await
}

async fn bad_printer_column(t: &mut Tape) -> Result {
    let mut crd = widget_crd(json!({}));
    crd["spec"]["versions"][0]["additionalPrinterColumns"] =
        json!([{"name": "X", "type": "odd", "jsonPath": "spec.x"}]);
    refused(t, crd).await
}

async fn validates_types(t: &mut Tape) -> Result {
    let properties = json!({
        "count": {"type": "integer"}, "ratio": {"type": "number"}, "text": {"type": "string"},
        "flag": {"type": "boolean"}, "list": {"type": "array", "items": {"type": "string"}}, "map": {"type": "object"},
    });
    let specs = [
        json!({"count": 1, "ratio": 1.5, "text": "x", "flag": true, "list": ["a"], "map": {}}),
        json!({"count": "1"}),
        json!({"count": 1.5}),
        json!({"ratio": "x"}),
        json!({"text": 1}),
        json!({"flag": "true"}),
        json!({"list": "a"}),
        json!({"list": [1]}),
        json!({"map": []}),
        json!({"text": null}),
        json!("not an object"),
    ];
    try_specs(t, properties, &specs).await
}

async fn validates_ranges(t: &mut Tape) -> Result {
    let properties = json!({
        "low": {"type": "integer", "minimum": 1},
        "high": {"type": "integer", "maximum": 10},
        "open": {"type": "integer", "minimum": 1, "exclusiveMinimum": true, "maximum": 10, "exclusiveMaximum": true},
        "step": {"type": "integer", "multipleOf": 5},
        "small": {"type": "integer", "format": "int32"},
    });
    let specs = [
        json!({"low": 1, "high": 10, "open": 2, "step": 10, "small": 1}),
        json!({"low": 0}),
        json!({"high": 11}),
        json!({"open": 1}),
        json!({"open": 10}),
        json!({"step": 7}),
        json!({"small": 3_000_000_000_u32}),
    ];
    try_specs(t, properties, &specs).await
}

async fn validates_strings(t: &mut Tape) -> Result {
    let properties = json!({
        "short": {"type": "string", "maxLength": 3},
        "long": {"type": "string", "minLength": 3},
        "shape": {"type": "string", "pattern": "^[a-z]+$"},
    });
    let specs = [
        json!({"short": "äöü", "long": "abc", "shape": "abc"}),
        json!({"short": "abcd"}),
        json!({"long": "ab"}),
        json!({"shape": "A1"}),
    ];
    try_specs(t, properties, &specs).await
}

async fn formats(t: &mut Tape) -> Result {
    let properties = json!({
        "when": {"type": "string", "format": "date-time"},
        "bytes": {"type": "string", "format": "byte"},
        "ip": {"type": "string", "format": "ipv4"},
        "uri": {"type": "string", "format": "uri"},
        "odd": {"type": "string", "format": "made-up"},
    });
    let specs = [
        json!({"when": "2001-02-03T04:05:06Z", "bytes": "dg==", "ip": "1.2.3.4", "uri": "https://x.example", "odd": "any"}),
        json!({"when": "yesterday"}),
        json!({"bytes": "?"}),
        json!({"ip": "1.2.3"}),
    ];
    try_specs(t, properties, &specs).await
}

async fn validates_required(t: &mut Tape) -> Result {
    let mut crd = widget_crd(json!({"name": {"type": "string"}, "size": {"type": "integer"}}));
    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["required"] = json!(["spec"]);
    schema["properties"]["spec"]["required"] = json!(["name", "size"]);
    t.define(crd, WIDGETS).await?;
    t.post(WIDGETS, widget("a", json!({"name": "x"}))).await?;
    t.post(WIDGETS, widget("a", json!({}))).await?;
    let mut bare = widget("a", Value::Null);
    bare.as_object_mut().map(|widget| widget.remove("spec"));
    t.post(WIDGETS, bare).await?;
    Ok(())
}

async fn validates_enum(t: &mut Tape) -> Result {
    let properties = json!({"mode": {"type": "string", "enum": ["On", "Off"]}});
    try_specs(t, properties, &[json!({"mode": "On"}), json!({"mode": "Maybe"}), json!({"mode": 1})]).await
}

async fn validates_arrays(t: &mut Tape) -> Result {
    let properties = json!({
        "few": {"type": "array", "maxItems": 2, "items": {"type": "string"}},
        "some": {"type": "array", "minItems": 1, "items": {"type": "string"}},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "map": {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "integer"}},
    });
    let specs = [
        json!({"few": ["a", "b", "c"]}),
        json!({"some": []}),
        json!({"set": ["a", "b", "a"]}),
        json!({"map": {"a": 1, "b": 2}}),
        json!({"map": {"a": "x"}}),
    ];
    try_specs(t, properties, &specs).await
}

async fn list_map_duplicates(t: &mut Tape) -> Result {
    let properties = json!({"ports": {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
    }});
    try_specs(t, properties, &[json!({"ports": [{"name": "a"}, {"name": "a"}]}), json!({"ports": [{}]})])
        .await
}

async fn validates_many_errors(t: &mut Tape) -> Result {
    let properties = json!({"a": {"type": "integer", "minimum": 5}, "b": {"type": "array", "items": {"type": "string", "maxLength": 1}}});
    try_specs(t, properties, &[json!({"b": ["aa", "b", "cc"]})]).await
}

async fn one_of(t: &mut Tape) -> Result {
    let mut crd = widget_crd(json!({"a": {"type": "string"}, "b": {"type": "string"}}));
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["oneOf"] =
        json!([{"required": ["a"]}, {"required": ["b"]}]);
    t.define(crd, WIDGETS).await?;
    for (name, spec) in [("x", json!({"a": "1"})), ("y", json!({})), ("z", json!({"a": "1", "b": "2"}))] {
        t.post(WIDGETS, widget(name, spec)).await?;
    }
    Ok(())
}

async fn prunes(t: &mut Tape) -> Result {
    t.define(
        widget_crd(json!({"known": {"type": "object", "properties": {"x": {"type": "integer"}}}})),
        WIDGETS,
    )
    .await?;
    let mut body = widget("a", json!({"known": {"x": 1, "y": 2}, "unknown": true}));
    body["extra"] = json!(1);
    t.post(WIDGETS, body).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a"), json!({"spec": {"more": 1, "known": {"z": 1}}})).await?;
    Ok(())
}

async fn keeps_preserved(t: &mut Tape) -> Result {
    let properties = json!({"free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
        "known": {"type": "object", "properties": {"x": {"type": "integer"}}},
    }}});
    try_specs(t, properties, &[json!({"free": {"any": [1, {"thing": null}], "known": {"x": 1, "y": 2}}})])
        .await
}

async fn defaults(t: &mut Tape) -> Result {
    let properties = json!({
        "size": {"type": "integer", "default": 3}, "mode": {"type": "string", "default": "On"},
        "list": {"type": "array", "items": {"type": "string"}, "default": ["a"]},
    });
    try_specs(t, properties, &[json!({}), json!({"size": 1}), json!({"size": null})]).await
}

async fn defaults_nested(t: &mut Tape) -> Result {
    let inner = json!({"type": "object", "properties": {"x": {"type": "integer", "default": 7}}});
    let mut with_default = inner.clone();
    with_default["default"] = json!({});
    let properties =
        json!({"plain": inner, "filled": with_default, "list": {"type": "array", "items": inner}});
    try_specs(t, properties, &[json!({}), json!({"plain": {}, "list": [{}, {"x": 1}]})]).await
}

async fn int_or_string(t: &mut Tape) -> Result {
    let properties = json!({"port": {"x-kubernetes-int-or-string": true}});
    try_specs(t, properties, &[json!({"port": 80}), json!({"port": "http"}), json!({"port": true})]).await
}

async fn nullable(t: &mut Tape) -> Result {
    let properties = json!({
        "maybe": {"type": "string", "nullable": true}, "filled": {"type": "string", "nullable": true, "default": "x"},
        "strict": {"type": "string", "default": "y"},
    });
    try_specs(t, properties, &[json!({"maybe": null, "filled": null, "strict": null})]).await
}

async fn additional_properties(t: &mut Tape) -> Result {
    let properties = json!({"limits": {"type": "object", "additionalProperties": {
        "type": "object", "properties": {"max": {"type": "integer", "default": 9}},
    }}});
    try_specs(
        t,
        properties,
        &[json!({"limits": {"a": {"max": 1, "odd": 2}, "b": {}}}), json!({"limits": {"a": 1}})],
    )
    .await
}

fn with_rules(properties: Value, rules: Value) -> Value {
    let mut crd = widget_crd(properties);
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] =
        rules;
    crd
}

fn bounds() -> Value {
    json!({"min": {"type": "integer"}, "max": {"type": "integer"}})
}

async fn cel_rule(t: &mut Tape) -> Result {
    let rules = json!([{"rule": "self.min <= self.max", "message": "min must not exceed max"}]);
    t.define(with_rules(bounds(), rules), WIDGETS).await?;
    t.post(WIDGETS, widget("a", json!({"min": 1, "max": 2}))).await?;
    t.post(WIDGETS, widget("b", json!({"min": 3, "max": 2}))).await?;
    t.post(WIDGETS, widget("c", json!({"min": 3}))).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a"), json!({"spec": {"min": 5}})).await?;
    Ok(())
}

async fn cel_transition(t: &mut Tape) -> Result {
    let rules = json!([{"rule": "self.max >= oldSelf.max", "message": "max never shrinks"}]);
    t.define(with_rules(bounds(), rules), WIDGETS).await?;
    t.post(WIDGETS, widget("a", json!({"max": 2}))).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a"), json!({"spec": {"max": 1}})).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a"), json!({"spec": {"max": 3}})).await?;
    Ok(())
}

async fn cel_immutable(t: &mut Tape) -> Result {
    let properties = json!({"fixed": {
        "type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed is immutable"}],
    }});
    t.define(widget_crd(properties), WIDGETS).await?;
    t.setup(WIDGETS, widget("a", json!({"fixed": "x"}))).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a"), json!({"spec": {"fixed": "y"}})).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a"), json!({"spec": {"fixed": null}})).await?;
    Ok(())
}

async fn cel_message_expression(t: &mut Tape) -> Result {
    let rules = json!([
        {"rule": "self.min <= self.max", "messageExpression": "self.min > 5 ? 'min is far too big' : 'min exceeds ' + 'max'"},
        {"rule": "self.max < 100"},
    ]);
    t.define(with_rules(bounds(), rules), WIDGETS).await?;
    t.post(WIDGETS, widget("a", json!({"min": 3, "max": 2}))).await?;
    t.post(WIDGETS, widget("b", json!({"min": 3, "max": 200}))).await?;
    Ok(())
}

async fn cel_field_path(t: &mut Tape) -> Result {
    let rules = json!([
        {"rule": "self.min <= self.max", "message": "bad", "fieldPath": ".min", "reason": "FieldValueForbidden"},
    ]);
    t.define(with_rules(bounds(), rules), WIDGETS).await?;
    t.post(WIDGETS, widget("a", json!({"min": 3, "max": 2}))).await?;
    Ok(())
}

async fn cel_quantity_and_format(t: &mut Tape) -> Result {
    let properties = json!({
        "amount": {"type": "string", "x-kubernetes-validations": [{"rule": "isQuantity(self) && quantity(self).isGreaterThan(quantity('1Mi'))", "message": "too little"}]},
        "wait": {"type": "string", "x-kubernetes-validations": [{"rule": "duration(self) > duration('1s')", "message": "too short"}]},
        "names": {"type": "array", "items": {"type": "string"}, "x-kubernetes-validations": [{"rule": "self.all(n, n.startsWith('x'))", "message": "must start with x"}]},
        "url": {"type": "string", "x-kubernetes-validations": [{"rule": "isURL(self)", "message": "not a URL"}]},
    });
    let specs = [
        json!({"amount": "2Gi", "wait": "1m30s", "names": ["xa", "xb"], "url": "https://a.example/x"}),
        json!({"amount": "1Ki"}),
        json!({"amount": "x"}),
        json!({"wait": "1ms"}),
        json!({"names": ["a"]}),
        json!({"url": "::"}),
    ];
    try_specs(t, properties, &specs).await
}

async fn cel_bad_rule(t: &mut Tape) -> Result {
    refused(t, with_rules(bounds(), json!([{"rule": "self.none > 1"}]))).await?;
    refused(t, with_rules(bounds(), json!([{"rule": "self.min"}]))).await?;
    refused(t, with_rules(bounds(), json!([{"rule": "self.min >"}]))).await?;
    refused(t, with_rules(bounds(), json!([{"rule": ""}]))).await
}

async fn status_apart(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({"size": {"type": "integer"}})), WIDGETS).await?;
    let mut body = widget("a", json!({"size": 1}));
    body["status"] = json!({"phase": "Sneaky"});
    let mut object = t.post(WIDGETS, body).await?.value();
    object["status"] = json!({"phase": "Ready"});
    object["spec"]["size"] = json!(9);
    object["metadata"]["labels"] = json!({"x": "y"});
    t.put(&at(WIDGETS, "a/status"), object).await?;
    t.get(&at(WIDGETS, "a/status")).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a"), json!({"status": {"phase": "Sneaky"}})).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a/status"), json!({"spec": {"size": 5}, "status": {"more": 1}}))
        .await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "none/status"), json!({"status": {}})).await?;
    t.post(&at(WIDGETS, "a/status"), json!({})).await?;
    t.delete(&at(WIDGETS, "a/status")).await?;
    Ok(())
}

async fn no_status_subresource(t: &mut Tape) -> Result {
    let mut crd = widget_crd(json!({"size": {"type": "integer"}}));
    crd["spec"]["versions"][0]["subresources"] = json!({});
    t.define(crd, WIDGETS).await?;
    let mut body = widget("a", json!({"size": 1}));
    body["status"] = json!({"phase": "Kept"});
    t.post(WIDGETS, body).await?;
    t.get(&at(WIDGETS, "a/status")).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a"), json!({"status": {"phase": "Changed"}})).await?;
    Ok(())
}

async fn generation_rules(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({"size": {"type": "integer"}})), WIDGETS).await?;
    t.post(WIDGETS, widget("a", json!({"size": 1}))).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a"), json!({"metadata": {"labels": {"x": "y"}}})).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a"), json!({"spec": {"size": 2}})).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a/status"), json!({"status": {"ok": true}})).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a"), json!({"metadata": {"finalizers": ["example.com/hold"]}}))
        .await?;
    t.delete(&at(WIDGETS, "a")).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a"), json!({"metadata": {"finalizers": null}})).await?;
    Ok(())
}

async fn scale_subresource(t: &mut Tape) -> Result {
    let mut crd = widget_crd(json!({"replicas": {"type": "integer"}}));
    crd["spec"]["versions"][0]["subresources"]["scale"] = json!({
        "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    });
    t.define(crd, WIDGETS).await?;
    t.setup(WIDGETS, widget("a", json!({"replicas": 2}))).await?;
    let mut scale = t.get(&at(WIDGETS, "a/scale")).await?.value();
    t.patch(MERGE_PATCH, &at(WIDGETS, "a/status"), json!({"status": {"replicas": 2, "selector": "app=a"}}))
        .await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a/scale"), json!({"spec": {"replicas": 5}})).await?;
    t.put(&at(WIDGETS, "a/scale"), scale.clone()).await?;
    scale["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
    scale["spec"]["replicas"] = json!(-1);
    t.put(&at(WIDGETS, "a/scale"), scale).await?;
    t.get(&at(WIDGETS, "a")).await?;
    Ok(())
}

async fn two_versions(t: &mut Tape) -> Result {
    let mut crd = widget_crd(json!({"size": {"type": "integer"}}));
    let mut second = crd["spec"]["versions"][0].clone();
    crd["spec"]["versions"] = json!([second, null]);
    second["name"] = json!("v2alpha1");
    second["storage"] = json!(false);
    crd["spec"]["versions"][1] = second;
    t.define(crd, WIDGETS).await?;
    t.setup(WIDGETS, widget("a", json!({"size": 1}))).await?;
    let other = "/apis/{ns}.example.com/v2alpha1/namespaces/{ns}/widgets";
    t.wait(other, Reply::is_success).await?;
    t.get(&at(other, "a")).await?;
    t.get(other).await?;
    t.patch(MERGE_PATCH, &at(other, "a"), json!({"spec": {"size": 2}})).await?;
    t.post(other, widget("b", json!({"size": 1}))).await?;
    t.get("/apis/{ns}.example.com").await?;
    Ok(())
}

async fn unserved_version(t: &mut Tape) -> Result {
    let mut crd = widget_crd(json!({}));
    let mut second = crd["spec"]["versions"][0].clone();
    crd["spec"]["versions"] = json!([second, null]);
    second["name"] = json!("v2");
    second["storage"] = json!(false);
    second["served"] = json!(false);
    crd["spec"]["versions"][1] = second;
    t.define(crd, WIDGETS).await?;
    t.get("/apis/{ns}.example.com/v2/namespaces/{ns}/widgets").await?;
    Ok(())
}

async fn delete_removes_objects(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({"size": {"type": "integer"}})), WIDGETS).await?;
    t.setup(WIDGETS, widget("a", json!({"size": 1}))).await?;
    let delete = Request::new(Method::DELETE, at(CRDS, WIDGET_CRD));
    t.aside(delete).await?;
    t.eventually(&at(CRDS, WIDGET_CRD), |reply| reply.status == 404).await?;
    t.wait(WIDGETS, |reply| reply.status == 404).await?;
    t.get(WIDGETS).await?;
    t.define(widget_crd(json!({"size": {"type": "integer"}})), WIDGETS).await?;
    t.get(WIDGETS).await?;
    Ok(())
}

async fn delete_answer(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({})), WIDGETS).await?;
    t.delete(&at(CRDS, WIDGET_CRD)).await?;
    Ok(())
}

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

async fn printer_columns(t: &mut Tape) -> Result {
    let mut crd = widget_crd(
        json!({"size": {"type": "integer"}, "when": {"type": "string"}, "items": {"type": "array", "items": {"type": "string"}}}),
    );
    crd["spec"]["versions"][0]["additionalPrinterColumns"] = json!([
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "description": "how big"},
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
        {"name": "First", "type": "string", "jsonPath": ".spec.items[0]", "priority": 1},
        {"name": "All", "type": "string", "jsonPath": ".spec.items[*]"},
        {"name": "When", "type": "date", "jsonPath": ".spec.when"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]);
    t.define(crd, WIDGETS).await?;
    t.setup(WIDGETS, widget("a", json!({"size": 3, "items": ["x", "y"], "when": "bad time"}))).await?;
    t.setup(WIDGETS, widget("b", json!({}))).await?;
    let ready = json!({"status": {"conditions": [{"type": "Other", "status": "x"}, {"type": "Ready", "status": "True"}]}});
    t.aside(Request::new(Method::PATCH, at(WIDGETS, "a/status")).body(MERGE_PATCH, ready.to_string()))
        .await?;
    t.get_as(WIDGETS, TABLE).await?;
    t.get_as(&at(WIDGETS, "a"), TABLE).await?;
    Ok(())
}

async fn short_names_in_discovery(t: &mut Tape) -> Result {
    let mut crd = widget_crd(json!({}));
    crd["spec"]["versions"][0]["subresources"]["scale"] =
        json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    t.define(crd, WIDGETS).await?;
    t.wait("/apis/{ns}.example.com/v1", Reply::is_success).await?;
    t.get("/apis/{ns}.example.com/v1").await?;
    t.get("/apis/{ns}.example.com").await?;
    t.get("/apis/{ns}.example.com/").await?;
    Ok(())
}

async fn metadata_is_checked(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({})), WIDGETS).await?;
    t.post(WIDGETS, widget("Bad_Name", json!({}))).await?;
    let mut body = widget("a", json!({}));
    body["metadata"]["labels"] = json!({"x": "bad value!"});
    t.post(WIDGETS, body).await?;
    let mut body = widget("a", json!({}));
    body["metadata"]["labels"] = json!({"x": 1});
    t.post(WIDGETS, body).await?;
    let mut body = widget("a", json!({}));
    body["metadata"]["nonsense"] = json!({"x": 1});
    t.post(WIDGETS, body).await?;
    Ok(())
}

async fn generate_name(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({})), WIDGETS).await?;
    let mut body = widget("", json!({}));
    body["metadata"] = json!({"generateName": "w-"});
    t.post(WIDGETS, body).await?;
    Ok(())
}

async fn embedded_resource(t: &mut Tape) -> Result {
    let properties = json!({"template": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}});
    let specs = [
        json!({"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "odd": 1}, "spec": {"any": 1}}}),
        json!({"template": {"kind": "Pod"}}),
    ];
    try_specs(t, properties, &specs).await
}

async fn selectable_fields(t: &mut Tape) -> Result {
    let mut crd = widget_crd(json!({"color": {"type": "string"}}));
    crd["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.color"}]);
    t.define(crd, WIDGETS).await?;
    t.setup(WIDGETS, widget("a", json!({"color": "red"}))).await?;
    t.setup(WIDGETS, widget("b", json!({"color": "blue"}))).await?;
    t.get(&format!("{WIDGETS}?fieldSelector=spec.color%3Dred")).await?;
    t.get(&format!("{WIDGETS}?fieldSelector=spec.size%3D1")).await?;
    t.get(&format!("{WIDGETS}?fieldSelector=metadata.name%3Db")).await?;
    Ok(())
}

async fn conflicting_names(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({})), WIDGETS).await?;
    let mut crd = widget_crd(json!({}));
    crd["metadata"]["name"] = json!("gadgets.{ns}.example.com");
    crd["spec"]["names"] = json!({"kind": "Widget", "plural": "gadgets"});
    t.remove_later(&at(CRDS, "gadgets.{ns}.example.com"));
    t.setup(CRDS, crd).await?;
    t.eventually(&at(CRDS, "gadgets.{ns}.example.com"), |reply| {
        reply.value()["status"]["conditions"].as_array().is_some_and(|conditions| conditions.len() >= 2)
    })
    .await?;
    Ok(())
}

async fn cluster_scoped(t: &mut Tape) -> Result {
    let list = "/apis/{ns}.example.com/v1/widgets";
    let mut crd = widget_crd(json!({}));
    crd["spec"]["scope"] = json!("Cluster");
    t.define(crd, list).await?;
    let mut body = widget("a", json!({}));
    t.post(list, body.clone()).await?;
    body["metadata"].as_object_mut().map(|metadata| metadata.remove("namespace"));
    t.post(list, body).await?;
    t.get(&at(list, "a")).await?;
    t.get(WIDGETS).await?;
    t.delete(&at(list, "a")).await?;
    Ok(())
}

async fn update_schema(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({"size": {"type": "integer"}})), WIDGETS).await?;
    t.setup(WIDGETS, widget("a", json!({"size": 50}))).await?;
    let add = json!([{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/maximum", "value": 10}]);
    t.patch(agentcube_testkit::tape::JSON_PATCH, &at(CRDS, WIDGET_CRD), add).await?;
    let probe = widget("probe", json!({"size": 60}));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let request = Request::new(Method::POST, format!("{WIDGETS}?dryRun=All")).json(&probe);
        if t.aside(request).await?.status == 422 {
            break;
        }
        anyhow::ensure!(std::time::Instant::now() < deadline, "the new schema never took effect");
    }
    t.post(WIDGETS, widget("b", json!({"size": 60}))).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a"), json!({"metadata": {"labels": {"x": "y"}}})).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a"), json!({"spec": {"size": 51}})).await?;
    Ok(())
}

async fn update_missing_version(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({})), WIDGETS).await?;
    let mut crd = widget_crd(json!({}));
    crd["spec"]["group"] = json!("other.example.com");
    let version =
        t.aside(Request::new(Method::GET, at(CRDS, WIDGET_CRD))).await?.text("/metadata/resourceVersion")?;
    t.put(&at(CRDS, WIDGET_CRD), widget_crd(json!({}))).await?;
    crd["metadata"]["resourceVersion"] = json!(version);
    let request = Request::new(Method::PATCH, at(CRDS, WIDGET_CRD))
        .body(MERGE_PATCH, json!({"spec": {"scope": "Cluster"}}).to_string());
    t.send(request).await?;
    Ok(())
}

async fn list_kind(t: &mut Tape) -> Result {
    let mut crd = widget_crd(json!({}));
    crd["spec"]["names"] = json!({"kind": "Widget", "plural": "widgets"});
    t.define(crd, WIDGETS).await?;
    t.get(WIDGETS).await?;
    t.get("/apis/{ns}.example.com/v1/widgets").await?;
    t.delete(WIDGETS).await?;
    Ok(())
}

async fn unknown_api_group(t: &mut Tape) -> Result {
    t.get(WIDGETS).await?;
    t.get("/apis/{ns}.example.com/v1").await?;
    t.post(WIDGETS, widget("a", json!({}))).await?;
    Ok(())
}
