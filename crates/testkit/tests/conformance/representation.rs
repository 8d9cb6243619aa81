//! Other shapes of answers: tables, metadata only, YAML, discovery, OpenAPI.

use agentcube_testkit::{Reply, Request, Tape};
use http::Method;
use serde_json::{Map, Value, json};

use crate::cases::{Result, cases};
use crate::fixtures::{
    CM, CRDS, DEPLOYMENTS, PODS, SECRETS, SERVICES, WIDGET_CRD, WIDGETS, config_map, deployment, pod, widget,
    widget_crd,
};

cases!("representation":
    table_of_config_maps, table_of_pods, table_of_deployments, table_of_services, table_of_secrets, table_of_jobs,
    table_of_stateful_sets, table_of_events, table_of_namespaces, table_of_leases, table_of_definitions,
    table_of_widgets, table_of_one, table_objects, table_of_replica_sets, table_of_claims, table_of_nodes,
    table_fallback, table_of_status, metadata_of_one, metadata_of_list, metadata_of_custom, metadata_list_of_one,
    yaml_answer, core_discovery, group_discovery, resource_discovery, aggregated_discovery, version, health,
    openapi_index, openapi_core_paths, openapi_schemas, openapi_custom, openapi_patch_parameters,
    pod_table_states,
);

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

async fn table_after(t: &mut Tape, path: &str, body: Value) -> Result {
    t.setup(path, body).await?;
    t.get_as(path, TABLE).await?;
    Ok(())
}

async fn table_of_config_maps(t: &mut Tape) -> Result {
    table_after(t, CM, config_map("a")).await
}

async fn table_of_pods(t: &mut Tape) -> Result {
    table_after(t, PODS, pod("a")).await
}

async fn pod_table_states(t: &mut Tape) -> Result {
    for (name, status) in [
        (
            "crash",
            json!({"phase": "Running", "podIP": "192.0.2.1", "podIPs": [{"ip": "192.0.2.1"}], "containerStatuses": [{"name": "main", "ready": false, "restartCount": 3, "image": "i", "imageID": "", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}),
        ),
        (
            "done",
            json!({"phase": "Succeeded", "containerStatuses": [{"name": "main", "ready": false, "restartCount": 0, "image": "i", "imageID": "", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]}),
        ),
        (
            "ready",
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [{"name": "main", "ready": true, "restartCount": 0, "image": "i", "imageID": "", "state": {"running": {}}}]}),
        ),
        ("evicted", json!({"phase": "Failed", "reason": "Evicted"})),
    ] {
        t.setup(PODS, pod(name)).await?;
        let body = json!({"status": status}).to_string();
        let path = format!("{PODS}/{name}/status");
        t.aside(Request::new(Method::PATCH, path).body(agentcube_testkit::tape::MERGE_PATCH, body)).await?;
    }
    let mut held = pod("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    t.setup(PODS, held).await?;
    t.aside(Request::new(Method::DELETE, format!("{PODS}/held"))).await?;
    let cells = |value: Value| {
        value["rows"].as_array().map_or(Value::Null, |rows| {
            rows.iter().map(|row| json!(row["cells"].as_array().map(|cells| cells[..4].to_vec()))).collect()
        })
    };
    t.send_viewed(Request::new(Method::GET, PODS).header("accept", TABLE), cells).await?;
    let body = r#"{"metadata":{"finalizers":null}}"#;
    t.aside(
        Request::new(Method::PATCH, format!("{PODS}/held")).body(agentcube_testkit::tape::MERGE_PATCH, body),
    )
    .await?;
    Ok(())
}

async fn table_of_deployments(t: &mut Tape) -> Result {
    table_after(t, DEPLOYMENTS, deployment("a")).await
}

async fn table_of_replica_sets(t: &mut Tape) -> Result {
    let mut body = deployment("a");
    body["kind"] = json!("ReplicaSet");
    table_after(t, "/apis/apps/v1/namespaces/{ns}/replicasets", body).await
}

async fn table_of_stateful_sets(t: &mut Tape) -> Result {
    let mut body = deployment("a");
    body["kind"] = json!("StatefulSet");
    body["spec"]["serviceName"] = json!("s");
    table_after(t, "/apis/apps/v1/namespaces/{ns}/statefulsets", body).await
}

async fn table_of_services(t: &mut Tape) -> Result {
    t.setup(SERVICES, json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "b"}, "spec": {"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"name": "x", "port": 80}, {"name": "y", "port": 81}]}})).await?;
    t.setup(SERVICES, json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "c"}, "spec": {"type": "ExternalName", "externalName": "x.example"}})).await?;
    table_after(t, SERVICES, json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}})).await
}

