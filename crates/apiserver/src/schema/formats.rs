//! The string formats that CRD schemas may demand, and Go's own ideas of times and quantities.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::sync::LazyLock;

use regex::Regex;

/// Whether `text` has the format; `None` if the format is not one that the API server knows.
pub fn matches(format: &str, text: &str) -> Option<bool> {
    let normalized = format.replace('-', "");
    Some(match normalized.as_str() {
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
        "uri" => is_uri(text),
        "email" => is_email(text),
        "hostname" => is_hostname(text),
        "ipv4" => text.contains('.') && is_ip(text),
        "ipv6" => text.contains(':') && is_ip(text),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uuid" => is_uuid(text, None),
        "uuid3" => is_uuid(text, Some('3')),
        "uuid4" => is_uuid(text, Some('4')),
        "uuid5" => is_uuid(text, Some('5')),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "creditcard" => is_credit_card(text),
        "ssn" => regex_matches(&SSN, text),
        "hexcolor" => is_hex_color(text),
        "rgbcolor" => regex_matches(&RGB, text),
        "byte" => regex_matches(&BASE64, text),
        "password" => true,
        "date" => is_date(text),
        "duration" => is_duration(text),
        "datetime" => is_date_time(text),
        "k8sshortname" => text.len() <= 63 && is_short_name(text),
        "k8slongname" => text.len() <= 253 && text.split('.').all(is_short_name),
        _ => return None,
    })
}

/// Whether the API server checks the format at all.
pub fn is_known(format: &str) -> bool {
    let plain = || format.bytes().filter(|b| *b != b'-');
    KNOWN.iter().any(|known| known.bytes().eq(plain()))
}

const KNOWN: [&str; 26] = [
    "bsonobjectid",
    "uri",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "cidr",
    "mac",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "isbn",
    "isbn10",
    "isbn13",
    "creditcard",
    "ssn",
    "hexcolor",
    "rgbcolor",
    "byte",
    "password",
    "date",
    "duration",
    "datetime",
    "k8sshortname",
    "k8slongname",
];

type Pattern = LazyLock<Option<Regex>>;

static SSN: Pattern = LazyLock::new(|| Regex::new(r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$").ok());
static RGB: Pattern = LazyLock::new(|| {
    let part = r"\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*";
    Regex::new(&format!(r"^rgb\({part},{part},{part}\)$")).ok()
});
static BASE64: Pattern = LazyLock::new(|| {
    let c = "[A-Za-z0-9+/]";
    Regex::new(&format!("^(?:{c}{{4}})*(?:{c}{{2}}==|{c}{{3}}=|{c}{{4}})$")).ok()
});
static HOSTNAME: Pattern = LazyLock::new(|| {
    let (edge, inner) = (r"[a-zA-Z0-9\p{S}\p{L}]", r"[a-zA-Z0-9\-\p{S}\p{L}]");
    let single = format!(r"{edge}((-?{edge}{{0,62}})?)");
    let dotted = format!(r"({edge}(({inner}{{0,61}}{edge})?)(\.)){{1,}}([a-zA-Z\p{{L}}]){{2,63}}");
    Regex::new(&format!("^({single}|{dotted})$")).ok()
});
static TIME_OF_DAY: Pattern = LazyLock::new(|| {
    Regex::new(r"^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$").ok()
});
static LOOSE_DURATION: Pattern = LazyLock::new(|| Regex::new(r"([0-9]+)\s*([A-Za-zµ]+)").ok());

fn regex_matches(pattern: &Pattern, text: &str) -> bool {
    pattern.as_ref().is_some_and(|regex| regex.is_match(text))
}

fn is_short_name(text: &str) -> bool {
    let fine = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(fine)
        && bytes.last().is_some_and(fine)
        && bytes.iter().all(|b| fine(b) || *b == b'-')
}

fn is_uri(text: &str) -> bool {
    let clean = !text.bytes().any(|b| b.is_ascii_control() || b == b' ');
    let scheme = text.split_once(':').is_some_and(|(scheme, rest)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
            && !rest.is_empty()
    });
    clean && (text.starts_with('/') || scheme)
}

fn is_email(text: &str) -> bool {
    let address = match text.split_once('<') {
        Some((_, rest)) => rest.strip_suffix('>').unwrap_or(""),
        None => text,
    };
    let atom = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && !part.ends_with('.')
            && !part.contains("..")
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || !c.is_ascii() || "!#$%&'*+-/=?^_`{|}~.".contains(c))
    };
    address.rsplit_once('@').is_some_and(|(local, domain)| atom(local) && atom(domain))
}

