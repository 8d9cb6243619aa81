//! The endpoints below an object that are not the object: scale, binding, logs.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::create::Tracking;
use super::patch::PatchKind;
use super::update::{Place, Wanted};
use super::{Api, Intent, Name};
use crate::hooks::{ExecOptions, ExecSession, LogOptions};
use crate::merge::{json_patch, merge_patch};
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
            return Err(Status::bad_request(format!(
                "the name of the object ({said}) does not match the name on the URL ({})",
                named.name
            )));
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
                Ok(Wanted { value, tracking: Tracking::Update })
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
        let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
        if node.is_empty() {
            let error = FieldError::required("target.name", "");
            return Err(Status::invalid("", "Binding", named.name, &[error]));
        }
        let place = Place { resource, namespace: named.namespace, name: named.name, subresource: "binding" };
        self.change(place, intent, |old| {
            if let Some(bound) = old["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) {
                let detail = format!("pod {} is already assigned to node {bound:?}", named.name);
                return Err(Status::conflict("", "pods/binding", named.name, &detail));
            }
            let mut value = old.clone();
            value["spec"]["nodeName"] = node.as_str().into();
            mark_scheduled(&mut value);
            Ok(Wanted { value, tracking: Tracking::Update })
        })
        .await?;
        Ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}))
    }

    /// `GET pods/x/log`.
    pub async fn logs(
        &self,
        resource: &Resource,
        named: &Name<'_>,
        mut options: LogOptions,
    ) -> Result<mpsc::Receiver<Bytes>, Status> {
        let pod = resource.typed(&*self.find(resource, named)?);
        options.container = Some(container_of(&pod, options.container.as_deref())?);
        if pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty() {
            // Not on a node yet: there is nothing to say, which is not an error.
            return Ok(mpsc::channel(1).1);
        }
        let Some(logs) = self.hooks().logs else { return Err(no_node()) };
        logs.logs(pod, options).await
    }

    /// `exec` and `attach`.
    pub async fn exec(
        &self,
        resource: &Resource,
        named: &Name<'_>,
        mut options: ExecOptions,
    ) -> Result<ExecSession, Status> {
        let pod = resource.typed(&*self.find(resource, named)?);
        options.container = Some(container_of(&pod, options.container.as_deref())?);
        if pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty() {
            return Err(Status::bad_request(format!("pod {} does not have a host assigned", named.name)));
        }
        let Some(exec) = self.hooks().exec else { return Err(no_node()) };
        exec.exec(pod, options).await
    }
}

fn no_node() -> Status {
    Status::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", "no node runs Pods for this API server")
}

fn mark_scheduled(pod: &mut Value) {
    let condition =
        json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": super::now()});
    match pod["status"]["conditions"].as_array_mut() {
        Some(conditions) => {
            conditions.retain(|c| c["type"] != "PodScheduled");
            conditions.push(condition);
        }
        None => pod["status"]["conditions"] = json!([condition]),
    }
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
        None if containers.len() == 1 && init.is_empty() => Ok(containers[0].clone()),
        None => {
            let mut detail =
                format!("a container name must be specified for pod {name}, choose one of: [{}]", containers.join(" "));
            if !init.is_empty() {
                detail.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
            }
            Err(Status::bad_request(detail))
        }
    }
}
