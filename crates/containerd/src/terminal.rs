//! Terminals of commands. containerd has the real one; whoever asks for a terminal gets the master of another, in raw
//! mode, between which and containerd's pipes bytes are copied. Its size is looked at and passed on.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use agentcube_runtime::ContainerId;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

use crate::client::{Client, ask};
use crate::generated::containerd::services::tasks::v1::ResizePtyRequest;

/// How often the size is looked at: the kernel tells it only to those whose terminal it is.
const LOOK: Duration = Duration::from_millis(100);
const CHUNK: usize = 16 << 10;

pub(crate) struct Terminal {
    master: OwnedFd,
    slave: OwnedFd,
    /// For containerd: what is typed, and what appears.
    ends: [OwnedFd; 2],
    typed: pipe::Sender,
    shown: pipe::Receiver,
}

impl Terminal {
    pub(crate) fn open() -> io::Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(name.as_c_str(), flags, Mode::empty())?;
        let mut mode = tcgetattr(&slave)?;
        // What a key does is for the real terminal to say.
        mode.make_raw();
        tcsetattr(&slave, OptionalActions::Now, &mode)?;
        let (typed, stdin) = pipe::pipe()?;
        let (stdout, shown) = pipe::pipe()?;
        let ends = [stdin.into_blocking_fd()?, stdout.into_blocking_fd()?];
        Ok(Self { master, slave, ends, typed, shown })
    }

    /// Copies of the ends for containerd, which opens them by their paths: input and output.
    pub(crate) fn streams(&self) -> io::Result<[Option<OwnedFd>; 3]> {
        let [stdin, stdout] = &self.ends;
        Ok([Some(stdin.try_clone()?), Some(stdout.try_clone()?), None])
    }

    /// Copies until the command has closed its terminal, or whoever has the master has.
    pub(crate) fn serve(self, client: Client, id: ContainerId, command: String) -> io::Result<OwnedFd> {
        let Self { master, slave, ends, mut typed, mut shown } = self;
        drop(ends);
        rustix::io::ioctl_fionbio(&slave, true)?;
        let mut keys = pipe::Receiver::from_owned_fd_unchecked(slave.try_clone()?)?;
        let mut screen = pipe::Sender::from_owned_fd_unchecked(slave.try_clone()?)?;
        tokio::spawn(async move {
            let mut size = None;
            let mut look = tokio::time::interval(LOOK);
            let (mut pressed, mut seen) = (vec![0; CHUNK], vec![0; CHUNK]);
            loop {
                tokio::select! {
                    read = shown.read(&mut seen) => match read {
                        Ok(length) if length > 0 && screen.write_all(&seen[..length]).await.is_ok() => {}
                        _ => return,
                    },
                    read = keys.read(&mut pressed) => match read {
                        Ok(length) if length > 0 && typed.write_all(&pressed[..length]).await.is_ok() => {}
                        _ => return,
                    },
                    _ = look.tick() => {
                        let now = tcgetwinsize(&slave).ok().map(|size| (size.ws_col, size.ws_row));
                        if now != size && now != Some((0, 0)) {
                            size = now;
                            resize(&client, &id, &command, now.unwrap_or_default()).await;
                        }
                    }
                }
            }
        });
        Ok(master)
    }
}

async fn resize(client: &Client, id: &ContainerId, command: &str, (columns, rows): (u16, u16)) {
    let request = ResizePtyRequest {
        container_id: id.to_string(),
        exec_id: command.to_owned(),
        width: columns.into(),
        height: rows.into(),
    };
    if let Err(status) = ask(client.tasks().resize_pty(client.request(request))).await {
        tracing::debug!(container = %id, "cannot resize a terminal: {}", status.message());
    }
}
