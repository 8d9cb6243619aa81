//! Binds one key: carries out what [`bind::decide`] says, and asks again with what it has learnt, until the session is
//! bound or nobody waits for it any more. Every wait is for an event, with a limit.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use super::Shared;
use super::bind::{self, Candidate, HolderView, LeaseView, Situation, Step, Why};
use super::bindings::{Binding, Outcome};
use super::index::{Entry, Kept, Source};
use super::tasks::TaskView;
use super::waiting::{Grant, PoolKey, Ticket};
use super::writes::{Deleted, Failure};
use crate::bearer::Body;
use crate::identity::InstanceId;
use crate::provider::{Path, ReserveError, Which};
use crate::record::{Hold, Instance, Life, Session};

const FIRST_REST: Duration = Duration::from_millis(20);
const LONGEST_REST: Duration = Duration::from_secs(2);
/// How many more steps a binding may take to finish what it began after the last request went away.
const LAST_STEPS: u32 = 12;

/// One run of a binding.
pub(super) struct Binder {
    shared: Arc<Shared>,
    binding: Arc<Binding>,
    /// Waits for an instance, which may be started for it. Only the binder of a Lease without an instance has one: so
    /// a key that is asked for through three routers starts one instance.
    ticket: Option<Ticket>,
    /// There was no free instance when last asked for.
    none_free: bool,
    grant: Option<Grant>,
    /// What memory says of the Lease may be wrong.
    unsure: bool,
    /// The holder was read from the server then, and whether it was there.
    looked: Option<(Arc<str>, Duration, bool)>,
    took: bool,
    waited: bool,
    wrote: bool,
    lost: bool,
    rests: u32,
}

/// Goes on, or is over.
enum Next {
    Again,
    Over(Outcome),
}

/// What is known, held together for the time of one decision.
struct Knowledge {
    entry: Option<Entry>,
    holder: Option<Arc<Instance>>,
}

impl Knowledge {
    fn session(&self) -> Option<&Session> {
        match &self.entry.as_ref()?.kept {
            Kept::Session(session) => Some(session),
            Kept::Spoilt { .. } => None,
        }
    }
}

/// The Lease is mine and names no instance.
fn is_waiting(known: &Knowledge, me: &str) -> bool {
    known.session().is_some_and(|session| session.holder.is_none() && *session.binder == *me)
}

/// Ends a binding whatever becomes of its task.
struct Finish {
    shared: Arc<Shared>,
    binding: Arc<Binding>,
    outcome: Outcome,
}

impl Drop for Finish {
    fn drop(&mut self) {
        self.shared.index.end_binding(&self.binding.id);
        self.shared.bindings.finish(&self.binding, self.outcome.clone());
    }
}

/// Runs a binding to its end.
pub(super) async fn run(shared: Arc<Shared>, binding: Arc<Binding>) {
    shared.index.begin_binding(&binding.id);
    let mut finish = Finish { shared: shared.clone(), binding: binding.clone(), outcome: Outcome::Abandoned };
    // Whoever wants no new session is not told that there is none before the server has said so.
    let unsure = binding.which != Which::OrNew;
    let mut binder = Binder {
        shared,
        binding,
        ticket: None,
        none_free: false,
        grant: None,
        unsure,
        looked: None,
        took: false,
        waited: false,
        wrote: false,
        lost: false,
        rests: 0,
    };
    finish.outcome = binder.run().await;
}

impl Binder {
    async fn run(&mut self) -> Outcome {
        let mut last_steps = LAST_STEPS;
        loop {
            let Some(view) = self.shared.tasks.get(&self.binding.task) else {
                return Outcome::Failed(ReserveError::NoSuchTask);
            };
            let known = self.known();
            self.refresh_candidate();
            let step = self.decide(&known);
            if !self.unsure && bind::is_missing(&self.binding.which, known.session(), &step) {
                return Outcome::Failed(ReserveError::NoSuchSession);
            }
            if self.binding.cancel.is_cancelled() {
                last_steps = last_steps.saturating_sub(1);
                if last_steps == 0 || !self.finishes(&known, &step) {
                    self.clean_up(&known).await;
                    return Outcome::Abandoned;
                }
            }
            if let Next::Over(outcome) = self.carry_out(&view, known, step).await {
                return outcome;
            }
        }
    }

    fn known(&self) -> Knowledge {
        let entry = self.shared.index.session(&self.binding.id);
        let mut known = Knowledge { entry, holder: None };
        let holder = known.session().and_then(|session| session.holder.clone());
        // Before looking, so that no change falls between.
        self.shared.bindings.rest_on(&self.binding.id, holder.as_ref().map(|holder| &holder.uid));
        let of_task = |instance: &Arc<Instance>| {
            instance.task_uid == self.binding.task.uid && instance.namespace == self.binding.task.namespace
        };
        known.holder = holder.and_then(|holder| self.shared.index.instance(&holder.uid)).filter(of_task);
        known
    }

