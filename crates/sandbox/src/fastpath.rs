//! What clients talk to: who may, within which limits and deadlines. It decides nothing that the reconciler decides.

mod create;
mod deadline;
mod delete;
mod limit;
mod read;
mod streams;
mod update;

use std::sync::Arc;
use std::time::Duration;

use agentcube_protos::fastpath::fast_path_server::FastPath;
use agentcube_protos::fastpath::{
    ConsistencyMode, CreateRequest, CreateResponse, DeleteRequest, Empty, ExecRequest, GetRequest,
    ListRequest, ListResponse, LogsRequest, Sandbox, UpdateRequest,
};
use agentcube_protos::link::Answers;
use agentcube_protos::refused::retry_after;
use agentcube_protos::session::{ExecOutput, LogChunk};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::access::{Access, Subject, Verb};
use crate::core::{ApiError, Core};
use crate::names::Name;
use limit::{Limit, Limits};

/// The service, to be served over gRPC.
#[derive(Clone)]
pub struct FastPathService {
    core: Arc<Core>,
    access: Arc<dyn Access>,
    limits: Arc<Limits>,
}

impl std::fmt::Debug for FastPathService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FastPathService").field("core", &self.core).finish_non_exhaustive()
    }
}

impl FastPathService {
    pub(crate) fn new(core: Arc<Core>, access: Arc<dyn Access>) -> FastPathService {
        let limits = Arc::new(Limits::new(&core.options.limits));
        FastPathService { core, access, limits }
    }

    /// Who asks, for which namespace, until when.
    async fn admit(
        &self,
        metadata: &MetadataMap,
        verb: Verb,
        namespace: &str,
    ) -> Result<(Subject, String, Instant), Status> {
        let namespace = if namespace.is_empty() { "default" } else { namespace };
        let deadline = deadline::of(metadata, &self.core.options.limits)?;
        let subject = self.access.allow(metadata, verb, namespace).await?;
        if !*self.core.ready.borrow() {
            let message = "the controller is still finding out what runs";
            return Err(retry_after(Code::Unavailable, message, Duration::from_secs(1)));
        }
        Ok((subject, namespace.into(), deadline))
    }

    /// Does something that goes on when the client goes away: what has begun is brought to an end.
    async fn detached<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, Status> {
        let (reply, answer) = oneshot::channel();
        self.core.spawn(async move { drop(reply.send(work.await)) });
        answered(deadline, answer).await
    }
}

/// An answer, within the deadline.
async fn answered<T>(deadline: Instant, answer: oneshot::Receiver<Result<T, Status>>) -> Result<T, Status> {
    match tokio::time::timeout_at(deadline, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(Status::unavailable("the controller is shutting down")),
        Err(_) => Err(Status::deadline_exceeded("it was not done in time")),
    }
}

/// What a client is told of an answer of the API server.
fn of_api(error: ApiError) -> Status {
    match error {
        ApiError::Unreachable(message) => Status::unavailable(message),
        ApiError::Answered(status) => {
            let code = match status.code {
                400 | 413 | 415 | 422 => Code::InvalidArgument,
                401 | 403 => Code::PermissionDenied,
                404 => Code::NotFound,
                409 => Code::Aborted,
                _ => Code::Unavailable,
            };
            Status::new(code, status.message.clone())
        }
    }
}

#[tonic::async_trait]
impl FastPath for FastPathService {
    async fn create_sandbox(
        &self,
        request: Request<CreateRequest>,
    ) -> Result<Response<CreateResponse>, Status> {
        let begun = Instant::now();
        let (metadata, _, message) = request.into_parts();
        let (subject, namespace, deadline) = self.admit(&metadata, Verb::Create, &message.namespace).await?;
        let _place = self.limits.enter(Limit::Creates, &namespace)?;
        let _waits = self.core.rush.enter();
        let mode = if message.consistency_mode() == ConsistencyMode::Strong { "strong" } else { "fast" };
        let made = create::create(&self.core, &subject, &namespace, message, deadline).await;
        let outcome = made.as_ref().map_or_else(|status| status.code().description(), |_| "ok");
        self.core.counts.created(mode, outcome, begun.elapsed());
        made.map(Response::new)
    }

