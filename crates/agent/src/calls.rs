//! What the controller asks. A refusal is an answer; an error would mean that nobody knows what happened.

use std::time::{Duration, Instant};

use agentcube_protos::agent::start_response::Outcome as Answered;
use agentcube_protos::agent::{
    ConfigureRequest, ConfigureResponse, ExecRequest, LogsRequest, PauseRequest, PauseResponse, Reason,
    Refusal, StartRequest, StartResponse, Started, StatsRequest, StatsResponse, StopRequest, StopResponse,
    SyncRequest, SyncResponse, Usage,
};
use agentcube_protos::link::{AgentApi, Answer, Answers};
use agentcube_protos::session::{ExecOutput, LogChunk};
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use tokio::sync::oneshot;
use tonic::Status;

use crate::agent::{Agent, Inner, unix_ms};
use crate::machine::Ending;
use crate::run::{Ask, Handle, Outcome, Task, micros};
use crate::table::{Admitted, Order, Run};
use crate::{describe, exec, labels, limits, logs};

const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How long news waits for more.
const TOGETHER: Duration = Duration::from_millis(5);
const LONGEST_READY: Duration = Duration::from_secs(60);
const LONGEST_GRACE: Duration = Duration::from_secs(3_600);
/// Runs of which the controller says at once that their objects exist.
const MOST_CONFIRMED: usize = 10_000;
const MOST_IMAGES: usize = 64;

fn refusal(reason: Reason, message: impl Into<String>) -> Refusal {
    Refusal { reason: reason.into(), message: message.into(), run_id: String::new(), term: 0 }
}

fn lost() -> Status {
    Status::internal("the agent lost sight of this run")
}

impl AgentApi for Agent {
    fn sync(&self, request: SyncRequest) -> Answer<'_, SyncResponse> {
        Box::pin(self.inner.sync(request))
    }

    fn start(&self, request: StartRequest) -> Answer<'_, StartResponse> {
        Box::pin(async move {
            let outcome = match start(self, request).await? {
                Ok(started) => Answered::Started(started),
                Err(refusal) => Answered::Refusal(refusal),
            };
            Ok(StartResponse { outcome: Some(outcome) })
        })
    }

    fn stop(&self, request: StopRequest) -> Answer<'_, StopResponse> {
        Box::pin(self.inner.stop(request))
    }

    fn pause(&self, request: PauseRequest) -> Answer<'_, PauseResponse> {
        Box::pin(async move {
            let refusal = self.inner.pause(request).await.err();
            self.inner.kept().await;
            Ok(PauseResponse { refusal })
        })
    }

    fn configure(&self, request: ConfigureRequest) -> Answer<'_, ConfigureResponse> {
        Box::pin(async move {
            let answer = configure(self, request);
            self.inner.kept().await;
            Ok(answer.unwrap_or_else(|refusal| ConfigureResponse {
                refusal: Some(refusal),
                ..ConfigureResponse::default()
            }))
        })
    }

    fn stats(&self, request: StatsRequest) -> Answer<'_, StatsResponse> {
        Box::pin(self.inner.stats(request))
    }

    fn logs(&self, request: LogsRequest) -> Answer<'_, Answers<LogChunk>> {
        Box::pin(async move { logs::read(&self.inner, &request) })
    }

    fn exec(&self, input: BoxStream<'static, ExecRequest>) -> Answer<'_, Answers<ExecOutput>> {
        Box::pin(exec::begin(&self.inner, input))
    }
}

/// Admits an order and waits for what comes of it. Whoever stops waiting does not stop the run.
async fn start(agent: &Agent, request: StartRequest) -> Result<Result<Started, Refusal>, Status> {
    let begun = Instant::now();
    let inner = &agent.inner;
    let wanted = match describe::read(&request, &inner.options) {
        Ok(wanted) => wanted,
        Err(message) => return Ok(Err(refusal(Reason::Invalid, message))),
    };
    let order = Order {
        run: request.run_id.clone(),
        claim: request.claim.unwrap_or_default(),
        object: request.object,
        expire_unix_ms: request.expire_unix_ms,
        recovery: Duration::from_secs(request.recovery_timeout_seconds.into()),
    };
    let admitted = inner.update(|state| {
        state.table.check(request.fence.as_ref())?;
        state.table.in_contact(&order, &state.lease, tokio::time::Instant::now().into_std())?;
        let again = state.table.admit(order, unix_ms())? == Admitted::Again;
        if again {
            return Ok((state.runs.get(&request.run_id).cloned(), None));
        }
        let (task, handle) = Task::new(inner.clone(), request.run_id.clone(), wanted);
        state.runs.insert(request.run_id.clone(), handle.clone());
        Ok((Some(handle), Some(task)))
    });
    let (handle, task) = match admitted {
        Ok((Some(handle), task)) => (handle, task),
        Ok((None, _)) => return Err(lost()),
        Err(refusal) => {
            inner.kept().await;
            return Ok(Err(refusal));
        }
    };
    let admit = micros(begun.elapsed());
    if let Some(task) = task {
        tokio::spawn(Box::pin(task.run()));
        inner.sooner.notify_one();
        inner.prepared.stir(true);
    }
    let mut started = match outcome(&handle).await? {
        Outcome::Started(started) => started,
        Outcome::Refused(refusal) => return Ok(Err(refusal)),
    };
    let running = Instant::now();
    let patience = Duration::from_millis(request.wait_ready_ms.into()).min(LONGEST_READY);
    let mut ready = handle.ready.clone();
    started.ready = *ready.borrow();
    if !started.ready && !patience.is_zero() {
        let waited = tokio::time::timeout(patience, ready.wait_for(|ready| *ready)).await;
        started.ready = matches!(waited, Ok(Ok(_)));
    }
    inner.kept().await;
    if let Some(timings) = &mut started.timings {
        (timings.admit, timings.ready) = (admit, micros(running.elapsed()));
    }
    Ok(Ok(started))
}