fn is_hostname(text: &str) -> bool {
    regex_matches(&HOSTNAME, text) && text.len() <= 255 && text.split('.').all(|part| part.len() <= 63)
}

/// Leading zeros in IPv4 addresses are tolerated, as they once were.
fn is_ip(text: &str) -> bool {
    if text.contains(':') {
        return Ipv6Addr::from_str(text).is_ok();
    }
    let parts: Vec<&str> = text.split('.').collect();
    parts.len() == 4 && parts.iter().all(|part| is_number_up_to(part, 255))
}

fn is_number_up_to(text: &str, max: u32) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_digit())
        && text.trim_start_matches('0').len() <= 9
        && text.trim_start_matches('0').parse().unwrap_or(0_u32) <= max
}

fn is_cidr(text: &str) -> bool {
    text.split_once('/').is_some_and(|(address, bits)| {
        let max = if IpAddr::from_str(address).is_ok_and(|ip| ip.is_ipv6()) { 128 } else { 32 };
        is_ip(address) && is_number_up_to(bits, max)
    })
}

fn is_mac(text: &str) -> bool {
    let groups = |separator: char, width: usize, counts: &[usize]| {
        let parts: Vec<&str> = text.split(separator).collect();
        counts.contains(&parts.len())
            && parts.iter().all(|p| p.len() == width && p.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    groups(':', 2, &[6, 8, 20]) || groups('-', 2, &[6, 8, 20]) || groups('.', 4, &[3, 4, 10])
}

fn is_uuid(text: &str, version: Option<char>) -> bool {
    let mut rest = text;
    let mut groups = Vec::new();
    for (i, width) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if i > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some(group) = rest.get(..width) else { return false };
        if !group.bytes().all(|b| b.is_ascii_hexdigit()) {
            return false;
        }
        groups.push(group);
        rest = &rest[width..];
    }
    let variant = || groups[3].starts_with(['8', '9', 'a', 'b', 'A', 'B']);
    rest.is_empty() && version.is_none_or(|v| groups[2].starts_with(v) && (v == '3' || variant()))
}

fn digits(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace() && *c != '-').collect()
}

fn is_isbn10(text: &str) -> bool {
    let text = digits(text);
    let body = text.strip_suffix('X').unwrap_or(&text);
    if text.len() != 10 || !body.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let value = |b: u8| if b == b'X' { 10 } else { u32::from(b - b'0') };
    text.bytes().zip(1..).map(|(b, i)| value(b) * i).sum::<u32>() % 11 == 0
}

fn is_isbn13(text: &str) -> bool {
    let text = digits(text);
    text.len() == 13
        && text.bytes().all(|b| b.is_ascii_digit())
        && text.bytes().zip([1, 3].into_iter().cycle()).map(|(b, f)| u32::from(b - b'0') * f).sum::<u32>()
            % 10
            == 0
}

fn is_credit_card(text: &str) -> bool {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(i, d)| if i % 2 == 1 { if d * 2 > 9 { d * 2 - 9 } else { d * 2 } } else { *d })
        .sum();
    (13..=16).contains(&digits.len()) && matches!(digits[0], 1..=6) && sum.is_multiple_of(10)
}

fn is_hex_color(text: &str) -> bool {
    let hex = text.strip_prefix('#').unwrap_or(text);
    matches!(hex.len(), 3 | 6) && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    text.len() == 10
        && bytes[4] == b'-'
        && bytes[7] == b'-'
        && jiff::civil::Date::strptime("%Y-%m-%d", text).is_ok()
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    let Some(found) = TIME_OF_DAY.as_ref().and_then(|regex| regex.captures(time)) else { return false };
    is_date(date) && &found[1] <= "23" && &found[2] <= "59" && &found[3] <= "59"
}

