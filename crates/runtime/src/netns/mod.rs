//! Configures the network namespace of a Pod, which has no device but `lo`.
//!
//! Every address is local there ("AnyIP"), and nftables turns each outgoing TCP connection and DNS query to a socket
//! that the node serves from outside. The node alone decides what is reachable: a program that got around the rules
//! would still be alone in its namespace. Synchronous; to be called by a process that is in the namespace already.

mod firewall;
mod netlink;
mod route;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};

use crate::spec::SandboxSpec;

/// Where the node listens in each namespace, TCP and UDP. Beyond the ephemeral ports, so that a program gets it only by
/// asking for it; `redirect` of nftables goes to this address.
pub const NODE_LISTENER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 65535);

/// Connections that a Pod may have opened and the node not yet accepted.
const BACKLOG: i32 = 1024;

/// Why a namespace could not be configured. None of these goes away by trying again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {what}: {errno}")]
    Refused { what: &'static str, errno: Errno },
    #[error(
        "cannot {what}: {errno}; this kernel needs nf_tables with nft_chain_nat, nft_redir, nft_ct and nft_reject_ipv4"
    )]
    NoFirewall { what: &'static str, errno: Errno },
    #[error("the kernel did not answer the request to {what}")]
    NoAnswer { what: &'static str },
    #[error("cannot write {path}: {source}")]
    Setting { path: &'static str, source: io::Error },
}

impl From<Error> for crate::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::NoFirewall { .. } => crate::Error::Unsupported(error.to_string()),
            _ => crate::Error::Step { step: "configure the Pod's network", reason: error.to_string() },
        }
    }
}

/// The node's ends of a Pod's network. They work from any process, and keep the namespace alive.
#[derive(Debug)]
pub struct Sockets {
    /// A listening TCP socket; `SO_ORIGINAL_DST` of what it accepts is where the Pod wanted to go.
    pub outgoing: OwnedFd,
    /// A UDP socket to which all queries to port 53 come, whatever their address.
    pub dns: OwnedFd,
}

impl From<Sockets> for crate::SandboxSockets {
    fn from(Sockets { outgoing, dns }: Sockets) -> Self {
        Self { outgoing, dns }
    }
}

/// All that a fresh namespace needs: [`prepare`], then [`assign`].
pub fn configure(spec: &SandboxSpec) -> Result<Sockets, Error> {
    prepare()?;
    assign(spec)
}

/// What does not depend on the Pod, so that namespaces can be kept ready.
pub fn prepare() -> Result<(), Error> {
    route::raise_loopback()?;
    firewall::install(NODE_LISTENER.port())?;
    // As container runtimes do: ports below 1024 and ping need no privilege where the network is private anyway.
    set("/proc/sys/net/ipv4/ip_unprivileged_port_start", &["0"])?;
    // A user namespace cannot name groups that it does not map.
    set("/proc/sys/net/ipv4/ping_group_range", &["0 2147483647", "0 0"])
}

/// Gives a prepared namespace its address, and opens the node's sockets.
pub fn assign(spec: &SandboxSpec) -> Result<Sockets, Error> {
    // The exceptions come first: with the route but without them, nothing could reach the Pod.
    firewall::except(spec.address)?;
    route::assign(spec.address)?;
    let outgoing = open(SocketType::STREAM, "open the socket for outgoing connections")?;
    listen(&outgoing, BACKLOG)
        .map_err(|errno| Error::Refused { what: "listen for outgoing connections", errno })?;
    Ok(Sockets { outgoing, dns: open(SocketType::DGRAM, "open the socket for DNS queries")? })
}

/// Neither `SO_REUSEADDR` nor `SO_REUSEPORT`: a program in the Pod must not be able to share the address.
fn open(kind: SocketType, what: &'static str) -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let open = || {
        let socket = socket_with(AddressFamily::INET, kind, flags, None)?;
        bind(&socket, &NODE_LISTENER)?;
        Ok(socket)
    };
    open().map_err(|errno| Error::Refused { what, errno })
}

/// Writes the first value that the kernel takes. Where `/proc/sys` is read-only (in a container without privileges),
/// Pods go without.
fn set(path: &'static str, values: &[&str]) -> Result<(), Error> {
    let mut result = Ok(());
    for value in values {
        result = match fs::write(path, value) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => return Ok(()),
            Err(source) => Err(Error::Setting { path, source }),
        };
    }
    result
}
