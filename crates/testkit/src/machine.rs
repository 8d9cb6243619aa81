//! A pretended machine: a network of its own, in which a test may have any address, and from which nothing gets out. As
//! root only; it ends with the test, however that ends.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::supervise::Process;

/// The wire's end in each machine.
const WIRE: &str = "wire";
/// How long somebody may take to answer.
const ANSWER: Duration = Duration::from_secs(20);
const ALONE: &str = "ip link set lo up && echo alone; exec sleep infinity";

pub struct Machine {
    holder: Process,
    namespace: File,
    _directory: tempfile::TempDir,
}

/// What answers whoever connects; it ends when this is dropped.
pub struct Answering {
    _tasks: JoinSet<()>,
}

impl Machine {
    /// One that reaches nothing but itself.
    pub async fn start() -> Result<Machine> {
        let directory = tempfile::tempdir()?;
        let words = ["--net", "sh", "-c", ALONE].map(str::to_owned);
        let holder = Process::start(Path::new("unshare"), &words, &directory.path().join("log"))?;
        holder.told("alone").await?;
        let namespace = File::open(format!("/proc/{}/ns/net", holder.pid()))?;
        Ok(Machine { holder, namespace, _directory: directory })
    }

    /// Two with a wire between them, by which each reaches whatever address the other has.
    pub async fn two() -> Result<(Machine, Machine)> {
        let (one, other) = (Machine::start().await?, Machine::start().await?);
        one.ip(&format!("link add {WIRE} type veth peer name {WIRE} netns {}", other.holder.pid()))?;
        for machine in [&one, &other] {
            machine.ip(&format!("link set {WIRE} up"))?;
            machine.ip(&format!("route add default dev {WIRE}"))?;
        }
        Ok((one, other))
    }

    /// Gives it one more address.
    pub fn has(&self, address: Ipv4Addr) -> Result<()> {
        self.ip(&format!("addr add {address}/32 dev {WIRE}"))
    }

    fn ip(&self, words: &str) -> Result<()> {
        let output = self.within(|| Ok(Command::new("ip").args(words.split(' ')).output()?))?;
        ensure!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Runs this on a thread of the machine: the sockets that it makes are the machine's, and so are the threads and
    /// processes that it starts.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let entering = || {
            move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        };
        let joined = std::thread::scope(|scope| scope.spawn(entering).join());
        joined.unwrap_or_else(|_| Err(anyhow!("a thread of the machine has panicked")))
    }

    /// Answers like a server of HTTP at one of its addresses. To be called in a tokio runtime.
    pub fn answer(&self, at: SocketAddrV4) -> Result<Answering> {
        let listener =
            self.within(|| Ok(TcpListener::bind(at)?)).with_context(|| format!("listen at {at}"))?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut answers = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                answers.spawn(answer(stream));
            }
        });
        Ok(Answering { _tasks: tasks })
    }

    /// How many bytes, of the first few, somebody answers who is asked from here.
    pub fn hears(&self, at: SocketAddrV4) -> Result<usize> {
        self.within(|| {
            let mut stream = std::net::TcpStream::connect_timeout(&at.into(), ANSWER)?;
            stream.set_read_timeout(Some(ANSWER))?;
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
            Ok(stream.read(&mut [0; 12])?)
        })
        .with_context(|| format!("ask {at}"))
    }

    /// A connection from one of its addresses.
    pub async fn connect(&self, from: Ipv4Addr, to: SocketAddr) -> Result<TcpStream> {
        let socket = self.within(|| {
            let socket = TcpSocket::new_v4()?;
            socket.bind((IpAddr::V4(from), 0).into())?;
            Ok(socket)
        })?;
        Ok(socket.connect(to).await?)
    }
}

async fn answer(mut stream: TcpStream) {
    let mut request = [0; 256];
    // Whoever does not say anything, or has gone, gets no answer.
    if matches!(stream.read(&mut request).await, Ok(length) if length > 0) {
        let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
    }
}
