//! Clients of a front.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// An answer that came whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    /// The instance that answered.
    pub(crate) fn instance(&self) -> Result<String> {
        ensure!(self.status == StatusCode::OK, "{self:?}");
        Ok(self.body["instance"].as_str().with_context(|| format!("{self:?}"))?.to_owned())
    }

    pub(crate) fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }
}

/// Sends a request on a connection of its own, which is closed when the task is aborted.
pub(crate) async fn send<B>(
    address: SocketAddr,
    request: Request<B>,
) -> Result<(Response<Incoming>, JoinHandle<()>)>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static,
{
    let io = TokioIo::new(TcpStream::connect(address).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    let connection = tokio::spawn(async move { drop(connection.with_upgrades().await) });
    Ok((sender.send_request(request).await?, connection))
}

pub(crate) async fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Result<Answer> {
    let (response, _) = send(address, head(path, headers)?).await?;
    let (parts, body) = response.into_parts();
    let body = body.collect().await?.to_bytes();
    let body = serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into());
    Ok(Answer { status: parts.status, headers: parts.headers, body })
}

pub(crate) fn head(path: &str, headers: &[(&str, &str)]) -> Result<Request<Empty<Bytes>>> {
    let mut request = Request::get(path).header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Ok(request.body(Empty::new())?)
}
