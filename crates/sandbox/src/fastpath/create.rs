//! CreateSandbox. FAST starts first and makes the object after the answer; STRONG writes the object first. Both go on
//! when the client goes away: what nobody was told of is stopped, what has an object comes up.

use std::sync::Arc;
use std::time::Duration;

use agentcube_api::sandbox::{FailurePolicy, SandboxPhase};
use agentcube_api::{Sandbox, SandboxPool, conditions, labels};
use agentcube_protos::agent::{Reason, Refusal, StartRequest, Started, Why};
use agentcube_protos::fastpath::{ConsistencyMode, CreateRequest, CreateResponse};
use agentcube_protos::refused::retry_after;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::PostParams;
use tokio::sync::oneshot::{self, Sender};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{answered, of_api};
use crate::access::Subject;
use crate::agents::Agent;
use crate::core::{ApiError, Core, is_deleted};
use crate::log::{Log, LogError};
use crate::names::{AgentId, Name, name_for};
use crate::object;
use crate::pending::{Create, Fate, allocated_run};
use crate::registry::Slot;
use crate::start::{Outcome, Unresolved};
use crate::validate;

/// How many agents are tried.
const TRIES: usize = 3;
/// The longest that a start waits for ports.
const LONGEST_READY: Duration = Duration::from_secs(30);

type Reply = Sender<Result<CreateResponse, Status>>;

pub(super) async fn create(
    core: &Arc<Core>,
    subject: &Subject,
    namespace: &str,
    request: CreateRequest,
    deadline: Instant,
) -> Result<CreateResponse, Status> {
    if request.request_id.chars().count() > 253 {
        return Err(Status::invalid_argument("request_id has more than 253 characters"));
    }
    let chosen = !request.name.is_empty() || !request.request_id.is_empty();
    let name = match request.name.as_str() {
        "" => name_for(namespace, &subject.0, &request.request_id),
        name => name.into(),
    };
    let name = Name { namespace: namespace.into(), name };
    let object = object::sandbox(&request, &name, &subject.0, Timestamp::now())?;
    validate::sandbox(&object)?;
    let pool = core.pools.get(namespace, &request.pool_ref);
    let pool = pool.ok_or_else(|| {
        Status::not_found(format!("there is no SandboxPool {} in namespace {namespace}", request.pool_ref))
    })?;
    if core.pending.count() >= core.options.limits.pending {
        let message = "too many objects are still to be made: the API server does not keep up";
        return Err(retry_after(Code::Unavailable, message, Duration::from_secs(5)));
    }
    let strong = request.consistency_mode() == ConsistencyMode::Strong;
    let work = Work {
        core: core.clone(),
        name: name.clone(),
        object,
        pool,
        chosen,
        deadline,
        wait: request.wait_ready,
    };
    let (reply, answer) = oneshot::channel();
    core.spawn(async move { if strong { work.strong(reply).await } else { work.fast(reply).await } });
    answered(deadline, answer).await.map_err(|status| match status.code() {
        Code::DeadlineExceeded if strong => Status::deadline_exceeded(format!(
            "sandbox {} was not running in time; it exists and comes up by itself",
            name.name
        )),
        _ => status,
    })
}

/// One create.
struct Work {
    core: Arc<Core>,
    name: Name,
    object: Sandbox,
    pool: Arc<SandboxPool>,
    /// The client chose the name, or the request id that gives it: somebody else may have it.
    chosen: bool,
    deadline: Instant,
    wait: bool,
}

/// What a name has already.
enum Known {
    Nothing,
    /// The same request was there before.
    Pending(Create),
    Object,
}

/// How a try went.
enum Tried {
    Again,
    Over,
}

