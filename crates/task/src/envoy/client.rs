//! ClientTrafficPolicy: strips from every request what only a gateway may say, and sets the TLS versions. A policy for
//! one listener takes the place of that for the whole gateway, so each says everything.

use std::collections::BTreeSet;

use agentcube_api::agentcube::gateway::{TlsSpec, TlsVersion};
use agentcube_api::{TaskGateway, labels};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{security, set, target};

/// Header and metadata key by which the picked instance is told to Envoy.
pub(crate) const DESTINATION: &str = "x-gateway-destination-endpoint";

/// How much of a message Envoy keeps: bodies that name a session are held back until the router has read them, and may
/// be as large as this.
const BUFFER: &str = "1Mi";

/// Names and specs: one for the gateway, and one for each listener with TLS versions of its own.
pub(crate) fn specs(gateway: &TaskGateway) -> Vec<(String, Value)> {
    let name = gateway.name_any();
    let headers = headers(gateway);
    let mut specs = vec![(name.clone(), spec(target(&name, None), &headers))];
    for listener in &gateway.spec.listeners {
        let Some(tls) = listener.tls.as_ref().and_then(versions) else { continue };
        let mut own = spec(target(&name, Some(&listener.name)), &headers);
        own["tls"] = tls;
        specs.push((format!("{name}.{}", listener.name), own));
    }
    specs
}

fn spec(targets: Value, headers: &BTreeSet<String>) -> Value {
    json!({
        "targetRefs": targets,
        "headers": { "earlyRequestHeaders": { "remove": headers } },
        "connection": { "bufferLimit": BUFFER },
    })
}

fn headers(gateway: &TaskGateway) -> BTreeSet<String> {
    let ours = [DESTINATION, labels::RESERVED_TOKEN_HEADER, labels::SUBJECT_HEADER].map(str::to_owned);
    security::identity_headers(gateway).into_iter().chain(ours).collect()
}

fn versions(tls: &TlsSpec) -> Option<Value> {
    let text = |version: TlsVersion| match version {
        TlsVersion::V1_2 => "1.2",
        TlsVersion::V1_3 => "1.3",
    };
    let mut result = json!({});
    set(&mut result, "minVersion", tls.min_version.map(text));
    set(&mut result, "maxVersion", tls.max_version.map(text));
    (tls.min_version.is_some() || tls.max_version.is_some()).then_some(result)
}
