//! Netlink messages, encoded by hand, and their exchange with the kernel. Knows nothing of what they mean.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use super::Error;

/// Length, type, flags, sequence number, port.
const HEADER: usize = 16;
const NESTED: u16 = 1 << 15;

/// The protocols of netlink that are used; that of routes has the number zero.
pub(super) const ROUTE: Option<Protocol> = None;
pub(super) const NETFILTER: Option<Protocol> = Some(rustix::net::netlink::NETFILTER);

/// A request that is being written, and the words for what it asks.
pub(super) struct Message {
    what: &'static str,
    bytes: Vec<u8>,
}

impl Message {
    /// A request of a type, with the fixed header of its family.
    pub(super) fn new(what: &'static str, kind: u16, flags: libc::c_int, family_header: &[u8]) -> Self {
        let flags = (flags | libc::NLM_F_REQUEST) as u16;
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(family_header);
        Self { what, bytes }
    }

    pub(super) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.open(kind);
        let start = self.bytes.len() - 4;
        self.bytes.extend_from_slice(value);
        self.close(start);
        self
    }

    /// An attribute that contains what `fill` writes.
    pub(super) fn nested(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        self.open(kind | NESTED);
        let start = self.bytes.len() - 4;
        let mut filled = fill(self);
        filled.close(start);
        filled
    }

    fn open(&mut self, kind: u16) {
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
    }

    /// The length excludes the padding that aligns what follows to four bytes.
    fn close(&mut self, start: usize) {
        let length = u16::try_from(self.bytes.len() - start).expect("messages of this module are small");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn flags(&self) -> u16 {
        u16::from_ne_bytes([self.bytes[6], self.bytes[7]])
    }

    fn wants_answer(&self) -> bool {
        self.flags() & libc::NLM_F_ACK as u16 != 0
    }
}

/// Sends the messages at once, and waits for the answer to the last that wants one. The kernel does them in order, and
/// tells of one that fails whether it wants an answer or not.
pub(super) fn exchange(protocol: Option<Protocol>, messages: Vec<Message>) -> Result<(), Error> {
    let first = messages.first().map_or("do nothing", |message| message.what);
    let refused = |what| move |errno| Error::Refused { what, errno };
    let flags = SocketFlags::CLOEXEC;
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).map_err(refused(first))?;
    let last = messages.iter().rposition(Message::wants_answer);
    let mut outgoing = Vec::new();
    for (sequence, message) in messages.iter().enumerate() {
        let start = outgoing.len();
        outgoing.extend_from_slice(&message.bytes);
        if Some(sequence) != last {
            let flags = message.flags() & !(libc::NLM_F_ACK as u16);
            outgoing[start + 6..start + 8].copy_from_slice(&flags.to_ne_bytes());
        }
        let length = u32::try_from(message.bytes.len()).expect("messages of this module are small");
        outgoing[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        let sequence = u32::try_from(sequence).expect("a handful of messages");
        outgoing[start + 8..start + 12].copy_from_slice(&sequence.to_ne_bytes());
    }
    send(&socket, &outgoing, SendFlags::empty()).map_err(refused(first))?;
    let mut answered = last.is_none();
    while !answered {
        let mut answer = [0; 8192];
        // The kernel has answered by the time that `send` returns, so there is nothing to wait for.
        let (_, length) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)
            .map_err(|_| Error::NoAnswer { what: first })?;
        for (sequence, result) in Answers(&answer[..length.min(8192)]) {
            let what = messages.get(sequence as usize).map_or(first, |message| message.what);
            result.map_err(refused(what))?;
            answered |= Some(sequence as usize) == last;
        }
    }
    Ok(())
}

/// The acknowledgements in a datagram: of which message, and whether it was done.
struct Answers<'a>(&'a [u8]);

impl Iterator for Answers<'_> {
    type Item = (u32, Result<(), Errno>);

    fn next(&mut self) -> Option<Self::Item> {
        let word = |at: usize| Some(u32::from_ne_bytes(self.0.get(at..at + 4)?.try_into().ok()?));
        let (length, sequence, error) = (word(0)? as usize, word(8)?, word(HEADER)? as i32);
        self.0 = self.0.get(length.max(HEADER).next_multiple_of(4)..).unwrap_or_default();
        Some((sequence, if error == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(-error)) }))
    }
}
