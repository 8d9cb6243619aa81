//! How requests get their instances, in numbers: read from the metrics of the API server, which under `agentcube up` has those
//! of the router, as whoever logged in. Numbers cannot be watched, so they are read every other second while a page shows
//! them.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::{BodyExt, Limited};
use serde_json::json;

use crate::kube_api;
use crate::live::Lines;
use crate::server::State;
use crate::session::Session;

/// What a tab follows instead of a path of the API server.
pub(crate) const PATH: &str = "/figures";
const PERIOD: Duration = Duration::from_secs(2);
const SIZE_LIMIT: usize = 16 << 20;
/// The metrics that pages draw.
const DRAWN: [&str; 5] = [
    "agentcube_reserve_seconds_",
    "agentcube_reserve_waiting{",
    "agentcube_requests_in_flight{",
    "agentcube_requests_total{",
    "agentcube_sessions{",
];
const OURS: &str = "agentcube_";
const ABSENT: &str = "the API server of this cluster does not have them: routers show their metrics to Prometheus, see \
    docs/operations/metrics-and-alerts.md";

/// Sends the numbers until nobody listens; how it ended.
pub(crate) async fn follow(state: &State, session: &Session, lines: &Lines) -> (u16, String) {
    loop {
        let text = match read(state, session).await {
            Ok(text) => text,
            Err(end) => return end,
        };
        if !text.contains(OURS) {
            return (404, ABSENT.to_owned());
        }
        let line = json!({ "figures": drawn(&text) }).to_string();
        if lines.send(line.as_bytes()).await.is_err() {
            return (200, "nobody listens".to_owned());
        }
        tokio::time::sleep(PERIOD).await;
    }
}

async fn read(state: &State, session: &Session) -> Result<String, (u16, String)> {
    let answered =
        kube_api::send(state, session, Method::GET, "/metrics", &HeaderMap::new(), Bytes::new()).await;
    let answered = answered.map_err(|why| (502, why))?;
    let status = answered.status();
    if !status.is_success() {
        return Err((status.as_u16(), format!("the metrics cannot be read: {status}")));
    }
    let body = Limited::new(answered.into_body(), SIZE_LIMIT).collect().await;
    let body = body.map_err(|error| (502, format!("the metrics cannot be read: {error}")))?;
    Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
}

/// The lines of the metrics that pages draw.
fn drawn(text: &str) -> String {
    let wanted = |line: &&str| DRAWN.iter().any(|name| line.starts_with(name));
    text.lines().filter(wanted).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_drawn_is_sent() {
        let text = "# TYPE agentcube_sessions gauge\nagentcube_sessions{task=\"a\"} 1\nprocess_cpu_seconds 3\n\
                    agentcube_reserve_seconds_bucket{le=\"1\"} 2\nagentcube_reconcile_seconds_count 3\n";
        assert_eq!(
            drawn(text),
            "agentcube_sessions{task=\"a\"} 1\nagentcube_reserve_seconds_bucket{le=\"1\"} 2"
        );
    }
}
