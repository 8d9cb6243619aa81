//! The rules of containers.

use serde_json::Value;

use super::super::access::{Errors, Path, Peek};
use super::super::{names, resources as amounts};
use super::probe;
use super::volume::{Volumes, relative_path};

const SIDECAR_ONLY: &str = "may not be set for init containers without restartPolicy=Always";
const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

pub(super) fn validate_all(spec: &Value, volumes: &Volumes<'_>, path: &Path<'_>, errors: &mut Errors) {
    let containers = spec.list("containers");
    let regular = path.child("containers");
    let mut seen: Vec<&str> = Vec::new();
    if containers.is_empty() {
        errors.push(regular.required(""));
    }
    for (index, container) in containers.iter().enumerate() {
        let path = regular.index(index);
        common(container, volumes, &path, errors);
        unique_name(container, &mut seen, &path, errors);
        probe::lifecycle(container.sub("lifecycle"), &path.child("lifecycle"), errors);
        for key in PROBES {
            probe::validate(container, key, &path, errors);
        }
        path.maybe_one_of(container, "restartPolicy", &["Always", "Never", "OnFailure"], errors);
    }
    let mut taken = Vec::new();
    for (index, container) in containers.iter().enumerate() {
        unique_host_ports(container, &mut taken, &regular.index(index), errors);
    }
    let init = path.child("initContainers");
    for (index, container) in spec.list("initContainers").iter().enumerate() {
        let path = init.index(index);
        common(container, volumes, &path, errors);
        path.maybe_one_of(container, "restartPolicy", &["Always", "Never", "OnFailure"], errors);
        unique_name(container, &mut seen, &path, errors);
        unique_host_ports(container, &mut Vec::new(), &path, errors);
        if container.str_of("restartPolicy") == "Always" {
            probe::lifecycle(container.sub("lifecycle"), &path.child("lifecycle"), errors);
            for key in PROBES {
                probe::validate(container, key, &path, errors);
            }
        } else {
            for key in ["lifecycle"].iter().chain(&PROBES).filter(|key| container.has(key)) {
                errors.push(path.child(key).forbidden(SIDECAR_ONLY));
            }
        }
    }
}

fn unique_name<'a>(container: &'a Value, seen: &mut Vec<&'a str>, path: &Path<'_>, errors: &mut Errors) {
    let name = container.str_of("name");
    if seen.contains(&name) {
        errors.push(path.child("name").duplicate(name));
    } else {
        seen.push(name);
    }
}

fn unique_host_ports(container: &Value, taken: &mut Vec<String>, path: &Path<'_>, errors: &mut Errors) {
    let path = path.child("ports");
    for (index, port) in container.list("ports").iter().enumerate() {
        let Some(number) = port.int_of("hostPort").filter(|number| *number != 0) else { continue };
        let this = format!("{}/{}/{number}", port.str_of("protocol"), port.str_of("hostIP"));
        if taken.contains(&this) {
            errors.push(path.index(index).child("hostPort").duplicate(this));
        } else {
            taken.push(this);
        }
    }
}

/// What holds for containers of every sort.
fn common(container: &Value, volumes: &Volumes<'_>, path: &Path<'_>, errors: &mut Errors) {
    match container.str_of("name") {
        "" => errors.push(path.child("name").required("")),
        name => path.child("name").all_invalid(name, names::label(name), errors),
    }
    if container.str_of("image").is_empty() {
        errors.push(path.child("image").required(""));
    }
    path.one_of(container, "terminationMessagePolicy", &["File", "FallbackToLogsOnError"], errors);
    ports(container, &path.child("ports"), errors);
    let env = path.child("env");
    for (index, variable) in container.list("env").iter().enumerate() {
        self::env(variable, &env.index(index), errors);
    }
    env_from(container, &path.child("envFrom"), errors);
    mounts(container, volumes, &path.child("volumeMounts"), errors);
    devices(container, volumes, &path.child("volumeDevices"), errors);
    path.one_of(container, "imagePullPolicy", &["Always", "IfNotPresent", "Never"], errors);
    resources(container.sub("resources"), &path.child("resources"), errors);
    for policy in container.list("resizePolicy") {
        let supported = ["NotRequired", "RestartContainer"];
        let value = policy.str_of("restartPolicy");
        if !supported.contains(&value) {
            errors.push(path.child("resizePolicy").unsupported(value, &supported));
        }
    }
    security(container.sub("securityContext"), &path.child("securityContext"), errors);
}

