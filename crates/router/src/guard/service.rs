//! Ways to a Service: its endpoints, asked of the API server once in a while, and a few connections that are kept. The
//! gateway may not have addresses of Services at all, as on one machine, so it goes to the endpoints themselves.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use agentcube_instance::Endpoint;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, ListParams};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::authorize::Protocol;
use crate::pool::Connect;
use crate::socket;

/// How long endpoints are believed; and how long when one of them could not be reached.
const BELIEVED: Duration = Duration::from_secs(5);
const DOUBTED: Duration = Duration::from_secs(1);
/// Connections that are kept, and for how long.
const MOST_IDLE: usize = 16;
const IDLE_LIMIT: Duration = Duration::from_secs(3);

/// How Services are reached.
#[derive(Clone)]
pub(crate) struct Reach {
    pub(crate) client: Client,
    pub(crate) connect: Arc<dyn Connect>,
    pub(crate) grpc: Option<Arc<dyn Protocol>>,
}

/// Why a Service does not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("its endpoints cannot be read: {0}")]
    Api(#[from] kube::Error),
    #[error("it has no endpoint that is ready")]
    NoEndpoint,
    #[error("it cannot be reached: {0}")]
    Connect(#[from] io::Error),
    #[error("the exchange failed: {0}")]
    Http(#[from] hyper::Error),
}

/// A port of a Service.
pub(crate) struct Service {
    reach: Reach,
    namespace: String,
    name: String,
    port: i32,
    state: Mutex<State>,
    /// Held by the one who reads the endpoints; others wait for what comes of it.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    endpoints: Vec<Endpoint>,
    read: Option<Instant>,
    doubted: bool,
    next: usize,
    idle: Vec<(SendRequest<Empty<Bytes>>, Instant)>,
}

impl Service {
    pub(crate) fn new(reach: Reach, namespace: String, name: String, port: i32) -> Service {
        Service {
            reach,
            namespace,
            name,
            port,
            state: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
        }
    }

    /// Sends a request, once more on a new connection if one that was kept turns out to be closed.
    pub(crate) async fn send(&self, request: &Request<()>) -> Result<(Response<Incoming>, Sender), Error> {
        let idle = self.state.lock().take();
        if let Some(mut sender) = idle
            && let Ok(response) = sender.send_request(copy(request)).await
        {
            return Ok((response, Sender(sender)));
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(copy(request)).await?;
        Ok((response, Sender(sender)))
    }

    /// Keeps a connection whose answer was read to its end.
    pub(crate) fn keep(&self, sender: Sender) {
        let mut state = self.state.lock();
        if state.idle.len() < MOST_IDLE {
            state.idle.push((sender.0, Instant::now()));
        }
    }

    /// A connection to one of its endpoints.
    pub(crate) async fn dial(&self) -> Result<TcpStream, Error> {
        self.refresh().await?;
        let endpoint = self.state.lock().turn().ok_or(Error::NoEndpoint)?;
        let connected = self.reach.connect.connect(endpoint).await;
        let stream = connected.inspect_err(|_| self.state.lock().doubted = true)?;
        socket::prepare(&stream, socket::INSTANCE_PATIENCE);
        Ok(stream)
    }

    async fn connect(&self) -> Result<SendRequest<Empty<Bytes>>, Error> {
        let stream = self.dial().await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a Service ended");
            }
        });
        Ok(sender)
    }

    /// Reads the endpoints again, if that is due.
    async fn refresh(&self) -> Result<(), Error> {
        if self.state.lock().is_fresh() {
            return Ok(());
        }
        let _turn = self.reading.lock().await;
        if self.state.lock().is_fresh() {
            return Ok(());
        }
        let read = self.endpoints().await;
        let mut state = self.state.lock();
        // However it ends, it is not asked again at once.
        state.read = Some(Instant::now());
        (state.endpoints, state.doubted) = (read?, false);
        Ok(())
    }

    async fn endpoints(&self) -> Result<Vec<Endpoint>, Error> {
        let services: Api<core::Service> = Api::namespaced(self.reach.client.clone(), &self.namespace);
        let slices: Api<EndpointSlice> = Api::namespaced(self.reach.client.clone(), &self.namespace);
        let Some(service) = services.get_opt(&self.name).await? else { return Err(Error::NoEndpoint) };
        let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={}", self.name));
        Ok(ready(&service, self.port, &slices.list(&of_service).await?.items))
    }
}

/// A connection, while its answer is read.
pub(crate) struct Sender(SendRequest<Empty<Bytes>>);

impl State {
    fn take(&mut self) -> Option<SendRequest<Empty<Bytes>>> {
        self.idle.retain(|(sender, since)| sender.is_ready() && since.elapsed() < IDLE_LIMIT);
        self.idle.pop().map(|(sender, _)| sender)
    }

    fn is_fresh(&self) -> bool {
        let limit = if self.doubted { DOUBTED } else { BELIEVED };
        self.read.is_some_and(|read| read.elapsed() < limit)
    }

    /// The endpoints take turns.
    fn turn(&mut self) -> Option<Endpoint> {
        self.next = self.next.wrapping_add(1);
        self.endpoints.get(self.next % self.endpoints.len().max(1)).copied()
    }
}

/// The endpoints of a port that are ready. Pure.
fn ready(service: &core::Service, port: i32, slices: &[EndpointSlice]) -> Vec<Endpoint> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let Some(named) = ports.into_iter().find(|one| one.port == port) else { return Vec::new() };
    let name = named.name.as_deref().unwrap_or_default();
    let of_slice = |slice: &EndpointSlice| {
        let ports = slice.ports.iter().flatten();
        let own = ports.into_iter().find(|one| one.name.as_deref().unwrap_or_default() == name);
        let port = own.and_then(|own| u16::try_from(own.port?).ok());
        let able = |it: &&k8s_openapi::api::discovery::v1::Endpoint| {
            it.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
        };
        let addresses = slice.endpoints.iter().flatten().filter(able).flat_map(|it| it.addresses.iter());
        let addresses = addresses.filter_map(|address| address.parse().ok());
        addresses.filter_map(|host| Some(Endpoint { host, port: port? })).collect::<Vec<_>>()
    };
    slices.iter().flat_map(of_slice).collect()
}

fn copy(request: &Request<()>) -> Request<Empty<Bytes>> {
    let mut copy = Request::new(Empty::new());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn endpoints_are_those_of_the_port_that_are_ready() {
        let service =
            json!({ "spec": { "ports": [{ "name": "http", "port": 80 }, { "name": "admin", "port": 81 }] } });
        let service: core::Service = serde_json::from_value(service).unwrap();
        let slice: EndpointSlice = serde_json::from_value(json!({
            "addressType": "IPv4",
            "ports": [{ "name": "admin", "port": 9001 }, { "name": "http", "port": 9000 }],
            "endpoints": [
                { "addresses": ["10.0.0.1"] },
                { "addresses": ["10.0.0.2"], "conditions": { "ready": false } },
                { "addresses": ["10.0.0.3"], "conditions": { "ready": true } },
            ],
        }))
        .unwrap();
        let of = |port: i32| {
            ready(&service, port, std::slice::from_ref(&slice))
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(80), ["10.0.0.1:9000", "10.0.0.3:9000"]);
        assert_eq!(of(81), ["10.0.0.1:9001", "10.0.0.3:9001"]);
        assert!(of(82).is_empty());
    }
}
