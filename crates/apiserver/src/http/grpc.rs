//! Calls of gRPC, for whoever answers them in this process.

use bytes::{Buf, Bytes};
use futures_util::stream;
use http::{Request, Response, header};
use http_body_util::{BodyExt, StreamBody};

use super::ReplyBody;
use crate::api::Api;
use crate::status::Status;

/// Whether a request is a call of gRPC: its content type says so.
pub(super) fn is_call<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| kind == "application/grpc" || kind.starts_with("application/grpc+"))
}

pub(super) async fn serve<B>(api: &Api, request: Request<B>) -> Result<Response<ReplyBody>, Status>
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Some(grpc) = api.hooks().grpc else {
        return Err(Status::service_unavailable("nobody answers gRPC here"));
    };
    let request = request.map(|body| {
        let body = body.map_frame(|frame| frame.map_data(|mut data| data.copy_to_bytes(data.remaining())));
        body.map_err(Into::into).boxed_unsync()
    });
    let response = grpc.call(request).await;
    Ok(response.map(|body| {
        // A failure of gRPC is in its trailers. What breaks off instead ends without any, which clients notice.
        let frames = stream::unfold(body, |mut body| async move {
            let frame: http_body::Frame<Bytes> = body.frame().await?.ok()?;
            Some((Ok(frame), body))
        });
        StreamBody::new(frames).boxed_unsync()
    }))
}
