//! The access log: a bounded queue, and a thread that writes what is in it. Whoever puts a line in never waits: when the
//! queue is full, because nobody takes the lines away fast enough, the line is dropped and counted.

use std::fmt::{self, Debug, Formatter};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::time::{Duration, Instant};

use agentcube_operator::metrics::{Counter, Registry};
use jiff::Timestamp;

use super::{Hiding, Record, line};

/// How many lines wait at most.
const MOST: usize = 8192;
/// About as much as is written at once, in bytes.
const BATCH: usize = 64 << 10;
/// How often it is looked whether the file was moved away.
const LOOK: Duration = Duration::from_secs(1);
/// How long the last lines may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    Stdout,
    /// Appended to. When it is moved away it is made anew, so that it can be rotated.
    File(PathBuf),
}

/// The way to the log; cheap to clone.
#[derive(Clone)]
pub struct AccessLog {
    sender: SyncSender<Message>,
    full: Counter,
}

impl Debug for AccessLog {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("AccessLog")
    }
}

enum Message {
    Line {
        begun: Timestamp,
        front: &'static str,
        record: Box<Record>,
    },
    /// Everything before is to be written; then it is said here.
    Finish(SyncSender<()>),
}

impl AccessLog {
    /// Opens it.
    pub fn open(destination: &Destination, hiding: Hiding, metrics: &Registry) -> io::Result<AccessLog> {
        let output: Box<dyn Write + Send> = match destination {
            Destination::Stdout => Box::new(io::stdout()),
            Destination::File(path) => Box::new(Rotated::open(path)?),
        };
        AccessLog::to(output, MOST, hiding, metrics)
    }

    /// One that writes here, of which so many lines may wait.
    pub fn to(
        output: Box<dyn Write + Send>,
        most: usize,
        hiding: Hiding,
        metrics: &Registry,
    ) -> io::Result<AccessLog> {
        let help = "Lines that were written to the access log";
        let written = metrics.counter("agentcube_access_log_lines_total", help, &[]).with(&[]);
        let help = "Lines that did not get into the access log";
        let dropped = metrics.counter("agentcube_access_log_dropped_total", help, &["reason"]);
        let (full, failed) = (dropped.with(&["full"]), dropped.with(&["failed"]));
        let (sender, receiver) = mpsc::sync_channel(most);
        let writer = Writer { output, hiding, written, failed, failing: false };
        std::thread::Builder::new().name("access-log".into()).spawn(move || writer.run(&receiver))?;
        Ok(AccessLog { sender, full })
    }

    pub(super) fn put(&self, begun: Timestamp, front: &'static str, record: Record) {
        let message = Message::Line { begun, front, record: Box::new(record) };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.sender.try_send(message) {
            self.full.inc();
        }
    }

    /// Comes back when all that was put in has been written, or takes too long. Blocks; for the end of a process.
    pub fn finish(&self) {
        let (done, is_done) = mpsc::sync_channel(1);
        let until = Instant::now() + PATIENCE;
        // Not `send`, which waits for as long as the writer is stuck.
        let mut message = Message::Finish(done);
        while let Err(TrySendError::Full(again)) = self.sender.try_send(message) {
            if Instant::now() >= until {
                return;
            }
            message = again;
            std::thread::sleep(Duration::from_millis(10));
        }
        let _late = is_done.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

struct Writer {
    output: Box<dyn Write + Send>,
    hiding: Hiding,
    written: Counter,
    failed: Counter,
    failing: bool,
}

impl Writer {
    fn run(mut self, messages: &Receiver<Message>) {
        let mut lines = Vec::with_capacity(BATCH);
        while let Ok(first) = messages.recv() {
            lines.clear();
            let (mut count, mut next, mut finished) = (0, Some(first), None);
            while let Some(message) = next {
                match message {
                    Message::Line { begun, front, record } => {
                        line::render(begun, front, &record, &self.hiding, &mut lines);
                        count += 1;
                    }
                    Message::Finish(done) => {
                        finished = Some(done);
                        break;
                    }
                }
                next = if lines.len() < BATCH { messages.try_recv().ok() } else { None };
            }
            self.write(&lines, count);
            if let Some(done) = finished {
                let _nobody = done.try_send(());
            }
        }
    }

    fn write(&mut self, lines: &[u8], count: u64) {
        match self.output.write_all(lines).and_then(|()| self.output.flush()) {
            Ok(()) => {
                self.failing = false;
                self.written.add(count);
            }
            Err(error) => {
                self.failed.add(count);
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(%error, "the access log cannot be written, and its lines are lost");
                }
            }
        }
    }
}

/// A file that others may move away.
struct Rotated {
    path: PathBuf,
    file: File,
    looked: Instant,
}

impl Rotated {
    fn open(path: &Path) -> io::Result<Rotated> {
        Ok(Rotated { path: path.to_owned(), file: open(path)?, looked: Instant::now() })
    }

