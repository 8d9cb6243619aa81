//! One run from its admission to its end: the task that owns it. It alone does anything to it; others ask.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use agentcube_protos::agent::{Reason, Refusal, Started, Why};
use agentcube_protos::session::{self, Timings};
use agentcube_runtime::{Exit, Runtime, signals};
use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::agent::{Inner, unix_ms};
use crate::describe::{Place, Wanted};
use crate::machine::{Effect, Ending, Event, Phase};
use crate::record::Made;
use crate::start::{self, Begun, Failure};
use crate::table::inventory;

/// How long a program has when nobody says.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// Commands that run beside one run at once.
const MOST_COMMANDS: usize = 32;
/// What the program wrote is in its log at once when it has ended, unless something else still holds its output.
const LAST_WORDS: Duration = Duration::from_secs(2);
const KILLED: Exit = Exit { code: 128 + signals::KILL, signal: Some(signals::KILL), out_of_memory: false };

/// What a run is asked to do.
pub(crate) enum Ask {
    End {
        ending: Ending,
        grace: Duration,
    },
    /// Stand still or go on, for either reason; those that are not given stay as they are.
    Freeze {
        paused: Option<bool>,
        fenced: Option<bool>,
        done: oneshot::Sender<Result<(), String>>,
    },
}

/// What came of a start.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Started(Started),
    Refused(Refusal),
}

/// A run that can be asked for its streams.
#[derive(Clone)]
pub(crate) struct Living {
    pub(crate) place: Place,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) env: Arc<Vec<(String, String)>>,
    pub(crate) made: Arc<Made>,
}

/// What others have of a run.
pub(crate) struct Handle {
    pub(crate) asks: mpsc::UnboundedSender<Ask>,
    pub(crate) outcome: watch::Receiver<Option<Outcome>>,
    pub(crate) ready: watch::Receiver<bool>,
    /// Nothing of it is left, and nobody wants to know of it. With how it ended.
    pub(crate) over: watch::Receiver<Option<Option<session::Exit>>>,
    pub(crate) living: OnceLock<Living>,
    pub(crate) commands: Arc<Semaphore>,
}

pub(crate) struct Task {
    inner: Arc<Inner>,
    id: String,
    wanted: Wanted,
    handle: Arc<Handle>,
    asks: mpsc::UnboundedReceiver<Ask>,
    outcome: watch::Sender<Option<Outcome>>,
    ready: watch::Sender<bool>,
    over: watch::Sender<Option<Option<session::Exit>>>,
    exit: Option<session::Exit>,
    /// Who ended it before it ran.
    abandoned: Option<Ending>,
    frozen: bool,
    grace_over: Option<Instant>,
    admitted: Instant,
}

impl Task {
    pub(crate) fn new(inner: Arc<Inner>, id: String, wanted: Wanted) -> (Self, Arc<Handle>) {
        let (ask, asks) = mpsc::unbounded_channel();
        let (outcome, outcomes) = watch::channel(None);
        let (ready, readiness) = watch::channel(false);
        let (over, overs) = watch::channel(None);
        let handle = Arc::new(Handle {
            asks: ask,
            outcome: outcomes,
            ready: readiness,
            over: overs,
            living: OnceLock::new(),
            commands: Arc::new(Semaphore::new(MOST_COMMANDS)),
        });
        let task = Self {
            inner,
            id,
            wanted,
            handle: handle.clone(),
            asks,
            outcome,
            ready,
            over,
            exit: None,
            abandoned: None,
            frozen: false,
            grace_over: None,
            admitted: Instant::now(),
        };
        (task, handle)
    }

    pub(crate) async fn run(mut self) {
        match self.start().await {
            Ok(begun) => self.live(begun).await,
            Err(failure) => self.refuse(failure).await,
        }
        self.conclude().await;
    }

    async fn start(&mut self) -> Result<Begun, Failure> {
        let (inner, id, wanted) = (self.inner.clone(), self.id.clone(), self.wanted.clone());
        let abandoned = CancellationToken::new();
        let mut starting = pin!(start::perform(&inner, &id, &wanted, &abandoned).boxed());
        loop {
            tokio::select! {
                biased;
                begun = &mut starting => return begun,
                () = inner.closing.cancelled(), if self.abandoned.is_none() => {
                    self.end_before_it_runs(Ending::Stopped, Duration::ZERO, &abandoned);
                }
                Some(ask) = self.asks.recv() => match ask {
                    Ask::End { ending, grace } => self.end_before_it_runs(ending, grace, &abandoned),
                    Ask::Freeze { fenced, done, .. } => {
                        // What is not there yet cannot stand still: it does not come to be.
                        if fenced == Some(true) {
                            self.end_before_it_runs(Ending::Fenced, Duration::ZERO, &abandoned);
                        }
                        let _gone = done.send(Err("it is still starting".into()));
                    }
                },
            }
        }
    }

    fn end_before_it_runs(&mut self, ending: Ending, grace: Duration, abandoned: &CancellationToken) {
        self.abandoned.get_or_insert(ending);
        if self.step(Event::End { ending, grace }).contains(&Effect::Abandon) {
            abandoned.cancel();
        }
    }

