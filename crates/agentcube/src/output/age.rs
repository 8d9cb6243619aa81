//! How long ago, in at most two units, as `kubectl` shows it.

use jiff::Timestamp;

pub(crate) fn since(then: Timestamp) -> String {
    show(Timestamp::now().duration_since(then).as_secs())
}

/// The age of a time that an object states; `<unknown>` when it states none.
pub(crate) fn stated(time: Option<&str>) -> String {
    time.and_then(|time| time.parse().ok()).map_or_else(|| "<unknown>".to_owned(), since)
}

fn show(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minute, hour, day) = (60, 3600, 86_400);
    let pair = |large: i64, unit: char, small: i64, lesser: char| {
        if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit}{small}{lesser}") }
    };
    match seconds {
        s if s < 2 * minute => format!("{s}s"),
        s if s < 10 * minute => pair(s / minute, 'm', s % minute, 's'),
        s if s < 3 * hour => format!("{}m", s / minute),
        s if s < 8 * hour => pair(s / hour, 'h', s % hour / minute, 'm'),
        s if s < 2 * day => format!("{}h", s / hour),
        s if s < 8 * day => pair(s / day, 'd', s % day / hour, 'h'),
        s if s < 2 * 365 * day => format!("{}d", s / day),
        s => pair(s / (365 * day), 'y', s % (365 * day) / day, 'd'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units_at_most() {
        for (seconds, expected) in [
            (-5, "0s"),
            (119, "119s"),
            (120, "2m"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (28_740, "7h59m"),
            (172_799, "47h"),
            (172_800, "2d"),
            (694_800, "8d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
        ] {
            assert_eq!(show(seconds), expected);
        }
        assert_eq!(stated(None), "<unknown>");
        assert_eq!(stated(Some("garbage")), "<unknown>");
    }
}
