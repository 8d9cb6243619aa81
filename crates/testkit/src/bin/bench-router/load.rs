//! The load: clients that each keep one connection and ask for their sessions in turn, the next request after the answer
//! to the last. Cheap, since it shares the machine with what it measures; and every answer is looked at.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::task::{JoinHandle, LocalSet};

use crate::stage::Front;
use crate::{SESSIONS, backend, fixture, idle};

/// Without an answer in this time something is broken.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// What one turn of a contender gave.
#[derive(Clone, Debug)]
pub(crate) struct Slice {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) requests: usize,
    pub(crate) seconds: f64,
    /// Of its processes.
    pub(crate) cpu_seconds: f64,
}

/// What a session asks, and what it is to be answered.
struct Session {
    request: Vec<u8>,
    expected: Vec<u8>,
    /// The answer may go on after that.
    whole: bool,
}

impl Session {
    fn new(number: usize, front: &Front) -> Result<Session> {
        let (key, at) = (fixture::key(number)?, IpAddr::from(backend::address(number)));
        let request =
            format!("GET /default/agent/say HTTP/1.1\r\nhost: localhost\r\nx-session-id: {key}\r\n\r\n");
        let expected = match front.picks {
            true => backend::answer(key.as_str().as_bytes(), at, true),
            false => format!("{key} at ").into_bytes(),
        };
        Ok(Session { request: request.into_bytes(), expected, whole: front.picks })
    }

    fn check(&self, body: &[u8]) -> Result<()> {
        let right = if self.whole { body == self.expected } else { body.starts_with(&self.expected) };
        let text = String::from_utf8_lossy;
        ensure!(right, "answered {:?}, and not {:?}", text(body), text(&self.expected));
        Ok(())
    }
}

/// A connection of a client.
struct Connection {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr) -> Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, bytes: Vec::with_capacity(4096) })
    }

    async fn ask(&mut self, session: &Session) -> Result<()> {
        self.bytes.clear();
        self.stream.write_all(&session.request).await?;
        loop {
            if let Some(end) = backend::end_of_head(&self.bytes) {
                let (head, body) = self.bytes.split_at(end);
                let length = backend::header(head, b"content-length").context("an answer has no length")?;
                if body.len() >= std::str::from_utf8(length)?.parse::<usize>()? {
                    let text = String::from_utf8_lossy(&self.bytes);
                    ensure!(head.starts_with(b"HTTP/1.1 200 "), "{text}");
                    return session.check(body);
                }
            }
            if self.stream.read_buf(&mut self.bytes).await? == 0 {
                bail!("a connection was closed: {:?}", String::from_utf8_lossy(&self.bytes));
            }
        }
    }
}

/// The address that a client connects to. Who asks instances themselves keeps to one of them, for all of its sessions.
fn address(front: &Front, port: u16, client: usize) -> SocketAddr {
    front.address.unwrap_or_else(|| (backend::address(client), port).into())
}

/// One request.
pub(crate) async fn once(front: &Front, port: u16) -> Result<()> {
    Connection::open(address(front, port, 0)).await?.ask(&Session::new(0, front)?).await
}

/// Measures for this time, after each session was asked for once.
pub(crate) async fn measure(front: &Front, port: u16, clients: usize, time: Duration) -> Result<Slice> {
    let gate = Rc::new(Barrier::new(clients + 1));
    let local = LocalSet::new();
    let mut running: Vec<JoinHandle<Result<Vec<Duration>>>> = Vec::new();
    for client in 0..clients {
        let numbers = (client..SESSIONS).step_by(clients);
        let sessions = numbers.map(|number| Session::new(number, front)).collect::<Result<Vec<_>>>()?;
        let (address, gate) = (address(front, port, client), gate.clone());
        running.push(local.spawn_local(self::client(address, sessions, gate, time)));
    }
    let measuring = async {
        gate.wait().await;
        let before = idle::cpu_ticks(&front.processes)?;
        let begun = Instant::now();
        gate.wait().await;
        let mut times = Vec::new();
        for client in running {
            times.extend(client.await??);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let ticks = idle::cpu_ticks(&front.processes)? - before;
        Ok(slice(times, seconds, ticks as f64 / idle::ticks_per_second()))
    };
    let limit = ANSWER_LIMIT * 2 + time;
    local.run_until(tokio::time::timeout(limit, measuring)).await.context("requests are not answered")?
}

fn slice(mut times: Vec<Duration>, seconds: f64, cpu_seconds: f64) -> Slice {
    times.sort_unstable();
    let at = |percent: usize| {
        let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    };
    Slice { p50_us: at(50), p99_us: at(99), requests: times.len(), seconds, cpu_seconds }
}

async fn client(
    address: SocketAddr,
    sessions: Vec<Session>,
    gate: Rc<Barrier>,
    time: Duration,
) -> Result<Vec<Duration>> {
    let warm = async {
        let mut connection = Connection::open(address).await?;
        for session in &sessions {
            connection.ask(session).await?;
        }
        anyhow::Ok(connection)
    };
    let warmed = warm.await;
    // Whoever has failed comes to the gate as well, so that the others do not wait there for ever.
    gate.wait().await;
    gate.wait().await;
    let mut connection = warmed?;
    let mut times = Vec::new();
    let mut now = Instant::now();
    let end = now + time;
    for session in sessions.iter().cycle() {
        connection.ask(session).await?;
        let then = std::mem::replace(&mut now, Instant::now());
        times.push(now - then);
        if now >= end {
            break;
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let times = (1..=1000).map(Duration::from_micros).collect();
        let slice = slice(times, 2.0, 1.0);
        assert_eq!((slice.p50_us, slice.p99_us, slice.requests), (500.0, 990.0, 1000));
    }

    #[test]
    fn answers_for_others_are_noticed() {
        let front = |picks| Front { name: "", address: None, picks, processes: Vec::new() };
        let at = |number| IpAddr::from(backend::address(number));
        let (strict, lax) = (Session::new(7, &front(true)).unwrap(), Session::new(7, &front(false)).unwrap());
        let right = backend::answer(b"user-7", at(7), true);
        strict.check(&right).unwrap();
        lax.check(&right).unwrap();
        lax.check(&backend::answer(b"user-7", at(8), false)).unwrap();
        for wrong in [
            backend::answer(b"user-7", at(8), true),
            backend::answer(b"user-7", at(7), false),
            backend::answer(b"user-70", at(7), true),
        ] {
            assert!(strict.check(&wrong).is_err());
        }
        assert!(lax.check(&backend::answer(b"user-70", at(7), true)).is_err());
    }
}
