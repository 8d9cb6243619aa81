//! Durations as Go writes them (`300s`, `1h30m`): parsed and printed exactly like `time.ParseDuration` and
//! `Duration.String`, because users, Envoy Gateway and every Kubernetes tool agree on that notation.
//! A signed count of nanoseconds; arithmetic saturates instead of wrapping.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What the CRD schema accepts: a subset of Go's notation, without sign, whose digit limits make sure that
/// no accepted string overflows 64 bits of nanoseconds.
pub const PATTERN: &str = r"^(0|([0-9]{1,5}(\.[0-9]{1,9})?h|[0-9]{1,7}(\.[0-9]{1,9})?m|[0-9]{1,9}(\.[0-9]{1,9})?s|[0-9]{1,12}(\.[0-9]{1,9})?(ms|us|µs|ns)){1,8})$";

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000), // U+00B5, micro sign
    ("μs", 1_000), // U+03BC, Greek letter mu
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// 2^63 nanoseconds: the magnitude of the smallest duration, one more than that of the largest.
const LIMIT: u64 = 1 << 63;

/// A Go duration: nanoseconds in 64 signed bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

/// Why a string is no duration. The messages are those of Go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Not a duration at all, or out of range.
    #[error("time: invalid duration {0}")]
    Invalid(String),
    /// A number without a unit.
    #[error("time: missing unit in duration {0}")]
    MissingUnit(String),
    /// A unit that Go does not know, such as `d`.
    #[error("time: unknown unit {unit} in duration {input}")]
    UnknownUnit {
        /// The unit as written, quoted.
        unit: String,
        /// The whole input, quoted.
        input: String,
    },
}

impl GoDuration {
    /// The duration of zero.
    pub const ZERO: Self = Self(0);

    /// A duration of whole seconds, saturating.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// A duration of whole milliseconds, saturating.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// A duration of nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// The duration in nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// The duration for waiting: negative ones become zero.
    pub fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }
}

impl From<std::time::Duration> for GoDuration {
    fn from(value: std::time::Duration) -> Self {
        Self(i64::try_from(value.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl FromStr for GoDuration {
    type Err = ParseError;

    fn from_str(input: &str) -> Result<Self, ParseError> {
        let invalid = || ParseError::Invalid(quote(input));
        let (negative, mut rest) = match input.as_bytes().first() {
            Some(b'-') => (true, &input[1..]),
            Some(b'+') => (false, &input[1..]),
            _ => (false, input),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (amount, after) = element(rest, input)?;
            total = total.checked_add(amount).filter(|sum| *sum <= LIMIT).ok_or_else(invalid)?;
            rest = after;
        }
        match (negative, i64::try_from(total)) {
            (true, Ok(nanos)) => Ok(Self(-nanos)),
            (true, Err(_)) => Ok(Self(i64::MIN)),
            (false, Ok(nanos)) => Ok(Self(nanos)),
            (false, Err(_)) => Err(invalid()),
        }
    }
}

/// One number with its unit off the front of `rest`: its nanoseconds and what follows.
fn element<'a>(rest: &'a str, input: &str) -> Result<(u64, &'a str), ParseError> {
    let invalid = || ParseError::Invalid(quote(input));
    let (whole, after) = digits(rest);
    let (fraction, after) = match after.strip_prefix('.') {
        Some(tail) => digits(tail),
        None => ("", after),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(invalid());
    }
    let mut value: u64 = 0;
    for digit in whole.bytes() {
        value = value
            .checked_mul(10)
            .and_then(|v| v.checked_add(u64::from(digit - b'0')))
            .filter(|v| *v <= LIMIT)
            .ok_or_else(invalid)?;
    }
    let unit_len = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
    let (unit, after) = after.split_at(unit_len);
    if unit.is_empty() {
        return Err(ParseError::MissingUnit(quote(input)));
    }
    let scale = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|(_, scale)| *scale)
        .ok_or_else(|| ParseError::UnknownUnit { unit: quote(unit), input: quote(input) })?;
    let nanos = value.checked_mul(scale).filter(|v| *v <= LIMIT).ok_or_else(invalid)?;
    let nanos = nanos.saturating_add(fraction_nanos(fraction, scale));
    if nanos > LIMIT { Err(invalid()) } else { Ok((nanos, after)) }
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// The nanoseconds of a fraction of a unit. Go multiplies in floating point; the same steps here give the
/// same last digit.
fn fraction_nanos(fraction: &str, scale: u64) -> u64 {
    let mut mantissa: u64 = 0;
    let mut divisor: f64 = 1.0;
    for digit in fraction.bytes() {
        let next = mantissa.checked_mul(10).and_then(|v| v.checked_add(u64::from(digit - b'0')));
        match next {
            Some(next) if next <= LIMIT => mantissa = next,
            // Digits past 63 bits cannot change a nanosecond: the rest is ignored, as in Go.
            _ => break,
        }
        divisor *= 10.0;
    }
    (mantissa as f64 * (scale as f64 / divisor)) as u64
}

/// A string as Go's duration errors quote it: non-ASCII and control bytes as `\x..`.
fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            _ => {
                let mut buffer = [0; 4];
                for byte in c.encode_utf8(&mut buffer).bytes() {
                    out.push_str(&format!("\\x{byte:02x}"));
                }
            }
        }
    }
    out.push('"');
    out
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        let sign = if self.0 < 0 { "-" } else { "" };
        if nanos == 0 {
            return f.write_str("0s");
        }
        if nanos < 1_000_000_000 {
            let (unit, scale) = match nanos {
                0..1_000 => ("ns", 1),
                1_000..1_000_000 => ("µs", 1_000),
                _ => ("ms", 1_000_000),
            };
            return write!(f, "{sign}{}{unit}", Fixed { nanos, scale });
        }
        let (minutes, rest) = (nanos / 60_000_000_000, nanos % 60_000_000_000);
        let seconds = Fixed { nanos: rest, scale: 1_000_000_000 };
        match (minutes / 60, minutes % 60) {
            (0, 0) => write!(f, "{sign}{seconds}s"),
            (0, minutes) => write!(f, "{sign}{minutes}m{seconds}s"),
            (hours, minutes) => write!(f, "{sign}{hours}h{minutes}m{seconds}s"),
        }
    }
}

