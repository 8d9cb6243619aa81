//! Bodies in: JSON, YAML and protobuf, bounded in size and depth.

use http::StatusCode;
use serde_json::Value;

use crate::go_json;
use crate::protobuf::{self, TypeName};
use crate::status::Status;

/// The largest body that is read, as in the real server.
pub const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// The media types that carry whole objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    Json,
    Yaml,
    /// Of built-in kinds only.
    Protobuf,
}

impl Media {
    /// A missing type is JSON.
    pub fn of(content_type: Option<&str>) -> Result<Self, Status> {
        let essence = content_type.unwrap_or("").split(';').next().unwrap_or_default().trim();
        match essence {
            "" | "application/json" | "*/*" => Ok(Self::Json),
            "application/yaml" => Ok(Self::Yaml),
            "application/vnd.kubernetes.protobuf" => Ok(Self::Protobuf),
            _ => Err(Self::unsupported()),
        }
    }

    pub fn unsupported() -> Status {
        unsupported_media(&["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"])
    }
}

pub fn unsupported_media(accepted: &[&str]) -> Status {
    Status::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "UnsupportedMediaType",
        format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        ),
    )
}

pub fn too_large() -> Status {
    Status::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "RequestEntityTooLarge",
        format!("Request entity too large: limit is {BODY_LIMIT}"),
    )
}

/// Reads a body. The error is the parser's own words.
pub fn decode(media: Media, body: &[u8]) -> Result<Value, String> {
    match media {
        Media::Json => {
            // Go replaces what is not UTF-8 by U+FFFD and reads on.
            let text = String::from_utf8_lossy(body);
            let mut value = serde_json::from_str(&text).map_err(|_| go_json::syntax_error(body))?;
            settle_numbers(&mut value);
            Ok(value)
        }
        Media::Yaml => {
            let text = str::from_utf8(body).map_err(|_| "yaml: invalid leading UTF-8 octet".to_owned())?;
            if text.lines().any(|line| line.starts_with('\t') && !line.trim().is_empty()) {
                return Err("yaml: found character that cannot start any token".to_owned());
            }
            // Of several documents the first counts, and of several equal keys the last.
            let text = text.split("\n---").next().unwrap_or_default();
            let options =
                serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins };
            serde_saphyr::from_str_with_options(text, options)
                .map_err(|e| format!("yaml: {}", first_line(&e.to_string())))
        }
        Media::Protobuf => {
            let untyped = TypeName { api_version: "", kind: "" };
            protobuf::decode(body, untyped).map_err(|error| error.to_string())
        }
    }
}

/// `1.0` and `1e3` are whole numbers to Go, which writes them without a fraction.
fn settle_numbers(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().unwrap_or_default();
            #[allow(clippy::cast_possible_truncation, reason = "guarded: whole and within 53 bits")]
            if float.fract() == 0.0 && float.abs() < 9_007_199_254_740_992.0 {
                *value = (float as i64).into();
            }
        }
        // Beyond 63 bits Go computes with floats.
        Value::Number(number) if number.is_u64() && number.as_i64().is_none() => {
            #[allow(clippy::cast_precision_loss, reason = "the loss is what Go does")]
            let float = number.as_u64().unwrap_or_default() as f64;
            if let Ok(rounded) = float.to_string().parse::<u64>() {
                *value = rounded.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(settle_numbers),
        Value::Object(map) => map.values_mut().for_each(settle_numbers),
        _ => {}
    }
}

/// Whether a body that was read is JSON rather than YAML.
pub(crate) fn is_json(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"{")
}

/// The first key of a YAML body that stands twice in its map, in the words of Go's reader.
pub(crate) fn yaml_duplicate(body: &[u8]) -> Option<String> {
    let text = str::from_utf8(body).ok()?;
    let problem = serde_saphyr::from_str::<Value>(text).err()?.to_string();
    let line = problem.split("line ").nth(1)?.split(' ').next()?;
    let key = problem.split("duplicate mapping key: ").nth(1)?.split([',', '\n']).next()?;
    Some(format!("line {line}: key {key:?} already set in map"))
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim_start_matches("error: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_stands_twice_in_yaml_is_found() {
        assert_eq!(yaml_duplicate(b"a: 1\nb: 2\n").as_deref(), None);
        assert_eq!(
            yaml_duplicate(b"a:\n  k: 1\n  k: 2\n").as_deref(),
            Some("line 3: key \"k\" already set in map")
        );
    }

    #[test]
    fn bad_bodies_are_refused_not_fatal() {
        let deep = "[".repeat(1_000_000);
        let garbage: [&[u8]; 5] = [b"", b"{", b"{\"a\":1}x", deep.as_bytes(), b"\xff\xfe{"];
        for body in garbage {
            assert!(decode(Media::Json, body).is_err());
        }
        assert!(decode(Media::Json, b"{\"a\":\"\xff\"}").is_ok());
        for body in ["a: [", "a: &x [*x, *x]\nb: *nope", "\u{0}"] {
            assert!(decode(Media::Yaml, body.as_bytes()).is_err(), "{body}");
        }
    }
}
