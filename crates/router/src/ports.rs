//! The ports that the gateway listens on. Several Gateways may share one; it is closed with the last of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::TcpListener;

use crate::proxy::Proxy;
use crate::route::GatewayId;
use crate::server::Port;
use crate::tls::{Listeners, Served};

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
    /// How TLS is spoken there, if it is.
    tls: Option<Arc<Listeners>>,
    users: BTreeSet<GatewayId>,
}

/// What a Gateway wants to be spoken on a port.
pub(crate) enum Spoken {
    Plain,
    Tls(Vec<Served>),
}

impl Spoken {
    fn is_tls(&self) -> bool {
        matches!(self, Spoken::Tls(_))
    }

    fn put(&self, listeners: Option<&Arc<Listeners>>, gateway: &GatewayId) {
        if let (Some(listeners), Spoken::Tls(served)) = (listeners, self) {
            listeners.set(gateway, served.clone());
        }
    }
}

/// Takes nothing in any more on a port; what has begun comes to its end.
fn close(state: &mut State, port: u16) {
    if let Some(open) = state.open.remove(&port) {
        open.port.close();
        state.closing.retain(|port| !port.is_drained());
        state.closing.push(open.port);
    }
}

impl Ports {
    pub(crate) fn new(address: IpAddr, bound: Vec<std::net::TcpListener>, proxy: Arc<Proxy>) -> Ports {
        let port = |listener: &std::net::TcpListener| listener.local_addr().map(|address| address.port());
        let waiting =
            bound.into_iter().filter_map(|listener| Some((port(&listener).ok()?, listener))).collect();
        let state = Mutex::new(State { waiting, open: BTreeMap::new(), closing: Vec::new() });
        Ports { address, proxy, state }
    }

    /// What a Gateway serves by TLS on a port now.
    pub(crate) fn served(&self, gateway: &GatewayId, port: u16) -> Vec<Served> {
        let state = self.state.lock();
        let tls = state.open.get(&port).and_then(|open| open.tls.as_ref());
        tls.map(|tls| tls.of(gateway)).unwrap_or_default()
    }

    /// The ports on which another Gateway speaks otherwise.
    pub(crate) fn conflicts(&self, gateway: &GatewayId, wanted: &BTreeMap<u16, Spoken>) -> BTreeSet<u16> {
        let state = self.state.lock();
        let other = |port: &u16, spoken: &Spoken| {
            let open = state.open.get(port).filter(|open| open.tls.is_some() != spoken.is_tls());
            open.is_some_and(|open| open.users.iter().any(|user| user != gateway))
        };
        wanted.iter().filter(|(port, spoken)| other(port, spoken)).map(|(port, _)| *port).collect()
    }

    /// Has a Gateway use these ports and no others. Says of each why it cannot be had.
    pub(crate) fn set(&self, gateway: &GatewayId, wanted: &BTreeMap<u16, Spoken>) -> HashMap<u16, String> {
        let mut state = self.state.lock();
        let mut troubles = HashMap::new();
        for (port, spoken) in wanted {
            // Alone on a port, a Gateway may change what is spoken there.
            let alone = |open: &Open| open.users.iter().all(|user| user == gateway);
            if state.open.get(port).is_some_and(|open| open.tls.is_some() != spoken.is_tls() && alone(open)) {
                close(&mut state, *port);
            }
            if let Some(open) = state.open.get_mut(port) {
                if open.tls.is_some() != spoken.is_tls() {
                    open.users.remove(gateway);
                    let why = "another Gateway uses the port, and only one of the two with TLS";
                    troubles.insert(*port, why.to_owned());
                    continue;
                }
                open.users.insert(gateway.clone());
                spoken.put(open.tls.as_ref(), gateway);
                continue;
            }
            let tls = spoken.is_tls().then(Arc::<Listeners>::default);
            spoken.put(tls.as_ref(), gateway);
            match self.open(&mut state, *port, tls.clone()) {
                Ok(served) => {
                    tracing::info!(address = %served.address, "listening");
                    let users = BTreeSet::from([gateway.clone()]);
                    state.open.insert(*port, Open { port: served, tls, users });
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
            .filter(|(port, _)| !wanted.contains_key(port))
            .filter_map(|(port, open)| {
                open.users.remove(gateway);
                if let Some(tls) = &open.tls {
                    tls.remove(gateway);
                }
                open.users.is_empty().then_some(*port)
            })
            .collect();
        for port in unused {
            close(&mut state, port);
        }
        troubles
    }

    fn open(&self, state: &mut State, port: u16, tls: Option<Arc<Listeners>>) -> std::io::Result<Port> {
        let listener = match state.waiting.remove(&port) {
            Some(bound) => bound,
            None => std::net::TcpListener::bind(SocketAddr::new(self.address, port))?,
        };
        listener.set_nonblocking(true)?;
        Port::serve(TcpListener::from_std(listener)?, port, self.proxy.clone(), tls)
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