async fn outcome(handle: &Handle) -> Result<Outcome, Status> {
    let mut outcome = handle.outcome.clone();
    let known = outcome.wait_for(Option::is_some).await.map_err(|_| lost())?;
    known.clone().ok_or_else(lost)
}

fn configure(agent: &Agent, request: ConfigureRequest) -> Result<ConfigureResponse, Refusal> {
    let inner = &agent.inner;
    let answer = inner.update(|state| {
        state.table.check(request.fence.as_ref())?;
        let draining = state.table.configure(request.capacity, request.drain);
        if let Some(keep) = &inner.keep {
            keep.configured(&ConfigureRequest { drain: draining, ..request.clone() });
        }
        Ok::<_, Refusal>(ConfigureResponse { draining, empty: state.table.is_empty(), refusal: None })
    })?;
    inner.keep_ready(request);
    Ok(answer)
}

impl Inner {
    /// Images and sandboxes that are wanted before anybody asks for them.
    pub(crate) fn keep_ready(&self, request: ConfigureRequest) {
        let (spawner, count) = (self.parts.spawner.clone(), self.read(|state| state.table.capacity()));
        let (who, embryos) = (self.incarnation.clone(), self.parts.native.is_some());
        let closing = self.closing.clone();
        tokio::spawn(async move {
            if closing.is_cancelled() {
                return;
            }
            // All of its slots may be asked for at once. With the spawner, everything has ended.
            let _gone = spawner.spare(&who, count as usize, embryos).await;
        });
        for image in request.images.into_iter().take(MOST_IMAGES) {
            let images = self.images.clone();
            tokio::spawn(async move {
                if let Err(error) = images.get(&image).await {
                    tracing::warn!(image, "an image that is to be kept ready cannot be had: {error}");
                }
            });
        }
        match (&self.parts.native, request.prepared.is_empty()) {
            (None, false) => {
                tracing::warn!("this runtime can prepare no sandboxes: they are started from nothing")
            }
            _ => self.prepared.want(request.prepared),
        }
    }

    async fn sync(&self, request: SyncRequest) -> Result<SyncResponse, Status> {
        let fence = request.fence.as_ref();
        let first = fence.is_none_or(|fence| fence.incarnation.is_empty());
        let known = if first { 0 } else { request.known_version };
        let checked = self.update(|state| {
            state.table.check_first(fence)?;
            let before = state.lease.contact();
            state.lease.acknowledged(request.ack);
            if let Some((keep, at)) =
                self.keep.as_ref().zip(state.lease.contact().filter(|at| Some(*at) != before))
            {
                keep.contact(at, tokio::time::Instant::now().into_std());
            }
            let mut objects = Vec::new();
            for confirmed in request.confirmed.iter().take(MOST_CONFIRMED) {
                let (run, uid) = (&confirmed.run_id, &confirmed.uid);
                if limits::run_id(run).is_ok() && uid.len() <= 128 && state.table.confirm(run, uid) {
                    let living = state.runs.get(run).and_then(|run| run.living.get());
                    objects.extend(living.map(|living| (living.clone(), uid.clone())));
                }
            }
            Ok(objects)
        });
        self.kept().await;
        match checked {
            Ok(objects) => labels::write_objects(objects),
            Err(refusal) => {
                return Ok(self.read(|state| SyncResponse { refusal: Some(refusal), ..state.table.header() }));
            }
        }
        if known != 0 {
            let patience = Duration::from_millis(request.wait_ms.into()).min(LONGEST_WAIT);
            if !self.news(known, patience).await {
                return Err(Status::unavailable("this agent ends, and has nothing new to tell"));
            }
        }
        let images = self.images.names(known == 0).await;
        Ok(self.update(|state| {
            // Whoever leads may have changed while this one waited.
            if let Err(refusal) = state.table.check_first(fence) {
                return SyncResponse { refusal: Some(refusal), ..state.table.header() };
            }
            let seq = state.lease.answered(tokio::time::Instant::now().into_std());
            SyncResponse { seq, images, prepared: self.prepared.view(), ..state.table.view(known) }
        }))
    }

