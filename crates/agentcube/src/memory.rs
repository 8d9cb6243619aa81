//! Gives memory back that a long-running process does not need any more.

use std::time::{Duration, Instant};

/// After that long what a start needed is free again.
const SETTLED: Duration = Duration::from_secs(3);
/// How often free memory is given back.
const PERIOD: Duration = Duration::from_secs(300);

/// What a start, or a burst later on, took and does not need any more. Never ends.
pub(crate) async fn give_back() {
    let mut due = tokio::time::interval_at((Instant::now() + SETTLED).into(), PERIOD);
    loop {
        due.tick().await;
        // It takes a while where there is much, so it has a thread of its own.
        let _ended = tokio::task::spawn_blocking(agentcube_runtime::memory::give_back).await;
    }
}
