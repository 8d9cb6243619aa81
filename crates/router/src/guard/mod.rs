//! Who may come in, with what, and how often: what a TaskGateway says, for the built-in gateway. A gateway whose
//! policy is not known, or asks for what cannot be done, lets nobody in.

mod cors;
mod ext_auth;
mod fetch;
mod jwk;
mod jwt;
mod keys;
mod rate;
mod service;
mod token;

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use agentcube_api::TaskGateway;
use agentcube_api::agentcube::security::{AuthenticationSpec, CorsSpec};
use agentcube_api::agentcube::traffic::RateLimitingSpec;
use agentcube_api::labels::RESERVED_TOKEN_HEADER;
use agentcube_instance::TaskId;
use agentcube_operator::cache::Cache;
use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use parking_lot::RwLock;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::decide;
use crate::headers;
use crate::owner::Subject;
use crate::refusal::Refusal;
use crate::route::GatewayId;
use cors::Cors;
pub(crate) use cors::Sharing;
use ext_auth::ExtAuth;
use fetch::Fetcher;
use jwt::{Denied, Jwt};
use keys::Health;
use rate::{Exceeded, Limits, Stage};
pub(crate) use service::Reach;

/// When to try again while a policy is not known, or keys cannot be had.
const LATER: Duration = Duration::from_secs(5);

/// They say how a message is to be read, or whose session it is of, or are the gateway's own: no claim may stand in
/// them.
const NOT_SETTABLE: [&str; 23] = [
    "host",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "transfer-encoding",
    "upgrade",
    "te",
    "trailer",
    "expect",
    "keep-alive",
    "proxy-connection",
    "mcp-session-id",
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
    "x-request-id",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    RESERVED_TOKEN_HEADER,
    "x-gateway-destination-endpoint",
];

/// What is known of the policy of a Gateway.
#[derive(Clone, Debug)]
pub(crate) enum Policy {
    /// The Gateway belongs to no TaskGateway.
    None,
    /// It belongs to one that is not there, or not the same any more.
    Unknown,
    Of(Arc<TaskGateway>),
}

impl Policy {
    pub(crate) fn of(&self) -> Option<&TaskGateway> {
        match self {
            Policy::Of(object) => Some(object),
            Policy::None | Policy::Unknown => None,
        }
    }

    /// The generation of the TaskGateway that it is of.
    pub(crate) fn generation(&self) -> Option<i64> {
        self.of().and_then(|object| object.metadata.generation)
    }
}

/// What can be said of a part of a policy. Nothing if it is not asked for.
pub(crate) type Said = Option<Verdict>;

/// Whether a part of a policy is in force, and in which words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    InForce(Cow<'static, str>),
    /// It asks for what cannot be done.
    Unsupported(String),
    /// Nobody knows what it asks for.
    Unknown(String),
    /// It is kept, and for want of keys there are some, or all, whom it lets in no more.
    WithoutKeys(String),
}

/// What a gateway asks of requests.
#[derive(Default)]
pub(crate) struct Guard {
    /// What it was made of; nothing if there is no TaskGateway.
    asked: Option<Asked>,
    /// Why nobody is let in; or why CORS cannot be kept, which closes nothing.
    closed: Option<String>,
    no_cors: Option<String>,
    jwt: Option<Jwt>,
    ext_auth: Option<ExtAuth>,
    cors: Option<Cors>,
    limits: Option<Arc<Limits>>,
    /// Headers that tell an instance who sends a request; a client's own are removed.
    identity: Vec<HeaderName>,
}

/// What a TaskGateway asks for.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    authentication: Option<AuthenticationSpec>,
    cors: Option<CorsSpec>,
    limits: Option<RateLimitingSpec>,
}

impl Asked {
    fn of(gateway: &TaskGateway) -> Asked {
        let spec = &gateway.spec;
        Asked {
            authentication: spec.authentication.clone(),
            cors: spec.cors.clone(),
            limits: spec.rate_limiting.clone(),
        }
    }
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) address: IpAddr,
    pub(crate) scheme: &'static str,
}

/// A request that was let in.
#[derive(Debug, Default)]
pub(crate) struct Admitted {
    pub(crate) subject: Option<Subject>,
    /// What the instance is told of the subject.
    pub(crate) identity: HeaderMap,
    /// Whether the gateway knows who sends requests, so that nobody needs to take a client's word.
    pub(crate) authenticates: bool,
}

impl Guard {
    fn closed(why: impl Into<String>) -> Guard {
        Guard { closed: Some(why.into()), ..Guard::default() }
    }

