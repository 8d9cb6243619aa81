//! Constants as Go writes them: numbers in all bases, strings, characters.

use crate::tree::Number;

/// A number: decimal, with a base, a fraction, an exponent.
pub(crate) fn number(text: &str) -> Result<Number, String> {
    if text.ends_with('i') && !is_hexadecimal(text) {
        return Err(format!("complex numbers such as {text} are not supported; write a plain number"));
    }
    let has_point = text.contains(['.', 'p', 'P']) || !is_hexadecimal(text) && text.contains(['e', 'E']);
    if let Some(int) = integer(text) {
        return Ok(Number { int: Some(int), float: Some(int as f64), written_as_float: false });
    }
    if unsigned(text).is_some() {
        return Err(format!("{text} overflows int; the largest is {}", i64::MAX));
    }
    let Some(float) = float(text) else { return Err(format!("illegal number syntax: {text:?}")) };
    if !has_point {
        return Err(format!("integer overflow: {text:?}; the largest is {}", i64::MAX));
    }
    let whole = float.trunc() == float && float.abs() < 9.3e18 && (float as i64) as f64 == float;
    Ok(Number { int: whole.then_some(float as i64), float: Some(float), written_as_float: true })
}

/// A character between single quotes.
pub(crate) fn character(text: &str) -> Result<Number, String> {
    let malformed = || format!("malformed character constant: {text}");
    let inner = text.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).ok_or_else(malformed)?;
    let (unit, rest) = unit(inner, '\'').ok_or_else(malformed)?;
    if !rest.is_empty() {
        return Err(malformed());
    }
    let code = match unit {
        Unit::Char(char) => i64::from(u32::from(char)),
        Unit::Byte(byte) => i64::from(byte),
    };
    Ok(Number { int: Some(code), float: Some(code as f64), written_as_float: false })
}

/// A string between quotes or backquotes.
pub(crate) fn string(text: &str) -> Result<String, String> {
    if let Some(raw) = text.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) {
        return Ok(raw.replace('\r', ""));
    }
    let invalid = || format!("invalid syntax in the string {text}");
    let mut rest = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).ok_or_else(invalid)?;
    let mut bytes = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        let (unit, after) = unit(rest, '"').ok_or_else(invalid)?;
        match unit {
            Unit::Char(char) => bytes.extend(char.encode_utf8(&mut [0; 4]).as_bytes()),
            Unit::Byte(byte) => bytes.push(byte),
        }
        rest = after;
    }
    String::from_utf8(bytes).map_err(|_| format!("the string {text} is not valid UTF-8"))
}

enum Unit {
    Char(char),
    Byte(u8),
}

/// The first character of the inside of a string, or what its escape means; and what follows.
fn unit(text: &str, quote: char) -> Option<(Unit, &str)> {
    let mut chars = text.chars();
    let first = chars.next()?;
    if first == quote || first == '\n' {
        return None;
    }
    if first != '\\' {
        return Some((Unit::Char(first), chars.as_str()));
    }
    let escape = chars.next()?;
    let after = chars.as_str();
    let hexadecimal = |digits: usize| {
        let digits = after.get(..digits).filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        Some((u32::from_str_radix(digits, 16).ok()?, &after[digits.len()..]))
    };
    let simple = |char: char| Some((Unit::Char(char), after));
    match escape {
        'a' => simple('\u{7}'),
        'b' => simple('\u{8}'),
        'f' => simple('\u{c}'),
        'n' => simple('\n'),
        'r' => simple('\r'),
        't' => simple('\t'),
        'v' => simple('\u{b}'),
        '\\' => simple('\\'),
        '\'' | '"' if escape == quote => simple(escape),
        'x' => hexadecimal(2).map(|(code, rest)| (byte_unit(code), rest)),
        'u' => hexadecimal(4).and_then(|(code, rest)| Some((Unit::Char(char::from_u32(code)?), rest))),
        'U' => hexadecimal(8).and_then(|(code, rest)| Some((Unit::Char(char::from_u32(code)?), rest))),
        '0'..='7' => {
            let digits =
                text.get(1..4).filter(|text| text.bytes().all(|byte| (b'0'..=b'7').contains(&byte)))?;
            let code = u32::from_str_radix(digits, 8).ok().filter(|code| *code < 256)?;
            Some((byte_unit(code), &text[4..]))
        }
        _ => None,
    }
}

fn byte_unit(code: u32) -> Unit {
    Unit::Byte(u8::try_from(code).unwrap_or(u8::MAX))
}

fn is_hexadecimal(text: &str) -> bool {
    let digits = text.trim_start_matches(['+', '-']);
    digits.starts_with("0x") || digits.starts_with("0X")
}

/// As Go's `strconv.ParseInt` with base 0.
pub(crate) fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = sign(text);
    let magnitude = unsigned(digits)?;
    match negative {
        true => 0_i64.checked_sub_unsigned(magnitude),
        false => i64::try_from(magnitude).ok(),
    }
}

