//! One stream of Envoy's, which is about one request, as a state machine: a message in, what to do out. Pure. Whatever
//! does not fit the protocol ends the stream with an error, upon which Envoy answers the request with a 503.
//!
//! Most requests are over with their head. Of a conversation the body is read where it names the session, and the answer
//! where it names the session for later; as soon as that is known the stream ends, and Envoy goes on by itself.

use agentcube_instance::InstanceId;
use agentcube_instance::alias::{Alias, NameError};
use agentcube_instance::provider::Reserved;
use agentcube_router::decide::{self, Asked, At, Decision, Plan};
use agentcube_router::protocol::answer::{Learner, Reading};
use agentcube_router::protocol::intake::Intake;
use agentcube_router::protocol::json::Found;
use agentcube_router::protocol::mcp;
use agentcube_router::protocol::talk::{Head, Talk};
use agentcube_router::refusal::Refusal;
use agentcube_router::route::Table;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse, processing_request::Request,
};
use http::StatusCode;
use http::header::HeaderValue;

use crate::message::{self, About, Asking};
use crate::who::{self, Names};

/// How much of a stream of events Envoy is made to hold back, in bytes: less than its buffers hold, or it would wait for
/// us while we wait for it.
const MOST_HELD: usize = 512 << 10;

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
    /// Its body is waited for.
    Reading(Box<Body>),
    /// An instance was asked for.
    Waiting(Waiting),
    /// The request has its instance; its answer is waited for.
    Listening(Box<Course>),
    /// The body of the answer is read.
    Learning(Box<Learning>),
    /// Names were asked for; then this is said.
    Naming(Box<Naming>),
    /// The answer says what it can say of the session, which ends with it or not.
    Told(Told),
    /// The request has its instance; what Envoy still asks is let through.
    Passing,
    /// Nothing more may come.
    Over,
}

#[derive(Debug)]
struct Body {
    plan: Plan,
    intake: Intake,
    request_id: HeaderValue,
}

#[derive(Debug)]
struct Waiting {
    about: About,
    request_id: HeaderValue,
}

#[derive(Debug)]
struct Course {
    plan: Plan,
    talk: Talk,
    instance: InstanceId,
    request_id: HeaderValue,
}

#[derive(Debug)]
struct Learning {
    course: Course,
    learner: Learner,
    /// Pieces that Envoy holds back, and how much that is.
    held: usize,
    size: usize,
}

#[derive(Debug)]
struct Naming {
    course: Course,
    responses: Vec<ProcessingResponse>,
    complete: bool,
}

/// What an answer has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The session is over with this request.
    pub ends: bool,
    /// So is the request: nothing more of it reaches the instance, and nothing more of the answer matters.
    pub complete: bool,
}

/// A request whose session is to be found out, with what its body says.
#[derive(Debug)]
pub struct Wanted {
    pub plan: Plan,
    pub found: Found,
}

/// A request that has its instance.
#[derive(Debug)]
pub struct Picked {
    pub plan: Plan,
    pub talk: Talk,
    pub reserved: Reserved,
}

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Reserve this, and tell by [`Exchange::reserved`] what came of it.
    Reserve(Box<Wanted>),
    /// Have these written down, and tell by [`Exchange::named`] what came of it.
    Name(Vec<Alias>),
    /// Answer, with all of them.
    Send(Vec<ProcessingResponse>),
    /// Wait for the next message.
    Wait,
    /// End the stream with an error.
    Break(&'static str),
}

impl Step {
    fn send(response: ProcessingResponse) -> Step {
        Step::Send(vec![response])
    }
}

/// What came of a reservation.
#[derive(Debug)]
pub struct Settled {
    pub response: ProcessingResponse,
    /// The request goes to its instance, and is in use from now on.
    pub picked: Option<Reserved>,
    /// The session is over with this request, unless its answer says something else.
    pub first: bool,
    /// Why not, for the log.
    pub refusal: Option<Refusal>,
}