async fn table_of_secrets(t: &mut Tape) -> Result {
    table_after(
        t,
        SECRETS,
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "data": {"k": "dg=="}}),
    )
    .await
}

async fn table_of_jobs(t: &mut Tape) -> Result {
    let body = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i:1"}]}}}});
    table_after(t, "/apis/batch/v1/namespaces/{ns}/jobs", body).await
}

async fn table_of_claims(t: &mut Tape) -> Result {
    let path = "/api/v1/namespaces/{ns}/persistentvolumeclaims";
    table_after(t, path, json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})).await?;
    let body = r#"{"metadata":{"finalizers":null}}"#;
    t.aside(
        Request::new(Method::PATCH, format!("{path}/a")).body(agentcube_testkit::tape::MERGE_PATCH, body),
    )
    .await?;
    Ok(())
}

async fn table_of_events(t: &mut Tape) -> Result {
    let body = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "a"}, "reason": "Started", "message": "it began", "type": "Normal",
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "{ns}"}, "source": {"component": "test"}, "count": 2,
        "firstTimestamp": "2001-02-03T04:05:06Z", "lastTimestamp": "2001-02-03T04:05:07Z"});
    table_after(t, "/api/v1/namespaces/{ns}/events", body).await
}

async fn table_of_namespaces(t: &mut Tape) -> Result {
    t.get_as("/api/v1/namespaces/{ns}", TABLE).await?;
    Ok(())
}

async fn table_of_nodes(t: &mut Tape) -> Result {
    t.remove_later("/api/v1/nodes/{ns}");
    t.setup("/api/v1/nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "{ns}", "labels": {"node-role.kubernetes.io/worker": ""}}})).await?;
    t.get_as("/api/v1/nodes/{ns}", TABLE).await?;
    Ok(())
}

async fn table_of_leases(t: &mut Tape) -> Result {
    let body = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}, "spec": {"holderIdentity": "me"}});
    table_after(t, "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases", body).await
}

async fn table_of_definitions(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({})), WIDGETS).await?;
    t.get_as(&format!("{CRDS}/{WIDGET_CRD}"), TABLE).await?;
    Ok(())
}

async fn table_of_widgets(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({})), WIDGETS).await?;
    table_after(t, WIDGETS, widget("a", json!({}))).await
}

async fn table_of_one(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.get_as(&format!("{CM}/a"), TABLE).await?;
    t.get_as(&format!("{CM}/none"), TABLE).await?;
    Ok(())
}

async fn table_objects(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    for include in ["None", "Object", "Metadata", "Odd"] {
        t.get_as(&format!("{CM}?includeObject={include}"), TABLE).await?;
    }
    Ok(())
}

async fn table_fallback(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.get_as(CM, "application/json;as=Table;v=v9;g=meta.k8s.io").await?;
    t.get_as(CM, "application/json;as=Table;v=v9;g=meta.k8s.io,application/json;as=Table;v=v1;g=meta.k8s.io")
        .await?;
    Ok(())
}

async fn table_of_status(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.send(Request::new(Method::DELETE, format!("{CM}/a")).header("accept", TABLE)).await?;
    t.send(Request::new(Method::POST, CM).header("accept", TABLE).json(&config_map("b"))).await?;
    Ok(())
}

async fn metadata_of_one(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.get_as(&format!("{CM}/a"), METADATA).await?;
    Ok(())
}

async fn metadata_of_list(t: &mut Tape) -> Result {
    t.setup(PODS, pod("a")).await?;
    t.get_as(PODS, METADATA_LIST).await?;
    t.get_as(&format!("{PODS}?limit=1"), METADATA_LIST).await?;
    Ok(())
}

async fn metadata_of_custom(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({})), WIDGETS).await?;
    t.setup(WIDGETS, widget("a", json!({}))).await?;
    t.get_as(&format!("{WIDGETS}/a"), METADATA).await?;
    t.get_as(WIDGETS, METADATA_LIST).await?;
    Ok(())
}

async fn metadata_list_of_one(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.get_as(&format!("{CM}/a"), METADATA_LIST).await?;
    t.get_as(CM, METADATA).await?;
    Ok(())
}

async fn yaml_answer(t: &mut Tape) -> Result {
    t.setup(CM, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "two\nlines\n", "n": "1", "b": "true"}})).await?;
    let without_metadata = |value: Value| match value.as_str().and_then(|text| text.split_once("metadata:")) {
        Some((head, _)) => json!(head),
        None => value,
    };
    t.send_viewed(
        Request::new(Method::GET, format!("{CM}/a")).header("accept", "application/yaml"),
        without_metadata,
    )
    .await?;
    Ok(())
}

