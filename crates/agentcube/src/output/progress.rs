//! Says on standard error what is being waited for, once it takes longer than a second.

use std::future::Future;
use std::io::Write;
use std::pin::pin;
use std::time::{Duration, Instant};

use crate::environment::Environment;

const SILENCE: Duration = Duration::from_secs(1);
const TURN: Duration = Duration::from_millis(120);
const FRAMES: [char; 4] = ['|', '/', '-', '\\'];

/// Waits for `work`; on a terminal something moves meanwhile, elsewhere there is one line.
pub(crate) async fn during<T>(environment: &Environment, what: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let began = Instant::now();
    if let Ok(done) = tokio::time::timeout(SILENCE, &mut work).await {
        return done;
    }
    if !environment.stderr.terminal {
        show(&format!("{what} ...\n"));
        return work.await;
    }
    for frame in FRAMES.iter().cycle() {
        show(&format!("\r\x1b[K{frame} {what} ({} s)", began.elapsed().as_secs()));
        if let Ok(done) = tokio::time::timeout(TURN, &mut work).await {
            show("\r\x1b[K");
            return done;
        }
    }
    work.await
}

fn show(text: &str) {
    let mut stderr = std::io::stderr().lock();
    // Progress that cannot be shown is no reason to stop.
    let _unseen = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
