//! Fields of a Pod and resources of its containers as text: for variables and for downwardAPI files.

use std::collections::BTreeMap;
use std::str::FromStr;

use agentcube_api::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;

/// Why a field cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("unsupported fieldPath: {0}")]
    Path(String),
    #[error("fieldPath {0:?} does not support subscript")]
    Subscript(String),
    #[error("container {0} not found")]
    Container(String),
    #[error("unsupported container resource : {0}")]
    Resource(String),
    #[error("{0:?} is not a quantity")]
    Quantity(String),
}

/// A field of a Pod that a variable can have. The addresses are those in the Pod's status.
pub fn of_pod(pod: &Pod, path: &str) -> Result<String, Error> {
    let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
    let value = match path {
        "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()),
        "spec.serviceAccountName" => spec.and_then(|spec| spec.service_account_name.clone()),
        "status.hostIP" => status.and_then(|status| status.host_ip.clone()),
        "status.podIP" => status.and_then(|status| status.pod_ip.clone()),
        "status.hostIPs" => {
            let all = status.and_then(|status| status.host_ips.as_ref());
            all.map(|ips| joined(ips.iter().map(|one| one.ip.as_str())))
                .or_else(|| status.and_then(|status| status.host_ip.clone()))
        }
        "status.podIPs" => {
            let all = status.and_then(|status| status.pod_ips.as_ref());
            all.map(|ips| joined(ips.iter().map(|one| one.ip.as_str())))
                .or_else(|| status.and_then(|status| status.pod_ip.clone()))
        }
        _ => return of_metadata(pod, path),
    };
    Ok(value.unwrap_or_default())
}

fn joined<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    parts.collect::<Vec<_>>().join(",")
}

/// A field of a Pod that a file can have, too.
pub fn of_metadata(pod: &Pod, path: &str) -> Result<String, Error> {
    let meta = &pod.metadata;
    if let Some((map, key)) = path.strip_suffix("']").and_then(|rest| rest.split_once("['")) {
        let map = match map {
            "metadata.annotations" => &meta.annotations,
            "metadata.labels" => &meta.labels,
            _ => return Err(Error::Subscript(path.to_owned())),
        };
        return Ok(map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default());
    }
    let value = match path {
        "metadata.name" => &meta.name,
        "metadata.namespace" => &meta.namespace,
        "metadata.uid" => &meta.uid,
        "metadata.annotations" => return Ok(lines(meta.annotations.as_ref())),
        "metadata.labels" => return Ok(lines(meta.labels.as_ref())),
        _ => return Err(Error::Path(path.to_owned())),
    };
    Ok(value.clone().unwrap_or_default())
}

/// One `key="value"` per line.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> =
        map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quoted(value))).collect();
    lines.join("\n")
}

/// A Go string literal.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A request or limit, divided and rounded up. A container without a limit has the Pod's, or the node's.
pub fn of_resources(
    pod: &Pod,
    own: Option<&Container>,
    selector: &ResourceFieldSelector,
    allocatable: &BTreeMap<String, Written>,
) -> Result<String, Error> {
    let container = match selector.container_name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => named(pod, name).ok_or_else(|| Error::Container(name.to_owned()))?,
        None => own.ok_or_else(|| Error::Container(String::new()))?,
    };
    let unsupported = || Error::Resource(selector.resource.clone());
    let (set, resource) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let known = matches!(resource, "cpu" | "memory" | "ephemeral-storage");
    if !(known || resource.starts_with("hugepages-")) || !matches!(set, "limits" | "requests") {
        return Err(unsupported());
    }
    let resources = container.resources.as_ref();
    let amount = match set {
        "requests" => resources.and_then(|all| all.requests.as_ref()?.get(resource)).cloned(),
        _ => {
            let own = resources.and_then(|all| all.limits.as_ref()?.get(resource)).filter(|q| !is_zero(q));
            let limits = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.limits.as_ref());
            let pods = limits.and_then(|limits| limits.get(resource)).filter(|q| !is_zero(q));
            let nodes = allocatable.get(resource).filter(|_| known);
            own.or(pods).or(nodes).cloned()
        }
    };
    let amount = parse(amount.as_ref().map_or("0", |amount| &amount.0))?;
    let divisor = parse(selector.divisor.as_ref().map_or("1", |divisor| &divisor.0))?;
    let divisor = if divisor.is_zero() { Quantity::from_value(1) } else { divisor };
    let in_unit = |amount: &Quantity| if resource == "cpu" { amount.milli_value() } else { amount.value() };
    let (amount, divisor) = (i128::from(in_unit(&amount)), i128::from(in_unit(&divisor)));
    let rounded_up = if divisor > 0 { (amount + divisor - 1).div_euclid(divisor) } else { 0 };
    Ok(rounded_up.to_string())
}

