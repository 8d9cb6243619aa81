//! Leader election on a Lease: of several candidates at most one leads. A leader stops before another may begin, as
//! long as the clocks of both run at about the same speed; what they show does not matter.
//!
//! Never leads on a guess: only a write that the server confirmed makes a leader, counted from when it was sent.
//! Whoever clears or deletes the Lease by hand takes this protection away.

mod machine;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::core::ObjectMeta;
use kube::runtime::watcher;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use machine::{Action, Answer, Machine};

use crate::watch::{Sink, follow_in};

/// How often the release of a Lease is tried. It lapses by itself in the end.
const RELEASE_TRIES: usize = 3;

/// What is elected for, by whom, and how fast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Tells candidates apart; no two processes may have the same, not even one after the other.
    pub identity: String,
    /// A candidate that is certain to have ended: its Lease is taken over without waiting.
    pub predecessor: Option<String>,
    /// How long others wait after the last sign of life of the leader. Whole seconds.
    pub lease_duration: Duration,
    /// How long the leader goes on after its last confirmed sign of life. The rest of `lease_duration` is for its
    /// work to stop.
    pub renew_deadline: Duration,
    /// How often the leader gives a sign of life, and others look, if no watch tells them to.
    pub retry_period: Duration,
}

impl Options {
    /// The usual times: 15 s, 10 s, 2 s.
    pub fn new(namespace: &str, name: &str, identity: &str) -> Options {
        Options {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            predecessor: None,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    fn check(&self) -> Result<(), BadOptions> {
        let Options { identity, lease_duration, renew_deadline, retry_period, .. } = self;
        if identity.is_empty() {
            return Err(BadOptions::NoIdentity);
        }
        if lease_duration.is_zero() || lease_duration.subsec_nanos() != 0 {
            return Err(BadOptions::NotWholeSeconds(*lease_duration));
        }
        if i32::try_from(lease_duration.as_secs()).is_err() || renew_deadline >= lease_duration {
            return Err(BadOptions::Deadline(*renew_deadline, *lease_duration));
        }
        if retry_period.is_zero() || *retry_period * 2 > *renew_deadline {
            return Err(BadOptions::Retry(*retry_period, *renew_deadline));
        }
        Ok(())
    }
}

/// Why options cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOptions {
    #[error("a candidate needs an identity")]
    NoIdentity,
    #[error("the duration of the Lease is {0:?}; it has to be at least one second, in whole seconds")]
    NotWholeSeconds(Duration),
    #[error("the renew deadline {0:?} has to be shorter than the duration of the Lease, {1:?}")]
    Deadline(Duration, Duration),
    #[error("the retry period {0:?} has to be at most half of the renew deadline, {1:?}, and not zero")]
    Retry(Duration, Duration),
}

/// Whether this candidate leads; cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    /// Until when, unless it is renewed.
    until: watch::Receiver<Option<Instant>>,
    term: Arc<AtomicU64>,
}

