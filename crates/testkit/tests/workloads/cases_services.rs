//! The endpoints of Services.

use serde_json::{Value, json};

use crate::cases::{Result, cases};
use crate::stage::Stage;
use crate::world::{World, text};

cases!("services": lifecycle, named_ports, headless, relabelling, not_for_all, deletion, many_endpoints,
    absent_node);

/// Written only for measurements, with a time.
const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// A node that Pods can be on: without it they are no endpoints.
const NODE: &str = "apiVersion: v1
kind: Node
metadata: {name: service-node, labels: {topology.kubernetes.io/zone: here}}
";

fn service(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, labels: {{tier: front}}}}\nspec: {{{spec}}}\n"
    )
}

fn web(ports: &str) -> String {
    service("web", &format!("selector: {{app: web}}, ports: [{ports}]"))
}

fn pod(name: &str, more: &str, port: u32) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: web}}}}
spec:
  nodeName: service-node
  {more}
  containers: [{{name: web, image: web, ports: [{{name: http, containerPort: {port}}}]}}]
"
    )
}

async fn report(stage: &mut Stage, pod: &str, ip: &str, ready: bool) -> Result {
    let ready = if ready { "True" } else { "False" };
    let condition = json!({"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [condition]});
    stage.report(pod, status).await
}

/// All slices and Endpoints, without what differs from run to run, each list in an order of its own.
fn shown(world: &World) -> Value {
    let sorted = |list: &Value| {
        let mut list = list.as_array().cloned().unwrap_or_default();
        list.sort_by_key(Value::to_string);
        Value::Array(list)
    };
    let metadata = |object: &Value| {
        let from = &object["metadata"];
        let mut annotations = from["annotations"].clone();
        annotations.as_object_mut().map(|annotations| annotations.remove(TRIGGER));
        let mut shown = json!({"labels": from["labels"], "ownerReferences": from["ownerReferences"]});
        if annotations.as_object().is_some_and(|annotations| !annotations.is_empty()) {
            shown["annotations"] = annotations;
        }
        shown["generateName"] = from["generateName"].clone();
        shown
    };
    let slices = world.all("EndpointSlice").map(|slice| {
        json!({
            "metadata": metadata(slice), "addressType": slice["addressType"],
            "endpoints": sorted(&slice["endpoints"]), "ports": sorted(&slice["ports"]),
        })
    });
    let endpoints = world.all("Endpoints").map(|endpoints| {
        let subsets = endpoints["subsets"].as_array().into_iter().flatten().map(|subset| {
            let mut shown = json!({});
            for (key, list) in subset.as_object().into_iter().flatten() {
                shown[key] = sorted(list);
            }
            shown
        });
        let mut metadata = metadata(endpoints);
        metadata["name"] = endpoints["metadata"]["name"].clone();
        json!({"metadata": metadata, "subsets": sorted(&subsets.collect())})
    });
    json!({"slices": sorted(&slices.collect()), "endpoints": sorted(&endpoints.collect())})
}

/// Whether the slices of a Service say exactly this of Pods: `address ready serving terminating`, with the letters of
/// the conditions that hold; and Endpoints have as many addresses.
fn settled<'a>(service: &'a str, wanted: &'a [&'a str], listed: usize) -> impl Fn(&World) -> bool + 'a {
    move |world| {
        let slices = world.all("EndpointSlice").filter(|slice| label(slice) == service);
        let endpoints = slices.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
        let mut found: Vec<String> = endpoints.map(in_short).collect();
        found.sort();
        let subsets = world.get("Endpoints", service).map(|one| one["subsets"].clone()).unwrap_or_default();
        let count = |subset: &Value, list: &str| subset[list].as_array().map_or(0, Vec::len);
        let subsets = subsets.as_array().cloned().unwrap_or_default();
        let total: usize = subsets
            .iter()
            .map(|subset| count(subset, "addresses") + count(subset, "notReadyAddresses"))
            .sum();
        let exists = world.all("EndpointSlice").any(|slice| label(slice) == service);
        exists && found == wanted && world.get("Endpoints", service).is_some() && total == listed
    }
}

