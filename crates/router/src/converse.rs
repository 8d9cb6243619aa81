//! The gateway's side of a conversation: reads as much of a request's body, and of an answer's, as it takes to tell which
//! session they are of, within limits.

use std::collections::VecDeque;
use std::time::Duration;

use agentcube_instance::InstanceId;
use agentcube_instance::provider::InstanceProvider;
use agentcube_instance::reserve::InUse;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use tokio::time::{Instant, timeout_at};

use crate::decide::Plan;
use crate::protocol::answer::{Learner, Reading};
use crate::protocol::intake::{self, Intake};
use crate::protocol::json::Found;
use crate::protocol::talk::{self, Head, Talk};
use crate::refusal::Refusal;
use crate::room::Room;
use crate::upload::{Received, Unread};

/// What the body of a request says, if that is needed to go on. It is kept to be passed on as it came.
pub(crate) async fn look_into(
    plan: &Plan,
    request: &mut Request<Received>,
    room: &Room,
    patience: Duration,
) -> Result<Found, Refusal> {
    let Some(mut intake) = Intake::new(&plan.ask, request.headers())? else { return Ok(Found::default()) };
    let idle = plan.route.limits.upload_idle;
    let (deadline, room) = (Instant::now() + patience, room.begin(&plan.route.task.uid));
    let read = request.body_mut();
    let read = read.read_whole(intake::LIMIT, idle, deadline, room, |bytes| intake.push(bytes)).await;
    match read {
        Ok(()) => intake.finish().map_err(|why| plan.ask.broken(why)),
        Err(Unread::Unwanted(why)) => Err(plan.ask.broken(why)),
        Err(Unread::TooLarge) => Err(Refusal::too_large(intake::LIMIT)),
        Err(Unread::NoRoom) => Err(Refusal::no_room()),
        Err(Unread::Stalled(limit)) => Err(Refusal::stalled(limit)),
        Err(Unread::Slow) => Err(Refusal::slow(patience)),
        Err(Unread::Broken(why)) => Err(Refusal::broken(&why)),
    }
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
    let names = match talk.head(plan, status, response.headers_mut())? {
        Head::Pass => Vec::new(),
        Head::Name(names) => names,
        Head::Read(learner) => {
            let found = read(*learner, talk, response.body_mut(), &answer, &mut early).await?;
            talk.names(plan, &found)
        }
    };
    talk::name(provider, talk, answer.in_use, answer.instance, names).await?;
    Ok(early)
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
                talk.unread(name)?;
                break;
            }
            Some(Reading::More) | None => {}
        }
    }
    Ok(learner.so_far())
}