/// `time.ParseDuration`, or the looser "3 days".
fn is_duration(text: &str) -> bool {
    if is_go_duration(text) {
        return true;
    }
    let units = ["ns", "us", "µs", "ms", "s", "m", "h", "d", "w"];
    let words = ["nano", "micro", "milli", "sec", "min", "hour", "day", "week"];
    let short = ["hr", "wk"];
    LOOSE_DURATION.as_ref().is_some_and(|regex| {
        regex.captures_iter(text).any(|found| {
            let unit = found[2].to_lowercase();
            units.contains(&unit.as_str())
                || short.contains(&unit.as_str())
                || words.iter().any(|word| unit.starts_with(word))
        })
    })
}

/// Whether Go's `time.ParseDuration` takes it: `1h30m`, `-1.5s`, `0`.
pub fn is_go_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (digits, after) = rest.split_at(number);
        if digits.matches('.').count() > 1 || !digits.bytes().any(|b| b.is_ascii_digit()) {
            return false;
        }
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        if !matches!(unit, "ns" | "us" | "µs" | "μs" | "ms" | "s" | "m" | "h") {
            return false;
        }
        rest = after;
    }
    true
}

/// Whether the text is a quantity: a signed decimal and a suffix.
pub fn is_quantity(text: &str) -> bool {
    let rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    if number.matches('.').count() > 1 || !number.bytes().any(|b| b.is_ascii_digit()) {
        return false;
    }
    match suffix {
        "" | "Ki" | "Mi" | "Gi" | "Ti" | "Pi" | "Ei" | "n" | "u" | "m" | "k" | "M" | "G" | "T" | "P"
        | "E" => true,
        exponent => exponent.strip_prefix(['e', 'E']).is_some_and(|digits| {
            let digits = digits.strip_prefix(['+', '-']).unwrap_or(digits);
            !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
        }),
    }
}

