//! Reads tar archives (ustar, GNU, PAX) as a stream, in bounded memory whatever the archive claims.
//!
//! Never interprets a path: that is the business of whoever unpacks. The `tar` crate is not used because it reads long
//! names and PAX records of any length into memory.

use std::io::{self, Read};

const BLOCK: usize = 512;
/// For the long name, long link and PAX records of one entry together.
const METADATA_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the archive: {0}")]
    Read(io::Error),
    #[error("the archive ends in the middle of an entry")]
    Truncated,
    #[error("the archive has a damaged header: {0}")]
    Header(&'static str),
    #[error("an entry's long names and attributes are larger than {METADATA_BYTES} bytes")]
    Metadata,
    #[error("the entry {path:?} has the type {kind:?}, which is not supported")]
    Kind { path: String, kind: char },
}

// Not `#[from]`: the message has the cause already, and a chain of causes would say it twice.
impl From<io::Error> for Error {
    fn from(cause: io::Error) -> Self {
        Self::Read(cause)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Symlink,
    HardLink,
    Fifo,
    Device,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Seconds and nanoseconds since 1970.
    pub(super) modified: (i64, u32),
    pub(super) size: u64,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The archive; reading from it yields the content of the entry that [`Archive::next`] returned last.
pub(super) struct Archive<R> {
    input: R,
    /// Of the current entry's content.
    left: u64,
    padding: u64,
    /// Bytes consumed.
    position: u64,
}

/// What the special entries before an entry say about it.
#[derive(Default)]
struct Extra {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u32>,
    gid: Option<u32>,
    modified: Option<(i64, u32)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    bytes: u64,
}

impl<R: Read> Archive<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, left: 0, padding: 0, position: 0 }
    }

    /// What is read from, at the end of what was read.
    pub(super) fn into_input(self) -> R {
        self.input
    }

    /// Where the content of the current entry begins.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn next(&mut self) -> Result<Option<Entry>, Error> {
        let mut extra = Extra::default();
        loop {
            self.skip()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = number(&header[124..136])?;
            let size = u64::try_from(size).map_err(|_| Error::Header("a negative size"))?;
            match header[156] {
                b'L' => extra.path = Some(until_nul(&self.metadata(size, &mut extra.bytes)?)),
                b'K' => extra.link = Some(until_nul(&self.metadata(size, &mut extra.bytes)?)),
                b'x' => {
                    let records = self.metadata(size, &mut extra.bytes)?;
                    records_into(&records, &mut extra)?;
                }
                b'g' => self.enter(size),
                _ => return self.entry(&header, size, extra).map(Some),
            }
        }
    }

    fn entry(&mut self, header: &[u8; BLOCK], size: u64, extra: Extra) -> Result<Entry, Error> {
        let path = extra.path.unwrap_or_else(|| path_of(header));
        let kind = match header[156] {
            // Archives older than ustar mark directories by their name.
            0 if path.ends_with(b"/") => Kind::Directory,
            0 | b'0' | b'7' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' | b'4' => Kind::Device,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            kind => {
                let path = String::from_utf8_lossy(&path).into_owned();
                return Err(Error::Kind { path, kind: kind.into() });
            }
        };
        let size = if kind == Kind::File { extra.size.unwrap_or(size) } else { 0 };
        let id = |field: &[u8]| number(field).map(|id| u32::try_from(id).unwrap_or(0));
        let entry = Entry {
            path,
            link: extra.link.unwrap_or_else(|| until_nul(&header[157..257])),
            kind,
            mode: u32::try_from(number(&header[100..108])? & 0o7777).unwrap_or(0),
            uid: extra.uid.map_or_else(|| id(&header[108..116]), Ok)?,
            gid: extra.gid.map_or_else(|| id(&header[116..124]), Ok)?,
            modified: extra.modified.map_or_else(|| number(&header[136..148]).map(|s| (s, 0)), Ok)?,
            size,
            xattrs: extra.xattrs,
        };
        self.enter(size);
        Ok(entry)
    }

    fn enter(&mut self, size: u64) {
        self.left = size;
        self.padding = size.wrapping_neg() % BLOCK as u64;
    }

    /// Goes to the next header.
    fn skip(&mut self) -> Result<(), Error> {
        let rest = self.left.saturating_add(self.padding);
        let skipped = io::copy(&mut (&mut self.input).take(rest), &mut io::sink())?;
        self.position += skipped;
        (self.left, self.padding) = (0, 0);
        if skipped == rest { Ok(()) } else { Err(Error::Truncated) }
    }

    /// `None` at the end: a block of zeros, or no block at all.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, Error> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.input.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(Error::Truncated),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.position += BLOCK as u64;
        if block.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let sum = |byte: fn(u8) -> i64| -> i64 {
            block
                .iter()
                .enumerate()
                .map(|(at, &b)| byte(if (148..156).contains(&at) { b' ' } else { b }))
                .sum()
        };
        let stored = number(&block[148..156])?;
        // Old archivers added signed bytes.
        if stored != sum(i64::from) && stored != sum(|byte| i64::from(byte.cast_signed())) {
            return Err(Error::Header("its checksum is wrong"));
        }
        Ok(Some(block))
    }

    fn metadata(&mut self, size: u64, sum: &mut u64) -> Result<Vec<u8>, Error> {
        *sum = sum.saturating_add(size);
        if *sum > METADATA_BYTES {
            return Err(Error::Metadata);
        }
        self.enter(size);
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)?;
        if bytes.len() as u64 == size { Ok(bytes) } else { Err(Error::Truncated) }
    }
}

