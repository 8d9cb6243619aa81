//! The built-in kinds: what the server fills in and what it refuses.

use agentcube_testkit::Tape;
use agentcube_testkit::tape::MERGE_PATCH;
use serde_json::{Value, json};

use crate::cases::{Result, cases};
use crate::fixtures::{CM, DEPLOYMENTS, PODS, SECRETS, SERVICES, deployment, pod};

cases!("builtin":
    pod_defaults, pod_full_defaults, pod_refused, pod_container_refused, pod_volumes_refused, pod_resources,
    pod_env_refused, pod_security_context, service_defaults, service_headless, service_node_port,
    service_external_name, service_refused, service_ports_refused, deployment_defaults, deployment_refused,
    deployment_strategy, replica_set_defaults, stateful_set_defaults, stateful_set_refused, daemon_set_defaults,
    job_defaults, job_refused, job_immutable, cron_job_defaults, cron_job_refused, config_map_refused,
    config_map_binary, secret_types, secret_refused, claim_defaults, claim_refused, volume_defaults,
    service_account, endpoints, endpoint_slice, lease, lease_refused, role_and_binding, role_refused,
    network_policy, disruption_budget, priority_class, storage_class, runtime_class, resource_quota, limit_range,
    node, event_core, event_new_group, event_both_views, event_refused, controller_revision, pod_template,
    quantities, namespace_refused, pod_probes, pod_affinity, pod_init_containers, pod_host_network,
    stateful_set_update,
);

/// Creates under a collection path and records the answer.
async fn make(t: &mut Tape, path: &str, body: Value) -> Result {
    t.post(path, body).await?;
    Ok(())
}

fn in_ns(resource: &str) -> String {
    match resource.split_once('/') {
        Some(("core", resource)) => format!("/api/v1/namespaces/{{ns}}/{resource}"),
        Some((group, resource)) => format!("/apis/{group}/v1/namespaces/{{ns}}/{resource}"),
        None => resource.to_owned(),
    }
}

fn with_spec(extra: Value) -> Value {
    let mut body = pod("a");
    for (key, value) in extra.as_object().into_iter().flatten() {
        body["spec"][key] = value.clone();
    }
    body
}

fn with_container(extra: Value) -> Value {
    let mut body = pod("a");
    for (key, value) in extra.as_object().into_iter().flatten() {
        body["spec"]["containers"][0][key] = value.clone();
    }
    body
}

async fn pod_defaults(t: &mut Tape) -> Result {
    make(t, PODS, pod("a")).await
}

