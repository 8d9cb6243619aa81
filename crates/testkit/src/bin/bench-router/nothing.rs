//! An external processor that does nothing, on a server with the settings of ours: what any costs. Whatever it is told by
//! the access log it forgets. Told a port, it does the least that any router has to: it names the instance of a session,
//! which it knows by the number in its key, and sets something for a token.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;

use agentcube_extproc::message::{METADATA, passed};
use agentcube_router::decide::{DESTINATION, TOKEN};
use anyhow::Result;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_server::{
    AccessLogService, AccessLogServiceServer,
};
use envoy_types::pb::envoy::service::accesslog::v3::{StreamAccessLogsMessage, StreamAccessLogsResponse};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Asked;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Answer;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    CommonResponse, HeaderMutation, HeadersResponse, HttpHeaders, ProcessingRequest, ProcessingResponse,
};
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
use futures_util::Stream;
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, Streaming};

use crate::backend;

pub(crate) const ROLE: &str = "__nothing";
/// What it says before its address, once it listens.
pub(crate) const READY: &str = "ready at ";
const CONNECTIONS: usize = 1024;

/// With the port of all instances, where it names them.
#[derive(Clone, Copy)]
struct Nothing(Option<u16>);

type Answers = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;

#[tonic::async_trait]
impl ExternalProcessor for Nothing {
    type ProcessStream = Answers;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let nothing = *self;
        let answers = futures_util::stream::unfold(request.into_inner(), move |mut messages| async move {
            let message = messages.message().await.transpose()?;
            let answer = message.map(|message| match (message.request.as_ref(), nothing.0) {
                (Some(Asked::RequestHeaders(head)), Some(port)) => named(head, port),
                (request, _) => request.map(passed).unwrap_or_default(),
            });
            Some((answer, messages))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

/// The number in the key of a session.
fn number(key: &[u8]) -> Option<usize> {
    std::str::from_utf8(key).ok()?.rsplit_once('-')?.1.parse().ok()
}

/// What is said of the head of a request whose session has its instance at this port.
fn named(head: &HttpHeaders, port: u16) -> ProcessingResponse {
    let mut fields = head.headers.iter().flat_map(|map| &map.headers);
    let key = fields.find(|field| field.key == backend::SESSION).map(|field| &*field.raw_value);
    let number = key.and_then(number).unwrap_or_default();
    let text = |text: String| Value { kind: Some(Kind::StringValue(text)) };
    let at = text(SocketAddr::from((backend::address(number), port)).to_string());
    let of_balancer = Struct { fields: HashMap::from([(DESTINATION.to_string(), at)]) };
    let of_balancer = Value { kind: Some(Kind::StructValue(of_balancer)) };
    let token = HeaderValue { key: TOKEN.to_string(), raw_value: b"tok-0".into(), ..Default::default() };
    let set_headers = vec![HeaderValueOption { header: Some(token), ..Default::default() }];
    let mutation = HeaderMutation { set_headers, ..Default::default() };
    let common = CommonResponse { header_mutation: Some(mutation), ..Default::default() };
    ProcessingResponse {
        response: Some(Answer::RequestHeaders(HeadersResponse { response: Some(common) })),
        dynamic_metadata: Some(Struct { fields: HashMap::from([(METADATA.to_owned(), of_balancer)]) }),
        ..Default::default()
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

pub(crate) async fn run(port: Option<u16>) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("{READY}{}", listener.local_addr()?);
    let server = agentcube_extproc::transport()
        .add_service(ExternalProcessorServer::new(Nothing(port)))
        .add_service(AccessLogServiceServer::new(Nothing(port)));
    server.serve_with_incoming(agentcube_extproc::incoming(listener, CONNECTIONS)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_numbers() {
        let key = crate::fixture::key(17).unwrap();
        assert_eq!(number(key.as_str().as_bytes()), Some(17));
    }
}
