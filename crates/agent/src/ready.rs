//! Whether a sandbox answers: somebody listens on each of its ports.

use std::time::Duration;

use agentcube_runtime::SandboxId;

use crate::network::SandboxNetwork;

const FIRST: Duration = Duration::from_millis(1);
/// While somebody may be waiting.
const SOON: Duration = Duration::from_millis(50);
/// When a program takes its time, or does not mean to listen at all.
const LATER: Duration = Duration::from_secs(1);
/// Tries before it is looked at less often; some five seconds.
const TRIES: u32 = 100;

/// Comes back when all ports listen.
pub(crate) async fn ready(network: &dyn SandboxNetwork, sandbox: &SandboxId, ports: &[u16]) {
    for port in ports {
        let mut tries = 0;
        while network.connect(sandbox, *port).await.is_err() {
            tokio::time::sleep(pause(tries)).await;
            tries += 1;
        }
    }
}

fn pause(tries: u32) -> Duration {
    match tries {
        TRIES.. => LATER,
        _ => FIRST.saturating_mul(1 << tries.min(6)).min(SOON),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soon_at_first() {
        let millis: Vec<u128> = (0..8).map(|tries| pause(tries).as_millis()).collect();
        assert_eq!(millis, [1, 2, 4, 8, 16, 32, 50, 50]);
        assert_eq!(pause(u32::MAX), LATER);
    }
}
