//! Lines of a log file: `TIME STREAM TAG CONTENT`, where the tag tells whether more of the line follows.

use std::io::Write;

/// Longer lines are written in parts.
pub(super) const PART_LIMIT: usize = 16 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// One line of a file, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub(super) time: &'a str,
    pub(super) stream: Stream,
    /// The line goes on in the next one of its stream.
    pub(super) partial: bool,
    pub(super) content: &'a [u8],
}

impl<'a> Line<'a> {
    /// `None` for what is not a line of ours; the newline at the end is not part of it.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut parts = bytes.splitn(4, |byte| *byte == b' ');
        let time = std::str::from_utf8(parts.next()?).ok()?;
        let stream = match parts.next()? {
            b"stdout" => Stream::Stdout,
            b"stderr" => Stream::Stderr,
            _ => return None,
        };
        let partial = match parts.next()? {
            b"P" => true,
            b"F" => false,
            _ => return None,
        };
        Some(Self { time, stream, partial, content: parts.next()? })
    }
}

/// Adds a line to a buffer.
pub(super) fn encode(
    out: &mut Vec<u8>,
    time: jiff::Timestamp,
    stream: Stream,
    partial: bool,
    content: &[u8],
) {
    let stream = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    let tag = if partial { 'P' } else { 'F' };
    write!(out, "{time:.9} {stream} {tag} ").expect("memory takes what is written");
    out.extend_from_slice(content);
    out.push(b'\n');
}

/// Cuts what a program writes into lines.
#[derive(Default)]
pub(super) struct Splitter {
    rest: Vec<u8>,
}

impl Splitter {
    /// Calls back for every line that is whole, or too long to wait for.
    pub(super) fn push(&mut self, mut bytes: &[u8], mut line: impl FnMut(bool, &[u8])) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let whole = std::mem::take(&mut self.rest);
            let mut parts = whole.chunks(PART_LIMIT).peekable();
            if parts.peek().is_none() {
                line(false, b"");
            }
            while let Some(part) = parts.next() {
                line(parts.peek().is_some(), part);
            }
        }
        self.rest.extend_from_slice(bytes);
        while self.rest.len() > PART_LIMIT {
            let tail = self.rest.split_off(PART_LIMIT);
            let part = std::mem::replace(&mut self.rest, tail);
            line(true, &part);
        }
    }

    /// What the program left without a newline; a reader adds none either.
    pub(super) fn finish(&mut self, mut line: impl FnMut(bool, &[u8])) {
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() {
            line(true, &rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_read_as_written() {
        let time: jiff::Timestamp = "2026-01-02T03:04:05.6Z".parse().expect("a time");
        let mut out = Vec::new();
        encode(&mut out, time, Stream::Stderr, true, b"a b  c");
        assert_eq!(out, b"2026-01-02T03:04:05.600000000Z stderr P a b  c\n");
        let line = Line::parse(&out[..out.len() - 1]).expect("a line");
        assert_eq!(
            line,
            Line {
                time: "2026-01-02T03:04:05.600000000Z",
                stream: Stream::Stderr,
                partial: true,
                content: b"a b  c"
            }
        );
        for broken in ["", "x", "t stdout", "t stdout X c", "t stdin F c", "t stdout F"] {
            assert_eq!(Line::parse(broken.as_bytes()), None, "{broken:?}");
        }
    }

    proptest! {
        /// Whatever the pieces in which a program writes, its bytes come out in order and in bounded parts.
        #[test]
        fn nothing_is_lost_in_splitting(pieces in prop::collection::vec(
            prop_oneof![prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..40), Just(vec![b'x'; 40_000])], 0..8)) {
            let mut splitter = Splitter::default();
            let mut heard = Vec::new();
            let mut note = |partial: bool, part: &[u8]| {
                assert!(part.len() <= PART_LIMIT);
                heard.extend_from_slice(part);
                if !partial {
                    heard.push(b'\n');
                }
            };
            for piece in &pieces {
                splitter.push(piece, &mut note);
            }
            splitter.finish(&mut note);
            prop_assert_eq!(heard, pieces.concat());
        }
    }
}
