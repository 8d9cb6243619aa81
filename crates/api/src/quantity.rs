//! Kubernetes quantities (`500m`, `4Gi`, `1e3`): parsed, printed and compared exactly like apimachinery's
//! `resource.Quantity`, oddities included, so that what our controllers write equals what `kubectl` shows.
//! Where Go would overflow (`Value()` of a number past 64 bits) the result saturates instead.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::decimal::Decimal;

/// What the CRD schema accepts: quantities with at most two digits of exponent.
pub const PATTERN: &str =
    r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]{1,2}))?$";

/// The longest quantity that the CRD schema accepts; bounds the cost of CEL rules on quantities.
pub const MAX_LENGTH: u32 = 32;

const NANO: i64 = -9;
const DECIMAL_SUFFIXES: [(&str, i64); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
/// In powers of 1024.
const BINARY_SUFFIXES: [(&str, u32); 6] = [("Ki", 1), ("Mi", 2), ("Gi", 3), ("Ti", 4), ("Pi", 5), ("Ei", 6)];

/// How a quantity was written, and so how it is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `12e6`
    DecimalExponent,
    /// `12Mi`
    BinarySI,
    /// `12M`
    #[default]
    DecimalSI,
}

/// An amount of a resource. Equality and order are those of the amount: `1000m` equals `1`.
#[derive(Clone, Debug, Default)]
pub struct Quantity {
    amount: Decimal,
    format: Format,
    /// The text it was parsed from, where Go keeps that instead of the canonical form (`1.500`, `+1`).
    text: Option<Box<str>>,
    /// Whether Go would hold it as a big decimal; decides how a negative fraction rounds in `value`.
    wide: bool,
}

/// Why a string is no quantity. The messages are those of apimachinery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Stray characters.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// A suffix that is no unit.
    #[error("unable to parse quantity's suffix")]
    Suffix,
    /// No digits where digits are needed.
    #[error("unable to parse numeric part of quantity")]
    Numeric,
}

/// The parts of a quantity's text.
struct Parts<'a> {
    negative: bool,
    /// Digits before the point, without leading zeros; `0` when there are none.
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
    /// Whether any digit was written.
    has_digits: bool,
}

#[derive(Clone, Copy)]
enum Unit {
    /// A power of ten.
    Ten(i32, Format),
    /// A power of 1024.
    Binary(u32),
}

impl Quantity {
    /// A whole number, printed in decimal.
    pub fn from_value(value: i64) -> Self {
        Self { amount: Decimal::from_i64(value), ..Self::default() }
    }

    /// How it is printed.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether the amount is zero.
    pub fn is_zero(&self) -> bool {
        self.amount.is_zero()
    }

    /// Whether the amount is below zero.
    pub fn is_negative(&self) -> bool {
        self.amount.negative
    }

    /// The amount in units, fractions rounded up.
    pub fn value(&self) -> i64 {
        self.scaled_value(0)
    }

    /// The amount in thousandths, smaller fractions rounded up.
    pub fn milli_value(&self) -> i64 {
        self.scaled_value(-3)
    }

    fn scaled_value(&self, exponent: i64) -> i64 {
        let shifted = if exponent == -3 { self.amount.times(1000) } else { self.amount.clone() };
        // Go rounds a small number away from zero, and a big decimal towards zero and then up by one.
        let value = if self.wide && shifted.negative && !shifted.is_integer() {
            shifted.truncated(0).plus(&Decimal::from_i64(1))
        } else {
            Some(shifted.rounded_up(0))
        };
        let saturated = if self.amount.negative { i64::MIN } else { i64::MAX };
        value.and_then(|v| v.to_i64()).unwrap_or(saturated)
    }

    /// The sum, in the format of `self`, or of `other` when `self` is zero. `None` when the two are so far
    /// apart that the sum would have thousands of digits.
    pub fn checked_add(&self, other: &Self) -> Option<Self> {
        let format = if self.is_zero() { other.format } else { self.format };
        let amount = self.amount.plus(&other.amount)?;
        Some(Self { amount, format, text: None, wide: self.wide || other.wide })
    }

    /// The difference; see [`Quantity::checked_add`].
    pub fn checked_sub(&self, other: &Self) -> Option<Self> {
        let negated = Self { amount: other.amount.clone().negated(), text: None, ..*other };
        self.checked_add(&negated)
    }

    fn canonical(&self) -> String {
        if self.is_zero() {
            return "0".into();
        }
        let small = self.amount.compare(&Decimal::from_i64(1024)) == Ordering::Less
            && self.amount.compare(&Decimal::from_i64(-1024)) == Ordering::Greater;
        if self.format == Format::BinarySI
            && !small
            && self.amount.is_integer()
            && let Some(text) = self.canonical_binary()
        {
            return text;
        }
        let (digits, exponent) = self.amount.engineering();
        match self.format {
            Format::DecimalExponent if exponent == 0 => digits,
            Format::DecimalExponent => format!("{digits}e{exponent}"),
            // Past the largest suffix Go prints none at all.
            _ => {
                let suffix = DECIMAL_SUFFIXES.iter().find(|(_, e)| *e == exponent).map_or("", |(s, _)| s);
                format!("{digits}{suffix}")
            }
        }
    }

    fn canonical_binary(&self) -> Option<String> {
        let (mut amount, mut power) = (self.amount.clone(), 0);
        while let Some(quotient) = amount.divided_exactly(1024) {
            (amount, power) = (quotient, power + 1);
        }
        let suffix = BINARY_SUFFIXES.iter().find(|(_, p)| *p == power).map_or("", |(s, _)| s);
        Some(format!("{}{suffix}", amount.integer_text()?))
    }
}