async fn pod_full_defaults(t: &mut Tape) -> Result {
    let body = with_container(json!({
        "image": "registry.example/app",
        "ports": [{"containerPort": 80}, {"containerPort": 53, "protocol": "UDP", "name": "dns"}],
        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    }));
    let mut body = body;
    body["spec"]["volumes"] = json!([
        {"name": "v", "configMap": {"name": "c"}}, {"name": "s", "secret": {"secretName": "s"}},
        {"name": "e", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/x"}},
        {"name": "p", "projected": {"sources": [{"configMap": {"name": "c"}}, {"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]}},
    ]);
    make(t, PODS, body).await
}

async fn pod_probes(t: &mut Tape) -> Result {
    let body = with_container(json!({
        "livenessProbe": {"httpGet": {"port": 80}},
        "readinessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 5},
        "startupProbe": {"exec": {"command": ["true"]}},
        "ports": [{"name": "http", "containerPort": 80}],
    }));
    make(t, PODS, body).await?;
    make(t, PODS, with_container(json!({"livenessProbe": {"periodSeconds": 5}}))).await?;
    make(t, PODS, with_container(json!({"livenessProbe": {"httpGet": {"port": 0}}}))).await
}

async fn pod_refused(t: &mut Tape) -> Result {
    make(t, PODS, with_spec(json!({"containers": []}))).await?;
    make(t, PODS, with_spec(json!({"restartPolicy": "Sometimes"}))).await?;
    make(t, PODS, with_spec(json!({"dnsPolicy": "Odd"}))).await?;
    make(t, PODS, with_spec(json!({"terminationGracePeriodSeconds": -1}))).await?;
    make(t, PODS, with_spec(json!({"activeDeadlineSeconds": 0}))).await?;
    make(t, PODS, with_spec(json!({"nodeSelector": {"bad key!": "x"}}))).await?;
    make(t, PODS, with_spec(json!({"hostname": "Bad_Host"}))).await?;
    make(t, PODS, json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}})).await
}

async fn pod_container_refused(t: &mut Tape) -> Result {
    make(t, PODS, with_spec(json!({"containers": [{"image": "i"}]}))).await?;
    make(t, PODS, with_spec(json!({"containers": [{"name": "a"}]}))).await?;
    make(t, PODS, with_spec(json!({"containers": [{"name": "Bad_Name", "image": "i"}]}))).await?;
    make(
        t,
        PODS,
        with_spec(json!({"containers": [{"name": "a", "image": "i"}, {"name": "a", "image": "i"}]})),
    )
    .await?;
    make(t, PODS, with_container(json!({"imagePullPolicy": "Perhaps"}))).await?;
    make(t, PODS, with_container(json!({"ports": [{"containerPort": 0}]}))).await?;
    make(t, PODS, with_container(json!({"ports": [{"containerPort": 70_000}]}))).await?;
    make(t, PODS, with_container(json!({"ports": [{"containerPort": 80, "name": "Bad_Name"}]}))).await?;
    make(t, PODS, with_container(json!({"ports": [{"containerPort": 80, "protocol": "ODD"}]}))).await?;
    make(t, PODS, with_container(json!({"volumeMounts": [{"name": "none", "mountPath": "/v"}]}))).await
}

async fn pod_volumes_refused(t: &mut Tape) -> Result {
    make(t, PODS, with_spec(json!({"volumes": [{"name": "v"}, {"name": "v", "emptyDir": {}}]}))).await?;
    make(t, PODS, with_spec(json!({"volumes": [{"name": "v", "emptyDir": {}, "configMap": {"name": "c"}}]})))
        .await?;
    make(t, PODS, with_spec(json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": ""}}]})))
        .await?;
    make(t, PODS, with_spec(json!({"volumes": [{"name": "Bad_Name", "emptyDir": {}}]}))).await
}

async fn pod_env_refused(t: &mut Tape) -> Result {
    make(t, PODS, with_container(json!({"env": [{"name": ""}]}))).await?;
    make(t, PODS, with_container(json!({"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}))).await?;
    make(
        t,
        PODS,
        with_container(json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.odd"}}}]})),
    )
    .await?;
    make(t, PODS, with_container(json!({"env": [{"name": "A", "valueFrom": {}}]}))).await
}

async fn pod_resources(t: &mut Tape) -> Result {
    let resources = |value: Value| with_container(json!({"resources": value}));
    make(t, PODS, resources(json!({"limits": {"cpu": "1500m", "memory": "1.5Gi"}, "requests": {"cpu": 1}})))
        .await?;
    make(t, PODS, resources(json!({"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}))).await?;
    make(t, PODS, resources(json!({"limits": {"cpu": "lots"}}))).await?;
    make(t, PODS, resources(json!({"limits": {"cpu": "-1"}}))).await?;
    make(t, PODS, resources(json!({"limits": {"odd": "1"}}))).await
}

async fn quantities(t: &mut Tape) -> Result {
    let mut body = pod("a");
    body["spec"]["containers"][0]["resources"] = json!({
        "limits": {"cpu": "0.1", "memory": "1024Ki", "ephemeral-storage": "1e3", "example.com/a": "3"},
        "requests": {"cpu": "100m", "memory": 1_048_576, "ephemeral-storage": "1000"},
    });
    make(t, PODS, body).await
}

async fn pod_security_context(t: &mut Tape) -> Result {
    let mut body =
        with_container(json!({"securityContext": {"runAsUser": 1000, "capabilities": {"drop": ["ALL"]}}}));
    body["spec"]["securityContext"] =
        json!({"runAsNonRoot": true, "fsGroup": 2000, "seccompProfile": {"type": "RuntimeDefault"}});
    make(t, PODS, body).await?;
    make(t, PODS, with_container(json!({"securityContext": {"runAsUser": -1}}))).await?;
    make(
        t,
        PODS,
        with_container(json!({"securityContext": {"privileged": true, "allowPrivilegeEscalation": false}})),
    )
    .await
}

async fn pod_affinity(t: &mut Tape) -> Result {
    let body = with_spec(json!({
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}},
        ]}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    }));
    make(t, PODS, body).await
}

async fn pod_init_containers(t: &mut Tape) -> Result {
    let body = with_spec(json!({"initContainers": [
        {"name": "init", "image": "i:1"}, {"name": "side", "image": "i:latest", "restartPolicy": "Always"},
    ]}));
    make(t, PODS, body).await?;
    make(t, PODS, with_spec(json!({"initContainers": [{"name": "main", "image": "i:1"}]}))).await
}

async fn pod_host_network(t: &mut Tape) -> Result {
    let mut body = with_container(json!({"ports": [{"containerPort": 80}]}));
    body["spec"]["hostNetwork"] = json!(true);
    make(t, PODS, body).await
}

fn service(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": spec})
}

async fn service_defaults(t: &mut Tape) -> Result {
    make(t, SERVICES, service(json!({"selector": {"app": "a"}, "ports": [{"port": 80}]}))).await
}

async fn service_headless(t: &mut Tape) -> Result {
    make(t, SERVICES, service(json!({"clusterIP": "None", "ports": [{"port": 80, "targetPort": "http"}]})))
        .await?;
    t.patch(MERGE_PATCH, &format!("{SERVICES}/a"), json!({"spec": {"publishNotReadyAddresses": true}}))
        .await?;
    t.patch(MERGE_PATCH, &format!("{SERVICES}/a"), json!({"spec": {"clusterIP": "10.96.0.77"}})).await?;
    Ok(())
}

async fn service_node_port(t: &mut Tape) -> Result {
    make(t, SERVICES, service(json!({"type": "NodePort", "ports": [{"port": 80}]}))).await?;
    make(t, SERVICES, service(json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]}))).await
}

async fn service_external_name(t: &mut Tape) -> Result {
    make(t, SERVICES, service(json!({"type": "ExternalName", "externalName": "x.example"}))).await?;
    make(t, SERVICES, service(json!({"type": "ExternalName"}))).await
}

async fn service_refused(t: &mut Tape) -> Result {
    make(t, SERVICES, service(json!({}))).await?;
    make(t, SERVICES, service(json!({"type": "Odd", "ports": [{"port": 80}]}))).await?;
    make(t, SERVICES, service(json!({"clusterIP": "nonsense", "ports": [{"port": 80}]}))).await?;
    make(t, SERVICES, service(json!({"sessionAffinity": "Odd", "ports": [{"port": 80}]}))).await?;
    make(t, SERVICES, service(json!({"selector": {"bad key!": "x"}, "ports": [{"port": 80}]}))).await
}

async fn service_ports_refused(t: &mut Tape) -> Result {
    make(t, SERVICES, service(json!({"ports": [{"port": 0}]}))).await?;
    make(t, SERVICES, service(json!({"ports": [{"port": 80}, {"port": 81}]}))).await?;
    make(t, SERVICES, service(json!({"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 80}]})))
        .await?;
    make(t, SERVICES, service(json!({"ports": [{"port": 80, "targetPort": "Bad_Name"}]}))).await?;
    make(t, SERVICES, service(json!({"ports": [{"name": "a", "port": 80}, {"name": "a", "port": 81}]}))).await
}

async fn deployment_defaults(t: &mut Tape) -> Result {
    make(t, DEPLOYMENTS, deployment("a")).await
}

async fn deployment_refused(t: &mut Tape) -> Result {
    let spec = |key: &str, value: Value| {
        let mut body = deployment("a");
        body["spec"][key] = value;
        body
    };
    make(t, DEPLOYMENTS, spec("selector", json!({"matchLabels": {"app": "other"}}))).await?;
    make(t, DEPLOYMENTS, spec("selector", Value::Null)).await?;
    make(t, DEPLOYMENTS, spec("selector", json!({}))).await?;
    make(t, DEPLOYMENTS, spec("replicas", json!(-1))).await?;
    make(t, DEPLOYMENTS, spec("minReadySeconds", json!(-1))).await?;
    let mut body = deployment("a");
    body["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    make(t, DEPLOYMENTS, body).await?;
    let mut body = deployment("a");
    body["spec"]["template"] = Value::Null;
    make(t, DEPLOYMENTS, body).await
}

async fn deployment_strategy(t: &mut Tape) -> Result {
    let strategy = |value: Value| {
        let mut body = deployment("a");
        body["spec"]["strategy"] = value;
        body
    };
    make(t, DEPLOYMENTS, strategy(json!({"rollingUpdate": {"maxSurge": "x%"}}))).await?;
    make(t, DEPLOYMENTS, strategy(json!({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}))).await?;
    make(t, DEPLOYMENTS, strategy(json!({"type": "Odd"}))).await?;
    make(t, DEPLOYMENTS, strategy(json!({"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}))).await?;
    make(t, DEPLOYMENTS, strategy(json!({"rollingUpdate": {"maxSurge": 2}}))).await
}

fn of_apps(kind: &str, extra: Value) -> Value {
    let mut body = deployment("a");
    body["kind"] = json!(kind);
    for (key, value) in extra.as_object().into_iter().flatten() {
        body["spec"][key] = value.clone();
    }
    body
}

async fn replica_set_defaults(t: &mut Tape) -> Result {
    make(t, &in_ns("apps/replicasets"), of_apps("ReplicaSet", json!({}))).await?;
    let scale = in_ns("apps/replicasets") + "/a/scale";
    t.get(&scale).await?;
    t.patch(MERGE_PATCH, &scale, json!({"spec": {"replicas": 4}})).await?;
    Ok(())
}

async fn stateful_set_defaults(t: &mut Tape) -> Result {
    let claims = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]);
    make(
        t,
        &in_ns("apps/statefulsets"),
        of_apps("StatefulSet", json!({"serviceName": "s", "volumeClaimTemplates": claims})),
    )
    .await
}

async fn stateful_set_refused(t: &mut Tape) -> Result {
    make(t, &in_ns("apps/statefulsets"), of_apps("StatefulSet", json!({"podManagementPolicy": "Odd"})))
        .await?;
    make(t, &in_ns("apps/statefulsets"), of_apps("StatefulSet", json!({"updateStrategy": {"type": "Odd"}})))
        .await
}

async fn stateful_set_update(t: &mut Tape) -> Result {
    let path = in_ns("apps/statefulsets");
    t.setup(&path, of_apps("StatefulSet", json!({"serviceName": "s"}))).await?;
    t.patch(MERGE_PATCH, &format!("{path}/a"), json!({"spec": {"serviceName": "other"}})).await?;
    t.patch(MERGE_PATCH, &format!("{path}/a"), json!({"spec": {"replicas": 3}})).await?;
    Ok(())
}

async fn daemon_set_defaults(t: &mut Tape) -> Result {
    make(t, &in_ns("apps/daemonsets"), of_apps("DaemonSet", json!({}))).await
}

fn job(extra: Value) -> Value {
    let mut body = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i:1"}]}}},
    });
    for (key, value) in extra.as_object().into_iter().flatten() {
        body["spec"][key] = value.clone();
    }
    body
}

async fn job_defaults(t: &mut Tape) -> Result {
    make(t, &in_ns("batch/jobs"), job(json!({}))).await?;
    let mut indexed = job(json!({"completionMode": "Indexed", "completions": 3, "parallelism": 2}));
    indexed["metadata"]["name"] = json!("b");
    make(t, &in_ns("batch/jobs"), indexed).await
}

async fn job_refused(t: &mut Tape) -> Result {
    let mut body = job(json!({}));
    body["spec"]["template"]["spec"]["restartPolicy"] = json!("Always");
    make(t, &in_ns("batch/jobs"), body).await?;
    make(t, &in_ns("batch/jobs"), job(json!({"backoffLimit": -1}))).await?;
    make(t, &in_ns("batch/jobs"), job(json!({"completions": -1}))).await?;
    make(t, &in_ns("batch/jobs"), job(json!({"selector": {"matchLabels": {"a": "b"}}}))).await
}

async fn job_immutable(t: &mut Tape) -> Result {
    t.setup(&in_ns("batch/jobs"), job(json!({}))).await?;
    let path = in_ns("batch/jobs") + "/a";
    t.patch(MERGE_PATCH, &path, json!({"spec": {"completions": 3}})).await?;
    t.patch(MERGE_PATCH, &path, json!({"spec": {"parallelism": 3}})).await?;
    Ok(())
}

fn cron_job(schedule: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "a"},
        "spec": {"schedule": schedule, "jobTemplate": {"spec": job(json!({}))["spec"]}},
    })
}

async fn cron_job_defaults(t: &mut Tape) -> Result {
    make(t, &in_ns("batch/cronjobs"), cron_job("*/5 * * * *")).await
}

async fn cron_job_refused(t: &mut Tape) -> Result {
    make(t, &in_ns("batch/cronjobs"), cron_job("whenever")).await?;
    make(t, &in_ns("batch/cronjobs"), cron_job("")).await?;
    let mut body = cron_job("@daily");
    body["spec"]["concurrencyPolicy"] = json!("Odd");
    make(t, &in_ns("batch/cronjobs"), body).await
}

async fn config_map_refused(t: &mut Tape) -> Result {
    let data = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
    make(t, CM, data(json!({"bad key!": "x"}))).await?;
    make(t, CM, data(json!({"..": "x"}))).await?;
    make(t, CM, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}, "binaryData": {"k": "dg=="}})).await?;
    make(t, CM, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "binaryData": {"k": "not base64"}})).await
}

async fn config_map_binary(t: &mut Tape) -> Result {
    make(t, CM, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "binaryData": {"k": "AP8="}})).await
}

fn secret(kind: Option<&str>, data: Value) -> Value {
    let mut body = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "data": data});
    if let Some(kind) = kind {
        body["type"] = json!(kind);
    }
    body
}

