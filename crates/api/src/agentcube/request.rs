//! How requests are passed to an instance: port, TLS, time limits, circuit breaker. Names follow Envoy Gateway.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cel;
use crate::duration::GoDuration;

/// Port of an instance when the spec names none.
pub const DEFAULT_PORT: i32 = 8080;

/// How requests are passed to an instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequestHandlingSpec {
    /// Where in the instance the agent listens.
    #[serde(default)]
    pub backend: BackendSpec,
    /// Time limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<TimeoutSpec>,
    /// Limits on what an instance gets at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit_breaker: Option<CircuitBreakerSpec>,
}

/// Where in the instance the agent listens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendSpec {
    /// Port of the instance.
    #[serde(default = "default_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// TLS towards the instance; plain text when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_policy: Option<TlsPolicySpec>,
}

impl Default for BackendSpec {
    fn default() -> Self {
        Self { port: DEFAULT_PORT, tls_policy: None }
    }
}

fn default_port() -> i32 {
    DEFAULT_PORT
}

/// TLS towards an instance: how its certificate is checked, by exactly one of three ways.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("[has(self.caCertificateRefs), has(self.wellKnownCACertificates), \
       has(self.insecureSkipVerify) && self.insecureSkipVerify].filter(x, x).size() == 1",
     "exactly one of caCertificateRefs, wellKnownCACertificates and insecureSkipVerify must be set"),
])))]
pub struct TlsPolicySpec {
    /// Name that the certificate must carry, also sent as SNI.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub hostname: Option<String>,
    /// ConfigMaps or Secrets with a `ca.crt` that signed the certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 8))]
    pub ca_certificate_refs: Option<Vec<ObjectRef>>,
    /// Trust the certificate authorities of the gateway's system.
    #[serde(rename = "wellKnownCACertificates", skip_serializing_if = "Option::is_none")]
    pub well_known_ca_certificates: Option<WellKnownCaCertificates>,
    /// Take any certificate. For development only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insecure_skip_verify: Option<bool>,
    /// Secret of type kubernetes.io/tls that the gateway shows to the instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate_ref: Option<ObjectRef>,
}

/// Certificate authorities to trust: System, those of the gateway's system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WellKnownCaCertificates {
    /// Those of the gateway's system.
    System,
}

/// An object of another kind, in the same namespace unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// API group; empty for the core group.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub group: String,
    /// Kind of the object.
    #[serde(default = "secret_kind")]
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the object; that of the referring object when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

fn secret_kind() -> String {
    "Secret".into()
}

/// Time limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TimeoutSpec {
    /// Limits on connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpTimeout>,
    /// Limits on requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpTimeout>,
}

/// Limits on connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TcpTimeout {
    /// Longest time to connect to the instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_timeout: Option<GoDuration>,
}

/// Limits on requests. 0s means no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpTimeout {
    /// Longest time from the end of the request to the end of the response. Streams (SSE, WebSocket) are bound by
    /// streamIdleTimeout instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<GoDuration>,
    /// Longest silence on a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_idle_timeout: Option<GoDuration>,
    /// Longest silence on a connection without requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_idle_timeout: Option<GoDuration>,
    /// Longest life of a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connection_duration: Option<GoDuration>,
    /// Longest life of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_stream_duration: Option<GoDuration>,
}

/// Limits on what an instance gets at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CircuitBreakerSpec {
    /// Connections to one instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_connections: Option<i32>,
    /// Requests that may wait for a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_pending_requests: Option<i32>,
    /// Requests that one instance serves at a time. Defaults to 1 with Oneshot, to no limit with BySession.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_parallel_requests: Option<i32>,
    /// Retries at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_parallel_retries: Option<i32>,
    /// Requests on one connection before it is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_requests_per_connection: Option<i32>,
}
