//! The names of a Pod, and the files in `/etc` that tell its containers about them.

use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::{Pod, PodSpec};

/// The kernel keeps no longer host names.
const MOST_HOSTNAME: usize = 63;

/// What a Pod calls itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    /// The short name, as in `/etc/hosts`.
    pub(crate) short: String,
    /// Empty without a subdomain.
    pub(crate) domain: String,
    /// What `hostname` prints: the short name, or all of it if the Pod wants so.
    pub(crate) hostname: String,
}

pub(crate) fn names(pod: &Pod, cluster_domain: &str) -> Result<Names, String> {
    let default = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&default);
    if let Some(own) = &spec.hostname_override {
        let short = shortened(own);
        return Ok(Names { hostname: short.clone(), short, domain: String::new() });
    }
    let set = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
    let short = shortened(&set(&spec.hostname).or(pod.metadata.name.clone()).unwrap_or_default());
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let domain =
        set(&spec.subdomain).map(|subdomain| format!("{subdomain}.{namespace}.svc.{cluster_domain}"));
    let domain = domain.unwrap_or_default();
    let hostname = match spec.set_hostname_as_fqdn {
        Some(true) if !domain.is_empty() => format!("{short}.{domain}"),
        _ => short.clone(),
    };
    if hostname.len() > MOST_HOSTNAME + 1 {
        let limit = MOST_HOSTNAME + 1;
        let length = hostname.len();
        return Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {hostname} is too long ({limit} \
             characters is the max, {length} characters requested)"
        ));
    }
    Ok(Names { short, domain, hostname })
}

fn shortened(name: &str) -> String {
    let end = (0..=MOST_HOSTNAME.min(name.len())).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
    let cut = &name[..end];
    if end == name.len() { cut.to_owned() } else { cut.trim_end_matches(['-', '.']).to_owned() }
}

/// `/etc/hosts`.
pub(crate) fn hosts(pod: &Pod, names: &Names, address: Ipv4Addr) -> String {
    let mut text = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
        ::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\n\
        fe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
        .to_owned();
    let Names { short, domain, .. } = names;
    match domain.is_empty() {
        true => text.push_str(&format!("{address}\t{short}\n")),
        false => text.push_str(&format!("{address}\t{short}.{domain}\t{short}\n")),
    }
    let aliases = pod.spec.as_ref().and_then(|spec| spec.host_aliases.as_deref()).unwrap_or_default();
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in aliases {
        let hostnames = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        text.push_str(&format!("{}\t{hostnames}\n", alias.ip));
    }
    text
}
