//! Who sends a request, by its token: found where its provider says, checked, and its claims made headers.

use std::sync::Arc;
use std::time::Duration;

use agentcube_api::agentcube::security::{JwtExtractor, JwtProvider, JwtSpec};
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Uri};

use super::Tools;
use super::keys::{Health, Keyring};
use super::token::{self, Bad, Token};
use crate::extract::{Place, Problem};
use crate::owner::Subject;

/// How long keys are kept when the provider does not say.
const KEEP: Duration = Duration::from_secs(300);
/// Less than this is taken for this.
const LEAST_KEEP: Duration = Duration::from_secs(1);

/// Authentication by token.
pub(crate) struct Jwt {
    spec: JwtSpec,
    providers: Vec<Provider>,
}

struct Provider {
    issuer: Arc<str>,
    audiences: Vec<String>,
    places: Vec<Found>,
    claims: Vec<(String, HeaderName)>,
    keys: Arc<Keyring>,
}

/// A place of tokens, and what stands before them there.
struct Found {
    place: Place,
    prefix: Box<str>,
}

/// Who sends a request, and what the instance is told of it.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) subject: Subject,
    pub(crate) headers: HeaderMap,
}

/// Why nobody is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    Missing,
    /// A place has several, or something unreadable.
    Unclear,
    Bad(Bad),
    /// The issuer's keys cannot be had.
    Unavailable,
}

impl Jwt {
    /// Takes over the keys that an earlier one has fetched.
    pub(crate) fn new(spec: &JwtSpec, tools: &Tools, before: Option<&Jwt>) -> Result<Jwt, String> {
        let known = before.map(|before| before.providers.as_slice()).unwrap_or_default();
        let providers: Result<Vec<_>, _> =
            spec.providers.iter().map(|provider| Provider::new(provider, tools, known)).collect();
        Ok(Jwt { spec: spec.clone(), providers: providers? })
    }

    /// How the issuers fare whose keys were needed, worst first: whose tokens cannot be checked, then whose keys are old.
    pub(crate) fn health(&self) -> Health {
        let named = |provider: &Provider, why: String| format!("the keys of {}: {why}", provider.issuer);
        let (mut without, mut aging) = (Vec::new(), Vec::new());
        for provider in &self.providers {
            match provider.keys.health() {
                Health::Well => {}
                Health::Aging(why) => aging.push(named(provider, why)),
                Health::Without(why) => without.push(named(provider, why)),
            }
        }
        match (without.is_empty(), aging.is_empty()) {
            (false, _) => Health::Without(without.join("; ")),
            (true, false) => Health::Aging(aging.join("; ")),
            (true, true) => Health::Well,
        }
    }

    /// Who sends the request, at this time in seconds since 1970; nobody if it has no token and needs none.
    pub(crate) async fn identify(&self, parts: &Parts, now: f64) -> Result<Option<Identity>, Denied> {
        let mut denied = None;
        for provider in &self.providers {
            let Some(text) = provider.find(&parts.headers, &parts.uri)? else { continue };
            match provider.verify(&text, now).await {
                Ok(identity) => return Ok(Some(identity)),
                // Another provider's word on its own token says more.
                Err(Denied::Bad(Bad::Issuer)) => denied = denied.or(Some(Denied::Bad(Bad::Issuer))),
                Err(other) => denied = Some(other),
            }
        }
        match denied {
            Some(denied) => Err(denied),
            None if self.spec.optional => Ok(None),
            None => Err(Denied::Missing),
        }
    }
}

impl Provider {
    fn new(spec: &JwtProvider, tools: &Tools, known: &[Provider]) -> Result<Provider, String> {
        let uri: Uri = spec.remote_jwks.uri.parse().map_err(|_| {
            format!("provider {}: remoteJWKS.uri is no address: {}", spec.name, spec.remote_jwks.uri)
        })?;
        let keep = spec.remote_jwks.cache_duration.map_or(KEEP, |keep| keep.to_std()).max(LEAST_KEEP);
        let same = known.iter().find(|one| one.keys.uri == uri && one.keys.keep == keep);
        let claims: Result<Vec<_>, String> = spec
            .claim_to_headers
            .iter()
            .map(|mapping| Ok((mapping.claim.clone(), super::settable(&mapping.header)?)))
            .collect();
        Ok(Provider {
            issuer: spec.issuer.as_str().into(),
            audiences: spec.audiences.clone(),
            places: places(spec.extract_from.as_ref())
                .map_err(|why| format!("provider {}: {why}", spec.name))?,
            claims: claims.map_err(|why| format!("provider {}: {why}", spec.name))?,
            keys: match same {
                Some(same) => same.keys.clone(),
                None => Arc::new(Keyring::new(uri, keep, tools.fetcher.clone(), tools.news.clone())),
            },
        })
    }

    fn find(&self, headers: &HeaderMap, uri: &Uri) -> Result<Option<String>, Denied> {
        for Found { place, prefix } in &self.places {
            let value = place.value(headers, "", uri.query().unwrap_or_default());
            let value = value.map_err(|_: Problem| Denied::Unclear)?;
            let value = value.as_deref().map(str::trim).filter(|value| !value.is_empty());
            // A value without the prefix is something else, such as a password.
            let token = value.and_then(|value| {
                let begin = value.get(..prefix.len())?;
                begin.eq_ignore_ascii_case(prefix).then(|| value[prefix.len()..].trim_start())
            });
            if let Some(token) = token {
                return Ok(Some(token.to_owned()));
            }
        }
        Ok(None)
    }

    async fn verify(&self, text: &str, now: f64) -> Result<Identity, Denied> {
        let token = Token::read(text).map_err(Denied::Bad)?;
        if token.issuer() != Some(&*self.issuer) {
            return Err(Denied::Bad(Bad::Issuer));
        }
        token.check(&self.audiences, now).map_err(Denied::Bad)?;
        let keys = self.keys.keys(token.key_id.as_deref()).await.ok_or(Denied::Unavailable)?;
        keys.verify(&token).map_err(Denied::Bad)?;
        let name = token.subject().ok_or(Denied::Bad(Bad::Subject))?;
        let mut headers = HeaderMap::with_capacity(self.claims.len());
        for (claim, header) in &self.claims {
            let value = token::claim(&token.claims, claim);
            // What a header cannot hold is left out, never cut.
            if let Some(value) = value.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok()) {
                headers.insert(header, value);
            }
        }
        Ok(Identity { subject: Subject { issuer: self.issuer.clone(), name: name.into() }, headers })
    }
}

fn places(spec: Option<&JwtExtractor>) -> Result<Vec<Found>, String> {
    let spec = spec.filter(|it| !it.headers.is_empty() || !it.cookies.is_empty() || !it.params.is_empty());
    let Some(spec) = spec else {
        return Ok(vec![Found { place: Place::Header(AUTHORIZATION), prefix: "Bearer ".into() }]);
    };
    let mut places = Vec::new();
    for header in &spec.headers {
        let name = header.name.parse().map_err(|_| format!("{:?} is no name of a header", header.name))?;
        let prefix = header.value_prefix.as_deref().unwrap_or_default().into();
        places.push(Found { place: Place::Header(name), prefix });
    }
    let plain = |place: Place| Found { place, prefix: "".into() };
    places.extend(spec.cookies.iter().map(|name| plain(Place::Cookie(name.as_str().into()))));
    places.extend(spec.params.iter().map(|name| plain(Place::Query(name.as_str().into()))));
    Ok(places)
}
