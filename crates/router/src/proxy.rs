//! One request through the gateway: route, key, reservation, connection, exchange. Whatever goes wrong ends in a
//! refusal that says what the client is to do.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use agentcube_instance::InstanceId;
use agentcube_instance::provider::{InstanceProvider, Reserved};
use agentcube_instance::reserve::InUse;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{Either, Full};
use hyper::body::{Body, Incoming};
use parking_lot::RwLock;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::body::{Passing, Reply};
use crate::breaker::{self, Breakers};
use crate::converse::{self, Answer, Ending};
use crate::decide::{self, Asked, At, Decision, Plan};
use crate::gateway::Options;
use crate::guard::{Admitted, Guard, Guards, Origin, Sharing};
use crate::headers::{self, Added, RequestIds};
use crate::observe::{Observer, Sight, Trouble};
use crate::pool::{Connect, Lent, Pool};
use crate::protocol::talk::{self, Talk};
use crate::refusal::Refusal;
use crate::room::Room;
use crate::route::{self, Limits, Route, Table};
use crate::slots::{Slot, Slots};
use crate::tls::Greeting;
use crate::tunnel;
use crate::upload::{Progress, Received, Sent};
use crate::watch::{self, Watch};

/// Passes requests on.
pub(crate) struct Proxy {
    pub(crate) table: Arc<RwLock<Table>>,
    guards: Arc<Guards>,
    provider: Arc<dyn InstanceProvider>,
    pool: Pool,
    breakers: Breakers,
    tenant: HeaderName,
    ids: RequestIds,
    /// Connections that were upgraded, which outlive their requests.
    pub(crate) tunnels: TaskTracker,
    /// Ends them.
    pub(crate) cut: CancellationToken,
    /// How many more connections of clients there may be.
    pub(crate) slots: Slots,
    /// How long a client may take to send the head of a request, and may be silent between two.
    pub(crate) head_timeout: Duration,
    /// For bodies that have to be read before they can be passed on.
    room: Arc<Room>,
    observer: Arc<Observer>,
}

/// The connection that requests come in on.
pub(crate) struct Client {
    /// The port by which routes are found.
    pub(crate) port: u16,
    pub(crate) address: IpAddr,
    /// How it greeted, if it speaks TLS.
    pub(crate) tls: Option<Greeting>,
    /// Closes it.
    pub(crate) cut: CancellationToken,
    /// Its place among the connections that there may be.
    pub(crate) slot: Arc<Slot>,
}

impl Client {
    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

/// Where a request is to go, and who guards the way there.
struct Found {
    host: String,
    route: Arc<Route>,
    guard: Arc<Guard>,
    /// Headers that other gateways of the Task set, so that its instances believe them.
    believed: Vec<HeaderName>,
}

/// A request as it came in.
struct Arrived<'a> {
    client: &'a Client,
    id: HeaderValue,
    /// What the instance is told of who sends it.
    identity: HeaderMap,
    seen: &'a Arc<Sight>,
}

/// How the conversation goes on, and whether its session ends.
struct Course {
    ending: Ending,
    talk: Talk,
}

/// An instance, and what is needed to talk to it.
struct Target {
    instance: InstanceId,
    decision: Decision,
    in_use: Arc<InUse>,
}

impl Target {
    fn new(plan: &Plan, talk: &Talk, reserved: Reserved) -> Target {
        let mut decision = Decision::new(plan, &reserved);
        talk.amend(&mut decision);
        Target { instance: reserved.instance, decision, in_use: Arc::new(reserved.in_use) }
    }
}

