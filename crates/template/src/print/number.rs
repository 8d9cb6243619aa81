//! Numbers with fractions as Go writes them: the shortest text that reads back as the same, or a given number of digits.

/// As `%v`: an exponent below 1e-4 and from 1e6 on.
pub(crate) fn shortest(number: f64) -> String {
    general(number, None, 'e')
}

/// As `encoding/json` writes it.
pub(crate) fn json(number: f64) -> String {
    let size = number.abs();
    if size != 0.0 && !(1e-6..1e21).contains(&size) {
        // Go takes the zero out of e-09 here, and here only.
        let text = exponent(number, None, 'e');
        return match text.split_once("e-0") {
            Some((digits, power)) => format!("{digits}e-{power}"),
            None => text,
        };
    }
    format!("{number}")
}

/// Not a number, and infinities.
fn special(number: f64) -> Option<&'static str> {
    match number {
        number if number.is_nan() => Some("NaN"),
        f64::INFINITY => Some("+Inf"),
        f64::NEG_INFINITY => Some("-Inf"),
        _ => None,
    }
}

/// `%e`: `1.5e+06`.
pub(crate) fn exponent(number: f64, digits: Option<usize>, letter: char) -> String {
    if let Some(text) = special(number) {
        return text.to_owned();
    }
    let text = match digits {
        Some(digits) => format!("{number:.digits$e}"),
        None => format!("{number:e}"),
    };
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, power) = match power.strip_prefix('-') {
        Some(power) => ('-', power),
        None => ('+', power),
    };
    format!("{mantissa}{letter}{sign}{power:0>2}")
}

/// `%f`: `1500000.000000`.
pub(crate) fn fixed(number: f64, digits: Option<usize>) -> String {
    match (special(number), digits) {
        (Some(text), _) => text.to_owned(),
        (None, Some(digits)) => format!("{number:.digits$}"),
        (None, None) => format!("{number}"),
    }
}

/// `%x`: `0x1.8p+00`, with as many digits behind the point as are needed or wanted.
pub(crate) fn hexadecimal(number: f64, digits: Option<usize>) -> String {
    if let Some(text) = special(number) {
        return text.to_owned();
    }
    let bits = number.abs().to_bits();
    let (mut exponent, mut fraction) = ((bits >> 52) as i64, bits & ((1 << 52) - 1));
    let mut whole = u64::from(exponent > 0);
    if exponent == 0 && fraction > 0 {
        // Made to begin with a one, like the others.
        let shift = fraction.leading_zeros() - 11;
        fraction = (fraction << shift) & ((1 << 52) - 1);
        (exponent, whole) = (1 - i64::from(shift), 1);
    }
    exponent = if whole == 0 { 0 } else { exponent - 1023 };
    if let Some(digits) = digits.filter(|digits| *digits < 13) {
        let drop = 4 * (13 - digits);
        let value = whole << 52 | fraction;
        let (kept, rest) = (value >> drop, value & ((1 << drop) - 1));
        let half = 1 << (drop - 1);
        let rounded = kept + u64::from(rest > half || rest == half && kept & 1 == 1);
        let value = rounded << drop;
        exponent += i64::from(value >> 53 == 1);
        let value = if value >> 53 == 1 { value >> 1 } else { value };
        fraction = value & ((1 << 52) - 1);
    }
    let text = format!("{fraction:013x}");
    let shown = match digits {
        Some(digits) => format!("{text:0<digits$}")[..digits].to_owned(),
        None => text.trim_end_matches('0').to_owned(),
    };
    let point = if shown.is_empty() { "" } else { "." };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("0x{whole}{point}{shown}p{sign}{:02}", exponent.abs())
}

/// `%g`: whichever of the two is shorter. Without a number of digits, those that are needed.
pub(crate) fn general(number: f64, digits: Option<usize>, letter: char) -> String {
    if let Some(text) = special(number) {
        return text.to_owned();
    }
    let digits = digits.map(|digits| digits.max(1));
    let text = exponent(number, digits.map(|digits| digits - 1), letter);
    let (mantissa, power) = text.split_once(letter).unwrap_or((&text, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    let mantissa = match mantissa.contains('.') {
        true => mantissa.trim_end_matches('0').trim_end_matches('.'),
        false => mantissa,
    };
    let significant = mantissa.bytes().filter(u8::is_ascii_digit).count();
    let limit = match digits {
        Some(digits) => i32::try_from(digits).unwrap_or(i32::MAX),
        None => 6,
    };
    if power < -4 || power >= limit {
        return format!("{mantissa}{}", &text[text.find(letter).unwrap_or(text.len())..]);
    }
    let behind = (significant as i64 - 1 - i64::from(power)).max(0);
    format!("{number:.*}", usize::try_from(behind).unwrap_or(0))
}
