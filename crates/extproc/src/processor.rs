//! The external processor as a gRPC service: carries messages between Envoy and the state machine, waits for
//! reservations, and stops waiting when Envoy does.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use agentcube_instance::provider;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessor;
use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use futures_util::Stream;
use tonic::{Request, Response, Status, Streaming};

use crate::exchange::{Exchange, Step};
use crate::message;
use crate::seen::Asked;
use crate::server::Shared;

/// How long a stream may take to say what it is about.
const FIRST_MESSAGE: Duration = Duration::from_secs(30);

pub(crate) struct Processor(pub(crate) Arc<Shared>);

type Answers = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;

#[tonic::async_trait]
impl ExternalProcessor for Processor {
    type ProcessStream = Answers;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let live = Live {
            shared: self.0.clone(),
            messages: request.into_inner(),
            exchange: Exchange::default(),
            asked: Asked::default(),
            over: false,
            begun: false,
        };
        // Dropped when Envoy resets the stream, and with it whatever is waited for.
        let answers = futures_util::stream::unfold(live, |mut live| async move {
            let answer = live.answer().await?;
            live.over = answer.is_err();
            Some((answer, live))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

/// A stream that Envoy has open.
struct Live {
    shared: Arc<Shared>,
    messages: Streaming<ProcessingRequest>,
    exchange: Exchange,
    asked: Asked,
    begun: bool,
    over: bool,
}

impl Live {
    /// The next thing to say; nothing when the stream is over.
    async fn answer(&mut self) -> Option<Result<ProcessingResponse, Status>> {
        if self.over {
            return None;
        }
        loop {
            let message = match self.message().await {
                Ok(Some(message)) => message,
                Ok(None) => return None,
                Err(status) => return Some(Err(status)),
            };
            self.asked.take(&message, self.shared.observer.logs());
            let step = self.exchange.take(&self.shared.table.read(), &self.shared.tenant, message);
            match step {
                Step::Wait => {}
                Step::Send(response) => {
                    self.asked.answered(&self.shared.observer, &self.shared.table, &response);
                    return Some(Ok(*response));
                }
                Step::Break(why) => {
                    tracing::warn!(why, "Envoy does not keep to the protocol: look at its configuration");
                    return Some(Err(Status::failed_precondition(why)));
                }
                Step::Reserve(wanted) => return self.reserve(wanted).await,
            }
        }
    }

    async fn message(&mut self) -> Result<Option<ProcessingRequest>, Status> {
        let cut = self.shared.cut.clone();
        let first = !std::mem::replace(&mut self.begun, true);
        let late = async {
            match first {
                true => tokio::time::sleep(FIRST_MESSAGE).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            message = self.messages.message() => message,
            () = late => Err(Status::deadline_exceeded("no message came")),
            () = cut.cancelled() => Err(Status::unavailable("the router stops")),
        }
    }

    async fn reserve(&mut self, wanted: provider::Request) -> Option<Result<ProcessingResponse, Status>> {
        let provider = self.shared.provider.clone();
        let task = wanted.task.clone();
        self.asked.reserves();
        let outcome = tokio::select! {
            // A session that has its instance is found at once, and nothing is read for it.
            biased;
            outcome = provider.reserve_instance(wanted) => outcome,
            message = self.messages.message() => return match message {
                Ok(None) | Err(_) => None,
                Ok(Some(_)) => Some(Err(Status::failed_precondition("a message came before the last was answered"))),
            },
            () = self.shared.cut.cancelled() => return Some(Err(Status::unavailable("the router stops"))),
        };
        let pick = self.shared.pick();
        let mut settled = self.exchange.reserved(outcome, &pick)?;
        if let Some(reserved) = settled.picked {
            tracing::debug!(%pick, instance = %reserved.instance.name, "picked");
            message::see(&mut settled.response, self.asked.picked(&reserved));
            self.shared.begin(pick, &task, reserved.in_use);
        }
        self.asked.answered(&self.shared.observer, &self.shared.table, &settled.response);
        if let Some(refusal) = settled.refusal {
            tracing::debug!(code = refusal.code, detail = refusal.detail, "refused");
        }
        Some(Ok(settled.response))
    }
}
