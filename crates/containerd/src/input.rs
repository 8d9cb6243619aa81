//! What a program reads. A shim keeps its input open until it is told that no more comes, so somebody has to see the
//! end: bytes are copied here.

use std::io;
use std::os::fd::OwnedFd;

use agentcube_runtime::ContainerId;
use tokio::net::unix::pipe;

use crate::client::{Client, ask};
use crate::generated::containerd::services::tasks::v1::CloseIoRequest;

/// An input that is copied once its program is there.
pub(crate) struct Input {
    from: pipe::Receiver,
    to: pipe::Sender,
}

impl Input {
    /// The end for the shim, and what feeds it.
    pub(crate) fn relay(given: OwnedFd) -> io::Result<(OwnedFd, Self)> {
        let from = pipe::Receiver::from_owned_fd(given)?;
        let (to, end) = pipe::pipe()?;
        Ok((end.into_blocking_fd()?, Self { from, to }))
    }

    /// Copies until there is no more, or until nobody reads.
    pub(crate) fn serve(self, client: Client, id: ContainerId, command: String) {
        let Self { mut from, mut to } = self;
        tokio::spawn(async move {
            let _copied = tokio::io::copy(&mut from, &mut to).await;
            drop(to);
            let request = CloseIoRequest { container_id: id.to_string(), exec_id: command, stdin: true };
            if let Err(status) = ask(client.tasks().close_io(client.request(request))).await {
                tracing::debug!(container = %id, "the end of its input was not told: {}", status.message());
            }
        });
    }
}
