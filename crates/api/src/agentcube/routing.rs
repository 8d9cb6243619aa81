//! Where a Task is served, and which instance a request goes to.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cel;
use crate::duration::GoDuration;

/// Name of the gateway that a Task is served on when it names none.
pub const DEFAULT_GATEWAY: &str = "default";

/// Where a Task is served, and which instance a request goes to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("self.routePolicy != 'BySession' || self.protocol != 'HTTP' || has(self.sessionIdentifier)",
     "routePolicy BySession needs sessionIdentifier.extractors when the protocol is HTTP"),
    ("self.routePolicy == 'BySession' || !has(self.sessionIdentifier)",
     "sessionIdentifier is used with routePolicy BySession only"),
    ("self.protocol == 'MCP' || !has(self.mcp)", "mcp is used with protocol MCP only"),
    ("self.protocol == 'A2A' || !has(self.a2a)", "a2a is used with protocol A2A only"),
])))]
pub struct RoutingSpec {
    /// TaskGateways of the same namespace that serve the Task. Defaults to the one named default.
    #[serde(default = "default_gateway_refs")]
    #[schemars(
        length(min = 1, max = 16),
        inner(length(min = 1, max = 253)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub gateway_refs: Vec<String>,
    /// Which instance a request goes to: any idle one (Oneshot), or that of its session (BySession).
    pub route_policy: RoutePolicy,
    /// Where in a request the session's key is found; for BySession.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_identifier: Option<SessionIdentifierSpec>,
    /// How long a request waits for an instance before it is refused with 503 and Retry-After.
    #[serde(default = "default_reserve_timeout")]
    pub reserve_timeout: GoDuration,
    /// Host names under which the Task is served; those of the gateway's listeners when left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(max = 253), regex(pattern = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub hostnames: Vec<String>,
    /// Path under which the Task is served, stripped before the request reaches an instance. Defaults to
    /// `/<namespace>/<name>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^/[^?#\s]*$"))]
    pub path_prefix: Option<String>,
    /// What the agent speaks: HTTP, MCP (Model Context Protocol) or A2A (Agent-to-Agent).
    #[serde(default)]
    pub protocol: Protocol,
    /// Settings of protocol MCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp: Option<McpSpec>,
    /// Settings of protocol A2A.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub a2a: Option<A2aSpec>,
    /// What a request gets that names a session of another subject, on gateways that know who sends requests: a session of
    /// its own under the same name (Separate), or 403 (Forbid).
    #[serde(default)]
    pub other_subjects: OtherSubjects,
    /// How X-Reserved-Token is made: Signed (an HMAC that the instance can verify) or Random.
    #[serde(default)]
    pub token_policy: TokenPolicy,
}

impl Default for RoutingSpec {
    fn default() -> Self {
        Self {
            gateway_refs: default_gateway_refs(),
            route_policy: RoutePolicy::Oneshot,
            session_identifier: None,
            reserve_timeout: default_reserve_timeout(),
            hostnames: Vec::new(),
            path_prefix: None,
            protocol: Protocol::default(),
            mcp: None,
            a2a: None,
            other_subjects: OtherSubjects::default(),
            token_policy: TokenPolicy::default(),
        }
    }
}

impl RoutingSpec {
    /// The path under which a Task is served, default filled in.
    pub fn path_prefix_for(&self, namespace: &str, name: &str) -> String {
        self.path_prefix.clone().unwrap_or_else(|| format!("/{namespace}/{name}"))
    }
}

fn default_gateway_refs() -> Vec<String> {
    vec![DEFAULT_GATEWAY.into()]
}

fn default_reserve_timeout() -> GoDuration {
    GoDuration::from_secs(30)
}

/// Which instance a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RoutePolicy {
    /// Any idle instance, for one request.
    Oneshot,
    /// The instance of the request's session.
    BySession,
}

/// What the agent speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Protocol {
    /// HTTP, WebSocket or SSE without a protocol that the router knows.
    #[default]
    #[serde(rename = "HTTP")]
    Http,
    /// Model Context Protocol.
    #[serde(rename = "MCP")]
    Mcp,
    /// Agent-to-Agent.
    #[serde(rename = "A2A")]
    A2a,
}

/// What a request gets that names a session of another subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OtherSubjects {
    /// A session of its own: subjects do not see each other's names.
    #[default]
    Separate,
    /// 403: a name belongs to whoever used it first, for as long as that session lasts.
    Forbid,
}

/// How `X-Reserved-Token` is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TokenPolicy {
    /// An HMAC over Task, instance, key, expiry and a nonce.
    #[default]
    Signed,
    /// `tok-<timestamp>-<random>` with at least 128 random bits.
    Random,
}

/// Where in a request the session's key is found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionIdentifierSpec {
    /// Places to look, in order; the first that yields a key wins.
    #[schemars(length(min = 1, max = 16))]
    pub extractors: Vec<SessionExtractor>,
}

/// One place to look for the session's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("self.type != 'pathVar' || (has(self.path) && self.path.contains('{' + self.name + '}'))",
     "a pathVar extractor needs a path that contains {name}"),
    ("self.type == 'pathVar' || !has(self.path)", "path is used with extractors of type pathVar only"),
])))]
pub struct SessionExtractor {
    /// Kind of place: httpHeader, pathVar, query or cookie.
    #[serde(rename = "type")]
    pub type_: ExtractorType,
    /// Name of the header, path variable, query parameter or cookie.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9!#$%&'*+.^_|~-]+$"))]
    pub name: String,
    /// For pathVar: the path, relative to pathPrefix, with the variable in braces, such as /{sessionID}/invoke.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^/[^?#\s]*$"))]
    pub path: Option<String>,
}

/// A kind of place to look for the session's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ExtractorType {
    /// A request header.
    HttpHeader,
    /// A segment of the path.
    PathVar,
    /// A query parameter.
    Query,
    /// A cookie.
    Cookie,
}

/// Settings of protocol MCP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpSpec {
    /// Header `Mcp-Param-<name>` whose value is the session's key for clients without protocol sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9-]+$"))]
    pub session_param: Option<String>,
    /// How Mcp-Session-Id finds its instance: Shared (the session's Lease knows) or Sealed (the id carries it).
    #[serde(default)]
    pub session_ids: SessionIds,
}

/// How a session id that the server minted finds its instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SessionIds {
    /// The shared session table knows.
    #[default]
    Shared,
    /// The id itself carries the instance, encrypted.
    Sealed,
}

/// Settings of protocol A2A.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct A2aSpec {
    /// The agent card, served at /.well-known/agent-card.json without starting an instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::pod_template::free_object")]
    pub agent_card: Option<BTreeMap<String, Value>>,
}