    /// Waits until there is something to tell, or for as long as is wanted; `false` when the agent ends first. A normal
    /// answer would then be asked for again at once and be there at once, and in one process with us nobody else would
    /// have a turn.
    async fn news(&self, known: u64, patience: Duration) -> bool {
        let mut version = self.version.subscribe();
        let changed = async {
            drop(version.wait_for(|version| *version != known).await);
            // What happens together is told together.
            tokio::select! {
                () = self.closing.cancelled() => {}
                () = tokio::time::sleep(TOGETHER) => {}
            }
        };
        tokio::select! {
            biased;
            () = changed => true,
            () = self.closing.cancelled() => false,
            () = tokio::time::sleep(patience) => true,
        }
    }

    async fn stop(&self, request: StopRequest) -> Result<StopResponse, Status> {
        let refused = |refusal| Ok(StopResponse { refusal: Some(refusal), ..StopResponse::default() });
        let checked = limits::run_id(&request.run_id).and_then(|()| match &request.claim {
            Some(claim) => limits::claim(claim),
            None => Ok(()),
        });
        if let Err(message) = checked {
            return refused(refusal(Reason::Invalid, message));
        }
        let stopped = self.update(|state| {
            state.table.check(request.fence.as_ref())?;
            state.table.stop(&request.run_id, request.claim.as_ref(), request.why())?;
            Ok(state.runs.get(&request.run_id).cloned())
        });
        let handle = match stopped {
            Ok(Some(handle)) => handle,
            Ok(None) => {
                self.kept().await;
                return Ok(StopResponse::default());
            }
            Err(refusal) => {
                self.kept().await;
                return refused(refusal);
            }
        };
        let grace = Duration::from_secs(request.grace_seconds.into()).min(LONGEST_GRACE);
        // Without a task there is nobody to ask, and nothing that runs.
        let _gone = handle.asks.send(Ask::End { ending: Ending::Stopped, grace });
        let mut over = handle.over.clone();
        let exit = over.wait_for(Option::is_some).await.map_err(|_| lost())?.clone();
        self.kept().await;
        Ok(StopResponse { was_there: true, exit: exit.flatten(), refusal: None })
    }

    async fn pause(&self, request: PauseRequest) -> Result<(), Refusal> {
        let handle = self.update(|state| {
            state.table.check(request.fence.as_ref())?;
            let Some(handle) = state.runs.get(&request.run_id).cloned() else {
                return Err(refusal(Reason::Unknown, "there is no such run"));
            };
            let patience = state.table.get(&request.run_id).map(Run::patience).unwrap_or_default();
            let now = tokio::time::Instant::now().into_std();
            if request.fenced == Some(false) && !state.lease.holds(patience, now) {
                let message =
                    "this agent was out of contact with its controller: it may run elsewhere by now";
                return Err(refusal(Reason::Unknown, message));
            }
            if let Some(at) = request.expire_unix_ms {
                state.table.change(&request.run_id, |run| run.expire_unix_ms = at.max(0));
            }
            if let Some(seconds) = request.recovery_timeout_seconds {
                // It never goes down: what is less was said earlier, and is late.
                let recovery = Duration::from_secs(seconds.into());
                state.table.change(&request.run_id, |run| run.recovery = run.recovery.max(recovery));
            }
            Ok(handle)
        })?;
        self.sooner.notify_one();
        if request.fenced == Some(true) {
            return Err(refusal(Reason::Invalid, "a run is fenced by its agent, not by its controller"));
        }
        if request.paused.is_none() && request.fenced.is_none() {
            return Ok(());
        }
        // Before anything goes on the spawner has to know that the controller was heard of.
        self.kept().await;
        let (done, answer) = oneshot::channel();
        let _gone = handle.asks.send(Ask::Freeze { paused: request.paused, fenced: request.fenced, done });
        let answer = answer.await.unwrap_or_else(|_| Err("it has ended".into()));
        answer.map_err(|message| refusal(Reason::Invalid, message))
    }

    async fn stats(&self, request: StatsRequest) -> Result<StatsResponse, Status> {
        let living = self.read(|state| {
            let wanted = state.runs.iter();
            let wanted = wanted.filter(|(id, _)| request.run_id.is_empty() || **id == request.run_id);
            let living = wanted.filter_map(|(id, run)| Some((id.clone(), run.living.get()?.clone())));
            living.collect::<Vec<_>>()
        });
        let asked = living.iter().map(|(id, living)| async move {
            // One that has ended meanwhile uses nothing.
            let usage = living.runtime.usage(&living.place.container).await.ok()?;
            Some(Usage {
                run_id: id.clone(),
                cpu_microseconds: usage.cpu_nanoseconds / 1_000,
                memory_bytes: usage.memory_bytes,
                processes: u32::try_from(usage.processes).unwrap_or(u32::MAX),
            })
        });
        let runs = join_all(asked).await.into_iter().flatten().collect();
        Ok(StatsResponse { runs })
    }
}
