//! BackendTrafficPolicy: the rate limits of a gateway, and the time limits of a Task.

use agentcube_api::agentcube::request::HttpTimeout;
use agentcube_api::agentcube::traffic::{ClientSelector, HeaderMatchType, RateLimit, RateLimitUnit};
use agentcube_api::{Task, TaskGateway};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::client::DESTINATION;
use super::{set, target};
use crate::duration;
use crate::options::{Picking, RateLimits};

/// More rules Envoy Gateway does not take where each proxy counts by itself.
const MOST_LOCAL_RULES: usize = 16;

/// The spec for a gateway, or nothing if it limits nothing; or why it cannot be said to Envoy Gateway.
pub(crate) fn of_gateway(gateway: &TaskGateway, limits: RateLimits) -> Result<Option<Value>, String> {
    let Some(spec) = &gateway.spec.rate_limiting else { return Ok(None) };
    let shared = limits == RateLimits::Service;
    let mut rules = Vec::new();
    if let Some(global) = &spec.global {
        if !shared {
            return Err("rateLimiting.global counts over all Tasks, which needs Envoy Gateway's rate limit \
                        service: set that up and tell the operator, or use rateLimiting.perRoute"
                .into());
        }
        rules.push(json!({ "limit": limit(global), "shared": true }));
    }
    rules.extend(spec.per_route.as_ref().map(|per_route| json!({ "limit": limit(per_route) })));
    for rule in &spec.rules {
        let mut value = json!({ "limit": limit(&rule.limit) });
        if !rule.client_selectors.is_empty() {
            value["clientSelectors"] = rule.client_selectors.iter().map(selector).collect();
        }
        if shared {
            value["shared"] = json!(true);
        }
        rules.push(value);
    }
    if rules.is_empty() {
        return Ok(None);
    }
    if !shared && rules.len() > MOST_LOCAL_RULES {
        return Err(format!(
            "rateLimiting has {} limits; without Envoy Gateway's rate limit service at most {MOST_LOCAL_RULES}",
            rules.len()
        ));
    }
    let (type_, field) = if shared { ("Global", "global") } else { ("Local", "local") };
    let mut rate_limit = json!({ "type": type_ });
    rate_limit[field] = json!({ "rules": rules });
    Ok(Some(json!({ "targetRefs": target(&gateway.name_any(), None), "rateLimit": rate_limit })))
}

fn limit(limit: &RateLimit) -> Value {
    let unit = match limit.unit {
        RateLimitUnit::Second => "Second",
        RateLimitUnit::Minute => "Minute",
        RateLimitUnit::Hour => "Hour",
        RateLimitUnit::Day => "Day",
    };
    json!({ "requests": limit.requests_per_unit, "unit": unit })
}

fn selector(selector: &ClientSelector) -> Value {
    let mut value = json!({});
    if !selector.headers.is_empty() {
        let headers = selector.headers.iter().map(|header| {
            let type_ = match header.type_ {
                HeaderMatchType::Exact => "Exact",
                HeaderMatchType::RegularExpression => "RegularExpression",
                HeaderMatchType::Distinct => "Distinct",
            };
            let mut value = json!({ "type": type_, "name": header.name });
            let compared = header.value.as_deref().filter(|_| header.type_ != HeaderMatchType::Distinct);
            set(&mut value, "value", compared);
            value
        });
        value["headers"] = headers.collect();
    }
    if let Some(cidr) = &selector.source_cidr {
        value["sourceCIDR"] = json!({ "type": "Exact", "value": cidr });
    }
    value
}

/// The spec for a Task's route, over that of its gateway; nothing if the gateway's holds.
pub(crate) fn of_task(task: &Task, picking: Picking) -> Option<Value> {
    let timeout = task.spec.request_handling.timeout.clone().unwrap_or_default();
    let mut http = stream_limits(timeout.http.as_ref());
    let mut spec = json!({});
    if picking == Picking::Header {
        // The instances are a cluster of Envoy's own, with limits on connections.
        connection_limits(&mut http, timeout.http.as_ref());
        spec["circuitBreaker"] = circuit_breaker(task);
        spec["loadBalancer"] = json!({
            "type": "RoundRobin", "endpointOverride": { "extractFrom": [{ "header": DESTINATION }] },
        });
        let connect = timeout.tcp.and_then(|tcp| tcp.connect_timeout);
        if let Some(connect) = connect {
            spec["timeout"]["tcp"] = json!({ "connectTimeout": duration::text(connect) });
        }
    }
    if http != json!({}) {
        spec["timeout"]["http"] = http;
    }
    if spec == json!({}) {
        return None;
    }
    spec["targetRefs"] = json!([{
        "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": task.name_any(),
    }]);
    spec["mergeType"] = json!("StrategicMerge");
    Some(spec)
}

fn stream_limits(limits: Option<&HttpTimeout>) -> Value {
    let mut http = json!({});
    if let Some(limits) = limits {
        set(&mut http, "streamIdleTimeout", limits.stream_idle_timeout.map(duration::text));
        set(&mut http, "maxStreamDuration", limits.max_stream_duration.map(duration::text));
    }
    http
}

fn connection_limits(http: &mut Value, limits: Option<&HttpTimeout>) {
    if let Some(limits) = limits {
        set(http, "connectionIdleTimeout", limits.connection_idle_timeout.map(duration::text));
        set(http, "maxConnectionDuration", limits.max_connection_duration.map(duration::text));
    }
}

/// Envoy counts over all instances where the Task means one, so what the Task limits per instance is left to the
/// routers, and Envoy's own limits must not get in the way.
fn circuit_breaker(task: &Task) -> Value {
    let most = u32::MAX;
    let limits = task.spec.request_handling.circuit_breaker.clone().unwrap_or_default();
    let mut breaker =
        json!({ "maxConnections": most, "maxPendingRequests": most, "maxParallelRequests": most });
    set(&mut breaker, "maxPendingRequests", limits.max_pending_requests);
    set(&mut breaker, "maxParallelRetries", limits.max_parallel_retries);
    set(&mut breaker, "maxRequestsPerConnection", limits.max_requests_per_connection);
    if let Some(connections) = limits.max_connections {
        breaker["perEndpoint"] = json!({ "maxConnections": connections });
    }
    breaker
}

/// What a Task asks for that Envoy does not do where routers pick by metadata: the instances of all Tasks are one
/// cluster then, whose connections have no limits of one Task.
pub(crate) fn not_applied(task: &Task, picking: Picking) -> Vec<&'static str> {
    if picking == Picking::Header {
        return Vec::new();
    }
    let handling = &task.spec.request_handling;
    let timeout = handling.timeout.clone().unwrap_or_default();
    let http = timeout.http.unwrap_or_default();
    let breaker = handling.circuit_breaker.clone().unwrap_or_default();
    [
        (timeout.tcp.is_some(), "timeout.tcp.connectTimeout"),
        (http.connection_idle_timeout.is_some(), "timeout.http.connectionIdleTimeout"),
        (http.max_connection_duration.is_some(), "timeout.http.maxConnectionDuration"),
        (breaker.max_connections.is_some(), "circuitBreaker.maxConnections"),
        (breaker.max_pending_requests.is_some(), "circuitBreaker.maxPendingRequests"),
        (breaker.max_parallel_retries.is_some(), "circuitBreaker.maxParallelRetries"),
        (breaker.max_requests_per_connection.is_some(), "circuitBreaker.maxRequestsPerConnection"),
    ]
    .into_iter()
    .filter_map(|(asked, name)| asked.then_some(name))
    .collect()
}
