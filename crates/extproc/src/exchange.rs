//! One stream of Envoy's, which is about one request, as a state machine: a message in, what to do out. Pure. Whatever
//! does not fit the protocol ends the stream with an error, upon which Envoy answers the request with a 503.

use agentcube_instance::provider::{self, ReserveError, Reserved};
use agentcube_router::decide::{self, Asked, At, Decision, Plan};
use agentcube_router::refusal::Refusal;
use agentcube_router::route::Table;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    ProcessingRequest, ProcessingResponse, processing_request::Request,
};
use http::StatusCode;
use http::header::{HeaderName, HeaderValue};

use crate::message;

/// A stream.
#[derive(Debug, Default)]
pub struct Exchange {
    state: State,
}

#[derive(Debug, Default)]
enum State {
    /// The head of the request has not come yet.
    #[default]
    Begun,
    /// An instance was asked for.
    Waiting(Box<Waiting>),
    /// The request has its instance; what Envoy still asks is let through.
    Passing,
    /// Nothing more may come.
    Over,
}

#[derive(Debug)]
struct Waiting {
    plan: Plan,
    request_id: HeaderValue,
}

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Reserve this, and tell by [`Exchange::reserved`] what came of it.
    Reserve(provider::Request),
    /// Answer.
    Send(Box<ProcessingResponse>),
    /// Wait for the next message.
    Wait,
    /// End the stream with an error.
    Break(&'static str),
}

/// What came of a reservation.
#[derive(Debug)]
pub struct Settled {
    pub response: ProcessingResponse,
    /// The request goes to its instance, and is in use from now on.
    pub picked: Option<Reserved>,
    /// Why not, for the log.
    pub refusal: Option<Refusal>,
}

impl Exchange {
    /// Takes a message in.
    pub fn take(&mut self, table: &Table, tenant: &HeaderName, message: ProcessingRequest) -> Step {
        // Nobody waits for answers there, so nothing could be routed.
        if message.observability_mode {
            return self.broken("the filter is in observability_mode, in which no instance can be picked");
        }
        let ProcessingRequest { attributes, request, .. } = message;
        let Some(request) = request else { return Step::Wait };
        match (&self.state, request) {
            (State::Begun, Request::RequestHeaders(headers)) => {
                let request_id = message::request_id(&headers);
                let named = message::task(&attributes);
                let planned = message::head(&headers).and_then(|head| plan(table, tenant, named, &head));
                match planned {
                    Ok(plan) => {
                        let wanted = plan.wanted.clone();
                        self.state = State::Waiting(Box::new(Waiting { plan, request_id }));
                        Step::Reserve(wanted)
                    }
                    Err(refusal) => {
                        self.state = State::Over;
                        Step::Send(Box::new(message::refused(&refusal, &request_id)))
                    }
                }
            }
            (State::Begun, _) => self.broken("the head of the request has to come first"),
            (State::Waiting(_), _) => self.broken("a message came before the one before it was answered"),
            (State::Passing, Request::RequestHeaders(_)) => self.broken("a stream is about one request"),
            (State::Passing, request) => Step::Send(Box::new(message::passed(&request))),
            (State::Over, _) => self.broken("the request was answered already"),
        }
    }

    fn broken(&mut self, why: &'static str) -> Step {
        self.state = State::Over;
        Step::Break(why)
    }

    /// Takes in what came of the reservation; nothing if none was asked for. The pick goes by this id from now on.
    pub fn reserved(&mut self, outcome: Result<Reserved, ReserveError>, pick: &str) -> Option<Settled> {
        let State::Waiting(waiting) = std::mem::replace(&mut self.state, State::Over) else { return None };
        let Waiting { plan, request_id } = *waiting;
        Some(match outcome {
            Ok(reserved) => {
                let decision = Decision::new(&plan, &reserved);
                let response = message::picked(&decision, &plan.wanted, pick);
                self.state = State::Passing;
                Settled { response, picked: Some(reserved), refusal: None }
            }
            Err(error) => {
                let refusal = Refusal::from(error);
                let response = message::refused(&refusal, &request_id);
                Settled { response, picked: None, refusal: Some(refusal) }
            }
        })
    }
}

fn plan(
    table: &Table,
    tenant: &HeaderName,
    named: Option<(&str, &str)>,
    head: &message::Head,
) -> Result<Plan, Refusal> {
    let Some((namespace, name)) = named else {
        let message = "this route of Envoy's names no Task: its name has to be that of an HTTPRoute of a Task, \
                       and the attribute xds.route_name has to be sent";
        return Err(Refusal::new(StatusCode::NOT_FOUND, "NoRoute", message));
    };
    let asked = Asked {
        at: At::Task { namespace, name },
        method: &head.method,
        host: head.host.as_deref(),
        path: &head.path,
        query: head.query.as_deref(),
        headers: &head.headers,
    };
    let plan = decide::plan(table, tenant, &asked)?;
    if !plan.ask.is_plain() {
        let message = "behind Envoy, conversations of MCP and A2A are not followed by their own ids yet: give the Task \
                       an extractor that finds the session, or a gateway of class agentcube";
        return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "NotSupported", message));
    }
    Ok(plan)
}

#[cfg(test)]
mod tests;
