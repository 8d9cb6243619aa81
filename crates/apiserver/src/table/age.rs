//! Durations as Kubernetes writes them: short, and coarser the longer they are.

use jiff::Timestamp;
use serde_json::Value;

/// A number of seconds: `90s`, `5m30s`, `3h`, `2d4h`, `1y20d`.
pub fn human(seconds: i64) -> String {
    let with = |big: i64, unit: char, small: i64, small_unit: char| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{small_unit}") }
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    match seconds {
        i64::MIN..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => with(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => with(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 24 * 8 => with(days, 'd', hours % 24, 'h'),
        _ if hours < 24 * 365 * 2 => format!("{days}d"),
        _ if hours < 24 * 365 * 8 => with(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

/// How long ago a time in an object was.
pub fn since(time: &Value, now: Timestamp) -> String {
    match time.as_str().and_then(|text| text.parse::<Timestamp>().ok()) {
        Some(time) => human((now - time).get_seconds_total()),
        None => "<unknown>".to_owned(),
    }
}

/// Whole seconds of a span, towards zero.
trait Seconds {
    fn get_seconds_total(self) -> i64;
}

impl Seconds for jiff::Span {
    fn get_seconds_total(self) -> i64 {
        // The difference of timestamps has no unit above hours, so that no calendar is needed.
        self.total(jiff::Unit::Second).map_or(0, |seconds| seconds as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let (m, h, d) = (60, 3600, 86400);
        for (seconds, text) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (5 * m + 30, "5m30s"),
            (10 * m + 30, "10m"),
            (179 * m, "179m"),
            (3 * h, "3h"),
            (7 * h + 59 * m, "7h59m"),
            (8 * h, "8h"),
            (47 * h, "47h"),
            (48 * h, "2d"),
            (49 * h, "2d1h"),
            (8 * d, "8d"),
            (729 * d, "729d"),
            (730 * d, "2y"),
            (731 * d, "2y1d"),
            (8 * 365 * d, "8y"),
            (9 * 365 * d + d, "9y"),
        ] {
            assert_eq!(human(seconds), text);
        }
        let now: Timestamp = "2024-01-02T00:00:00Z".parse().expect("a time");
        assert_eq!(since(&"2024-01-01T00:00:00Z".into(), now), "24h");
        assert_eq!(since(&Value::Null, now), "<unknown>");
    }
}