    fn is_there(&self) -> bool {
        let same = |there: std::fs::Metadata, ours: std::fs::Metadata| {
            (there.dev(), there.ino()) == (ours.dev(), ours.ino())
        };
        let there = std::fs::metadata(&self.path).and_then(|there| Ok(same(there, self.file.metadata()?)));
        there.unwrap_or(false)
    }

    fn look(&mut self) -> io::Result<()> {
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            if !self.is_there() {
                self.file = open(&self.path)?;
            }
        }
        Ok(())
    }
}

/// For the owner alone: paths may be nobody else's business.
fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

impl Write for Rotated {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Only whole batches are written, and a batch is whole lines.
        self.look()?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use ring::hmac;

    use super::*;

    fn hiding() -> Hiding {
        Hiding::new(hmac::Key::new(hmac::HMAC_SHA256, b"key"))
    }

    /// Takes what it is given when it is let, and says when it is about to.
    #[derive(Clone)]
    struct Slow {
        taken: Arc<Mutex<Vec<u8>>>,
        gate: Arc<Mutex<()>>,
        about_to: mpsc::Sender<()>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.about_to.send(());
            let _open = self.gate.lock();
            self.taken.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_nobody_takes_is_dropped_and_counted() {
        let (about_to, is_about_to) = mpsc::channel();
        let slow = Slow { taken: Arc::default(), gate: Arc::default(), about_to };
        let metrics = Registry::new();
        let log = AccessLog::to(Box::new(slow.clone()), 4, hiding(), &metrics).unwrap();
        let put = || log.put(Timestamp::UNIX_EPOCH, "gateway", Record::default());
        let shut = slow.gate.lock();
        put();
        is_about_to.recv().unwrap();
        for _ in 0..100 {
            put();
        }
        drop(shut);
        log.finish();
        let lines = slow.taken.lock().split(|byte| *byte == b'\n').count() - 1;
        assert_eq!(lines, 1 + 4, "one that it was about to write, and those that the queue takes");
        let text = metrics.encode();
        assert!(text.contains("agentcube_access_log_lines_total 5\n"), "{text}");
        assert!(text.contains("agentcube_access_log_dropped_total{reason=\"full\"} 96\n"), "{text}");
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        struct Broken;
        impl Write for Broken {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let metrics = Registry::new();
        let log = AccessLog::to(Box::new(Broken), 4, hiding(), &metrics).unwrap();
        log.put(Timestamp::UNIX_EPOCH, "gateway", Record::default());
        log.finish();
        let text = metrics.encode();
        assert!(text.contains("agentcube_access_log_dropped_total{reason=\"failed\"} 1\n"), "{text}");
    }

    #[test]
    fn a_file_that_is_moved_away_is_made_anew() {
        use std::os::unix::fs::PermissionsExt;
        let directory = std::env::temp_dir().join(format!("agentcube-log-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("access.log");
        let mut file = Rotated::open(&path).unwrap();
        file.write_all(b"one\n").unwrap();
        std::fs::rename(&path, directory.join("access.log.1")).unwrap();
        file.looked = Instant::now().checked_sub(LOOK).unwrap();
        file.write_all(b"two\n").unwrap();
        let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        let seen = (read("access.log.1"), read("access.log"), mode & 0o777);
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(seen, ("one\n".into(), "two\n".into(), 0o600));
    }
}