async fn secret_types(t: &mut Tape) -> Result {
    let mut body = secret(None, json!({"k": "dg=="}));
    body["stringData"] = json!({"k": "wins", "more": "x"});
    make(t, SECRETS, body).await?;
    t.patch(MERGE_PATCH, &format!("{SECRETS}/a"), json!({"type": "other"})).await?;
    t.patch(MERGE_PATCH, &format!("{SECRETS}/a"), json!({"stringData": {"k": "again"}})).await?;
    Ok(())
}

async fn secret_refused(t: &mut Tape) -> Result {
    make(t, SECRETS, secret(None, json!({"k": "not base64"}))).await?;
    make(t, SECRETS, secret(Some("kubernetes.io/tls"), json!({"tls.crt": "dg=="}))).await?;
    make(t, SECRETS, secret(Some("kubernetes.io/dockerconfigjson"), json!({".dockerconfigjson": "dg=="})))
        .await?;
    make(t, SECRETS, secret(Some("kubernetes.io/basic-auth"), json!({}))).await?;
    make(t, SECRETS, secret(Some("kubernetes.io/service-account-token"), json!({}))).await
}

fn claim(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"}, "spec": spec})
}

async fn claim_defaults(t: &mut Tape) -> Result {
    let path = in_ns("core/persistentvolumeclaims");
    make(
        t,
        &path,
        claim(json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}})),
    )
    .await?;
    t.patch(
        MERGE_PATCH,
        &format!("{path}/a"),
        json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}),
    )
    .await?;
    t.patch(MERGE_PATCH, &format!("{path}/a"), json!({"metadata": {"finalizers": null}})).await?;
    Ok(())
}

