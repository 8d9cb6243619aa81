//! The App controller: compares the spec with what was carried out, keeps the list of tasks, and carries them out by
//! telling Components what to be. It never touches Groups or Pods.

mod apply;
pub mod control;
pub mod machine;
pub mod plan;
mod status;
pub mod tasks;
#[cfg(test)]
mod tests;
pub mod validate;
mod words;

use std::time::Duration;

pub(crate) use words::cut;

/// How long tasks may take, and how often they are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Attempts after which a task has failed.
    pub max_retries: i32,
    /// The wait before the second attempt; it doubles with each.
    pub retry_backoff: Duration,
    pub longest_backoff: Duration,
    /// Longest time for one attempt, and for undoing one.
    pub task_timeout: Duration,
    pub manual_retry: bool,
    pub manual_cancel: bool,
    /// Tasks that are kept in the status, unless one change needs more.
    pub kept_tasks: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_retries: 3,
            retry_backoff: Duration::from_secs(1),
            longest_backoff: Duration::from_secs(300),
            task_timeout: Duration::from_secs(300),
            manual_retry: true,
            manual_cancel: true,
            kept_tasks: 64,
        }
    }
}

/// Something worth an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Note {
    pub(crate) fn normal(reason: &'static str, message: impl Into<String>) -> Note {
        Note { warning: false, reason, message: message.into() }
    }

    pub(crate) fn warning(reason: &'static str, message: impl Into<String>) -> Note {
        Note { warning: true, reason, message: message.into() }
    }
}

pub(crate) use apply::{object, reconcile};
