//! The ports that the gateway listens on. Several Gateways may share one; it is closed with the last of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::TcpListener;

use crate::proxy::Proxy;
use crate::route::GatewayId;
use crate::server::Port;

/// The ports.
pub(crate) struct Ports {
    address: IpAddr,
    proxy: Arc<Proxy>,
    state: Mutex<State>,
}

struct State {
    /// Sockets that were bound beforehand, by port.
    waiting: HashMap<u16, std::net::TcpListener>,
    open: BTreeMap<u16, Open>,
    /// No longer taking anything in, but not yet at their end.
    closing: Vec<Port>,
}

struct Open {
    port: Port,
    users: BTreeSet<GatewayId>,
}

impl Ports {
    pub(crate) fn new(address: IpAddr, bound: Vec<std::net::TcpListener>, proxy: Arc<Proxy>) -> Ports {
        let port = |listener: &std::net::TcpListener| listener.local_addr().map(|address| address.port());
        let waiting =
            bound.into_iter().filter_map(|listener| Some((port(&listener).ok()?, listener))).collect();
        let state = Mutex::new(State { waiting, open: BTreeMap::new(), closing: Vec::new() });
        Ports { address, proxy, state }
    }

    /// Has a Gateway use these ports and no others. Says of each why it cannot be had.
    pub(crate) fn set(&self, gateway: &GatewayId, wanted: &BTreeSet<u16>) -> HashMap<u16, String> {
        let mut state = self.state.lock();
        let mut troubles = HashMap::new();
        for port in wanted {
            if let Some(open) = state.open.get_mut(port) {
                open.users.insert(gateway.clone());
                continue;
            }
            match self.open(&mut state, *port) {
                Ok(served) => {
                    tracing::info!(address = %served.address, "listening");
                    let users = BTreeSet::from([gateway.clone()]);
                    state.open.insert(*port, Open { port: served, users });
                }
                Err(error) => {
                    let address = SocketAddr::new(self.address, *port);
                    troubles.insert(*port, format!("cannot listen on {address}: {error}"));
                }
            }
        }
        let unused: Vec<u16> = state
            .open
            .iter_mut()
            .filter(|(port, _)| !wanted.contains(port))
            .filter_map(|(port, open)| {
                open.users.remove(gateway);
                open.users.is_empty().then_some(*port)
            })
            .collect();
        for port in unused {
            if let Some(open) = state.open.remove(&port) {
                open.port.close();
                state.closing.retain(|port| !port.is_drained());
                state.closing.push(open.port);
            }
        }
        troubles
    }

    fn open(&self, state: &mut State, port: u16) -> std::io::Result<Port> {
        let listener = match state.waiting.remove(&port) {
            Some(bound) => bound,
            None => std::net::TcpListener::bind(SocketAddr::new(self.address, port))?,
        };
        listener.set_nonblocking(true)?;
        Port::serve(TcpListener::from_std(listener)?, port, self.proxy.clone())
    }

    /// Takes nothing in any more, and gives back what has to come to its end.
    pub(crate) fn close(&self) -> Vec<Port> {
        let mut state = self.state.lock();
        let open = std::mem::take(&mut state.open).into_values().map(|open| open.port);
        let mut all: Vec<Port> = open.collect();
        all.append(&mut state.closing);
        all.iter().for_each(Port::close);
        all
    }
}
