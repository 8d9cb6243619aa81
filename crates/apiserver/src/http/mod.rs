//! HTTP: from a request to an operation of [`Api`], and from its outcome to a response.
//!
//! [`Front`] is a `tower` service, so it runs behind a socket and inside a `kube::Client` alike.

mod discovery;
mod exec;
mod grpc;
mod openapi;
mod options;
mod paths;
mod portforward;
mod proxy;
mod reply;
mod resources;
mod websocket;

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};

pub use reply::ReplyBody;

use crate::api::Api;
use crate::codec::{self, BODY_LIMIT};
use crate::faults::RequestFault;
use crate::status::Status;

/// A body must have arrived by then.
const BODY_TIME: Duration = Duration::from_secs(60);
/// How much of a body that is too large is read on, and for how long.
const DISCARD_LIMIT: usize = 16 << 20;
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// The whole API as one service.
#[derive(Clone)]
pub struct Front {
    api: Api,
}

impl Front {
    pub fn new(api: Api) -> Self {
        Self { api }
    }

    async fn serve<B>(&self, request: Request<B>) -> Response<ReplyBody>
    where
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let writes = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        let fault = self.api.faults().request(writes).await;
        if let RequestFault::Refuse(refusal) = fault {
            return reply::failure(&refusal.status());
        }
        let response = match self.route(request).await {
            Ok(response) => response,
            Err(status) => reply::failure(&status),
        };
        if fault == RequestFault::LoseReply {
            return reply::failure(&crate::faults::Refusal::Internal.status());
        }
        response
    }

    async fn route<B>(&self, request: Request<B>) -> Result<Response<ReplyBody>, Status>
    where
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if grpc::is_call(&request) {
            return grpc::serve(&self.api, request).await;
        }
        if let Some(answer) = paths::plain(&self.api, request.method(), request.uri(), request.headers())? {
            return Ok(answer);
        }
        if let Some(target) = proxy::Target::parse(request.uri().path()) {
            let (parts, body) = request.into_parts();
            return proxy::serve(&self.api, target, parts, body).await;
        }
        let Some(target) = crate::request::Target::parse(request.uri().path()) else {
            return Err(paths::unknown(&self.api, request.uri().path()));
        };
        let (parts, body) = request.into_parts();
        let body = read_body(&parts, body).await?;
        resources::serve(&self.api, target, parts, body).await
    }
}

/// Reads a bounded body; refuses at once what announces itself as too large.
async fn read_body<B>(parts: &http::request::Parts, body: B) -> Result<Bytes, Status>
where
    B: http_body::Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let announced =
        parts.headers.get(http::header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    let mut body = pin!(body);
    if announced.is_some_and(|length: usize| length > BODY_LIMIT) {
        discard(body).await;
        return Err(codec::too_large());
    }
    let read = tokio::time::timeout(BODY_TIME, Limited::new(body.as_mut(), BODY_LIMIT).collect());
    let Ok(read) = read.await else {
        return Err(Status::new(StatusCode::REQUEST_TIMEOUT, "Timeout", "the body took too long to arrive"));
    };
    match read {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            discard(body).await;
            Err(codec::too_large())
        }
        Err(error) => Err(Status::bad_request(format!("cannot read the body: {error}"))),
    }
}

/// Reads on over what is too large, though not without end: a client that is still writing when the connection closes
/// would never read why.
async fn discard<B: http_body::Body>(mut body: Pin<&mut B>) {
    let rest = async {
        let mut read = 0;
        while let Some(Ok(frame)) = body.frame().await
            && read < DISCARD_LIMIT
        {
            read += frame.data_ref().map_or(0, |data| data.remaining());
        }
    };
    let _ = tokio::time::timeout(DISCARD_TIME, rest).await;
}

impl<B> tower::Service<Request<B>> for Front
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<ReplyBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let front = self.clone();
        Box::pin(async move { Ok(front.serve(request).await) })
    }
}

/// A refusal that needs no routing.
pub(crate) fn refuse(status: &Status) -> Response<ReplyBody> {
    reply::failure(status)
}