async fn claim_refused(t: &mut Tape) -> Result {
    let path = in_ns("core/persistentvolumeclaims");
    make(t, &path, claim(json!({}))).await?;
    make(t, &path, claim(json!({"accessModes": ["Odd"], "resources": {"requests": {"storage": "1Gi"}}})))
        .await?;
    make(
        t,
        &path,
        claim(json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "-1Gi"}}})),
    )
    .await
}

async fn volume_defaults(t: &mut Tape) -> Result {
    let path = "/api/v1/persistentvolumes";
    t.remove_later("/api/v1/persistentvolumes/{ns}-v");
    make(
        t,
        path,
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "{ns}-v"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}}),
    )
    .await?;
    t.patch(MERGE_PATCH, "/api/v1/persistentvolumes/{ns}-v", json!({"metadata": {"finalizers": null}}))
        .await?;
    make(
        t,
        path,
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "{ns}-w"}, "spec": {}}),
    )
    .await
}

async fn service_account(t: &mut Tape) -> Result {
    make(t, &in_ns("core/serviceaccounts"), json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}, "imagePullSecrets": [{"name": "s"}]})).await
}

async fn endpoints(t: &mut Tape) -> Result {
    let path = in_ns("core/endpoints");
    make(t, &path, json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "a"}, "subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}]})).await?;
    make(t, &path, json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "b"}, "subsets": [{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": 80}]}]})).await
}

async fn endpoint_slice(t: &mut Tape) -> Result {
    let path = in_ns("discovery.k8s.io/endpointslices");
    make(t, &path, json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}], "ports": [{"port": 80}]})).await?;
    make(t, &path, json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "b"}, "addressType": "Odd", "endpoints": []})).await
}

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases";

