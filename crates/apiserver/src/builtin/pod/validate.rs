//! The rules of pods and pod templates as a whole.

use serde_json::Value;

use super::super::access::{Errors, Path, Peek};
use super::super::{metadata, names, selector};
use super::{PREEMPTION, container, placement, volume};

const MAX_INT32: i64 = i32::MAX as i64;

/// A pod. Some things may only be absent when it is new.
pub(super) fn pod(pod: &Value, new: bool, errors: &mut Errors) {
    let (object, path) = (pod.sub("spec"), Path::root("spec"));
    spec(object, &path, errors);
    for key in ["containers", "initContainers"] {
        let path = path.child(key);
        for (index, container) in object.list(key).iter().enumerate() {
            let image = container.str_of("image");
            if image.trim() != image {
                errors.push(
                    path.index(index)
                        .child("image")
                        .invalid(image, "must not have leading or trailing whitespace"),
                );
            }
        }
    }
    if new && !object.list("ephemeralContainers").is_empty() {
        errors.push(path.child("ephemeralContainers").forbidden("cannot be set on create"));
    }
}

/// The labels and annotations of a template. The real server leaves `metadata` out of these paths.
pub(crate) fn template_labels(template: &Value, path: &Path<'_>, errors: &mut Errors) {
    let meta = template.sub("metadata");
    metadata::labels(meta.map("labels"), &path.child("labels"), errors);
    metadata::annotations(meta.map("annotations"), &path.child("annotations"), errors);
}

/// A template, as ReplicaSets and their like hold it: labels match the selector, pods restart always.
pub(crate) fn template(template: &Value, path: &Path<'_>, errors: &mut Errors) {
    template_labels(template, path, errors);
    let path = path.child("spec");
    spec(template.sub("spec"), &path, errors);
    if !template.sub("spec").list("ephemeralContainers").is_empty() {
        errors.push(
            path.child("ephemeralContainers").forbidden("ephemeral containers not allowed in pod template"),
        );
    }
}

fn spec(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let volumes = volume::validate_all(spec, path, errors);
    container::validate_all(spec, &volumes, path, errors);
    if spec.has("resources") {
        container::resources(spec.sub("resources"), &path.child("resources"), errors);
    }
    host_ports(spec, path, errors);
    path.one_of(spec, "restartPolicy", &["Always", "OnFailure", "Never"], errors);
    path.one_of(spec, "dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"], errors);
    metadata::labels(spec.map("nodeSelector"), &path.child("nodeSelector"), errors);
    security(spec, &path.child("securityContext"), errors);
    placement::affinity(spec.sub("affinity"), &path.child("affinity"), errors);
    dns(spec, &path.child("dnsConfig"), errors);
    gates(spec, path, errors);
    spread(spec, &path.child("topologySpreadConstraints"), errors);
    identity(spec, path, errors);
    placement::tolerations(spec, path, errors);
    aliases(spec, &path.child("hostAliases"), errors);
    classes(spec, path, errors);
}

/// With the network of the host, a container's port is the host's.
fn host_ports(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    if !spec.flag("hostNetwork") {
        return;
    }
    for key in ["containers", "initContainers"] {
        let path = path.child(key);
        for (index, container) in spec.list(key).iter().enumerate() {
            let path = path.index(index);
            let path = path.child("ports");
            for (index, port) in container.list("ports").iter().enumerate() {
                let host = port.int_of("hostPort").unwrap_or_default();
                if host != port.int_of("containerPort").unwrap_or_default() {
                    errors.push(
                        path.index(index)
                            .child("hostPort")
                            .invalid(host, "must match `containerPort` when `hostNetwork` is true"),
                    );
                }
            }
        }
    }
}

/// Users and groups are small non-negative numbers.
pub(super) fn ids(object: &Value, keys: &[&str], path: &Path<'_>, errors: &mut Errors) {
    for key in keys {
        if let Some(id) = object.int_of(key)
            && let Some(message) = names::in_range(id, 0, MAX_INT32)
        {
            errors.push(path.child(key).invalid(id, message));
        }
    }
}

fn security(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let context = spec.sub("securityContext");
    ids(context, &["fsGroup", "runAsUser", "runAsGroup"], path, errors);
    let groups = path.child("supplementalGroups");
    for (index, group) in context.list("supplementalGroups").iter().enumerate() {
        if let Some(id) = group.as_i64()
            && let Some(message) = names::in_range(id, 0, MAX_INT32)
        {
            errors.push(groups.index(index).invalid(id, message));
        }
    }
    if spec.flag("shareProcessNamespace") && spec.flag("hostPID") {
        errors.push(
            path.child("shareProcessNamespace")
                .invalid(true, "ShareProcessNamespace and HostPID cannot both be enabled"),
        );
    }
    path.maybe_one_of(context, "fsGroupChangePolicy", &["Always", "OnRootMismatch"], errors);
}

