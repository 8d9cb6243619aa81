//! Where this router sits among the others. Free instances lie in one order for all of them; each begins somewhere else, and two
//! that begin at the same point go in opposite directions. So two routers that know nothing of each other's requests choose the
//! same instance only when there are fewer than requests; more of them, seldom before.

use std::sync::atomic::{AtomicU64, Ordering};

/// The place of this router; changes as routers come and go.
#[derive(Debug, Default)]
pub struct Seat(AtomicU64);

/// From where, and in which direction, to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub from: u64,
    pub down: bool,
}

impl Seat {
    /// This is number `rank` of so many routers.
    pub fn set(&self, rank: usize, routers: usize) {
        let both = u64::try_from(rank).unwrap_or_default() << 32 | u64::try_from(routers).unwrap_or_default();
        self.0.store(both, Ordering::Relaxed);
    }

    pub fn view(&self) -> View {
        let both = self.0.load(Ordering::Relaxed);
        let (rank, routers) = (both >> 32, both & u64::from(u32::MAX));
        let pairs = routers.div_ceil(2).max(1);
        View { from: (u64::MAX / pairs).wrapping_mul(rank / 2), down: rank % 2 == 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_go_in_opposite_directions_and_more_begin_elsewhere() {
        let view = |rank, routers| {
            let seat = Seat::default();
            seat.set(rank, routers);
            seat.view()
        };
        assert_eq!(Seat::default().view(), View::default());
        assert_eq!([view(0, 2), view(1, 2)].map(|view| (view.from, view.down)), [(0, false), (0, true)]);
        let half = u64::MAX / 2;
        assert_eq!(
            [view(2, 4), view(3, 4)].map(|view| (view.from, view.down)),
            [(half, false), (half, true)]
        );
    }
}
