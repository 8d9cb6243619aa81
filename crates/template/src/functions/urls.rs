//! URLs, taken apart and put together.

use super::Param::{Dict, Text};
use super::{Function, dict, exactly, text};
use crate::error::Fault;
use crate::memory::Memory;
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] =
    &[exactly("urlParse", &[Text], parse), exactly("urlJoin", &[Dict], join)];

fn parse(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let url = text(values, 0);
    if url.chars().any(|char| char.is_ascii_control()) {
        return Err("unable to parse url: invalid control character in URL".into());
    }
    let (rest, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (scheme, rest) = scheme(rest)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (opaque, rest) = match scheme.is_empty() || rest.starts_with('/') {
        true => ("", rest),
        false => (rest, ""),
    };
    let (authority, path) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", rest),
    };
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let entries = [
        ("scheme", scheme),
        ("host", host.to_owned()),
        ("hostname", hostname(host)?.to_owned()),
        ("path", decoded(path)?),
        ("query", query.to_owned()),
        ("opaque", opaque.to_owned()),
        ("fragment", decoded(fragment)?),
        ("userinfo", user.to_owned()),
    ];
    memory.map(entries.into_iter().map(|(key, value)| (key.into(), Value::text(&value))).collect())
}

/// What is before the first colon, if that can be a scheme.
fn scheme(url: &str) -> Result<(String, &str), Fault> {
    let Some((scheme, rest)) = url.split_once(':') else { return Ok((String::new(), url)) };
    let mut chars = scheme.chars();
    let begins = chars.next().is_some_and(|char| char.is_ascii_alphabetic());
    if begins && chars.all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char)) {
        return Ok((scheme.to_ascii_lowercase(), rest));
    }
    match scheme {
        "" => Err("unable to parse url: missing protocol scheme".into()),
        scheme if scheme.contains(['/', '?']) => Ok((String::new(), url)),
        _ => Err("unable to parse url: first path segment in URL cannot contain colon".into()),
    }
}

/// A host without its port.
fn hostname(host: &str) -> Result<&str, Fault> {
    let wrong = || Fault::Message(format!("unable to parse url: invalid port after host {host:?}"));
    if host.contains([' ', '<', '>', '"']) {
        return Err("unable to parse url: invalid character in host name".into());
    }
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            rest.split_once(']').ok_or_else(|| Fault::from("unable to parse url: missing ']' in host"))?
        }
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port,
        None if port.is_empty() => "",
        None => return Err(wrong()),
    };
    if port.bytes().all(|byte| byte.is_ascii_digit()) { Ok(name) } else { Err(wrong()) }
}

fn decoded(text: &str) -> Result<String, Fault> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(code.ok_or("unable to parse url: invalid URL escape")?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).map_err(|_| "the URL is not text".into())
}

fn join(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let get = |key: &str| -> Result<String, Fault> {
        match dict(values, 0).and_then(|map| memory.entries(map).get(key)) {
            None => Ok(String::new()),
            Some(Value::Text(text)) => Ok(text.to_string()),
            Some(other) => {
                let kind = other.kind_name();
                Err(format!("unable to parse {key} key, must be of type string, but {kind} found").into())
            }
        }
    };
    let (scheme, opaque, user, host) = (get("scheme")?, get("opaque")?, get("userinfo")?, get("host")?);
    let (path, query, fragment) = (encoded(&get("path")?), get("query")?, encoded(&get("fragment")?));
    let mut url = String::new();
    if !scheme.is_empty() {
        url.push_str(&scheme);
        url.push(':');
    }
    if opaque.is_empty() {
        if !scheme.is_empty() || !host.is_empty() || !user.is_empty() {
            if !host.is_empty() || !path.is_empty() || !user.is_empty() {
                url.push_str("//");
            }
            if !user.is_empty() {
                url.push_str(&user);
                url.push('@');
            }
            url.push_str(&host);
        }
        if !path.is_empty() && !path.starts_with('/') && !host.is_empty() {
            url.push('/');
        }
        url.push_str(&path);
    } else {
        url.push_str(&opaque);
    }
    for (sign, part) in [('?', query), ('#', fragment)] {
        if !part.is_empty() {
            url.push(sign);
            url.push_str(&part);
        }
    }
    memory.text(url)
}

/// As it has to be written in a path.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => out.push(char::from(byte)),
            byte if b"-_.~$&+,/:;=@!'()*".contains(&byte) => out.push(char::from(byte)),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
