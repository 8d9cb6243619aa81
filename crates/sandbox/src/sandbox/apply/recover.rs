//! Makes objects that somebody was promised: from an agent's record, or from the log.

use agentcube_api::{Sandbox, labels};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::PostParams;
use tokio::time::Instant;

use super::Hands;
use crate::core::ApiError;
use crate::names::{Name, RunId};
use crate::object;
use crate::sandbox::{Done, Error};

impl Hands<'_> {
    /// Makes an object that is missing; none if there is another by now.
    pub(super) async fn make(&self, mut object: Sandbox, how: &str) -> Result<Option<Sandbox>, Error> {
        (object.metadata.resource_version, object.metadata.uid, object.status) = (None, None, None);
        object.metadata.finalizers = Some(vec![labels::SANDBOX_FINALIZER.into()]);
        object.annotations_mut().insert(object::ADOPTED.into(), Timestamp::now().to_string());
        let api = self.core.api(&self.name.namespace);
        match self.core.answered(api.create(&PostParams::default(), &object)).await {
            Ok(object) => {
                self.core.counts.adopted.with(&[]).inc();
                self.core.warn(&object, "Adopted", how);
                self.core.sandboxes.put(object.clone());
                Ok(Some(object))
            }
            Err(error) if error.is_stale() => match self.core.refresh(self.name).await? {
                Some(_) => Ok(None),
                None => Err(error.into()),
            },
            Err(error) => {
                // It may still come, for as long as requests take.
                if !matches!(&error, ApiError::Answered(status) if status.code < 500) {
                    self.core.pending.keep_name(self.name, Instant::now() + self.core.options.timing.late);
                }
                Err(error.into())
            }
        }
    }

    /// The object that the log has promised: its run ended with its agent, or nobody hears of it.
    pub(super) async fn recover(&self) -> Result<Done, Error> {
        let Some((log, open)) =
            self.core.options.log.as_ref().and_then(|log| Some((log, log.of(self.name)?)))
        else {
            return Ok(Done::Step);
        };
        let object = open.object().ok().filter(|object| Name::of(object) == *self.name);
        let Some(object) = object else {
            tracing::error!(sandbox = %self.name, run = %open.run, "what the log has of it is no Sandbox");
            log.done(&open.run);
            return Ok(Done::Step);
        };
        match self.make(object, "made from the log after a restart").await {
            Ok(_) => {}
            // Nobody can have it any more: its namespace is gone, or the server does not take it.
            Err(Error::Api(ApiError::Answered(status)))
                if matches!(status.code, 400 | 404 | 413 | 415 | 422) =>
            {
                let why = &status.message;
                tracing::error!(sandbox = %self.name, "what the log has of it cannot be made: {why}");
            }
            Err(error) => return Err(error),
        }
        log.done(&open.run);
        Ok(Done::Step)
    }

    pub(super) async fn forget(&self, run: &RunId, proved: bool) -> Result<Done, Error> {
        if proved && self.core.refresh(self.name).await?.is_some() {
            return Ok(Done::Step);
        }
        if let Some(log) = &self.core.options.log {
            log.done(run);
        }
        if proved {
            self.core.pending.grown(run);
        }
        Ok(Done::Step)
    }

    /// Waits until the log would not make the object any more.
    pub(super) async fn forgotten(&self) -> Result<(), Error> {
        match &self.core.options.log {
            Some(log) => log.forgotten(self.name).await.map_err(Error::from),
            None => Ok(()),
        }
    }
}
