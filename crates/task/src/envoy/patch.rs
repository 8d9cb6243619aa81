//! EnvoyPatchPolicy: adds the cluster whose destination is the picked instance, told by metadata, and points our routes
//! at it; has Envoy tell of requests that last. It never changes with the Tasks. A route that is not pointed there yet leads to the placeholder: 503.

use agentcube_api::TaskGateway;
use agentcube_api::agentcube::gateway::ListenerProtocol;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::client::DESTINATION;
use super::extension::METADATA;
use super::telemetry;
use crate::options::Envoy;

/// Name of the cluster in Envoy.
const CLUSTER: &str = "agentcube-destination";
/// What the names of the rules of our routes begin with; Envoy Gateway puts them into the metadata of Envoy's routes.
pub(crate) const RULE: &str = "agentcube";

/// The spec.
pub(crate) fn spec(gateway: &TaskGateway, envoy: &Envoy) -> Value {
    let mut patches = vec![json!({
        "type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": CLUSTER,
        "operation": { "op": "add", "path": "", "value": cluster() },
    })];
    patches.extend(route_configurations(gateway).into_iter().map(|name| {
        let rule = "@.metadata.filter_metadata['envoy-gateway'].resources[0].sectionName";
        json!({
            "type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            "name": name,
            "operation": {
                "op": "replace",
                "jsonPath": format!("..routes[?({rule} =~ '^{RULE}')].route.cluster"),
                "value": CLUSTER,
            },
        })
    }));
    if envoy.access_log {
        patches.extend(listeners(gateway).into_iter().map(|name| {
            let manager = "@.name=='envoy.filters.network.http_connection_manager'";
            json!({
                "type": "type.googleapis.com/envoy.config.listener.v3.Listener",
                "name": name,
                // Of requests that last, Envoy tells only if it is asked to, and Envoy Gateway does not let us ask.
                "operation": {
                    "op": "add",
                    "jsonPath": format!("..filters[?({manager})].typed_config"),
                    "path": "/access_log_options",
                    "value": { "access_log_flush_interval": telemetry::EVERY },
                },
            })
        }));
    }
    json!({
        "type": "JSONPatch",
        "targetRef": {
            "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": gateway.name_any(),
        },
        "jsonPatches": patches,
    })
}

fn cluster() -> Value {
    // Instances are looked after by the routers: no limit here may get in their way.
    let most = u32::MAX;
    json!({
        "name": CLUSTER,
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "10s",
        "original_dst_lb_config": { "metadata_key": { "key": METADATA, "path": [{ "key": DESTINATION }] } },
        "circuit_breakers": { "thresholds": [{
            "max_connections": most, "max_pending_requests": most, "max_requests": most, "max_retries": most,
        }] },
    })
}

/// What Envoy Gateway calls Envoy's listeners: all that share a port are one, with the name of the first.
fn listeners(gateway: &TaskGateway) -> Vec<String> {
    let (namespace, name) = (gateway.namespace().unwrap_or_default(), gateway.name_any());
    let mut ports = Vec::new();
    let firsts = gateway.spec.listeners.iter().filter(|listener| {
        let first = !ports.contains(&listener.port);
        ports.push(listener.port);
        first
    });
    firsts.map(|listener| format!("{namespace}/{name}/{}", listener.name)).collect()
}

/// What Envoy Gateway calls the routes of each listener. Plain listeners on one port share those of the first.
fn route_configurations(gateway: &TaskGateway) -> Vec<String> {
    let (namespace, name) = (gateway.namespace().unwrap_or_default(), gateway.name_any());
    let mut plain_ports = Vec::new();
    let mut names = Vec::new();
    for listener in &gateway.spec.listeners {
        if listener.protocol != ListenerProtocol::Https {
            if plain_ports.contains(&listener.port) {
                continue;
            }
            plain_ports.push(listener.port);
        }
        names.push(format!("{namespace}/{name}/{}", listener.name));
    }
    names
}