    async fn refuse(&mut self, failure: Failure) {
        let Failure { mut reason, message } = failure;
        if self.abandoned == Some(Ending::Expired) {
            reason = Reason::Expired;
        }
        self.inner.update(|state| {
            // An order that was refused is not to be started by a late copy of it.
            let claim = state.table.get(&self.id).map(|run| run.claim.clone());
            state.table.bury(&self.id, claim, Why::Abandoned);
            state.table.step(&self.id, Event::Failed, unix_ms());
        });
        self.inner.kept().await;
        let refusal = Refusal { reason: reason.into(), message, run_id: String::new(), term: 0 };
        self.outcome.send_replace(Some(Outcome::Refused(refusal)));
    }

    fn step(&mut self, event: Event) -> Vec<Effect> {
        self.inner.update(|state| {
            let effects = state.table.step(&self.id, event, unix_ms());
            if let Event::Exited(_) = event {
                self.exit = state.table.get(&self.id).and_then(inventory::exit);
            }
            effects
        })
    }

    /// A run that an earlier process started, from here on: it runs, or has ended without having been cleaned away.
    /// `frozen`: it stands still now.
    pub(crate) async fn go_on(mut self, begun: Begun, frozen: bool) {
        self.frozen = frozen;
        self.becomes_known(&begun);
        let endpoints = begun.endpoints.iter().map(ToString::to_string).collect();
        let ready = self.wanted.ports.is_empty();
        self.inner.update(|state| state.table.change(&self.id, |run| run.ready = ready));
        self.ready.send_replace(ready);
        self.tell_started(&begun, endpoints, ready);
        let (buried, ending, paused, fenced) = self.inner.read(|state| {
            let run = state.table.get(&self.id);
            let ending = run.is_some_and(|run| run.life.ending().is_some() && run.life.exit().is_none());
            let held = run.map(|run| (run.paused, run.fenced)).unwrap_or_default();
            (state.table.has(&self.id), ending, held.0, held.1)
        });
        let mut effects = match (ending, buried) {
            (true, _) => vec![Effect::Kill],
            (false, true) => self.step(Event::End { ending: Ending::Stopped, grace: Duration::ZERO }),
            (false, false) => Vec::new(),
        };
        if effects.is_empty() && frozen != (paused || fenced) {
            let body = Body::of(&begun);
            // It stood still for a reason that nobody wrote down: only the controller knows whether it may go on.
            let fenced = fenced || frozen;
            if let Err(error) = self.freeze(Some(paused), Some(fenced), &body).await {
                tracing::warn!(run = self.id, "it does not stand still: {error}");
                effects = self.step(Event::End { ending: Ending::Fenced, grace: Duration::ZERO });
            }
        }
        self.stay(begun, effects).await;
        self.conclude().await;
    }

    /// A run that an earlier process saw to its end.
    pub(crate) async fn has_ended(mut self) {
        self.exit = self.inner.read(|state| state.table.get(&self.id).and_then(inventory::exit));
        self.outcome.send_replace(Some(Outcome::Started(Started::default())));
        self.conclude().await;
    }

    fn becomes_known(&self, begun: &Begun) {
        let living = Living {
            place: begun.place.clone(),
            runtime: begun.runtime.clone(),
            env: Arc::new(begun.env.clone()),
            made: begun.made.clone(),
        };
        let _once = self.handle.living.set(living);
    }

    fn tell_started(&self, begun: &Begun, endpoints: Vec<String>, ready: bool) {
        let start = micros(self.admitted.elapsed());
        self.outcome.send_replace(Some(Outcome::Started(Started {
            endpoints,
            node: self.inner.options.node.clone(),
            prepared: begun.prepared,
            ready,
            timings: Some(Timings { start, ..Timings::default() }),
        })));
    }

    fn begin(&mut self, begun: &Begun) -> Vec<Effect> {
        let endpoints: Vec<String> = begun.endpoints.iter().map(ToString::to_string).collect();
        self.becomes_known(begun);
        let ready = self.wanted.ports.is_empty();
        let effects = self.inner.update(|state| {
            let effects = state.table.step(&self.id, Event::Began, unix_ms());
            state.table.change(&self.id, |run| {
                run.endpoints.clone_from(&endpoints);
                run.ready = ready;
            });
            effects
        });
        self.ready.send_replace(ready);
        self.tell_started(begun, endpoints, ready);
        effects
    }

    /// From the moment when its program runs until nothing of it is left.
    async fn live(&mut self, begun: Begun) {
        let effects = self.begin(&begun);
        self.stay(begun, effects).await;
    }

