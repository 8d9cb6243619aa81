//! The nftables rules of a Pod's namespace:
//!
//! ```text
//! table ip agentcube {
//!   chain outgoing { type nat hook output priority -100;
//!     ip daddr ADDRESS return                                chain bounds { type filter hook output priority 0;
//!     ip daddr 127.0.0.0/8 return                              ip daddr ADDRESS accept
//!     meta l4proto tcp redirect to :PORT                       ip daddr 127.0.0.0/8 accept
//!     udp dport 53 redirect to :PORT                           ct direction reply accept
//!   }                                                          reject with icmp admin-prohibited } }
//! ```
//!
//! The second chain lets nothing pretend to arrive somewhere: without it a packet to any address would come back to the
//! Pod itself. The attribute numbers are those of `linux/netfilter/nf_tables.h`.

use std::net::Ipv4Addr;

use rustix::io::Errno;

use super::Error;
use super::netlink::{Message, NETFILTER, exchange};

const TABLE: &[u8] = b"agentcube\0";
const OUTGOING: &[u8] = b"outgoing\0";
const BOUNDS: &[u8] = b"bounds\0";

const CREATE: libc::c_int = libc::NLM_F_ACK | libc::NLM_F_CREATE;
/// At the end of its chain; without it a rule becomes the first.
const APPEND: libc::c_int = libc::NLM_F_APPEND;

/// Verdicts go to register 0, values to register 1.
const VERDICT: u32 = 0;
const VALUE: u32 = 1;

/// The rules that are the same for every Pod.
pub(super) fn install(port: u16) -> Result<(), Error> {
    let rule = |chain| Rule::new("add a firewall rule", chain, APPEND);
    batch(vec![
        message("add the firewall table", libc::NFT_MSG_NEWTABLE, CREATE).attribute(1, TABLE),
        chain(OUTGOING, b"nat\0", -100),
        chain(BOUNDS, b"filter\0", 0),
        rule(OUTGOING).to(&[127]).verdict(libc::NFT_RETURN),
        rule(OUTGOING).protocol(libc::IPPROTO_TCP).redirect(port),
        rule(OUTGOING).protocol(libc::IPPROTO_UDP).port(53).redirect(port),
        rule(BOUNDS).to(&[127]).verdict(libc::NF_ACCEPT),
        rule(BOUNDS).reply().verdict(libc::NF_ACCEPT),
        rule(BOUNDS).reject(),
    ])
}

/// Lets the Pod reach its own address, before all other rules.
pub(super) fn except(address: Ipv4Addr) -> Result<(), Error> {
    let rule =
        |chain| Rule::new("except the Pod's address from the firewall", chain, 0).to(&address.octets());
    batch(vec![rule(OUTGOING).verdict(libc::NFT_RETURN), rule(BOUNDS).verdict(libc::NF_ACCEPT)])
}

fn batch(mut messages: Vec<Message>) -> Result<(), Error> {
    // struct nfgenmsg: family, version, subsystem in network order.
    let header = [libc::AF_UNSPEC as u8, 0, 0, libc::NFNL_SUBSYS_NFTABLES as u8];
    let edge = |kind: libc::c_int| Message::new("change the firewall", kind as u16, 0, &header);
    messages.insert(0, edge(libc::NFNL_MSG_BATCH_BEGIN));
    messages.push(edge(libc::NFNL_MSG_BATCH_END));
    exchange(NETFILTER, messages).map_err(|error| match error {
        Error::Refused { what, errno: errno @ (Errno::NOENT | Errno::OPNOTSUPP | Errno::PROTONOSUPPORT) } => {
            Error::NoFirewall { what, errno }
        }
        other => other,
    })
}

fn message(what: &'static str, kind: libc::c_int, flags: libc::c_int) -> Message {
    let kind = (libc::NFNL_SUBSYS_NFTABLES << 8 | kind) as u16;
    Message::new(what, kind, flags, &[libc::AF_INET as u8, 0, 0, 0])
}

/// A chain that sees the packets that programs of the Pod send.
fn chain(name: &[u8], kind: &[u8], priority: i32) -> Message {
    message("add a firewall chain", libc::NFT_MSG_NEWCHAIN, CREATE)
        .attribute(1, TABLE)
        .attribute(3, name)
        .attribute(7, kind)
        .nested(4, |hook| {
            hook.attribute(1, &number(libc::NF_INET_LOCAL_OUT)).attribute(2, &priority.to_be_bytes())
        })
}

