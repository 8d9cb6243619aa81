//! Requests without a session: each gets room on an instance of its own choice, in memory, and gives it back when it
//! ends. Where an instance serves one request and ends, that is also written down, so that no other router sends a
//! second one there.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::Shared;
use super::activity::Claim;
use super::index::Source;
use super::tasks::TaskView;
use super::waiting::{Grant, PoolKey, TaskPool};
use super::writes::Failure;
use crate::provider::{Path, Request, ReserveError, Reserved};

/// How long to rest when the API server takes no writes.
const REFUSED: Duration = Duration::from_millis(250);

impl Shared {
    /// Room on an instance, for one request.
    pub(super) async fn reserve_oneshot(
        &self,
        view: &Arc<TaskView>,
        request: &Request,
    ) -> Result<Reserved, ReserveError> {
        let pool = self.pools.get(&PoolKey::of(&view.id)).ok_or(ReserveError::NoSuchTask)?;
        let begun = self.clock.now();
        let deadline = self.clock.instant(begun + view.reserve_timeout);
        let mut waited = false;
        let waiting = self.wait_for_room(&pool, view, request.tenant.as_deref(), &mut waited);
        let grant = tokio::select! {
            grant = waiting => grant?,
            () = tokio::time::sleep_until(deadline) => {
                let waited = self.clock.now() - begun;
                return Err(ReserveError::Timeout { waited, reason: pool.why() });
            }
            () = self.stopping.cancelled() => return Err(ReserveError::ShuttingDown),
        };
        let path = if waited { Path::Waited } else { Path::Reused };
        self.use_room(view, pool, grant, path).ok_or(ReserveError::OutOfTouch)
    }

    async fn wait_for_room(
        &self,
        pool: &Arc<TaskPool>,
        view: &TaskView,
        tenant: Option<&str>,
        waited: &mut bool,
    ) -> Result<Grant, ReserveError> {
        let mut ticket = pool.ask(tenant).map_err(|_| ReserveError::TooManyWaiting)?;
        loop {
            let mut grant = match ticket.given() {
                Some(grant) => grant,
                None => {
                    *waited = true;
                    let _waiting = view.counts.as_ref().map(|counts| counts.wait());
                    ticket.wait().await
                }
            };
            if !view.once || self.spend(&mut grant).await {
                return Ok(grant);
            }
            *waited = true;
            drop(grant);
            ticket = ticket.again(tenant);
        }
    }

    /// Writes down that an instance has got its one request. Whether it was ours to write.
    async fn spend(&self, grant: &mut Grant) -> bool {
        // Whatever comes of it, this router does not try it again.
        grant.used = true;
        let Some(instance) = self.index.instance(&grant.instance.id.uid) else { return false };
        if instance.last_active.is_some() || instance.releasing {
            grant.used = instance.last_active.is_some();
            return false;
        }
        match self.writes.mark_active(&instance, Timestamp::now()).await {
            Ok(body) => {
                self.learn_instance(body, Source::Write(self.clock.now()));
                true
            }
            Err(Failure::Refused(why)) => {
                tracing::debug!("taking an instance for one request: {why}");
                grant.used = false;
                tokio::time::sleep(REFUSED).await;
                false
            }
            Err(Failure::Conflict | Failure::Unclear(_)) => {
                // Changed, and maybe not by being used: look, and let it be given anew.
                let body =
                    self.writes.read_instance(instance.id.kind, &instance.namespace, &instance.id.name).await;
                match body {
                    Ok(Some(body)) => {
                        self.learn_instance(body, Source::Read);
                        grant.used = false;
                    }
                    Ok(None) => {}
                    Err(failure) => {
                        // If it was written, the watch brings it: what was active once is not given again.
                        tracing::debug!("taking an instance for one request: {failure}");
                        grant.used = false;
                        tokio::time::sleep(REFUSED).await;
                    }
                }
                false
            }
            Err(Failure::Gone) => false,
        }
    }

    fn use_room(
        &self,
        view: &Arc<TaskView>,
        pool: Arc<TaskPool>,
        mut grant: Grant,
        path: Path,
    ) -> Option<Reserved> {
        grant.used = true;
        let instance = grant.instance.clone();
        let usage = pool.usage(&instance, view.interval(&self.timing));
        usage.begin();
        let in_use = self.activity.guard(usage, Claim::Room(grant));
        // After the guard, which ends with the contact: whoever lost it before that is not served.
        if !self.contact.is_good_for(view.kind) {
            return None;
        }
        self.reserved(view, &instance, None, path, in_use)
    }
}