    /// An instance that was set aside and has changed since is of no use any more.
    fn refresh_candidate(&mut self) {
        if self.grant.is_none() {
            self.grant = self.ticket.as_mut().and_then(Ticket::given);
        }
        let Some(grant) = &mut self.grant else { return };
        match self.shared.index.instance(&grant.instance.id.uid) {
            Some(now) if now.life == Life::Ready && now.hold == Hold::Free && !now.releasing => {
                grant.instance = now;
            }
            // Taken, by us. Who went on waiting would have another one started.
            Some(now) if matches!(&now.hold, Hold::Held { key, .. } if *key == self.binding.key) => {
                (self.grant, self.ticket) = (None, None);
            }
            _ => {
                self.grant = None;
                // Whoever waited for it has the old place back.
                let tenant = self.binding.tenant.as_deref();
                self.ticket = self.ticket.take().map(|ticket| ticket.again(tenant));
            }
        }
    }

    fn decide(&self, known: &Knowledge) -> Step {
        let now = self.shared.clock.now();
        let timing = &self.shared.timing;
        let lease = match &known.entry {
            _ if self.unsure => LeaseView::Unknown,
            None => LeaseView::Absent,
            Some(entry) => match &entry.kept {
                Kept::Session(session) => LeaseView::Seen { session, since: entry.since },
                Kept::Spoilt { .. } => LeaseView::Spoilt,
            },
        };
        let since = known.entry.as_ref().map_or(Duration::ZERO, |entry| entry.since);
        let looked = self
            .looked
            .as_ref()
            .filter(|(_, at, _)| *at >= since && now.saturating_sub(*at) < timing.prompt());
        let wanted = known.session().and_then(|session| session.holder.as_ref());
        let looked = looked.filter(|(uid, _, _)| wanted.is_some_and(|wanted| wanted.uid == *uid));
        let holder = match (&known.holder, looked) {
            (Some(instance), looked) => HolderView::Seen { instance, fresh: looked.is_some() },
            (None, Some((_, _, false))) => HolderView::Gone,
            (None, _) => HolderView::Unknown,
        };
        let candidate = match (&self.grant, &self.ticket) {
            (Some(grant), _) => Candidate::Given(&grant.instance),
            (None, Some(_)) => Candidate::Awaited,
            (None, None) if self.none_free && !is_waiting(known, &self.shared.binder) => Candidate::Awaited,
            (None, None) => Candidate::Unasked,
        };
        let sent = known.entry.as_ref().and_then(|entry| entry.sent);
        let me = &self.shared.binder;
        bind::decide(&Situation { me, now, timing, lease, holder, candidate, sent, took: self.took })
    }

    /// Whether a step only brings to an end what cannot be taken back: the Lease names an instance already.
    fn finishes(&self, known: &Knowledge, step: &Step) -> bool {
        let mine = known.session().is_some_and(|session| *session.binder == *self.shared.binder);
        let pointed = known.session().is_some_and(|session| session.holder.is_some());
        match step {
            Step::ReadLease => self.wrote,
            Step::ReadHolder | Step::TakeInstance | Step::Confirm => mine && pointed,
            _ => false,
        }
    }

    async fn carry_out(&mut self, view: &TaskView, known: Knowledge, step: Step) -> Next {
        tracing::trace!(task = %view.id, ?step, "next step of a binding");
        let shared = self.shared.clone();
        let writes = &shared.writes;
        let sent = shared.clock.now();
        let session = known.session();
        let written = match (step, session) {
            (Step::Serve, _) => return Next::Over(Outcome::Bound(self.path())),
            (Step::Ask, _) => return self.ask(&known),
            (Step::ReadLease, _) => return self.read_lease(&known).await,
            (Step::Wait { until, why }, _) => return self.wait(until, why).await,
            (Step::ReadHolder, Some(session)) => return self.read_holder(session).await,
            (Step::TakeInstance, Some(session)) => return self.take_instance(&known, session).await,
            (Step::KeepInstance, Some(session)) => return self.keep_instance(&known, session).await,
            (Step::Wake, Some(session)) => return self.wake(&known, session).await,
            (Step::DeleteInstance, Some(_)) => return self.delete_instance(&known).await,
            (Step::Create { holder }, _) => {
                self.wrote = true;
                writes.create_session(view, &self.binding.key, holder.as_ref()).await
            }
            (Step::Point { holder, lost }, Some(session)) => {
                self.note_lost(lost, session);
                writes.point(session, Some(&holder)).await
            }
            (Step::Claim { lost }, Some(session)) => {
                self.note_lost(lost, session);
                writes.point(session, None).await
            }
            (Step::TakeOver, Some(session)) => {
                tracing::info!(task = %view.id, binder = %session.binder, "finishing a binding that was left half made");
                writes.take_over(session).await
            }
            (Step::Resume, Some(session)) => writes.resume(session).await,
            (Step::Confirm, Some(session)) => writes.renew(session, Timestamp::now()).await,
            // The steps that remain are about a session that there is.
            (_, None) => Err(Failure::Conflict),
        };
        self.lease_written(written, sent).await
    }