fn label(slice: &Value) -> &str {
    slice["metadata"]["labels"]["kubernetes.io/service-name"].as_str().unwrap_or_default()
}

fn in_short(endpoint: &Value) -> String {
    let conditions = ["ready", "serving", "terminating"];
    let letters =
        conditions.into_iter().filter(|one| endpoint["conditions"][one] == true).map(|one| &one[..1]);
    format!("{} {}", text(endpoint, "/addresses/0"), letters.collect::<String>())
}

async fn lifecycle(stage: &mut Stage) -> Result {
    stage.apply_shared(NODE).await?;
    stage.apply(&web("{port: 80, targetPort: http}")).await?;
    stage.record_shown("there is nothing", shown, settled("web", &[], 0)).await?;
    stage.apply(&pod("one", "", 8080)).await?;
    report(stage, "one", "10.244.1.1", false).await?;
    stage.record_shown("one is not ready", shown, settled("web", &["10.244.1.1 "], 1)).await?;
    report(stage, "one", "10.244.1.1", true).await?;
    stage.apply(&pod("two", "", 8080)).await?;
    report(stage, "two", "10.244.1.2", true).await?;
    stage
        .record_shown("two are ready", shown, settled("web", &["10.244.1.1 rs", "10.244.1.2 rs"], 2))
        .await?;
    stage.delete_pod("one").await?;
    stage
        .record_shown("one is ending", shown, settled("web", &["10.244.1.1 st", "10.244.1.2 rs"], 1))
        .await?;
    stage.finish_all().await?;
    stage.record_shown("one is gone", shown, settled("web", &["10.244.1.2 rs"], 1)).await?;
    stage.end("two", "Succeeded").await?;
    stage.record_shown("the other is over", shown, settled("web", &[], 0)).await
}

/// Pods that mean different ports by the same name are in different slices.
async fn named_ports(stage: &mut Stage) -> Result {
    stage.apply_shared(NODE).await?;
    let ports = "{name: http, port: 80, targetPort: http, appProtocol: http}, {name: plain, port: 81, protocol: TCP}, \
                 {name: udp, port: 80, protocol: UDP, targetPort: http}";
    for (name, ip, port) in [("one", "10.244.1.1", 8080), ("two", "10.244.1.2", 9090)] {
        stage.apply(&pod(name, "", port)).await?;
        report(stage, name, ip, true).await?;
    }
    stage.apply(&web(ports)).await?;
    // One subset for each port number, and one for what both have.
    stage.record_shown("two kinds", shown, settled("web", &["10.244.1.1 rs", "10.244.1.2 rs"], 4)).await?;
    stage.apply(&web("{port: 80, targetPort: 1234}")).await?;
    let one_slice = |world: &World| {
        settled("web", &["10.244.1.1 rs", "10.244.1.2 rs"], 2)(world)
            && world.all("EndpointSlice").count() == 1
    };
    stage.record_shown("one kind", shown, one_slice).await
}

async fn headless(stage: &mut Stage) -> Result {
    stage.apply_shared(NODE).await?;
    stage.apply(&service("web", "clusterIP: None, selector: {app: web}")).await?;
    stage
        .apply(&service("early", "clusterIP: None, publishNotReadyAddresses: true, selector: {app: web}"))
        .await?;
    stage.apply(&pod("one", "hostname: first\n  subdomain: web", 8080)).await?;
    report(stage, "one", "10.244.1.1", false).await?;
    let both = |world: &World| {
        settled("web", &["10.244.1.1 "], 1)(world) && settled("early", &["10.244.1.1 r"], 1)(world)
    };
    stage.record_shown("one is published early", shown, both).await?;
    stage.delete_pod("one").await?;
    let both = |world: &World| {
        settled("web", &["10.244.1.1 t"], 0)(world) && settled("early", &["10.244.1.1 rt"], 1)(world)
    };
    stage.record_shown("and until it is gone", shown, both).await
}

