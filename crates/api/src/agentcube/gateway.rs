//! The `TaskGateway` kind: listeners and status. The status types are those of the Gateway API, field by field,
//! so that a controller copies them up as they are.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::request::ObjectRef;
use super::security::{AuthenticationSpec, CorsSpec};
use super::traffic::RateLimitingSpec;
use crate::cel;

/// What is wanted of a TaskGateway: where traffic comes in and what it must carry.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "agentcube.io",
    version = "v1alpha1",
    kind = "TaskGateway",
    plural = "taskgateways",
    shortname = "tgw",
    category = "agentcube",
    namespaced,
    status = "TaskGatewayStatus",
    derive = "PartialEq",
    doc = "TaskGateway is where the traffic of Tasks comes in: listeners, authentication, CORS, rate limits.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Address", type_ = "string", json_path = ".status.addresses[0].value"),
    printcolumn(name = "Port", type_ = "integer", json_path = ".spec.listeners[0].port"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct TaskGatewaySpec {
    /// GatewayClass of the Gateway that is created. Defaults to the operator's configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub gateway_class_name: Option<String>,
    /// Where the gateway listens.
    #[schemars(
        length(min = 1, max = 64),
        extend(
            "x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["name"],
            "x-kubernetes-validations" = cel::rules(&[
                ("self.all(a, self.exists_one(b, a.port == b.port && \
                  (has(a.hostname) ? a.hostname : '') == (has(b.hostname) ? b.hostname : '')))",
                 "listeners must differ in port or hostname"),
                ("self.all(a, self.all(b, a.port != b.port || (a.protocol == 'HTTPS') == (b.protocol == 'HTTPS')))",
                 "listeners on one port must be all HTTPS or all not"),
            ])
        )
    )]
    pub listeners: Vec<ListenerSpec>,
    /// Who may send requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication: Option<AuthenticationSpec>,
    /// Which web pages of other origins may send requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cors: Option<CorsSpec>,
    /// How many requests are let through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limiting: Option<RateLimitingSpec>,
}

/// Where a gateway listens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("self.protocol != 'HTTPS' || has(self.tls)", "a listener of protocol HTTPS needs tls"),
    ("self.protocol == 'HTTPS' || !has(self.tls)", "tls is used with listeners of protocol HTTPS only"),
])))]
pub struct ListenerSpec {
    /// Name of the listener, unique in the gateway.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// What is spoken: HTTP, HTTPS, or WebSocket (HTTP with upgrades).
    pub protocol: ListenerProtocol,
    /// Port to listen on.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Host name that requests must ask for; any when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub hostname: Option<String>,
    /// Certificates and TLS versions, for HTTPS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSpec>,
}

/// What a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ListenerProtocol {
    /// Plain HTTP.
    #[serde(rename = "HTTP")]
    Http,
    /// HTTP over TLS.
    #[serde(rename = "HTTPS")]
    Https,
    /// Plain HTTP that is expected to be upgraded.
    WebSocket,
}

/// TLS of a listener.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("!has(self.minVersion) || !has(self.maxVersion) || self.minVersion <= self.maxVersion",
     "minVersion must not exceed maxVersion"),
])))]
pub struct TlsSpec {
    /// Where TLS ends. Terminate: at the gateway, which has to see requests in order to route them.
    #[serde(default)]
    pub mode: TlsMode,
    /// Secrets of type kubernetes.io/tls with certificate and key.
    #[schemars(length(min = 1, max = 64))]
    pub certificate_refs: Vec<ObjectRef>,
    /// Oldest TLS version that is accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_version: Option<TlsVersion>,
    /// Newest TLS version that is accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_version: Option<TlsVersion>,
    /// Settings of the gateway's implementation, passed on as they are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub options: BTreeMap<String, String>,
}

/// Where TLS ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TlsMode {
    /// At the gateway.
    #[default]
    Terminate,
}

/// A version of TLS: 1.2 or 1.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[serde(rename = "1.2")]
    V1_2,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    V1_3,
}

/// What was observed of a TaskGateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskGatewayStatus {
    /// Conditions: Ready, GatewayReady, SecurityPolicyReady, RateLimitReady.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Addresses of the gateway, copied from the Gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub addresses: Vec<GatewayAddress>,
    /// Status per listener, copied from the Gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub listeners: Vec<ListenerStatus>,
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// An address of a gateway, as in the Gateway API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayAddress {
    /// Kind of address: IPAddress or Hostname.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub type_: Option<String>,
    /// The address.
    #[schemars(length(min = 1, max = 253))]
    pub value: String,
}

/// Status of a listener, as in the Gateway API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListenerStatus {
    /// Name of the listener.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Kinds of routes that the listener takes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub supported_kinds: Vec<RouteGroupKind>,
    /// Routes that are attached to the listener.
    #[serde(default)]
    pub attached_routes: i32,
    /// Conditions of the listener.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A kind of route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouteGroupKind {
    /// API group of the route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind of the route.
    pub kind: String,
}

/// What one gateway says of a route, as in the Gateway API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouteParentStatus {
    /// The gateway.
    pub parent_ref: ParentReference,
    /// Name of the controller that says it.
    pub controller_name: String,
    /// What it says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A gateway that a route is attached to, as in the Gateway API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParentReference {
    /// API group of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Namespace of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the gateway.
    pub name: String,
    /// Listener of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    /// Port of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}
