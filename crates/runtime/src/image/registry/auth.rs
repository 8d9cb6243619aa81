//! What a registry asks for with a 401, and how it is answered. Pure: makes addresses and headers, sends nothing.

use hyper::HeaderMap;
use hyper::header::WWW_AUTHENTICATE;

/// One way to authenticate that a registry offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

/// The challenge to answer: a token if one is offered.
pub(super) fn challenge(headers: &HeaderMap) -> Option<Challenge> {
    let values = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    let offered: Vec<_> = values.filter_map(parse).collect();
    let bearer = offered.iter().find(|challenge| matches!(challenge, Challenge::Bearer { .. }));
    bearer.or(offered.first()).cloned()
}

fn parse(value: &str) -> Option<Challenge> {
    let (scheme, rest) = value.trim().split_once(' ').unwrap_or((value.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service, mut scope) = (None, None, None);
    for (key, value) in parameters(rest) {
        match key.to_ascii_lowercase().as_str() {
            "realm" => realm = Some(value),
            "service" => service = Some(value),
            "scope" => scope = Some(value),
            _ => {}
        }
    }
    Some(Challenge::Bearer { realm: realm?, service, scope })
}

/// `key="quoted, with commas", key=token`
fn parameters(mut rest: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    while let Some((key, after)) = rest.split_once('=') {
        let key = key.trim_matches([' ', ',', '\t']).to_owned();
        let value = match after.strip_prefix('"') {
            Some(quoted) => {
                let mut value = String::new();
                let mut characters = quoted.char_indices();
                let mut end = quoted.len();
                while let Some((at, character)) = characters.next() {
                    match character {
                        '"' => {
                            end = at + 1;
                            break;
                        }
                        '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
                        other => value.push(other),
                    }
                }
                rest = &quoted[end..];
                value
            }
            None => {
                let end = after.find(',').unwrap_or(after.len());
                rest = &after[end..];
                after[..end].trim().to_owned()
            }
        };
        found.push((key, value));
    }
    found
}

/// Where to ask for a token to read `repository`.
pub(super) fn token_address(
    realm: &str,
    service: Option<&str>,
    scope: Option<&str>,
    repository: &str,
) -> String {
    let pull = format!("repository:{repository}:pull");
    let mut address = realm.to_owned();
    for (key, value) in [("service", service), ("scope", Some(scope.unwrap_or(&pull)))] {
        if let Some(value) = value {
            address.push(if address.contains('?') { '&' } else { '?' });
            address.push_str(key);
            address.push('=');
            encode_into(value, &mut address);
        }
    }
    address
}

fn encode_into(value: &str, address: &mut String) {
    use std::fmt::Write;
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte) {
            address.push(byte.into());
        } else {
            let _never_fails = write!(address, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_understood() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| Challenge::Bearer {
            realm: realm.into(),
            service: service.map(str::to_owned),
            scope: scope.map(str::to_owned),
        };
        for (value, expected) in [
            ("Basic realm=\"x\"", Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            (
                r#"Bearer realm="https://a.example/t",service="s",scope="repository:a:pull,push""#,
                Some(bearer("https://a.example/t", Some("s"), Some("repository:a:pull,push"))),
            ),
            (r#"bearer Realm="https://a.example/t" , x=y"#, Some(bearer("https://a.example/t", None, None))),
            (r#"Bearer realm="a\"b"#, Some(bearer("a\"b", None, None))),
            ("Bearer service=\"s\"", None),
            ("Negotiate abc", None),
            ("", None),
        ] {
            assert_eq!(parse(value), expected, "{value}");
        }
    }

    #[test]
    fn addresses_are_encoded() {
        assert_eq!(
            token_address("https://a.example/t?x=1", Some("my registry&"), None, "team/app"),
            "https://a.example/t?x=1&service=my%20registry%26&scope=repository:team/app:pull"
        );
    }

    proptest::proptest! {
        #[test]
        fn any_header_is_parsed_or_refused(value in ".{0,80}") {
            let _parsed = parse(&format!("Bearer {value}"));
        }
    }
}
