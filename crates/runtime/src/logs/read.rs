//! From a log file to a reader: all of it or its tail, from a time on, and on as it grows.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use tokio::sync::{mpsc, watch};

use super::line::Line;
use super::{Logs, Progress, Run, older};

/// Chunks that wait for a slow reader.
const AHEAD: usize = 16;
/// A chunk is sent when it is this large.
const CHUNK: usize = 32 << 10;
/// A line in a file is at most a part and what stands before it.
const LINE_LIMIT: u64 = 32 << 10;

/// Which part of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    pub follow: bool,
    pub timestamps: bool,
    pub tail_lines: Option<u64>,
    pub limit_bytes: Option<u64>,
    pub since: Option<jiff::Timestamp>,
}

impl Logs {
    /// Chunks of a run's log; the channel closes at its end, and with `follow` not before the run has ended.
    pub fn read(&self, run: &Run, selection: Selection) -> mpsc::Receiver<Bytes> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        // Asked before the file is read, so that an end that comes in between is not missed.
        let progress = self.progress(run).filter(|_| selection.follow);
        let path = self.file(run);
        tokio::spawn(async move {
            let reader = Reader { path, selection, sender };
            if let Err(error) = reader.run(progress).await {
                tracing::warn!(%error, "cannot read a container's log");
            }
        });
        receiver
    }
}

struct Reader {
    path: PathBuf,
    selection: Selection,
    sender: mpsc::Sender<Bytes>,
}

/// The reader has had what it asked for, or is gone.
struct Done;

impl Reader {
    async fn run(self, mut progress: Option<watch::Receiver<Progress>>) -> io::Result<()> {
        let mut output = Output {
            left: self.selection.limit_bytes,
            timestamps: self.selection.timestamps,
            fresh: true,
            chunk: BytesMut::new(),
        };
        let mut state = progress.as_mut().map(|progress| *progress.borrow_and_update());
        let mut source = Source::open(&self.path)?;
        if let Some(source) = &mut source {
            source.skip_to(self.selection.since, self.selection.tail_lines)?;
        }
        loop {
            // A log that nothing was written to has no file. What comes later is all new.
            if source.is_none() {
                source = Source::open(&self.path)?;
            }
            if let Some(source) = &mut source
                && self.drain(source, &mut output).await?.is_err()
            {
                return Ok(());
            }
            let Some(progress) = progress.as_mut().filter(|_| state.is_some_and(|state| !state.ended)) else {
                return Ok(());
            };
            tokio::select! {
                _ = progress.changed() => {}
                () = self.sender.closed() => return Ok(()),
            }
            state = Some(*progress.borrow_and_update());
        }
    }

    /// Sends what the files have now.
    async fn drain(&self, source: &mut Source, output: &mut Output) -> io::Result<Result<(), Done>> {
        loop {
            let line = source.next()?;
            let full = match line {
                Some(line) => output.add(line),
                None => false,
            };
            let at_end = line.is_none();
            if (full || at_end || output.chunk.len() >= CHUNK) && !output.chunk.is_empty() {
                let chunk = output.chunk.split().freeze();
                if self.sender.send(chunk).await.is_err() {
                    return Ok(Err(Done));
                }
            }
            if full {
                return Ok(Err(Done));
            }
            if at_end {
                return Ok(Ok(()));
            }
        }
    }
}

/// What goes to the reader.
struct Output {
    left: Option<u64>,
    timestamps: bool,
    /// The next part begins a line.
    fresh: bool,
    chunk: BytesMut,
}

impl Output {
    /// `true` when the reader has all that it wanted.
    fn add(&mut self, line: &[u8]) -> bool {
        let Some(line) = Line::parse(line) else { return false };
        if self.timestamps && self.fresh {
            self.put(line.time.as_bytes());
            self.put(b" ");
        }
        self.put(line.content);
        if !line.partial {
            self.put(b"\n");
        }
        self.fresh = !line.partial;
        self.left == Some(0)
    }

