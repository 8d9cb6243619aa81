//! One message into its JSON form.
//!
//! Memory is bounded by the input: nothing is made that does not stand in it, and nesting is limited.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Number, Value};

use super::table::{Empty, Field, Holds, Message, table};
use super::wire::{BYTES, Error, FIXED64, Reader, VARINT};
use crate::codec::{self, Media};

/// Messages within messages. Only schemas nest without end; JSON allows them about this much.
const DEPTH: usize = 64;

/// Reads a message of the table.
pub(super) fn read(message: &Message, bytes: &[u8]) -> Result<Map<String, Value>, Error> {
    let mut out = Map::new();
    read_into(message, bytes, &mut out, DEPTH)?;
    Ok(out)
}

/// A message that is there twice is one message with the fields of both.
fn read_into(
    message: &Message,
    bytes: &[u8],
    out: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), Error> {
    let depth = depth.checked_sub(1).ok_or(Error::TooDeep)?;
    let mut reader = Reader::new(bytes);
    while let Some(tag) = reader.tag(&message.name)? {
        let Some(field) = message.field(tag.number) else {
            reader.skip(tag)?;
            continue;
        };
        match &field.holds {
            Holds::Message(index) if field.name.is_empty() => {
                let bytes = payload(&mut reader, tag.wire, field)?;
                let inlined = table().get(*index).expect("indices of the table are its own");
                read_into(inlined, bytes, out, depth)?;
            }
            Holds::List(item) => list(&mut reader, tag.wire, field, item, out, depth)?,
            Holds::Map(item) => {
                let bytes = payload(&mut reader, tag.wire, field)?;
                let (key, value) = entry(bytes, field, item, depth)?;
                if let Value::Object(map) = slot(out, field, || Value::Object(Map::new())) {
                    map.insert(key, value);
                }
            }
            Holds::Pointer(holds) => single(&mut reader, tag.wire, field, holds, true, out, depth)?,
            holds => single(&mut reader, tag.wire, field, holds, false, out, depth)?,
        }
    }
    Ok(())
}

fn slot<'a>(out: &'a mut Map<String, Value>, field: &Field, empty: fn() -> Value) -> &'a mut Value {
    // Looked up before it is entered: most of a list's items find it there, and need no key of their own.
    if !out.contains_key(&field.name) {
        out.insert(field.name.clone(), empty());
    }
    &mut out[&field.name]
}

fn payload<'a>(reader: &mut Reader<'a>, wire: u8, field: &Field) -> Result<&'a [u8], Error> {
    expect(wire, BYTES, field)?;
    reader.bytes()
}

fn expect(wire: u8, wanted: u8, field: &Field) -> Result<(), Error> {
    if wire == wanted { Ok(()) } else { Err(Error::WrongWireType { wire, field: field.go_name() }) }
}

fn single(
    reader: &mut Reader<'_>,
    wire: u8,
    field: &Field,
    holds: &Holds,
    pointer: bool,
    out: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), Error> {
    if let Holds::Message(index) = holds {
        let bytes = payload(reader, wire, field)?;
        let message = table().get(*index).expect("indices of the table are its own");
        if let Value::Object(map) = slot(out, field, || Value::Object(Map::new())) {
            read_into(message, bytes, map, depth)?;
        }
        return Ok(());
    }
    let value = value(reader, wire, field, holds, depth)?;
    if !pointer && vanishes(field.empty, holds, &value) {
        out.remove(&field.name);
    } else {
        out.insert(field.name.clone(), value);
    }
    Ok(())
}

/// Go writes plain fields whatever they hold; the JSON form leaves out empty ones.
fn vanishes(empty: Empty, holds: &Holds, value: &Value) -> bool {
    match (empty, holds) {
        (Empty::Kept, _) => false,
        (Empty::ZeroOmitted, Holds::Time | Holds::MicroTime) => value.is_null(),
        (_, Holds::Text | Holds::Bytes) => value == "",
        (_, Holds::Int32 | Holds::Int64) => value == 0,
        (_, Holds::Double) => value.as_f64() == Some(0.0),
        (_, Holds::Bool) => value == false,
        _ => false,
    }
}

fn list(
    reader: &mut Reader<'_>,
    wire: u8,
    field: &Field,
    item: &Holds,
    out: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), Error> {
    let Value::Array(items) = slot(out, field, || Value::Array(Vec::new())) else { return Ok(()) };
    let packs = matches!(item, Holds::Int32 | Holds::Int64 | Holds::Bool | Holds::Double);
    if packs && wire == BYTES {
        let mut packed = Reader::new(reader.bytes()?);
        let wire = if *item == Holds::Double { FIXED64 } else { VARINT };
        while !packed.is_empty() {
            items.push(value(&mut packed, wire, field, item, depth)?);
        }
        return Ok(());
    }
    items.push(value(reader, wire, field, item, depth)?);
    Ok(())
}

/// One entry of a map: a message of a key and a value.
fn entry(bytes: &[u8], field: &Field, item: &Holds, depth: usize) -> Result<(String, Value), Error> {
    let (mut key, mut held) = (String::new(), None);
    let mut reader = Reader::new(bytes);
    while let Some(tag) = reader.tag(&field.name)? {
        match tag.number {
            // Go does not look at the wire type here.
            1 => key = text(reader.bytes()?),
            2 => held = Some(value(&mut reader, BYTES, field, item, depth)?),
            _ => reader.skip(tag)?,
        }
    }
    let held = match held {
        Some(held) => held,
        // An absent value is an empty one.
        None => value(&mut Reader::new(&[0]), BYTES, field, item, depth)?,
    };
    Ok((key, held))
}