/// As Go's `strconv.ParseUint` with base 0.
pub(crate) fn unsigned(text: &str) -> Option<u64> {
    let (radix, digits) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &text[2..]),
        [b'0', b'o' | b'O', ..] => (8, &text[2..]),
        [b'0', b'b' | b'B', ..] => (2, &text[2..]),
        [b'0', _, ..] => (8, &text[1..]),
        _ => (10, text),
    };
    if digits.contains('_') && !underscores_separate(text) {
        return None;
    }
    let digits = digits.replace('_', "");
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    u64::from_str_radix(&digits, radix).ok()
}

fn sign(text: &str) -> (bool, &str) {
    match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    }
}

/// Underscores stand between digits, or after a prefix, and nowhere else.
fn underscores_separate(text: &str) -> bool {
    let (_, digits) = sign(text);
    let prefixed = matches!(digits.as_bytes(), [b'0', b'x' | b'X' | b'o' | b'O' | b'b' | b'B', ..]);
    let is_digit = |byte: u8| byte.is_ascii_digit() || is_hexadecimal(digits) && byte.is_ascii_hexdigit();
    let rest = if prefixed { &digits[2..] } else { digits };
    let mut previous = if prefixed { b'0' } else { b'!' };
    for byte in rest.bytes() {
        let class = match byte {
            byte if is_digit(byte) => b'0',
            b'_' if previous == b'0' => b'_',
            b'_' => return false,
            _ if previous == b'_' => return false,
            _ => b'!',
        };
        previous = class;
    }
    previous != b'_'
}

/// As Go's `strconv.ParseFloat`.
pub(crate) fn float(text: &str) -> Option<f64> {
    if text.contains('_') && !underscores_separate(text) {
        return None;
    }
    let plain = text.replace('_', "");
    let (negative, digits) = sign(&plain);
    if is_hexadecimal(digits) {
        let value = hexadecimal_float(&digits[2..])?;
        return Some(if negative { -value } else { value });
    }
    let lower = digits.to_ascii_lowercase();
    if matches!(lower.as_str(), "inf" | "infinity") {
        return Some(if negative { f64::NEG_INFINITY } else { f64::INFINITY });
    }
    if lower == "nan" {
        return Some(f64::NAN);
    }
    if !digits.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte)) {
        return None;
    }
    // What is too large is an error in Go, and infinite in Rust.
    plain.parse::<f64>().ok().filter(|value| value.is_finite())
}

/// `1.8p3`: an exponent there must be.
fn hexadecimal_float(text: &str) -> Option<f64> {
    let (mantissa, exponent) = text.split_once(['p', 'P'])?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || digits.len() > 13 {
        return None;
    }
    let mantissa = u64::from_str_radix(&digits, 16).ok()? as f64;
    let exponent: i32 = exponent.parse().ok()?;
    let shift = exponent.checked_sub(4 * i32::try_from(fraction.len()).ok()?)?;
    Some(mantissa * 2_f64.powi(shift)).filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_numbers_as_go_does() {
        for (text, int) in [
            ("0", 0),
            ("-7", -7),
            ("+7", 7),
            ("1_000", 1000),
            ("0x1F", 31),
            ("0X_1f", 31),
            ("0o17", 15),
            ("017", 15),
            ("0b101", 5),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(number(text).unwrap().int, Some(int), "{text}");
        }
        for (text, float) in
            [("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5), ("0x1p-2", 0.25), ("1_0.2_5", 10.25)]
        {
            assert_eq!(number(text).unwrap().float, Some(float), "{text}");
        }
        for text in
            ["9223372036854775808", "1__0", "1_", "0x", "089", "1e999", "1i", "abc", "99999999999999999999"]
        {
            assert!(number(text).is_err(), "{text}");
        }
    }

    #[test]
    fn reads_strings_as_go_does() {
        for (text, inner) in [
            (r#""a\tb\"c\\""#, "a\tb\"c\\"),
            (r#""\u00e9\U0001F600\xc3\xa9\101""#, "é😀éA"),
            ("`a\\n\r\n`", "a\\n\n"),
        ] {
            assert_eq!(string(text).unwrap(), inner, "{text}");
        }
        for text in [r#""\'""#, r#""\q""#, r#""\ud800""#, r#""\xff""#, r#""\400""#, r#""\x1é""#] {
            assert!(string(text).is_err(), "{text}");
        }
        assert_eq!(character("'a'").unwrap().int, Some(97));
        assert_eq!(character(r"'\''").unwrap().int, Some(39));
        assert_eq!(character(r"'\n'").unwrap().int, Some(10));
        for text in ["''", "'ab'", r"'\q'"] {
            assert!(character(text).is_err(), "{text}");
        }
    }
}
