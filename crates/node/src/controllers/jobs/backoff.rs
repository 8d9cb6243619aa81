//! How long a Job waits before it replaces what failed: ten seconds, doubled with every failure since the last
//! success, up to ten minutes.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::worker;

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(600);

/// The failures since the last success, and when the latest was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Backoff {
    failures: u32,
    latest: Option<Timestamp>,
}

impl Backoff {
    /// As it is after these Pods have ended too.
    pub(super) fn after<'a>(
        self,
        succeeded: impl Iterator<Item = &'a Pod>,
        failed: impl Iterator<Item = &'a Pod>,
    ) -> Self {
        let success = succeeded.map(worker::finished_at).max();
        let failed: Vec<Timestamp> = failed
            .map(worker::finished_at)
            .filter(|at| success.is_none_or(|success| *at > success))
            .collect();
        let before = if success.is_some() { Self::default() } else { self };
        Self {
            failures: before.failures.saturating_add(u32::try_from(failed.len()).unwrap_or(u32::MAX)),
            latest: failed.into_iter().max().or(before.latest),
        }
    }

    /// What is left to wait.
    pub(super) fn remaining(self, now: Timestamp) -> Duration {
        match self.latest {
            Some(latest) => remaining(self.failures, latest, now),
            None => Duration::ZERO,
        }
    }
}

/// What is left to wait after this many failures, the last of them at `latest`.
pub(super) fn remaining(failures: u32, latest: Timestamp, now: Timestamp) -> Duration {
    let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
    let wait = FIRST.saturating_mul(2_u32.saturating_pow(doublings)).min(LONGEST);
    let passed = Duration::try_from(now.duration_since(latest)).unwrap_or(Duration::ZERO);
    wait.saturating_sub(passed)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn waits_double_and_end() {
        let start = Timestamp::UNIX_EPOCH;
        for (failures, passed, expected) in [
            (0, 0, 0),
            (1, 0, 10),
            (1, 4, 6),
            (1, 11, 0),
            (2, 0, 20),
            (6, 0, 320),
            (7, 0, 600),
            (u32::MAX, 1, 599),
        ] {
            let now = start + SignedDuration::from_secs(passed);
            assert_eq!(remaining(failures, start, now).as_secs(), expected, "{failures} {passed}");
        }
    }
}
