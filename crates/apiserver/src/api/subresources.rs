//! The endpoints below an object that are not the object: scale, binding, logs.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::create::Tracking;
use super::patch::PatchKind;
use super::update::{Place, Wanted, check_precondition, check_uid};
use super::{Api, Intent, Name};
use crate::builtin::pod;
use crate::hooks::{Connection, ExecOptions, ExecSession, LogOptions};
use crate::merge::{json_patch, managed, merge_patch};
use crate::resource::Resource;
use crate::status::{FieldError, Status};

impl Api {
    /// `GET …/scale`.
    pub fn scale(&self, resource: &Resource, named: &Name<'_>) -> Result<Value, Status> {
        let object = self.find(resource, named)?;
        resource.scale_of(&resource.typed(&object))
    }

    /// `PUT …/scale`.
    pub async fn update_scale(
        &self,
        resource: &Arc<Resource>,
        named: &Name<'_>,
        scale: Value,
        intent: &Intent,
    ) -> Result<Value, Status> {
        let said = scale["metadata"]["name"].as_str().unwrap_or_default();
        if !said.is_empty() && said != named.name {
            return Err(Status::name_mismatch(said, named.name));
        }
        self.set_scale(resource, named, intent, |_| Ok(scale.clone())).await
    }

    /// `PATCH …/scale`: the patch applies to the Scale, not to the object.
    pub async fn patch_scale(
        &self,
        resource: &Arc<Resource>,
        named: &Name<'_>,
        kind: PatchKind,
        patch: &Value,
        intent: &Intent,
    ) -> Result<Value, Status> {
        self.set_scale(resource, named, intent, |scale| {
            Ok(match kind {
                PatchKind::Json => json_patch::apply(scale, patch)?,
                // A Scale has no lists, so the three merges are one.
                PatchKind::Merge | PatchKind::Strategic | PatchKind::Apply { .. } => {
                    merge_patch::apply(scale, patch)?
                }
            })
        })
        .await
    }

    async fn set_scale(
        &self,
        resource: &Arc<Resource>,
        named: &Name<'_>,
        intent: &Intent,
        want: impl Fn(&Value) -> Result<Value, Status>,
    ) -> Result<Value, Status> {
        let place = Place { resource, namespace: named.namespace, name: named.name, subresource: "scale" };
        let written = self
            .change(place, intent, |old| {
                let scale = want(&resource.scale_of(old)?)?;
                check_replicas(&scale)?;
                let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
                if replicas < 0 && resource.is_builtin() {
                    let detail = "must be greater than or equal to 0";
                    let error = FieldError::invalid("spec.replicas", replicas, detail);
                    return Err(Status::invalid("autoscaling", "Scale", named.name, &[error]));
                }
                let mut value = old.clone();
                resource.set_replicas(&mut value, replicas);
                let version = scale["metadata"]["resourceVersion"].as_str().unwrap_or_default();
                if !version.is_empty() {
                    value["metadata"]["resourceVersion"] = version.into();
                }
                let kind = resource.managed("scale");
                managed::on_update(&kind, Some(old), &mut value, &intent.writer("scale", ""));
                if replicas == 0 && resource.is_builtin() {
                    disown_scale(&mut value);
                }
                Ok(Wanted { value, tracking: Tracking::Done })
            })
            .await?;
        resource.scale_of(&resource.typed_body(written.body))
    }

