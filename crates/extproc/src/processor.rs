//! The external processor as a gRPC service: carries messages between Envoy and the state machine, waits for
//! reservations and names, and stops waiting when Envoy does.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use agentcube_instance::alias::Alias;
use agentcube_instance::provider::InstanceProvider;
use agentcube_router::protocol::talk;
use agentcube_router::refusal::Refusal;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessor;
use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use futures_util::Stream;
use tonic::{Request, Response, Status, Streaming};

use crate::exchange::{Exchange, Picked, Step, Wanted};
use crate::hold::Hold;
use crate::ledger::Pick;
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
            held: None,
            due: VecDeque::new(),
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
    /// Which pick it is and what the request holds, once it has its instance.
    held: Option<(Pick, Arc<Hold>)>,
    /// What is still to be said.
    due: VecDeque<ProcessingResponse>,
    begun: bool,
    over: bool,
}

impl Live {
    /// The next thing to say; nothing when the stream is over.
    async fn answer(&mut self) -> Option<Result<ProcessingResponse, Status>> {
        loop {
            if let Some(response) = self.due.pop_front() {
                return Some(Ok(response));
            }
            if self.over || self.exchange.told().is_some() {
                return None;
            }
            let message = match self.message().await {
                Ok(Some(message)) => message,
                Ok(None) => return None,
                Err(status) => return Some(Err(status)),
            };
            self.asked.take(&message, self.shared.observer.logs());
            let mut step = self.exchange.take(&self.shared.table.read(), &self.shared.names, message);
            if let Step::Name(names) = step {
                match self.name(names).await {
                    Ok(then) => step = then?,
                    Err(status) => return Some(Err(status)),
                }
            }
            match step {
                Step::Wait | Step::Name(_) => {}
                Step::Send(responses) => {
                    for response in &responses {
                        self.asked.answered(&self.shared.observer, &self.shared.table, response);
                    }
                    self.due.extend(responses);
                }
                Step::Break(why) => {
                    tracing::warn!(why, "Envoy does not keep to the protocol: look at its configuration");
                    return Some(Err(Status::failed_precondition(why)));
                }
                Step::Reserve(wanted) => return self.reserve(*wanted).await,
            }
            self.told();
        }
    }

    /// What the answer has told of the session counts from now on.
    fn told(&self) {
        let (Some(told), Some((pick, hold))) = (self.exchange.told(), &self.held) else { return };
        hold.ends(told.ends);
        if told.complete {
            self.shared.end(pick);
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
            // No flow of messages keeps a router from stopping; and the first comes with the stream, so no timer is set.
            biased;
            () = cut.cancelled() => Err(Status::unavailable("the router stops")),
            message = self.messages.message() => message,
            () = late => Err(Status::deadline_exceeded("no message came")),
        }
    }

    async fn reserve(&mut self, wanted: Wanted) -> Option<Result<ProcessingResponse, Status>> {
        let counts = wanted.plan.route.counts.clone();
        self.asked.reserves();
        let outcome = match talk::at_hand(&*self.shared.provider, &wanted.plan) {
            Some((talk, reserved)) => Ok(Picked { plan: wanted.plan, talk, reserved }),
            // On the heap, so that whoever need not wait does not carry it along.
            None => match Box::pin(self.settled(wanted)).await {
                Ok(outcome) => outcome,
                Err(status) => return status.map(Err),
            },
        };
        let pick = self.shared.pick();
        let mut settled = self.exchange.reserved(outcome, &pick)?;
        if let Some(reserved) = settled.picked {
            tracing::debug!(%pick, instance = %reserved.instance.name, "picked");
            message::see(&mut settled.response, &self.asked.picked(&reserved));
            if self.shared.by_header {
                message::steer(&mut settled.response, &reserved.endpoint);
            }
            let in_flight = counts.map(|counts| counts.begin());
            let hold = Hold::new(reserved.in_use, in_flight, self.shared.provider.clone(), settled.first);
            let hold = Arc::new(hold);
            self.shared.begin(pick.clone(), hold.clone());
            self.held = Some((pick, hold));
        }
        self.asked.answered(&self.shared.observer, &self.shared.table, &settled.response);
        if let Some(refusal) = settled.refusal {
            tracing::debug!(code = refusal.code, detail = refusal.detail, "refused");
        }
        Some(Ok(settled.response))
    }

    /// Waits for what comes of a reservation. Else the stream ends, with an error or because Envoy has ended it.
    async fn settled(&mut self, wanted: Wanted) -> Result<Result<Picked, Refusal>, Option<Status>> {
        tokio::select! {
            // What is found at once is found, and nothing is read for it.
            biased;
            outcome = settle(&*self.shared.provider, wanted) => Ok(outcome),
            message = self.messages.message() => match message {
                Ok(None) | Err(_) => Err(None),
                Ok(Some(_)) => {
                    Err(Some(Status::failed_precondition("a message came before the last was answered")))
                }
            },
            () = self.shared.cut.cancelled() => Err(Some(Status::unavailable("the router stops"))),
        }
    }

    /// Has names written down. Nobody is told of them before.
    async fn name(&mut self, names: Vec<Alias>) -> Result<Option<Step>, Status> {
        let Some((_, hold)) = &self.held else { return Ok(None) };
        let outcome = tokio::select! {
            outcome = self.shared.provider.name_session(&hold.in_use, names) => outcome,
            () = self.shared.cut.cancelled() => return Err(Status::unavailable("the router stops")),
        };
        if let Err(error) = &outcome {
            tracing::info!(%error, "a session did not get its name");
        }
        Ok(self.exchange.named(outcome))
    }
}

/// Finds out which session a request is of, and an instance for it.
async fn settle(provider: &dyn InstanceProvider, wanted: Wanted) -> Result<Picked, Refusal> {
    let Wanted { mut plan, found } = wanted;
    let mut talk = talk::settle(provider, &mut plan, &found).await?;
    let reserved = talk::reserve(provider, &mut plan, &mut talk).await?;
    Ok(Picked { plan, talk, reserved })
}
