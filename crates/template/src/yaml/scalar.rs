//! What a scalar without quotes means in YAML 1.1, and so which strings need quotes.

use crate::literal;

/// What a scalar without quotes stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Plain {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    /// The key that takes in other maps.
    Merge,
    /// A date: a string to whoever reads it, but one that is written with quotes.
    Date,
    Text,
}

const WORDS: &[(&[&str], Plain)] = &[
    (&["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"], Plain::Bool(true)),
    (&["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"], Plain::Bool(false)),
    (&["", "~", "null", "Null", "NULL"], Plain::Null),
    (&[".nan", ".NaN", ".NAN"], Plain::Float(f64::NAN)),
    (&[".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"], Plain::Float(f64::INFINITY)),
    (&["-.inf", "-.Inf", "-.INF"], Plain::Float(f64::NEG_INFINITY)),
    (&["<<"], Plain::Merge),
];

pub(super) fn resolve(text: &str) -> Plain {
    if let Some((_, meaning)) = WORDS.iter().find(|(words, _)| words.contains(&text)) {
        // NaN is not equal to itself, but these never are compared.
        return *meaning;
    }
    match text.as_bytes().first() {
        Some(b'.') => literal::float(text).map_or(Plain::Text, Plain::Float),
        Some(b'0'..=b'9' | b'+' | b'-') => number(text),
        _ => Plain::Text,
    }
}

fn number(text: &str) -> Plain {
    if is_date(text) {
        return Plain::Date;
    }
    let plain = text.replace('_', "");
    if let Some(number) = literal::integer(&plain) {
        return Plain::Int(number);
    }
    if let Some(number) = literal::unsigned(&plain) {
        return Plain::Uint(number);
    }
    match is_float(&plain).then(|| literal::float(&plain)).flatten() {
        Some(number) => Plain::Float(number),
        None => Plain::Text,
    }
}

/// Digits with a point somewhere, and an exponent.
fn is_float(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let exponent_fits = exponent.is_none_or(|exponent| {
        let power = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !power.is_empty() && digits(power)
    });
    let mantissa_fits = match mantissa.split_once('.') {
        Some(("", fraction)) => !fraction.is_empty() && digits(fraction),
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => !mantissa.is_empty() && digits(mantissa),
    };
    mantissa_fits && exponent_fits
}

/// `2001-2-3`, and the same with a time behind it.
fn is_date(text: &str) -> bool {
    let (date, time) = match text.find(['T', 't', ' ']) {
        Some(at) => (&text[..at], Some((&text[at..at + 1], &text[at + 1..]))),
        None => (text, None),
    };
    let fields: Vec<&str> = date.split('-').collect();
    let [year, month, day] = fields[..] else { return false };
    let in_range = |field: &str, range: std::ops::RangeInclusive<u32>| {
        let short = (1..=2).contains(&field.len()) && field.bytes().all(|byte| byte.is_ascii_digit());
        short && field.parse().is_ok_and(|number: u32| range.contains(&number))
    };
    let is_year = year.len() == 4 && year.bytes().all(|byte| byte.is_ascii_digit());
    if !is_year || !in_range(month, 1..=12) || !in_range(day, 1..=days(year, month)) {
        return false;
    }
    let Some((separator, time)) = time else { return true };
    let (clock, has_zone) = match time.strip_suffix('Z') {
        Some(clock) => (clock, true),
        None => match time.rfind(['+', '-']) {
            Some(at) => (&time[..at], is_zone(&time[at + 1..])),
            None => (time, false),
        },
    };
    let clock: Vec<&str> = clock.split(':').collect();
    let [hour, minute, second] = clock[..] else { return false };
    let (second, fraction) = second.split_once('.').unwrap_or((second, "0"));
    let is_time = in_range(hour, 0..=23)
        && in_range(minute, 0..=59)
        && in_range(second, 0..=59)
        && !fraction.is_empty()
        && fraction.bytes().all(|byte| byte.is_ascii_digit());
    is_time && has_zone == (separator != " ")
}

fn is_zone(text: &str) -> bool {
    let digits = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once(':').is_some_and(|(hours, minutes)| digits(hours) && digits(minutes))
}

fn days(year: &str, month: &str) -> u32 {
    let year: u32 = year.parse().unwrap_or(0);
    let leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    match month.parse().unwrap_or(0) {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// `1:30`, which some readers take for a number with base 60.
pub(super) fn is_sexagesimal(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut fields = whole.split(':');
    let first = fields.next().unwrap_or_default();
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    let minutes = |field: &str| matches!(field.as_bytes(), [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9']);
    whole.contains(':')
        && first.starts_with(|char: char| char.is_ascii_digit())
        && digits(first)
        && fields.all(minutes)
        && digits(fraction)
}
