//! Every value of the example gateways, and of what they leave out, arrives in what Envoy Gateway reads.

use agentcube_api::{Task, TaskGateway};
use serde_json::{Value, json};

use super::{security, traffic};
use crate::options::{Picking, RateLimits};

fn example(text: &str) -> TaskGateway {
    serde_saphyr::from_str(text).expect("an example is a TaskGateway")
}

fn default() -> TaskGateway {
    example(include_str!("../../../../examples/gateways/default.yaml"))
}

fn agents() -> TaskGateway {
    example(include_str!("../../../../examples/gateways/agent-gateway.yaml"))
}

fn enterprise() -> TaskGateway {
    example(include_str!("../../../../examples/gateways/enterprise.yaml"))
}

fn plain() -> TaskGateway {
    example(include_str!("../../../../examples/gateways/tls.yaml"))
}

fn target(name: &str) -> Value {
    json!([{ "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": name }])
}

#[test]
fn who_may_send_requests() {
    let claim = |claim: &str, header: &str| json!({ "claim": claim, "header": header });
    let of_default = json!({
        "targetRefs": target("default"),
        "jwt": { "optional": true, "providers": [{
            "name": "keycloak", "issuer": "https://sso.example.com/realms/agents", "audiences": ["agents"],
            "remoteJWKS": {
                "uri": "https://sso.example.com/realms/agents/protocol/openid-connect/certs", "cacheDuration": "10m",
            },
            "extractFrom": {
                "headers": [{ "name": "Authorization", "valuePrefix": "Bearer " }],
                "cookies": ["token"], "params": ["access_token"],
            },
        }] },
        "extAuth": {
            "grpc": { "backendRefs": [{
                "group": "", "kind": "Service", "name": "opa", "namespace": "policy", "port": 9191,
            }] },
            "headersToExtAuth": ["X-Tenant-ID"], "failOpen": false, "timeout": "2s",
        },
        "cors": {
            "allowOrigins": ["https://console.example.com", "https://*.example.com"],
            "allowMethods": ["GET", "POST", "DELETE"], "allowHeaders": ["Authorization", "X-Session-ID"],
            "exposeHeaders": ["Retry-After"], "maxAge": "1h", "allowCredentials": true,
        },
    });
    let of_agents = json!({
        "targetRefs": target("agent-gateway"),
        "jwt": { "providers": [{
            "name": "auth0", "issuer": "https://auth.example.com/", "audiences": ["https://api.example.com"],
            "remoteJWKS": { "uri": "https://auth.example.com/.well-known/jwks.json" },
            "claimToHeaders": [claim("sub", "x-user-id"), claim("email", "x-user-email")],
        }] },
        "cors": { "allowOrigins": ["*"], "allowMethods": ["GET", "POST"], "allowCredentials": false },
    });
    let of_enterprise = json!({
        "targetRefs": target("enterprise-gateway"),
        "jwt": { "providers": [{
            "name": "auth0", "issuer": "https://company.auth0.com/", "audiences": ["https://api.company.com"],
            "remoteJWKS": { "uri": "https://company.auth0.com/.well-known/jwks.json" },
            "claimToHeaders": [
                claim("sub", "X-User-ID"), claim("email", "X-User-Email"), claim("tenant_id", "X-Tenant-ID"),
            ],
        }] },
    });
    for (gateway, expected) in [
        (default(), Some(of_default)),
        (agents(), Some(of_agents)),
        (enterprise(), Some(of_enterprise)),
        (plain(), None),
    ] {
        assert_eq!(security::spec(&gateway), Ok(expected), "{:?}", gateway.metadata.name);
    }
}

#[test]
fn who_is_asked_over_http() {
    let mut gateway = plain();
    gateway.spec.authentication = serde_json::from_value(json!({ "extAuth": {
        "http": {
            "backendRef": { "name": "auth", "port": 8000 }, "path": "/check", "headersToBackend": ["X-User-ID"],
        },
        "failOpen": true,
    } }))
    .unwrap();
    let expected = json!({
        "http": {
            "backendRefs": [{ "group": "", "kind": "Service", "name": "auth", "port": 8000 }],
            "path": "/check", "headersToBackend": ["X-User-ID", "x-agentcube-subject"],
        },
        "failOpen": true,
    });
    assert_eq!(security::spec(&gateway).unwrap().unwrap()["extAuth"], expected);
    assert_eq!(security::identity_headers(&gateway), ["x-user-id"]);
    assert_eq!(security::identity_headers(&enterprise()), ["x-user-id", "x-user-email", "x-tenant-id"]);
}

