//! The network of an agent that is alone on its machine, or in its Pod: sandboxes have addresses that nobody else
//! reaches, and each of their ports is served at a port of the agent's own address. Nothing on the machine is changed.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::Arc;

use agentcube_agent::network::Error;
use agentcube_agent::{Attached, Identity, SandboxNetwork};
use agentcube_runtime::SandboxId;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::guests::Guests;

/// Connections through one port at once.
const MOST_CONNECTIONS: usize = 1024;

/// Ports for those of sandboxes, as `FIRST-LAST`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ports(RangeInclusive<u16>);

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no range of ports: write it like 20000-29999");
        let (first, last) = text.split_once('-').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(wrong);
        let (first, last) = (number(first)?, number(last)?);
        if first > last { Err(wrong()) } else { Ok(Ports(first..=last)) }
    }
}

/// Sandboxes behind ports of this machine.
pub(super) struct Forwarded {
    pub(super) guests: Arc<Guests>,
    pub(super) address: IpAddr,
    pub(super) ports: Ports,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    served: HashMap<SandboxId, Served>,
    taken: HashSet<u16>,
    /// The port before the next that is tried: one that was freed comes back as late as possible.
    previous: u16,
}

/// Dropping it ends all connections.
struct Served {
    ports: Vec<u16>,
    _tasks: JoinSet<()>,
}

impl State {
    fn allocate(&mut self, ports: &Ports) -> Option<u16> {
        let (first, last) = (*ports.0.start(), *ports.0.end());
        let after = self.previous.saturating_add(1).max(first)..=last;
        let free = after.chain(first..=last).find(|port| !self.taken.contains(port))?;
        self.taken.insert(free);
        self.previous = free;
        Some(free)
    }
}

impl Forwarded {
    /// Serves these ports of a sandbox, each at the given port of ours, or at any.
    async fn serve(
        &self,
        id: &SandboxId,
        address: Ipv4Addr,
        ports: &[u16],
        at: &[SocketAddr],
    ) -> Result<Vec<SocketAddr>, Error> {
        let (mut tasks, mut taken, mut endpoints) = (JoinSet::new(), Vec::new(), Vec::new());
        for (number, port) in ports.iter().enumerate() {
            let listener = match at.get(number) {
                Some(at) => self.listen_again(*at).await,
                None => self.listen().await,
            };
            let listener = match listener {
                Ok(listener) => listener,
                Err(error) => {
                    self.give_back(&taken);
                    return Err(error);
                }
            };
            let local = listener.local_addr()?;
            taken.push(local.port());
            endpoints.push(local);
            tasks.spawn(forward(self.guests.clone(), listener, address, *port));
        }
        let served = Served { ports: taken, _tasks: tasks };
        let before = self.state.lock().served.insert(id.clone(), served);
        if let Some(before) = before {
            self.give_back(&before.ports);
        }
        Ok(endpoints)
    }

    async fn listen(&self) -> Result<TcpListener, Error> {
        loop {
            let port = self.state.lock().allocate(&self.ports);
            let none = || Error::Exhausted("all ports for sandboxes are in use".into());
            let port = port.ok_or_else(none)?;
            match TcpListener::bind((self.address, port)).await {
                Ok(listener) => return Ok(listener),
                // Somebody else's; it stays taken, so that the search ends.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => {
                    self.give_back(&[port]);
                    return Err(error.into());
                }
            }
        }
    }

    async fn listen_again(&self, at: SocketAddr) -> Result<TcpListener, Error> {
        let listener = TcpListener::bind(at).await?;
        self.state.lock().taken.insert(at.port());
        Ok(listener)
    }

    fn give_back(&self, ports: &[u16]) {
        let mut state = self.state.lock();
        for port in ports {
            state.taken.remove(port);
        }
    }
}

/// Connections to a port of a sandbox, each on its own.
async fn forward(guests: Arc<Guests>, listener: TcpListener, address: Ipv4Addr, port: u16) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => match accepted {
                Ok((stream, _)) => drop(connections.spawn(carry(guests.clone(), stream, address, port))),
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection in");
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn carry(guests: Arc<Guests>, mut client: TcpStream, address: Ipv4Addr, port: u16) {
    // Whoever is not answered sees that his connection closes.
    let Ok(mut sandbox) = guests.network.connect(address, port).await else { return };
    let _ended = client.set_nodelay(true).and(sandbox.set_nodelay(true));
    let _ended = tokio::io::copy_bidirectional(&mut client, &mut sandbox).await;
}

impl SandboxNetwork for Forwarded {
    fn attach<'a>(
        &'a self,
        id: &'a SandboxId,
        who: Identity,
        ports: &'a [u16],
    ) -> BoxFuture<'a, Result<Attached, Error>> {
        Box::pin(async move {
            let attached = self.guests.attach(id, who, ports).await?;
            match self.serve(id, attached.address, ports, &[]).await {
                Ok(endpoints) => Ok(Attached { endpoints, ..attached }),
                Err(error) => {
                    self.guests.detach(id);
                    if let Err(error) = agentcube_runtime::Sandboxes::remove(&self.guests.spawner, id).await {
                        tracing::warn!(sandbox = %id, "a sandbox that is of no use could not be removed: {error}");
                    }
                    Err(error)
                }
            }
        })
    }

    fn adopt<'a>(
        &'a self,
        id: &'a SandboxId,
        who: Identity,
        ports: &'a [u16],
        attached: &'a Attached,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.guests.adopt(id, who, ports, attached).await?;
            self.serve(id, attached.address, ports, &attached.endpoints).await.map(drop)
        })
    }

    fn rename<'a>(
        &'a self,
        id: &'a SandboxId,
        who: Identity,
        ports: &'a [u16],
    ) -> BoxFuture<'a, Result<Attached, Error>> {
        Box::pin(async move {
            let attached = self.guests.rename(id, who, ports).await?;
            let endpoints = self.serve(id, attached.address, ports, &[]).await?;
            Ok(Attached { endpoints, ..attached })
        })
    }

    fn detach(&self, id: &SandboxId) {
        let served = self.state.lock().served.remove(id);
        if let Some(served) = served {
            self.give_back(&served.ports);
        }
        self.guests.detach(id);
    }

    fn connect<'a>(&'a self, id: &'a SandboxId, port: u16) -> BoxFuture<'a, io::Result<TcpStream>> {
        self.guests.connect(id, port)
    }

    fn socket<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, io::Result<(OwnedFd, Ipv4Addr)>> {
        self.guests.socket(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_ports() {
        assert_eq!("20000-29999".parse(), Ok(Ports(20000..=29999)));
        for wrong in ["", "1", "2-1", "0-5", "1-70000", "a-b", "-"] {
            assert!(wrong.parse::<Ports>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn ports_come_back_as_late_as_possible() {
        let (mut state, ports) = (State::default(), Ports(5..=7));
        let all: Vec<_> = (0..4).map(|_| state.allocate(&ports)).collect();
        assert_eq!(all, [Some(5), Some(6), Some(7), None]);
        state.taken.remove(&5);
        state.taken.remove(&6);
        assert_eq!(state.allocate(&ports), Some(5));
        state.taken.remove(&5);
        assert_eq!((state.allocate(&ports), state.allocate(&ports)), (Some(6), Some(5)));
    }
}