impl Proxy {
    pub(crate) fn new(
        table: Arc<RwLock<Table>>,
        guards: Arc<Guards>,
        provider: Arc<dyn InstanceProvider>,
        connect: Arc<dyn Connect>,
        observer: Arc<Observer>,
        options: &Options,
    ) -> Proxy {
        Proxy {
            table,
            guards,
            provider,
            pool: Pool::new(connect),
            breakers: Breakers::default(),
            tenant: options.tenant_header.clone(),
            ids: RequestIds::new(),
            tunnels: TaskTracker::new(),
            cut: CancellationToken::new(),
            slots: Slots::new(options.connections, options.connections_per_address),
            head_timeout: options.head_timeout,
            room: Arc::default(),
            observer,
        }
    }

    /// Begins to watch a request.
    pub(crate) fn see(&self) -> Arc<Sight> {
        Sight::begin(&self.observer)
    }

    pub(crate) fn close_idle(&self) {
        self.pool.clear();
    }

    /// Answers a request that came in on a port.
    pub(crate) async fn answer(
        &self,
        client: &Client,
        request: Request<Incoming>,
        seen: &Arc<Sight>,
    ) -> Response<Reply> {
        let id = self.ids.of(request.headers());
        let (mut parts, body) = request.into_parts();
        headers::join_cookies(&mut parts.headers);
        seen.arrived(&parts, &id);
        let found = match self.find(client, &parts, seen) {
            Ok(found) => found,
            Err(refusal) => return refused(refusal, id, seen),
        };
        if let Some(sharing) = found.guard.preflight(&parts) {
            seen.preflight();
            return no_content(sharing, id);
        }
        let sharing = found.guard.sharing(&parts.headers);
        let request = Request::from_parts(parts, body);
        let mut response = match self.pass(client, id.clone(), found, request, seen).await {
            Ok(mut response) => {
                seen.head(response.status());
                let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
                headers::to_client(response.headers_mut(), &id, upgraded);
                response.map(Either::Left)
            }
            Err(refusal) => refused(refusal, id, seen),
        };
        sharing.put(response.headers_mut());
        response
    }

    async fn pass(
        &self,
        client: &Client,
        id: HeaderValue,
        found: Found,
        request: Request<Incoming>,
        seen: &Arc<Sight>,
    ) -> Result<Response<Passing>, Refusal> {
        let Found { host, route, guard, believed } = found;
        let (mut parts, body) = request.into_parts();
        let from = Origin { address: client.address, scheme: client.scheme() };
        let admitted = guard.admit(&mut parts, &host, &route.task, from, &believed).await?;
        let mut plan = decide::plan_on(route, &asked(client.port, Some(&host), &parts))?;
        plan.wanted.tenant = self.tenant(&admitted, &parts.headers);
        plan.own(admitted.subject.as_ref())?;
        plan.scheme = client.scheme();
        let request = Request::from_parts(parts, body);
        let mut request = request.map(Received::new);
        let found = converse::look_into(&plan, &mut request, &self.room, self.head_timeout).await?;
        let provider = &*self.provider;
        let mut talk = talk::settle(provider, &mut plan, &found).await?;
        let mut ending = Ending::new(self.provider.clone());
        let reaching = async {
            let reserved = self.reserve(&mut plan, &mut talk, seen).await?;
            if talk.is_first() {
                ending.set(reserved.in_use.session());
            }
            self.reach(Target::new(&plan, &talk, reserved), &mut plan, &mut talk, seen).await
        };
        let (lent, target) = tokio::select! {
            // Nothing is read ahead for a session that has its instance.
            biased;
            reached = reaching => reached?,
            why = request.body_mut().broken() => return Err(Refusal::broken(&why)),
        };
        let arrived = Arrived { client, id, identity: admitted.identity, seen };
        self.exchange(Course { ending, talk }, &plan, arrived, request, lent, target).await
    }