/// The kinds that the project needs; the real server serves more.
const NEEDED: [&str; 24] = [
    "pods",
    "services",
    "namespaces",
    "nodes",
    "configmaps",
    "secrets",
    "serviceaccounts",
    "persistentvolumes",
    "persistentvolumeclaims",
    "endpoints",
    "events",
    "deployments",
    "replicasets",
    "statefulsets",
    "daemonsets",
    "jobs",
    "cronjobs",
    "leases",
    "endpointslices",
    "networkpolicies",
    "roles",
    "rolebindings",
    "storageclasses",
    "customresourcedefinitions",
];

/// The needed resources with their status and scale, by name.
fn needed_resources(value: Value) -> Value {
    let mut kept = Map::new();
    for resource in value["resources"].as_array().into_iter().flatten() {
        let name = resource["name"].as_str().unwrap_or_default();
        let (base, sub) = name.split_once('/').unwrap_or((name, ""));
        if NEEDED.contains(&base) && matches!(sub, "" | "status" | "scale") {
            kept.insert(name.to_owned(), resource.clone());
        }
    }
    json!({"kind": value["kind"], "apiVersion": value["apiVersion"], "groupVersion": value["groupVersion"], "resources": kept})
}

async fn core_discovery(t: &mut Tape) -> Result {
    t.send_viewed(Request::new(Method::GET, "/api"), |mut value| {
        value["serverAddressByClientCIDRs"] = Value::Null;
        value
    })
    .await?;
    t.send_viewed(Request::new(Method::GET, "/api/v1"), needed_resources).await?;
    Ok(())
}

const GROUPS: [&str; 10] = [
    "apps",
    "batch",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "networking.k8s.io",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "apiextensions.k8s.io",
    "policy",
];

async fn group_discovery(t: &mut Tape) -> Result {
    let needed = |value: Value| {
        let groups = value["groups"].as_array().into_iter().flatten();
        let kept: Vec<Value> = groups
            .filter(|group| GROUPS.iter().any(|name| group["name"] == *name))
            .map(preferred_only)
            .collect();
        json!({"kind": value["kind"], "apiVersion": value["apiVersion"], "groups": kept})
    };
    t.send_viewed(Request::new(Method::GET, "/apis"), needed).await?;
    t.send_viewed(Request::new(Method::GET, "/apis/apps"), |value| value).await?;
    t.send_viewed(Request::new(Method::GET, "/apis/nonsense.example.com"), |value| value).await?;
    Ok(())
}

/// Of several versions, only the preferred one is compared.
fn preferred_only(group: &Value) -> Value {
    json!({"name": group["name"], "preferredVersion": group["preferredVersion"]})
}

async fn resource_discovery(t: &mut Tape) -> Result {
    for group in GROUPS {
        t.send_viewed(Request::new(Method::GET, format!("/apis/{group}/v1")), needed_resources).await?;
    }
    Ok(())
}

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

async fn aggregated_discovery(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({})), WIDGETS).await?;
    let namespace = t.namespace().to_owned();
    t.wait("/apis/{ns}.example.com/v1", Reply::is_success).await?;
    for path in ["/api", "/apis"] {
        let request = Request::new(Method::GET, path).header("accept", AGGREGATED);
        // The aggregated document of the real server follows a moment after the definition.
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            let text = String::from_utf8_lossy(&t.aside(request.clone()).await?.bytes).into_owned();
            if path == "/api" || text.contains(&namespace) || tokio::time::Instant::now() > deadline {
                break;
            }
        }
        t.send_viewed(request, |value| aggregated_view(&value, &namespace)).await?;
    }
    Ok(())
}

fn aggregated_view(value: &Value, namespace: &str) -> Value {
    let mut groups = Map::new();
    for group in value["items"].as_array().into_iter().flatten() {
        let name = group["metadata"]["name"].as_str().unwrap_or_default();
        if !(name.is_empty() || GROUPS.contains(&name) || name.starts_with(namespace)) {
            continue;
        }
        for version in
            group["versions"].as_array().into_iter().flatten().filter(|version| version["version"] == "v1")
        {
            let resources = version["resources"].as_array().into_iter().flatten();
            let kept: Map<String, Value> = resources
                .filter(|resource| {
                    resource["resource"] == "widgets"
                        || NEEDED.iter().any(|name| resource["resource"] == *name)
                })
                .map(|resource| {
                    (
                        resource["resource"].as_str().unwrap_or_default().to_owned(),
                        without_odd_subresources(resource),
                    )
                })
                .collect();
            groups.insert(name.to_owned(), json!({"freshness": version["freshness"], "resources": kept}));
        }
    }
    json!({"kind": value["kind"], "apiVersion": value["apiVersion"], "groups": groups})
}

