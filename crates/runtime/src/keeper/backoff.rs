//! How long to wait before the next worker. Pure.

use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(5);
/// Who has worked for this long was well.
const HEALTHY: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Backoff {
    last: Option<Duration>,
}

impl Backoff {
    /// After one that has worked for some time.
    pub(super) fn next(&mut self, worked: Duration) -> Duration {
        let next = match self.last.filter(|_| worked < HEALTHY) {
            Some(last) => (last * 2).min(LONGEST),
            None => SHORTEST,
        };
        self.last = Some(next);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_a_limit_and_forgets() {
        let mut backoff = Backoff::default();
        let mut next = |seconds: u64| backoff.next(Duration::from_secs(seconds)).as_millis();
        let pauses: Vec<_> = (0..10).map(|_| next(59)).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000]);
        assert_eq!((next(60), next(0)), (20, 40));
    }
}