fn named<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|one| one.name == name)
}

fn parse(text: &str) -> Result<Quantity, Error> {
    Quantity::from_str(text).map_err(|_| Error::Quantity(text.to_owned()))
}

fn is_zero(quantity: &Written) -> bool {
    parse(&quantity.0).is_ok_and(|quantity| quantity.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "p", "namespace": "ns", "uid": "u-1",
                "labels": {"app": "web", "tier": "a\"b\\c"},
                "annotations": {"example.com/note": "two\nlines", "z": "é"},
            },
            "spec": {
                "nodeName": "n", "serviceAccountName": "sa",
                "containers": [
                    {"name": "c", "resources": {
                        "requests": {"cpu": "250m", "memory": "64Mi", "ephemeral-storage": "1Gi"},
                        "limits": {"cpu": "1500m", "hugepages-2Mi": "4Mi"}}},
                    {"name": "bare"},
                ],
                "initContainers": [{"name": "i", "resources": {"limits": {"memory": "1Gi"}}}],
            },
            "status": {"podIP": "10.244.0.5", "podIPs": [{"ip": "10.244.0.5"}, {"ip": "fd00::5"}], "hostIP": "10.0.0.1"},
        }))
        .unwrap()
    }

    #[test]
    fn fields() {
        for (path, expected) in [
            ("metadata.name", "p"),
            ("metadata.namespace", "ns"),
            ("metadata.uid", "u-1"),
            ("metadata.labels['app']", "web"),
            ("metadata.labels['absent']", ""),
            ("metadata.annotations['example.com/note']", "two\nlines"),
            ("metadata.labels", "app=\"web\"\ntier=\"a\\\"b\\\\c\""),
            ("metadata.annotations", "example.com/note=\"two\\nlines\"\nz=\"é\""),
            ("spec.nodeName", "n"),
            ("spec.serviceAccountName", "sa"),
            ("status.podIP", "10.244.0.5"),
            ("status.podIPs", "10.244.0.5,fd00::5"),
            ("status.hostIP", "10.0.0.1"),
            ("status.hostIPs", "10.0.0.1"),
        ] {
            assert_eq!(of_pod(&pod(), path).as_deref(), Ok(expected), "{path}");
        }
        for (path, expected) in [
            ("spec.hostname", "unsupported fieldPath: spec.hostname"),
            ("spec.x['y']", "fieldPath \"spec.x['y']\" does not support subscript"),
        ] {
            assert_eq!(of_pod(&pod(), path).unwrap_err().to_string(), expected);
        }
        assert_eq!(of_metadata(&pod(), "status.podIP"), Err(Error::Path("status.podIP".into())));
    }

    #[test]
    fn resources() {
        let allocatable = [("cpu", "4"), ("memory", "8Gi"), ("hugepages-2Mi", "1Gi")]
            .map(|(name, amount)| (name.to_owned(), Written(amount.to_owned())));
        let allocatable = BTreeMap::from(allocatable);
        for (container, resource, divisor, expected) in [
            ("c", "requests.cpu", "0", Ok("1")),
            ("c", "requests.cpu", "1m", Ok("250")),
            ("c", "limits.cpu", "1", Ok("2")),
            ("c", "requests.memory", "1Mi", Ok("64")),
            ("c", "requests.memory", "1Gi", Ok("1")),
            ("c", "limits.memory", "1Gi", Ok("8")),
            ("c", "requests.ephemeral-storage", "1", Ok("1073741824")),
            ("c", "limits.hugepages-2Mi", "1Mi", Ok("4")),
            ("bare", "limits.cpu", "1", Ok("4")),
            ("bare", "limits.hugepages-2Mi", "1", Ok("0")),
            ("bare", "requests.cpu", "1", Ok("0")),
            ("i", "limits.memory", "1Mi", Ok("1024")),
            ("gone", "limits.cpu", "1", Err("container gone not found")),
            ("c", "limits.gpu", "1", Err("unsupported container resource : limits.gpu")),
            ("c", "cpu", "1", Err("unsupported container resource : cpu")),
        ] {
            let selector = ResourceFieldSelector {
                container_name: Some(container.to_owned()),
                resource: resource.to_owned(),
                divisor: Some(Written(divisor.to_owned())),
            };
            let value =
                of_resources(&pod(), None, &selector, &allocatable).map_err(|error| error.to_string());
            assert_eq!(value.as_deref().map_err(String::as_str), expected, "{container} {resource}");
        }
    }
}