/// What Go's `time.Parse` says of a text that is not an RFC 3339 time; `None` if it is one.
pub fn go_time_error(text: &str, layout: &str) -> Option<String> {
    let mut rest = text;
    let fail = |rest: &str, element: &str| {
        Some(format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {element:?}"))
    };
    let out_of_range = |what: &str| Some(format!("parsing time {text:?}: {what} out of range"));
    let mut numbers = [0_u32; 6];
    let elements = [("2006", 4), ("01", 2), ("02", 2), ("15", 2), ("04", 2), ("05", 2)];
    let separators = ["", "-", "-", "T", ":", ":"];
    for (i, ((element, width), separator)) in elements.into_iter().zip(separators).enumerate() {
        let Some(after) = rest.strip_prefix(separator) else { return fail(rest, separator) };
        let number = after.get(..width).filter(|n| n.bytes().all(|b| b.is_ascii_digit()));
        let Some(number) = number else { return fail(after, element) };
        numbers[i] = number.parse().unwrap_or(0);
        rest = &after[width..];
        let range = match i {
            1 if !(1..=12).contains(&numbers[1]) => Some("month"),
            3 if numbers[3] > 23 => Some("hour"),
            4 if numbers[4] > 59 => Some("minute"),
            5 if numbers[5] > 59 => Some("second"),
            _ => None,
        };
        if let Some(what) = range {
            return out_of_range(what);
        }
    }
    if let Some(fraction) = rest.strip_prefix(['.', ',']) {
        let end = fraction.find(|c: char| !c.is_ascii_digit()).unwrap_or(fraction.len());
        if end > 0 {
            rest = &fraction[end..];
        }
    } else if layout.contains(".000000") {
        return fail(rest, ".000000");
    }
    let days = |year: u32, month: u32| match month {
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let zone = match rest.as_bytes() {
        [b'Z', ..] => 1,
        [b'+' | b'-', a, b, b':', c, d, ..] if [a, b, c, d].iter().all(|b| b.is_ascii_digit()) => 6,
        _ => return fail(rest, "Z07:00"),
    };
    if !rest[zone..].is_empty() {
        return Some(format!("parsing time {text:?}: extra text: {:?}", &rest[zone..]));
    }
    let day = numbers[2];
    if day == 0 || day > days(numbers[0], numbers[1]) { out_of_range("day") } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        let yes = [
            ("date-time", "2024-01-02T03:04:05Z"),
            ("date-time", "2024-01-02t03:04:05.123+01:00"),
            ("date", "2024-02-29"),
            ("ipv4", "1.2.3.4"),
            ("ipv4", "01.2.3.4"),
            ("ipv6", "::1"),
            ("cidr", "10.0.0.0/8"),
            ("cidr", "fe80::/10"),
            ("mac", "01:23:45:67:89:ab"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000"),
            ("uuid4", "123e4567e89b42d3a456426614174000"),
            ("duration", "1h30m"),
            ("duration", "3 days"),
            ("duration", "-1.5s"),
            ("byte", "aGk="),
            ("uri", "https://example.com/x"),
            ("uri", "/a"),
            ("email", "a@b.c"),
            ("email", "Bob <a@b.c>"),
            ("hostname", "example.com"),
            ("hostname", "localhost"),
            ("k8s-short-name", "a-1"),
            ("k8s-long-name", "a.b-c"),
            ("hexcolor", "#fff"),
            ("rgbcolor", "rgb(1, 2,255)"),
            ("isbn", "978-0321751041"),
            ("isbn10", "0321751043"),
            ("ssn", "123-45-6789"),
            ("creditcard", "4111 1111 1111 1111"),
            ("password", ""),
            ("bsonobjectid", "507f1f77bcf86cd799439011"),
        ];
        let no = [
            ("date-time", "x"),
            ("date-time", "2024-13-02T03:04:05Z"),
            ("date-time", "2024-01-02T24:04:05Z"),
            ("date", "2023-02-29"),
            ("date", "2024-1-02"),
            ("ipv4", "256.1.1.1"),
            ("ipv6", "1.2.3.4"),
            ("cidr", "10.0.0.0/33"),
            ("mac", "x"),
            ("uuid", "x"),
            ("uuid5", "123e4567-e89b-42d3-a456-426614174000"),
            ("duration", "x"),
            ("duration", "1"),
            ("byte", "%"),
            ("byte", "a"),
            ("uri", "x"),
            ("email", "x"),
            ("hostname", "_"),
            ("k8s-short-name", "A.b"),
            ("hexcolor", "#ffff"),
            ("isbn13", "978-0321751042"),
            ("creditcard", "4111 1111 1111 1112"),
        ];
        for (format, text) in yes {
            assert_eq!(matches(format, text), Some(true), "{format} {text}");
        }
        for (format, text) in no {
            assert_eq!(matches(format, text), Some(false), "{format} {text}");
        }
        assert_eq!(matches("whatever", "x"), None);
        assert!(KNOWN.iter().all(|format| matches(format, "").is_some()));
        assert!(is_known("date-time") && is_known("k8s-long-name") && !is_known("whatever"));
    }

    #[test]
    fn go_times() {
        const LAYOUT: &str = "2006-01-02T15:04:05Z07:00";
        for text in ["2024-01-02T03:04:05Z", "2024-01-02T03:04:05.5Z", "2024-02-29T03:04:05+01:00"] {
            assert_eq!(go_time_error(text, LAYOUT), None, "{text}");
        }
        let table = [
            ("yesterday", "as \"2006-01-02T15:04:05Z07:00\": cannot parse \"yesterday\" as \"2006\""),
            ("2024-01-02", "as \"2006-01-02T15:04:05Z07:00\": cannot parse \"\" as \"T\""),
            ("2024-01-02T03:04:05", "as \"2006-01-02T15:04:05Z07:00\": cannot parse \"\" as \"Z07:00\""),
        ];
        for (text, want) in table {
            assert_eq!(go_time_error(text, LAYOUT), Some(format!("parsing time {text:?} {want}")));
        }
        assert_eq!(
            go_time_error("2023-02-29T00:00:00Z", LAYOUT).as_deref(),
            Some("parsing time \"2023-02-29T00:00:00Z\": day out of range")
        );
    }

    #[test]
    fn quantities() {
        for text in ["1", "100m", "1.5Gi", ".5", "-2k", "1e3", "1E-3", "5."] {
            assert!(is_quantity(text), "{text}");
        }
        for text in ["", "xx", "1.2.3", "1kb", "1e", "m"] {
            assert!(!is_quantity(text), "{text}");
        }
    }
}
