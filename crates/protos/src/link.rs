//! An agent as the controller sees it, whether it is a member of the same process or behind gRPC.
//!
//! A definite answer is data, also if it is a refusal. An `Err` means that nobody knows whether it happened.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use tonic::metadata::errors::InvalidMetadataValue;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use crate::agent::agent_client::AgentClient;
use crate::agent::agent_server::Agent;
use crate::agent::{
    ConfigureRequest, ConfigureResponse, ExecRequest, LogsRequest, PauseRequest, PauseResponse, StartRequest,
    StartResponse, StatsRequest, StatsResponse, StopRequest, StopResponse, SyncRequest, SyncResponse,
};
use crate::session::{ExecOutput, LogChunk};

/// The most bytes of one message in either direction.
pub const LONGEST_MESSAGE: usize = 4 << 20;

/// What an agent answers. `Err`: in doubt.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, Status>>;
/// What an agent goes on saying.
pub type Answers<T> = BoxStream<'static, Result<T, Status>>;

/// What the controller asks of an agent.
pub trait AgentApi: Send + Sync + 'static {
    /// A sign of life in both directions, and what runs.
    fn sync(&self, request: SyncRequest) -> Answer<'_, SyncResponse>;
    /// Starts a run; the same run again joins the first.
    fn start(&self, request: StartRequest) -> Answer<'_, StartResponse>;
    /// Ends a run and keeps its tombstone; one that is unknown too.
    fn stop(&self, request: StopRequest) -> Answer<'_, StopResponse>;
    /// Freezes, thaws, or changes when a run ends.
    fn pause(&self, request: PauseRequest) -> Answer<'_, PauseResponse>;
    /// Capacity, what to keep ready, and whether to refuse new runs.
    fn configure(&self, request: ConfigureRequest) -> Answer<'_, ConfigureResponse>;
    /// What runs use.
    fn stats(&self, request: StatsRequest) -> Answer<'_, StatsResponse>;
    /// What a run printed.
    fn logs(&self, request: LogsRequest) -> Answer<'_, Answers<LogChunk>>;
    /// A command beside a run. Dropping what comes back ends it.
    fn exec(&self, input: BoxStream<'static, ExecRequest>) -> Answer<'_, Answers<ExecOutput>>;
}

/// An agent behind gRPC.
#[derive(Clone, Debug)]
pub struct Remote(AgentClient<InterceptedService<Channel, Bearer>>);

/// Puts a token into every call, if there is one. Never shown.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl std::fmt::Debug for Bearer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bearer")
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

impl Remote {
    /// The agent at the end of a channel.
    pub fn new(channel: Channel) -> Remote {
        Remote::over(channel, Bearer(None))
    }

    /// The same with a token; an error if it is not text that a header can hold.
    pub fn with_token(channel: Channel, token: &str) -> Result<Remote, InvalidMetadataValue> {
        let mut value: MetadataValue<Ascii> = format!("Bearer {token}").parse()?;
        value.set_sensitive(true);
        Ok(Remote::over(channel, Bearer(Some(value))))
    }

    fn over(channel: Channel, bearer: Bearer) -> Remote {
        let client = AgentClient::with_interceptor(channel, bearer);
        Remote(client.max_decoding_message_size(LONGEST_MESSAGE).max_encoding_message_size(LONGEST_MESSAGE))
    }
}

macro_rules! remote {
    ($($name:ident($request:ty) -> $response:ty;)*) => {
        $(fn $name(&self, request: $request) -> Answer<'_, $response> {
            let mut client = self.0.clone();
            Box::pin(async move { client.$name(request).await.map(Response::into_inner) })
        })*
    };
}

impl AgentApi for Remote {
    remote! {
        sync(SyncRequest) -> SyncResponse;
        start(StartRequest) -> StartResponse;
        stop(StopRequest) -> StopResponse;
        pause(PauseRequest) -> PauseResponse;
        configure(ConfigureRequest) -> ConfigureResponse;
        stats(StatsRequest) -> StatsResponse;
    }

    fn logs(&self, request: LogsRequest) -> Answer<'_, Answers<LogChunk>> {
        let mut client = self.0.clone();
        Box::pin(async move { Ok(client.logs(request).await?.into_inner().boxed()) })
    }

    fn exec(&self, input: BoxStream<'static, ExecRequest>) -> Answer<'_, Answers<ExecOutput>> {
        let mut client = self.0.clone();
        // A type of its own: the compiler cannot prove of a boxed one, across an await, that it is `Send`.
        let input = Requests(input);
        Box::pin(async move { Ok(client.exec(input).await?.into_inner().boxed()) })
    }
}

struct Requests(BoxStream<'static, ExecRequest>);

impl Stream for Requests {
    type Item = ExecRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ExecRequest>> {
        self.0.poll_next_unpin(context)
    }
}

/// Serves an agent over gRPC: `AgentServer::new(Served(agent))`.
#[derive(Clone, Debug)]
pub struct Served<A>(pub A);

macro_rules! served {
    ($($name:ident($request:ty) -> $response:ty;)*) => {
        $(fn $name<'life0, 'async_trait>(
            &'life0 self,
            request: Request<$request>,
        ) -> BoxFuture<'async_trait, Result<Response<$response>, Status>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async move { self.0.$name(request.into_inner()).await.map(Response::new) })
        })*
    };
}

impl<A: AgentApi> Agent for Served<A> {
    type LogsStream = Answers<LogChunk>;
    type ExecStream = Answers<ExecOutput>;

    served! {
        sync(SyncRequest) -> SyncResponse;
        start(StartRequest) -> StartResponse;
        stop(StopRequest) -> StopResponse;
        pause(PauseRequest) -> PauseResponse;
        configure(ConfigureRequest) -> ConfigureResponse;
        stats(StatsRequest) -> StatsResponse;
        logs(LogsRequest) -> Answers<LogChunk>;
    }

    fn exec<'life0, 'async_trait>(
        &'life0 self,
        request: Request<Streaming<ExecRequest>>,
    ) -> BoxFuture<'async_trait, Result<Response<Self::ExecStream>, Status>>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        // A broken stream of the client ends the input, and with it the command.
        let input = request.into_inner().take_while(|one| std::future::ready(one.is_ok()));
        let input = input.filter_map(|one| std::future::ready(one.ok()));
        Box::pin(async move { self.0.exec(input.boxed()).await.map(Response::new) })
    }
}

impl<A: AgentApi + ?Sized> AgentApi for std::sync::Arc<A> {
    fn sync(&self, request: SyncRequest) -> Answer<'_, SyncResponse> {
        (**self).sync(request)
    }
    fn start(&self, request: StartRequest) -> Answer<'_, StartResponse> {
        (**self).start(request)
    }
    fn stop(&self, request: StopRequest) -> Answer<'_, StopResponse> {
        (**self).stop(request)
    }
    fn pause(&self, request: PauseRequest) -> Answer<'_, PauseResponse> {
        (**self).pause(request)
    }
    fn configure(&self, request: ConfigureRequest) -> Answer<'_, ConfigureResponse> {
        (**self).configure(request)
    }
    fn stats(&self, request: StatsRequest) -> Answer<'_, StatsResponse> {
        (**self).stats(request)
    }
    fn logs(&self, request: LogsRequest) -> Answer<'_, Answers<LogChunk>> {
        (**self).logs(request)
    }
    fn exec(&self, input: BoxStream<'static, ExecRequest>) -> Answer<'_, Answers<ExecOutput>> {
        (**self).exec(input)
    }
}
