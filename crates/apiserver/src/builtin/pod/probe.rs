//! The rules of probes and lifecycle hooks.

use serde_json::Value;

use super::super::access::{Errors, Path, Peek};
use super::super::names;

/// One of the probes of a container, if it has it.
pub(super) fn validate(container: &Value, key: &str, path: &Path<'_>, errors: &mut Errors) {
    if !container.has(key) {
        return;
    }
    let (probe, path) = (container.sub(key), path.child(key));
    handler(probe, &path, errors);
    for key in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        path.not_negative(probe, key, errors);
    }
    let grace = probe.int_of("terminationGracePeriodSeconds");
    let grace_path = path.child("terminationGracePeriodSeconds");
    if let Some(seconds) = grace.filter(|seconds| *seconds <= 0) {
        errors.push(grace_path.invalid(seconds, "must be greater than 0"));
    }
    if key == "readinessProbe" {
        if let Some(seconds) = grace {
            errors.push(grace_path.invalid(seconds, "must not be set for readinessProbes"));
        }
    } else if let Some(threshold) = probe.int_of("successThreshold").filter(|threshold| *threshold != 1) {
        errors.push(path.child("successThreshold").invalid(threshold, "must be 1"));
    }
}

/// What runs after the start and before the end.
pub(super) fn lifecycle(lifecycle: &Value, path: &Path<'_>, errors: &mut Errors) {
    for key in ["postStart", "preStop"] {
        if lifecycle.has(key) {
            handler(lifecycle.sub(key), &path.child(key), errors);
        }
    }
}

fn handler(handler: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mut count = 0;
    for key in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        if !handler.has(key) {
            continue;
        }
        let path = path.child(key);
        count += 1;
        if count > 1 {
            errors.push(path.forbidden("may not specify more than 1 handler type"));
            continue;
        }
        let action = handler.sub(key);
        match key {
            "exec" if action.list("command").is_empty() => errors.push(path.child("command").required("")),
            "httpGet" => {
                if action.str_of("path").is_empty() {
                    errors.push(path.child("path").required(""));
                }
                port(action.sub("port"), &path.child("port"), errors);
                let supported = ["HTTP", "HTTPS"];
                let scheme = action.str_of("scheme");
                if !supported.contains(&scheme) {
                    errors.push(path.child("scheme").unsupported(scheme, &supported));
                }
            }
            "tcpSocket" | "grpc" => port(action.sub("port"), &path.child("port"), errors),
            _ => {}
        }
    }
    if count == 0 {
        errors.push(path.required("must specify a handler type"));
    }
}

/// A port by number or name.
pub(crate) fn port(port: &Value, path: &Path<'_>, errors: &mut Errors) {
    match port {
        Value::String(name) => path.all_invalid(name, names::port_name(name), errors),
        number => {
            let number = number.as_i64().unwrap_or_default();
            errors.extend(names::port(number).map(|message| path.invalid(number, message)));
        }
    }
}