impl<R: Read> Read for Archive<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = (&mut self.input).take(self.left).read(buffer)?;
        self.left -= count as u64;
        self.position += count as u64;
        Ok(count)
    }
}

fn until_nul(bytes: &[u8]) -> Vec<u8> {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default().to_vec()
}

fn path_of(header: &[u8; BLOCK]) -> Vec<u8> {
    let name = until_nul(&header[..100]);
    // Only POSIX archives have a prefix here; GNU's magic has a space where POSIX has a zero.
    let prefix = if &header[257..263] == b"ustar\0" { until_nul(&header[345..500]) } else { Vec::new() };
    if prefix.is_empty() { name } else { [&prefix[..], b"/", &name[..]].concat() }
}

/// Octal digits, or base 256 when the first bit is set.
fn number(field: &[u8]) -> Result<i64, Error> {
    if field[0] & 0x80 != 0 {
        let mut value: i64 = if field[0] & 0x40 != 0 { -1 } else { 0 };
        for (at, &byte) in field.iter().enumerate() {
            let byte = if at == 0 && value == 0 { byte & 0x7f } else { byte };
            value = value
                .checked_mul(256)
                .map(|value| value | i64::from(byte))
                .ok_or(Error::Header("a number is too large"))?;
        }
        return Ok(value);
    }
    let digits = field.split(|&byte| byte == 0).next().unwrap_or_default().trim_ascii();
    digits.iter().try_fold(0_i64, |value, &digit| match digit {
        b'0'..=b'7' => value
            .checked_mul(8)
            .map(|value| value + i64::from(digit - b'0'))
            .ok_or(Error::Header("a number is too large")),
        _ => Err(Error::Header("a number is not octal")),
    })
}

/// PAX records: `LENGTH KEY=VALUE\n`, the length counting itself.
fn records_into(mut records: &[u8], extra: &mut Extra) -> Result<(), Error> {
    const DAMAGED: Error = Error::Header("a PAX record is malformed");
    while !records.is_empty() {
        let space = records.iter().take(20).position(|&byte| byte == b' ').ok_or(DAMAGED)?;
        let length: usize = text(&records[..space])?.parse().map_err(|_| DAMAGED)?;
        if length <= space + 1 || length > records.len() || records[length - 1] != b'\n' {
            return Err(DAMAGED);
        }
        let record = &records[space + 1..length - 1];
        records = &records[length..];
        let equals = record.iter().position(|&byte| byte == b'=').ok_or(DAMAGED)?;
        let (key, value) = (text(&record[..equals])?, &record[equals + 1..]);
        match key {
            "path" => extra.path = Some(value.to_vec()),
            "linkpath" => extra.link = Some(value.to_vec()),
            "size" => extra.size = Some(text(value)?.parse().map_err(|_| DAMAGED)?),
            "uid" => extra.uid = Some(text(value)?.parse().map_err(|_| DAMAGED)?),
            "gid" => extra.gid = Some(text(value)?.parse().map_err(|_| DAMAGED)?),
            "mtime" => extra.modified = Some(time(text(value)?).ok_or(DAMAGED)?),
            _ if key.starts_with("GNU.sparse.") => {
                return Err(Error::Header("sparse files are not supported; make the image without them"));
            }
            _ => {
                if let Some(name) = key.strip_prefix("SCHILY.xattr.") {
                    extra.xattrs.push((name.as_bytes().to_vec(), value.to_vec()));
                }
            }
        }
    }
    Ok(())
}

fn text(bytes: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(bytes).map_err(|_| Error::Header("a PAX record is not UTF-8"))
}

/// Seconds with up to nine decimals that count; before 1970 only whole seconds do.
fn time(text: &str) -> Option<(i64, u32)> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = seconds.parse().ok()?;
    if !fraction.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let digits = &fraction[..fraction.len().min(9)];
    let nanoseconds = if seconds < 0 { 0 } else { format!("{digits:0<9}").parse().ok()? };
    Some((seconds, nanoseconds))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_octal_or_base_256() {
        for (field, expected) in [
            (&b"0000644\0"[..], 0o644),
            (b"   644 \0", 0o644),
            (b"\0\0\0\0\0\0\0\0", 0),
            (b"\x80\0\0\0\0\0\x01\0", 256),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", -2),
        ] {
            assert_eq!(number(field).unwrap(), expected, "{field:?}");
        }
        assert!(number(b"12x45678").is_err());
        assert!(number(b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff").is_err());
    }

    #[test]
    fn records_are_read() {
        let mut extra = Extra::default();
        records_into(b"12 path=a/b\n20 mtime=12.5000000\n24 SCHILY.xattr.user.a=\n", &mut extra).unwrap();
        assert_eq!(extra.path.as_deref(), Some(&b"a/b"[..]));
        assert_eq!(extra.modified, Some((12, 500_000_000)));
        assert_eq!(extra.xattrs, [(b"user.a".to_vec(), Vec::new())]);
        for damaged in [&b"5"[..], b"99 path=a\n", b"0 a=b\n", b"6 path\n", b"8 size=\n", b"x a=b\n"] {
            assert!(records_into(damaged, &mut Extra::default()).is_err(), "{damaged:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let mut archive = Archive::new(&bytes[..]);
            while let Ok(Some(_)) = archive.next() {}
        }

        #[test]
        fn any_records_end(bytes in "[0-9]{0,3} ?[a-z.]{0,8}=?[0-9.]{0,12}\n?") {
            let _outcome = records_into(bytes.as_bytes(), &mut Extra::default());
        }
    }
}
