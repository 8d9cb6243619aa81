//! EnvoyExtensionPolicy: one for all Tasks of a gateway, by a label of their routes. One for each Task would change the
//! listeners whenever a Task comes or goes, and Envoy closes every open WebSocket when a listener changes.

use std::time::Duration;

use agentcube_api::labels;
use serde_json::{Value, json};

use super::backend;
use crate::duration;
use crate::options::Envoy;

/// How long the processor may answer after a request has waited for an instance as long as its Task allows.
const MARGIN: Duration = Duration::from_secs(5);
/// The time limit takes one of these values: changing it changes the listeners.
const STEPS: [u64; 7] = [60, 180, 600, 1800, 3600, 14_400, 86_400];

/// The namespace of metadata in which the picked instance is told.
pub(crate) const METADATA: &str = "envoy.lb";

/// The namespace of metadata in which Envoy's JWT filter tells what it has verified.
const VERIFIED: &str = "envoy.filters.http.jwt_authn";

/// The spec for the routes that carry the gateway's name in their label.
pub(crate) fn spec(label: &str, envoy: &Envoy, limit: Duration) -> Value {
    let processor = json!({
        "backendRefs": [backend(&envoy.ext_proc)],
        "failOpen": false,
        "statusOnError": 503,
        "messageTimeout": duration::text_of(limit),
        // Left out, Envoy would send nothing at all. Where a conversation is followed the router asks for more.
        "processingMode": { "request": { "attributes": ["xds.route_name"] }, "allowModeOverride": true },
        // Who sends a request, as Envoy has verified it; and the pick, by which its access log tells of the end.
        "metadata": { "accessibleNamespaces": [VERIFIED], "writableNamespaces": [METADATA] },
    });
    json!({
        "targetSelectors": [{
            "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "matchLabels": { labels::GATEWAY: label },
        }],
        "extProc": [processor],
    })
}

/// The time limit for Tasks that let requests wait this long: grows in few steps, and does not shrink below what is set.
pub(crate) fn limit(longest: Duration, set: Option<Duration>) -> Duration {
    let needed = longest + MARGIN;
    let step = STEPS.into_iter().map(Duration::from_secs).find(|step| *step >= needed);
    let step = step.unwrap_or(needed);
    match set {
        Some(set) if set > step && STEPS.contains(&set.as_secs()) => set,
        _ => step,
    }
}

/// The time limit that a policy sets.
pub(crate) fn limit_of(spec: &Value) -> Option<Duration> {
    duration::parse(spec.pointer("/extProc/0/messageTimeout")?.as_str()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_exceeds_every_wait_and_seldom_changes() {
        let seconds = Duration::from_secs;
        for (longest, set, expected) in [
            (30, None, 60),
            (30, Some(60), 60),
            (55, None, 60),
            (56, Some(60), 180),
            (30, Some(180), 180),
            // Not one of ours: somebody has changed it.
            (30, Some(61), 60),
            (30, Some(1), 60),
            (100_000, None, 100_005),
        ] {
            assert_eq!(limit(seconds(longest), set.map(seconds)), seconds(expected), "{longest} {set:?}");
        }
    }
}