    /// What a write to the Lease came to.
    async fn lease_written(&mut self, written: Result<Lease, Failure>, sent: Duration) -> Next {
        match written {
            Ok(lease) => {
                (self.took, self.wrote, self.none_free, self.rests) = (false, true, false, 0);
                self.shared.learn_lease(lease, Source::Write(sent));
            }
            Err(Failure::Conflict | Failure::Gone) => {
                self.unsure = true;
                self.rest_if_again().await;
            }
            Err(failure @ (Failure::Refused(_) | Failure::Unclear(_))) => {
                self.unsure = true;
                self.shared.index.doubt(&self.binding.id);
                self.trouble(&failure).await;
            }
        }
        Next::Again
    }

    fn ask(&mut self, known: &Knowledge) -> Next {
        let Some(pool) = self.shared.pools.get(&PoolKey::of(&self.binding.task)) else {
            return Next::Over(Outcome::Failed(ReserveError::NoSuchTask));
        };
        let tenant = self.binding.tenant.as_deref();
        let asked = match is_waiting(known, &self.shared.binder) {
            true => pool.ask(tenant).map(|mut ticket| {
                self.grant = ticket.given();
                self.ticket = Some(ticket);
            }),
            false => pool.take_free(tenant).map(|grant| self.grant = grant),
        };
        if asked.is_err() {
            return Next::Over(Outcome::Failed(ReserveError::TooManyWaiting));
        }
        self.none_free = self.grant.is_none();
        self.waited |= self.none_free;
        Next::Again
    }

    async fn read_lease(&mut self, known: &Knowledge) -> Next {
        let id = &self.binding.id;
        match self.shared.writes.read_lease(&id.namespace, &id.hash).await {
            Ok(Some(lease)) => {
                self.shared.learn_lease(lease, Source::Read);
                if self.shared.index.session(id).is_none() {
                    let name = id.hash.lease_name();
                    let spoilt = format!("the Lease {name} cannot be read; delete it if it is of no use");
                    self.trouble(&Failure::Refused(spoilt)).await;
                    return Next::Again;
                }
                self.unsure = false;
            }
            Ok(None) => {
                // What was known before the read is gone; what came since is not.
                if let Some(entry) = &known.entry {
                    self.shared.lease_gone(id, &entry.kept);
                }
                self.unsure = false;
            }
            Err(failure) => self.trouble(&failure).await,
        }
        Next::Again
    }

    async fn read_holder(&mut self, session: &Session) -> Next {
        let Some(holder) = session.holder.clone() else { return Next::Again };
        let at = self.shared.clock.now();
        match self.look_at(&session.namespace, &holder).await {
            Ok(true) if self.known().holder.is_none() => {
                let name = &holder.name;
                let kind = holder.kind.as_str();
                let odd = format!("the {kind} {name}, which the session has, is not labelled as the Task's");
                self.trouble(&Failure::Refused(odd)).await;
            }
            Ok(there) => self.looked = Some((holder.uid, at, there)),
            Err(failure) => self.trouble(&failure).await,
        }
        Next::Again
    }

    /// Reads an instance from the server; whether it is there.
    async fn look_at(&self, namespace: &str, id: &InstanceId) -> Result<bool, Failure> {
        let held = self.shared.index.instance(&id.uid);
        let body = self.shared.writes.read_instance(id.kind, namespace, &id.name).await?;
        let there = body.as_ref().is_some_and(|body| body.meta().uid.as_deref() == Some(&*id.uid));
        if let Some(body) = body {
            self.shared.learn_instance(body, Source::Read);
        }
        if let Some(held) = held.filter(|_| !there) {
            self.shared.instance_gone(&held);
        }
        Ok(there)
    }

    async fn take_instance(&mut self, known: &Knowledge, session: &Session) -> Next {
        let Some(instance) = &known.holder else { return Next::Again };
        self.took = true;
        let written = self.shared.writes.take_instance(instance, session).await;
        self.instance_written(written.map(Some), session).await
    }

    async fn wake(&mut self, known: &Knowledge, session: &Session) -> Next {
        let Some(instance) = &known.holder else { return Next::Again };
        self.waited = true;
        let written = self.shared.writes.wake(instance, session.rests.unwrap_or(0)).await;
        self.instance_written(written.map(Some), session).await
    }