    async fn stay(&mut self, mut begun: Begun, effects: Vec<Effect>) {
        let mut readiness = self.readiness(&mut begun);
        let body = Body::of(&begun);
        let Begun { mut exit, image, .. } = begun;
        self.perform(effects, &body).await;
        let closing = self.inner.closing.clone();
        let (mut over, mut told) = (false, false);
        while !over {
            let grace_over = self.grace_over;
            let event = tokio::select! {
                biased;
                ended = &mut exit => {
                    let _late = tokio::time::timeout(LAST_WORDS, self.inner.logs.ended(&start::log(&self.id))).await;
                    over = true;
                    Event::Exited(ended.unwrap_or(KILLED))
                }
                Some(ask) = self.asks.recv() => match self.asked(ask, &body).await {
                    Some(event) => event,
                    None => continue,
                },
                () = at(grace_over) => {
                    self.grace_over = None;
                    Event::GraceOver
                }
                () = closing.cancelled(), if !told => {
                    told = true;
                    Event::End { ending: Ending::Stopped, grace: Duration::ZERO }
                }
                () = &mut readiness, if !*self.ready.borrow() => {
                    self.inner.update(|state| state.table.change(&self.id, |run| run.ready = true));
                    self.ready.send_replace(true);
                    continue;
                }
            };
            let effects = self.step(event);
            self.perform(effects, &body).await;
        }
        drop(image);
    }

    fn readiness(&self, begun: &mut Begun) -> BoxFuture<'static, ()> {
        if self.wanted.ports.is_empty() {
            return std::future::pending().boxed();
        }
        let (inner, sandbox) = (self.inner.clone(), begun.place.sandbox.clone());
        let (ports, socket) = (self.wanted.ports.clone(), begun.socket.take());
        let looking =
            async move { inner.looks.ready(inner.parts.network.as_ref(), &sandbox, &ports, socket).await };
        looking.boxed()
    }

    async fn perform(&mut self, effects: Vec<Effect>, body: &Body) {
        for effect in effects {
            match effect {
                Effect::Abandon => {}
                Effect::Signal => {
                    if let Err(error) = body.runtime.signal(&body.place.container, body.stop_signal).await {
                        tracing::warn!(run = self.id, "it was not asked to end: {error}");
                    }
                }
                Effect::Wait(grace) => self.grace_over = Some(Instant::now() + grace),
                // Its end is told as that of any other.
                Effect::Kill => start::remove(&self.inner, &body.place).await,
                Effect::Clean => {
                    // What is known of its end has to be kept before its container goes, which keeps the rest.
                    self.inner.kept().await;
                    start::remove(&self.inner, &body.place).await;
                    self.step(Event::Cleaned);
                }
            }
        }
    }

    async fn asked(&mut self, ask: Ask, body: &Body) -> Option<Event> {
        match ask {
            // What is frozen cannot hear a signal, and must not go on to hear it.
            Ask::End { ending, .. } if self.frozen => Some(Event::End { ending, grace: Duration::ZERO }),
            Ask::End { ending, grace } => Some(Event::End { ending, grace }),
            Ask::Freeze { paused, fenced, done } => {
                let answer = self.freeze(paused, fenced, body).await;
                let killed = answer.is_err() && fenced == Some(true);
                let _gone = done.send(answer);
                killed.then_some(Event::End { ending: Ending::Fenced, grace: Duration::ZERO })
            }
        }
    }

    async fn freeze(
        &mut self,
        paused: Option<bool>,
        fenced: Option<bool>,
        body: &Body,
    ) -> Result<(), String> {
        let now = self.inner.read(|state| {
            let run = state.table.get(&self.id)?;
            (run.life.phase() == Phase::Running).then_some((run.paused, run.fenced))
        });
        let Some((was_paused, was_fenced)) = now else { return Err("it does not run".into()) };
        let (paused, fenced) = (paused.unwrap_or(was_paused), fenced.unwrap_or(was_fenced));
        let frozen = paused || fenced;
        if frozen != self.frozen {
            let froze = body.runtime.freeze(&body.place.container, frozen).await;
            froze.map_err(|error| error.to_string())?;
            self.frozen = frozen;
        }
        self.inner.update(|state| {
            state.table.change(&self.id, |run| (run.paused, run.fenced) = (paused, fenced));
        });
        Ok(())
    }

    /// Waits until nobody wants to know of it any more, then removes its log.
    async fn conclude(mut self) {
        let closing = self.inner.closing.clone();
        while self.inner.read(|state| state.table.get(&self.id).is_some()) {
            tokio::select! {
                biased;
                () = closing.cancelled() => break,
                ask = self.asks.recv() => if let Some(Ask::Freeze { done, .. }) = ask {
                    let _gone = done.send(Err("it has ended".into()));
                },
            }
        }
        let directory = self.inner.directory.join(&self.id);
        if let Err(failure) = start::blocking(move || crate::place::remove(&directory)).await {
            tracing::warn!(run = self.id, "its log stays until the next start: {}", failure.message);
        }
        self.inner.update(|state| state.runs.remove(&self.id));
        self.inner.prepared.stir(false);
        self.over.send_replace(Some(self.exit.take()));
    }
}

/// What is done to.
struct Body {
    place: Place,
    runtime: Arc<dyn Runtime>,
    stop_signal: i32,
}

impl Body {
    fn of(begun: &Begun) -> Body {
        let Begun { place, runtime, stop_signal, .. } = begun;
        Body { place: place.clone(), runtime: runtime.clone(), stop_signal: *stop_signal }
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