    /// `POST pods/x/binding`: gives the Pod to a node, once.
    pub async fn bind(
        &self,
        resource: &Arc<Resource>,
        named: &Name<'_>,
        binding: &Value,
        intent: &Intent,
    ) -> Result<Value, Status> {
        if binding["metadata"]["name"] != named.name {
            return Err(Status::bad_request("name in URL does not match name in Binding object"));
        }
        let errors = pod::validate_binding(binding);
        if !errors.is_empty() {
            return Err(Status::invalid("", "Binding", named.name, &errors));
        }
        let place = Place { resource, namespace: named.namespace, name: named.name, subresource: "binding" };
        self.change(place, intent, |old| {
            // A scheduler may have decided about a Pod that was replaced by another of that name.
            check_uid(place, old, binding)?;
            check_precondition(place, old, binding, "resourceVersion", "ResourceVersion")?;
            let mut value = old.clone();
            pod::bind(&mut value, binding, &super::now())
                .map_err(|detail| Status::conflict("", "pods/binding", named.name, &detail))?;
            Ok(Wanted { value, tracking: Tracking::Done })
        })
        .await?;
        Ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}))
    }

    /// `GET pods/x/log`; nothing when the Pod has no node yet.
    pub async fn logs(
        &self,
        resource: &Resource,
        named: &Name<'_>,
        mut options: LogOptions,
    ) -> Result<Option<mpsc::Receiver<Bytes>>, Status> {
        let pod = resource.typed(&*self.find(resource, named)?);
        options.container = Some(container_of(&pod, options.container.as_deref())?);
        if pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty() {
            // Not on a node yet: there is nothing to say, which is not an error.
            return Ok(None);
        }
        let Some(logs) = self.hooks().logs else { return Err(no_node()) };
        logs.logs(pod, options).await.map(Some)
    }

    /// The Pod that a command is for, with the choice of container made.
    pub fn exec_target(
        &self,
        resource: &Resource,
        named: &Name<'_>,
        options: &mut ExecOptions,
    ) -> Result<Value, Status> {
        let pod = resource.typed(&*self.find(resource, named)?);
        options.container = Some(container_of(&pod, options.container.as_deref())?);
        if pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty() {
            return Err(Status::bad_request(format!("pod {} does not have a host assigned", named.name)));
        }
        Ok(pod)
    }

    /// `exec` and `attach`.
    pub async fn exec(&self, pod: Value, options: ExecOptions) -> Result<ExecSession, Status> {
        let Some(exec) = self.hooks().exec else { return Err(no_node()) };
        exec.exec(pod, options).await
    }

    /// `proxy` and `portforward` to a Pod.
    pub async fn connect_pod(&self, pod: Value, port: u16) -> Result<Connection, Status> {
        let Some(connect) = self.hooks().connect else { return Err(no_node()) };
        connect.pod(pod, port).await
    }

    /// `proxy` to a Service.
    pub async fn connect_service(&self, service: Value, port: Value) -> Result<Connection, Status> {
        let Some(connect) = self.hooks().connect else { return Err(no_node()) };
        connect.service(service, port).await
    }
}

fn check_replicas(scale: &Value) -> Result<(), Status> {
    let replicas = &scale["spec"]["replicas"];
    if replicas.is_null() || replicas.is_i64() || replicas.is_u64() {
        return Ok(());
    }
    let detail = format!(
        "json: cannot unmarshal {} into Go struct field ScaleSpec.spec.replicas of type int32",
        crate::go_json::type_name(replicas)
    );
    Err(Status::invalid("", "", "", &[FieldError::invalid("patch", scale.to_string(), detail)]))
}

/// A Scale of zero says nothing about replicas, so nobody owns them afterwards.
fn disown_scale(value: &mut Value) {
    if let Some(entries) = value["metadata"]["managedFields"].as_array_mut() {
        entries.retain(|entry| entry["subresource"] != "scale");
    }
}

fn no_node() -> Status {
    Status::service_unavailable("no node runs Pods for this API server")
}

/// The container meant, or the list to choose from.
fn container_of(pod: &Value, asked: Option<&str>) -> Result<String, Status> {
    let names = |key: &str| -> Vec<String> {
        let list = pod["spec"][key].as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(|c| c["name"].as_str().map(str::to_owned)).collect()
    };
    let (containers, init) = (names("containers"), names("initContainers"));
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    match asked {
        Some(asked) if containers.iter().chain(&init).any(|c| c == asked) => Ok(asked.to_owned()),
        Some(asked) => Err(Status::bad_request(format!("container {asked} is not valid for pod {name}"))),
        None if containers.len() == 1 => Ok(containers[0].clone()),
        None => {
            let mut detail = format!(
                "a container name must be specified for pod {name}, choose one of: [{}]",
                containers.join(" ")
            );
            if !init.is_empty() {
                detail.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
            }
            Err(Status::bad_request(detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_only_container_is_meant_whatever_began_before_it() {
        let pod = json!({ "metadata": { "name": "p" }, "spec": {
            "containers": [{ "name": "main" }], "initContainers": [{ "name": "first" }] } });
        assert_eq!(container_of(&pod, None).ok().as_deref(), Some("main"));
        assert_eq!(container_of(&pod, Some("first")).ok().as_deref(), Some("first"));
        assert!(container_of(&pod, Some("other")).is_err());
    }
}
