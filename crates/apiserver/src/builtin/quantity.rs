//! Kubernetes quantities: reading them, comparing them and their canonical text.
//!
//! Arithmetic is on integers of 10^-9, so that what Go keeps exact is exact here, too.

/// A number with the family of suffixes it was written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantity {
    /// In units of 10^-9.
    nanos: i128,
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    BinarySi,
    DecimalSi,
    DecimalExponent,
}

const NANO: i128 = 1_000_000_000;
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// With the power of ten that each stands for.
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

impl Quantity {
    pub fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let (format, power) = Self::suffix(suffix)?;
        let nanos = match power {
            Power::Ten(exponent) => scale_ten(whole, fraction, exponent)?,
            Power::Two(exponent) => {
                scale_ten(whole, fraction, 0)?.checked_mul(1_i128.checked_shl(exponent)?)?
            }
        };
        Some(Self { nanos: if negative { -nanos } else { nanos }, format })
    }

    fn suffix(suffix: &str) -> Option<(Format, Power)> {
        if let Some(index) = BINARY.iter().skip(1).position(|name| *name == suffix) {
            let exponent = u32::try_from((index + 1) * 10).ok()?;
            return Some((Format::BinarySi, Power::Two(exponent)));
        }
        if let Some((_, exponent)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
            return Some((Format::DecimalSi, Power::Ten(*exponent)));
        }
        let digits = suffix.strip_prefix(['e', 'E'])?;
        let exponent: i32 = digits.parse().ok()?;
        (-30..=30).contains(&exponent).then_some((Format::DecimalExponent, Power::Ten(exponent)))
    }

    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    pub fn is_integer(self) -> bool {
        self.nanos % NANO == 0
    }

    /// Order by value; how they were written does not matter.
    pub fn compare(self, other: Self) -> std::cmp::Ordering {
        self.nanos.cmp(&other.nanos)
    }

    /// The canonical text: the largest suffix of its family that leaves an integer.
    pub fn canonical(self) -> String {
        let Self { nanos, format } = self;
        if nanos == 0 {
            return "0".to_owned();
        }
        // Binary suffixes cannot say fractions, and Go falls back for anything under 1024.
        if format == Format::BinarySi && nanos % NANO == 0 && (nanos / NANO).abs() >= 1024 {
            let mut value = nanos / NANO;
            let mut index = 0;
            while value % 1024 == 0 && index + 1 < BINARY.len() {
                value /= 1024;
                index += 1;
            }
            return format!("{value}{}", BINARY[index]);
        }
        let mut value = nanos;
        let mut exponent = -9;
        while value % 1000 == 0 && exponent < 18 {
            value /= 1000;
            exponent += 3;
        }
        match format {
            Format::DecimalExponent if exponent != 0 => format!("{value}e{exponent}"),
            _ => {
                let suffix =
                    DECIMAL.iter().find(|(_, power)| *power == exponent).map_or("", |(name, _)| *name);
                format!("{value}{suffix}")
            }
        }
    }
}

enum Power {
    Ten(i32),
    Two(u32),
}

/// `whole.fraction * 10^exponent` in nanos, rounded up (away from zero) as Go does below a nano.
fn scale_ten(whole: &str, fraction: &str, exponent: i32) -> Option<i128> {
    let mut digits: i128 = 0;
    for digit in whole.bytes().chain(fraction.bytes()) {
        digits = digits.checked_mul(10)?.checked_add(i128::from(digit - b'0'))?;
    }
    let shift = exponent + 9 - i32::try_from(fraction.len()).ok()?;
    let ten = 10_i128.checked_pow(shift.unsigned_abs())?;
    if shift >= 0 { digits.checked_mul(ten) } else { Some(digits / ten + i128::from(digits % ten != 0)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn canonical_texts() {
        for (text, canonical) in [
            ("0.5", "500m"),
            ("1024Mi", "1Gi"),
            ("1000Mi", "1000Mi"),
            ("1e3", "1e3"),
            ("0.5Gi", "512Mi"),
            ("1000m", "1"),
            ("1000", "1k"),
            ("0", "0"),
            ("-1", "-1"),
            ("100M", "100M"),
            ("1536Ki", "1536Ki"),
            ("1.5Gi", "1536Mi"),
            ("0.0001", "100u"),
            ("12e6", "12e6"),
            ("1Ki", "1Ki"),
            ("0Ki", "0"),
            (".5", "500m"),
            ("5.", "5"),
            ("1E", "1E"),
        ] {
            assert_eq!(Quantity::parse(text).map(Quantity::canonical).as_deref(), Some(canonical), "{text}");
        }
        for text in ["", "-", ".", "1x", "1.2.3", "Ki", "1 ", "1e", "1ki"] {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn canonical_text_is_stable(text in "-?[0-9]{1,6}(\\.[0-9]{1,4})?(n|u|m||k|M|G|Ki|Mi|Gi|e3|e-3)") {
            let quantity = Quantity::parse(&text).expect("well formed");
            let canonical = quantity.canonical();
            let again = Quantity::parse(&canonical).expect("canonical text parses");
            prop_assert_eq!(again.compare(quantity), std::cmp::Ordering::Equal);
            prop_assert_eq!(again.canonical(), canonical);
        }
    }
}
