//! The loopback device of a Pod's namespace: up, with the Pod's address, and the way to everywhere.

use std::net::Ipv4Addr;

use super::Error;
use super::netlink::{Message, ROUTE, exchange};

/// The first device of every namespace is `lo`.
const LOOPBACK: i32 = 1;
const CREATE: libc::c_int = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;

pub(super) fn raise_loopback() -> Result<(), Error> {
    let up = (libc::IFF_UP as u32).to_ne_bytes();
    // struct ifinfomsg: family, padding, type, index, flags, which flags to change.
    let mut header = vec![libc::AF_UNSPEC as u8, 0, 0, 0];
    header.extend(LOOPBACK.to_ne_bytes());
    header.extend(up);
    header.extend(up);
    exchange(ROUTE, vec![Message::new("raise lo", libc::RTM_NEWLINK, libc::NLM_F_ACK, &header)])
}

/// Puts the address on `lo`, and makes every other address local too, with this one as the source.
pub(super) fn assign(address: Ipv4Addr) -> Result<(), Error> {
    let octets = address.octets();
    // struct ifaddrmsg: family, length of the prefix, flags, scope, device.
    let mut header = vec![libc::AF_INET as u8, 32, 0, libc::RT_SCOPE_UNIVERSE];
    header.extend(LOOPBACK.to_ne_bytes());
    let add = Message::new("add the Pod's address", libc::RTM_NEWADDR, CREATE, &header)
        .attribute(libc::IFA_LOCAL, &octets)
        .attribute(libc::IFA_ADDRESS, &octets);
    // struct rtmsg: family, lengths of the destination and source prefixes, TOS, table, protocol, scope, type, flags.
    let (table, protocol, scope) = (libc::RT_TABLE_LOCAL, libc::RTPROT_STATIC, libc::RT_SCOPE_HOST);
    let header = [libc::AF_INET as u8, 0, 0, 0, table, protocol, scope, libc::RTN_LOCAL, 0, 0, 0, 0];
    let route = Message::new("make every address local", libc::RTM_NEWROUTE, CREATE, &header)
        .attribute(libc::RTA_OIF, &LOOPBACK.to_ne_bytes())
        .attribute(libc::RTA_PREFSRC, &octets);
    exchange(ROUTE, vec![add, route])
}