impl Work {
    async fn fast(mut self, reply: Reply) {
        let one = self.core.locks.lock(&self.name).await;
        match self.known() {
            Err(status) => return drop(reply.send(Err(status))),
            Ok(Known::Pending(create)) => return drop(reply.send(Ok(existing(&create)))),
            Ok(Known::Object) => {
                drop(one);
                return drop(reply.send(self.follow(true).await));
            }
            Ok(Known::Nothing) => {}
        }
        let mut reply = Some(reply);
        let mut without = Vec::new();
        for _ in 0..TRIES {
            if reply.as_ref().is_none_or(Sender::is_closed) {
                return;
            }
            match self.try_fast(&mut without, &mut reply).await {
                Tried::Again => {}
                Tried::Over => return,
            }
        }
        send(&mut reply, Err(self.full()));
    }

    async fn try_fast(&mut self, without: &mut Vec<AgentId>, reply: &mut Option<Reply>) -> Tried {
        let begun = Instant::now();
        if let Some(Err(error)) = self.core.options.log.as_ref().map(Log::check) {
            send(reply, Err(unlogged(&error)));
            return Tried::Over;
        }
        let Ok(slot) = self.core.reserve(&self.pool, &self.object.spec.image, without).await else {
            send(reply, Err(self.full()));
            return Tried::Over;
        };
        let Some(agent) = self.core.agents.get(&slot.agent().uid) else { return Tried::Again };
        let allocated = begun.elapsed();
        self.allocate(&slot, &agent, true);
        let request = match self.request(&slot, true).await {
            Ok(request) => request,
            Err(status) => {
                send(reply, Err(status));
                return Tried::Over;
            }
        };
        // At once: what is started and not logged is adopted, what is logged and not started is settled.
        let record = request.object.clone();
        let sent = Instant::now();
        let starting = async { (self.core.start(&agent, request).await, sent.elapsed()) };
        let logging = async { (self.log(&slot, &agent, &record).await, sent.elapsed()) };
        let ((outcome, started_after), (logged, logged_after)) = tokio::join!(starting, logging);
        match outcome {
            Outcome::Started(mut started) => {
                // Only what was waited for.
                let waited = logged_after.saturating_sub(started_after);
                started.timings.get_or_insert_default().log = micros(waited);
                let create = self.keep(slot, &agent, started.endpoints.clone(), Fate::Kept);
                let response = self.response(&create, started, allocated);
                // An object of this name may have come meanwhile, by somebody else or late: it wins.
                if self.core.sandboxes.get(&self.name.namespace, &self.name.name).is_some() {
                    self.core.abandon(self.name.clone(), &create, Why::Abandoned);
                    send(reply, Err(self.taken()));
                    return Tried::Over;
                }
                if let Err(error) = logged {
                    self.core.abandon(self.name.clone(), &create, Why::Abandoned);
                    send(reply, Err(unlogged(&error)));
                    return Tried::Over;
                }
                if send(reply, Ok(response)) {
                    self.core.make_later(self.name.clone());
                } else {
                    // Nobody was told of it.
                    self.core.abandon(self.name.clone(), &create, Why::Abandoned);
                }
                Tried::Over
            }
            Outcome::Refused(refusal) => {
                self.core.settle_log(slot.run());
                self.refused(&refusal, &agent, without, reply)
            }
            Outcome::Doubt(status) => {
                // It may run: nothing else is tried under this name before the agent says that it does not.
                let create = self.keep(slot, &agent, Vec::new(), Fate::Stopped(Why::Abandoned));
                self.core.abandon(self.name.clone(), &create, Why::Abandoned);
                let message = format!("its agent did not say whether it started: {}", status.message());
                send(reply, Err(retry_after(Code::Unavailable, message, Duration::from_secs(1))));
                Tried::Over
            }
        }
    }

