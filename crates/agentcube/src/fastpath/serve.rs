//! The fast path over gRPC: served by whoever leads, and answered for by the others.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use agentcube_extproc::{Tls, incoming_with};
use agentcube_protos::fastpath::fast_path_server::FastPathServer;
use agentcube_sandbox::FastPathService;
use futures_util::future::BoxFuture;
use parking_lot::RwLock;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower::Service;

const MOST_CONNECTIONS: usize = 4096;
const MOST_STREAMS: u32 = 4096;
const KEEPALIVE: Duration = Duration::from_secs(20);
/// How long calls on their way may go on after the shutdown.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

type FastPath = FastPathServer<FastPathService>;

/// What answers, if this process leads. Cheap to clone.
#[derive(Clone)]
pub(super) struct Front {
    service: Arc<RwLock<Option<FastPath>>>,
    health: HealthReporter,
}

impl Front {
    pub(super) async fn open(&self, service: FastPath) {
        *self.service.write() = Some(service);
        self.health.set_service_status(FastPath::NAME, ServingStatus::Serving).await;
    }

    pub(super) fn is_open(&self) -> bool {
        self.service.read().is_some()
    }

    pub(super) async fn close(&self) {
        *self.service.write() = None;
        self.health.set_service_status(FastPath::NAME, ServingStatus::NotServing).await;
    }
}

impl NamedService for Front {
    const NAME: &'static str = FastPath::NAME;
}

impl Service<http::Request<Body>> for Front {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.service.read().clone();
        Box::pin(async move {
            match service {
                Some(mut service) => service.call(request).await,
                None => Ok(Status::unavailable("this controller does not lead: ask again, or another one")
                    .into_http()),
            }
        })
    }
}

/// Serves until the shutdown.
pub(super) fn start(
    listener: TcpListener,
    tls: Option<Tls>,
    shutdown: CancellationToken,
) -> anyhow::Result<(Front, JoinHandle<()>)> {
    let (health, health_service) = tonic_health::server::health_reporter();
    let front = Front { service: Arc::default(), health };
    let connections = incoming_with(listener, tls, MOST_CONNECTIONS)?;
    let serving = Server::builder()
        .max_concurrent_streams(MOST_STREAMS)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .add_service(health_service)
        .add_service(front.clone())
        .serve_with_incoming_shutdown(connections, shutdown.clone().cancelled_owned());
    let closed = front.clone();
    let served = tokio::spawn(async move {
        closed.close().await;
        let late = async {
            shutdown.cancelled().await;
            tokio::time::sleep(LAST_ANSWERS).await;
        };
        tokio::select! {
            served = serving => if let Err(error) = served {
                tracing::error!(%error, "clients are served no longer");
            },
            // Whoever watches, or follows a log, does not keep the process.
            () = late => {}
        }
    });
    Ok((front, served))
}