#[test]
fn how_much_may_be_sent() {
    let limit = |requests: u32, unit: &str| json!({ "requests": requests, "unit": unit });
    let tenants = json!([{ "headers": [{ "type": "Distinct", "name": "X-Tenant-ID" }] }]);
    let crawlers = json!([{
        "headers": [{ "type": "RegularExpression", "name": "User-Agent", "value": ".*bot.*" }],
        "sourceCIDR": { "type": "Exact", "value": "0.0.0.0/0" },
    }]);
    let of_default = json!({ "targetRefs": target("default"), "rateLimit": { "type": "Global", "global": { "rules": [
        { "limit": limit(60000, "Minute"), "shared": true },
        { "limit": limit(500, "Second") },
        { "limit": limit(50, "Second"), "clientSelectors": tenants, "shared": true },
        { "limit": limit(10, "Hour"), "clientSelectors": crawlers, "shared": true },
    ] } } });
    let of_enterprise = json!({
        "targetRefs": target("enterprise-gateway"),
        "rateLimit": { "type": "Global", "global": { "rules": [{ "limit": limit(1000, "Second"), "shared": true }] } },
    });
    for (gateway, expected) in [
        (default(), Some(of_default)),
        (enterprise(), Some(of_enterprise)),
        (agents(), None),
        (plain(), None),
    ] {
        let name = gateway.metadata.name.clone();
        assert_eq!(traffic::of_gateway(&gateway, RateLimits::Service), Ok(expected), "{name:?}");
    }
    // By each proxy alone: nothing is shared, and what counts over all Tasks cannot be had.
    let mut alone = default();
    assert!(traffic::of_gateway(&alone, RateLimits::PerProxy).is_err());
    alone.spec.rate_limiting.as_mut().unwrap().global = None;
    let spec = traffic::of_gateway(&alone, RateLimits::PerProxy).unwrap().unwrap();
    assert_eq!(
        spec["rateLimit"],
        json!({ "type": "Local", "local": { "rules": [
            { "limit": limit(500, "Second") },
            { "limit": limit(50, "Second"), "clientSelectors": tenants },
            { "limit": limit(10, "Hour"), "clientSelectors": crawlers },
        ] } })
    );
}

#[test]
fn the_limits_of_a_task() {
    let task: Task = serde_json::from_value(json!({
        "metadata": { "name": "agent", "namespace": "n" },
        "spec": {
            "deployment": { "type": "pod" },
            "requestHandling": {
                "timeout": {
                    "tcp": { "connectTimeout": "3s" },
                    "http": {
                        "streamIdleTimeout": "1m", "maxStreamDuration": "1h", "connectionIdleTimeout": "2m",
                        "maxConnectionDuration": "2h",
                    },
                },
                "circuitBreaker": {
                    "maxConnections": 7, "maxPendingRequests": 8, "maxParallelRetries": 9, "maxRequestsPerConnection": 10,
                },
            },
        },
    }))
    .unwrap();
    let route = json!([{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "agent" }]);
    let streams = json!({ "streamIdleTimeout": "1m", "maxStreamDuration": "1h" });
    let by_metadata =
        json!({ "targetRefs": route, "mergeType": "StrategicMerge", "timeout": { "http": streams } });
    for picking in [Picking::PatchPolicy, Picking::ExtensionServer] {
        assert_eq!(traffic::of_task(&task, picking).as_ref(), Some(&by_metadata));
        // What is left out is told.
        assert_eq!(traffic::not_applied(&task, picking).len(), 7);
    }
    let by_header = json!({
        "targetRefs": route, "mergeType": "StrategicMerge",
        "timeout": {
            "tcp": { "connectTimeout": "3s" },
            "http": {
                "streamIdleTimeout": "1m", "maxStreamDuration": "1h", "connectionIdleTimeout": "2m",
                "maxConnectionDuration": "2h",
            },
        },
        "loadBalancer": {
            "type": "RoundRobin",
            "endpointOverride": { "extractFrom": [{ "header": "x-gateway-destination-endpoint" }] },
        },
        "circuitBreaker": {
            "maxConnections": u32::MAX, "maxPendingRequests": 8, "maxParallelRequests": u32::MAX,
            "maxParallelRetries": 9, "maxRequestsPerConnection": 10, "perEndpoint": { "maxConnections": 7 },
        },
    });
    assert_eq!(traffic::of_task(&task, Picking::Header), Some(by_header));
    assert!(traffic::not_applied(&task, Picking::Header).is_empty());
}