    async fn strong(mut self, reply: Reply) {
        let one = self.core.locks.lock(&self.name).await;
        match self.known() {
            Err(status) => return drop(reply.send(Err(status))),
            Ok(Known::Pending(create)) => return drop(reply.send(Ok(existing(&create)))),
            Ok(Known::Object) => {
                drop(one);
                return drop(reply.send(self.follow(true).await));
            }
            Ok(Known::Nothing) => {}
        }
        let begun = Instant::now();
        let Ok(slot) = self.core.reserve(&self.pool, &self.object.spec.image, &[]).await else {
            return drop(reply.send(Err(self.full())));
        };
        let Some(agent) = self.core.agents.get(&slot.agent().uid) else {
            return drop(reply.send(Err(self.full())));
        };
        let allocated = begun.elapsed();
        self.allocate(&slot, &agent, false);
        match self.write(&slot).await {
            Ok(true) => {}
            Ok(false) => {
                drop(one);
                return drop(reply.send(self.follow(true).await));
            }
            Err(status) => return drop(reply.send(Err(status))),
        }
        let outcome = match self.request(&slot, false).await {
            Ok(request) => Some(self.core.start(&agent, request).await),
            Err(_) => None,
        };
        let answer = match outcome {
            Some(Outcome::Started(started)) => {
                let create = self.create(&slot, &agent, started.endpoints.clone(), Fate::Kept);
                slot.keep(agent.asked());
                Some(self.response(&create, started, allocated))
            }
            Some(Outcome::Doubt(_)) => {
                slot.keep(agent.asked());
                None
            }
            // The object is there: the reconciler sees to it as to any other.
            Some(Outcome::Refused(_)) | None => None,
        };
        drop(one);
        self.core.queue.add(self.name.clone());
        let answer = match answer {
            Some(response) => Ok(response),
            None => self.follow(false).await,
        };
        drop(reply.send(answer));
    }

    /// Makes the object of a STRONG create. Whether it is ours; if not, the same request made it before.
    async fn write(&mut self, slot: &Slot) -> Result<bool, Status> {
        let api = self.core.api(&self.name.namespace);
        match self.core.answered(api.create(&PostParams::default(), &self.object)).await {
            Ok(object) => {
                self.object.metadata = object.metadata.clone();
                self.core.sandboxes.put(object);
                self.core.pending.born(slot.run());
                return Ok(true);
            }
            Err(ApiError::Answered(status)) if status.code < 500 && status.code != 409 => {
                return Err(of_api(ApiError::Answered(status)));
            }
            Err(ApiError::Answered(status)) if status.code == 409 => {}
            // Nobody knows: it may come later.
            Err(_) => {
                self.core.pending.keep_name(&self.name, Instant::now() + self.core.options.timing.late);
            }
        }
        match self.core.refresh(&self.name).await {
            Ok(Some(object)) if allocated_run(&object).as_ref() == Some(slot.run()) => {
                self.object.metadata = object.metadata.clone();
                Ok(true)
            }
            Ok(Some(object)) if self.is_same(&object) => Ok(false),
            Ok(Some(_)) => Err(self.taken()),
            Ok(None) | Err(_) => {
                let message = "nobody knows whether its object was made; ask again with the same request_id";
                Err(retry_after(Code::Unavailable, message, Duration::from_secs(1)))
            }
        }
    }

    /// Promises the object, if there is a log.
    async fn log(&self, slot: &Slot, agent: &Agent, record: &[u8]) -> Result<(), LogError> {
        let Some(log) = &self.core.options.log else { return Ok(()) };
        let incarnation = agent.fence(self.core.options.term).incarnation;
        log.intent(slot.run(), agent.id(), &incarnation, &self.object, record).await
    }

    /// The agent did not start it, for certain.
    fn refused(
        &self,
        refusal: &Refusal,
        agent: &Agent,
        without: &mut Vec<AgentId>,
        reply: &mut Option<Reply>,
    ) -> Tried {
        match refused(refusal, &self.name) {
            None => {
                without.push(agent.id().clone());
                Tried::Again
            }
            Some(status) => {
                send(reply, Err(status));
                Tried::Over
            }
        }
    }

