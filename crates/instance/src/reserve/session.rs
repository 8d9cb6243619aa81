//! Requests of sessions: from memory where the session is bound, else through a binding, for as long as the Task allows.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::activity::{Claim, InUse};
use super::bind::Why;
use super::binder;
use super::bindings::{Binding, Joined, Outcome, outcome};
use super::counts::OfTask;
use super::index::SessionId;
use super::tasks::TaskView;
use super::waiting::PoolKey;
use crate::identity::{InstanceId, SessionKey};
use crate::provider::{Path, Request, ReserveError, Reserved, Which};

/// How long a request waits for the first revision of its Task, at most.
const UNPREPARED: Duration = Duration::from_secs(2);

impl Shared {
    /// An instance for a request, counted.
    pub(super) async fn reserve(self: &Arc<Self>, request: Request) -> Result<Reserved, ReserveError> {
        let begun = self.clock.now();
        let mut of_task = None;
        let reserved = self.find(request, &mut of_task).await;
        let path = reserved.as_ref().ok().map(|reserved| reserved.path);
        if let Some(path) = path {
            self.counts.served(path);
        }
        if let Some(of_task) = of_task {
            of_task.took(path, self.clock.now() - begun);
        }
        reserved
    }

    /// What [`Shared::reserve`] finds in memory, without a future to be made and moved: most requests are of a session
    /// that has its instance.
    pub(super) fn at_hand(&self, request: &Request) -> Option<Reserved> {
        let begun = self.clock.now();
        let key = request.key.as_ref().filter(|_| request.which == Which::OrNew && self.is_known())?;
        let view = self.tasks.get(&request.task)?;
        if !view.by_session || !self.contact.knows_already(view.kind) {
            return None;
        }
        let reserved = self.lookup(&view, &SessionId::of(&view.id, key), key, Path::Reused)?;
        self.counts.served(Path::Reused);
        if let Some(of_task) = &view.counts {
            of_task.took(Some(Path::Reused), self.clock.now() - begun);
        }
        Some(reserved)
    }

    /// Tells whose counts it is for as soon as it knows.
    async fn find(
        self: &Arc<Self>,
        request: Request,
        of_task: &mut Option<Arc<OfTask>>,
    ) -> Result<Reserved, ReserveError> {
        if self.stopping.is_cancelled() {
            return Err(ReserveError::ShuttingDown);
        }
        // Before everything was read once, nobody can tell what exists.
        tokio::select! {
            () = self.known() => {}
            () = self.stopping.cancelled() => return Err(ReserveError::ShuttingDown),
        }
        let view = self.tasks.get(&request.task).ok_or(ReserveError::NoSuchTask)?;
        of_task.clone_from(&view.counts);
        self.know(&view).await?;
        if !self.contact.is_good_for(view.kind) {
            return Err(ReserveError::OutOfTouch);
        }
        match &request.key {
            Some(key) if view.by_session => self.reserve_session(view, key, &request).await,
            // An instance that no session has may be given to one by any router, at any time.
            None if view.by_session => {
                Err(ReserveError::NotReady("the request has no session key, and this Task needs one".into()))
            }
            _ if view.spec.is_none() => {
                let view = self.prepared(&view).await?;
                self.reserve_oneshot(&view, &request).await
            }
            _ => self.reserve_oneshot(&view, &request).await,
        }
    }

    /// Waits until the instances of the Task are known. Sandboxes are followed from the first Task on that needs them.
    async fn know(&self, view: &TaskView) -> Result<(), ReserveError> {
        tokio::select! {
            () = self.contact.knows(view.kind) => Ok(()),
            () = tokio::time::sleep(view.reserve_timeout) => {
                Err(ReserveError::NotReady("its Sandboxes cannot be listed: see the log of the router".into()))
            }
            () = self.stopping.cancelled() => Err(ReserveError::ShuttingDown),
        }
    }

    /// The Task with its current revision. A client may have been told that the Task is ready a moment before this router
    /// hears of it, so the revision is waited for a little.
    async fn prepared(&self, view: &TaskView) -> Result<Arc<TaskView>, ReserveError> {
        let late = tokio::time::sleep(UNPREPARED.min(view.reserve_timeout));
        tokio::pin!(late);
        loop {
            let changed = self.tasks.prepared.notified();
            let view = self.tasks.get(&view.id).ok_or(ReserveError::NoSuchTask)?;
            if view.spec.is_some() {
                return Ok(view);
            }
            tokio::select! {
                () = changed => {}
                () = &mut late => return Err(not_ready(&view)),
                () = self.stopping.cancelled() => return Err(ReserveError::ShuttingDown),
            }
        }
    }

    /// The session's instance, if it is bound.
    pub(super) fn lookup(
        &self,
        view: &TaskView,
        id: &SessionId,
        key: &SessionKey,
        path: Path,
    ) -> Option<Reserved> {
        if !self.contact.is_good_for(view.kind) || self.stopping.is_cancelled() {
            return None;
        }
        let hit = self.index.lookup(&view.id, id, None, view.interval(&self.timing), &self.clock)?;
        hit.usage.came_by(path);
        let in_use = self.activity.guard(hit.usage, Claim::Session(hit.lease));
        self.reserved(view, &hit.instance, Some(key), path, in_use)
    }