    fn new(asked: Asked, namespace: &str, tools: &Tools, before: Option<&Guard>) -> Guard {
        let authentication = asked.authentication.as_ref();
        let jwt = authentication.and_then(|it| it.jwt.as_ref());
        let jwt = jwt.map(|jwt| Jwt::new(jwt, tools, before.and_then(|before| before.jwt.as_ref())));
        let ext_auth = authentication.and_then(|it| it.ext_auth.as_ref());
        let ext_auth = ext_auth.map(|spec| ExtAuth::new(spec, namespace, tools.reach.clone()));
        let ((jwt, bad_jwt), (ext_auth, bad_service)) = (either(jwt), either(ext_auth));
        let closed = bad_jwt.or(bad_service);
        let identity = authentication.map(identity).unwrap_or_default();
        let (cors, no_cors) = either(asked.cors.as_ref().map(Cors::new));
        // A change of something else does not fill the buckets.
        let same = before.filter(|before| before.asked.as_ref().is_some_and(|it| it.limits == asked.limits));
        let limits = match same {
            Some(same) => same.limits.clone(),
            None => asked.limits.as_ref().map(|spec| Arc::new(Limits::new(spec))),
        };
        Guard { asked: Some(asked), closed, no_cors, jwt, ext_auth, cors, limits, identity }
    }

    /// What the TaskGateway's owner is told of authentication.
    pub(crate) fn security(&self) -> Said {
        let Some(asked) = &self.asked else {
            return self.is_lost().map(|why| Verdict::Unknown(format!("{why}: nobody is let in")));
        };
        let authentication = asked.authentication.as_ref();
        let authenticates = authentication.is_some_and(|it| it.jwt.is_some() || it.ext_auth.is_some());
        if !authenticates && asked.cors.is_none() {
            return None;
        }
        if let Some(why) = &self.closed {
            return Some(Verdict::Unsupported(format!("{why}; until then nobody is let in")));
        }
        if let Some(why) = &self.no_cors {
            return Some(Verdict::Unsupported(why.clone()));
        }
        let checked = "requests are checked by the built-in gateway";
        Some(match self.jwt.as_ref().map(Jwt::health).unwrap_or_default() {
            Health::Well => Verdict::InForce(checked.into()),
            Health::Aging(why) => Verdict::InForce(format!("{checked}, with keys from before: {why}").into()),
            Health::Without(why) => Verdict::WithoutKeys(format!("{why}; those tokens let nobody in")),
        })
    }

    /// And of rate limits.
    pub(crate) fn rate_limits(&self) -> Said {
        let Some(asked) = &self.asked else {
            return self.is_lost().map(|why| Verdict::Unknown(why.to_owned()));
        };
        let asked = asked.limits.as_ref()?;
        if asked.global.is_none() && asked.per_route.is_none() && asked.rules.is_empty() {
            return None;
        }
        let broken = self.limits.as_ref().and_then(|limits| limits.broken.clone());
        Some(match broken {
            None => Verdict::InForce("requests are counted by each process of the built-in gateway".into()),
            Some(why) => Verdict::Unsupported(why),
        })
    }

    /// Why nobody at all is let in, whatever the policy is.
    pub(crate) fn is_lost(&self) -> Option<&str> {
        self.closed.as_deref().filter(|_| self.asked.is_none())
    }

    /// The answer to a browser's question beforehand, if the request is one.
    pub(crate) fn preflight(&self, parts: &Parts) -> Option<Sharing> {
        self.cors.as_ref().filter(|_| self.closed.is_none()).and_then(|cors| cors.preflight(parts))
    }

    /// What the answer to a request says to browsers.
    pub(crate) fn sharing(&self, headers: &HeaderMap) -> Sharing {
        self.cors.as_ref().map(|cors| cors.sharing(headers)).unwrap_or_default()
    }

    /// Whether it knows who sends requests.
    fn authenticates(&self) -> bool {
        self.jwt.is_some() || self.ext_auth.is_some()
    }

    /// Lets a request in, with the headers that an instance may believe; or says why not.
    pub(crate) async fn admit(
        &self,
        parts: &mut Parts,
        host: &str,
        task: &TaskId,
        from: Origin,
        believed: &[HeaderName],
    ) -> Result<Admitted, Refusal> {
        if let Some(why) = &self.closed {
            return Err(unready(why));
        }
        // Before anybody is asked who it is: a flood without tokens has to end here.
        self.count(Stage::Arrival, parts, task, from.address, believed)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let identity = match &self.jwt {
            Some(jwt) => jwt.identify(parts, now.as_secs_f64()).await.map_err(denied)?,
            None => None,
        };
        headers::strip(&mut parts.headers, &self.identity);
        if !believed.is_empty() {
            headers::strip(&mut parts.headers, believed);
        }
        let mut admitted = Admitted { authenticates: self.authenticates(), ..Admitted::default() };
        if let Some(identity) = identity {
            parts.headers.extend(identity.headers.clone());
            admitted.subject = Some(identity.subject);
            admitted.identity = identity.headers;
        }
        if let Some(service) = &self.ext_auth {
            let told = service.ask(parts, host, from).await?;
            let names: Vec<HeaderName> = told.set.keys().cloned().chain(told.remove).collect();
            headers::strip(&mut parts.headers, &names);
            admitted.identity.extend(told.set);
            parts.headers.extend(admitted.identity.clone());
        }
        self.count(Stage::Identified, parts, task, from.address, believed)?;
        Ok(admitted)
    }