fn dns(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let config = spec.sub("dnsConfig");
    let servers = config.list("nameservers");
    if spec.str_of("dnsPolicy") == "None" {
        if config.is_null() {
            errors.push(path.required("must provide `dnsConfig` when `dnsPolicy` is None"));
            return;
        }
        if servers.is_empty() {
            errors.push(
                path.child("nameservers")
                    .required("must provide at least one DNS nameserver when `dnsPolicy` is None"),
            );
            return;
        }
    }
    let path = path.child("nameservers");
    if servers.len() > 3 {
        errors.push(path.invalid(config.sub("nameservers").clone(), "must not have more than 3 nameservers"));
    }
    for (index, server) in servers.iter().enumerate() {
        let text = server.as_str().unwrap_or_default();
        if let Err(message) = names::ip(text) {
            errors.push(path.index(index).invalid(text, message));
        }
    }
}

fn gates(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let readiness = path.child("readinessGates");
    for (index, gate) in spec.list("readinessGates").iter().enumerate() {
        let name = gate.str_of("conditionType");
        readiness.index(index).child("conditionType").all_invalid(name, names::qualified(name), errors);
    }
    let scheduling = path.child("schedulingGates");
    let mut seen = Vec::new();
    for (index, gate) in spec.list("schedulingGates").iter().enumerate() {
        let name = gate.str_of("name");
        let path = scheduling.index(index);
        path.all_invalid(name, names::qualified(name), errors);
        if seen.contains(&name) {
            errors.push(path.duplicate(name));
        }
        seen.push(name);
    }
}

fn spread(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (index, constraint) in spec.list("topologySpreadConstraints").iter().enumerate() {
        let path = path.index(index);
        let skew = constraint.int_of("maxSkew").unwrap_or_default();
        if skew <= 0 {
            errors.push(path.child("maxSkew").invalid(skew, "must be greater than zero"));
        }
        let key = constraint.str_of("topologyKey");
        if key.is_empty() {
            errors.push(path.child("topologyKey").required("can not be empty"));
        } else {
            path.child("topologyKey").all_invalid(key, names::qualified(key), errors);
        }
        let action = constraint.str_of("whenUnsatisfiable");
        let supported = ["DoNotSchedule", "ScheduleAnyway"];
        if !supported.contains(&action) {
            errors.push(path.child("whenUnsatisfiable").unsupported(action, &supported));
        }
        if constraint.has("labelSelector") {
            selector::validate(constraint.sub("labelSelector"), &path.child("labelSelector"), errors);
        }
    }
}

/// Who the pod is and where it runs.
fn identity(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    for key in ["serviceAccountName", "nodeName"] {
        let name = spec.str_of(key);
        if !name.is_empty() {
            path.child(key).all_invalid(name, names::subdomain(name), errors);
        }
    }
    if let Some(seconds) = spec.int_of("activeDeadlineSeconds")
        && let Some(message) = names::in_range(seconds, 1, MAX_INT32)
    {
        errors.push(path.child("activeDeadlineSeconds").invalid(seconds, message));
    }
    for key in ["hostname", "subdomain"] {
        let name = spec.str_of(key);
        if !name.is_empty() {
            path.child(key).all_invalid(name, names::label(name), errors);
        }
    }
}

fn aliases(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (index, alias) in spec.list("hostAliases").iter().enumerate() {
        let path = path.index(index);
        let ip = alias.str_of("ip");
        if let Err(message) = names::ip(ip) {
            errors.push(path.child("ip").invalid(ip, message));
        }
        let path = path.child("hostnames");
        for (index, name) in alias.list("hostnames").iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            path.index(index).all_invalid(name, names::subdomain(name), errors);
        }
    }
}

fn classes(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    for key in ["priorityClassName", "runtimeClassName"] {
        let name = spec.str_of(key);
        if !name.is_empty() {
            path.child(key).all_invalid(name, names::subdomain(name), errors);
        }
    }
    if spec.has("preemptionPolicy") {
        path.one_of(spec, "preemptionPolicy", PREEMPTION, errors);
    }
    if spec.has("os") {
        match spec.sub("os").str_of("name") {
            "" => errors.push(path.child("os").child("name").required("cannot be empty")),
            "linux" | "windows" => {}
            other => errors.push(path.child("os").unsupported(other, &["linux", "windows"])),
        }
    }
}
