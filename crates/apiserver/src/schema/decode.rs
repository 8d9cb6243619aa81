//! JSON that does not fit a built-in kind: the error that Go's decoder gives, word for word.
//!
//! Go remembers the first value of a wrong type and goes on; a type with a decoder of its own (times,
//! quantities) ends the decoding at once.

use base64::Engine;
use serde_json::Value;

use super::gotypes::{inlined, named_type};
use super::parse::object_meta;
use super::{Link, MAX_DEPTH, Schema, Type, formats};

/// Why `value` cannot be read as the built-in `kind`; `None` if it can. `version` is without the group.
pub fn decode_error(kind: &str, version: &str, schema: &Schema, value: &Value) -> Option<String> {
    let error = go_error(schema, value)?;
    Some(format!("{kind} in version {version:?} cannot be handled as a {kind}: {error}"))
}

/// Why a value cannot be the `metadata` of a custom resource.
pub(super) fn metadata_error(metadata: &Value) -> Option<String> {
    go_error(object_meta(), metadata)
}

fn go_error(schema: &Schema, value: &Value) -> Option<String> {
    let mut decoder = Decoder { fields: Vec::new(), owner: None, first: None };
    match decoder.check(schema, value, 0) {
        Err(error) => Some(error),
        Ok(()) => decoder.first,
    }
}

struct Decoder<'a> {
    /// JSON names from the root to here, without indices and keys, as Go tracks them.
    fields: Vec<&'a str>,
    /// The short name of the innermost struct.
    owner: Option<&'a str>,
    first: Option<String>,
}

impl<'a> Decoder<'a> {
    fn check(&mut self, schema: &'a Schema, value: &Value, depth: usize) -> Result<(), String> {
        if value.is_null() || depth > MAX_DEPTH || schema.preserve_unknown_fields {
            return Ok(());
        }
        match short_name(schema) {
            Some("Time") => return self.time(value, "2006-01-02T15:04:05Z07:00"),
            Some("MicroTime") => return self.time(value, "2006-01-02T15:04:05.000000Z07:00"),
            Some("Quantity") => return quantity(value),
            Some("IntOrString") => return self.int_or_string(value),
            _ => {}
        }
        match (schema.ty, value) {
            (Some(Type::Object), Value::Object(map)) => {
                for (key, value) in map {
                    if let Some(link) = schema.properties.get(key) {
                        self.field(schema, key, link.get(), value, depth)?;
                    } else if let Some(link) = &schema.additional {
                        self.check(link.get(), value, depth + 1)?;
                    }
                }
                Ok(())
            }
            (Some(Type::Array), Value::Array(list)) => {
                let Some(items) = schema.items.as_ref().map(Link::get) else { return Ok(()) };
                list.iter().try_for_each(|item| self.check(items, item, depth + 1))
            }
            (Some(Type::String), Value::String(text)) => match schema.format.as_deref() {
                Some("byte") => bytes(text),
                _ => Ok(()),
            },
            (Some(Type::String), Value::Array(list)) if schema.format.as_deref() == Some("byte") => {
                // Go also takes bytes one by one.
                for item in list.iter().filter(|item| item.as_u64().is_none_or(|n| n >= 256)) {
                    self.mismatch(json_kind(item), "uint8");
                }
                Ok(())
            }
            (Some(Type::Integer), Value::Number(number)) => {
                let fits = match schema.format.as_deref() {
                    Some("int32") => number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
                    _ => number.is_i64(),
                };
                if !fits {
                    self.mismatch(&format!("number {number}"), &self.go_type(schema));
                }
                Ok(())
            }
            (Some(Type::Number), Value::Number(_)) | (Some(Type::Boolean), Value::Bool(_)) | (None, _) => {
                Ok(())
            }
            _ => {
                self.mismatch(json_kind(value), &self.go_type(schema));
                Ok(())
            }
        }
    }

    fn field(
        &mut self,
        owner: &'a Schema,
        name: &str,
        schema: &'a Schema,
        value: &Value,
        depth: usize,
    ) -> Result<(), String> {
        // The name as the schema holds it: it outlives the value.
        let Some((name, _)) = owner.properties.get_key_value(name) else { return Ok(()) };
        let before = (self.owner, self.fields.len());
        self.owner = short_name(owner).or(self.owner);
        if let Some(inline) = self.owner.and_then(|owner| inlined(owner, name)) {
            self.fields.push(inline);
        }
        self.fields.push(name);
        let result = self.check(schema, value, depth + 1);
        self.owner = before.0;
        self.fields.truncate(before.1);
        result
    }

    fn mismatch_text(&self, found: &str, wanted: &str) -> String {
        match self.owner {
            Some(owner) => format!(
                "json: cannot unmarshal {found} into Go struct field {owner}.{} of type {wanted}",
                self.fields.join(".")
            ),
            None => format!("json: cannot unmarshal {found} into Go value of type {wanted}"),
        }
    }

    fn mismatch(&mut self, found: &str, wanted: &str) {
        if self.first.is_none() {
            self.first = Some(self.mismatch_text(found, wanted));
        }
    }

