//! The ports that the gateway listens on. Several Gateways may share one; it is closed with the last of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
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
    /// Kept, so that the port can be served otherwise without letting go of it.
    socket: std::net::TcpListener,
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

    fn put(&self, listeners: Option<&Arc<Listeners>>, gateway: &User) {
        if let (Some(listeners), Spoken::Tls(served)) = (listeners, self) {
            listeners.set(&gateway.id, gateway.since, served.clone());
        }
    }
}

/// A Gateway, and when it was created, in seconds since 1970.
pub(crate) struct User {
    pub(crate) id: GatewayId,
    pub(crate) since: i64,
}

/// Takes nothing in any more on a port; what has begun comes to its end. Gives its socket.
fn close(state: &mut State, port: u16) -> Option<std::net::TcpListener> {
    let open = state.open.remove(&port)?;
    open.port.close();
    state.closing.retain(|port| !port.is_drained());
    state.closing.push(open.port);
    Some(open.socket)
}

impl Open {
    /// Forgets a Gateway, with its certificates; says whether it was the last.
    fn leave(&mut self, gateway: &GatewayId) -> bool {
        self.users.remove(gateway);
        if let Some(tls) = &self.tls {
            tls.remove(gateway);
        }
        self.users.is_empty()
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

    /// Has a Gateway use these ports and no others. Says of each why it cannot be had. `settled` is told the ports on which
    /// another Gateway speaks otherwise, in one step with that, and before anything comes in on new ones.
    pub(crate) fn set(
        &self,
        gateway: &User,
        wanted: &BTreeMap<u16, Spoken>,
        settled: impl FnOnce(&BTreeSet<u16>),
    ) -> HashMap<u16, String> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let taken = conflicts(state, &gateway.id, wanted);
        settled(&taken);
        let mut troubles = HashMap::new();
        for (port, spoken) in wanted {
            if taken.contains(port) {
                if let Some(open) = state.open.get_mut(port) {
                    open.leave(&gateway.id);
                }
                let why = "another Gateway uses the port, and only one of the two with TLS";
                troubles.insert(*port, why.to_owned());
            } else if let Err(error) = self.share(state, *port, spoken, gateway) {
                let address = SocketAddr::new(self.address, *port);
                troubles.insert(*port, format!("cannot listen on {address}: {error}"));
            }
        }
        let others = state.open.iter_mut().filter(|(port, _)| !wanted.contains_key(port));
        let unused: Vec<u16> =
            others.filter_map(|(port, open)| open.leave(&gateway.id).then_some(*port)).collect();
        for port in unused {
            close(state, port);
        }
        troubles
    }

    /// Has a Gateway use a port as it is spoken there; opens it if need be.
    fn share(&self, state: &mut State, port: u16, spoken: &Spoken, gateway: &User) -> io::Result<()> {
        let mut socket = None;
        if state.open.get(&port).is_some_and(|open| open.tls.is_some() != spoken.is_tls()) {
            // Alone on a port, a Gateway may change what is spoken there.
            socket = close(state, port);
        }
        if let Some(open) = state.open.get_mut(&port) {
            open.users.insert(gateway.id.clone());
            spoken.put(open.tls.as_ref(), gateway);
            return Ok(());
        }
        let socket = match socket.or_else(|| state.waiting.remove(&port)) {
            Some(bound) => bound,
            None => std::net::TcpListener::bind(SocketAddr::new(self.address, port))?,
        };
        socket.set_nonblocking(true)?;
        let tls = spoken.is_tls().then(Arc::<Listeners>::default);
        spoken.put(tls.as_ref(), gateway);
        let listener = TcpListener::from_std(socket.try_clone()?)?;
        let served = Port::serve(listener, port, self.proxy.clone(), tls.clone())?;
        tracing::info!(address = %served.address, tls = tls.is_some(), "listening");
        let users = BTreeSet::from([gateway.id.clone()]);
        state.open.insert(port, Open { socket, port: served, tls, users });
        Ok(())
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

/// The ports on which another Gateway speaks otherwise.
fn conflicts(state: &State, gateway: &GatewayId, wanted: &BTreeMap<u16, Spoken>) -> BTreeSet<u16> {
    let other = |port: &u16, spoken: &Spoken| {
        let open = state.open.get(port).filter(|open| open.tls.is_some() != spoken.is_tls());
        open.is_some_and(|open| open.users.iter().any(|user| user != gateway))
    };
    wanted.iter().filter(|(port, spoken)| other(port, spoken)).map(|(port, _)| *port).collect()
}
