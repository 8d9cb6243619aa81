//! The defaults of pods and pod templates.

use serde_json::{Map, Value, json};

use super::super::access::{Peek, Poke};

/// A pod on its own gets a few defaults that templates do not.
pub(super) fn pod(pod: &mut Value) {
    if let Some(status) = pod.part("status") {
        mirror_addresses(status);
    }
    let Some(object) = pod.part("spec") else { return };
    spec(object);
    object.fill("enableServiceLinks", true);
    object.each("containers", requests_from_limits);
    object.each("initContainers", requests_from_limits);
    if let Some(resources) = object.part("resources") {
        copy_limits(resources);
    }
}

fn mirror_addresses(status: &mut Value) {
    let ip = status.str_of("podIP").to_owned();
    if !ip.is_empty() && status.list("podIPs").is_empty() {
        status.set("podIPs", json!([{"ip": ip}]));
    } else if ip.is_empty()
        && let Some(first) = status.list("podIPs").first().map(|entry| entry.sub("ip").clone())
    {
        status.set("podIP", first);
    }
}

/// The template of a workload, at `template`.
pub(crate) fn template(holder: &mut Value) {
    if let Some(object) = holder.part("template").and_then(|template| template.part("spec")) {
        spec(object);
    }
}

fn spec(spec: &mut Value) {
    for (key, value) in
        [("restartPolicy", "Always"), ("dnsPolicy", "ClusterFirst"), ("schedulerName", "default-scheduler")]
    {
        spec.fill_str(key, value);
    }
    spec.fill("terminationGracePeriodSeconds", 30);
    spec.fill("securityContext", Value::Object(Map::new()));
    mirror_account(spec);
    let host_network = spec.flag("hostNetwork");
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        spec.each(list, |one| {
            container(one);
            if host_network {
                one.each("ports", publish_on_host);
            }
        });
    }
    spec.each("volumes", volume);
}

/// `serviceAccount` is the old name of `serviceAccountName`; both are always the same.
fn mirror_account(spec: &mut Value) {
    let (name, old) =
        (spec.str_of("serviceAccountName").to_owned(), spec.str_of("serviceAccount").to_owned());
    if !name.is_empty() {
        spec.set("serviceAccount", name);
    } else if !old.is_empty() {
        spec.set("serviceAccountName", old);
    }
}

fn publish_on_host(port: &mut Value) {
    if port.int_of("hostPort").unwrap_or_default() == 0
        && let Some(number) = port.int_of("containerPort")
    {
        port.set("hostPort", number);
    }
}

fn container(container: &mut Value) {
    let policy = if is_latest(container.str_of("image")) { "Always" } else { "IfNotPresent" };
    container.fill_str("imagePullPolicy", policy);
    container.fill_str("terminationMessagePath", "/dev/termination-log");
    container.fill_str("terminationMessagePolicy", "File");
    container.each("ports", |port| port.fill_str("protocol", "TCP"));
    container.each("env", |env| {
        if let Some(source) = env.part("valueFrom") {
            if let Some(field) = source.part("fieldRef") {
                field.fill_str("apiVersion", "v1");
            }
            if let Some(file) = source.part("fileKeyRef") {
                file.fill("optional", false);
            }
        }
    });
    for key in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(one) = container.part(key) {
            probe(one);
        }
    }
    if let Some(lifecycle) = container.part("lifecycle") {
        for key in ["postStart", "preStop"] {
            if let Some(get) = lifecycle.part(key).and_then(|handler| handler.part("httpGet")) {
                http_get(get);
            }
        }
    }
}

/// The image has the tag `latest`, or neither tag nor digest.
fn is_latest(image: &str) -> bool {
    if image.is_empty() || image.contains('@') {
        return false;
    }
    let name = image.rsplit('/').next().unwrap_or(image);
    name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn probe(probe: &mut Value) {
    for (key, value) in
        [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
    {
        if probe.int_of(key).unwrap_or_default() == 0 {
            probe.set(key, value);
        }
    }
    if let Some(get) = probe.part("httpGet") {
        http_get(get);
    }
    if let Some(grpc) = probe.part("grpc") {
        grpc.fill("service", "");
    }
}

fn http_get(get: &mut Value) {
    get.fill_str("path", "/");
    get.fill_str("scheme", "HTTP");
}

/// Limits without requests ask for what they allow.
fn requests_from_limits(container: &mut Value) {
    if let Some(resources) = container.part("resources") {
        copy_limits(resources);
    }
}

fn copy_limits(resources: &mut Value) {
    let Some(limits) = resources.map("limits").filter(|limits| !limits.is_empty()).cloned() else { return };
    resources.fill("requests", Value::Object(Map::new()));
    if let Some(requests) = resources.part("requests") {
        for (name, amount) in limits {
            requests.fill(&name, amount);
        }
    }
}

fn volume(volume: &mut Value) {
    let Some(object) = volume.as_object() else { return };
    if !object.iter().any(|(key, value)| key != "name" && !value.is_null()) {
        volume.set("emptyDir", Value::Object(Map::new()));
    }
    for key in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = volume.part(key) {
            source.fill("defaultMode", 0o644);
        }
    }
    if let Some(path) = volume.part("hostPath") {
        path.fill("type", "");
    }
    if let Some(iscsi) = volume.part("iscsi") {
        iscsi.fill_str("iscsiInterface", "default");
    }
    if let Some(image) = volume.part("image") {
        let policy = if is_latest(image.str_of("reference")) { "Always" } else { "IfNotPresent" };
        image.fill_str("pullPolicy", policy);
    }
    if let Some(api) = volume.part("downwardAPI") {
        api.each("items", downward_item);
    }
    if let Some(projected) = volume.part("projected") {
        projected.each("sources", |source| {
            if let Some(token) = source.part("serviceAccountToken") {
                token.fill("expirationSeconds", 3600);
            }
            if let Some(api) = source.part("downwardAPI") {
                api.each("items", downward_item);
            }
        });
    }
    if let Some(template) = volume.part("ephemeral").and_then(|source| source.part("volumeClaimTemplate")) {
        claim_spec(template);
    }
}

fn downward_item(item: &mut Value) {
    if let Some(field) = item.part("fieldRef") {
        field.fill_str("apiVersion", "v1");
    }
}

/// The `spec` of a PersistentVolumeClaim or of a template for one.
pub(crate) fn claim_spec(claim: &mut Value) {
    if let Some(spec) = claim.part("spec") {
        spec.fill("volumeMode", "Filesystem");
    }
}