fn ports(container: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mut seen = Vec::new();
    for (index, port) in container.list("ports").iter().enumerate() {
        let path = path.index(index);
        let name = port.str_of("name");
        if !name.is_empty() {
            let wrong = names::port_name(name);
            if !wrong.is_empty() {
                path.child("name").all_invalid(name, wrong, errors);
            } else if seen.contains(&name) {
                errors.push(path.child("name").duplicate(name));
            } else {
                seen.push(name);
            }
        }
        match port.int_of("containerPort").unwrap_or_default() {
            0 => errors.push(path.child("containerPort").required("")),
            number => {
                if let Some(message) = names::port(number) {
                    errors.push(path.child("containerPort").invalid(number, message));
                }
            }
        }
        if let Some(number) = port.int_of("hostPort").filter(|number| *number != 0)
            && let Some(message) = names::port(number)
        {
            errors.push(path.child("hostPort").invalid(number, message));
        }
        path.one_of(port, "protocol", &["SCTP", "TCP", "UDP"], errors);
    }
}

fn env(variable: &Value, path: &Path<'_>, errors: &mut Errors) {
    match variable.str_of("name") {
        "" => errors.push(path.child("name").required("")),
        name => path.child("name").all_invalid(name, names::env(name), errors),
    }
    if !variable.has("valueFrom") {
        return;
    }
    let (source, path) = (variable.sub("valueFrom"), path.child("valueFrom"));
    let mut count = 0;
    if source.has("fieldRef") {
        count += 1;
        field_ref(source.sub("fieldRef"), ENV_FIELDS, &path.child("fieldRef"), errors);
    }
    if source.has("resourceFieldRef") {
        count += 1;
        resource_ref(source.sub("resourceFieldRef"), &path.child("resourceFieldRef"), errors);
    }
    for key in ["configMapKeyRef", "secretKeyRef"] {
        if source.has(key) {
            count += 1;
            key_ref(source.sub(key), &path.child(key), errors);
        }
    }
    count += i32::from(source.has("fileKeyRef"));
    if !variable.str_of("value").is_empty() {
        if count != 0 {
            errors.push(path.invalid("", "may not be specified when `value` is not empty"));
        }
    } else if count == 0 {
        errors.push(path.invalid(
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ));
    } else if count > 1 {
        errors.push(path.invalid("", "may not have more than one field specified at a time"));
    }
}

const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

pub(super) const FILE_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

/// A field of the pod that a variable or file shows.
pub(super) fn field_ref(field: &Value, supported: &[&str], path: &Path<'_>, errors: &mut Errors) {
    if field.str_of("apiVersion").is_empty() {
        errors.push(path.child("apiVersion").required(""));
        return;
    }
    let text = field.str_of("fieldPath");
    if text.is_empty() {
        errors.push(path.child("fieldPath").required(""));
        return;
    }
    let (name, subscript) = match text.strip_suffix("']").and_then(|text| text.split_once("['")) {
        Some((name, key)) => (name, Some(key)),
        None => (text, None),
    };
    match (name, subscript) {
        ("metadata.annotations" | "metadata.labels", Some(key)) => {
            path.all_invalid(key, names::qualified(&key.to_lowercase()), errors);
        }
        (name, None) if supported.contains(&name) => {}
        (name, None) if ENV_FIELDS.contains(&name) || FILE_FIELDS.contains(&name) => {
            errors.push(path.child("fieldPath").unsupported(text, supported));
        }
        _ => errors.push(
            path.child("fieldPath")
                .invalid(text, format!("error converting fieldPath: field label not supported: {text}")),
        ),
    }
}

