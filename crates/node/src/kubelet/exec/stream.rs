//! Bytes between frames and the pipes or the terminal of a command.

use std::io;
use std::os::fd::OwnedFd;

use agentcube_apiserver::hooks::ExecFrame;
use bytes::{Bytes, BytesMut};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

/// Bytes read at once.
const CHUNK: usize = 16 << 10;
/// What a terminal takes for the end of input: Ctrl-D.
const END_OF_TRANSMISSION: &[u8] = &[4];

/// The master side of a terminal, to write to. To tokio it is a pipe: all that matters is that it can be polled.
pub(super) struct Terminal {
    keys: pipe::Sender,
    size: OwnedFd,
}

/// Where a client's input goes.
pub(super) enum Input {
    Pipe(pipe::Sender),
    /// Resizing needs no input; keys are passed on only if the client asked for it.
    Terminal {
        terminal: Terminal,
        keys: bool,
    },
}

impl Terminal {
    pub(super) fn new(master: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&master, true)?;
        let keys = pipe::Sender::from_owned_fd_unchecked(master.try_clone()?)?;
        Ok(Self { keys, size: master })
    }

    /// What appears on the terminal, until nobody has it open any more: then reading fails.
    pub(super) fn screen(&self) -> io::Result<pipe::Receiver> {
        pipe::Receiver::from_owned_fd_unchecked(self.size.try_clone()?)
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        if let Err(error) = tcsetwinsize(&self.size, size) {
            tracing::debug!(%error, "cannot resize a terminal");
        }
    }
}

/// Sends what comes out of a pipe, until its end.
pub(super) async fn forward(
    source: Option<pipe::Receiver>,
    output: mpsc::Sender<ExecFrame>,
    frame: fn(Bytes) -> ExecFrame,
) {
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
pub(super) async fn feed(mut input: Option<Input>, mut frames: mpsc::Receiver<ExecFrame>) {
    while let Some(frame) = frames.recv().await {
        let passed = match (&mut input, frame) {
            (Some(Input::Pipe(pipe)), ExecFrame::Stdin(data)) => pipe.write_all(&data).await,
            (Some(Input::Pipe(_)), ExecFrame::StdinClosed) => {
                input = None;
                Ok(())
            }
            (Some(Input::Terminal { terminal, keys: true }), ExecFrame::Stdin(data)) => {
                terminal.keys.write_all(&data).await
            }
            (Some(Input::Terminal { terminal, keys: true }), ExecFrame::StdinClosed) => {
                terminal.keys.write_all(END_OF_TRANSMISSION).await
            }
            (Some(Input::Terminal { terminal, .. }), ExecFrame::Resize { columns, rows }) => {
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
