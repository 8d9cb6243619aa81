//! How many requests a gateway lets through. Names follow Envoy Gateway's `BackendTrafficPolicy`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many requests are let through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitingSpec {
    /// Limit over all requests of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global: Option<RateLimit>,
    /// Limit over the requests of each Task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_route: Option<RateLimit>,
    /// Limits for some clients; the strictest that applies counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub rules: Vec<RateLimitRule>,
}

/// A number of requests in a unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RateLimit {
    /// Requests in each unit of time.
    #[schemars(range(min = 1))]
    pub requests_per_unit: i32,
    /// The unit of time.
    pub unit: RateLimitUnit,
}

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RateLimitUnit {
    /// One second.
    Second,
    /// One minute.
    Minute,
    /// One hour.
    Hour,
    /// One day.
    Day,
}

/// A limit for some clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitRule {
    /// Name of the rule, unique in the gateway.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Clients that the rule is for; all of the selectors must match. Every client when left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub client_selectors: Vec<ClientSelector>,
    /// The limit.
    pub limit: RateLimit,
}

/// A property of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientSelector {
    /// Headers of the request; all must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub headers: Vec<HeaderMatch>,
    /// Addresses of the client, such as 10.0.0.0/8.
    #[serde(rename = "sourceCIDR", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub source_cidr: Option<String>,
}

/// A header to match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeaderMatch {
    /// How the value is compared. Distinct counts each value by itself.
    #[serde(rename = "type", default)]
    pub type_: HeaderMatchType,
    /// Name of the header.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Value to compare with; not used with Distinct.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub value: Option<String>,
}

/// How a header's value is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HeaderMatchType {
    /// Equal.
    #[default]
    Exact,
    /// By regular expression.
    RegularExpression,
    /// Each value is counted by itself.
    Distinct,
}