    fn time(&self, value: &Value, layout: &str) -> Result<(), String> {
        match value {
            Value::String(text) => formats::go_time_error(text, layout).map_or(Ok(()), Err),
            other => Err(self.mismatch_text(json_kind(other), "string")),
        }
    }

    fn int_or_string(&self, value: &Value) -> Result<(), String> {
        match value {
            Value::String(_) => Ok(()),
            Value::Number(number) => match number.as_i64().map(i32::try_from) {
                Some(Ok(_)) => Ok(()),
                _ => Err(self.mismatch_text(&format!("number {number}"), "int32")),
            },
            other => Err(self.mismatch_text(json_kind(other), "int32")),
        }
    }

    /// What Go calls the type that the schema stands for, at the current field.
    fn go_type(&self, schema: &Schema) -> String {
        let named = || self.owner.and_then(|owner| named_type(owner, self.fields.last()?));
        match schema.ty {
            Some(Type::Array) => match schema.items.as_ref().map(Link::get) {
                Some(items) => format!("[]{}", self.go_type(items)),
                None => "[]interface {}".to_owned(),
            },
            Some(Type::Object) if schema.name.is_some() => qualified_name(schema),
            Some(Type::Object) => match (named(), schema.additional.as_ref().map(Link::get)) {
                (Some(named), _) => named.to_owned(),
                (None, Some(values)) => format!("map[string]{}", self.go_type(values)),
                (None, None) => "map[string]interface {}".to_owned(),
            },
            Some(Type::String) if schema.format.as_deref() == Some("byte") => "[]uint8".to_owned(),
            Some(Type::String) => named().unwrap_or("string").to_owned(),
            Some(Type::Integer) => schema.format.clone().unwrap_or_else(|| "int64".to_owned()),
            Some(Type::Number) => "float64".to_owned(),
            Some(Type::Boolean) => "bool".to_owned(),
            None => qualified_name(schema),
        }
    }
}

fn short_name(schema: &Schema) -> Option<&str> {
    schema.name.as_deref().and_then(|name| name.rsplit('.').next())
}

/// `v1.Container` of `io.k8s.api.core.v1.Container`.
fn qualified_name(schema: &Schema) -> String {
    let name = schema.name.as_deref().unwrap_or("interface {}");
    let start = name.rmatch_indices('.').nth(1).map_or(0, |(at, _)| at + 1);
    name[start..].to_owned()
}

fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn quantity(value: &Value) -> Result<(), String> {
    let fits = match value {
        Value::Number(_) => true,
        Value::String(text) => formats::is_quantity(text),
        _ => false,
    };
    let error = "quantities must match the regular expression \
                 '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    if fits { Ok(()) } else { Err(error.to_owned()) }
}