    /// What the name has. Needs its lock.
    fn known(&self) -> Result<Known, Status> {
        if let Some(create) = self.core.pending.get(&self.name) {
            return match create.fate {
                Fate::Kept if self.is_same(&create.object) => Ok(Known::Pending(create)),
                Fate::Kept => Err(self.taken()),
                Fate::Stopped(_) => Err(settling("an earlier run of this name is being stopped")),
            };
        }
        let object = self.core.sandboxes.get(&self.name.namespace, &self.name.name);
        // The log speaks for what has no object yet, and for what is to stay deleted.
        let logged = self.core.options.log.as_ref().and_then(|log| log.of(&self.name));
        if logged.is_some_and(|open| open.deleted || object.is_none()) {
            self.core.queue.add(self.name.clone());
            return Err(settling("an earlier sandbox of this name is still being settled"));
        }
        if let Some(object) = object {
            let same = self.is_same(&object) && !is_deleted(&object);
            return if same { Ok(Known::Object) } else { Err(self.taken()) };
        }
        if !self.chosen {
            return Ok(Known::Nothing);
        }
        // A run of an earlier controller may have this name and no object yet.
        if !self.core.agents.runs_of(&self.name).is_empty() || !self.core.is_open(&Name::of(&*self.pool)) {
            self.core.queue.add(self.name.clone());
            return Err(settling("what runs under this name is still being found out"));
        }
        Ok(Known::Nothing)
    }

    /// Whether an object came from this very request.
    fn is_same(&self, other: &Sandbox) -> bool {
        let of = |object: &Sandbox, key: &str| object.annotations().get(key).cloned();
        let id = of(&self.object, labels::SANDBOX_REQUEST_ID);
        id.is_some()
            && id == of(other, labels::SANDBOX_REQUEST_ID)
            && of(&self.object, object::CREATED_BY) == of(other, object::CREATED_BY)
            && object::is_same(&self.object.spec, &other.spec)
    }

    fn taken(&self) -> Status {
        Status::already_exists(format!(
            "there is another sandbox {}, or one that is not the same",
            self.name.name
        ))
    }

    fn full(&self) -> Status {
        let capacity = &self.pool.spec.capacity;
        let agents = self.core.agents.of(&Name::of(&*self.pool)).len();
        let grows = agents < capacity.pool_max.max(0) as usize;
        let message = format!("no agent of SandboxPool {} has a free slot", self.pool.name_any());
        retry_after(Code::ResourceExhausted, message, Duration::from_secs(if grows { 1 } else { 5 }))
    }

    fn allocate(&mut self, slot: &Slot, agent: &Agent, started: bool) {
        let (pool, node) = (&agent.pool, agent.node());
        object::allocate(&mut self.object, pool, agent.id(), &node, slot.run(), started);
    }

    async fn request(&self, slot: &Slot, record: bool) -> Result<StartRequest, Status> {
        let request = self.core.start_request(&self.object, &self.pool, slot.run()).await;
        let mut request = request.map_err(|error| match error {
            missing @ Unresolved::Missing { .. } => Status::failed_precondition(missing.to_string()),
            Unresolved::Api(error) => of_api(error),
        })?;
        if self.wait {
            let left = self.deadline.saturating_duration_since(Instant::now()).min(LONGEST_READY);
            request.wait_ready_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        }
        if record {
            request.object = serde_json::to_vec(&self.object).map_err(|e| Status::internal(e.to_string()))?;
        }
        Ok(request)
    }

    fn create(&self, slot: &Slot, agent: &Arc<Agent>, endpoints: Vec<String>, fate: Fate) -> Create {
        let object = Arc::new(self.object.clone());
        Create { run: slot.run().clone(), agent: agent.clone(), object, endpoints, doubt: false, fate }
    }

    /// Puts the run where reconciles see that it is seen to.
    fn keep(&self, slot: Slot, agent: &Arc<Agent>, endpoints: Vec<String>, fate: Fate) -> Create {
        let create = self.create(&slot, agent, endpoints, fate);
        self.core.pending.insert(&self.name, create.clone());
        slot.keep(agent.asked());
        create
    }

    fn response(&self, create: &Create, started: Started, allocated: Duration) -> CreateResponse {
        let mut timings = started.timings.unwrap_or_default();
        timings.allocate = micros(allocated);
        CreateResponse {
            sandbox_id: self.name.name.clone(),
            agent_pod: create.agent.id().name.clone(),
            endpoints: started.endpoints,
            run_id: create.run.to_string(),
            existed: false,
            timings: Some(timings),
        }
    }

