//! Configures real network namespaces, as root and without, and connects in them.
//!
//! Each test runs itself once more in a fresh process that enters the namespaces before it has threads.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::Command;

use agentcube_runtime::netns::{self, NODE_LISTENER};
use agentcube_runtime::spec::{SandboxId, SandboxSpec};
use rustix::net::sockopt::ip_original_dst;
use rustix::net::{AddressFamily, SocketType};
use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

const INSIDE: &str = "AGENTCUBE_TEST_INSIDE";
const POD: Ipv4Addr = Ipv4Addr::new(10, 244, 3, 7);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 244, 9, 9);
const NOBODY: u32 = 65534;

/// Runs `body` in fresh namespaces: as an ordinary user in a user namespace, and as root if the test is.
fn in_namespace(test: &str, body: fn()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    run_inside(test, true);
    if rustix::process::getuid().is_root() {
        run_inside(test, false);
    }
}

fn run_inside(test: &str, rootless: bool) {
    let mut command = Command::new(std::env::current_exe().expect("a program has a path"));
    command.args([test, "--exact", "--nocapture"]).env(INSIDE, "1");
    let mut flags = UnshareFlags::NEWNET;
    let (mut uid, mut gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    if rootless {
        flags |= UnshareFlags::NEWUSER;
        if uid == 0 {
            (uid, gid) = (NOBODY, NOBODY);
            command.uid(uid).gid(gid);
        }
    }
    let maps =
        [("setgroups", "deny".into()), ("uid_map", format!("0 {uid} 1")), ("gid_map", format!("0 {gid} 1"))];
    let maps = maps.map(|(file, content)| (format!("/proc/self/{file}"), content));
    // SAFETY: between fork and exec the closure only makes system calls, on strings that were made before.
    unsafe {
        command.pre_exec(move || {
            rustix::thread::unshare_unsafe(flags)?;
            // After a change of the user, /proc/self belongs to root until told otherwise.
            rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
            for (file, content) in maps.iter().filter(|_| rootless) {
                std::fs::write(file, content)?;
            }
            Ok(())
        });
    }
    let output = command.output().expect("the test starts again in its namespaces");
    let log = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && log.contains("1 passed"), "rootless: {rootless}\n{log}");
}

fn spec() -> SandboxSpec {
    SandboxSpec {
        id: SandboxId::new("test").expect("a fitting id"),
        hostname: "test".into(),
        address: POD,
        name_server: Ipv4Addr::new(10, 96, 0, 10),
    }
}

fn configured() -> netns::Sockets {
    netns::configure(&spec()).expect("a fresh namespace can be configured")
}

fn accepting(sockets: netns::Sockets) -> TcpListener {
    let listener = TcpListener::from(sockets.outgoing);
    listener.set_nonblocking(false).expect("a socket can block");
    listener
}

#[test]
fn outgoing_connections_arrive_at_the_node() {
    in_namespace("outgoing_connections_arrive_at_the_node", || {
        let node = accepting(configured());
        for destination in ["8.8.8.8:443", "10.244.9.9:8080", "10.96.0.1:53", "10.244.3.8:65535"] {
            let mut client = TcpStream::connect(destination).unwrap();
            let (mut server, peer) = node.accept().unwrap();
            assert_eq!(ip_original_dst(&server).unwrap(), destination.parse().unwrap());
            assert_eq!(peer, client.local_addr().unwrap());
            assert_eq!(peer.ip(), POD);
            client.write_all(b"to").unwrap();
            server.write_all(b"fro").unwrap();
            let (mut two, mut three) = ([0; 2], [0; 3]);
            server.read_exact(&mut two).unwrap();
            client.read_exact(&mut three).unwrap();
            assert_eq!((&two, &three), (b"to", b"fro"));
        }
    });
}