pub(super) fn resource_ref(field: &Value, path: &Path<'_>, errors: &mut Errors) {
    const SUPPORTED: &[&str] = &[
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    match field.str_of("resource") {
        "" => errors.push(path.child("resource").required("")),
        name if SUPPORTED.contains(&name)
            || name.starts_with("limits.hugepages-")
            || name.starts_with("requests.hugepages-") => {}
        name => errors.push(path.child("resource").unsupported(name, SUPPORTED)),
    }
}

fn key_ref(reference: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (name, key) = (reference.str_of("name"), reference.str_of("key"));
    path.child("name").all_invalid(name, names::subdomain(name), errors);
    if key.is_empty() {
        errors.push(path.child("key").required(""));
    } else {
        path.child("key").all_invalid(key, names::config_key(key), errors);
    }
}

fn env_from(container: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (index, source) in container.list("envFrom").iter().enumerate() {
        let item = path.index(index);
        let prefix = source.str_of("prefix");
        if !prefix.is_empty() {
            item.child("prefix").all_invalid(prefix, names::env(prefix), errors);
        }
        let mut count = 0;
        for key in ["configMapRef", "secretRef"] {
            if source.has(key) {
                count += 1;
                if source.sub(key).str_of("name").is_empty() {
                    errors.push(item.child(key).child("name").required(""));
                }
            }
        }
        if count == 0 {
            errors.push(path.invalid("", "must specify one of: `configMapRef` or `secretRef`"));
        } else if count > 1 {
            errors.push(path.invalid("", "may not have more than one field specified at a time"));
        }
    }
}

fn mounts(container: &Value, volumes: &Volumes<'_>, path: &Path<'_>, errors: &mut Errors) {
    let mut points: Vec<&str> = Vec::new();
    for (index, mount) in container.list("volumeMounts").iter().enumerate() {
        let item = path.index(index);
        let (name, point) = (mount.str_of("name"), mount.str_of("mountPath"));
        if name.is_empty() {
            errors.push(item.child("name").required(""));
        }
        if !volumes.contains(name) {
            errors.push(item.child("name").not_found(name));
        }
        if point.is_empty() {
            errors.push(item.child("mountPath").required(""));
        }
        if points.contains(&point) {
            errors.push(item.child("mountPath").invalid(point, "must be unique"));
        }
        points.push(point);
        for device in container.list("volumeDevices") {
            if device.str_of("name") == name {
                errors.push(item.child("name").invalid(name, "must not already exist in volumeDevices"));
            }
            if device.str_of("devicePath") == point {
                errors.push(
                    item.child("mountPath")
                        .invalid(point, "must not already exist as a path in volumeDevices"),
                );
            }
        }
        let (sub, expression) = (mount.str_of("subPath"), mount.str_of("subPathExpr"));
        if !sub.is_empty() {
            relative_path(sub, &path.child("subPath"), errors);
        }
        if !expression.is_empty() {
            if !sub.is_empty() {
                errors.push(
                    item.child("subPathExpr")
                        .invalid(expression, "subPathExpr and subPath are mutually exclusive"),
                );
            }
            relative_path(expression, &path.child("subPathExpr"), errors);
        }
        path.maybe_one_of(mount, "mountPropagation", &["Bidirectional", "HostToContainer", "None"], errors);
    }
}

fn devices(container: &Value, volumes: &Volumes<'_>, path: &Path<'_>, errors: &mut Errors) {
    for (index, device) in container.list("volumeDevices").iter().enumerate() {
        let path = path.index(index);
        let name = device.str_of("name");
        if name.is_empty() {
            errors.push(path.child("name").required(""));
        }
        match volumes.is_claim(name) {
            Some(true) => {}
            Some(false) => errors.push(path.child("name").invalid(
                name,
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
            )),
            None => errors.push(path.child("name").not_found(name)),
        }
        if device.str_of("devicePath").is_empty() {
            errors.push(path.child("devicePath").required(""));
        }
    }
}

/// Requests and limits of a container or pod.
pub(super) fn resources(resources: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (limits, requests) = (resources.sub("limits"), resources.sub("requests"));
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    for (name, amount) in resources.map("limits").into_iter().flatten() {
        amounts::container_amount(name, amount, &limits_path.key(name), errors);
    }
    for (name, amount) in resources.map("requests").into_iter().flatten() {
        amounts::container_amount(name, amount, &requests_path.key(name), errors);
        let overcommit = amounts::is_native(name) && !name.starts_with("hugepages-");
        if !limits.has(name) {
            if !overcommit {
                errors.push(limits_path.required("Limit must be set for non overcommitable resources"));
            }
            continue;
        }
        let (request, limit) = (amounts::parse(requests.sub(name)), amounts::parse(limits.sub(name)));
        let (Some(request), Some(limit)) = (request, limit) else { continue };
        let detail = match (request.compare(limit), overcommit) {
            (order, false) if order.is_ne() => "equal to",
            (order, _) if order.is_gt() => "less than or equal to",
            _ => continue,
        };
        errors.push(
            requests_path.invalid(
                request.canonical(),
                format!("must be {detail} {name} limit of {}", limit.canonical()),
            ),
        );
    }
}

fn security(context: &Value, path: &Path<'_>, errors: &mut Errors) {
    super::validate::ids(context, &["runAsUser", "runAsGroup"], path, errors);
    path.maybe_one_of(context, "procMount", &["Default", "Unmasked"], errors);
    if context.sub("allowPrivilegeEscalation") == false && context.flag("privileged") {
        // Go prints the struct, fields that are unset included.
        let fields = [
            ("Capabilities", "capabilities"),
            ("Privileged", "privileged"),
            ("SELinuxOptions", "seLinuxOptions"),
            ("WindowsOptions", "windowsOptions"),
            ("RunAsUser", "runAsUser"),
            ("RunAsGroup", "runAsGroup"),
            ("RunAsNonRoot", "runAsNonRoot"),
            ("ReadOnlyRootFilesystem", "readOnlyRootFilesystem"),
            ("AllowPrivilegeEscalation", "allowPrivilegeEscalation"),
            ("ProcMount", "procMount"),
            ("SeccompProfile", "seccompProfile"),
            ("AppArmorProfile", "appArmorProfile"),
        ];
        let shown: Vec<String> =
            fields.iter().map(|(shown, key)| format!("\"{shown}\":{}", context.sub(key))).collect();
        errors.push(path.invalid_text(
            &format!("{{{}}}", shown.join(",")),
            "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
        ));
    }
}