fn without_odd_subresources(resource: &Value) -> Value {
    let mut resource = resource.clone();
    if let Some(Value::Array(subresources)) = resource.get_mut("subresources") {
        subresources.retain(|sub| sub["subresource"] == "status" || sub["subresource"] == "scale");
    }
    resource
}

async fn version(t: &mut Tape) -> Result {
    let view = |value: Value| json!({"major": value["major"], "minor": value["minor"]});
    t.send_viewed(Request::new(Method::GET, "/version"), view).await?;
    Ok(())
}

async fn health(t: &mut Tape) -> Result {
    for path in ["/healthz", "/livez", "/readyz"] {
        t.get(path).await?;
    }
    Ok(())
}

async fn openapi_index(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({})), WIDGETS).await?;
    let namespace = t.namespace().to_owned();
    t.wait("/openapi/v3", |reply| String::from_utf8_lossy(&reply.bytes).contains(&namespace)).await?;
    let view = move |value: Value| {
        let paths = value["paths"].as_object().cloned().unwrap_or_default();
        let wanted = |path: &str| {
            path == "api/v1" || path == "apis/apps/v1" || path.starts_with(&format!("apis/{namespace}"))
        };
        let kept = paths.into_iter().filter(|(path, _)| wanted(path)).map(|(path, mut entry)| {
            // What follows is a hash of the document.
            if let Some(Value::String(url)) = entry.get_mut("serverRelativeURL") {
                let end = url.find("hash=").map_or(url.len(), |at| at + 5);
                url.truncate(end);
            }
            (path, entry)
        });
        json!(kept.collect::<Map<String, Value>>())
    };
    t.send_viewed(Request::new(Method::GET, "/openapi/v3"), view).await?;
    Ok(())
}

async fn openapi_core_paths(t: &mut Tape) -> Result {
    let view = |value: Value| {
        let path = &value["paths"]["/api/v1/namespaces/{namespace}/configmaps/{name}"];
        let operations = path.as_object().into_iter().flatten().filter(|(key, _)| *key != "parameters");
        let actions = operations.map(|(key, operation)| (key.clone(), json!({"action": operation["x-kubernetes-action"], "gvk": operation["x-kubernetes-group-version-kind"]})));
        json!(actions.collect::<Map<String, Value>>())
    };
    t.send_viewed(Request::new(Method::GET, "/openapi/v3/api/v1"), view).await?;
    Ok(())
}

async fn openapi_patch_parameters(t: &mut Tape) -> Result {
    let view = |value: Value| {
        let patch = &value["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
        let mut names: Vec<&str> = patch["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|parameter| parameter["name"].as_str())
            .collect();
        names.sort_unstable();
        json!({"parameters": names})
    };
    t.send_viewed(Request::new(Method::GET, "/openapi/v3/apis/apps/v1"), view).await?;
    Ok(())
}

async fn openapi_schemas(t: &mut Tape) -> Result {
    let view = |names: &'static [&'static str]| {
        move |value: Value| -> Value {
            let schemas = &value["components"]["schemas"];
            json!(
                names
                    .iter()
                    .map(|name| ((*name).to_owned(), schemas[*name].clone()))
                    .collect::<Map<String, Value>>()
            )
        }
    };
    t.send_viewed(
        Request::new(Method::GET, "/openapi/v3/api/v1"),
        view(&["io.k8s.api.core.v1.ConfigMap", "io.k8s.api.core.v1.Container"]),
    )
    .await?;
    t.send_viewed(
        Request::new(Method::GET, "/openapi/v3/apis/apps/v1"),
        view(&["io.k8s.api.apps.v1.Deployment", "io.k8s.api.apps.v1.DeploymentSpec"]),
    )
    .await?;
    Ok(())
}

async fn openapi_custom(t: &mut Tape) -> Result {
    let properties = json!({
        "size": {"type": "integer", "description": "how big", "default": 3, "minimum": 1},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    });
    t.define(widget_crd(properties), WIDGETS).await?;
    let document = "/openapi/v3/apis/{ns}.example.com/v1";
    t.wait(document, Reply::is_success).await?;
    let view = |value: Value| {
        let schemas = value["components"]["schemas"].as_object().cloned().unwrap_or_default();
        let own: Map<String, Value> =
            schemas.into_iter().filter(|(name, _)| !name.starts_with("io.k8s")).collect();
        let mut paths: Vec<String> =
            value["paths"].as_object().into_iter().flatten().map(|(path, _)| path.clone()).collect();
        paths.sort_unstable();
        json!({"openapi": value["openapi"], "schemas": own, "paths": paths})
    };
    t.send_viewed(Request::new(Method::GET, document), view).await?;
    t.get("/openapi/v3/apis/nonsense.example.com/v1").await?;
    Ok(())
}
