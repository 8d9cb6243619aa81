//! EnvoyProxy: has the Envoys of a gateway tell the routers of the end of every request, by their access log. Without it
//! a router counts each as being on its way for the length of a lease.

use serde_json::{Value, json};

use super::backend;
use crate::options::Envoy;

/// How often Envoy tells of requests that go on: some times within the routers' lease.
pub(crate) const EVERY: &str = "10s";

/// The spec.
pub(crate) fn spec(envoy: &Envoy) -> Value {
    let service =
        json!({ "type": "HTTP", "logName": "agentcube", "backendRefs": [backend(&envoy.ext_proc)] });
    let sinks = json!([{ "type": "ALS", "als": service }]);
    // What the installation of Envoy Gateway and its class say of Envoys stays as it is: images, kinds of Services.
    json!({ "mergeType": "StrategicMerge", "telemetry": { "accessLog": { "settings": [{ "sinks": sinks }] } } })
}