fn number(value: impl TryInto<u32>) -> [u8; 4] {
    value.try_into().unwrap_or_default().to_be_bytes()
}

type Fill = Box<dyn FnOnce(Message) -> Message>;

/// A rule: expressions that each packet goes through until one does not hold.
struct Rule {
    start: Message,
    expressions: Vec<(&'static [u8], Fill)>,
}

impl Rule {
    fn new(what: &'static str, chain: &[u8], flags: libc::c_int) -> Self {
        let start =
            message(what, libc::NFT_MSG_NEWRULE, CREATE | flags).attribute(1, TABLE).attribute(2, chain);
        Self { start, expressions: Vec::new() }
    }

    fn expression(mut self, name: &'static [u8], fill: impl FnOnce(Message) -> Message + 'static) -> Self {
        self.expressions.push((name, Box::new(fill)));
        self
    }

    /// Holds for packets whose destination address begins with these bytes.
    fn to(self, prefix: &[u8]) -> Self {
        const DESTINATION: u32 = 16;
        self.payload(libc::NFT_PAYLOAD_NETWORK_HEADER, DESTINATION, prefix)
    }

    /// Holds for packets to this port, of a protocol that has ports.
    fn port(self, port: u16) -> Self {
        const DESTINATION: u32 = 2;
        self.payload(libc::NFT_PAYLOAD_TRANSPORT_HEADER, DESTINATION, &port.to_be_bytes())
    }

    fn payload(self, base: libc::c_int, offset: u32, value: &[u8]) -> Self {
        let length = number(value.len());
        self.expression(b"payload\0", move |load| {
            load.attribute(1, &number(VALUE))
                .attribute(2, &number(base))
                .attribute(3, &number(offset))
                .attribute(4, &length)
        })
        .equals(value)
    }

    fn protocol(self, protocol: libc::c_int) -> Self {
        const L4PROTO: u32 = 16;
        self.expression(b"meta\0", |load| load.attribute(1, &number(VALUE)).attribute(2, &number(L4PROTO)))
            .equals(&[protocol as u8])
    }

    /// Holds for the answers to what came in.
    fn reply(self) -> Self {
        const REPLY: u8 = 1;
        self.expression(b"ct\0", |load| {
            load.attribute(1, &number(VALUE)).attribute(2, &number(libc::NFT_CT_DIRECTION))
        })
        .equals(&[REPLY])
    }

    fn equals(self, value: &[u8]) -> Self {
        let value = value.to_vec();
        self.expression(b"cmp\0", move |compare| {
            compare
                .attribute(1, &number(VALUE))
                .attribute(2, &number(libc::NFT_CMP_EQ))
                .nested(3, |data| data.attribute(1, &value))
        })
    }

    fn verdict(self, code: libc::c_int) -> Message {
        self.expression(b"immediate\0", move |immediate| {
            immediate
                .attribute(1, &number(VERDICT))
                .nested(2, |data| data.nested(2, |verdict| verdict.attribute(1, &code.to_be_bytes())))
        })
        .finish()
    }

    fn redirect(self, port: u16) -> Message {
        self.expression(b"immediate\0", move |immediate| {
            immediate.attribute(1, &number(VALUE)).nested(2, |data| data.attribute(1, &port.to_be_bytes()))
        })
        .expression(b"redir\0", |redirect| redirect.attribute(1, &number(VALUE)))
        .finish()
    }

    fn reject(self) -> Message {
        const ADMIN_PROHIBITED: u8 = 13;
        self.expression(b"reject\0", |reject| {
            reject.attribute(1, &number(libc::NFT_REJECT_ICMP_UNREACH)).attribute(2, &[ADMIN_PROHIBITED])
        })
        .finish()
    }

    fn finish(self) -> Message {
        let Self { start, expressions } = self;
        start.nested(4, |list| {
            expressions.into_iter().fold(list, |list, (name, fill)| {
                list.nested(1, |expression| expression.attribute(1, name).nested(2, fill))
            })
        })
    }
}
