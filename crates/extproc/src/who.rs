//! Who sends a request, as far as Envoy has made sure of it. Pure. Its JWT filter hands on what it has verified as
//! metadata, which no client can write; a service that Envoy asks for authorisation says it by a header, which every
//! gateway takes away from clients first.

use agentcube_router::decide::{self, Who};
use agentcube_router::owner::{BY_SERVICE, Subject};
use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::google::protobuf::{Struct, value::Kind};
use http::HeaderMap;
use http::header::HeaderName;

use crate::message::string;

/// The namespace of metadata in which Envoy's JWT filter puts the payload of each token, by the name of its provider.
pub const VERIFIED: &str = "envoy.filters.http.jwt_authn";

/// The headers that say something of who sends a request.
#[derive(Clone, Debug)]
pub struct Names {
    /// On whose behalf it comes.
    pub tenant: HeaderName,
    /// Who sends it, as a service that was asked has said.
    pub subject: HeaderName,
}

/// Who sends a request.
pub fn who(metadata: Option<&Metadata>, headers: &HeaderMap, names: &Names) -> Who {
    let verified = metadata.and_then(|metadata| metadata.filter_metadata.get(VERIFIED));
    let token = verified.and_then(payload);
    let of_token = token.and_then(|token| Some((claim(token, "iss")?, claim(token, "sub")?)));
    let subject = match of_token {
        Some((issuer, name)) => Some(Subject { issuer: issuer.into(), name: name.into() }),
        None => {
            said(headers, &names.subject).map(|name| Subject { issuer: BY_SERVICE.into(), name: name.into() })
        }
    };
    let named = decide::tenant_of(headers, &names.tenant);
    let tenant = match &subject {
        None => named,
        // Where it is known who sends it a client's word counts for nothing, but a claim does.
        Some(subject) => named
            .filter(|tenant| token.is_some_and(|token| has_claim(token, tenant)))
            .or_else(|| Some(subject.to_string())),
    };
    Who { subject, tenant }
}

/// The payload of a token that names its issuer and its subject; of several, that of the first provider by name.
fn payload(verified: &Struct) -> Option<&Struct> {
    let payloads = verified.fields.iter().filter_map(|(provider, value)| match &value.kind {
        Some(Kind::StructValue(payload)) => Some((provider, payload)),
        _ => None,
    });
    let named = payloads.filter(|(_, it)| claim(it, "iss").is_some() && claim(it, "sub").is_some());
    named.min_by_key(|(provider, _)| *provider).map(|(_, payload)| payload)
}

fn claim<'a>(payload: &'a Struct, name: &str) -> Option<&'a str> {
    payload.fields.get(name).and_then(string).filter(|text| !text.is_empty())
}

fn has_claim(payload: &Struct, text: &str) -> bool {
    payload.fields.values().any(|value| string(value) == Some(text))
}

/// The one value of a header.
fn said<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let (first, None) = (values.next()?, values.next()) else { return None };
    first.to_str().ok().map(str::trim).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use envoy_types::pb::google::protobuf::Value;
    use http::HeaderValue;

    use super::*;

    fn names() -> Names {
        Names {
            tenant: HeaderName::from_static("x-tenant-id"),
            subject: HeaderName::from_static("x-agentcube-subject"),
        }
    }

    fn verified(providers: &[(&str, &[(&str, &str)])]) -> Metadata {
        let text = |text: &str| Value { kind: Some(Kind::StringValue(text.into())) };
        let payload = |claims: &[(&str, &str)]| {
            let fields = claims.iter().map(|(name, it)| ((*name).to_owned(), text(it))).collect();
            Value { kind: Some(Kind::StructValue(Struct { fields })) }
        };
        let fields = providers.iter().map(|(name, claims)| ((*name).to_owned(), payload(claims))).collect();
        let filter_metadata = HashMap::from([(VERIFIED.to_owned(), Struct { fields })]);
        Metadata { filter_metadata, ..Metadata::default() }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    fn subject(issuer: &str, name: &str) -> Option<Subject> {
        Some(Subject { issuer: issuer.into(), name: name.into() })
    }

    #[test]
    fn a_verified_token_says_who_it_is() {
        let both = headers(&[("x-agentcube-subject", "bob"), ("x-tenant-id", "acme")]);
        let token = verified(&[("sso", &[("iss", "https://sso"), ("sub", "ada")])]);
        let who_is = who(Some(&token), &both, &names());
        assert_eq!(who_is.subject, subject("https://sso", "ada"));
        assert_eq!(who_is.tenant.as_deref(), Some("ada of https://sso"), "the header is the client's word");
        let claimed = verified(&[("sso", &[("iss", "https://sso"), ("sub", "ada"), ("tenant_id", "acme")])]);
        assert_eq!(who(Some(&claimed), &both, &names()).tenant.as_deref(), Some("acme"));
    }

    #[test]
    fn a_service_says_who_it_is_where_no_token_does() {
        let said = headers(&[("x-agentcube-subject", "bob"), ("x-tenant-id", "acme")]);
        for metadata in [None, Some(verified(&[])), Some(verified(&[("sso", &[("sub", "ada")])]))] {
            let who_is = who(metadata.as_ref(), &said, &names());
            assert_eq!(who_is.subject, subject(BY_SERVICE, "bob"));
            assert_eq!(who_is.tenant.as_deref(), Some("bob of the authorisation service"));
        }
        let mut twice = said.clone();
        twice.append("x-agentcube-subject", HeaderValue::from_static("eve"));
        assert_eq!(who(None, &twice, &names()).subject, None);
        let nobody = who(None, &headers(&[("x-tenant-id", "acme")]), &names());
        assert_eq!((nobody.subject, nobody.tenant.as_deref()), (None, Some("acme")));
    }
}
