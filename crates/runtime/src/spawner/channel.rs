//! Packets with descriptors over a `SOCK_SEQPACKET` socket. A long payload travels in a memfd, so that a packet is
//! never larger than the socket's buffer.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Payloads up to this size go in the packet itself.
const INLINE: usize = 16 * 1024;
/// Nothing that is asked of the spawner is larger than this.
const LARGEST: u64 = 16 * 1024 * 1024;
/// Three streams, what is kept beside them and a memfd are the most that is ever sent.
const MOST_DESCRIPTORS: usize = 3 + crate::Stdio::MOST_KEPT + 1;

/// The first byte says where the rest is.
const HERE: u8 = 0;
const IN_MEMFD: u8 = 1;

#[derive(Debug)]
pub(super) struct Packet {
    pub(super) payload: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

impl Packet {
    pub(super) fn new(message: &impl serde::Serialize, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let payload = serde_json::to_vec(message).map_err(io::Error::other)?;
        if payload.len() as u64 > LARGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the request is larger than 16 MiB"));
        }
        Ok(Self { payload, descriptors })
    }

    pub(super) fn read<T: serde::de::DeserializeOwned>(&self) -> io::Result<T> {
        serde_json::from_slice(&self.payload).map_err(io::Error::from)
    }

    /// Sends all or nothing. Whether it waits for room is for the socket's flags to say.
    pub(super) fn send(&self, socket: impl AsFd) -> io::Result<()> {
        let descriptors = self.descriptors.iter().map(AsFd::as_fd);
        if self.payload.len() <= INLINE {
            return send(socket, &[&[HERE], &self.payload], &descriptors.collect::<Vec<_>>());
        }
        let mut long = File::from(memfd_create("message", MemfdFlags::CLOEXEC)?);
        long.write_all(&self.payload)?;
        let descriptors: Vec<_> = std::iter::once(long.as_fd()).chain(descriptors).collect();
        send(socket, &[&[IN_MEMFD]], &descriptors)
    }
}

fn send(socket: impl AsFd, parts: &[&[u8]], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one packet"));
    }
    rustix::io::retry_on_intr(|| sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// The next packet, or `None` when the other side is gone.
pub(super) fn receive(socket: impl AsFd) -> io::Result<Option<Packet>> {
    let mut buffer = vec![0; INLINE + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::io::retry_on_intr(|| {
        recvmsg(&socket, &mut [IoSliceMut::new(&mut buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let got = match got {
        Err(rustix::io::Errno::CONNRESET) => return Ok(None),
        other => other?,
    };
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(malformed("a packet was cut short; is the limit of open files reached?"));
    }
    buffer.truncate(got.bytes);
    let payload = match buffer.first() {
        None => return Ok(None),
        Some(&HERE) => buffer.split_off(1),
        Some(&IN_MEMFD) if !descriptors.is_empty() => read_memfd(descriptors.remove(0))?,
        Some(_) => return Err(malformed("a packet of an unknown form")),
    };
    Ok(Some(Packet { payload, descriptors }))
}

fn read_memfd(memfd: OwnedFd) -> io::Result<Vec<u8>> {
    let file = File::from(memfd);
    let length = file.metadata()?.len();
    if length > LARGEST {
        return Err(malformed("a packet larger than 16 MiB"));
    }
    let mut payload = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_exact_at(&mut payload, 0)?;
    Ok(payload)
}

fn malformed(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Whether nobody is at the other end any more.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Two connected ends that no program inherits.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

pub(super) fn set_nonblocking(socket: impl AsFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(&socket)?;
    Ok(rustix::fs::fcntl_setfl(&socket, flags | rustix::fs::OFlags::NONBLOCK)?)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn carries_short_and_long_payloads_with_descriptors_in_order() {
        for length in [0, 1, INLINE - 2, INLINE - 1, INLINE, 3 * INLINE] {
            let (left, right) = pair().unwrap();
            let (read, write) = rustix::pipe::pipe().unwrap();
            let text = "x".repeat(length);
            let packet = Packet::new(&text, vec![write, read]).unwrap();
            packet.send(&left).unwrap();
            drop(packet);

            let mut got = receive(&right).unwrap().unwrap();
            assert_eq!(got.read::<String>().unwrap(), text);
            let mut read = File::from(got.descriptors.pop().unwrap());
            let mut write = File::from(got.descriptors.pop().unwrap());
            write.write_all(b"through").unwrap();
            drop(write);
            let mut through = String::new();
            read.read_to_string(&mut through).unwrap();
            assert_eq!(through, "through");

            drop(left);
            assert!(receive(&right).unwrap().is_none());
        }
    }

    #[test]
    fn refuses_what_is_too_large() {
        let error = Packet::new(&"x".repeat(LARGEST as usize), Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