    fn count(
        &self,
        stage: Stage,
        parts: &Parts,
        task: &TaskId,
        client: IpAddr,
        believed: &[HeaderName],
    ) -> Result<(), Refusal> {
        let Some(limits) = &self.limits else { return Ok(()) };
        let request = rate::Request { task: &task.name, headers: &parts.headers, client };
        let told = |name: &HeaderName| self.identity.contains(name) || believed.contains(name);
        limits.take(request, stage, told, Instant::now()).map_err(exceeded)
    }
}

/// What guards need in order to ask others.
struct Tools {
    fetcher: Arc<Fetcher>,
    reach: Reach,
    /// Told when what a guard says of itself has changed without its policy.
    news: Arc<Notify>,
}

/// The guards of all gateways. One that has none lets nobody in.
pub(crate) struct Guards {
    tools: Tools,
    by_gateway: RwLock<HashMap<GatewayId, Arc<Guard>>>,
    /// What gateways set is said by their TaskGateways, whoever serves them.
    policies: Cache<TaskGateway>,
    /// What is known to be set by gateways without one: nothing, or what it was before it went.
    settled: RwLock<HashMap<GatewayId, Vec<HeaderName>>>,
}

impl Guards {
    pub(crate) fn new(reach: Reach, policies: Cache<TaskGateway>) -> Guards {
        let tools = Tools { fetcher: Arc::default(), reach, news: Arc::default() };
        Guards { tools, by_gateway: RwLock::default(), policies, settled: RwLock::default() }
    }

    /// Comes back when what guards say of themselves may have changed; gives those that it may be.
    pub(crate) async fn news(&self) -> Vec<GatewayId> {
        self.tools.news.notified().await;
        let known = self.by_gateway.read();
        known.iter().filter(|(_, guard)| guard.jwt.is_some()).map(|(gateway, _)| gateway.clone()).collect()
    }

    /// Whether it is known which headers a gateway sets.
    pub(crate) fn knows(&self, gateway: &GatewayId) -> bool {
        self.policies.get(&gateway.namespace, &gateway.name).is_some()
            || self.settled.read().contains_key(gateway)
    }

    /// Takes in what a gateway sets whose TaskGateway is not among those that are watched.
    pub(crate) fn settle(&self, gateway: GatewayId, last: Option<&TaskGateway>) {
        let names = last.and_then(|last| last.spec.authentication.as_ref()).map(identity).unwrap_or_default();
        self.settled.write().insert(gateway, names);
    }

    /// Nobody names the gateway any more.
    pub(crate) fn forget(&self, gateway: &GatewayId) {
        self.settled.write().remove(gateway);
    }

    /// Takes in a gateway's policy. What has not changed goes on as it was, with what it has learned.
    pub(crate) fn set(&self, gateway: &GatewayId, policy: &Policy) -> Arc<Guard> {
        let before = self.by_gateway.read().get(gateway).cloned();
        let guard = match policy {
            Policy::None => Arc::default(),
            Policy::Unknown => Arc::new(Guard::closed("its TaskGateway is not there")),
            Policy::Of(object) => match before {
                Some(before) if before.asked == Some(Asked::of(object)) => before,
                before => {
                    let asked = Asked::of(object);
                    Arc::new(Guard::new(asked, &gateway.namespace, &self.tools, before.as_deref()))
                }
            },
        };
        self.by_gateway.write().insert(gateway.clone(), guard.clone());
        guard
    }

    pub(crate) fn remove(&self, gateway: &GatewayId) {
        self.by_gateway.write().remove(gateway);
    }

