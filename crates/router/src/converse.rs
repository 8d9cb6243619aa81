//! The gateway's side of a conversation: reads as much of a request's body, and of an answer's, as it takes to tell which
//! session they are of, within limits; ends sessions that nobody will ask for again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use agentcube_instance::InstanceId;
use agentcube_instance::alias::Alias;
use agentcube_instance::provider::InstanceProvider;
use agentcube_instance::reserve::{InUse, SessionRef};
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, HeaderMap};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use tokio::time::{Instant, timeout_at};

use crate::decide::Plan;
use crate::protocol::answer::{LIMIT, Learner, Reading};
use crate::protocol::json::{Found, Scan};
use crate::protocol::talk::{Head, Talk};
use crate::refusal::Refusal;
use crate::room::Room;
use crate::upload::{Received, Unread};

/// How much of a request's body is read for its ids, in bytes.
const BODY_LIMIT: usize = 1 << 20;

/// How long the streams of a session may take to end when its client has ended it.
const COMPANY: Duration = Duration::from_millis(500);

/// What the body of a request says, if that is needed to go on. It is kept to be passed on as it came.
pub(crate) async fn look_into(
    plan: &Plan,
    request: &mut Request<Received>,
    room: &Room,
    patience: Duration,
) -> Result<Found, Refusal> {
    let Some(shape) = plan.ask.shape() else { return Ok(Found::default()) };
    if is_packed(request.headers()) {
        let message = "the body is compressed, and has to be read for the ids in it: send it as it is";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "BodyCompressed", message));
    }
    let mut scan = Scan::new(shape);
    let idle = plan.route.limits.upload_idle;
    let (deadline, room) = (Instant::now() + patience, room.begin(&plan.route.task.uid));
    let read = request.body_mut().read_whole(BODY_LIMIT, idle, deadline, room, |bytes| scan.push(bytes));
    match read.await {
        Ok(()) => scan.finish().map_err(|why| plan.ask.broken(why)),
        Err(Unread::Unwanted(why)) => Err(plan.ask.broken(why)),
        Err(Unread::TooLarge) => Err(Refusal::too_large(BODY_LIMIT)),
        Err(Unread::NoRoom) => Err(Refusal::no_room()),
        Err(Unread::Stalled(limit)) => Err(Refusal::stalled(limit)),
        Err(Unread::Slow) => Err(Refusal::slow(patience)),
        Err(Unread::Broken(why)) => Err(Refusal::broken(&why)),
    }
}

fn is_packed(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity")
}

/// What was read of an answer before it is passed on.
pub(crate) type Early = VecDeque<Frame<Bytes>>;

/// An answer, and who gave it.
pub(crate) struct Answer<'a> {
    pub(crate) instance: &'a InstanceId,
    pub(crate) in_use: &'a InUse,
    pub(crate) deadline: Option<Instant>,
    pub(crate) silence: Option<Duration>,
}

/// Learns from an answer by which ids its session is to be found, and has that written down.
pub(crate) async fn learn(
    provider: &dyn InstanceProvider,
    plan: &Plan,
    talk: &mut Talk,
    response: &mut Response<Incoming>,
    answer: Answer<'_>,
) -> Result<Early, Refusal> {
    let status = response.status();
    let mut early = Early::new();
    let names = match talk.head(provider, plan, status, response.headers_mut())? {
        Head::Pass => Vec::new(),
        Head::Name(names) => names,
        Head::Read(learner) => {
            let found = read(*learner, talk, response.body_mut(), &answer, &mut early).await?;
            talk.names(plan, &found)
        }
    };
    name(provider, talk, &answer, names).await?;
    Ok(early)
}

async fn name(
    provider: &dyn InstanceProvider,
    talk: &mut Talk,
    answer: &Answer<'_>,
    names: Vec<Alias>,
) -> Result<(), Refusal> {
    if names.is_empty() {
        return Ok(());
    }
    let naming = provider.name_session(answer.in_use, names);
    naming.await.map_err(|error| Refusal::unnamed(&answer.instance.name, &error.to_string()))?;
    talk.named();
    Ok(())
}

async fn read(
    mut learner: Learner,
    talk: &Talk,
    body: &mut Incoming,
    answer: &Answer<'_>,
    early: &mut Early,
) -> Result<Found, Refusal> {
    let name = &answer.instance.name;
    let given_up = talk.patience().map(|patience| Instant::now() + patience);
    while !body.is_end_stream() {
        let now = Instant::now();
        let silence = answer.silence.map(|silence| now + silence);
        let until = [answer.deadline, silence, given_up].into_iter().flatten().min();
        let until = until.unwrap_or(now + Duration::from_secs(365 * 86400));
        let frame = tokio::select! {
            frame = timeout_at(until, body.frame()) => frame,
            () = answer.in_use.revoked() => return Err(Refusal::revoked(name)),
        };
        let frame = match frame {
            Ok(frame) => frame,
            Err(_) if Some(until) == given_up => break,
            Err(_) => return Err(Refusal::too_slow(name, until - now)),
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| Refusal::failed(name, &error.to_string()))?;
        answer.in_use.active();
        let reading = frame.data_ref().map(|bytes| learner.push(bytes, |has| talk.is_enough(has)));
        early.push_back(frame);
        match reading {
            Some(Reading::Done(found)) => return Ok(found),
            Some(Reading::TooLong) => {
                let why = format!("no ids came in the first {LIMIT} bytes of its answer");
                return Err(Refusal::unnamed(name, &why));
            }
            Some(Reading::More) | None => {}
        }
    }
    Ok(learner.finish())
}

/// Ends a session when it is dropped, if one was set.
pub(crate) struct Ending {
    provider: Arc<dyn InstanceProvider>,
    session: Option<SessionRef>,
    rest: Duration,
}

impl Ending {
    pub(crate) fn new(provider: Arc<dyn InstanceProvider>) -> Ending {
        Ending { provider, session: None, rest: Duration::ZERO }
    }

    /// This session ends then; none does if there is none.
    pub(crate) fn set(&mut self, session: Option<SessionRef>) {
        self.session = session;
    }

    /// Others may be just about to hear that it is over: their streams end by themselves.
    pub(crate) fn has_company(&mut self) {
        self.rest = COMPANY;
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        // Without a runtime everything ends anyway.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(self.provider.end_session(session, self.rest));
        }
    }
}
