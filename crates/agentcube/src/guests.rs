//! The network of the node, as agents need it: sandboxes are guests on it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use agentcube_agent::network::Error;
use agentcube_agent::{Attached, Identity, SandboxNetwork};
use agentcube_node::network::{Guest, Network, Reach};
use agentcube_protos::session::Egress;
use agentcube_runtime::spawner::Handle;
use agentcube_runtime::{SandboxId, SandboxSpec, Sandboxes};
use futures_util::future::BoxFuture;
use tokio::net::TcpStream;

/// Sandboxes on the network of the node's Pods.
pub(crate) struct Guests {
    pub(crate) network: Network,
    pub(crate) spawner: Handle,
}

impl Guests {
    fn attached(&self, address: Ipv4Addr, ports: &[u16], reach: Reach) -> Attached {
        let endpoints = ports.iter().map(|port| SocketAddr::from((address, *port))).collect();
        let resolv_conf = match reach {
            Reach::Nothing => String::new(),
            Reach::Public | Reach::Cluster => format!("nameserver {}\n", self.network.gateway()),
        };
        Attached { address, endpoints, resolv_conf }
    }
}

fn guest(who: Identity) -> Guest {
    let reach = match who.egress {
        Egress::Closed => Reach::Nothing,
        Egress::Unset | Egress::Public => Reach::Public,
        Egress::Open => Reach::Cluster,
    };
    Guest { namespace: who.namespace, name: who.name, labels: who.labels, reach }
}

impl SandboxNetwork for Guests {
    fn attach<'a>(
        &'a self,
        id: &'a SandboxId,
        who: Identity,
        ports: &'a [u16],
    ) -> BoxFuture<'a, Result<Attached, Error>> {
        Box::pin(async move {
            let address =
                self.network.allocate().map_err(|exhausted| Error::Exhausted(exhausted.to_string()))?;
            let (hostname, name_server) = (who.hostname(), self.network.gateway());
            let spec = SandboxSpec { id: id.clone(), hostname, address, name_server };
            let sockets = match self.spawner.create(spec).await {
                Ok(sockets) => sockets,
                Err(error) => {
                    self.network.free(address);
                    return Err(error.into());
                }
            };
            let guest = guest(who);
            let reach = guest.reach;
            if let Err(error) = self.network.attach_guest(id.clone(), address, guest, sockets) {
                self.network.free(address);
                if let Err(error) = self.spawner.remove(id).await {
                    tracing::warn!(sandbox = %id, "a sandbox that is of no use could not be removed: {error}");
                }
                return Err(error.into());
            }
            Ok(self.attached(address, ports, reach))
        })
    }

    fn adopt<'a>(
        &'a self,
        id: &'a SandboxId,
        who: Identity,
        _ports: &'a [u16],
        attached: &'a Attached,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let sockets = self.spawner.sockets(id).await?;
            if !self.network.take(attached.address) {
                return Err(io::Error::from(io::ErrorKind::AddrInUse).into());
            }
            let served = self.network.attach_guest(id.clone(), attached.address, guest(who), sockets);
            if served.is_err() {
                self.network.free(attached.address);
            }
            Ok(served?)
        })
    }

    fn rename<'a>(
        &'a self,
        id: &'a SandboxId,
        who: Identity,
        ports: &'a [u16],
    ) -> BoxFuture<'a, Result<Attached, Error>> {
        let guest = guest(who);
        let reach = guest.reach;
        let renamed = self.network.rename(id, guest);
        Box::pin(async move { Ok(self.attached(renamed?, ports, reach)) })
    }

    fn detach(&self, id: &SandboxId) {
        self.network.detach(id);
    }

    fn connect<'a>(&'a self, id: &'a SandboxId, port: u16) -> BoxFuture<'a, io::Result<TcpStream>> {
        Box::pin(async move {
            let address = self.network.address(id).ok_or(io::ErrorKind::NotFound)?;
            self.network.connect(address, port).await
        })
    }

    fn socket<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, io::Result<(OwnedFd, Ipv4Addr)>> {
        Box::pin(async move {
            let address = self.network.address(id).ok_or(io::ErrorKind::NotFound)?;
            let socket = self.spawner.socket(id, Some(self.network.gateway())).await;
            Ok((socket.map_err(io::Error::other)?, address))
        })
    }
}
