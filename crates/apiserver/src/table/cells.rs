//! The cells of the built-in kinds, those of pods and of storage aside.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::age::{human, since};
use super::{pod, storage};
use crate::builtin::Kind;
use crate::builtin::access::Peek;

/// The cells of an object, in the order of its kind's columns.
pub(super) fn of(kind: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    let name = Value::from(object.sub("metadata").str_of("name"));
    let age = Value::from(since(object.sub("metadata").sub("creationTimestamp"), now));
    let (spec, status) = (object.sub("spec"), object.sub("status"));
    match kind.plural {
        "pods" => pod::cells(object, now),
        "services" => service(object, name, age),
        "nodes" => node(object, name, age),
        "events" => event(object, kind.group.is_empty(), now),
        "jobs" => job(object, name, age, now),
        "cronjobs" => cron_job(object, name, age, now),
        "deployments" => {
            let mut cells = vec![
                name,
                ratio(int(status, "readyReplicas"), int(spec, "replicas")),
                int(status, "updatedReplicas").into(),
                int(status, "availableReplicas").into(),
                age,
            ];
            containers(spec.sub("template"), &mut cells);
            cells.push(selector_text(spec.sub("selector")).into());
            cells
        }
        "replicasets" => {
            let mut cells = vec![
                name,
                int(spec, "replicas").into(),
                int(status, "replicas").into(),
                int(status, "readyReplicas").into(),
                age,
            ];
            containers(spec.sub("template"), &mut cells);
            cells.push(selector_or_none(spec.sub("selector")));
            cells
        }
        "statefulsets" => {
            let mut cells = vec![name, ratio(int(status, "readyReplicas"), int(spec, "replicas")), age];
            containers(spec.sub("template"), &mut cells);
            cells
        }
        "daemonsets" => daemon_set(object, name, age),
        "namespaces" => vec![name, status.str_of("phase").into(), age],
        "configmaps" => vec![name, (len(object, "data") + len(object, "binaryData")).into(), age],
        "secrets" => vec![name, object.str_of("type").into(), len(object, "data").into(), age],
        "endpoints" => vec![name, endpoints(object).into(), age],
        "endpointslices" => slice(object, name, age),
        "persistentvolumes" => storage::volume(object, name, age),
        "persistentvolumeclaims" => storage::claim(object, name, age),
        "leases" => vec![name, spec.str_of("holderIdentity").into(), age],
        "runtimeclasses" => vec![name, object.str_of("handler").into(), age],
        "networkpolicies" => vec![name, selector_or_none(spec.sub("podSelector")), age],
        "poddisruptionbudgets" => vec![
            name,
            int_or_text(spec.sub("minAvailable")),
            int_or_text(spec.sub("maxUnavailable")),
            int(status, "disruptionsAllowed").into(),
            age,
        ],
        "rolebindings" | "clusterrolebindings" => binding(object, name, age),
        "priorityclasses" => vec![
            name,
            int(object, "value").into(),
            object.flag("globalDefault").into(),
            age,
            object.str_of("preemptionPolicy").into(),
        ],
        "storageclasses" => storage::class(object, age),
        "podtemplates" => {
            let mut cells = vec![name];
            containers(object.sub("template"), &mut cells);
            cells.push(labels_text(object.at(&["template", "metadata"]).map("labels")).into());
            cells
        }
        "resourcequotas" => quota(object, name, age),
        "controllerrevisions" => vec![name, controller(object), int(object, "revision").into(), age],
        "serviceaccounts" => vec![name, age],
        // The default of kinds without a printer of their own.
        _ => vec![name, object.sub("metadata").str_of("creationTimestamp").into()],
    }
}

fn int(object: &Value, key: &str) -> i64 {
    object.int_of(key).unwrap_or_default()
}

fn len(object: &Value, key: &str) -> usize {
    object.map(key).map_or(0, Map::len)
}

fn ratio(some: i64, all: i64) -> Value {
    format!("{some}/{all}").into()
}

fn int_or_text(value: &Value) -> Value {
    match value {
        Value::Null => "N/A".into(),
        Value::String(text) => text.as_str().into(),
        other => other.to_string().into(),
    }
}