async fn relabelling(stage: &mut Stage) -> Result {
    stage.apply_shared(NODE).await?;
    stage.apply(&web("{port: 80}")).await?;
    stage.apply(&pod("one", "", 8080)).await?;
    report(stage, "one", "10.244.1.1", true).await?;
    stage.until("it is there", settled("web", &["10.244.1.1 rs"], 1)).await?;
    stage.kubectl("label service web tier=back color=red --overwrite").await?;
    let labelled = |world: &World| {
        let has = |kind| world.all(kind).all(|one| one["metadata"]["labels"]["color"] == "red");
        has("EndpointSlice") && has("Endpoints")
    };
    stage.record_shown("labels follow", shown, labelled).await?;
    stage.kubectl("label pod one app=else --overwrite").await?;
    stage.record_shown("the Pod left", shown, settled("web", &[], 0)).await?;
    stage.apply(&service("web", "selector: {app: else}, ports: [{port: 80}]")).await?;
    stage.record_shown("and is back", shown, settled("web", &["10.244.1.1 rs"], 1)).await
}

/// Aliases and Services without selector are left alone.
async fn not_for_all(stage: &mut Stage) -> Result {
    stage.apply_shared(NODE).await?;
    stage
        .apply(&service("alias", "type: ExternalName, externalName: example.org, selector: {app: web}"))
        .await?;
    stage.apply(&service("free", "ports: [{port: 80}]")).await?;
    stage.apply(&web("{port: 80}")).await?;
    stage.apply(&pod("one", "", 8080)).await?;
    report(stage, "one", "10.244.1.1", true).await?;
    stage.record_shown("only one has endpoints", shown, settled("web", &["10.244.1.1 rs"], 1)).await
}

async fn deletion(stage: &mut Stage) -> Result {
    stage.apply_shared(NODE).await?;
    stage.apply(&web("{port: 80}")).await?;
    stage.apply(&pod("one", "", 8080)).await?;
    report(stage, "one", "10.244.1.1", true).await?;
    stage.until("it is there", settled("web", &["10.244.1.1 rs"], 1)).await?;
    stage.kubectl("delete service web").await?;
    let none = |world: &World| world.all("EndpointSlice").count() + world.all("Endpoints").count() == 0;
    stage.record_shown("nothing is left", shown, none).await
}

/// No slice has more than a hundred.
async fn many_endpoints(stage: &mut Stage) -> Result {
    stage.apply_shared(NODE).await?;
    let pods: Vec<String> = (1..=105).map(|number| pod(&format!("pod-{number}"), "", 8080)).collect();
    stage.apply(&pods.join("---\n")).await?;
    for number in 1..=105 {
        report(stage, &format!("pod-{number}"), &format!("10.244.1.{number}"), true).await?;
    }
    stage.apply(&web("{port: 80}")).await?;
    let sizes = |world: &World| {
        let slices =
            world.all("EndpointSlice").map(|slice| slice["endpoints"].as_array().map_or(0, Vec::len));
        let mut sizes: Vec<usize> = slices.collect();
        sizes.sort_unstable();
        json!({ "sizes": sizes })
    };
    let all = move |world: &World| {
        let total: u64 =
            sizes(world)["sizes"].as_array().into_iter().flatten().filter_map(Value::as_u64).sum();
        total == 105
    };
    stage.record_shown("all are there", sizes, all).await?;
    stage.delete_pod("pod-1").await?;
    stage.finish_all().await?;
    let fewer = move |world: &World| {
        sizes(world)["sizes"].as_array().into_iter().flatten().filter_map(Value::as_u64).sum::<u64>() == 104
    };
    stage.record_shown("one is gone", sizes, fewer).await
}

/// A Pod whose node does not exist is no endpoint, except where it is published at any cost.
async fn absent_node(stage: &mut Stage) -> Result {
    stage.apply(&web("{port: 80}")).await?;
    stage
        .apply(&service("early", "clusterIP: None, publishNotReadyAddresses: true, selector: {app: web}"))
        .await?;
    stage.apply(&pod("one", "", 8080).replace("service-node", "no-such-node")).await?;
    report(stage, "one", "10.244.1.1", true).await?;
    let both =
        |world: &World| settled("web", &[], 1)(world) && settled("early", &["10.244.1.1 rs"], 1)(world);
    stage.record_shown("only one has the Pod", shown, both).await
}
