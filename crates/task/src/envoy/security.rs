//! SecurityPolicy: what a TaskGateway says of authentication and CORS, in the words of Envoy Gateway.

use agentcube_api::agentcube::security::{BackendRef, CorsSpec, ExtAuthSpec, JwtProvider, JwtSpec};
use agentcube_api::{TaskGateway, labels};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{set, set_list, target};
use crate::duration;

/// The spec, or nothing if everybody may send requests; or why it cannot be said to Envoy Gateway.
pub(crate) fn spec(gateway: &TaskGateway) -> Result<Option<Value>, String> {
    let authentication = gateway.spec.authentication.clone().unwrap_or_default();
    if authentication.jwt.is_none() && authentication.ext_auth.is_none() && gateway.spec.cors.is_none() {
        return Ok(None);
    }
    let mut spec = json!({ "targetRefs": target(&gateway.name_any(), None) });
    set(&mut spec, "jwt", authentication.jwt.as_ref().map(jwt));
    set(&mut spec, "extAuth", authentication.ext_auth.as_ref().map(ext_auth).transpose()?);
    set(&mut spec, "cors", gateway.spec.cors.as_ref().map(cors));
    Ok(Some(spec))
}

fn jwt(jwt: &JwtSpec) -> Value {
    let providers: Vec<Value> = jwt.providers.iter().map(provider).collect();
    let mut result = json!({ "providers": providers });
    set(&mut result, "optional", jwt.optional.then_some(true));
    result
}

fn provider(provider: &JwtProvider) -> Value {
    let mut jwks = json!({ "uri": provider.remote_jwks.uri });
    set(&mut jwks, "cacheDuration", provider.remote_jwks.cache_duration.map(duration::text));
    let mut result = json!({ "name": provider.name, "issuer": provider.issuer, "remoteJWKS": jwks });
    set_list(&mut result, "audiences", &provider.audiences);
    if !provider.claim_to_headers.is_empty() {
        let claims = provider.claim_to_headers.iter();
        let claims = claims.map(|one| json!({ "claim": one.claim, "header": one.header }));
        result["claimToHeaders"] = claims.collect();
    }
    if let Some(extract) = &provider.extract_from {
        let mut from = json!({});
        if !extract.headers.is_empty() {
            from["headers"] = json!(extract.headers);
        }
        set_list(&mut from, "cookies", &extract.cookies);
        set_list(&mut from, "params", &extract.params);
        result["extractFrom"] = from;
    }
    result
}

fn ext_auth(auth: &ExtAuthSpec) -> Result<Value, String> {
    let mut result = json!({ "failOpen": auth.fail_open });
    if let Some(http) = &auth.http {
        let mut service = json!({ "backendRefs": backends(&http.backend_ref)? });
        set(&mut service, "path", http.path.as_deref());
        // By the last of them the service says who sends a request, if it wants to.
        let subject = labels::SUBJECT_HEADER;
        let named = http.headers_to_backend.iter().any(|name| name.eq_ignore_ascii_case(subject));
        let mut headers = http.headers_to_backend.clone();
        headers.extend((!named).then(|| subject.to_owned()));
        set_list(&mut service, "headersToBackend", &headers);
        result["http"] = service;
    }
    if let Some(grpc) = &auth.grpc {
        result["grpc"] = json!({ "backendRefs": backends(&grpc.backend_ref)? });
    }
    set_list(&mut result, "headersToExtAuth", &auth.headers_to_ext_auth);
    set(&mut result, "timeout", auth.timeout.map(duration::text));
    Ok(result)
}

fn backends(backend: &BackendRef) -> Result<Value, String> {
    if backend.ca_certificate_ref.is_some() {
        return Err(format!(
            "Envoy Gateway takes the certificate authority of a Service from a BackendTLSPolicy: make one for \
             Service {}, and leave caCertificateRef out of authentication.extAuth",
            backend.name
        ));
    }
    let mut reference = json!({ "group": "", "kind": "Service", "name": backend.name, "port": backend.port });
    set(&mut reference, "namespace", backend.namespace.as_deref());
    Ok(json!([reference]))
}

fn cors(cors: &CorsSpec) -> Value {
    let mut result = json!({ "allowCredentials": cors.allow_credentials });
    set_list(&mut result, "allowOrigins", &cors.allow_origins);
    set_list(&mut result, "allowMethods", &cors.allow_methods);
    set_list(&mut result, "allowHeaders", &cors.allow_headers);
    set_list(&mut result, "exposeHeaders", &cors.expose_headers);
    set(&mut result, "maxAge", cors.max_age.map(duration::text));
    result
}

/// Headers that tell an instance who sends a request. A client's own are no evidence of anything.
pub(crate) fn identity_headers(gateway: &TaskGateway) -> Vec<String> {
    let Some(authentication) = &gateway.spec.authentication else { return Vec::new() };
    let providers = authentication.jwt.iter().flat_map(|jwt| &jwt.providers);
    let claims = providers.flat_map(|provider| &provider.claim_to_headers).map(|claim| &claim.header);
    let http = authentication.ext_auth.iter().filter_map(|auth| auth.http.as_ref());
    claims
        .chain(http.flat_map(|http| &http.headers_to_backend))
        .map(|name| name.to_ascii_lowercase())
        .collect()
}
