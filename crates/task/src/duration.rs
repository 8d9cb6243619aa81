//! Durations as the Gateway API writes them: whole hours, minutes, seconds and milliseconds, in this order.

use std::time::Duration;

use agentcube_api::GoDuration;

/// The duration as text; part of a millisecond counts as a whole one.
pub(crate) fn text(duration: GoDuration) -> String {
    text_of(duration.to_std())
}

/// The same.
pub(crate) fn text_of(duration: Duration) -> String {
    let all = duration.as_nanos().div_ceil(1_000_000);
    let (hours, minutes, seconds, milliseconds) =
        (all / 3_600_000, all / 60_000 % 60, all / 1000 % 60, all % 1000);
    let parts = [(hours.min(99_999), "h"), (minutes, "m"), (seconds, "s"), (milliseconds, "ms")];
    let text: String =
        parts.into_iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n}{unit}")).collect();
    if text.is_empty() { "0s".into() } else { text }
}

/// Reads such a text.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    text.parse::<GoDuration>().ok().map(GoDuration::to_std)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_what_the_gateway_api_takes() {
        for (milliseconds, expected) in
            [(0, "0s"), (1, "1ms"), (1500, "1s500ms"), (90_000, "1m30s"), (3_600_000, "1h"), (300_000, "5m")]
        {
            let duration = Duration::from_millis(milliseconds);
            assert_eq!(text_of(duration), expected);
            assert_eq!(parse(expected), Some(duration));
        }
        assert_eq!(text_of(Duration::from_nanos(1)), "1ms");
    }
}
