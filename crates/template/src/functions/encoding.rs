//! Other ways to write values: base64, base32, checksums, JSON, YAML.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest;

use super::Param::{Any, Text};
use super::{Function, any, exactly, text};
use crate::error::Fault;
use crate::json::{self, Style};
use crate::memory::{Memory, Numbers};
use crate::value::Value;
use crate::yaml;

pub(super) const FUNCTIONS: &[Function] = &[
    exactly("b64enc", &[Text], |memory, values| memory.text(STANDARD.encode(text(values, 0)))),
    exactly("b64dec", &[Text], base64_decode),
    exactly("b32enc", &[Text], |memory, values| memory.text(base32_encode(text(values, 0).as_bytes()))),
    exactly("b32dec", &[Text], |memory, values| {
        let bytes = base32_decode(text(values, 0)).ok_or("illegal base32 data")?;
        decoded(memory, bytes)
    }),
    exactly("sha1sum", &[Text], |memory, values| sum(memory, values, &digest::SHA1_FOR_LEGACY_USE_ONLY)),
    exactly("sha256sum", &[Text], |memory, values| sum(memory, values, &digest::SHA256)),
    exactly("sha512sum", &[Text], |memory, values| sum(memory, values, &digest::SHA512)),
    exactly("adler32sum", &[Text], |memory, values| {
        memory.text(adler32(text(values, 0).as_bytes()).to_string())
    }),
    exactly("toJson", &[Any], |memory, values| to_json(memory, values, Style::Html, false)),
    exactly("mustToJson", &[Any], |memory, values| to_json(memory, values, Style::Html, true)),
    exactly("toPrettyJson", &[Any], |memory, values| to_json(memory, values, Style::Pretty, false)),
    exactly("mustToPrettyJson", &[Any], |memory, values| to_json(memory, values, Style::Pretty, true)),
    exactly("toRawJson", &[Any], |memory, values| to_json(memory, values, Style::Raw, true)),
    exactly("mustToRawJson", &[Any], |memory, values| to_json(memory, values, Style::Raw, true)),
    exactly("fromJson", &[Text], |memory, values| {
        let read = from_json(memory, text(values, 0))?;
        map_or_error(memory, read)
    }),
    exactly("fromJsonArray", &[Text], |memory, values| {
        let read = from_json(memory, text(values, 0))?;
        list_or_error(memory, read)
    }),
    exactly("mustFromJson", &[Text], |memory, values| {
        from_json(memory, text(values, 0))?.map_err(Fault::Message)
    }),
    exactly("toYaml", &[Any], |memory, values| match yaml::write(memory, any(values, 0)) {
        Ok(written) => memory.text(written.strip_suffix('\n').unwrap_or(&written)),
        Err(Fault::Message(_)) => Ok(Value::text("")),
        Err(fault) => Err(fault),
    }),
    exactly("fromYaml", &[Text], |memory, values| {
        let read = from_yaml(memory, text(values, 0))?;
        map_or_error(memory, read)
    }),
    exactly("fromYamlArray", &[Text], |memory, values| {
        let read = from_yaml(memory, text(values, 0))?;
        list_or_error(memory, read)
    }),
];

/// Bytes that have to be text, because templates have nothing else.
fn decoded(memory: &mut Memory, bytes: Vec<u8>) -> Result<Value, Fault> {
    match String::from_utf8(bytes) {
        Ok(text) => memory.text(text),
        Err(_) => Err("what is decoded is not text; templates cannot hold other bytes".into()),
    }
}

fn base64_decode(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    // As Go: line breaks do not count, and a mistake is the result.
    let given: String = text(values, 0).chars().filter(|char| !matches!(char, '\n' | '\r')).collect();
    match STANDARD.decode(&given) {
        Ok(bytes) => decoded(memory, bytes),
        Err(error) => {
            let offset = match error {
                base64::DecodeError::InvalidByte(offset, _)
                | base64::DecodeError::InvalidLastSymbol(offset, _) => offset,
                base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => {
                    given.len() / 4 * 4
                }
            };
            memory.text(format!("illegal base64 data at input byte {offset}"))
        }
    }
}