fn lease_body(spec: Value) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}, "spec": spec})
}

async fn lease(t: &mut Tape) -> Result {
    let spec = json!({"holderIdentity": "me", "leaseDurationSeconds": 15, "acquireTime": "2001-02-03T04:05:06.123456Z", "renewTime": "2001-02-03T04:05:07.000000Z", "leaseTransitions": 1});
    let mut object = t.post(LEASES, lease_body(spec)).await?.value();
    object["spec"]["renewTime"] = json!("2001-02-03T04:05:08.000000Z");
    t.put(&format!("{LEASES}/a"), object.clone()).await?;
    t.put(&format!("{LEASES}/a"), object).await?;
    Ok(())
}

async fn lease_refused(t: &mut Tape) -> Result {
    make(t, LEASES, lease_body(json!({"leaseDurationSeconds": 0}))).await?;
    make(t, LEASES, lease_body(json!({"leaseTransitions": -1}))).await?;
    make(t, LEASES, lease_body(json!({"renewTime": "yesterday"}))).await?;
    make(t, LEASES, lease_body(json!({"renewTime": "2001-02-03T04:05:07Z"}))).await?;
    make(t, LEASES, lease_body(json!({}))).await
}

const RBAC: &str = "rbac.authorization.k8s.io";

async fn role_and_binding(t: &mut Tape) -> Result {
    make(t, &in_ns(&format!("{RBAC}/roles")), json!({"apiVersion": format!("{RBAC}/v1"), "kind": "Role", "metadata": {"name": "a"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]})).await?;
    make(t, &in_ns(&format!("{RBAC}/rolebindings")), json!({"apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding", "metadata": {"name": "a"},
        "roleRef": {"kind": "Role", "name": "a"}, "subjects": [{"kind": "ServiceAccount", "name": "s"}, {"kind": "User", "name": "u"}]})).await
}

