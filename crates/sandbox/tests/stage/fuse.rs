//! The death of a controller after its n-th effect: the effect happens, nobody hears the answer, and nothing that the
//! controller does afterwards reaches anybody. From outside: the code under test knows nothing of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use agentcube_protos::agent::{
    ConfigureRequest, ConfigureResponse, ExecRequest, LogsRequest, PauseRequest, PauseResponse, StartRequest,
    StartResponse, StatsRequest, StatsResponse, StopRequest, StopResponse, SyncRequest, SyncResponse,
};
use agentcube_protos::link::{AgentApi, Answer, Answers};
use agentcube_protos::session::{ExecOutput, LogChunk};
use futures_util::stream::BoxStream;
use http::{Method, StatusCode};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::NAMESPACE;
use super::fake::Fake;

/// How the API server is reached by controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    Fair,
    /// Nothing is served.
    Down,
    /// Writes are done, and their answers lost.
    Losing,
}

fn unanswered(code: StatusCode) -> http::Response<Body> {
    let status = serde_json::json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": "as the test wants it", "reason": "", "code": code.as_u16() });
    let mut response = http::Response::new(Body::from(status.to_string().into_bytes()));
    *response.status_mut() = code;
    response
}

#[derive(Clone, Debug)]
pub(crate) struct Fuse {
    /// How many effects it lets through.
    left: Arc<AtomicU64>,
    pub(crate) blown: CancellationToken,
}

impl Fuse {
    /// Blows after so many effects.
    pub(crate) fn after(effects: u64) -> Fuse {
        Fuse { left: Arc::new(AtomicU64::new(effects)), blown: CancellationToken::new() }
    }

    pub(crate) fn never() -> Fuse {
        Fuse::after(u64::MAX)
    }

    /// An effect that counts.
    pub(crate) async fn effect<T>(&self, work: impl Future<Output = T>) -> T {
        let answer = self.through(work).await;
        self.spend();
        // Whoever is dead hears nothing.
        if self.blown.is_cancelled() {
            std::future::pending::<()>().await;
        }
        answer
    }

    /// An effect has happened.
    pub(crate) fn spend(&self) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.blown.cancel();
        }
    }

    /// Something that changes nothing.
    async fn through<T>(&self, work: impl Future<Output = T>) -> T {
        if self.blown.is_cancelled() {
            std::future::pending::<()>().await;
        }
        work.await
    }

    /// A client whose writes are effects, in this weather.
    pub(crate) fn client(&self, client: &Client, weather: &Arc<Mutex<Weather>>) -> Client {
        let (client, fuse, weather) = (client.clone(), self.clone(), weather.clone());
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (client, fuse, weather) = (client.clone(), fuse.clone(), *weather.lock());
            async move {
                let writes = request.method() != Method::GET;
                if weather == Weather::Down {
                    return Ok(unanswered(StatusCode::SERVICE_UNAVAILABLE));
                }
                // Events say what happened, and are no part of it.
                let counts = writes && !request.uri().path().contains("/events");
                let answering = client.send(request);
                let answer =
                    if counts { fuse.effect(answering).await } else { fuse.through(answering).await };
                if weather == Weather::Losing && writes {
                    return Ok(unanswered(StatusCode::INTERNAL_SERVER_ERROR));
                }
                answer
            }
        });
        Client::new(service, NAMESPACE)
    }
}

/// An agent whose calls are effects.
#[derive(Debug)]
pub(crate) struct Fused {
    pub(crate) agent: Arc<Fake>,
    pub(crate) fuse: Fuse,
}

impl AgentApi for Fused {
    fn sync(&self, request: SyncRequest) -> Answer<'_, SyncResponse> {
        Box::pin(self.fuse.through(self.agent.sync(request)))
    }

    fn start(&self, request: StartRequest) -> Answer<'_, StartResponse> {
        Box::pin(self.fuse.effect(self.agent.start(request)))
    }

    fn stop(&self, request: StopRequest) -> Answer<'_, StopResponse> {
        Box::pin(self.fuse.effect(self.agent.stop(request)))
    }

    fn pause(&self, request: PauseRequest) -> Answer<'_, PauseResponse> {
        Box::pin(self.fuse.effect(self.agent.pause(request)))
    }

    fn configure(&self, request: ConfigureRequest) -> Answer<'_, ConfigureResponse> {
        Box::pin(self.fuse.effect(self.agent.configure(request)))
    }

    fn stats(&self, request: StatsRequest) -> Answer<'_, StatsResponse> {
        self.agent.stats(request)
    }

    fn logs(&self, request: LogsRequest) -> Answer<'_, Answers<LogChunk>> {
        self.agent.logs(request)
    }

    fn exec(&self, input: BoxStream<'static, ExecRequest>) -> Answer<'_, Answers<ExecOutput>> {
        self.agent.exec(input)
    }
}
