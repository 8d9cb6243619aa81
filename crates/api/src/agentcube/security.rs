//! Who may send requests to a gateway: JWT, external authorisation, CORS. Names follow Envoy Gateway's
//! `SecurityPolicy`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::request::ObjectRef;
use crate::cel;
use crate::duration::GoDuration;

/// Who may send requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthenticationSpec {
    /// Requests carry a JSON Web Token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtSpec>,
    /// An external service decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ext_auth: Option<ExtAuthSpec>,
}

/// Authentication by JSON Web Token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JwtSpec {
    /// Let requests without a token through; a bad token is still refused.
    #[serde(default)]
    pub optional: bool,
    /// Who issues tokens; a token of any of them is accepted.
    #[schemars(
        length(min = 1, max = 8),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub providers: Vec<JwtProvider>,
}

/// An issuer of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JwtProvider {
    /// Name of the provider, unique in the gateway.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Value that the token's `iss` must have.
    #[schemars(length(min = 1, max = 253))]
    pub issuer: String,
    /// Values of which the token's `aud` must have one.
    #[schemars(
        length(min = 1, max = 8),
        inner(length(min = 1, max = 253)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub audiences: Vec<String>,
    /// Where the issuer's keys are found.
    #[serde(rename = "remoteJWKS")]
    pub remote_jwks: RemoteJwksSpec,
    /// Claims that are passed to the instance as headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["header"])
    )]
    pub claim_to_headers: Vec<ClaimMapping>,
    /// Where in a request the token is found. Defaults to the header Authorization with the prefix Bearer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extract_from: Option<JwtExtractor>,
}

/// Where an issuer's keys are found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemoteJwksSpec {
    /// Address of the JSON Web Key Set.
    #[schemars(length(min = 1, max = 2048), regex(pattern = r"^https?://.+"))]
    pub uri: String,
    /// How long the keys are kept before they are fetched again. Defaults to 300s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_duration: Option<GoDuration>,
}

/// A claim that is passed on as a header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimMapping {
    /// Claim of the token; dots reach into objects.
    #[schemars(length(min = 1, max = 253))]
    pub claim: String,
    /// Header that gets the claim's value; one that the client sent is removed.
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[A-Za-z0-9!#$%&'*+.^_|~-]+$"))]
    pub header: String,
}

/// Where in a request a token is found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JwtExtractor {
    /// Headers, each with a prefix that is cut off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub headers: Vec<JwtHeader>,
    /// Cookies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub cookies: Vec<String>,
    /// Query parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub params: Vec<String>,
}

/// A header that holds a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JwtHeader {
    /// Name of the header.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// What stands before the token, such as `Bearer `.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub value_prefix: Option<String>,
}

/// Authorisation by an external service, over HTTP or gRPC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("has(self.http) != has(self.grpc)", "exactly one of http and grpc must be set"),
])))]
pub struct ExtAuthSpec {
    /// A service that answers HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpExtAuth>,
    /// A service that answers Envoy's gRPC authorisation protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcExtAuth>,
    /// Headers of the request that the service sees besides Host, Method, Path, Content-Length and Authorization.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub headers_to_ext_auth: Vec<String>,
    /// Let requests through when the service cannot be reached.
    #[serde(default)]
    pub fail_open: bool,
    /// Longest wait for the service. Defaults to 10s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<GoDuration>,
}

/// An authorisation service that answers HTTP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpExtAuth {
    /// The service.
    pub backend_ref: BackendRef,
    /// Path that is put before the request's own; begins with a slash.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024), regex(pattern = r"^/[^?#\s]*$"))]
    pub path: Option<String>,
    /// Headers of the service's answer that are passed to the instance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub headers_to_backend: Vec<String>,
}

/// An authorisation service that answers gRPC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrpcExtAuth {
    /// The service.
    pub backend_ref: BackendRef,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendRef {
    /// Name of the Service.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the Service; that of the gateway when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
    /// Port of the Service.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Secret or ConfigMap with the certificate authority of the service; plain text when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_certificate_ref: Option<ObjectRef>,
}

/// Which web pages of other origins may send requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("!self.allowCredentials || !self.allowOrigins.exists(o, o == '*')",
     "allowCredentials cannot be combined with the origin *: any page could act for the user"),
])))]
pub struct CorsSpec {
    /// Origins such as https://example.com, https://*.example.com or *.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 253)))]
    pub allow_origins: Vec<String>,
    /// Methods that may be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 32)))]
    pub allow_methods: Vec<String>,
    /// Headers that may be sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub allow_headers: Vec<String>,
    /// Headers of the response that the page may read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub expose_headers: Vec<String>,
    /// How long a browser may remember the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<GoDuration>,
    /// Whether cookies and Authorization may be sent.
    #[serde(default)]
    pub allow_credentials: bool,
}