impl FromStr for Quantity {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parts = split(text)?;
        let unit = unit(parts.suffix)?;
        let digits: Vec<u8> = parts.whole.bytes().chain(parts.fraction.bytes()).map(|b| b - b'0').collect();
        let written = Decimal::new(parts.negative, digits, -(parts.fraction.len() as i64));
        if let Some(quantity) = narrow(text, &parts, unit, &written) {
            return Ok(quantity);
        }
        if !parts.has_digits {
            return Err(ParseError::Numeric);
        }
        Ok(wide(unit, written))
    }
}

/// Quantities that fit Go's 64-bit form, some of which remember their text.
fn narrow(text: &str, parts: &Parts<'_>, unit: Unit, written: &Decimal) -> Option<Quantity> {
    let length = (parts.whole.len() + parts.fraction.len()) as i64;
    match unit {
        Unit::Ten(exponent, format) => {
            let scale = i64::from(exponent) - parts.fraction.len() as i64;
            if length > 18 || scale < NANO {
                return None;
            }
            let starts_with_zero = parts.whole.starts_with('0');
            let shifted_ends_in_thousands = format!("{}{}", parts.whole, parts.fraction).ends_with("000");
            let keeps_text = scale % 3 == 0 && !shifted_ends_in_thousands && !starts_with_zero || text == "0";
            let amount = shifted(written, i64::from(exponent));
            Some(Quantity { amount, format, text: keeps_text.then(|| text.into()), wide: false })
        }
        Unit::Binary(power) => {
            let precision = 15 - parts.whole.len() as i64 - i64::from(power * 3) - 1;
            if !parts.fraction.is_empty() || precision < 0 {
                return None;
            }
            let value: i64 = parts.whole.parse().ok()?;
            let keeps_text = value & 7 != 0;
            let amount = times_1024(written, power);
            let text = keeps_text.then(|| text.into());
            Some(Quantity { amount, format: Format::BinarySI, text, wide: false })
        }
    }
}

/// Everything else: rounded up to nano, binary ones capped at 64 bits.
fn wide(unit: Unit, written: Decimal) -> Quantity {
    let (amount, format) = match unit {
        Unit::Ten(exponent, format) => (shifted(&written, i64::from(exponent)).rounded_up(NANO), format),
        Unit::Binary(power) => {
            let amount = times_1024(&written, power).rounded_up(NANO);
            let max = Decimal::from_i64(i64::MAX);
            let magnitude = amount.clone().with_sign(false);
            if magnitude.compare(&max) == Ordering::Greater {
                (max.with_sign(amount.negative), Format::BinarySI)
            } else if magnitude.compare(&Decimal::from_i64(1)) == Ordering::Less && !amount.is_zero() {
                (amount, Format::DecimalSI)
            } else {
                (amount, Format::BinarySI)
            }
        }
    };
    Quantity { amount, format, text: None, wide: true }
}

fn shifted(number: &Decimal, exponent: i64) -> Decimal {
    number.clone().scaled(exponent)
}

fn times_1024(number: &Decimal, power: u32) -> Decimal {
    (0..power).fold(number.clone(), |n, _| n.times(1024))
}

/// Cuts the text as apimachinery's scanner does; it lets `.` and `Ki` pass as zero.
fn split(text: &str) -> Result<Parts<'_>, ParseError> {
    if text.is_empty() {
        return Err(ParseError::Format);
    }
    let (negative, rest) = match text.as_bytes()[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let span = |s: &str, set: fn(u8) -> bool| s.bytes().take_while(|b| set(*b)).count();
    let (whole, after) = rest.split_at(span(rest, |b| b.is_ascii_digit()));
    let (fraction, after) = match after.strip_prefix('.') {
        Some(tail) => tail.split_at(span(tail, |b| b.is_ascii_digit())),
        None => ("", after),
    };
    let letters = span(after, |b| b"eEinumkKMGTP".contains(&b));
    let tail = &after[letters..];
    let tail = tail.strip_prefix(['-', '+']).unwrap_or(tail);
    if span(tail, |b| b.is_ascii_digit()) != tail.len() {
        return Err(ParseError::Format);
    }
    let has_digits = !whole.is_empty() || !fraction.is_empty();
    let significant = whole.trim_start_matches('0');
    let whole = if significant.is_empty() { "0" } else { significant };
    Ok(Parts { negative, whole, fraction, suffix: after, has_digits })
}

fn unit(suffix: &str) -> Result<Unit, ParseError> {
    if let Some((_, exponent)) = DECIMAL_SUFFIXES.iter().find(|(s, _)| *s == suffix) {
        return Ok(Unit::Ten(*exponent as i32, Format::DecimalSI));
    }
    if let Some((_, power)) = BINARY_SUFFIXES.iter().find(|(s, _)| *s == suffix) {
        return Ok(Unit::Binary(*power));
    }
    let exponent = suffix.strip_prefix(['e', 'E']).ok_or(ParseError::Suffix)?;
    let exponent: i64 = exponent.parse().map_err(|_| ParseError::Suffix)?;
    // Go keeps the low 32 bits.
    Ok(Unit::Ten(exponent as i32, Format::DecimalExponent))
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => f.write_str(text),
            None => f.write_str(&self.canonical()),
        }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.amount == other.amount
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.amount.compare(&other.amount)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity, such as 500m, 4Gi or 2")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.trim().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Quantity, E> {
                Ok(Quantity::from_value(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Quantity, E> {
                self.visit_str(&value.to_string())
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Quantity, E> {
                self.visit_str(&value.to_string())
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "pattern": PATTERN,
            "maxLength": MAX_LENGTH,
        })
    }
}

#[cfg(test)]
mod tests;