fn bytes(text: &str) -> Result<(), String> {
    use base64::DecodeError::{InvalidByte, InvalidLastSymbol, InvalidLength, InvalidPadding};
    // Go ignores line breaks in base64.
    let compact: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    match base64::engine::general_purpose::STANDARD.decode(&compact) {
        Ok(_) => Ok(()),
        Err(InvalidByte(at, _) | InvalidLastSymbol(at, _)) => {
            Err(format!("illegal base64 data at input byte {at}"))
        }
        Err(InvalidLength(_) | InvalidPadding) => {
            Err(format!("illegal base64 data at input byte {}", compact.len() / 4 * 4))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Definitions;
    use super::*;

    fn error(kind: &str, value: Value) -> Option<String> {
        let definitions = Definitions::builtin();
        let groups = ["core.v1", "apps.v1", "coordination.v1", "batch.v1"];
        let link = groups.iter().find_map(|group| definitions.get(&format!("io.k8s.api.{group}.{kind}")));
        let text = decode_error(kind, "v1", link.expect("known kind").get(), &value)?;
        let prefix = format!("{kind} in version \"v1\" cannot be handled as a {kind}: ");
        Some(text.strip_prefix(&prefix).expect("prefix").to_owned())
    }

    /// Each line was answered by a real API server.
    #[test]
    fn messages_are_those_of_the_real_server() {
        let pod = |spec: Value| ("Pod", json!({ "spec": spec }));
        let deployment = |spec: Value| ("Deployment", json!({ "spec": spec }));
        let field = "cannot unmarshal";
        let table = [
            (
                deployment(json!({"replicas": "a"})),
                "string into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                deployment(json!({"replicas": 2147483648_i64})),
                "number 2147483648 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                deployment(json!({"replicas": 1.5})),
                "number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                deployment(json!({"replicas": 1.0})),
                "number 1.0 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (deployment(json!("x")), "string into Go struct field Deployment.spec of type v1.DeploymentSpec"),
            (deployment(json!([])), "array into Go struct field Deployment.spec of type v1.DeploymentSpec"),
            (
                deployment(json!({"paused": "x"})),
                "string into Go struct field DeploymentSpec.spec.paused of type bool",
            ),
            (
                deployment(json!({"template": []})),
                "array into Go struct field DeploymentSpec.spec.template of type v1.PodTemplateSpec",
            ),
            (
                deployment(json!({"template": {"spec": {"containers": [{"name": 1}]}}})),
                "number into Go struct field Container.spec.template.spec.containers.name of type string",
            ),
            (
                deployment(json!({"strategy": {"rollingUpdate": {"maxSurge": true}}})),
                "bool into Go struct field RollingUpdateDeployment.spec.strategy.rollingUpdate.maxSurge of type int32",
            ),
            (
                deployment(json!({"template": {"metadata": {"annotations": {"a": true}}}})),
                "bool into Go struct field ObjectMeta.spec.template.metadata.annotations of type string",
            ),
            (
                pod(json!({"containers": {}})),
                "object into Go struct field PodSpec.spec.containers of type []v1.Container",
            ),
            (
                pod(json!({"containers": ["x"]})),
                "string into Go struct field PodSpec.spec.containers of type v1.Container",
            ),
            (
                pod(json!({"containers": [{"ports": [{"containerPort": "x"}]}]})),
                "string into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32",
            ),
            (
                pod(json!({"containers": [{"command": [1]}]})),
                "number into Go struct field Container.spec.containers.command of type string",
            ),
            (
                pod(json!({"containers": [{"livenessProbe": {"httpGet": {"port": true}}}]})),
                "bool into Go struct field HTTPGetAction.spec.containers.livenessProbe.ProbeHandler.httpGet.port of type int32",
            ),
            (
                pod(json!({"volumes": [{"configMap": {"name": 1}}]})),
                "number into Go struct field ConfigMapVolumeSource.spec.volumes.VolumeSource.configMap.LocalObjectReference.name of type string",
            ),
            (
                pod(json!({"volumes": [{"secret": "x"}]})),
                "string into Go struct field Volume.spec.volumes.VolumeSource.secret of type v1.SecretVolumeSource",
            ),
            (
                pod(json!({"ephemeralContainers": [{"name": 2}]})),
                "number into Go struct field EphemeralContainer.spec.ephemeralContainers.EphemeralContainerCommon.name of type string",
            ),
            (
                pod(json!({"restartPolicy": 1})),
                "number into Go struct field PodSpec.spec.restartPolicy of type v1.RestartPolicy",
            ),
            (
                ("Pod", json!({"metadata": {"labels": {"a": 1}}})),
                "number into Go struct field ObjectMeta.metadata.labels of type string",
            ),
            (
                ("Pod", json!({"metadata": {"labels": []}})),
                "array into Go struct field ObjectMeta.metadata.labels of type map[string]string",
            ),
            (
                ("Pod", json!({"metadata": "x"})),
                "string into Go struct field Pod.metadata of type v1.ObjectMeta",
            ),
            (
                ("Pod", json!({"metadata": {"creationTimestamp": 5}})),
                "number into Go struct field ObjectMeta.metadata.creationTimestamp of type string",
            ),
            (
                ("Pod", json!({"status": {"phase": 1}})),
                "number into Go struct field PodStatus.status.phase of type v1.PodPhase",
            ),
            (
                ("Secret", json!({"data": {"a": 1}})),
                "number into Go struct field Secret.data of type []uint8",
            ),
            (
                ("ConfigMap", json!({"data": {"a": {"b": 1}}})),
                "object into Go struct field ConfigMap.data of type string",
            ),
            (
                ("PersistentVolumeClaim", json!({"spec": {"accessModes": "x"}})),
                "string into Go struct field PersistentVolumeClaimSpec.spec.accessModes of type []v1.PersistentVolumeAccessMode",
            ),
        ];
        for ((kind, value), want) in table {
            assert_eq!(error(kind, value), Some(format!("json: {field} {want}")));
        }
    }

    #[test]
    fn types_with_decoders_of_their_own() {
        let quantities = "quantities must match the regular expression \
                          '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
        let limits = |v: Value| json!({"spec": {"containers": [{"resources": {"limits": {"cpu": v}}}]}});
        assert_eq!(error("Pod", limits(json!("xx"))).as_deref(), Some(quantities));
        assert_eq!(error("Pod", limits(json!(true))).as_deref(), Some(quantities));
        assert_eq!(error("Pod", limits(json!(1))), None);
        assert_eq!(error("Pod", limits(json!("100m"))), None);
        assert_eq!(
            error("Secret", json!({"data": {"a": "%%%"}})).as_deref(),
            Some("illegal base64 data at input byte 0")
        );
        // The time ends the decoding; the type error before it is forgotten.
        assert_eq!(
            error("Lease", json!({"spec": {"leaseDurationSeconds": "a", "renewTime": "b"}})).as_deref(),
            Some(
                "parsing time \"b\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse \"b\" as \"2006\""
            )
        );
    }

    #[test]
    fn what_fits_is_accepted() {
        assert_eq!(error("Pod", json!({"spec": {"containers": null, "nodeName": null, "unknown": 1}})), None);
        assert_eq!(error("Pod", json!({"metadata": {"creationTimestamp": "2024-01-02T03:04:05Z"}})), None);
        assert_eq!(error("Pod", json!({"metadata": {"managedFields": [{"fieldsV1": {"f:a": {}}}]}})), None);
        assert_eq!(error("Deployment", json!({"spec": {"replicas": 3, "template": {}}})), None);
    }
}