pub(super) fn or<'a>(text: &'a str, instead: &'a str) -> &'a str {
    if text.is_empty() { instead } else { text }
}

/// Names and images of the containers of a template.
fn containers(template: &Value, cells: &mut Vec<Value>) {
    for key in ["name", "image"] {
        let all = template.sub("spec").list("containers").iter();
        cells.push(all.map(|container| container.str_of(key)).collect::<Vec<_>>().join(",").into());
    }
}

/// `a=b,c in (d,e),!f`, ordered by key.
pub(crate) fn selector_text(selector: &Value) -> String {
    let mut parts: Vec<(&str, String)> = Vec::new();
    for (key, value) in selector.map("matchLabels").into_iter().flatten() {
        parts.push((key, format!("{key}={}", value.as_str().unwrap_or_default())));
    }
    for expression in selector.list("matchExpressions") {
        let key = expression.str_of("key");
        let mut values: Vec<&str> = expression.list("values").iter().filter_map(Value::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        let text = match expression.str_of("operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        };
        parts.push((key, text));
    }
    parts.sort_by_key(|(key, _)| *key);
    parts.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(",")
}

fn selector_or_none(selector: &Value) -> Value {
    or(&selector_text(selector), "<none>").into()
}

fn labels_text(labels: Option<&Map<String, Value>>) -> String {
    let all = labels.into_iter().flatten();
    let parts: Vec<String> =
        all.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    or(&parts.join(","), "<none>").to_owned()
}

fn service(service: &Value, name: Value, age: Value) -> Vec<Value> {
    let spec = service.sub("spec");
    let ports: Vec<String> = spec
        .list("ports")
        .iter()
        .map(|port| {
            let (number, protocol) = (int(port, "port"), port.str_of("protocol"));
            match int(port, "nodePort") {
                0 => format!("{number}/{protocol}"),
                node => format!("{number}:{node}/{protocol}"),
            }
        })
        .collect();
    vec![
        name,
        spec.str_of("type").into(),
        spec.list("clusterIPs").first().and_then(Value::as_str).unwrap_or("<none>").into(),
        external_address(service).into(),
        or(&ports.join(","), "<none>").into(),
        age,
        labels_text(spec.map("selector")).into(),
    ]
}

fn external_address(service: &Value) -> String {
    let spec = service.sub("spec");
    let external: Vec<&str> = spec.list("externalIPs").iter().filter_map(Value::as_str).collect();
    match spec.str_of("type") {
        "ClusterIP" | "NodePort" => or(&external.join(","), "<none>").to_owned(),
        "LoadBalancer" => {
            let ingress = service.at(&["status", "loadBalancer"]).list("ingress").iter();
            let mut all: Vec<&str> = ingress
                .map(|one| or(one.str_of("ip"), one.str_of("hostname")))
                .filter(|address| !address.is_empty())
                .collect();
            all.sort_unstable();
            all.dedup();
            all.extend(external);
            or(&all.join(","), "<pending>").to_owned()
        }
        "ExternalName" => spec.str_of("externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

fn node(node: &Value, name: Value, age: Value) -> Vec<Value> {
    let (status, info) = (node.sub("status"), node.at(&["status", "nodeInfo"]));
    let ready = status.list("conditions").iter().rev().find(|one| one.str_of("type") == "Ready");
    let mut state = match ready.map(|one| one.str_of("status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node.sub("spec").flag("unschedulable") {
        state += ",SchedulingDisabled";
    }
    let address = |kind: &str| -> Value {
        let found = status.list("addresses").iter().find(|one| one.str_of("type") == kind);
        found.map_or("<none>", |one| one.str_of("address")).into()
    };
    let mut kernel = or(info.str_of("kernelVersion"), "<unknown>").to_owned();
    if !info.str_of("architecture").is_empty() {
        kernel += &format!(" ({})", info.str_of("architecture"));
    }
    vec![
        name,
        state.into(),
        or(&roles(node).join(","), "<none>").into(),
        age,
        info.str_of("kubeletVersion").into(),
        address("InternalIP"),
        address("ExternalIP"),
        or(info.str_of("osImage"), "<unknown>").into(),
        kernel.into(),
        or(info.str_of("containerRuntimeVersion"), "<unknown>").into(),
    ]
}

fn roles(node: &Value) -> Vec<&str> {
    let labels = node.sub("metadata").map("labels").into_iter().flatten();
    let mut roles: Vec<&str> = labels
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    roles
}

fn event(event: &Value, core: bool, now: Timestamp) -> Vec<Value> {
    let field = |in_core: &'static str, other: &'static str| event.sub(if core { in_core } else { other });
    let about = field("involvedObject", "regarding");
    let time = |time: &Value, instead: String| if time.is_null() { instead } else { since(time, now) };
    let first = time(
        field("firstTimestamp", "deprecatedFirstTimestamp"),
        time(event.sub("eventTime"), "<unknown>".to_owned()),
    );
    let mut last = time(field("lastTimestamp", "deprecatedLastTimestamp"), first.clone());
    let mut count = field("count", "deprecatedCount").as_i64().unwrap_or_default();
    if event.has("series") {
        last = since(event.sub("series").sub("lastObservedTime"), now);
        count = int(event.sub("series"), "count");
    } else if count == 0 {
        count = 1;
    }
    let mut target = about.str_of("kind").to_lowercase();
    if !about.str_of("name").is_empty() {
        target = format!("{target}/{}", about.str_of("name"));
    }
    let source = field("source", "deprecatedSource");
    let reporter = field("reportingComponent", "reportingController").as_str().unwrap_or_default();
    let component = or(source.str_of("component"), reporter);
    let instance = or(source.str_of("host"), event.str_of("reportingInstance"));
    let source = if instance.is_empty() { component.to_owned() } else { format!("{component}, {instance}") };
    vec![
        last.into(),
        event.str_of("type").into(),
        event.str_of("reason").into(),
        target.into(),
        about.str_of("fieldPath").into(),
        source.into(),
        field("message", "note").as_str().unwrap_or_default().trim().into(),
        first.into(),
        count.into(),
        event.sub("metadata").str_of("name").into(),
    ]
}

fn job(job: &Value, name: Value, age: Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (job.sub("spec"), job.sub("status"));
    let done = int(status, "succeeded");
    let completions = match (spec.int_of("completions"), int(spec, "parallelism")) {
        (Some(wanted), _) => format!("{done}/{wanted}"),
        (None, parallel) if parallel > 1 => format!("{done}/1 of {parallel}"),
        (None, _) => format!("{done}/1"),
    };
    let time = |key: &str| status.str_of(key).parse::<Timestamp>().ok();
    let duration = match (time("startTime"), time("completionTime")) {
        (None, _) => String::new(),
        (Some(start), end) => human(end.unwrap_or(now).as_second() - start.as_second()),
    };
    let is = |kind: &str| {
        let conditions = status.list("conditions").iter();
        conditions.clone().any(|one| one.str_of("type") == kind && one.str_of("status") == "True")
    };
    let state = if is("Complete") {
        "Complete"
    } else if is("Failed") {
        "Failed"
    } else if job.sub("metadata").has("deletionTimestamp") {
        "Terminating"
    } else {
        ["Suspended", "FailureTarget", "SuccessCriteriaMet"]
            .into_iter()
            .find(|kind| is(kind))
            .unwrap_or("Running")
    };
    let mut cells = vec![name, state.into(), completions.into(), duration.into(), age];
    containers(spec.sub("template"), &mut cells);
    cells.push(selector_or_none(spec.sub("selector")));
    cells
}

fn cron_job(cron: &Value, name: Value, age: Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (cron.sub("spec"), cron.sub("status"));
    let last = status.sub("lastScheduleTime");
    let job = spec.at(&["jobTemplate", "spec"]);
    let mut cells = vec![
        name,
        spec.str_of("schedule").into(),
        or(spec.str_of("timeZone"), "<none>").into(),
        match spec.sub("suspend").as_bool() {
            Some(true) => "True",
            Some(false) => "False",
            None => "<unset>",
        }
        .into(),
        status.list("active").len().into(),
        if last.is_null() { "<none>".into() } else { since(last, now).into() },
        age,
    ];
    containers(job.sub("template"), &mut cells);
    cells.push(selector_or_none(job.sub("selector")));
    cells
}

fn daemon_set(set: &Value, name: Value, age: Value) -> Vec<Value> {
    let (spec, status) = (set.sub("spec"), set.sub("status"));
    let mut cells = vec![name];
    for key in [
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    ] {
        cells.push(int(status, key).into());
    }
    cells.push(labels_text(spec.at(&["template", "spec"]).map("nodeSelector")).into());
    cells.push(age);
    containers(spec.sub("template"), &mut cells);
    cells.push(selector_or_none(spec.sub("selector")));
    cells
}

/// At most three, and how many more there are.
fn few(all: &[String], none: &str) -> String {
    match all.len() {
        0 => none.to_owned(),
        1..=3 => all.join(","),
        count => format!("{} + {} more...", all[..3].join(","), count - 3),
    }
}

fn endpoints(endpoints: &Value) -> String {
    let subsets = endpoints.list("subsets");
    let mut all = Vec::new();
    for subset in subsets {
        let addresses = subset.list("addresses").iter().map(|address| address.str_of("ip"));
        if subset.list("ports").is_empty() {
            all.extend(addresses.clone().map(str::to_owned));
        }
        for port in subset.list("ports") {
            let port = int(port, "port");
            all.extend(
                addresses.clone().map(|ip| {
                    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
                }),
            );
        }
    }
    few(&all, if subsets.is_empty() { "<none>" } else { "" })
}

fn slice(slice: &Value, name: Value, age: Value) -> Vec<Value> {
    let ports: Vec<String> = slice
        .list("ports")
        .iter()
        .map(|port| match (port.int_of("port"), port.sub("name").as_str()) {
            (Some(number), _) => number.to_string(),
            (None, Some(name)) => name.to_owned(),
            (None, None) => "*".to_owned(),
        })
        .collect();
    let addresses: Vec<String> = slice
        .list("endpoints")
        .iter()
        .flat_map(|endpoint| endpoint.list("addresses"))
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    vec![
        name,
        slice.str_of("addressType").into(),
        or(&few(&ports, ""), "<unset>").into(),
        or(&few(&addresses, ""), "<unset>").into(),
        age,
    ]
}

fn binding(binding: &Value, name: Value, age: Value) -> Vec<Value> {
    let role = binding.sub("roleRef");
    let subjects = |kind: &str| -> Value {
        let all = binding.list("subjects").iter().filter(|subject| subject.str_of("kind") == kind);
        let names: Vec<String> = all
            .map(|subject| match kind {
                "ServiceAccount" => format!("{}/{}", subject.str_of("namespace"), subject.str_of("name")),
                _ => subject.str_of("name").to_owned(),
            })
            .collect();
        names.join(", ").into()
    };
    vec![
        name,
        format!("{}/{}", role.str_of("kind"), role.str_of("name")).into(),
        age,
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}

fn quota(quota: &Value, name: Value, age: Value) -> Vec<Value> {
    let status = quota.sub("status");
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (resource, hard) in status.map("hard").into_iter().flatten() {
        let used = or(status.sub("used").str_of(resource), "0");
        let text = format!("{resource}: {used}/{}", hard.as_str().unwrap_or_default());
        if resource.starts_with("limits.") { &mut limits } else { &mut requests }.push(text);
    }
    vec![name, requests.join(", ").into(), limits.join(", ").into(), age]
}

fn controller(object: &Value) -> Value {
    let owners = object.sub("metadata").list("ownerReferences");
    let Some(owner) = owners.iter().find(|owner| owner.flag("controller")) else { return "<none>".into() };
    let kind = owner.str_of("kind").to_lowercase();
    match owner.str_of("apiVersion").split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{}", owner.str_of("name")).into(),
        None => format!("{kind}/{}", owner.str_of("name")).into(),
    }
}