impl Exchange {
    /// Takes a message in.
    pub fn take(&mut self, table: &Table, names: &Names, mut message: ProcessingRequest) -> Step {
        // Nobody waits for answers there, so nothing could be routed.
        if message.observability_mode {
            return self.broken("the filter is in observability_mode, in which no instance can be picked");
        }
        let Some(mut request) = message.request.take() else { return Step::Wait };
        match (std::mem::replace(&mut self.state, State::Over), &mut request) {
            (State::Begun, Request::RequestHeaders(headers)) => {
                let request_id = message::request_id(headers);
                let begun = message::head(headers).and_then(|head| plan(table, names, &message, &head));
                match begun {
                    Ok((plan, intake)) => self.begin(plan, intake, headers.end_of_stream, request_id),
                    Err(refusal) => Step::send(message::refused(&refusal, &request_id)),
                }
            }
            (State::Begun, _) => self.broken("the head of the request has to come first"),
            (State::Reading(body), Request::RequestBody(piece)) => self.read(*body, piece),
            (State::Reading(_), _) => self.broken("the body of the request was asked for"),
            (State::Waiting(_) | State::Naming(_), _) => {
                self.broken("a message came before the one before it was answered")
            }
            (State::Listening(course), Request::ResponseHeaders(headers)) => self.listen(*course, headers),
            (State::Learning(learning), Request::ResponseBody(piece)) => self.learn(*learning, piece),
            (State::Over, _) => self.broken("the request was answered already"),
            (_, Request::RequestHeaders(_)) => self.broken("a stream is about one request"),
            // Whatever else Envoy is configured to ask about is let through.
            (state, request) => {
                self.state = state;
                Step::send(message::passed(request))
            }
        }
    }

    fn broken(&mut self, why: &'static str) -> Step {
        self.state = State::Over;
        Step::Break(why)
    }

    fn begin(&mut self, plan: Plan, intake: Option<Intake>, is_all: bool, request_id: HeaderValue) -> Step {
        match intake {
            None => self.wait(plan, Found::default(), About::RequestHead, request_id),
            Some(intake) if is_all => match intake.whole(&plan.ask, b"", true) {
                Ok(found) => self.wait(plan, found, About::RequestHead, request_id),
                Err(refusal) => Step::send(message::refused(&refusal, &request_id)),
            },
            Some(intake) => {
                self.state = State::Reading(Box::new(Body { plan, intake, request_id }));
                Step::send(message::asking(message::untouched(About::RequestHead), Asking::RequestBody))
            }
        }
    }

    fn read(&mut self, body: Body, piece: &HttpBody) -> Step {
        let Body { plan, intake, request_id } = body;
        match intake.whole(&plan.ask, &piece.body, piece.end_of_stream) {
            Ok(found) => self.wait(plan, found, About::RequestBody, request_id),
            Err(refusal) => Step::send(message::refused(&refusal, &request_id)),
        }
    }

    fn wait(&mut self, plan: Plan, found: Found, about: About, request_id: HeaderValue) -> Step {
        self.state = State::Waiting(Waiting { about, request_id });
        Step::Reserve(Box::new(Wanted { plan, found }))
    }

    /// Takes in what came of the reservation; nothing if none was asked for. The pick goes by this id from now on.
    pub fn reserved(&mut self, outcome: Result<Picked, Refusal>, pick: &str) -> Option<Settled> {
        let Waiting { about, request_id } = match std::mem::replace(&mut self.state, State::Over) {
            State::Waiting(waiting) => waiting,
            other => {
                self.state = other;
                return None;
            }
        };
        let Picked { plan, talk, reserved } = match outcome {
            Ok(picked) => picked,
            Err(refusal) => {
                let response = message::refused(&refusal, &request_id);
                return Some(Settled { response, picked: None, first: false, refusal: Some(refusal) });
            }
        };
        let mut decision = Decision::new(&plan, &reserved);
        talk.amend(&mut decision);
        let mut response = message::picked(about, &decision, &reserved.instance, &plan.wanted, pick);
        let first = talk.is_first();
        self.state = match (talk.listens(), about) {
            (true, _) => {
                // With the body Envoy was told already.
                if about == About::RequestHead {
                    response = message::asking(response, Asking::AnswerHead);
                }
                let instance = reserved.instance.clone();
                State::Listening(Box::new(Course { plan, talk, instance, request_id }))
            }
            // It would ask about the answer too, which says nothing.
            (false, About::RequestBody) => State::Told(Told { ends: talk.ends(), complete: false }),
            (false, _) => State::Passing,
        };
        Some(Settled { response, picked: Some(reserved), first, refusal: None })
    }