#[test]
fn the_pod_reaches_itself_without_the_node() {
    in_namespace("the_pod_reaches_itself_without_the_node", || {
        let _sockets = configured();
        let everywhere = TcpListener::bind("0.0.0.0:80").unwrap();
        for address in [POD, Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 3, 2, 1)] {
            let client = TcpStream::connect((address, 80)).unwrap();
            let (server, _) = everywhere.accept().unwrap();
            assert_eq!(server.local_addr().unwrap(), client.peer_addr().unwrap());
            let datagrams = UdpSocket::bind((address, 80)).unwrap();
            datagrams.send_to(b"x", (address, 80)).unwrap();
            assert_eq!(datagrams.recv_from(&mut [0; 9]).unwrap(), (1, SocketAddr::from((address, 80))));
        }
        let refused = TcpStream::connect((POD, 81)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn the_node_connects_with_the_address_of_another_pod() {
    in_namespace("the_node_connects_with_the_address_of_another_pod", || {
        let _sockets = configured();
        let program = TcpListener::bind("0.0.0.0:8080").unwrap();
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrV4::new(OTHER, 0)).unwrap();
        rustix::net::connect(&socket, &SocketAddrV4::new(POD, 8080)).unwrap();
        let (mut server, peer) = program.accept().unwrap();
        assert_eq!(peer.ip(), OTHER);
        server.write_all(b"hello").unwrap();
        drop(server);
        let mut read = String::new();
        TcpStream::from(socket).read_to_string(&mut read).unwrap();
        assert_eq!(read, "hello");
    });
}

#[test]
fn every_dns_query_comes_to_the_node() {
    in_namespace("every_dns_query_comes_to_the_node", || {
        let node = UdpSocket::from(configured().dns);
        node.set_nonblocking(false).unwrap();
        // A name server of the Pod's own is no obstacle.
        let own = UdpSocket::bind("0.0.0.0:53").unwrap();
        for server in ["10.96.0.10:53", "8.8.8.8:53"] {
            let client = UdpSocket::bind("0.0.0.0:0").unwrap();
            client.connect(server).unwrap();
            client.send(b"query").unwrap();
            let mut buffer = [0; 9];
            let (length, peer) = node.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"query");
            node.send_to(b"answer", peer).unwrap();
            // The socket is connected, so an answer from anywhere else would not arrive.
            assert_eq!(client.recv(&mut buffer).unwrap(), 6);
        }
        own.set_nonblocking(true).unwrap();
        assert_eq!(own.recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn what_goes_nowhere_fails_at_once() {
    in_namespace("what_goes_nowhere_fails_at_once", || {
        let _sockets = configured();
        let socket = UdpSocket::bind("0.0.0.0:4000").unwrap();
        for destination in ["8.8.8.8:4000", "10.244.9.9:4000", "10.244.0.1:123", "224.0.0.251:5353"] {
            let error = socket.send_to(b"x", destination).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{destination}");
        }
        let unreachable = TcpStream::connect("[2001:db8::1]:443").unwrap_err();
        assert_eq!(unreachable.kind(), ErrorKind::NetworkUnreachable);
        // Loopback of IPv6 is the Pod's own.
        let own = TcpListener::bind("[::1]:0").unwrap();
        TcpStream::connect(own.local_addr().unwrap()).unwrap();
    });
}

#[test]
fn pings_the_pod_only() {
    in_namespace("pings_the_pod_only", || {
        let _sockets = configured();
        let icmp =
            rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, Some(rustix::net::ipproto::ICMP))
                .expect("ping_group_range lets this group ping");
        let echo = [8, 0, 0, 0, 0, 0, 0, 1];
        let flags = rustix::net::SendFlags::empty();
        let to = |address| rustix::net::sendto(&icmp, &echo, flags, &SocketAddrV4::new(address, 0));
        to(POD).unwrap();
        to(OTHER).unwrap_err();
    });
}

#[test]
fn a_direct_connection_to_the_listener_shows_itself() {
    in_namespace("a_direct_connection_to_the_listener_shows_itself", || {
        let node = accepting(configured());
        let _client = TcpStream::connect(NODE_LISTENER).unwrap();
        let (server, _) = node.accept().unwrap();
        assert_eq!(ip_original_dst(&server).unwrap(), NODE_LISTENER);
        let refused = TcpStream::connect((POD, NODE_LISTENER.port())).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        // Nobody can take the listener's place.
        for address in [*NODE_LISTENER.ip(), Ipv4Addr::UNSPECIFIED] {
            let taken = TcpListener::bind((address, NODE_LISTENER.port())).unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        }
    });
}

#[test]
fn without_capabilities_nothing_can_be_changed() {
    in_namespace("without_capabilities_nothing_can_be_changed", || {
        let _sockets = configured();
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).unwrap();
        for error in [netns::prepare().unwrap_err(), netns::assign(&spec()).unwrap_err()] {
            assert!(error.to_string().contains("Operation not permitted"), "{error}");
        }
        // A low port is open to everyone all the same.
        TcpListener::bind("0.0.0.0:80").unwrap();
    });
}

#[test]
fn a_second_address_is_refused() {
    in_namespace("a_second_address_is_refused", || {
        let _sockets = configured();
        let error = netns::assign(&spec()).unwrap_err();
        assert_eq!(error.to_string(), "cannot add the Pod's address: File exists (os error 17)");
    });
}