fn value(
    reader: &mut Reader<'_>,
    wire: u8,
    field: &Field,
    holds: &Holds,
    depth: usize,
) -> Result<Value, Error> {
    if let Holds::Int32 | Holds::Int64 | Holds::Bool = holds {
        expect(wire, VARINT, field)?;
        return Ok(whole(holds, reader.varint()?));
    }
    if *holds == Holds::Double {
        expect(wire, FIXED64, field)?;
        return double(f64::from_le_bytes(reader.fixed64()?), field);
    }
    let bytes = payload(reader, wire, field)?;
    match holds {
        Holds::Text => Ok(text(bytes).into()),
        Holds::Bytes => Ok(STANDARD.encode(bytes).into()),
        Holds::Quantity => quantity(bytes, field),
        Holds::Time => time(bytes, field, false),
        Holds::MicroTime => time(bytes, field, true),
        Holds::IntOrText => int_or_text(bytes, field),
        Holds::Raw => raw(bytes, field),
        Holds::Message(index) => {
            let message = table().get(*index).expect("indices of the table are its own");
            let mut map = Map::new();
            read_into(message, bytes, &mut map, depth)?;
            Ok(Value::Object(map))
        }
        Holds::Union(index) => {
            let message = table().get(*index).expect("indices of the table are its own");
            let mut map = Map::new();
            read_into(message, bytes, &mut map, depth)?;
            Ok(union(message, map))
        }
        // Lists and maps hold neither lists nor maps nor pointers, and numbers are done above.
        _ => Ok(Value::Null),
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "this is how the format holds them"
)]
fn whole(holds: &Holds, bits: u64) -> Value {
    match holds {
        Holds::Bool => (bits != 0).into(),
        Holds::Int32 => (bits as i32).into(),
        _ => (bits as i64).into(),
    }
}

fn double(float: f64, field: &Field) -> Result<Value, Error> {
    #[allow(clippy::cast_possible_truncation, reason = "guarded: whole and within 53 bits")]
    if float.fract() == 0.0 && float.abs() < 9_007_199_254_740_992.0 {
        return Ok((float as i64).into());
    }
    Number::from_f64(float).map(Value::Number).ok_or_else(|| Error::OutOfRange { field: field.go_name() })
}

/// What is not UTF-8 is replaced, as Go does when it writes JSON.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn quantity(bytes: &[u8], field: &Field) -> Result<Value, Error> {
    let mut reader = Reader::new(bytes);
    let mut quantity = "0".to_owned();
    while let Some(tag) = reader.tag("Quantity")? {
        match tag.number {
            1 => quantity = text(payload(&mut reader, tag.wire, field)?),
            _ => reader.skip(tag)?,
        }
    }
    Ok(quantity.into())
}

/// `Time` has whole seconds, whatever is sent; no bytes at all is no time.
fn time(bytes: &[u8], field: &Field, micro: bool) -> Result<Value, Error> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader::new(bytes);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "this is how the format holds them"
    )]
    while let Some(tag) = reader.tag("Timestamp")? {
        match (tag.number, tag.wire) {
            (1, VARINT) => seconds = reader.varint()? as i64,
            (2, VARINT) => nanos = reader.varint()? as i32,
            _ => reader.skip(tag)?,
        }
    }
    let out_of_range = || Error::OutOfRange { field: field.go_name() };
    let nanos = if micro { nanos } else { 0 };
    let time = jiff::Timestamp::new(seconds, nanos).map_err(|_| out_of_range())?;
    let format = if micro { "%Y-%m-%dT%H:%M:%S.%6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Ok(time.strftime(format).to_string().into())
}

fn int_or_text(bytes: &[u8], field: &Field) -> Result<Value, Error> {
    let (mut is_text, mut number, mut said) = (false, 0, String::new());
    let mut reader = Reader::new(bytes);
    #[allow(clippy::cast_possible_truncation, reason = "this is how the format holds them")]
    while let Some(tag) = reader.tag("IntOrString")? {
        match (tag.number, tag.wire) {
            (1, VARINT) => is_text = reader.varint()? != 0,
            (2, VARINT) => number = reader.varint()? as i32,
            (3, wire) => said = text(payload(&mut reader, wire, field)?),
            _ => reader.skip(tag)?,
        }
    }
    Ok(if is_text { said.into() } else { number.into() })
}

/// A message whose one field is JSON.
fn raw(bytes: &[u8], field: &Field) -> Result<Value, Error> {
    let mut reader = Reader::new(bytes);
    let mut json: &[u8] = b"";
    while let Some(tag) = reader.tag(&field.name)? {
        match tag.number {
            1 => json = payload(&mut reader, tag.wire, field)?,
            _ => reader.skip(tag)?,
        }
    }
    if json.is_empty() {
        return Ok(Value::Null);
    }
    codec::decode(Media::Json, json).map_err(|problem| Error::Json { problem })
}

/// The member that counts: a list, else a schema, else a flag, whose absence is `false`.
fn union(message: &Message, mut members: Map<String, Value>) -> Value {
    let member = ["list", "schema", "flag"].iter().find_map(|name| members.remove(*name));
    member.unwrap_or_else(|| if message.has("flag") { false.into() } else { Value::Null })
}