    /// Whether the session that is used may be meant.
    fn fits(&self, which: &Which, id: &SessionId, in_use: &InUse) -> bool {
        let used = in_use.usage().and_then(|usage| self.index.session_of_use(id, usage));
        used.is_some_and(|session| which.fits(&session))
    }

    /// A hold for a request that is at this instance already.
    pub(super) fn take_over(
        &self,
        view: &TaskView,
        key: Option<&SessionKey>,
        instance: &InstanceId,
    ) -> Option<InUse> {
        if !self.contact.is_good_for(view.kind) || self.stopping.is_cancelled() {
            return None;
        }
        let interval = view.interval(&self.timing);
        match key {
            Some(key) if view.by_session => {
                let id = SessionId::of(&view.id, key);
                let hit = self.index.lookup(&view.id, &id, Some(instance), interval, &self.clock)?;
                Some(self.activity.guard(hit.usage, Claim::Session(hit.lease)))
            }
            _ if view.by_session => None,
            _ => {
                let pool = self.pools.get(&PoolKey::of(&view.id))?;
                let grant = pool.occupy(&instance.uid)?;
                let usage = pool.usage(&grant.instance, interval);
                usage.begin();
                Some(self.activity.guard(usage, Claim::Room(grant)))
            }
        }
    }

    async fn reserve_session(
        self: &Arc<Self>,
        mut view: Arc<TaskView>,
        key: &SessionKey,
        request: &Request,
    ) -> Result<Reserved, ReserveError> {
        let id = SessionId::of(&view.id, key);
        let begun = self.clock.now();
        let deadline = self.clock.instant(begun + view.reserve_timeout);
        let mut path = Path::Reused;
        let mut reason = "it was not tried".to_owned();
        let mut waiting = None;
        loop {
            if let Some(reserved) = self.lookup(&view, &id, key, path) {
                let fits = request.which == Which::OrNew || self.fits(&request.which, &id, &reserved.in_use);
                return if fits { Ok(reserved) } else { Err(ReserveError::NoSuchSession) };
            }
            if waiting.is_none() {
                waiting = view.counts.as_ref().map(|counts| counts.wait());
            }
            if view.spec.is_none() {
                view = self.prepared(&view).await?;
            }
            if !self.contact.is_good_for(view.kind) {
                return Err(ReserveError::OutOfTouch);
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(ReserveError::Timeout { waited: self.clock.now() - begun, reason });
            }
            let new = || {
                let (task, tenant) = (view.id.clone(), request.tenant.clone());
                let which = request.which.clone();
                Binding::new(id.clone(), task, key.clone(), tenant, which, self.stopping.child_token())
            };
            let subscription = match self.bindings.join(new, &id) {
                Joined::First(subscription) => {
                    tokio::spawn(binder::run(self.clone(), subscription.binding.clone()));
                    subscription
                }
                Joined::Waiting(subscription) => subscription,
                Joined::Stopping(done) => {
                    tokio::select! {
                        _ = outcome(done) => {}
                        () = tokio::time::sleep_until(deadline) => {}
                    }
                    if self.stopping.is_cancelled() {
                        return Err(ReserveError::ShuttingDown);
                    }
                    continue;
                }
                Joined::TooMany => return Err(ReserveError::TooManyWaiting),
            };
            tokio::select! {
                outcome = subscription.outcome() => match outcome {
                    Outcome::Bound(by) => path = by,
                    // It was for somebody who wanted less.
                    Outcome::Failed(ReserveError::NoSuchSession)
                        if subscription.binding.which != request.which => {}
                    Outcome::Failed(error) => return Err(error),
                    Outcome::Abandoned if self.stopping.is_cancelled() => {
                        return Err(ReserveError::ShuttingDown);
                    }
                    Outcome::Abandoned => {}
                },
                () = tokio::time::sleep_until(deadline) => reason = self.why(&subscription.binding),
            }
        }
    }

    /// Why a binding is not done, for people.
    fn why(&self, binding: &Binding) -> String {
        let (why, trouble) = binding.state.lock().clone();
        let pool = || self.pools.get(&PoolKey::of(&binding.task)).map(|pool| pool.why());
        let why = match why {
            None | Some(Why::Instance) => pool().unwrap_or_default(),
            Some(Why::Binder) => "another router was about to bind the session".into(),
            Some(Why::Ending) => "the session of this key was ending".into(),
            Some(Why::OldInstance) => "the session's old instance had not ended".into(),
            Some(Why::Waking) => "the session's instance was paused and has not woken".into(),
            Some(Why::Address) => "the session's instance had no address".into(),
            Some(Why::Spoilt) => {
                format!("the Lease {} cannot be read; delete it", binding.id.hash.lease_name())
            }
        };
        match trouble {
            Some(trouble) => format!("{why}; last: {trouble}"),
            None => why,
        }
    }
}

fn not_ready(view: &TaskView) -> ReserveError {
    let reason = view.trouble.clone().unwrap_or_else(|| "its first revision is not prepared yet".into());
    ReserveError::NotReady(reason)
}
