//! What the controllers are told of the place they run in, and how long builds may take.

use std::time::Duration;

use crate::token::Key;

/// How Jobs reach the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// With a ServiceAccount of their own, which may do for one integration what its build needs.
    ServiceAccounts,
    /// By a [`crate::gate`] at this address, where the API server knows no accounts.
    Gate(String),
}

#[derive(Clone, Debug)]
pub struct Options {
    /// The image that Jobs run, and the program in it.
    pub image: String,
    pub program: String,
    /// Where Jobs find the build service, and what tokens they show it.
    pub build_service: String,
    pub key: Key,
    pub access: Access,
    /// Jobs of a cluster run without privileges, as one of its users.
    pub restricted: bool,
    /// Only this namespace is looked after.
    pub watch_namespace: Option<String>,
    pub limits: Limits,
}

/// How long builds may take, and how often they are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Attempts after which an integration has failed.
    pub attempts: i32,
    /// The wait before the second attempt; it is four times as long before the third.
    pub retry_delay: Duration,
    /// How long a runner waits for the build service.
    pub build: Duration,
    /// How long it waits for the status to name the spec that it has built.
    pub stale_grace: Duration,
    /// Jobs that have ended and are kept, for whoever looks for a mistake.
    pub kept_jobs: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            attempts: 3,
            retry_delay: Duration::from_secs(5),
            build: Duration::from_secs(120),
            stale_grace: Duration::from_secs(30),
            kept_jobs: 3,
        }
    }
}

impl Limits {
    /// How long a Job may take: longer than its runner, so that the runner can say itself what went wrong.
    pub fn job(&self) -> Duration {
        self.build + self.stale_grace + Duration::from_secs(60)
    }
}
