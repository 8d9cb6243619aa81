//! Writes activity: of sessions to their Leases, of instances without a session to their Pods. In batches, each at most
//! once per interval.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream;

use super::Shared;
use super::activity::{Subject, Use};
use super::index::{SessionId, Source};
use super::writes::Failure;
use crate::identity::InstanceId;
use crate::record::Session;

/// How many writes are under way at a time.
const AT_A_TIME: usize = 16;

impl Shared {
    /// Writes activity for as long as it is polled.
    pub(super) async fn keep_flushing(self: &Arc<Self>) {
        loop {
            let (due, next) = self.activity.take_due(self.clock.now());
            if !due.is_empty() {
                self.flush(due).await;
                continue;
            }
            let timer = async {
                match next {
                    Some(at) => tokio::time::sleep_until(self.clock.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = timer => {}
                () = self.activity.sooner.notified() => {}
            }
        }
    }

    /// Writes all activity there is, once.
    pub(super) async fn flush_all(&self) {
        let (due, _) = self.activity.take_due(std::time::Duration::MAX);
        self.flush(due).await;
    }

    async fn flush(&self, due: Vec<Arc<Use>>) {
        let writes = stream::iter(due).for_each_concurrent(AT_A_TIME, |usage| async move {
            let written = self.write_activity(&usage).await;
            match written {
                Ok(()) => self.activity.done(usage),
                Err(failure) => {
                    tracing::debug!("writing activity: {failure}");
                    self.activity.failed(usage, !matches!(failure, Failure::Conflict));
                }
            }
        });
        writes.await;
    }

    async fn write_activity(&self, usage: &Use) -> Result<(), Failure> {
        if !usage.is_active() {
            return Ok(());
        }
        let active = usage.last_active(self.clock.now());
        let written = match &usage.subject {
            Subject::Session(id) => self.renew_session(id, usage, active).await,
            Subject::Instance(id) => self.renew_instance(id, active).await,
        };
        match written {
            // What is gone is not active.
            Ok(()) | Err(Failure::Gone) => {
                usage.wrote(active);
                self.counts.flushed();
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    async fn renew_session(
        &self,
        id: &SessionId,
        usage: &Use,
        active: std::time::Duration,
    ) -> Result<(), Failure> {
        // What is not bound is its binder's to renew: whoever wants to take over waits for its silence.
        let is_bound = |session: &Session| {
            let holder = session.holder.as_ref().and_then(|holder| self.index.instance(&holder.uid));
            holder.is_some_and(|instance| instance.is_bound_to(session))
        };
        let session = self.index.session_of_use(id, usage);
        let session = session.filter(|session| !session.ending && is_bound(session));
        let session = session.ok_or(Failure::Gone)?;
        let sent = self.clock.now();
        match self.writes.renew(&session, self.clock.time_of_day(active)).await {
            Ok(lease) => {
                self.learn_lease(lease, Source::Write(sent));
                Ok(())
            }
            Err(Failure::Conflict) => {
                if let Some(lease) = self.writes.read_lease(&id.namespace, &id.hash).await? {
                    self.learn_lease(lease, Source::Read);
                }
                Err(Failure::Conflict)
            }
            Err(failure) => Err(failure),
        }
    }

    async fn renew_instance(&self, id: &InstanceId, active: std::time::Duration) -> Result<(), Failure> {
        let instance = self.index.instance(&id.uid).ok_or(Failure::Gone)?;
        match self.writes.mark_active(&instance, self.clock.time_of_day(active)).await {
            Ok(body) => {
                self.learn_instance(body, Source::Write(self.clock.now()));
                Ok(())
            }
            Err(Failure::Conflict) => {
                if let Some(body) = self.writes.read_instance(id.kind, &instance.namespace, &id.name).await? {
                    self.learn_instance(body, Source::Read);
                }
                Err(Failure::Conflict)
            }
            Err(failure) => Err(failure),
        }
    }
}
