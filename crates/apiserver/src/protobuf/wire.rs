//! Reads the protobuf wire format: tags, variable-length integers, lengths.
//!
//! Never reads past the slice it was given, never copies it, and never recurses. Errors are in the words of the
//! Go decoder, because clients see them.

/// Why bytes are not the message they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("unexpected EOF")]
    Truncated,
    #[error("proto: integer overflow")]
    Overflow,
    #[error("proto: negative length found during unmarshaling")]
    NegativeLength,
    #[error("proto: {message}: illegal tag {tag} (wire type {wire})")]
    IllegalTag { message: String, tag: i32, wire: u64 },
    #[error("proto: {message}: wiretype end group for non-group")]
    StrayGroupEnd { message: String },
    #[error("proto: unexpected end of group")]
    UnexpectedGroupEnd,
    #[error("proto: illegal wireType {wire}")]
    IllegalWireType { wire: u8 },
    #[error("proto: wrong wireType = {wire} for field {field}")]
    WrongWireType { wire: u8, field: String },
    #[error("exceeded max depth")]
    TooDeep,
    #[error("json: {problem}")]
    Json { problem: String },
    #[error("{field}: value out of range")]
    OutOfRange { field: String },
}

pub(super) const VARINT: u8 = 0;
pub(super) const FIXED64: u8 = 1;
pub(super) const BYTES: u8 = 2;
const GROUP_START: u8 = 3;
const GROUP_END: u8 = 4;
const FIXED32: u8 = 5;

/// What is left to read of one message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

/// The head of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) number: i32,
    pub(super) wire: u8,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next field's tag, or nothing at the end. `message` is for the error.
    pub(super) fn tag(&mut self, message: &str) -> Result<Option<Tag>, Error> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let head = self.varint()?;
        let tag = split(head);
        if tag.wire == GROUP_END {
            return Err(Error::StrayGroupEnd { message: message.to_owned() });
        }
        if tag.number <= 0 {
            return Err(Error::IllegalTag { message: message.to_owned(), tag: tag.number, wire: head });
        }
        Ok(Some(tag))
    }

    /// At most ten bytes; what exceeds 64 bits is cut off, as in Go.
    pub(super) fn varint(&mut self) -> Result<u64, Error> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(Error::Truncated)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::Overflow)
    }

    /// A length and as many bytes.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Error> {
        let length = self.varint()?;
        let length = i64::try_from(length).map_err(|_| Error::NegativeLength)?;
        self.take(usize::try_from(length).map_err(|_| Error::Truncated)?)
    }

    pub(super) fn fixed64(&mut self) -> Result<[u8; 8], Error> {
        self.take(8)?.try_into().map_err(|_| Error::Truncated)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Passes over a field that nobody knows. Groups may nest: counted, not recursed into.
    pub(super) fn skip(&mut self, tag: Tag) -> Result<(), Error> {
        let mut open = 0_usize;
        let mut wire = tag.wire;
        loop {
            match wire {
                VARINT => drop(self.varint()?),
                FIXED64 => drop(self.take(8)?),
                BYTES => drop(self.bytes()?),
                FIXED32 => drop(self.take(4)?),
                GROUP_START => open += 1,
                GROUP_END => open = open.checked_sub(1).ok_or(Error::UnexpectedGroupEnd)?,
                wire => return Err(Error::IllegalWireType { wire }),
            }
            if open == 0 {
                return Ok(());
            }
            wire = split(self.varint()?).wire;
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the Go decoder cuts the field number to 32 bits too")]
fn split(head: u64) -> Tag {
    Tag { number: (head >> 3) as i32, wire: (head & 7) as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_end_or_overflow() {
        let read = |bytes: &[u8]| Reader::new(bytes).varint();
        assert_eq!(read(&[0]), Ok(0));
        assert_eq!(read(&[0xac, 0x02]), Ok(300));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]), Ok(u64::MAX));
        assert_eq!(read(&[0xff; 10]), Err(Error::Overflow));
        assert_eq!(read(&[0xff; 9]), Err(Error::Truncated));
        assert_eq!(read(&[]), Err(Error::Truncated));
    }

    #[test]
    fn lengths_stay_within_the_message() {
        let read = |bytes: &'static [u8]| Reader::new(bytes).bytes();
        assert_eq!(read(&[2, 7, 8, 9]), Ok(&[7, 8][..]));
        assert_eq!(read(&[2, 7]), Err(Error::Truncated));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0x0f]), Err(Error::Truncated));
        let negative: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(Reader::new(negative).bytes(), Err(Error::NegativeLength));
    }

    #[test]
    fn unknown_fields_are_passed_over() {
        // Field 1 of each wire type, then a varint of 1.
        let fields: [&[u8]; 5] = [
            &[0x08, 0x96, 0x01],
            &[0x09, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0x0a, 2, 1, 2],
            &[0x0b, 0x13, 0x08, 0x01, 0x14, 0x0c],
            &[0x0d, 1, 2, 3, 4],
        ];
        for field in fields {
            let bytes = [field, &[1]].concat();
            let mut reader = Reader::new(&bytes);
            let tag = reader.tag("M").unwrap().unwrap();
            reader.skip(tag).unwrap();
            assert_eq!(reader.varint(), Ok(1), "{field:?}");
        }
        let unclosed = [0x0b].repeat(100_000);
        let mut reader = Reader::new(&unclosed);
        let tag = reader.tag("M").unwrap().unwrap();
        assert_eq!(reader.skip(tag), Err(Error::Truncated));
    }

    #[test]
    fn tags_are_checked() {
        let read = |bytes: &[u8]| Reader::new(bytes).tag("Pod").map_err(|e| e.to_string());
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[0x0a]), Ok(Some(Tag { number: 1, wire: BYTES })));
        assert_eq!(read(&[0]), Err("proto: Pod: illegal tag 0 (wire type 0)".to_owned()));
        assert_eq!(read(&[0x0c]), Err("proto: Pod: wiretype end group for non-group".to_owned()));
    }
}
