//! Decompresses blobs by what they are, not by what their media type claims, and never past a limit.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const FOREIGN: [(&str, &[u8]); 3] =
    [("bzip2", b"BZh"), ("xz", &[0xfd, b'7', b'z', b'X', b'Z']), ("lz4", &[0x04, 0x22, 0x4d, 0x18])];

/// A blob's content, whatever compressed it.
pub(super) enum Decoder<R: Read> {
    Plain(BufReader<R>),
    /// Boxed: its state is large.
    Gzip(Box<MultiGzDecoder<BufReader<R>>>),
    Zstd(Frames<R>),
}

impl<R: Read> Decoder<R> {
    pub(super) fn new(input: R) -> io::Result<Self> {
        let mut input = BufReader::with_capacity(64 << 10, input);
        let start = input.fill_buf()?;
        if let Some((name, _)) = FOREIGN.iter().find(|(_, magic)| start.starts_with(magic)) {
            let text = format!("it is compressed with {name}; use gzip, zstd or no compression");
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        Ok(if start.starts_with(GZIP) {
            Self::Gzip(Box::new(MultiGzDecoder::new(input)))
        } else if start.starts_with(ZSTD) {
            Self::Zstd(Frames::new(input))
        } else {
            Self::Plain(input)
        })
    }

    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }
}

impl<R: Read> Read for Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(input) => input.read(buffer),
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Zstd(frames) => frames.read(buffer),
        }
    }
}

/// A zstd blob: one frame after another, with frames to skip in between.
pub(super) struct Frames<R: Read> {
    /// `None` only after an error, which is final.
    state: Option<Frame<R>>,
}

enum Frame<R: Read> {
    Between(BufReader<R>, Box<FrameDecoder>),
    Inside(StreamingDecoder<BufReader<R>, Box<FrameDecoder>>),
}

impl<R: Read> Frames<R> {
    fn new(input: BufReader<R>) -> Self {
        Self { state: Some(Frame::Between(input, Box::new(FrameDecoder::new()))) }
    }
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.state.take() {
                Some(Frame::Inside(mut decoder)) => {
                    let count = decoder.read(buffer)?;
                    if count > 0 || buffer.is_empty() {
                        self.state = Some(Frame::Inside(decoder));
                        return Ok(count);
                    }
                    let (input, decoder) = decoder.into_parts();
                    self.state = Some(Frame::Between(input, decoder));
                }
                Some(Frame::Between(mut input, decoder)) => {
                    if !to_next_frame(&mut input)? {
                        self.state = Some(Frame::Between(input, decoder));
                        return Ok(0);
                    }
                    let decoder =
                        StreamingDecoder::new_with_decoder(input, decoder).map_err(io::Error::other)?;
                    self.state = Some(Frame::Inside(decoder));
                }
                None => return Err(io::Error::other("an earlier read failed")),
            }
        }
    }
}

/// Skips frames that hold no content; false at the end.
fn to_next_frame(input: &mut impl BufRead) -> io::Result<bool> {
    loop {
        // The buffer may end inside a magic number; only its first byte is looked at.
        match input.fill_buf()?.first() {
            None => return Ok(false),
            Some(first) if first & 0xf0 != 0x50 => return Ok(true),
            Some(_) => {}
        }
        let mut header = [0; 8];
        input.read_exact(&mut header)?;
        if header[1..4] != [0x2a, 0x4d, 0x18] {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no zstd frame"));
        }
        let length = u64::from(u32::from_le_bytes([header[4], header[5], header[6], header[7]]));
        if io::copy(&mut input.take(length), &mut io::sink())? < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Fails when more than `left` bytes come out, so that a small file cannot become an endless one.
pub(super) struct Limited<'a, R> {
    input: R,
    left: &'a mut u64,
}

/// The error inside [`io::Error`] that [`Limited`] fails with.
#[derive(Debug, thiserror::Error)]
#[error("it is larger than the limit")]
pub(super) struct TooLarge;

impl<'a, R> Limited<'a, R> {
    pub(super) fn new(input: R, left: &'a mut u64) -> Self {
        Self { input, left }
    }
}

impl<R: Read> Read for Limited<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        *self.left = self.left.checked_sub(count as u64).ok_or_else(|| io::Error::other(TooLarge))?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn decoded(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        Decoder::new(bytes)?.read_to_end(&mut content)?;
        Ok(content)
    }

    #[test]
    fn every_compression_is_recognised() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"hello").unwrap();
        let gzip = gzip.finish().unwrap();
        // "hello" as one raw block, without and with a frame to skip before it; made by hand from RFC 8878.
        let frame = [&[0x28, 0xb5, 0x2f, 0xfd, 0x20, 5, 0x29, 0, 0][..], b"hello"].concat();
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9][..], &frame].concat();
        for (bytes, expected) in [
            (b"hello".to_vec(), "hello"),
            (gzip.clone(), "hello"),
            ([&gzip[..], &gzip].concat(), "hellohello"),
            (frame.clone(), "hello"),
            ([&frame[..], &skipped, &skipped[..10]].concat(), "hellohello"),
        ] {
            assert_eq!(decoded(&bytes).unwrap(), expected.as_bytes());
        }
        assert!(decoded(&gzip[..gzip.len() - 3]).is_err());
        assert!(decoded(&frame[..frame.len() - 3]).is_err());
        assert!(decoded(&[&frame[..], b"garbage"].concat()).is_err());
        assert!(decoded(b"BZh91AY").unwrap_err().to_string().contains("bzip2"));
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let mut left = 1 << 20;
        let endless = io::repeat(0);
        let error = io::copy(&mut Limited::new(endless, &mut left), &mut io::sink()).unwrap_err();
        assert!(error.get_ref().is_some_and(|inner| inner.is::<TooLarge>()));
    }
}
