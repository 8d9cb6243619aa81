//! Sandboxes: network, host name and IPC namespaces, held open by descriptors and by nothing else, so that they vanish
//! with the spawner. Some are made ahead of time, with the first process of a container in them where that is wanted; making a
//! network namespace is the slowest part of starting a Pod.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::embryo::Embryo;
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

/// Namespaces that nobody has asked for yet.
pub(super) struct Ready {
    pub(super) namespaces: Namespaces,
    pub(super) embryo: Option<Embryo>,
}

/// Something to be made ahead of time.
pub(super) enum Lacking {
    Namespaces,
    /// In the ready sandbox of this place.
    Embryo(usize),
    /// By the embryo of this place.
    Root(usize),
}

/// Makes sandboxes, and keeps some ready.
pub(super) struct Factory {
    own: Namespaces,
    pub(super) ready: VecDeque<Ready>,
    /// Whoever wants any.
    least: usize,
    /// By whoever wants more: how many, and whether with embryos.
    wanted: HashMap<String, (usize, bool)>,
    /// What comes of that, unless it cannot be made.
    spare: usize,
    embryos: usize,
    /// What embryos lay their roots over.
    pub(super) image: Option<PathBuf>,
}

impl Factory {
    pub(super) fn new(spare: usize) -> io::Result<Self> {
        let (ready, wanted) = (VecDeque::new(), HashMap::new());
        Ok(Self { own: Namespaces::current()?, ready, least: spare, wanted, spare, embryos: 0, image: None })
    }

    /// Keeps as many ready from now on as whoever wants most, as far as that is sensible; with embryos in them or
    /// without. Gives back embryos that nobody wants any more.
    pub(super) fn keep(&mut self, who: String, count: usize, embryos: bool) -> Vec<Embryo> {
        if count == 0 {
            self.wanted.remove(&who);
        } else {
            self.wanted.insert(who, (count.min(MOST_SPARE), embryos));
        }
        let most = |counts: &mut dyn Iterator<Item = usize>| counts.max().unwrap_or(0);
        self.spare = self.least.max(most(&mut self.wanted.values().map(|(count, _)| *count)));
        let with = self.wanted.values().filter(|(_, embryos)| *embryos);
        self.embryos = most(&mut with.map(|(count, _)| *count));
        let surplus = self.ready.split_off(self.spare.min(self.ready.len()));
        let without = self.ready.iter_mut().skip(self.embryos).filter_map(|ready| ready.embryo.take());
        without.chain(surplus.into_iter().filter_map(|ready| ready.embryo)).collect()
    }

    pub(super) fn lacks(&self) -> Option<Lacking> {
        if self.ready.len() < self.spare {
            return Some(Lacking::Namespaces);
        }
        let without = self.ready.iter().take(self.embryos).position(|ready| ready.embryo.is_none());
        let bare = |ready: &Ready| ready.embryo.as_ref().is_some_and(|embryo| embryo.laid.is_none());
        let rootless = || self.image.as_ref().and_then(|_| self.ready.iter().position(bare));
        without.map(Lacking::Embryo).or_else(|| rootless().map(Lacking::Root))
    }

    /// Makes one ahead of time. A failure is for the request that needs it to see.
    pub(super) fn prepare(&mut self) {
        match self.make() {
            Ok(namespaces) => self.ready.push_back(Ready { namespaces, embryo: None }),
            Err(_) => self.spare = self.ready.len(),
        }
    }

    /// To be called when there is none to be had.
    pub(super) fn give_up_embryos(&mut self) {
        self.embryos = 0;
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

    /// Namespaces that are not used yet, ready ones if there are any.
    pub(super) fn take(&mut self) -> Result<Ready, Failure> {
        match self.ready.pop_front() {
            Some(ready) => Ok(ready),
            None => Ok(Ready { namespaces: self.make()?, embryo: None }),
        }
    }

    pub(super) fn configure(
        &self,
        namespaces: &Namespaces,
        spec: &SandboxSpec,
    ) -> Result<netns::Sockets, Failure> {
        self.abroad(|| {
            namespaces.enter().during(Step::Namespaces)?;
            rustix::system::sethostname(spec.hostname.as_bytes()).during(Step::HostName)?;
            netns::assign(spec).map_err(network)
        })
    }

    /// Gives a sandbox another host name.
    pub(super) fn rename(&self, sandbox: &Namespaces, hostname: &str) -> Result<(), Failure> {
        check_host_name(hostname)?;
        let enter = |namespaces: &Namespaces| {
            let kind = LinkNameSpaceType::HostNameAndNISDomainName;
            move_into_link_name_space(namespaces.host_name.as_fd(), Some(kind))
        };
        enter(sandbox).during(Step::Namespaces)?;
        let named = rustix::system::sethostname(hostname.as_bytes()).during(Step::HostName);
        enter(&self.own).unwrap_or_else(|error| lost(&error.into()));
        named
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

pub(super) fn check_host_name(name: &str) -> Result<(), Failure> {
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
