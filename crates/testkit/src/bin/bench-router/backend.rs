//! What answers in the place of all instances: one thread in a process of its own, which listens at the address of each
//! and says whom it was asked for, at which address, and whether the request carried a token.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::SESSIONS;

pub(crate) const ROLE: &str = "__backend";
/// What it says before the port that it listens at, once it does.
pub(crate) const READY: &str = "instances at port ";
const LONGEST_HEAD: usize = 64 << 10;
pub(crate) const SESSION: &str = "x-session-id";
const TOKEN: &[u8] = b"x-reserved-token";

/// The address of the instance of a session.
pub(crate) fn address(number: usize) -> Ipv4Addr {
    let part = |number: usize| u8::try_from(number + 1).unwrap_or(u8::MAX);
    Ipv4Addr::new(127, 77, part(number / 250), part(number % 250))
}

/// What is answered for the session of this key.
pub(crate) fn answer(session: &[u8], at: IpAddr, token: bool) -> Vec<u8> {
    let says = if token { "with a token" } else { "without a token" };
    [session, format!(" at {at} {says}").as_bytes()].concat()
}

pub(crate) async fn run() -> Result<()> {
    let first = TcpListener::bind((address(0), 0)).await?;
    let port = first.local_addr()?.port();
    tokio::spawn(accept(first));
    for number in 1..SESSIONS {
        tokio::spawn(accept(TcpListener::bind((address(number), port)).await?));
    }
    println!("{READY}{port}");
    std::future::pending().await
}

async fn accept(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve(stream));
    }
}

async fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let at = stream.local_addr()?.ip();
    let mut bytes = Vec::with_capacity(4096);
    loop {
        let end = loop {
            if let Some(end) = end_of_head(&bytes) {
                break end;
            }
            if bytes.len() > LONGEST_HEAD || stream.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
        };
        let head = &bytes[..end];
        let body =
            answer(header(head, SESSION.as_bytes()).unwrap_or_default(), at, header(head, TOKEN).is_some());
        let mut response =
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n", body.len())
                .into_bytes();
        response.extend(body);
        stream.write_all(&response).await?;
        bytes.drain(..end);
    }
}

/// Where the head of a message ends, if all of it is there.
pub(crate) fn end_of_head(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// The value of a header.
pub(crate) fn header<'a>(head: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    head.split(|byte| *byte == b'\n').skip(1).find_map(|line| {
        let (found, value) = line.split_at_checked(name.len())?;
        let value = value.strip_prefix(b":").filter(|_| found.eq_ignore_ascii_case(name))?;
        Some(value.trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read() {
        let head = b"GET / HTTP/1.1\r\nhost: a\r\nX-Session-ID:  u 1\r\n\r\nrest";
        assert_eq!(end_of_head(head), Some(head.len() - 4));
        assert_eq!(end_of_head(&head[..20]), None);
        assert_eq!(header(head, SESSION.as_bytes()), Some(b"u 1".as_slice()));
        assert_eq!(header(head, TOKEN), None);
    }

    #[test]
    fn instances_have_addresses_of_their_own() {
        let all: std::collections::HashSet<Ipv4Addr> = (0..SESSIONS).map(address).collect();
        assert_eq!(all.len(), SESSIONS);
        assert!(all.iter().all(Ipv4Addr::is_loopback));
    }
}
