//! Objects of the built-in kinds as typed Go clients send them: protobuf within the envelope of Kubernetes.
//!
//! Reading only: answers are JSON, which these clients accept. Custom kinds have no protobuf form. What comes out
//! is what the same object is in JSON; unknown fields are passed over in silence, as the real server does.

mod message;
mod table;
#[cfg(test)]
mod tests;
mod wire;

use serde_json::{Map, Value};

use crate::builtin;
use table::{Message, table};
use wire::{BYTES, Reader};

/// What the envelope begins with.
const MAGIC: &[u8] = b"k8s\0";

/// The type of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TypeName<'a> {
    /// `v1` or `apps/v1`.
    pub(crate) api_version: &'a str,
    pub(crate) kind: &'a str,
}

/// Why a body cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("empty data")]
    Empty,
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NotProtobuf,
    #[error("empty body")]
    NoBody,
    /// The envelope is broken: nobody knows what the body is.
    #[error("{0}")]
    Envelope(wire::Error),
    /// The object in it is broken.
    #[error("{problem}")]
    Message { api_version: String, kind: String, problem: wire::Error },
}

/// Reads a body. One that does not say its type is taken to be of the `assumed` one; of one whose type is not
/// known here, nothing but the type comes out.
pub(crate) fn decode(body: &[u8], assumed: TypeName<'_>) -> Result<Value, Error> {
    if body.is_empty() {
        return Err(Error::Empty);
    }
    let envelope = body.strip_prefix(MAGIC).ok_or(Error::NotProtobuf)?;
    if envelope.is_empty() {
        return Err(Error::NoBody);
    }
    let envelope = Envelope::read(envelope).map_err(Error::Envelope)?;
    let or = |said: String, assumed: &str| if said.is_empty() { assumed.to_owned() } else { said };
    let api_version = or(envelope.api_version, assumed.api_version);
    let kind = or(envelope.kind, assumed.kind);
    let mut object = match find(&api_version, &kind) {
        None => Map::new(),
        Some(message) => match message::read(message, envelope.raw) {
            Ok(object) => object,
            Err(problem) => return Err(Error::Message { api_version, kind, problem }),
        },
    };
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object))
}

/// The served kinds, and what is sent to their subresources. Every group has its own `DeleteOptions`.
fn find(api_version: &str, kind: &str) -> Option<&'static Message> {
    let name = match (api_version, kind) {
        (_, "DeleteOptions") => "meta.DeleteOptions",
        ("autoscaling/v1", "Scale") => "autoscaling.Scale",
        ("policy/v1", "Eviction") => "policy.Eviction",
        ("v1", "Binding") => "core.Binding",
        _ => builtin::by_kind(api_version, kind)?.shape,
    };
    table().find(name)
}

#[derive(Default)]
struct Envelope<'a> {
    api_version: String,
    kind: String,
    raw: &'a [u8],
}

impl<'a> Envelope<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, wire::Error> {
        let mut envelope = Self::default();
        let mut reader = Reader::new(bytes);
        while let Some(tag) = reader.tag("Unknown")? {
            match (tag.number, tag.wire) {
                (1, BYTES) => envelope.read_type(reader.bytes()?)?,
                (2, BYTES) => envelope.raw = reader.bytes()?,
                // The encoding and media type of the object: of objects that are not protobuf, and unused.
                _ => reader.skip(tag)?,
            }
        }
        Ok(envelope)
    }

    fn read_type(&mut self, bytes: &[u8]) -> Result<(), wire::Error> {
        let mut reader = Reader::new(bytes);
        while let Some(tag) = reader.tag("TypeMeta")? {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            match (tag.number, tag.wire) {
                (1, BYTES) => self.api_version = text(reader.bytes()?),
                (2, BYTES) => self.kind = text(reader.bytes()?),
                _ => reader.skip(tag)?,
            }
        }
        Ok(())
    }
}
