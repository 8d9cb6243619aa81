//! One build, in a Job: reads the integration, makes its manifest, has it built, and writes the bundle. It looks three times
//! whether it is still wanted: before it begins, before it writes, and by the version of what it replaces. It can be killed
//! between any two steps: until the last of them nothing has changed.

mod builds;
pub mod environment;
mod write;

use std::future::Future;
use std::time::Duration;

use agentcube_api::conditions::frontend as reasons;
use kube::api::Api;
use kube::{Client, ResourceExt};
use tokio::time::Instant;

pub use environment::Settings;

use crate::integration::Failure;
use crate::raw::Integration;
use crate::{files, hash, manifest};
use builds::Builds;

const LOOK: Duration = Duration::from_millis(100);
/// How often a build that the service has lost is begun anew, and a write that somebody was faster with is tried again.
const TRIES: usize = 5;

/// Why there is no bundle.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody wants it any more; nothing was written.
    #[error("{0}: nothing is written")]
    Stale(String),
    #[error(transparent)]
    Manifest(#[from] manifest::Error),
    #[error("the build service refuses it: {0}")]
    Refused(String),
    #[error("the build failed: {message}")]
    Failed { reason: Option<String>, message: String, is_final: bool },
    #[error("the build service: {0}")]
    Service(String),
    #[error("the build service sent something else than it built: {0}")]
    Files(#[source] files::Fault),
    #[error(
        "the bundle has {0} bytes, and an object of the API server holds {most}: make fewer pages or columns of it",
        most = files::LARGEST_BUNDLE
    )]
    TooLarge(usize),
    #[error(
        "JSBundle {0} is there and belongs to somebody else: delete it, or choose another name for the integration"
    )]
    Foreign(String),
    #[error("the API server: {0}")]
    Api(#[source] Box<kube::Error>),
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Error {
        Error::Api(Box::new(error))
    }
}

impl Error {
    /// The exit code: 1 to be tried again, 3 not wanted any more, 4 not before the spec changes.
    pub fn code(&self) -> u8 {
        match self {
            Error::Stale(_) => 3,
            _ if self.is_final() => 4,
            _ => 1,
        }
    }

    fn is_final(&self) -> bool {
        match self {
            Error::Manifest(_) | Error::Refused(_) | Error::TooLarge(_) | Error::Foreign(_) => true,
            Error::Failed { is_final, .. } => *is_final,
            Error::Stale(_) | Error::Service(_) | Error::Files(_) | Error::Api(_) => false,
        }
    }

    /// The last word of the Pod, which the controller reads.
    pub fn failure(&self) -> Failure {
        let reason = match self {
            Error::Stale(_) => reasons::REASON_STALE,
            Error::Manifest(manifest::Error::UnsupportedEngineVersion(_)) => {
                reasons::REASON_UNSUPPORTED_ENGINE
            }
            Error::Manifest(_) | Error::Refused(_) => reasons::REASON_SPEC_INVALID,
            Error::TooLarge(_) => reasons::REASON_BUNDLE_TOO_LARGE,
            Error::Files(_) => reasons::REASON_DIGEST_MISMATCH,
            Error::Failed { reason: Some(reason), .. } => reason,
            Error::Failed { .. } | Error::Service(_) | Error::Foreign(_) | Error::Api(_) => {
                reasons::REASON_BUILD_FAILED
            }
        };
        Failure { reason: reason.to_owned(), message: self.to_string(), is_final: self.is_final() }
    }
}

/// The steps of a build, each named by what has just been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Read,
    Rendered,
    Begun,
    Built,
    Fetched,
    Checked,
    Written,
}

impl Step {
    pub const ALL: [Step; 7] =
        [Step::Read, Step::Rendered, Step::Begun, Step::Built, Step::Fetched, Step::Checked, Step::Written];
}

pub struct Runner {
    pub client: Client,
    pub settings: Settings,
}

impl Runner {
    pub async fn run(&self) -> Result<(), Error> {
        self.run_with(&|_| std::future::ready(())).await
    }

    /// The same, with something that is waited for after each step.
    pub async fn run_with<F: Future<Output = ()>>(&self, after: &impl Fn(Step) -> F) -> Result<(), Error> {
        let integration = self.wanted().await?;
        after(Step::Read).await;
        let manifest = manifest::render(&self.settings.name, &integration.spec)?;
        let manifest_hash = hash::of(&manifest);
        after(Step::Rendered).await;
        let files = self.build(&manifest, &manifest_hash, after).await?;
        after(Step::Fetched).await;
        for _ in 0..TRIES {
            let integration = self.still_wanted().await?;
            after(Step::Checked).await;
            if self.write(&integration, &manifest_hash, &files).await? {
                after(Step::Written).await;
                return Ok(());
            }
        }
        Err(Error::Service("somebody else writes the bundle all the time".into()))
    }

    async fn build<F: Future<Output = ()>>(
        &self,
        manifest: &serde_json::Value,
        hash: &str,
        after: &impl Fn(Step) -> F,
    ) -> Result<Vec<agentcube_api::frontend::bundle::BundleFile>, Error> {
        let builds = Builds::new(&self.settings);
        for _ in 0..TRIES {
            let id = builds.begin(manifest, hash).await?;
            after(Step::Begun).await;
            if builds.wait(&id).await?.is_none() {
                continue;
            }
            after(Step::Built).await;
            if let Some(files) = builds.files(&id).await? {
                return Ok(files);
            }
        }
        Err(Error::Service("it forgets builds as soon as they are done".into()))
    }

    /// The integration, if its spec is the one that is to be built.
    async fn wanted(&self) -> Result<Integration, Error> {
        let api: Api<Integration> = Api::namespaced(self.client.clone(), &self.settings.namespace);
        let found = api.get_opt(&self.settings.name).await?;
        let Some(found) = found.filter(|found| found.metadata.deletion_timestamp.is_none()) else {
            return Err(Error::Stale(format!("FrontendIntegration {} is gone", self.settings.name)));
        };
        let now = found.hash();
        if now == self.settings.spec_hash {
            return Ok(found);
        }
        Err(Error::Stale(format!(
            "the spec has changed: it is {now} now, and not {}",
            self.settings.spec_hash
        )))
    }

    /// Waits until the controller has said that this spec is the one that counts.
    async fn still_wanted(&self) -> Result<Integration, Error> {
        let deadline = Instant::now() + self.settings.stale_grace;
        loop {
            let found = self.wanted().await?;
            match found.observed_hash() {
                Some(observed) if observed == self.settings.spec_hash => return Ok(found),
                Some(other) => return Err(Error::Stale(format!("the status is about {other} by now"))),
                None if Instant::now() > deadline => {
                    let name = found.name_any();
                    return Err(Error::Service(format!("no controller has said anything of {name}")));
                }
                None => tokio::time::sleep(LOOK).await,
            }
        }
    }
}