impl Handle {
    /// Whether it leads at this very moment. Right even if the process stood still until now.
    pub fn is_leading(&self) -> bool {
        self.until.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// The term in which it leads, or led last: greater than that of every leader before, as long as nobody deletes the
    /// Lease. 0: it never led.
    pub fn term(&self) -> u64 {
        self.term.load(Ordering::Acquire)
    }

    /// Waits until it leads. For ever if the elector has ended.
    pub async fn leading(&mut self) {
        if self.until.wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until it does not lead, or can no longer be sure to.
    pub async fn lost(&mut self) {
        // An elector that has ended does not lead.
        let _ = self.until.wait_for(Option::is_none).await;
    }
}

/// A candidate. Does nothing until it is run.
#[derive(Debug)]
pub struct Elector {
    api: Api<Lease>,
    options: Options,
    until: watch::Sender<Option<Instant>>,
    term: Arc<AtomicU64>,
    /// The Lease has changed: whoever stands by looks at once.
    changed: Arc<Notify>,
}

/// Tells only that something happened to the Lease. What it says is read, when it matters.
struct Changes(Arc<Notify>);

impl Sink<Lease> for Changes {
    type Item = ();

    fn read(&self, _: Lease) {}

    fn listed(&self, _: Vec<()>, _: u64) {
        self.0.notify_one();
    }

    fn applied(&self, (): (), _: u64) {
        self.0.notify_one();
    }

    fn deleted(&self, _: &ObjectMeta, _: u64) {
        self.0.notify_one();
    }

    fn bookmark(&self, _: u64) {}
}

impl Elector {
    pub fn new(client: Client, options: Options) -> Result<(Elector, Handle), BadOptions> {
        options.check()?;
        let api = Api::namespaced(client, &options.namespace);
        let (sender, receiver) = watch::channel(None);
        let term = Arc::<AtomicU64>::default();
        let handle = Handle { until: receiver, term: term.clone() };
        Ok((Elector { api, options, until: sender, term, changed: Arc::default() }, handle))
    }

    /// Stands for election, and for re-election, until the shutdown; then releases the Lease if it is held. What was
    /// done as leader has to be over by then.
    pub async fn run(self, shutdown: CancellationToken) {
        let only_this = watcher::Config::default().fields(&format!("metadata.name={}", self.options.name));
        let mut watching = JoinSet::new();
        let changes = Changes(self.changed.clone());
        let (client, namespace) = (self.api.clone().into_client(), self.options.namespace.clone());
        let stop = shutdown.clone();
        watching
            .spawn(async move { follow_in::<Lease, _>(client, &namespace, only_this, changes, stop).await });
        let mut machine = Machine::new(self.options.clone(), Instant::now());
        loop {
            let action = machine.next(Instant::now());
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                () = at(machine.leads_until()) => {
                    tracing::warn!(lease = self.options.name, "may no longer lead: the Lease was not renewed in time");
                    machine.expired(Instant::now());
                }
                () = self.act(action, &mut machine) => {}
            }
            if let Some(term) = machine.term() {
                self.term.store(term, Ordering::Release);
            }
            self.publish(machine.leads_until());
        }
        self.publish(None);
        if let Some(lease) = machine.release(Timestamp::now()) {
            self.release(lease).await;
        }
    }

    fn publish(&self, until: Option<Instant>) {
        let before = self.until.send_replace(until);
        if before.is_some() != until.is_some() {
            let Options { name, identity, .. } = &self.options;
            let now = if until.is_some() { "leads" } else { "does not lead" };
            tracing::info!(lease = name, identity, "{now}");
        }
    }

    async fn act(&self, action: Action, machine: &mut Machine) {
        let (sent, name) = (Instant::now(), self.options.name.as_str());
        let parameters = PostParams::default();
        let answer = match action {
            Action::Rest(until) => {
                tokio::select! {
                    () = tokio::time::sleep_until(until) => {}
                    () = self.changed.notified(), if machine.waits_for_others() => machine.look(Instant::now()),
                }
                return;
            }
            Action::Read => self.answered(self.api.get_opt(name)).await.map(Answer::Read),
            Action::Create => {
                let lease = machine.claim(Timestamp::now());
                self.answered(self.api.create(&parameters, &lease)).await.map(Answer::Written)
            }
            Action::Write => {
                let lease = machine.claim(Timestamp::now());
                self.answered(self.api.replace(name, &parameters, &lease)).await.map(Answer::Written)
            }
        };
        machine.learn(answer.unwrap_or(Answer::Failed), sent, Instant::now());
    }

    /// What the server answers, unless it takes too long or fails.
    async fn answered<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Option<T> {
        let lease = self.options.name.as_str();
        match tokio::time::timeout(self.options.patience(), request).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => tracing::debug!(lease, "a request for the Lease failed: {error}"),
            Err(_) => tracing::debug!(lease, "a request for the Lease was not answered in time"),
        }
        None
    }

    async fn release(&self, mut lease: Lease) {
        let (name, parameters) = (self.options.name.as_str(), PostParams::default());
        for _ in 0..RELEASE_TRIES {
            if self.answered(self.api.replace(name, &parameters, &lease)).await.is_some() {
                return;
            }
            // It may have been released all the same, or have changed.
            match self.answered(self.api.get_opt(name)).await {
                Some(Some(held)) if machine::holder(&held) == self.options.identity => {
                    lease.metadata = held.metadata;
                }
                Some(_) => return,
                None => tokio::time::sleep(self.options.retry_period / 4).await,
            }
        }
        tracing::warn!(lease = name, "the Lease was not released; it lapses by itself");
    }
}

impl Options {
    /// How long an answer may take: a leader gets two chances before its deadline.
    fn patience(&self) -> Duration {
        self.renew_deadline / 2
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Runs `work` whenever this candidate leads, until the shutdown. The token of the work is cancelled on the shutdown,
/// and as soon as another could come to lead; the work has to stop then, within `lease_duration` minus
/// `renew_deadline`. Afterwards the Lease is released, so that another leads at once.
///
/// Work that returns by itself ends it all. Dropping the future drops the work, and lets the Lease lapse.
pub async fn lead<W, F>(
    client: Client,
    options: Options,
    shutdown: CancellationToken,
    mut work: W,
) -> Result<(), BadOptions>
where
    W: FnMut(CancellationToken) -> F,
    F: Future<Output = ()>,
{
    lead_in_terms(client, options, shutdown, |token, _| work(token)).await
}

/// The same for work that needs to know in which term it leads, and whether it still does.
pub async fn lead_in_terms<W, F>(
    client: Client,
    options: Options,
    shutdown: CancellationToken,
    mut work: W,
) -> Result<(), BadOptions>
where
    W: FnMut(CancellationToken, Handle) -> F,
    F: Future<Output = ()>,
{
    let (elector, mut handle) = Elector::new(client, options)?;
    let stop = CancellationToken::new();
    // A task of its own: work that keeps its thread busy must not keep the Lease from being renewed. Aborted on drop.
    let mut electing = JoinSet::new();
    electing.spawn(elector.run(stop.clone()));
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            () = handle.leading() => {}
        }
        let token = shutdown.child_token();
        let mut working = std::pin::pin!(work(token.clone(), handle.clone()));
        tokio::select! {
            () = &mut working => {}
            () = handle.lost() => {
                token.cancel();
                working.await;
            }
        }
        if shutdown.is_cancelled() || !token.is_cancelled() {
            break;
        }
    }
    stop.cancel();
    electing.join_all().await;
    Ok(())
}
