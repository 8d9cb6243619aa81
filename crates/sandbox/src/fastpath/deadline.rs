//! How long a client waits, as gRPC says it: digits and a unit. Kept here, because not every server in front of the
//! service reads it.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::options::Limits;

/// Until when a call has to be answered.
pub(super) fn of(metadata: &MetadataMap, limits: &Limits) -> Result<Instant, Status> {
    let wait = match metadata.get("grpc-timeout") {
        None => limits.default_deadline,
        Some(value) => {
            let parsed = value.to_str().ok().and_then(parse);
            parsed.ok_or_else(|| Status::invalid_argument("grpc-timeout cannot be read"))?
        }
    };
    Ok(Instant::now() + wait.min(limits.longest_deadline))
}

fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_unit_is_read_and_nothing_else() {
        assert_eq!(parse("30S"), Some(Duration::from_secs(30)));
        assert_eq!(parse("100m"), Some(Duration::from_millis(100)));
        assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for text in ["", "S", "1", "1x", "-1S", "+1S", "999999999S", "1 S", "ü"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in ".{0,12}") {
            let _ = parse(&text);
        }
    }
}