async fn role_refused(t: &mut Tape) -> Result {
    make(t, &in_ns(&format!("{RBAC}/roles")), json!({"apiVersion": format!("{RBAC}/v1"), "kind": "Role", "metadata": {"name": "a"}, "rules": [{"resources": ["pods"]}]})).await?;
    make(t, &in_ns(&format!("{RBAC}/rolebindings")), json!({"apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding", "metadata": {"name": "a"}, "roleRef": {"kind": "Odd", "name": "a"}})).await
}

async fn network_policy(t: &mut Tape) -> Result {
    make(t, &in_ns("networking.k8s.io/networkpolicies"), json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "a"}, "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}], "egress": [{}]}})).await
}

async fn disruption_budget(t: &mut Tape) -> Result {
    let path = in_ns("policy/poddisruptionbudgets");
    let body = |spec: Value| json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "a"}, "spec": spec});
    make(t, &path, body(json!({"minAvailable": 1, "maxUnavailable": 1}))).await?;
    make(t, &path, body(json!({"minAvailable": "50%", "selector": {"matchLabels": {"a": "b"}}}))).await
}

async fn priority_class(t: &mut Tape) -> Result {
    t.remove_later("/apis/scheduling.k8s.io/v1/priorityclasses/{ns}");
    make(t, "/apis/scheduling.k8s.io/v1/priorityclasses", json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "{ns}"}, "value": 100})).await?;
    let mut body = pod("a");
    body["spec"]["priorityClassName"] = json!("{ns}");
    make(t, PODS, body).await?;
    let mut body = pod("b");
    body["spec"]["priorityClassName"] = json!("none");
    make(t, PODS, body).await
}

async fn storage_class(t: &mut Tape) -> Result {
    t.remove_later("/apis/storage.k8s.io/v1/storageclasses/{ns}");
    make(t, "/apis/storage.k8s.io/v1/storageclasses", json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "{ns}"}, "provisioner": "example.com/p"})).await
}

async fn runtime_class(t: &mut Tape) -> Result {
    t.remove_later("/apis/node.k8s.io/v1/runtimeclasses/{ns}");
    make(t, "/apis/node.k8s.io/v1/runtimeclasses", json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "{ns}"}, "handler": "native"})).await
}