    /// The head of the answer.
    fn listen(&mut self, mut course: Course, message: &HttpHeaders) -> Step {
        let (status, mut headers) = message::answer_head(message);
        let before = headers.get(&mcp::SESSION).cloned();
        let head = course.talk.head(&course.plan, status, &mut headers);
        let response = message::shown(&mcp::SESSION, before.as_ref(), headers.get(&mcp::SESSION));
        match head {
            Err(refusal) => self.failed(&refusal, &course.request_id),
            Ok(Head::Pass) => self.tell(course, vec![response], message.end_of_stream),
            Ok(Head::Name(names)) => self.name(course, names, vec![response], message.end_of_stream),
            Ok(Head::Read(_)) if message.end_of_stream => self.tell(course, vec![response], true),
            Ok(Head::Read(learner)) => {
                let asking = if learner.is_stream() { Asking::AnswerPieces } else { Asking::AnswerBody };
                let learning = Learning { course, learner: *learner, held: 0, size: 0 };
                self.state = State::Learning(Box::new(learning));
                Step::send(message::asking(response, asking))
            }
        }
    }

    /// A piece of the answer's body: of a stream of events as it comes, else as much as there is or Envoy keeps.
    fn learn(&mut self, mut learning: Learning, piece: &HttpBody) -> Step {
        learning.held += 1;
        learning.size += piece.body.len();
        let Learning { course, learner, .. } = &mut learning;
        let reading = learner.push(&piece.body, |has| course.talk.is_enough(has));
        let no_more = piece.end_of_stream || !learner.is_stream();
        let found = match reading {
            Reading::Done(found) => found,
            Reading::More if no_more && piece.end_of_stream => learning.learner.so_far(),
            Reading::More if !no_more && learning.learner.is_between() => {
                let through = learned(learning.held);
                (learning.held, learning.size) = (0, 0);
                self.state = State::Learning(Box::new(learning));
                return Step::Send(through);
            }
            Reading::More if !no_more && learning.size <= MOST_HELD => {
                self.state = State::Learning(Box::new(learning));
                return Step::Wait;
            }
            Reading::More | Reading::TooLong => {
                match learning.course.talk.unread(&learning.course.instance.name) {
                    Ok(()) => learning.learner.so_far(),
                    Err(refusal) => return self.failed(&refusal, &learning.course.request_id),
                }
            }
        };
        let names = learning.course.talk.names(&learning.course.plan, &found);
        self.name(learning.course, names, learned(learning.held), piece.end_of_stream)
    }

    fn name(
        &mut self,
        course: Course,
        names: Vec<Alias>,
        responses: Vec<ProcessingResponse>,
        complete: bool,
    ) -> Step {
        if names.is_empty() {
            return self.tell(course, responses, complete);
        }
        self.state = State::Naming(Box::new(Naming { course, responses, complete }));
        Step::Name(names)
    }

    /// Takes in what came of the names; nothing if none were to be written.
    pub fn named(&mut self, outcome: Result<(), NameError>) -> Option<Step> {
        let Naming { mut course, responses, complete } = match std::mem::replace(&mut self.state, State::Over)
        {
            State::Naming(naming) => *naming,
            other => {
                self.state = other;
                return None;
            }
        };
        Some(match course.talk.named(outcome, &course.instance) {
            Ok(()) => self.tell(course, responses, complete),
            Err(refusal) => self.failed(&refusal, &course.request_id),
        })
    }

    fn tell(&mut self, course: Course, responses: Vec<ProcessingResponse>, complete: bool) -> Step {
        let (ends, first) = (course.talk.ends(), course.talk.is_first());
        // Of a session that its client has ended nothing more is wanted.
        self.state = State::Told(Told { ends, complete: complete || (ends && !first) });
        Step::Send(responses)
    }

    /// Of an answer that has begun already Envoy makes a broken one.
    fn failed(&mut self, refusal: &Refusal, request_id: &HeaderValue) -> Step {
        self.state = State::Over;
        Step::send(message::refused(refusal, request_id))
    }

    /// What the answer has told, once that is all that it can. Then the stream may end, and Envoy goes on without it.
    pub fn told(&self) -> Option<Told> {
        match self.state {
            State::Told(told) => Some(told),
            _ => None,
        }
    }
}

fn learned(pieces: usize) -> Vec<ProcessingResponse> {
    (0..pieces).map(|_| message::untouched(About::AnswerBody)).collect()
}

fn plan(
    table: &Table,
    names: &Names,
    message: &ProcessingRequest,
    head: &message::Head,
) -> Result<(Plan, Option<Intake>), Refusal> {
    let Some((namespace, name)) = message::task(&message.attributes) else {
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
    let who = who::who(message.metadata_context.as_ref(), &head.headers, names);
    let mut plan = decide::plan(table, &asked, who)?;
    plan.scheme = head.scheme;
    let intake = Intake::new(&plan.ask, &head.headers)?;
    Ok((plan, intake))
}

#[cfg(test)]
mod tests;
