//! Asks the host's own name servers about names outside the cluster. Never more at once than there are slots.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::message::{self, LARGEST_DATAGRAM, Query};
use super::resolv::Host;

/// Questions of all Pods that are under way at once.
const MOST_QUESTIONS: usize = 256;
/// How long one server has. Resolvers give up after five seconds; all three must fit.
const PATIENCE: Duration = Duration::from_millis(1600);
const ATTEMPTS: usize = 3;
/// Of `resolv.conf`, no more than this is read.
const LONGEST_FILE: u64 = 64 * 1024;

/// How the question came, and so how it is sent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Datagram,
    Stream,
}

#[derive(Debug)]
pub(super) struct Forwarder {
    resolv_conf: PathBuf,
    slots: Semaphore,
}

impl Forwarder {
    pub(super) fn new(resolv_conf: PathBuf) -> Self {
        Self { resolv_conf, slots: Semaphore::new(MOST_QUESTIONS) }
    }

    /// What the host uses now; it changes when a laptop changes its network, so it is read every time.
    pub(super) fn host(&self) -> Host {
        let mut text = String::new();
        let read =
            File::open(&self.resolv_conf).and_then(|file| file.take(LONGEST_FILE).read_to_string(&mut text));
        if let Err(error) = read {
            tracing::debug!(file = %self.resolv_conf.display(), "cannot read the host's name servers: {error}");
        }
        Host::parse(&text)
    }

    /// The answer of the first server that gives one, as it came but for the id. `None` if there is none.
    pub(super) async fn ask(&self, query: &Query, transport: Transport) -> Option<Vec<u8>> {
        let _slot = self.slots.try_acquire().ok()?;
        let mut servers = self.host().servers;
        if servers.is_empty() {
            servers.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        for server in servers.iter().cycle().take(ATTEMPTS) {
            let server = SocketAddr::new(*server, 53);
            let asked = async {
                match transport {
                    Transport::Datagram => by_datagram(query, server).await,
                    Transport::Stream => by_stream(query, server).await,
                }
            };
            match timeout(PATIENCE, asked).await {
                Ok(Ok(mut answer)) => {
                    answer[..2].copy_from_slice(&query.id.to_be_bytes());
                    return Some(answer);
                }
                Ok(Err(error)) => tracing::debug!(%server, name = %query.name, "no answer: {error}"),
                Err(_) => tracing::debug!(%server, name = %query.name, "no answer in time"),
            }
        }
        None
    }
}

async fn by_datagram(query: &Query, server: SocketAddr) -> io::Result<Vec<u8>> {
    let own: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // A port of its own for every question, and an id that cannot be guessed: forged answers must find both.
    let socket = UdpSocket::bind((own, 0)).await?;
    socket.connect(server).await?;
    let id = unpredictable();
    socket.send(&query.relay(id)).await?;
    let mut buffer = vec![0; usize::from(LARGEST_DATAGRAM) + 1];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if message::answers(&buffer[..length], id, query) && length <= LARGEST_DATAGRAM.into() {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn by_stream(query: &Query, server: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let id = unpredictable();
    let question = query.relay(id);
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &question].concat()).await?;
    let mut answer = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut answer).await?;
    if !message::answers(&answer, id, query) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is to another question"));
    }
    Ok(answer)
}

/// From the random keys that the standard library draws for every hash map.
fn unpredictable() -> u16 {
    RandomState::new().hash_one(0) as u16
}