    /// Headers that any of these gateways sets, where there are several: what came in by one of them must not look like
    /// what another says. While it is not known of one of them, nothing can be let through.
    pub(crate) fn identity(&self, gateways: &[GatewayId]) -> Result<Vec<HeaderName>, Refusal> {
        if gateways.len() < 2 {
            return Ok(Vec::new());
        }
        let mut names = Vec::new();
        for gateway in gateways {
            let policy = self.policies.get(&gateway.namespace, &gateway.name);
            match policy.as_ref().map(|policy| &policy.spec.authentication) {
                Some(Some(authentication)) => names.extend(identity(authentication)),
                Some(None) => {}
                None => match self.settled.read().get(gateway) {
                    Some(settled) => names.extend_from_slice(settled),
                    None => {
                        let why = format!("it is not known which headers the gateway {} sets", gateway.name);
                        return Err(unready(&why));
                    }
                },
            }
        }
        Ok(names)
    }

    /// The guard of a request that came in by any of these gateways. Where it is several, by one that knows who comes:
    /// nobody gets around it by another.
    pub(crate) fn of(&self, gateways: &[GatewayId]) -> Result<Arc<Guard>, Refusal> {
        let known = self.by_gateway.read();
        let guards: Option<Vec<&Arc<Guard>>> = gateways.iter().map(|gateway| known.get(gateway)).collect();
        let strict = guards.and_then(|guards| {
            guards
                .into_iter()
                .rev()
                .max_by_key(|guard| (guard.closed.is_some(), guard.authenticates()))
                .cloned()
        });
        strict.ok_or_else(|| unready("its policy has not been read yet"))
    }
}

/// What came of something that may be asked for, and why nothing did.
fn either<T>(outcome: Option<Result<T, String>>) -> (Option<T>, Option<String>) {
    match outcome.transpose() {
        Ok(made) => (made, None),
        Err(why) => (None, Some(why)),
    }
}

fn exceeded(exceeded: Exceeded) -> Refusal {
    let message = format!("there were too many requests: the limit {}, is used up", exceeded.limit);
    let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, "RateLimited", message);
    // Rounded up: whoever comes back by then is let in.
    let after = Duration::from_secs(exceeded.after.as_secs() + 1);
    Refusal { retry_after: Some(after), ..refusal }
}

/// The headers by which a gateway tells instances who sends a request. Also those of a policy that cannot be kept.
fn identity(authentication: &AuthenticationSpec) -> Vec<HeaderName> {
    let providers = authentication.jwt.iter().flat_map(|jwt| &jwt.providers);
    let claims = providers.flat_map(|provider| &provider.claim_to_headers).map(|mapping| &mapping.header);
    let http = authentication.ext_auth.as_ref().and_then(|service| service.http.as_ref());
    let of_service = http.into_iter().flat_map(|http| &http.headers_to_backend);
    claims.chain(of_service).filter_map(|name| name.to_ascii_lowercase().parse().ok()).collect()
}

/// The name of a header that may tell an instance something.
fn settable(name: &str) -> Result<HeaderName, String> {
    let header = name.parse::<HeaderName>().map_err(|_| format!("{name:?} is no name of a header"))?;
    // Many servers read underscores as dashes, so that they would be the same there.
    if NOT_SETTABLE.iter().any(|reserved| decide::reads_as(&header, reserved)) {
        return Err(format!("the header {name} cannot carry a claim: choose another"));
    }
    Ok(header)
}

fn unready(why: &str) -> Refusal {
    let message = "this gateway lets nobody in at present: its policy is not in force; the conditions of its \
                   TaskGateway say why";
    let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "GatewayNotReady", message);
    Refusal { retry_after: Some(LATER), detail: Some(why.to_owned()), ..refusal }
}

fn denied(denied: Denied) -> Refusal {
    let refused = |code: &'static str, message: String, challenge: &str| Refusal {
        headers: HeaderValue::from_str(challenge)
            .map(|it| (header::WWW_AUTHENTICATE, it))
            .into_iter()
            .collect(),
        ..Refusal::new(StatusCode::UNAUTHORIZED, code, message)
    };
    match denied {
        Denied::Missing => {
            let message = "this gateway lets in only requests with a token: send Authorization: Bearer TOKEN, or \
                           where its TaskGateway says";
            refused("TokenMissing", message.into(), "Bearer realm=\"agentcube\"")
        }
        Denied::Unclear => {
            let why = "the token is given more than once, or is not text";
            refused("TokenInvalid", why.into(), &challenge(why))
        }
        Denied::Bad(bad) => refused("TokenInvalid", bad.to_string(), &challenge(&bad.to_string())),
        Denied::Unavailable => {
            let message =
                "the keys of the token's issuer cannot be fetched at present, so that it cannot be checked";
            let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "KeysUnavailable", message);
            Refusal { retry_after: Some(LATER), ..refusal }
        }
    }
}

fn challenge(why: &str) -> String {
    format!("Bearer realm=\"agentcube\", error=\"invalid_token\", error_description=\"{why}\"")
}

#[cfg(test)]
mod tests;