    async fn keep_instance(&mut self, known: &Knowledge, session: &Session) -> Next {
        let Some(instance) = &known.holder else { return Next::Again };
        let written = self.shared.writes.keep_instance(instance).await;
        self.instance_written(written.map(Some), session).await
    }

    async fn delete_instance(&mut self, known: &Knowledge) -> Next {
        let (Some(instance), Some(session)) = (&known.holder, known.session()) else { return Next::Again };
        self.note_lost(true, session);
        let deleted = self.shared.writes.delete_instance(instance).await;
        let rest = deleted.map(|deleted| match deleted {
            Deleted::Waits(body) if body.meta().deletion_timestamp.is_some() => Some(body),
            Deleted::Waits(_) | Deleted::Gone => None,
        });
        self.instance_written(rest, session).await
    }

    /// What a write to the holder came to; where that is unclear, or nothing is left of it, the server is asked.
    async fn instance_written(&mut self, written: Result<Option<Body>, Failure>, session: &Session) -> Next {
        match written {
            Ok(Some(body)) => {
                self.rests = 0;
                self.shared.learn_instance(body, Source::Write(self.shared.clock.now()));
                return Next::Again;
            }
            Ok(None) => {}
            Err(Failure::Conflict | Failure::Gone) => self.rest_if_again().await,
            Err(failure) => self.trouble(&failure).await,
        }
        self.read_holder(session).await
    }

    /// Somebody else was faster: the first time goes on at once, but not in a circle.
    async fn rest_if_again(&mut self) {
        self.rests += 1;
        if self.rests > 1 {
            self.rest().await;
        }
    }

    async fn wait(&mut self, until: Option<Duration>, why: Why) -> Next {
        self.waited = true;
        self.binding.state.lock().0 = Some(why);
        let now = self.shared.clock.now();
        let limit = now + self.shared.timing.grace;
        let ticket = match why {
            Why::Instance => self.ticket.as_mut(),
            // Nobody keeps an instance, or a place, while waiting for something else.
            _ => {
                (self.grant, self.ticket, self.none_free) = (None, None, false);
                None
            }
        };
        let given = async {
            match ticket {
                Some(ticket) => ticket.wait().await,
                None => std::future::pending().await,
            }
        };
        let until_then = until.unwrap_or(limit).min(limit);
        tokio::select! {
            () = self.binding.changed.notified() => {}
            () = self.binding.cancel.cancelled() => {}
            grant = given => self.grant = Some(grant),
            () = tokio::time::sleep_until(self.shared.clock.instant(until_then)) => {
                // Nothing was heard for long: the watch may be at fault.
                self.unsure |= until.is_none_or(|until| until > limit);
            }
        }
        Next::Again
    }

    /// Notes a failure and rests, longer each time.
    async fn trouble(&mut self, failure: &Failure) {
        self.binding.state.lock().1 = Some(failure.to_string());
        self.rests += 1;
        if self.rests == 1 {
            tracing::debug!(task = %self.binding.task, "binding a session: {failure}");
        }
        self.rest().await;
    }

    async fn rest(&mut self) {
        let rest = FIRST_REST.saturating_mul(1 << self.rests.min(16)).min(LONGEST_REST);
        // Between half of it and all: routers that collided do not collide again.
        let share = RandomState::new().hash_one(self.rests) % 512 + 512;
        let rest = rest.mul_f64(share as f64 / 1024.0);
        tokio::select! {
            () = tokio::time::sleep(rest) => {}
            () = self.binding.cancel.cancelled() => {}
        }
    }

    fn note_lost(&mut self, lost: bool, session: &Session) {
        if lost && !self.lost {
            self.lost = true;
            let instance = session.holder.as_ref().map(|holder| holder.name.to_string());
            tracing::info!(task = %self.binding.task, instance, "a session lost its instance and gets another");
        }
    }

    fn path(&self) -> Path {
        match (self.lost, self.waited, self.wrote) {
            (true, _, _) => Path::Rebound,
            (_, true, _) => Path::Waited,
            (_, _, true) => Path::Bound,
            (false, false, false) => Path::Reused,
        }
    }

    /// A Lease of ours that names no instance is of no use to anybody.
    async fn clean_up(&mut self, known: &Knowledge) {
        (self.grant, self.ticket) = (None, None);
        let Some(session) = known.session() else { return };
        if *session.binder != *self.shared.binder || session.holder.is_some() || session.ending {
            return;
        }
        for _ in 0..3 {
            match self.shared.writes.delete_session(session).await {
                Ok(_) => {
                    if let Some(entry) = &known.entry {
                        self.shared.lease_gone(&self.binding.id, &entry.kept);
                    }
                    return;
                }
                Err(Failure::Conflict | Failure::Gone) => return,
                Err(failure) => {
                    tracing::debug!(task = %self.binding.task, "removing an unused Lease: {failure}");
                    tokio::time::sleep(FIRST_REST).await;
                }
            }
        }
    }
}
