//! The line between one process and the API server, on which everything can go wrong: requests refused, answers lost,
//! writes that arrive long after their sender gave up, watches that lag or break, a cut, the death of the sender after
//! its n-th write. The server itself is never touched.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use agentcube_apiserver::faults::{Faults, Plan, RequestFault};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use kube::Client;
use kube::client::Body;
use parking_lot::RwLock;
use tokio::sync::Notify;

use crate::random::Random;

/// How badly a line behaves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Weather {
    pub(crate) requests: Plan,
    /// A write that fails for its sender is carried out up to `late_by` later.
    pub(crate) late: f64,
    pub(crate) late_by: Duration,
}

impl Weather {
    /// One request in ten fails; writes also meet conflicts, lose their answers, or arrive late; watches break and lag.
    pub(crate) fn storm(seed: u64) -> Weather {
        let requests = Plan {
            seed,
            internal: 0.05,
            unavailable: 0.05,
            conflict: 0.05,
            lost_reply: 0.05,
            delay: 0.05,
            delay_for: Duration::from_millis(40),
            drop_watch: 0.01,
            lag_watch: 0.1,
            lag_for: Duration::from_millis(150),
            ..Plan::default()
        };
        Weather { requests, late: 0.03, late_by: Duration::from_millis(1200) }
    }
}

/// What one process and its test share about the line.
#[derive(Default)]
pub(crate) struct Line {
    weather: RwLock<Weather>,
    faults: Faults,
    random: Random,
    /// Nothing gets through, in either direction.
    cut: AtomicBool,
    /// The process has died: nothing that it does matters any more.
    dead: AtomicBool,
    /// It dies when this many writes have been carried out.
    last_write: AtomicU64,
    writes: AtomicU64,
    struck: AtomicU64,
    pub(crate) died: Notify,
}

impl Line {
    pub(crate) fn new(seed: u64, weather: Weather) -> Arc<Line> {
        let line = Line { random: Random::new(seed), ..Line::default() };
        line.set(weather);
        Arc::new(line)
    }

    /// A line on which nothing goes wrong until its process dies, after so many writes.
    pub(crate) fn until_write(writes: u64) -> Arc<Line> {
        let line = Line::default();
        line.last_write.store(writes, Ordering::SeqCst);
        Arc::new(line)
    }

    pub(crate) fn set(&self, weather: Weather) {
        self.faults.set(weather.requests.clone());
        *self.weather.write() = weather;
    }

    pub(crate) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }

    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.died.notify_one();
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// How often something went wrong.
    pub(crate) fn struck(&self) -> u64 {
        self.struck.load(Ordering::SeqCst)
    }

    /// Counts a write that was carried out; the last one kills the process before it hears of it.
    fn wrote(&self) {
        let writes = self.writes.fetch_add(1, Ordering::SeqCst) + 1;
        let last = self.last_write.load(Ordering::SeqCst);
        if last > 0 && writes >= last {
            self.kill();
        }
    }

    fn strikes(&self, chance: f64) -> bool {
        let strikes = self.random.chance(chance);
        self.struck.fetch_add(u64::from(strikes), Ordering::SeqCst);
        strikes
    }

    /// A client whose requests go over this line.
    pub(crate) fn client(self: &Arc<Line>, beyond: &Client) -> Client {
        Client::new(Wire { line: self.clone(), beyond: beyond.clone() }, "default")
    }
}

/// What a client hears when the line fails it.
#[derive(Debug, thiserror::Error)]
#[error("the line: {0}")]
pub(crate) struct Broken(&'static str);

type Boxed = Box<dyn std::error::Error + Send + Sync>;
/// What comes back over the line: the server's body, or what is left of it.
type Rest = UnsyncBoxBody<Bytes, Boxed>;
type Answer = Result<Response<Rest>, Boxed>;

#[derive(Clone)]
struct Wire {
    line: Arc<Line>,
    beyond: Client,
}

impl tower::Service<Request<Body>> for Wire {
    type Response = Response<Rest>;
    type Error = Boxed;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Boxed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Wire { line, beyond } = self.clone();
        Box::pin(send(line, beyond, request))
    }
}

async fn send(line: Arc<Line>, beyond: Client, request: Request<Body>) -> Answer {
    if line.is_dead() {
        return pending().await;
    }
    let write = *request.method() != Method::GET;
    let watch = request.uri().query().is_some_and(|query| query.contains("watch="));
    if write {
        // A client that stops waiting does not stop what it sent.
        let sent = tokio::spawn(carry(line, beyond, request));
        return sent.await.map_err(|_| Boxed::from(Broken("the test is over")))?;
    }
    if line.cut.load(Ordering::SeqCst) {
        return Err(Broken("cut").into());
    }
    if line.faults.request(false).await != RequestFault::None {
        line.struck.fetch_add(1, Ordering::SeqCst);
        return Err(Broken("refused").into());
    }
    let answer = beyond.send(request).await?;
    if line.is_dead() {
        return pending().await;
    }
    Ok(answer.map(|body| if watch { spoil(line, body) } else { whole(body) }))
}

/// Carries a write, for better or worse.
async fn carry(line: Arc<Line>, beyond: Client, request: Request<Body>) -> Answer {
    let fate = line.faults.request(true).await;
    if line.cut.load(Ordering::SeqCst) {
        return Err(Broken("cut").into());
    }
    if let RequestFault::Refuse(refusal) = fate {
        line.struck.fetch_add(1, Ordering::SeqCst);
        return refuse(&refusal.status());
    }
    let (late, late_by) = {
        let weather = line.weather.read();
        (weather.late, weather.late_by)
    };
    if line.strikes(late) {
        let wait = late_by.mul_f64(line.random.unit());
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            let _ = beyond.send(request).await;
        });
        return Err(Broken("no answer in time").into());
    }
    // Heartbeats and Events come by the clock; the n-th write is to be the same in every run.
    let counts =
        !request.uri().path().contains("/agentcube-system/") && !request.uri().path().contains("/events");
    let answer = beyond.send(request).await?;
    if counts {
        line.wrote();
    }
    if line.is_dead() {
        return pending().await;
    }
    match fate {
        RequestFault::LoseReply => {
            line.struck.fetch_add(1, Ordering::SeqCst);
            Err(Broken("the answer was lost").into())
        }
        _ if line.cut.load(Ordering::SeqCst) => Err(Broken("cut").into()),
        _ => Ok(answer.map(whole)),
    }
}

fn whole(body: Body) -> Rest {
    body.map_err(Boxed::from).boxed_unsync()
}

/// An answer of the server that was none.
fn refuse(status: &agentcube_apiserver::status::Status) -> Answer {
    let code = status.code;
    let body = serde_json::json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "reason": status.reason, "message": status.message, "code": code.as_u16() });
    Ok(Response::builder().status(code).body(whole(Body::from(body.to_string().into_bytes())))?)
}

/// A watch that breaks and lags, and that a cut or a death silences.
fn spoil(line: Arc<Line>, body: Body) -> Rest {
    let frames = stream::unfold((line, BodyStream::new(body)), |(line, mut frames)| async move {
        let frame = frames.next().await?;
        if line.is_dead() {
            return pending().await;
        }
        let (drops, lags, lag) = {
            let plan = &line.weather.read().requests;
            (plan.drop_watch, plan.lag_watch, plan.lag_for)
        };
        if line.cut.load(Ordering::SeqCst) || line.strikes(drops) {
            return None;
        }
        if line.strikes(lags) {
            tokio::time::sleep(lag).await;
        }
        Some((frame.map_err(Boxed::from), (line, frames)))
    });
    StreamBody::new(frames).boxed_unsync()
}
