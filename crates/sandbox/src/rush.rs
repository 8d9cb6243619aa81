//! Creates that clients wait for. What nobody waits for lets them go first, though never for long.

use std::time::Duration;

use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct Rush {
    waiting: watch::Sender<usize>,
}

impl Default for Rush {
    fn default() -> Rush {
        Rush { waiting: watch::Sender::new(0) }
    }
}

/// Somebody waits for as long as this lives.
pub(crate) struct Waits<'a>(&'a Rush);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.send_modify(|waiting| *waiting -= 1);
    }
}

impl Rush {
    pub(crate) fn enter(&self) -> Waits<'_> {
        self.waiting.send_modify(|waiting| *waiting += 1);
        Waits(self)
    }

    /// Comes back when nobody waits, at the latest after this time.
    pub(crate) async fn over(&self, at_most: Duration) {
        let mut waiting = self.waiting.subscribe();
        // The sender lives as long as this.
        let _late = tokio::time::timeout(at_most, waiting.wait_for(|waiting| *waiting == 0)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lets_others_go_first_but_not_for_ever() {
        let rush = Rush::default();
        let begun = tokio::time::Instant::now();
        rush.over(Duration::from_secs(1)).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        let (one, other) = (rush.enter(), rush.enter());
        rush.over(Duration::from_secs(1)).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(1));
        drop(one);
        let mut over = std::pin::pin!(rush.over(Duration::from_secs(1)));
        assert!(futures_util::poll!(over.as_mut()).is_pending());
        drop(other);
        over.await;
        assert_eq!(begun.elapsed(), Duration::from_secs(1));
    }
}
