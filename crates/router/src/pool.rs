//! Connections to instances, kept for the next request of the same instance. A connection belongs to one instance by
//! its UID, and to one port of it, so none is ever used for another; it is dropped when the instance closes it, or after a short silence.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use agentcube_instance::{Endpoint, InstanceId};
use futures_util::future::BoxFuture;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::breaker;
use crate::socket;
use crate::upload::Sent;

/// Servers close silent connections too, often after five seconds; a request that crosses that is lost.
const IDLE_LIMIT: Duration = Duration::from_secs(3);
/// Idle connections to one instance.
const MOST_IDLE: usize = 32;
/// Waits between attempts to reach an instance that does not listen yet.
const FIRST_WAIT: Duration = Duration::from_millis(5);
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// How instances are reached.
pub trait Connect: Send + Sync + 'static {
    fn connect(&self, endpoint: Endpoint) -> BoxFuture<'_, io::Result<TcpStream>>;
}

/// Reaches instances by plain TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Connect for Tcp {
    fn connect(&self, endpoint: Endpoint) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(std::net::SocketAddr::from(endpoint)))
    }
}

/// The connections.
#[derive(Clone)]
pub(crate) struct Pool {
    connect: Arc<dyn Connect>,
    idle: Arc<Mutex<Idle>>,
}

/// The UID of an instance, and a port of it.
type Place = (Arc<str>, u16);

#[derive(Default)]
struct Idle {
    by_place: HashMap<Place, Vec<Kept>>,
    /// Somebody will come to throw out what is too old.
    swept: bool,
}

struct Kept {
    sender: SendRequest<Sent>,
    served: u32,
    since: Instant,
}

/// A connection that one request uses. Goes back to the pool by [`Lent::done`] only: dropped before, it is closed.
pub(crate) struct Lent {
    pub(crate) sender: SendRequest<Sent>,
    /// It has served requests before.
    pub(crate) reused: bool,
    /// So many, with this one.
    served: u32,
    /// The place at the instance that goes with it.
    pub(crate) held: Option<breaker::Place>,
    place: Place,
    pool: Weak<Mutex<Idle>>,
}

impl Pool {
    pub(crate) fn new(connect: Arc<dyn Connect>) -> Pool {
        Pool { connect, idle: Arc::default() }
    }

    /// A connection that waits for work, if there is one.
    pub(crate) fn take(&self, instance: &InstanceId, endpoint: Endpoint) -> Option<Lent> {
        let place = (instance.uid.clone(), endpoint.port);
        let mut idle = self.idle.lock();
        let kept = idle.by_place.get_mut(&place)?;
        let kept = loop {
            let kept = kept.pop()?;
            if kept.sender.is_ready() && kept.since.elapsed() < IDLE_LIMIT {
                break kept;
            }
        };
        let (sender, served) = (kept.sender, kept.served + 1);
        Some(Lent { sender, reused: true, served, held: None, place, pool: Arc::downgrade(&self.idle) })
    }

    /// A new connection. An instance that has just started may not listen yet, so refusals are retried.
    pub(crate) async fn connect(
        &self,
        instance: &InstanceId,
        endpoint: Endpoint,
        limit: Duration,
    ) -> io::Result<Lent> {
        let deadline = Instant::now() + limit;
        let mut wait = FIRST_WAIT;
        let stream = loop {
            let connecting = tokio::time::timeout_at(deadline, self.connect.connect(endpoint));
            match connecting.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))? {
                Ok(stream) => break stream,
                Err(error) => {
                    let refused = error.kind() == io::ErrorKind::ConnectionRefused;
                    if !refused || Instant::now() + wait >= deadline {
                        return Err(error);
                    }
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        };
        socket::prepare(&stream, socket::INSTANCE_PATIENCE);
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to an instance ended");
            }
        });
        let (place, pool) = ((instance.uid.clone(), endpoint.port), Arc::downgrade(&self.idle));
        Ok(Lent { sender, reused: false, served: 1, held: None, place, pool })
    }

    /// Closes what is idle.
    pub(crate) fn clear(&self) {
        self.idle.lock().by_place.clear();
    }
}

impl Lent {
    /// With the place at the instance that goes with it.
    pub(crate) fn holding(self, held: Option<breaker::Place>) -> Lent {
        Lent { held, ..self }
    }

    /// Closes the connection when this request is over, if it has served as many as it may.
    pub(crate) fn retire_after(&mut self, most: Option<u32>) {
        if most.is_some_and(|most| self.served >= most) {
            self.pool = Weak::new();
        }
    }

    /// Gives the connection back after the response has ended.
    pub(crate) fn done(mut self) {
        // Whoever waits for the place need not wait for the connection.
        self.held = None;
        if self.sender.is_ready() {
            return self.keep();
        }
        if self.sender.is_closed() {
            return;
        }
        // The end of the response is seen a moment before the connection is ready again.
        tokio::spawn(async move {
            if let Ok(Ok(())) = tokio::time::timeout(IDLE_LIMIT, self.sender.ready()).await {
                self.keep();
            }
        });
    }

    fn keep(self) {
        let Some(pool) = self.pool.upgrade() else { return };
        let sweep = {
            let mut idle = pool.lock();
            let kept = idle.by_place.entry(self.place).or_default();
            if kept.len() < MOST_IDLE {
                kept.push(Kept { sender: self.sender, served: self.served, since: Instant::now() });
            }
            !std::mem::replace(&mut idle.swept, true)
        };
        if sweep {
            tokio::spawn(sweep_until_empty(Arc::downgrade(&pool)));
        }
    }
}

/// Throws out what is too old, and ends when nothing is left: a gateway at rest has no timers.
async fn sweep_until_empty(pool: Weak<Mutex<Idle>>) {
    loop {
        tokio::time::sleep(IDLE_LIMIT).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut idle = pool.lock();
        idle.by_place.retain(|_, kept| {
            kept.retain(|kept| !kept.sender.is_closed() && kept.since.elapsed() < IDLE_LIMIT);
            !kept.is_empty()
        });
        if idle.by_place.is_empty() {
            idle.by_place.shrink_to_fit();
            idle.swept = false;
            return;
        }
    }
}