const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

fn base32_encode(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.chunks(5) {
        let mut group = [0_u8; 8];
        group[3..3 + chunk.len()].copy_from_slice(chunk);
        let bits = u64::from_be_bytes(group);
        let used = (chunk.len() * 8).div_ceil(5);
        for index in 0..8 {
            let symbol = usize::try_from(bits >> (35 - 5 * index) & 31).unwrap_or(0);
            out.push(if index < used { char::from(BASE32[symbol]) } else { '=' });
        }
    }
    out
}

fn base32_decode(text: &str) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b'\n' | b'\r')).collect();
    if !text.len().is_multiple_of(8) {
        return None;
    }
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let symbols = &text[..text.len() - padding];
    if !matches!(symbols.len() % 8, 0 | 2 | 4 | 5 | 7) || padding > 6 {
        return None;
    }
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u64, 0);
    for symbol in symbols {
        let value = BASE32.iter().position(|known| known == symbol)?;
        bits = bits << 5 | value as u64;
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 255).unwrap_or(0));
        }
    }
    Some(bytes)
}

fn sum(memory: &mut Memory, values: &[Value], algorithm: &'static digest::Algorithm) -> Result<Value, Fault> {
    let digest = digest::digest(algorithm, text(values, 0).as_bytes());
    memory.text(digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn adler32(bytes: &[u8]) -> u32 {
    const MODULUS: u32 = 65_521;
    let (mut low, mut high) = (1_u32, 0_u32);
    for byte in bytes {
        low = (low + u32::from(*byte)) % MODULUS;
        high = (high + low) % MODULUS;
    }
    high << 16 | low
}

/// Without `must`, what cannot be written is nothing.
fn to_json(memory: &mut Memory, values: &[Value], style: Style, must: bool) -> Result<Value, Fault> {
    match json::write(memory, any(values, 0), style) {
        Ok(written) => memory.text(written),
        Err(Fault::Message(_)) if !must => Ok(Value::text("")),
        Err(fault) => Err(fault),
    }
}

/// What is read, or what is wrong with the text.
type Read = Result<Value, String>;

fn from_json(memory: &mut Memory, text: &str) -> Result<Read, Fault> {
    memory.work(text.len() / 64)?;
    Ok(match serde_json::from_str(text) {
        Ok(json) => Ok(memory.read_json(&json, Numbers::Fraction)?),
        Err(error) => Err(error.to_string()),
    })
}

fn from_yaml(memory: &mut Memory, text: &str) -> Result<Read, Fault> {
    memory.work(text.len() / 64)?;
    match yaml::read(memory, text) {
        Ok(value) => Ok(Ok(value)),
        Err(Fault::Message(message)) => Ok(Err(message)),
        Err(fault) => Err(fault),
    }
}

/// As Helm: a map, in which a mistake is the entry `Error`.
fn map_or_error(memory: &mut Memory, read: Read) -> Result<Value, Fault> {
    let message = match read {
        Ok(map @ Value::Map(_)) => return Ok(map),
        Ok(Value::Nil) => return memory.map(Default::default()),
        Ok(other) => format!("it is a {}, not a map", memory.type_name(&other)),
        Err(message) => message,
    };
    let message = memory.text(message)?;
    memory.map([("Error".into(), message)].into())
}

/// As Helm: a list, of which a mistake is the only item.
fn list_or_error(memory: &mut Memory, read: Read) -> Result<Value, Fault> {
    let message = match read {
        Ok(list @ Value::List(_)) => return Ok(list),
        Ok(Value::Nil) => return memory.list(Vec::new()),
        Ok(other) => format!("it is a {}, not a list", memory.type_name(&other)),
        Err(message) => message,
    };
    let message = memory.text(message)?;
    memory.list(vec![message])
}
