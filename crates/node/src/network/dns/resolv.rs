//! `resolv.conf`: the host's is read, a Pod's is written. Pure.

use std::net::{IpAddr, Ipv4Addr};

use k8s_openapi::api::core::v1::PodDNSConfig;

use super::zone::DOMAIN;

/// As many name servers as a resolver looks at.
const MOST_SERVERS: usize = 3;
/// What Kubernetes lets a Pod have.
const MOST_SEARCHES: usize = 32;
const LONGEST_SEARCHES: usize = 2048;

/// What the host's `resolv.conf` says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Host {
    pub servers: Vec<IpAddr>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

impl Host {
    /// Lines that are not understood are skipped, as resolvers do. The last `search` counts.
    pub(super) fn parse(text: &str) -> Self {
        let mut host = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let keyword = words.next().unwrap_or_default();
            let words = words.take_while(|word| !word.starts_with(['#', ';']));
            match keyword {
                "nameserver" => {
                    host.servers.extend(words.take(1).filter_map(|word| word.parse::<IpAddr>().ok()))
                }
                "search" | "domain" => {
                    host.searches = words.filter(|word| *word != ".").map(str::to_owned).collect();
                }
                "options" => host.options.extend(words.map(str::to_owned)),
                _ => {}
            }
        }
        host.servers.truncate(MOST_SERVERS);
        host
    }
}

/// The `resolv.conf` of a Pod. Whatever its policy, queries reach the node alone, so `Default` differs from
/// `ClusterFirst` in the names that are tried.
pub(super) fn resolv_conf(
    gateway: Ipv4Addr,
    host: &Host,
    namespace: &str,
    policy: Option<&str>,
    config: Option<&PodDNSConfig>,
) -> String {
    let (mut servers, mut searches, mut options) = match policy.unwrap_or("ClusterFirst") {
        "None" => (Vec::new(), Vec::new(), Vec::new()),
        "Default" => (vec![gateway.to_string()], host.searches.clone(), host.options.clone()),
        _ => {
            let own = [format!("{namespace}.svc.{DOMAIN}"), format!("svc.{DOMAIN}"), DOMAIN.to_owned()];
            let searches = own.into_iter().chain(host.searches.iter().cloned()).collect();
            (vec![gateway.to_string()], searches, vec!["ndots:5".to_owned()])
        }
    };
    if let Some(config) = config {
        servers.extend(config.nameservers.iter().flatten().cloned());
        searches.extend(config.searches.iter().flatten().cloned());
        for option in config.options.iter().flatten() {
            let Some(name) = &option.name else { continue };
            options.retain(|one| one.split(':').next() != Some(name));
            options.push(match &option.value {
                Some(value) => format!("{name}:{value}"),
                None => name.clone(),
            });
        }
    }
    write(servers, searches, options)
}

fn write(servers: Vec<String>, searches: Vec<String>, options: Vec<String>) -> String {
    let mut text = String::new();
    let mut length = 0;
    let searches: Vec<_> = without_repetition(searches)
        .take(MOST_SEARCHES)
        .take_while(|search| {
            length += search.len() + 1;
            length <= LONGEST_SEARCHES
        })
        .collect();
    if !searches.is_empty() {
        text += &format!("search {}\n", searches.join(" "));
    }
    for server in without_repetition(servers).take(MOST_SERVERS) {
        text += &format!("nameserver {server}\n");
    }
    if !options.is_empty() {
        text += &format!("options {}\n", options.join(" "));
    }
    text
}

fn without_repetition(words: Vec<String>) -> impl Iterator<Item = String> {
    let mut seen = std::collections::HashSet::new();
    words.into_iter().filter(move |word| seen.insert(word.clone()))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodDNSConfigOption;

    use super::*;

    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);

    fn host() -> Host {
        Host::parse(
            "# a comment\nsearch old\nsearch corp.example lan # more\nnameserver 127.0.0.53\nnameserver ::1\nnameserver x\noptions edns0\n",
        )
    }

    #[test]
    fn the_hosts_is_read() {
        let host = host();
        assert_eq!(host.servers, ["127.0.0.53", "::1"].map(|address| address.parse::<IpAddr>().unwrap()));
        assert_eq!(host.searches, ["corp.example", "lan"]);
        assert_eq!(host.options, ["edns0"]);
    }

    #[test]
    fn policies_give_what_the_kubelet_gives() {
        let written = |policy| resolv_conf(GATEWAY, &host(), "web", policy, None);
        let cluster = "search web.svc.cluster.local svc.cluster.local cluster.local corp.example lan\nnameserver 10.244.0.1\noptions ndots:5\n";
        assert_eq!(written(None), cluster);
        assert_eq!(written(Some("ClusterFirst")), cluster);
        assert_eq!(written(Some("ClusterFirstWithHostNet")), cluster);
        assert_eq!(
            written(Some("Default")),
            "search corp.example lan\nnameserver 10.244.0.1\noptions edns0\n"
        );
        assert_eq!(written(Some("None")), "");
    }

    #[test]
    fn the_pods_own_words_are_added() {
        let option = |name: &str, value: Option<&str>| PodDNSConfigOption {
            name: Some(name.into()),
            value: value.map(Into::into),
        };
        let config = PodDNSConfig {
            nameservers: Some(["1.1.1.1", "1.1.1.1", "2.2.2.2", "3.3.3.3"].map(Into::into).into()),
            searches: Some(vec!["mine".into(), "lan".into()]),
            options: Some(vec![option("ndots", Some("2")), option("edns0", None)]),
        };
        assert_eq!(
            resolv_conf(GATEWAY, &host(), "web", None, Some(&config)),
            "search web.svc.cluster.local svc.cluster.local cluster.local corp.example lan mine\n\
             nameserver 10.244.0.1\nnameserver 1.1.1.1\nnameserver 2.2.2.2\noptions ndots:2 edns0\n"
        );
        assert_eq!(
            resolv_conf(GATEWAY, &host(), "web", Some("None"), Some(&config)),
            "search mine lan\nnameserver 1.1.1.1\nnameserver 2.2.2.2\nnameserver 3.3.3.3\noptions ndots:2 edns0\n"
        );
    }
}
