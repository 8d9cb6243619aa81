//! Sandboxes: network, host name and IPC namespaces, held open by descriptors and by nothing else, so that they vanish
//! with the spawner. New network namespaces are made ahead of time; making one is the slowest part of starting a Pod.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::{During, Failure, Step};
use crate::netns;
use crate::spec::SandboxSpec;

/// However many are asked for: each takes memory of the kernel.
const MOST_SPARE: usize = 64;
/// The kernel's limit for a host name.
const LONGEST_HOST_NAME: usize = 64;

/// The namespaces that the containers of a Pod share.
#[derive(Debug)]
pub(super) struct Namespaces {
    network: OwnedFd,
    host_name: OwnedFd,
    ipc: OwnedFd,
}

impl Namespaces {
    pub(super) fn current() -> io::Result<Self> {
        let open = |name: &str| {
            let path = format!("/proc/self/ns/{name}");
            openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        };
        Ok(Self { network: open("net")?, host_name: open("uts")?, ipc: open("ipc")? })
    }

    /// Moves the calling process into all of them.
    pub(super) fn enter(&self) -> io::Result<()> {
        let all = [
            (&self.network, LinkNameSpaceType::Network),
            (&self.host_name, LinkNameSpaceType::HostNameAndNISDomainName),
            (&self.ipc, LinkNameSpaceType::InterProcessCommunication),
        ];
        for (namespace, kind) in all {
            move_into_link_name_space(namespace.as_fd(), Some(kind))?;
        }
        Ok(())
    }

    /// Where our children can open them: network, host name, IPC. We are the first process of their pid namespace.
    pub(super) fn paths(&self) -> [String; 3] {
        [&self.network, &self.host_name, &self.ipc].map(|open| format!("/proc/1/fd/{}", open.as_raw_fd()))
    }

    /// For whoever is to enter them from elsewhere: network, host name, IPC.
    pub(super) fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        [&self.network, &self.host_name, &self.ipc].into_iter().map(OwnedFd::try_clone).collect()
    }

    fn enter_network(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

/// Makes sandboxes, and keeps some ready.
pub(super) struct Factory {
    own: Namespaces,
    ready: VecDeque<Namespaces>,
    spare: usize,
}

impl Factory {
    pub(super) fn new(spare: usize) -> io::Result<Self> {
        Ok(Self { own: Namespaces::current()?, ready: VecDeque::new(), spare })
    }

    /// Keeps at least so many ready from now on, as far as that is sensible.
    pub(super) fn keep(&mut self, count: usize) {
        self.spare = self.spare.max(count.min(MOST_SPARE));
    }

    pub(super) fn wants_more(&self) -> bool {
        self.ready.len() < self.spare
    }

    /// Makes one ahead of time. A failure is for the request that needs it to see.
    pub(super) fn prepare(&mut self) {
        match self.make() {
            Ok(namespaces) => self.ready.push_back(namespaces),
            Err(_) => self.spare = self.ready.len(),
        }
    }

    fn make(&self) -> Result<Namespaces, Failure> {
        self.abroad(|| {
            let flags = UnshareFlags::NEWNET | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC;
            // SAFETY: none of these flags touches what other threads share, and there are no others.
            unsafe { unshare_unsafe(flags) }.during(Step::Namespaces)?;
            netns::prepare().map_err(network)?;
            Namespaces::current().during(Step::Namespaces)
        })
    }

    pub(super) fn create(&mut self, spec: &SandboxSpec) -> Result<(Namespaces, netns::Sockets), Failure> {
        check_host_name(&spec.hostname)?;
        let namespaces = match self.ready.pop_front() {
            Some(ready) => ready,
            None => self.make()?,
        };
        let sockets = self.abroad(|| {
            namespaces.enter().during(Step::Namespaces)?;
            rustix::system::sethostname(spec.hostname.as_bytes()).during(Step::HostName)?;
            netns::assign(spec).map_err(network)
        })?;
        Ok((namespaces, sockets))
    }

    /// Gives a sandbox another host name.
    pub(super) fn rename(&self, sandbox: &Namespaces, hostname: &str) -> Result<(), Failure> {
        check_host_name(hostname)?;
        self.abroad(|| {
            sandbox.enter().during(Step::Namespaces)?;
            rustix::system::sethostname(hostname.as_bytes()).during(Step::HostName)
        })
    }

    /// A TCP socket in the sandbox's network.
    pub(super) fn socket(&self, sandbox: &Namespaces, source: Option<Ipv4Addr>) -> Result<OwnedFd, Failure> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        sandbox.enter_network().during(Step::Socket)?;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
        self.own.enter_network().unwrap_or_else(|error| lost(&error));
        let socket = socket.during(Step::Socket)?;
        if let Some(source) = source {
            // The port is chosen on connecting, when the destination is known: far more connections fit.
            choose_port_late(&socket).during(Step::Socket)?;
            rustix::net::bind(&socket, &SocketAddrV4::new(source, 0)).during_at(Step::Socket, source)?;
        }
        Ok(socket)
    }

    /// Does something in other namespaces and comes back.
    fn abroad<T>(&self, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let result = work();
        self.own.enter().unwrap_or_else(|error| lost(&error));
        result
    }
}

fn check_host_name(name: &str) -> Result<(), Failure> {
    if name.is_empty() || name.len() > LONGEST_HOST_NAME {
        let message = format!("{name:?} cannot be a host name: use 1 to {LONGEST_HOST_NAME} bytes");
        return Err(Failure::Invalid(message));
    }
    Ok(())
}

fn choose_port_late(socket: &OwnedFd) -> io::Result<()> {
    let yes: libc::c_int = 1;
    // SAFETY: the value is a C int, as the option wants it, and its size is right.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            std::ptr::from_ref(&yes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A spawner that cannot leave a Pod's namespaces would start others in them. It ends, and all that it started with it.
fn lost(error: &io::Error) -> ! {
    eprintln!("agentcube spawner: cannot return from a sandbox's namespaces: {error}");
    std::process::exit(1)
}

fn network(error: netns::Error) -> Failure {
    match error {
        netns::Error::Refused { .. } => Failure::Step(Step::Network, error.to_string()),
        other => Failure::Unsupported(other.to_string()),
    }
}
