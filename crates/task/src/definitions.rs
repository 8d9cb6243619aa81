//! Small definitions of the kinds of the Gateway API and of Envoy Gateway, for servers where nobody has installed the
//! real ones. They take anything in `spec` and `status`: what is right and wrong, only the real ones say.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

struct Kind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static str,
    namespaced: bool,
    /// Name and path of each column.
    columns: &'static [(&'static str, &'static str)],
}

const GATEWAY_API: &str = "gateway.networking.k8s.io";
const ENVOY: &str = "gateway.envoyproxy.io";

const fn policy(kind: &'static str, plural: &'static str, short: &'static str) -> Kind {
    Kind { group: ENVOY, version: "v1alpha1", kind, plural, short, namespaced: true, columns: &[] }
}

const KINDS: [Kind; 10] = [
    Kind {
        group: GATEWAY_API,
        version: "v1",
        kind: "GatewayClass",
        plural: "gatewayclasses",
        short: "gc",
        namespaced: false,
        columns: &[
            ("Controller", ".spec.controllerName"),
            ("Accepted", ".status.conditions[?(@.type==\"Accepted\")].status"),
        ],
    },
    Kind {
        group: GATEWAY_API,
        version: "v1",
        kind: "Gateway",
        plural: "gateways",
        short: "gtw",
        namespaced: true,
        columns: &[
            ("Class", ".spec.gatewayClassName"),
            ("Address", ".status.addresses[*].value"),
            ("Programmed", ".status.conditions[?(@.type==\"Programmed\")].status"),
        ],
    },
    Kind {
        group: GATEWAY_API,
        version: "v1",
        kind: "HTTPRoute",
        plural: "httproutes",
        short: "",
        namespaced: true,
        columns: &[("Hostnames", ".spec.hostnames")],
    },
    Kind {
        group: GATEWAY_API,
        version: "v1",
        kind: "ReferenceGrant",
        plural: "referencegrants",
        short: "refgrant",
        namespaced: true,
        columns: &[],
    },
    policy("SecurityPolicy", "securitypolicies", "sp"),
    policy("BackendTrafficPolicy", "backendtrafficpolicies", "btp"),
    policy("ClientTrafficPolicy", "clienttrafficpolicies", "ctp"),
    policy("EnvoyExtensionPolicy", "envoyextensionpolicies", "eep"),
    policy("EnvoyPatchPolicy", "envoypatchpolicies", "epp"),
    policy("EnvoyProxy", "envoyproxies", "eproxy"),
];

/// The definitions.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    KINDS.iter().map(definition).collect()
}

fn definition(kind: &Kind) -> CustomResourceDefinition {
    let free = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let mut columns: Vec<Value> = kind
        .columns
        .iter()
        .map(|(name, path)| json!({ "name": name, "type": "string", "jsonPath": path }))
        .collect();
    columns.push(json!({ "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" }));
    let mut names = json!({
        "kind": kind.kind, "listKind": format!("{}List", kind.kind), "plural": kind.plural,
        "singular": kind.kind.to_lowercase(),
    });
    if !kind.short.is_empty() {
        names["shortNames"] = json!([kind.short]);
    }
    let mut metadata = json!({ "name": format!("{}.{}", kind.plural, kind.group) });
    if kind.group == GATEWAY_API {
        // A server refuses definitions of this group that do not say by what right they are there.
        let right = "unapproved, a small stand-in by AgentCube";
        metadata["annotations"] = json!({ "api-approved.kubernetes.io": right });
    }
    let definition = json!({
        "metadata": metadata,
        "spec": {
            "group": kind.group,
            "names": names,
            "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
            "versions": [{
                "name": kind.version, "served": true, "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": columns,
                "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": free.clone(), "status": free },
                } },
            }],
        },
    });
    serde_json::from_value(definition).expect("this is a CustomResourceDefinition")
}