    /// Waits until an object runs, or cannot.
    async fn follow(&self, existed: bool) -> Result<CreateResponse, Status> {
        loop {
            let notify = self.core.hub.of(&self.name);
            let changed = notify.notified();
            let object = self.core.sandboxes.get(&self.name.namespace, &self.name.name);
            let object = object.filter(|object| !is_deleted(object));
            let object = object.ok_or_else(|| Status::not_found("it was deleted"))?;
            if let Some(outcome) = outcome(&object, self.wait, existed) {
                return outcome;
            }
            // Whoever asked has gone by then.
            let waited = tokio::time::timeout_at(self.deadline, changed).await;
            waited.map_err(|_| Status::deadline_exceeded("it does not run yet"))?;
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn unlogged(error: &LogError) -> Status {
    retry_after(Code::Unavailable, error.to_string(), Duration::from_secs(1))
}

fn settling(message: &str) -> Status {
    retry_after(Code::Unavailable, message, Duration::from_millis(200))
}

/// Sends the answer; whether anybody takes it.
fn send(reply: &mut Option<Reply>, answer: Result<CreateResponse, Status>) -> bool {
    reply.take().is_some_and(|reply| reply.send(answer).is_ok())
}

fn existing(create: &Create) -> CreateResponse {
    CreateResponse {
        sandbox_id: create.object.name_any(),
        agent_pod: create.agent.id().name.clone(),
        endpoints: create.endpoints.clone(),
        run_id: create.run.to_string(),
        existed: true,
        timings: None,
    }
}

/// What came of an object, if that is known.
fn outcome(object: &Sandbox, wait: bool, existed: bool) -> Option<Result<CreateResponse, Status>> {
    let status = object.status.clone().unwrap_or_default();
    let ready = conditions::find(&status.conditions, conditions::READY);
    match status.phase.unwrap_or_default() {
        SandboxPhase::Running => {
            let is_ready = ready.is_some_and(|ready| ready.status == conditions::TRUE);
            (!wait || is_ready).then(|| {
                Ok(CreateResponse {
                    sandbox_id: object.name_any(),
                    agent_pod: status.assigned_pod.unwrap_or_default(),
                    endpoints: status.endpoints,
                    run_id: status.sandbox_id.unwrap_or_default(),
                    existed,
                    timings: None,
                })
            })
        }
        SandboxPhase::Lost if !is_left_as_it_is(object) => None,
        phase @ (SandboxPhase::Failed
        | SandboxPhase::Expired
        | SandboxPhase::Terminating
        | SandboxPhase::Lost) => {
            let why = ready.map(|ready| ready.message.clone()).unwrap_or_default();
            Some(Err(Status::failed_precondition(format!("it is {phase:?}: {why}"))))
        }
        SandboxPhase::Pending | SandboxPhase::Bound => None,
    }
}

/// Whether nobody but its owner starts it again: it ran, and its policy is to leave it.
fn is_left_as_it_is(object: &Sandbox) -> bool {
    let ran = object.status.as_ref().is_some_and(|status| status.started_at.is_some());
    ran && object.spec.failure_policy == FailurePolicy::Manual
}

/// What the client is told of a refusal; none if another agent may take it.
fn refused(refusal: &Refusal, name: &Name) -> Option<Status> {
    let message = refusal.message.clone();
    Some(match refusal.reason() {
        // An agent that is out of contact gives no reason that has a name.
        Reason::Full | Reason::NoPort | Reason::Draining | Reason::OtherIncarnation | Reason::Unknown => {
            return None;
        }
        Reason::Tombstoned | Reason::Taken => return None,
        Reason::OtherRun => Status::already_exists(format!("a sandbox {} runs already", name.name)),
        Reason::StaleTerm => Status::unavailable("another controller leads"),
        Reason::Image => Status::failed_precondition(format!("the image cannot be had: {message}")),
        Reason::Invalid => Status::invalid_argument(message),
        Reason::Expired => Status::failed_precondition("it would have expired before it began"),
        Reason::StartFailed => Status::aborted(format!("it could not be started: {message}")),
    })
}