    fn put(&mut self, bytes: &[u8]) {
        let length = self
            .left
            .map_or(bytes.len(), |left| bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        self.chunk.extend_from_slice(&bytes[..length]);
        if let Some(left) = &mut self.left {
            *left -= length as u64;
        }
    }
}

/// Lines of the old file and of the current one, in order, across the moment when one becomes the other.
struct Source {
    path: PathBuf,
    current: BufReader<File>,
    /// Comes after `current`, which is the old file.
    next: Option<BufReader<File>>,
    line: Vec<u8>,
    /// Lines that were read on the way to the tail.
    ahead: VecDeque<Vec<u8>>,
}

impl Source {
    fn open(path: &Path) -> io::Result<Option<Self>> {
        let open = |path: &Path| match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => file.map(|file| Some(BufReader::new(file))),
        };
        // The current file first: were it renamed in between, it would be read twice rather than lost.
        let current = open(path)?;
        let old = open(&older(path))?;
        let (current, next) = match (old, current) {
            (Some(old), Some(current)) if !same(&old, &current)? => (old, Some(current)),
            (_, Some(current)) => (current, None),
            (Some(old), None) => (old, None),
            (None, None) => return Ok(None),
        };
        Ok(Some(Self { path: path.to_owned(), current, next, line: Vec::new(), ahead: VecDeque::new() }))
    }

    /// The next whole line that is there now.
    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        if let Some(line) = self.ahead.pop_front() {
            self.line = line;
            return Ok(Some(&self.line));
        }
        loop {
            self.line.clear();
            let mut limited = (&mut self.current).take(LINE_LIMIT);
            limited.read_until(b'\n', &mut self.line)?;
            if self.line.pop_if(|last| *last == b'\n').is_some() {
                return Ok(Some(&self.line));
            }
            let unread = i64::try_from(self.line.len()).unwrap_or_default();
            if unread > 0 {
                // Written in one piece, but a disk that was full may have taken half of it.
                self.current.seek_relative(-unread)?;
            }
            match self.following()? {
                Some(next) => self.current = next,
                None => return Ok(None),
            }
        }
    }

    /// The file that took over, when this one is no longer written.
    fn following(&mut self) -> io::Result<Option<BufReader<File>>> {
        if let Some(next) = self.next.take() {
            return Ok(Some(next));
        }
        let newest = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => BufReader::new(file?),
        };
        Ok((!same(&newest, &self.current)?).then_some(newest))
    }

    /// Leaves out what is older than `since`, and all but the last lines.
    fn skip_to(&mut self, since: Option<jiff::Timestamp>, tail: Option<u64>) -> io::Result<()> {
        if since.is_none() && tail.is_none() {
            return Ok(());
        }
        let keep = tail.map_or(usize::MAX, |tail| usize::try_from(tail).unwrap_or(usize::MAX));
        let mut kept = Tail { limit: keep, lines: VecDeque::new(), whole: 0 };
        while let Some(line) = self.next()? {
            let Some(parsed) = Line::parse(line) else { continue };
            let old = since
                .is_some_and(|since| parsed.time.parse().is_ok_and(|time: jiff::Timestamp| time < since));
            if old {
                continue;
            }
            if tail.is_none() {
                // From here on everything is wanted; there is no need to hold it.
                kept.lines.push_back(line.to_vec());
                break;
            }
            kept.push(line.to_vec());
        }
        self.ahead = kept.lines;
        Ok(())
    }
}

/// The last lines, where a line may have come in parts.
struct Tail {
    limit: usize,
    lines: VecDeque<Vec<u8>>,
    whole: usize,
}

impl Tail {
    fn push(&mut self, line: Vec<u8>) {
        let begins = self.lines.back().is_none_or(|last| Line::parse(last).is_none_or(|last| !last.partial));
        self.lines.push_back(line);
        self.whole += usize::from(begins);
        while self.whole > self.limit {
            // One line goes, with all its parts.
            while let Some(part) = self.lines.pop_front() {
                if Line::parse(&part).is_none_or(|part| !part.partial) {
                    break;
                }
            }
            self.whole -= 1;
        }
    }
}

fn same(one: &BufReader<File>, other: &BufReader<File>) -> io::Result<bool> {
    let (one, other) = (one.get_ref().metadata()?, other.get_ref().metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// See [`Logs::tail`]. A log that cannot be read has nothing to say.
pub(super) fn tail(path: &Path, lines: usize, bytes: usize) -> String {
    let mut output = Output { left: None, timestamps: false, fresh: true, chunk: BytesMut::new() };
    let mut collect = || -> io::Result<()> {
        let Some(mut source) = Source::open(path)? else { return Ok(()) };
        source.skip_to(None, Some(lines as u64))?;
        while let Some(line) = source.next()? {
            output.add(line);
        }
        Ok(())
    };
    if let Err(error) = collect() {
        tracing::warn!(%error, "cannot read the end of a container's log");
    }
    let from = output.chunk.len().saturating_sub(bytes);
    String::from_utf8_lossy(&output.chunk[from..]).into_owned()
}
