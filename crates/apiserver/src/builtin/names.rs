//! The formats of names, keys and labels, with the messages of the real server.
//!
//! Every function returns what is wrong with a value; nothing means that it is fine.

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
     start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
     '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const NAME_PART: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
     alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
     '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
     '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex \
     used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
     'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
const ENV_NAME: &str =
    "a valid environment variable name must consist only of printable ASCII characters other than '='";
const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or \
     '93%', regex used for validation is '[0-9]+%')";

fn is_label(value: &str) -> bool {
    let edge = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = value.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(&first), Some(&last)) => {
            edge(first) && edge(last) && bytes.iter().all(|&c| edge(c) || c == b'-')
        }
        _ => false,
    }
}

pub(crate) fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

pub(crate) fn is_name_part(value: &str) -> bool {
    let bytes = value.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => {
            first.is_ascii_alphanumeric()
                && last.is_ascii_alphanumeric()
                && bytes.iter().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(c))
        }
        _ => false,
    }
}

/// A DNS label: container names, namespaces, host names.
pub(crate) fn label(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > 63 {
        wrong.push("must be no more than 63 characters".to_owned());
    }
    if !is_label(value) {
        let dots = is_subdomain(value);
        wrong.push(if dots { "must not contain dots".to_owned() } else { LABEL.to_owned() });
    }
    wrong
}

/// A DNS subdomain: what most objects are called.
pub(crate) fn subdomain(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > 253 {
        wrong.push("must be no more than 253 characters".to_owned());
    }
    if !is_subdomain(value) {
        wrong.push(SUBDOMAIN.to_owned());
    }
    wrong
}

/// Anything that can stand between two slashes of a URL: what roles are called.
pub(crate) fn path_segment(value: &str) -> Vec<String> {
    if value == "." || value == ".." {
        return vec![format!("may not be '{value}'")];
    }
    ["/", "%"].iter().filter(|c| value.contains(**c)).map(|c| format!("may not contain '{c}'")).collect()
}

/// A key with an optional prefix: labels, annotations, finalizers, conditions.
pub(crate) fn qualified(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut parts = value.splitn(3, '/');
    let name = match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, None) => name,
        (Some(prefix), Some(name), None) => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else {
                wrong.extend(subdomain(prefix).into_iter().map(|message| format!("prefix part {message}")));
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {NAME_PART} with an optional DNS subdomain prefix and '/' (e.g. \
                 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        wrong.push("name part must be no more than 63 bytes".to_owned());
    }
    if !is_name_part(name) {
        wrong.push(format!("name part {NAME_PART}"));
    }
    wrong
}

pub(crate) fn label_value(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > 63 {
        wrong.push("must be no more than 63 bytes".to_owned());
    }
    if !value.is_empty() && !is_name_part(value) {
        wrong.push(LABEL_VALUE.to_owned());
    }
    wrong
}

/// A key of a ConfigMap or Secret.
pub(crate) fn config_key(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > 253 {
        wrong.push("must be no more than 253 characters".to_owned());
    }
    if value.is_empty() || !value.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c)) {
        wrong.push(CONFIG_KEY.to_owned());
    } else if value == "." || value == ".." {
        wrong.push(format!("must not be '{value}'"));
    } else if value.starts_with("..") {
        wrong.push("must not start with '..'".to_owned());
    }
    wrong
}

/// An environment variable.
pub(crate) fn env(value: &str) -> Vec<String> {
    let fine = !value.is_empty() && value.bytes().all(|c| (b' '..=b'~').contains(&c) && c != b'=');
    if fine { Vec::new() } else { vec![ENV_NAME.to_owned()] }
}

/// A named port.
pub(crate) fn port_name(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > 15 {
        wrong.push("must be no more than 15 characters".to_owned());
    }
    if value.is_empty() || !value.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-') {
        wrong.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !value.bytes().any(|c| c.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        wrong.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".to_owned());
    }
    wrong
}

pub(crate) fn port(number: i64) -> Option<String> {
    in_range(number, 1, 65535)
}

pub(crate) fn in_range(number: i64, low: i64, high: i64) -> Option<String> {
    (number < low || number > high).then(|| format!("must be between {low} and {high}, inclusive"))
}

/// `25%`; the number when it is one.
pub(crate) fn percent(value: &str) -> Result<u64, String> {
    value
        .strip_suffix('%')
        .filter(|digits| !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()))
        .map(|digits| digits.parse().unwrap_or(u64::MAX))
        .ok_or_else(|| PERCENT.to_owned())
}

pub(crate) fn ip(value: &str) -> Result<std::net::IpAddr, String> {
    value.parse().map_err(|_| "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned())
}

/// A network: its address, the length of its prefix and whether bits beyond the prefix are set.
pub(crate) fn cidr(value: &str) -> Result<(u128, u32, u32), String> {
    let bad = || "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned();
    let (address, length) = value.split_once('/').ok_or_else(bad)?;
    let address: std::net::IpAddr = address.parse().map_err(|_| bad())?;
    let length: u32 = length.parse().map_err(|_| bad())?;
    let (bits, width) = match address {
        std::net::IpAddr::V4(v4) => (u128::from(v4.to_bits()), 32),
        std::net::IpAddr::V6(v6) => (v6.to_bits(), 128),
    };
    if length > width { Err(bad()) } else { Ok((bits, length, width)) }
}

/// The bits of an address that the prefix leaves to hosts.
pub(crate) fn host_bits(bits: u128, length: u32, width: u32) -> u128 {
    bits & 1_u128.checked_shl(width - length).map_or(u128::MAX, |bit| bit - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        for (fine, values) in [(true, ["a", "a-b", "0", "a1", "1a"]), (false, ["", "-a", "a-", "A", "a_b"])] {
            for value in values {
                assert_eq!(label(value).is_empty(), fine, "{value}");
            }
        }
        assert_eq!(label("a.b"), ["must not contain dots"]);
        assert!(subdomain("a.b-c.d").is_empty() && !subdomain("a..b").is_empty());
        assert!(qualified("example.com/Name_1").is_empty() && qualified("a").is_empty());
        assert_eq!(qualified("/a"), ["prefix part must be non-empty"]);
        assert!(label_value("").is_empty());
        assert_eq!(percent("25%"), Ok(25));
        assert_eq!(cidr("10.0.0.0/8").map(|(bits, length, width)| host_bits(bits, length, width)), Ok(0));
        assert_eq!(cidr("::/0").map(|(bits, length, width)| host_bits(bits, length, width)), Ok(0));
    }
}