async fn resource_quota(t: &mut Tape) -> Result {
    make(t, &in_ns("core/resourcequotas"), json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "a"}, "spec": {"hard": {"configmaps": "100"}}})).await
}

async fn limit_range(t: &mut Tape) -> Result {
    make(t, &in_ns("core/limitranges"), json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "a"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]}})).await
}

async fn node(t: &mut Tape) -> Result {
    t.remove_later("/api/v1/nodes/{ns}");
    make(t, "/api/v1/nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "{ns}"}}))
        .await?;
    t.patch(
        MERGE_PATCH,
        "/api/v1/nodes/{ns}/status",
        json!({"status": {"capacity": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}}),
    )
    .await?;
    Ok(())
}

const EVENTS: &str = "/api/v1/namespaces/{ns}/events";
const NEW_EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/{ns}/events";

fn core_event() -> Value {
    json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "a"}, "reason": "Started", "message": "it began", "type": "Normal",
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "{ns}"}, "source": {"component": "test"}, "count": 2,
        "firstTimestamp": "2001-02-03T04:05:06Z", "lastTimestamp": "2001-02-03T04:05:07Z"})
}

fn new_event(name: &str) -> Value {
    json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name}, "reason": "Started", "note": "it began", "type": "Normal",
        "action": "Start", "regarding": {"kind": "Pod", "name": "p", "namespace": "{ns}"}, "eventTime": "2001-02-03T04:05:06.000007Z",
        "reportingController": "example.com/test", "reportingInstance": "test-1"})
}

async fn event_core(t: &mut Tape) -> Result {
    make(t, EVENTS, core_event()).await?;
    t.get(&format!("{EVENTS}?fieldSelector=involvedObject.name%3Dp,reason%3DStarted")).await?;
    Ok(())
}

async fn event_new_group(t: &mut Tape) -> Result {
    make(t, NEW_EVENTS, new_event("a")).await?;
    t.patch(
        MERGE_PATCH,
        &format!("{NEW_EVENTS}/a"),
        json!({"series": {"count": 2, "lastObservedTime": "2001-02-03T04:05:08.000000Z"}}),
    )
    .await?;
    Ok(())
}

async fn event_both_views(t: &mut Tape) -> Result {
    t.setup(EVENTS, core_event()).await?;
    t.setup(NEW_EVENTS, new_event("b")).await?;
    t.get(&format!("{NEW_EVENTS}/a")).await?;
    t.get(&format!("{EVENTS}/b")).await?;
    t.get(&format!("{NEW_EVENTS}?fieldSelector=regarding.name%3Dp")).await?;
    Ok(())
}

async fn event_refused(t: &mut Tape) -> Result {
    let mut body = new_event("a");
    body["regarding"]["namespace"] = json!("other");
    make(t, NEW_EVENTS, body).await?;
    let mut body = new_event("a");
    body.as_object_mut().map(|event| event.remove("eventTime"));
    make(t, NEW_EVENTS, body).await?;
    let mut body = new_event("a");
    body["type"] = json!("Odd");
    make(t, NEW_EVENTS, body).await?;
    let mut body = new_event("a");
    body.as_object_mut().map(|event| event.remove("reportingController"));
    make(t, NEW_EVENTS, body).await?;
    let mut body = core_event();
    body["involvedObject"]["namespace"] = json!("other");
    make(t, EVENTS, body).await
}

async fn controller_revision(t: &mut Tape) -> Result {
    make(t, &in_ns("apps/controllerrevisions"), json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": "a"}, "data": {"any": "thing"}, "revision": 1})).await
}

async fn pod_template(t: &mut Tape) -> Result {
    make(t, &in_ns("core/podtemplates"), json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "a"}, "template": {"spec": {"containers": [{"name": "a", "image": "i"}]}}})).await
}

async fn namespace_refused(t: &mut Tape) -> Result {
    make(
        t,
        "/api/v1/namespaces",
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "Bad_Name"}}),
    )
    .await?;
    make(
        t,
        "/api/v1/namespaces",
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x".repeat(64)}}),
    )
    .await?;
    make(
        t,
        "/api/v1/namespaces",
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "{ns}"}}),
    )
    .await
}
