//! How long to wait before something that failed is tried again: at once, then doubling, and from the start again
//! after a long good run.

use std::time::Duration;

use jiff::Timestamp;

use super::{Timing, after};

/// The waits of one container or one image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BackOff {
    /// The wait after the next failure, and when the last try began. None before anything failed.
    current: Option<(Duration, Timestamp)>,
}

impl BackOff {
    /// The wait that applies to something that failed at `failed`, if any does.
    pub(crate) fn wait(&self, failed: Timestamp, timing: &Timing) -> Option<Duration> {
        let (wait, began) = self.current?;
        (failed <= after(began, timing.back_off_reset)).then_some(wait)
    }

    /// When it may be tried again.
    pub(crate) fn until(&self, failed: Timestamp, timing: &Timing) -> Option<Timestamp> {
        self.wait(failed, timing).map(|wait| after(failed, wait))
    }

    /// It is tried again `now`, after it had failed at `failed`.
    pub(crate) fn advance(&mut self, failed: Timestamp, now: Timestamp, timing: &Timing) {
        let next = match self.wait(failed, timing) {
            Some(wait) => (wait * 2).min(timing.back_off_limit),
            None => timing.back_off,
        };
        self.current = Some((next, now));
    }
}

/// As Go prints a duration of whole seconds: `10s`, `2m40s`, `5m0s`.
pub(crate) fn printed(wait: Duration) -> String {
    let total = wait.as_secs();
    let (hours, minutes, seconds) = (total / 3600, total / 60 % 60, total % 60);
    match (hours, minutes) {
        (0, 0) if wait.subsec_millis() > 0 && seconds == 0 => format!("{}ms", wait.subsec_millis()),
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn waits_double_up_to_the_limit_after_a_first_try_at_once() {
        let timing = Timing::default();
        let mut back_off = BackOff::default();
        let mut now = 0;
        let mut waits = Vec::new();
        for _ in 0..8 {
            let failed = at(now + 1);
            let wait = back_off.wait(failed, &timing).unwrap_or_default();
            waits.push(printed(wait));
            now = now + 1 + i64::try_from(wait.as_secs()).unwrap();
            back_off.advance(failed, at(now), &timing);
        }
        assert_eq!(waits, ["0s", "10s", "20s", "40s", "1m20s", "2m40s", "5m0s", "5m0s"]);
    }

    #[test]
    fn a_long_run_forgets() {
        let timing = Timing::default();
        let mut back_off = BackOff::default();
        back_off.advance(at(0), at(0), &timing);
        back_off.advance(at(1), at(11), &timing);
        assert_eq!(back_off.wait(at(11 + 600), &timing), Some(Duration::from_secs(20)));
        assert_eq!(back_off.wait(at(11 + 601), &timing), None);
    }
}