    /// The Task of a request, and who guards the way there.
    fn find(&self, client: &Client, parts: &Parts, seen: &Sight) -> Result<Found, Refusal> {
        let (port, host) = (client.port, headers::host(&parts.uri, &parts.headers));
        if let (Some(greeting), Some(host)) = (&client.tls, &host)
            && !greeting.is_for(&route::host_name(host))
        {
            return Err(Refusal::misdirected(host));
        }
        let table = self.table.read();
        let (host, route) = decide::route(&table, &asked(port, host.as_deref(), parts))?;
        let entrances = table.entrances(&route, port, host);
        seen.found(&route, entrances.first().cloned());
        let guard = self.guards.of(&entrances)?;
        let believed = self.guards.identity(&route.gateways)?;
        Ok(Found { host: host.to_owned(), route, guard, believed })
    }

    /// An instance for the request.
    async fn reserve(&self, plan: &mut Plan, talk: &mut Talk, seen: &Sight) -> Result<Reserved, Refusal> {
        let begun = Instant::now();
        let reserved = talk::reserve(&*self.provider, plan, talk).await;
        seen.reserved(begun.elapsed(), plan.wanted.key.as_ref(), &reserved);
        reserved
    }

    /// On whose behalf a request comes: where the gateway knows who sends it, a client's word counts for nothing.
    fn tenant(&self, admitted: &Admitted, headers: &HeaderMap) -> Option<String> {
        let believed = if admitted.authenticates { &admitted.identity } else { headers };
        let named = decide::tenant_of(believed, &self.tenant);
        named.or_else(|| admitted.subject.as_ref().map(ToString::to_string))
    }

    /// A connection to the instance. If it cannot be had, the instance may have died a moment ago, and nothing has been
    /// sent: the request asks once more for one.
    async fn reach(
        &self,
        target: Target,
        plan: &mut Plan,
        talk: &mut Talk,
        seen: &Sight,
    ) -> Result<(Lent, Target), Refusal> {
        let limits = plan.route.limits;
        let held = self.place(&target, &limits).await?;
        let failed = match self.connection(&target, &limits).await {
            Ok(lent) => return Ok((lent.holding(held), target)),
            Err(error) => error,
        };
        seen.trouble(Trouble::Connect);
        let before = target.instance.clone();
        drop((target, held));
        let reserved = self.reserve(plan, talk, seen).await?;
        let target = Target::new(plan, talk, reserved);
        if target.instance == before {
            return Err(Refusal::unreachable(&before.name, &failed.to_string()));
        }
        let held = self.place(&target, &limits).await?;
        match self.connection(&target, &limits).await {
            Ok(lent) => Ok((lent.holding(held), target)),
            Err(error) => {
                seen.trouble(Trouble::Connect);
                Err(Refusal::unreachable(&target.instance.name, &error.to_string()))
            }
        }
    }

    async fn connection(&self, target: &Target, limits: &Limits) -> std::io::Result<Lent> {
        let mut lent = match self.pool.take(&target.instance, target.decision.endpoint) {
            Some(lent) => lent,
            None => self.pool.connect(&target.instance, target.decision.endpoint, limits.connect).await?,
        };
        lent.retire_after(limits.breaker.per_connection);
        Ok(lent)
    }

    /// A place at the instance, if it has only so many.
    async fn place(&self, target: &Target, limits: &Limits) -> Result<Option<breaker::Place>, Refusal> {
        let entering = self.breakers.enter(&target.instance.uid, limits.breaker, limits.patience);
        entering.await.map_err(|full| Refusal::full(&target.instance.name, full))
    }

