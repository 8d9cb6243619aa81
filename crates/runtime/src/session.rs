//! Bytes between a client's frames and the pipes or the terminal of a command, whatever protocol the frames come by.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use crate::{Exit, Process, Stdio};

/// How long a command that has ended may leave its output to others that still write to it.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Bytes read at once.
const CHUNK: usize = 16 << 10;
/// What a terminal takes for the end of input: Ctrl-D.
const END_OF_TRANSMISSION: &[u8] = &[4];

/// The master side of a terminal, to write to. To tokio it is a pipe: all that matters is that it can be polled.
pub struct Terminal {
    keys: pipe::Sender,
    size: OwnedFd,
}

/// What a client says to a command.
#[derive(Debug)]
pub enum Told {
    Stdin(Bytes),
    StdinClosed,
    Resize { columns: u16, rows: u16 },
}

/// Our ends of a command's pipes.
#[derive(Default)]
pub struct Pipes {
    pub stdin: Option<pipe::Sender>,
    pub stdout: Option<pipe::Receiver>,
    pub stderr: Option<pipe::Receiver>,
}

impl Pipes {
    /// Those of the three that are wanted, and the ends for the command.
    pub fn open(stdin: bool, stdout: bool, stderr: bool) -> io::Result<(Stdio, Self)> {
        let (mut stdio, mut pipes) = (Stdio::default(), Self::default());
        (stdio.stdout, pipes.stdout) = outward(stdout)?;
        (stdio.stderr, pipes.stderr) = outward(stderr)?;
        if stdin {
            let (sender, receiver) = pipe::pipe()?;
            stdio.stdin = Some(receiver.into_blocking_fd()?);
            pipes.stdin = Some(sender);
        }
        Ok((stdio, pipes))
    }
}

fn outward(wanted: bool) -> io::Result<(Option<OwnedFd>, Option<pipe::Receiver>)> {
    if !wanted {
        return Ok((None, None));
    }
    let (sender, receiver) = pipe::pipe()?;
    Ok((Some(sender.into_blocking_fd()?), Some(receiver)))
}

/// Where a client's input goes.
pub enum Input {
    Pipe(pipe::Sender),
    /// Resizing needs no input; keys are passed on only if the client asked for it.
    Terminal {
        terminal: Terminal,
        keys: bool,
    },
}

impl Terminal {
    pub fn new(master: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&master, true)?;
        let keys = pipe::Sender::from_owned_fd_unchecked(master.try_clone()?)?;
        Ok(Self { keys, size: master })
    }

    /// What appears on the terminal, until nobody has it open any more: then reading fails.
    pub fn screen(&self) -> io::Result<pipe::Receiver> {
        pipe::Receiver::from_owned_fd_unchecked(self.size.try_clone()?)
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        if let Err(error) = tcsetwinsize(&self.size, size) {
            tracing::debug!(%error, "cannot resize a terminal");
        }
    }
}

/// Sends what comes out of a pipe, until its end.
pub async fn forward<F>(source: Option<pipe::Receiver>, output: mpsc::Sender<F>, frame: fn(Bytes) -> F) {
    let Some(mut source) = source else { return };
    loop {
        let mut buffer = BytesMut::with_capacity(CHUNK);
        match source.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) if output.send(frame(buffer.freeze())).await.is_err() => return,
            Ok(_) => {}
        }
    }
}

/// Passes a client's input on; comes back when the client has left. A command that no longer reads is not told twice.
pub async fn feed<F>(mut input: Option<Input>, mut frames: mpsc::Receiver<F>, read: fn(F) -> Option<Told>) {
    while let Some(frame) = frames.recv().await {
        let Some(told) = read(frame) else { continue };
        let passed = match (&mut input, told) {
            (Some(Input::Pipe(pipe)), Told::Stdin(data)) => pipe.write_all(&data).await,
            (Some(Input::Pipe(_)), Told::StdinClosed) => {
                input = None;
                Ok(())
            }
            (Some(Input::Terminal { terminal, keys: true }), Told::Stdin(data)) => {
                terminal.keys.write_all(&data).await
            }
            (Some(Input::Terminal { terminal, keys: true }), Told::StdinClosed) => {
                terminal.keys.write_all(END_OF_TRANSMISSION).await
            }
            (Some(Input::Terminal { terminal, .. }), Told::Resize { columns, rows }) => {
                terminal.resize(columns, rows);
                Ok(())
            }
            _ => Ok(()),
        };
        if passed.is_err() {
            input = None;
        }
    }
}

/// Waits for the command's end and its last words. None: the client has left, which is when `inward` ends.
pub async fn conclude<T>(
    process: Process,
    outward: impl Future<Output = T>,
    inward: impl Future<Output = ()>,
) -> Option<Option<Exit>> {
    let ending = async {
        let mut exit = process.exit;
        tokio::pin!(outward);
        tokio::select! {
            exit = &mut exit => {
                let _unsaid = tokio::time::timeout(LAST_WORDS, outward).await;
                exit
            }
            _ = &mut outward => exit.await,
        }
    };
    tokio::pin!(ending, inward);
    tokio::select! {
        exit = &mut ending => Some(exit.ok()),
        () = inward => None,
    }
}

/// Kills a command when its session is over.
pub struct Killer(pub u32);

impl Killer {
    /// It has ended and was reaped: its number may be another's by now.
    pub fn disarm(mut self) {
        self.0 = 0;
    }
}

impl Drop for Killer {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}
