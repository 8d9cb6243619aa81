//! The gRPC health check, spoken by hand: one call with one string, answered by one number.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::Request;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::http::beside;
use super::{Target, connect};
use crate::kubelet::machine::Verdict;

const MOST_BYTES: usize = 10 << 10;
const SERVING: u8 = 1;

pub(super) async fn probe(service: &str, port: u16, target: &Target, limit: Duration) -> Verdict {
    let place = format!("{}:{port}", target.address);
    match tokio::time::timeout(limit, call(service, port, target, limit)).await {
        Err(_) => {
            Verdict::Failure(format!("timeout: failed to connect service \"{place}\" within {limit:?}"))
        }
        Ok(Err(message)) => Verdict::Failure(format!("failed to connect service \"{place}\": {message}")),
        Ok(Ok(SERVING)) => Verdict::Success,
        Ok(Ok(status)) => {
            let name = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];
            let name = name.get(usize::from(status)).unwrap_or(&"UNKNOWN");
            Verdict::Failure(format!("service unhealthy (responded with \"{name}\")"))
        }
    }
}

async fn call(service: &str, port: u16, target: &Target, limit: Duration) -> Result<u8, String> {
    let stream = connect(target, port, limit).await?;
    let text = |error: hyper::Error| error.to_string();
    let io = TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.map_err(text)?;
    let request = Request::post(format!("http://{}:{port}/grpc.health.v1.Health/Check", target.address))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(question(service)?))
        .map_err(|error| error.to_string())?;
    let asking = async {
        let response = sender.send_request(request).await.map_err(text)?;
        let early = response.headers().get("grpc-status").cloned();
        let body = Limited::new(response.into_body(), MOST_BYTES).collect().await;
        let body = body.map_err(|error| error.to_string())?;
        let status =
            early.or_else(|| body.trailers().and_then(|trailers| trailers.get("grpc-status").cloned()));
        match status.as_ref().and_then(|status| status.to_str().ok()) {
            Some("0") => {
                answer(&body.to_bytes()).ok_or_else(|| "the answer is not a health status".to_owned())
            }
            Some("12") => {
                Err("this server does not implement the grpc health protocol (grpc.health.v1.Health)".into())
            }
            other => Err(format!("rpc failed with status {}", other.unwrap_or("unknown"))),
        }
    };
    beside(connection, asking).await
}

/// Five bytes of frame, then field 1: the service's name.
fn question(service: &str) -> Result<Bytes, String> {
    let length = u8::try_from(service.len()).ok().filter(|length| *length < 126);
    let length = length.ok_or("the service's name is too long")?;
    let mut bytes = BytesMut::new();
    let message = if length == 0 { 0 } else { u32::from(length) + 2 };
    bytes.put_u8(0);
    bytes.put_u32(message);
    if length > 0 {
        bytes.put_slice(&[0x0a, length]);
        bytes.put_slice(service.as_bytes());
    }
    Ok(bytes.freeze())
}

/// Field 1 of the answer; an absent number is 0.
fn answer(bytes: &[u8]) -> Option<u8> {
    let (frame, message) = bytes.split_at_checked(5)?;
    if frame[0] != 0 {
        return None;
    }
    match message {
        [] => Some(0),
        [0x08, status, ..] => Some(*status),
        _ => None,
    }
}