/// `nanos / scale` with as many decimals as are needed and no more.
struct Fixed {
    nanos: u64,
    scale: u64,
}

impl fmt::Display for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.nanos / self.scale)?;
        let fraction = self.nanos % self.scale;
        if fraction == 0 {
            return Ok(());
        }
        let width = self.scale.ilog10() as usize;
        let text = format!("{fraction:0width$}");
        write!(f, ".{}", text.trim_end_matches('0'))
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for GoDuration {
    fn schema_name() -> Cow<'static, str> {
        "GoDuration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": PATTERN, "maxLength": 64 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Rows that real Go printed: quoted input, nanoseconds or `error`, printed form or message.
    #[test]
    fn agrees_with_go() {
        let mut rows = 0;
        for line in include_str!("../testdata/durations.tsv").lines().skip(1) {
            let columns: Vec<&str> = line.split('\t').collect();
            let input = crate::gostring::unquote(columns[0]);
            match (columns[1], input.parse::<GoDuration>()) {
                ("error", Err(error)) => assert_eq!(error.to_string(), columns[2], "{input:?}"),
                ("error", Ok(got)) => panic!("{input:?}: Go refuses it, we read {got}"),
                (_, Err(error)) => panic!("{input:?}: Go accepts it, we say {error}"),
                (nanos, Ok(got)) => {
                    assert_eq!(got.as_nanos().to_string(), nanos, "{input:?}");
                    assert_eq!(got.to_string(), columns[2], "{input:?}");
                }
            }
            rows += 1;
        }
        assert!(rows > 400, "{rows} rows");
    }

    proptest! {
        #[test]
        fn printed_form_reads_back(nanos: i64) {
            let duration = GoDuration::from_nanos(nanos);
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }

        /// An object that the server accepted must never be unreadable for a controller.
        #[test]
        fn whatever_the_schema_accepts_parses(text in PATTERN.trim_matches(['^', '$'])) {
            let duration: GoDuration = text.parse().map_err(|e: ParseError| TestCaseError::fail(e.to_string()))?;
            prop_assert!(duration >= GoDuration::ZERO);
        }

        #[test]
        fn no_input_panics(text: String) {
            let _ = text.parse::<GoDuration>();
        }
    }
}