    async fn exchange(
        &self,
        course: Course,
        plan: &Plan,
        arrived: Arrived<'_>,
        mut request: Request<Received>,
        lent: Lent,
        target: Target,
    ) -> Result<Response<Passing>, Refusal> {
        let Course { mut ending, mut talk } = course;
        let route = &*plan.route;
        let upgrade = headers::upgrade(request.headers()).map(|_| hyper::upgrade::on(&mut request));
        let (progress, seen) = (Arc::new(Progress::default()), arrived.seen);
        seen.uploading(&progress);
        let (request, over) = outgoing(plan, &arrived, request, &target, progress.clone());
        let sending = self.send(route, request, lent, &target, seen);
        let (mut response, mut lent) = tokio::select! {
            sent = sending => sent.map_err(|refusal| progress.stalled().map_or(refusal, Refusal::stalled))?,
            limit = overdue(route.limits.request, over) => {
                seen.trouble(Trouble::Timeout);
                return Err(Refusal::too_slow(&target.instance.name, limit));
            }
            () = target.in_use.revoked() => return Err(Refusal::revoked(&target.instance.name)),
        };
        seen.answering();
        let client = arrived.client;
        let silence = route.limits.stream_idle;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(upgrade) = upgrade else {
                return Err(Refusal::failed(&target.instance.name, "it switched protocols unasked"));
            };
            let places = (client.slot.clone(), lent.held.take());
            self.carry(places, upgrade, &mut response, &target, silence, seen.clone());
        }
        tracing::debug!(port = client.port, task = %route.task, instance = %target.instance.name, "passed on");
        let deadline = route.limits.request.filter(|_| !is_stream(&response));
        let deadline = deadline.map(|limit| progress.ended().unwrap_or_else(Instant::now) + limit);
        let first = talk.is_first();
        let (instance, in_use) = (&target.instance, &*target.in_use);
        let answer = Answer { instance, in_use, deadline, silence };
        let early = converse::learn(&*self.provider, plan, &mut talk, &mut response, answer).await?;
        ending.set(target.in_use.session().filter(|_| talk.ends()));
        if !first {
            ending.has_company();
        }
        let limits = watch::Limits { silence, deadline };
        let watch = |in_use| Watch::start(in_use, limits, client.cut.clone());
        Ok(response.map(|body| Passing::new(body, early, lent, target.in_use, Some(ending), watch)))
    }

    /// Carries an upgraded connection until its end. It keeps the places that its request had.
    fn carry(
        &self,
        places: (Arc<Slot>, Option<breaker::Place>),
        upgrade: hyper::upgrade::OnUpgrade,
        response: &mut Response<Incoming>,
        target: &Target,
        silence: Option<Duration>,
        seen: Arc<Sight>,
    ) {
        let instance = hyper::upgrade::on(response);
        let cut = self.cut.child_token();
        let copying = tunnel::run(upgrade, instance, target.in_use.clone(), silence, cut, seen);
        self.tunnels.spawn(async move {
            copying.await;
            drop(places);
        });
    }

    /// Sends a request, and once more on a new connection if a kept one turned out to be closed: when it was not sent
    /// at all, or may be sent twice and has no body.
    async fn send(
        &self,
        route: &Route,
        request: Request<Sent>,
        mut lent: Lent,
        target: &Target,
        seen: &Sight,
    ) -> Result<(Response<Incoming>, Lent), Refusal> {
        let harmless = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        let again = (lent.reused && harmless && request.body().is_end_stream()).then(|| copy(&request));
        let mut error = match lent.sender.try_send_request(request).await {
            Ok(response) => return Ok((response, lent)),
            Err(error) => error,
        };
        seen.trouble(Trouble::Closed);
        let name = &target.instance.name;
        let unsent = error.take_message();
        let request = match (unsent, again) {
            (Some(request), _) => request,
            (None, Some(head)) if lent.reused => head.map(|()| Sent::empty(target.in_use.clone())),
            _ => return Err(Refusal::failed(name, &said(error.error()))),
        };
        let connecting =
            self.pool.connect(&target.instance, target.decision.endpoint, route.limits.connect).await;
        let held = lent.held.take();
        let connected = connecting.map_err(|error| {
            seen.trouble(Trouble::Connect);
            Refusal::unreachable(name, &error.to_string())
        })?;
        let mut lent = connected.holding(held);
        lent.retire_after(route.limits.breaker.per_connection);
        match lent.sender.send_request(request).await {
            Ok(response) => Ok((response, lent)),
            Err(error) => {
                seen.trouble(Trouble::Closed);
                Err(Refusal::failed(name, &said(&error)))
            }
        }
    }
}

