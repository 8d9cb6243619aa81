//! An external processor that does nothing, on a server with the settings of ours: what any costs. Whatever it is told by
//! the access log it forgets.

use std::net::Ipv4Addr;
use std::pin::Pin;

use agentcube_extproc::message::passed;
use anyhow::Result;
use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_server::{
    AccessLogService, AccessLogServiceServer,
};
use envoy_types::pb::envoy::service::accesslog::v3::{StreamAccessLogsMessage, StreamAccessLogsResponse};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use futures_util::Stream;
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, Streaming};

pub(crate) const ROLE: &str = "__nothing";
/// What it says before its address, once it listens.
pub(crate) const READY: &str = "ready at ";
const CONNECTIONS: usize = 1024;

struct Nothing;

type Answers = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;

#[tonic::async_trait]
impl ExternalProcessor for Nothing {
    type ProcessStream = Answers;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let answers = futures_util::stream::unfold(request.into_inner(), |mut messages| async move {
            let message = messages.message().await.transpose()?;
            let answer = message.map(|message| message.request.as_ref().map(passed).unwrap_or_default());
            Some((answer, messages))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

#[tonic::async_trait]
impl AccessLogService for Nothing {
    async fn stream_access_logs(
        &self,
        request: Request<Streaming<StreamAccessLogsMessage>>,
    ) -> Result<Response<StreamAccessLogsResponse>, Status> {
        let mut messages = request.into_inner();
        while messages.message().await?.is_some() {}
        Ok(Response::new(StreamAccessLogsResponse {}))
    }
}

pub(crate) async fn run() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("{READY}{}", listener.local_addr()?);
    let server = agentcube_extproc::transport()
        .add_service(ExternalProcessorServer::new(Nothing))
        .add_service(AccessLogServiceServer::new(Nothing));
    server.serve_with_incoming(agentcube_extproc::incoming(listener, CONNECTIONS)).await?;
    Ok(())
}