    async fn delete_sandbox(&self, request: Request<DeleteRequest>) -> Result<Response<Empty>, Status> {
        let (metadata, _, message) = request.into_parts();
        let (_, namespace, deadline) = self.admit(&metadata, Verb::Delete, &message.namespace).await?;
        let name = Name { namespace, name: message.sandbox_id };
        let core = self.core.clone();
        self.detached(deadline, async move { delete::delete(&core, &name).await }).await?;
        Ok(Response::new(Empty {}))
    }

    async fn get_sandbox(&self, request: Request<GetRequest>) -> Result<Response<Sandbox>, Status> {
        let (metadata, _, message) = request.into_parts();
        let (_, namespace, _) = self.admit(&metadata, Verb::Get, &message.namespace).await?;
        let name = Name { namespace, name: message.sandbox_id };
        read::get(&self.core, &name).map(Response::new)
    }

    async fn list_sandboxes(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        let (_, namespace, _) = self.admit(&metadata, Verb::List, &message.namespace).await?;
        read::list(&self.core, &namespace, &message).map(Response::new)
    }

    async fn update_sandbox(&self, request: Request<UpdateRequest>) -> Result<Response<Sandbox>, Status> {
        let (metadata, _, message) = request.into_parts();
        let (_, namespace, deadline) = self.admit(&metadata, Verb::Update, &message.namespace).await?;
        let name = Name { namespace, name: message.sandbox_id.clone() };
        let core = self.core.clone();
        let updated = self.detached(deadline, async move { update::update(&core, &name, &message).await });
        updated.await.map(Response::new)
    }

    type WatchSandboxStream = Answers<Sandbox>;

    async fn watch_sandbox(
        &self,
        request: Request<GetRequest>,
    ) -> Result<Response<Self::WatchSandboxStream>, Status> {
        let (metadata, _, message) = request.into_parts();
        let (_, namespace, _) = self.admit(&metadata, Verb::Watch, &message.namespace).await?;
        let place = self.limits.enter(Limit::Watches, &namespace)?;
        let name = Name { namespace, name: message.sandbox_id };
        streams::watch(&self.core, name, place).map(Response::new)
    }

    type LogsStream = Answers<LogChunk>;

    async fn logs(&self, request: Request<LogsRequest>) -> Result<Response<Self::LogsStream>, Status> {
        let (metadata, _, message) = request.into_parts();
        let (_, namespace, deadline) = self.admit(&metadata, Verb::Logs, &message.namespace).await?;
        let place = self.limits.enter(Limit::Streams, &namespace)?;
        let name = Name { namespace, name: message.sandbox_id };
        let logs = streams::logs(&self.core, &name, message.options, place);
        let logs = tokio::time::timeout_at(deadline, logs).await;
        logs.map_err(|_| Status::deadline_exceeded("the agent did not answer in time"))?.map(Response::new)
    }

    type ExecStream = Answers<ExecOutput>;

    async fn exec(
        &self,
        request: Request<Streaming<ExecRequest>>,
    ) -> Result<Response<Self::ExecStream>, Status> {
        let (metadata, _, mut input) = request.into_parts();
        let deadline = deadline::of(&metadata, &self.core.options.limits)?;
        let first = tokio::time::timeout_at(deadline, input.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no message came in time"))??;
        let first = first.ok_or_else(|| Status::invalid_argument("the first message says what to run"))?;
        let (_, namespace, deadline) = self.admit(&metadata, Verb::Exec, &first.namespace).await?;
        let place = self.limits.enter(Limit::Streams, &namespace)?;
        let name = Name { namespace, name: first.sandbox_id.clone() };
        let output = tokio::time::timeout_at(deadline, streams::exec(&self.core, &name, first, input, place));
        output
            .await
            .map_err(|_| Status::deadline_exceeded("the agent did not answer in time"))?
            .map(Response::new)
    }
}
