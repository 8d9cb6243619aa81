//! What an agent needs of a network: each sandbox has an address of its own, and is reached from here.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::Duration;

use agentcube_protos::session::Egress;
use agentcube_runtime::spawner::Handle;
use agentcube_runtime::{SandboxId, SandboxSockets, SandboxSpec, Sandboxes};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::net::{TcpSocket, TcpStream};

/// The kernel keeps no longer host names.
const MOST_HOSTNAME: usize = 63;
/// Connecting inside of one machine takes no longer, unless nobody accepts.
const CONNECT: Duration = Duration::from_secs(2);

/// Why a sandbox has no network.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// All addresses or ports are in use; one will be free again.
    #[error("{0}")]
    Exhausted(String),
    #[error("cannot serve its network: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Runtime(#[from] agentcube_runtime::Error),
}

/// Who is behind an address, for policies and names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub egress: Egress,
}

impl Identity {
    /// What `hostname` prints in the sandbox.
    pub fn hostname(&self) -> String {
        let name = &self.name;
        let end =
            (0..=MOST_HOSTNAME.min(name.len())).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
        name[..end].trim_end_matches(['-', '.']).to_owned()
    }
}

/// A sandbox that is being served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    pub address: Ipv4Addr,
    /// One for each port, in their order: where clients reach it.
    pub endpoints: Vec<SocketAddr>,
    /// What the sandbox finds in `/etc/resolv.conf`.
    pub resolv_conf: String,
}

/// The network of the sandboxes of an agent.
pub trait SandboxNetwork: Send + Sync + 'static {
    /// Makes a sandbox with an address of its own by [`Sandboxes::create`], under [`Identity::hostname`], and serves
    /// it from then on. Leaves nothing if it fails.
    fn attach<'a>(
        &'a self,
        id: &'a SandboxId,
        who: Identity,
        ports: &'a [u16],
    ) -> BoxFuture<'a, Result<Attached, Error>>;
    /// Gives a sandbox that waited another identity and other ports; its address stays.
    fn rename<'a>(
        &'a self,
        id: &'a SandboxId,
        who: Identity,
        ports: &'a [u16],
    ) -> BoxFuture<'a, Result<Attached, Error>>;
    /// Serves a sandbox that an earlier process made, at the same address and endpoints.
    fn adopt<'a>(
        &'a self,
        id: &'a SandboxId,
        who: Identity,
        ports: &'a [u16],
        attached: &'a Attached,
    ) -> BoxFuture<'a, Result<(), Error>> {
        let _ = (id, who, ports, attached);
        Box::pin(std::future::ready(Err(io::Error::from(io::ErrorKind::Unsupported).into())))
    }
    /// Ends its connections and gives back its address; the agent removes the sandbox itself. One that is not
    /// attached is no error.
    fn detach(&self, id: &SandboxId);
    /// A connection to a port of the sandbox, from the node.
    fn connect<'a>(&'a self, id: &'a SandboxId, port: u16) -> BoxFuture<'a, io::Result<TcpStream>>;
    /// A TCP socket in the network of the sandbox that is yet to be connected and blocks nobody, and the address of the
    /// sandbox.
    fn socket<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, io::Result<(OwnedFd, Ipv4Addr)>>;
}

/// Sandboxes that reach nothing, and that only this process reaches. For tests, and for agents whose sandboxes need
/// no network.
pub struct Isolated {
    spawner: Handle,
    members: Mutex<HashMap<SandboxId, Member>>,
    /// The last two bytes of the next address.
    next: Mutex<u16>,
}

struct Member {
    address: Ipv4Addr,
    /// Open and served by nobody: whoever connects waits, and gets nothing.
    _sockets: SandboxSockets,
}

impl Isolated {
    pub fn new(spawner: Handle) -> Self {
        Self { spawner, members: Mutex::default(), next: Mutex::new(2) }
    }

    fn allocate(&self) -> Ipv4Addr {
        let mut next = self.next.lock();
        let [high, low] = next.to_be_bytes();
        // Sandboxes do not see each other, so an address may be used again before it is free.
        *next = next.checked_add(1).filter(|next| *next < u16::MAX).unwrap_or(2);
        Ipv4Addr::new(10, 243, high, low)
    }

    fn attached(address: Ipv4Addr, ports: &[u16]) -> Attached {
        let endpoints = ports.iter().map(|port| SocketAddr::from((address, *port))).collect();
        Attached { address, endpoints, resolv_conf: String::new() }
    }
}

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 243, 0, 1);

impl SandboxNetwork for Isolated {
    fn attach<'a>(
        &'a self,
        id: &'a SandboxId,
        who: Identity,
        ports: &'a [u16],
    ) -> BoxFuture<'a, Result<Attached, Error>> {
        Box::pin(async move {
            let address = self.allocate();
            let spec =
                SandboxSpec { id: id.clone(), hostname: who.hostname(), address, name_server: GATEWAY };
            let sockets = self.spawner.create(spec).await?;
            self.members.lock().insert(id.clone(), Member { address, _sockets: sockets });
            Ok(Self::attached(address, ports))
        })
    }

    fn adopt<'a>(
        &'a self,
        id: &'a SandboxId,
        _who: Identity,
        _ports: &'a [u16],
        attached: &'a Attached,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let sockets = self.spawner.sockets(id).await?;
            let member = Member { address: attached.address, _sockets: sockets };
            self.members.lock().insert(id.clone(), member);
            Ok(())
        })
    }

    fn rename<'a>(
        &'a self,
        id: &'a SandboxId,
        _who: Identity,
        ports: &'a [u16],
    ) -> BoxFuture<'a, Result<Attached, Error>> {
        let address = self.members.lock().get(id).map(|member| member.address);
        Box::pin(async move {
            let address = address.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            Ok(Self::attached(address, ports))
        })
    }

    fn detach(&self, id: &SandboxId) {
        self.members.lock().remove(id);
    }

    fn connect<'a>(&'a self, id: &'a SandboxId, port: u16) -> BoxFuture<'a, io::Result<TcpStream>> {
        Box::pin(async move {
            let connecting = async {
                let (socket, address) = self.socket(id).await?;
                TcpSocket::from_std_stream(socket.into())
                    .connect(SocketAddrV4::new(address, port).into())
                    .await
            };
            let limited = tokio::time::timeout(CONNECT, connecting).await;
            limited.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        })
    }

    fn socket<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, io::Result<(OwnedFd, Ipv4Addr)>> {
        let address = self.members.lock().get(id).map(|member| member.address);
        Box::pin(async move {
            let address = address.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            let socket = self.spawner.socket(id, Some(GATEWAY)).await.map_err(io::Error::other)?;
            Ok((socket, address))
        })
    }
}
