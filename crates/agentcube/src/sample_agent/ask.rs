//! Says one thing to the agent and prints what it answers, as it comes.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::SESSION_HEADER;
use crate::exit::Outcome;
use crate::output;

pub(super) async fn run(
    address: SocketAddr,
    session: &str,
    message: String,
    stream: bool,
) -> anyhow::Result<Outcome> {
    let connected =
        TcpStream::connect(address).await.with_context(|| format!("no agent listens on {address}"))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(connected)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::post(if stream { "/stream" } else { "/" })
        .header(http::header::HOST, address.to_string())
        .header(SESSION_HEADER, session)
        .body(Full::new(Bytes::from(message)))
        .context("the session's name cannot stand in a header")?;
    let response = sender.send_request(request).await?;
    let code = response.status();
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            output::write(&data)?;
        }
    }
    drop(sender);
    connection.await??;
    ensure!(code.is_success(), "the agent answered {code}");
    Ok(Outcome::Done)
}