/// The answer to a request that is not passed on.
fn refused(refusal: Refusal, id: HeaderValue, seen: &Sight) -> Response<Reply> {
    seen.refused(&refusal);
    let (status, code) = (refusal.status.as_u16(), refusal.code);
    match &refusal.detail {
        Some(detail) => tracing::info!(request = ?id, status, code, detail, "refused"),
        None => tracing::debug!(request = ?id, status, code, message = refusal.message, "refused"),
    }
    let mut response = refusal.into_response(&id).map(Either::Right);
    response.headers_mut().insert(headers::REQUEST_ID, id);
    response
}

/// The answer to a browser's question beforehand.
fn no_content(sharing: Sharing, id: HeaderValue) -> Response<Reply> {
    let mut response = Response::new(Either::Right(Full::default()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    sharing.put(response.headers_mut());
    response.headers_mut().insert(headers::REQUEST_ID, id);
    response
}

/// What hyper says, with its cause.
fn said(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn copy(request: &Request<Sent>) -> Request<()> {
    let mut copy = Request::new(());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

/// What the core wants to know of a request.
fn asked<'a>(port: u16, host: Option<&'a str>, parts: &'a Parts) -> Asked<'a> {
    Asked {
        at: At::Port(port),
        method: &parts.method,
        host,
        path: parts.uri.path(),
        query: parts.uri.query(),
        headers: &parts.headers,
    }
}

/// The request as the instance gets it.
fn outgoing(
    plan: &Plan,
    arrived: &Arrived<'_>,
    request: Request<Received>,
    target: &Target,
    progress: Arc<Progress>,
) -> (Request<Sent>, oneshot::Receiver<()>) {
    let (mut parts, body) = request.into_parts();
    parts.uri = below(&plan.route, &parts.uri);
    parts.version = Version::HTTP_11;
    let added = Added {
        client: arrived.client.address,
        scheme: arrived.client.scheme(),
        host: &plan.host,
        decision: &target.decision,
        request_id: &arrived.id,
    };
    headers::to_instance(&mut parts.headers, &added);
    // After the rest: nothing that a client says of its connection takes them away.
    parts.headers.extend(arrived.identity.clone());
    let (body, over) = Sent::new(body, target.in_use.clone(), progress, plan.route.limits.upload_idle);
    (Request::from_parts(parts, body), over)
}

/// The target below the prefix of the Task, in the form that servers are asked in.
fn below(route: &Route, uri: &Uri) -> Uri {
    let rest = route.rest(uri.path()).unwrap_or("/");
    let text = match uri.query() {
        Some(query) => format!("{rest}?{query}"),
        None => rest.to_owned(),
    };
    // A part of a valid target, cut at a slash, is valid.
    text.parse().unwrap_or_else(|_| Uri::from_static("/"))
}

/// Comes back when the response has not begun in time.
async fn overdue(limit: Option<Duration>, over: oneshot::Receiver<()>) -> Duration {
    let Some(limit) = limit else { return std::future::pending().await };
    // An error says that the body is gone, which is what is waited for.
    let _ = over.await;
    tokio::time::sleep(limit).await;
    limit
}

/// Streams may go on for as long as something is said.
fn is_stream<B>(response: &Response<B>) -> bool {
    let content = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    response.status() == StatusCode::SWITCHING_PROTOCOLS
        || content.is_some_and(|content| content.starts_with("text/event-stream"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_have_no_deadline() {
        let of = |status: u16, content: &str| {
            let response = Response::builder().status(status).header(CONTENT_TYPE, content);
            is_stream(&response.body(()).unwrap())
        };
        assert!(of(200, "text/event-stream; charset=utf-8"));
        assert!(of(101, "text/plain"));
        assert!(!of(200, "application/json"));
    }
}
