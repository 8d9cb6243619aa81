//! Answers marks on what is in use, by a conditional write, before the router says that it has seen them: removes a
//! `releasing` mark, and says of a session that ends that requests were cut short. Until that is written nothing ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;

use super::Shared;
use super::index::{Kept, Objection, SessionId, Source};
use super::writes::Failure;
use crate::identity::InstanceId;
use crate::record::Session;

const REST: Duration = Duration::from_millis(250);

/// What is marked.
#[derive(Debug)]
pub(super) enum About {
    Session(Objection<SessionId>),
    Instance(Objection<InstanceId>),
}

impl Shared {
    /// Hands an objection on to be written.
    pub(super) fn object(&self, about: About) {
        // The receiver lives as long as the router runs; after that nothing is reported as seen.
        let _ = self.objections.send(about);
    }

    /// Writes objections for as long as it is polled.
    pub(super) async fn write_objections(self: &Arc<Self>, mut objections: mpsc::UnboundedReceiver<About>) {
        while let Some(about) = objections.recv().await {
            let shared = self.clone();
            // Each on its own: one that fails does not keep the others waiting.
            tokio::spawn(async move {
                while let Err(failure) = shared.write_objection(&about).await {
                    tracing::debug!("keeping what is in use: {failure}");
                    tokio::select! {
                        () = tokio::time::sleep(REST) => {}
                        () = shared.stopping.cancelled() => return,
                    }
                }
                match &about {
                    About::Session(objection) => shared.index.lease_settled(objection.version),
                    About::Instance(objection) => {
                        shared.index.instance_settled(objection.about.kind, objection.version)
                    }
                }
                shared.marked.notify_one();
            });
        }
    }

    /// What is marked, and in use, loses the mark. Nothing is left to do if it is no longer what it was.
    async fn write_objection(&self, about: &About) -> Result<(), Failure> {
        match about {
            About::Session(objection) => self.keep_session(objection).await,
            About::Instance(objection) => self.keep_instance(objection).await,
        }
    }

    async fn keep_session(&self, objection: &Objection<SessionId>) -> Result<(), Failure> {
        let id = &objection.about;
        let Some(entry) = self.index.session(id) else { return Ok(()) };
        let Kept::Session(session) = &entry.kept else { return Ok(()) };
        if session.version != objection.version {
            return Ok(());
        }
        if session.ending {
            return self.say_interrupted(id, session).await;
        }
        let sent = self.clock.now();
        // What this router does not know of may be active now.
        let known = self.index.last_active(id, sent).filter(|_| !self.index.unsure.load(Ordering::SeqCst));
        let active = known.unwrap_or(sent);
        match self.writes.renew(session, self.clock.time_of_day(active)).await {
            Ok(lease) => {
                self.index.wrote(id, active);
                self.learn_lease(lease, Source::Write(sent));
                Ok(())
            }
            Err(Failure::Conflict) => self.read_again(id).await,
            Err(Failure::Gone) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    async fn say_interrupted(&self, id: &SessionId, session: &Session) -> Result<(), Failure> {
        match self.writes.interrupt(session).await {
            Ok(lease) => {
                self.learn_lease(lease, Source::Write(self.clock.now()));
                Ok(())
            }
            Err(Failure::Conflict) => self.read_again(id).await,
            Err(Failure::Gone) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Somebody else was faster: what it is now is judged anew.
    async fn read_again(&self, id: &SessionId) -> Result<(), Failure> {
        if let Some(lease) = self.writes.read_lease(&id.namespace, &id.hash).await? {
            self.learn_lease(lease, Source::Read);
        }
        Ok(())
    }

    async fn keep_instance(&self, objection: &Objection<InstanceId>) -> Result<(), Failure> {
        let Some(instance) = self.index.instance(&objection.about.uid) else { return Ok(()) };
        if instance.version != objection.version
            || !self.index.objects_to(instance.id.kind, objection.version)
        {
            return Ok(());
        }
        match self.writes.keep_instance(&instance).await {
            Ok(body) => {
                self.learn_instance(body, Source::Write(self.clock.now()));
                Ok(())
            }
            Err(Failure::Conflict) => {
                let id = &instance.id;
                let read = self.writes.read_instance(id.kind, &instance.namespace, &id.name).await?;
                if let Some(body) = read {
                    self.learn_instance(body, Source::Read);
                }
                Ok(())
            }
            Err(Failure::Gone) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}
