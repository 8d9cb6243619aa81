//! The addresses of the cluster, and the wire between the machine and its node. Pods and Services are reached from the
//! machine by routes through the node; nothing of the machine's own network is changed, and nothing gets out by it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::node::Node;
use crate::process::quietly;

/// The machine's end of the wire.
const HOST: &str = "10.201.0.1";
/// The node's end of it.
pub(crate) const NODE: &str = "10.201.0.2";
pub(crate) const PODS: &str = "10.202.0.0/16";
pub(crate) const SERVICES: &str = "10.203.0.0/16";
/// The first address of the Services is the API server's.
pub(crate) const API_SERVICE: &str = "10.203.0.1";
pub(crate) const DNS_SERVICE: &str = "10.203.0.10";
pub(crate) const DOMAIN: &str = "cluster.local";
/// Spans all of the above.
const ALL: &str = "10.200.0.0/14";
const LINK: &str = "agentcube-node";

/// Where the API server is, from everywhere.
pub(crate) fn api_server() -> String {
    format!("https://{NODE}:6443")
}

/// Whose cluster is connected: there can be one on a machine.
pub(crate) fn owner() -> Option<PathBuf> {
    let text = std::fs::read_to_string(Path::new("/sys/class/net").join(LINK).join("ifalias")).ok()?;
    Some(PathBuf::from(text.trim()))
}

/// Lays the wire to a node that has none yet, for the cluster of a directory.
pub(crate) fn connect(node: &Node, directory: &Path) -> Result<()> {
    let used = quietly(Command::new("ip").args(["-4", "route", "show", "root", ALL]))?;
    ensure!(used.trim().is_empty(), "the cluster's addresses ({ALL}) are in use on this machine:\n{used}");
    let pid = node.pid().to_string();
    ip(&format!("link add {LINK} type veth peer name eth0 netns {pid}"))?;
    let alias = ["link", "set", LINK, "alias"];
    quietly(Command::new("ip").args(alias).arg(directory)).context("cannot mark the cluster's wire")?;
    ip(&format!("addr add {HOST}/30 dev {LINK}"))?;
    ip(&format!("link set {LINK} up"))?;
    for range in [PODS, SERVICES] {
        ip(&format!("route add {range} via {NODE} dev {LINK}"))?;
    }
    // Services need a route before kube-proxy can put a Pod's address for theirs. Whatever else is asked for is unreachable.
    let inside = format!(
        "set -e; ip link set lo up; ip addr add {NODE}/30 dev eth0; ip link set eth0 up
         ip route add {SERVICES} dev eth0
         echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables"
    );
    node.run("sh", &["-c", &inside]).context("cannot set up the node's network")?;
    Ok(())
}

/// Removes the machine's end of the wire and with it the routes.
pub(crate) fn disconnect() -> Result<()> {
    match ip(&format!("link delete {LINK}")) {
        // It also goes by itself, some time after the node.
        Err(error) if owner().is_some() => Err(error),
        _ => Ok(()),
    }
}

fn ip(words: &str) -> Result<()> {
    match quietly(Command::new("ip").args(words.split(' '))) {
        Ok(_) => Ok(()),
        Err(error) => bail!("ip {words}: {error:#}"),
    }
}
