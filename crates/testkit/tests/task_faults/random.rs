//! Numbers that a seed repeats: splitmix64, shared by whoever draws.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Random {
    state: AtomicU64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random { state: AtomicU64::new(seed) }
    }

    pub(crate) fn next(&self) -> u64 {
        let step = 0x9E37_79B9_7F4A_7C15;
        let mut x = self.state.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// In [0, 1).
    #[allow(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
    pub(crate) fn unit(&self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn chance(&self, probability: f64) -> bool {
        probability > 0.0 && self.unit() < probability
    }

    /// Below the limit, which is not 0.
    pub(crate) fn below(&self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("below a usize")
    }
}
