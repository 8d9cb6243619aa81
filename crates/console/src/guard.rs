//! Whether a request comes from a page of ours: the name that it was sent to, and where the browser says that it comes
//! from. Sessions have a proof besides; this closes what a browser does without being asked.

use std::net::{IpAddr, SocketAddr};

use http::header::{HOST, HeaderName, ORIGIN};
use http::{HeaderMap, Method};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The names under which we are reached.
#[derive(Clone, Debug)]
pub(crate) enum Names {
    /// On loopback: a name that leads here by the tricks of somebody's name server is not one of them.
    Loopback,
    /// Whatever leads here.
    Any,
}

impl Names {
    pub(crate) fn of(address: SocketAddr) -> Names {
        match address.ip().is_loopback() {
            true => Names::Loopback,
            false => Names::Any,
        }
    }

    fn include(&self, host: &str) -> bool {
        let Names::Loopback = self else { return true };
        // Any port: somebody may forward another to ours, as `ssh -L` does.
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, port.parse::<u16>().ok()),
            _ => (host, Some(80)),
        };
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        port.is_some() && (name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|ip| ip.is_loopback()))
    }
}

/// What is wrong with where a request comes from, if anything is.
pub(crate) fn stranger(
    names: &Names,
    method: &Method,
    headers: &HeaderMap,
    is_page: bool,
) -> Option<&'static str> {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("unreadable"));
    let host = text(&HOST).unwrap_or_default();
    if !names.include(host) {
        return Some("this address is not the console's own: use the one that `agentcube up` prints");
    }
    // A link may lead to a page from anywhere; there is nothing in it but the login.
    if is_page && method == Method::GET {
        return None;
    }
    if text(&FETCH_SITE).is_some_and(|site| site != "same-origin") {
        return Some("requests from other sites are not answered");
    }
    let ours = |origin: &str| {
        let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host))
    };
    match text(&ORIGIN) {
        Some(origin) if !ours(origin) => Some("requests from other origins are not answered"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn only_our_own_pages_are_answered() {
        let names = Names::of("127.0.0.1:8091".parse().unwrap());
        for (pairs, is_page, welcome) in [
            (vec![(HOST, "127.0.0.1:8091")], false, true),
            (vec![(HOST, "localhost:8091")], false, true),
            (vec![(HOST, "[::1]:8091")], false, true),
            (vec![], false, false),
            (vec![(HOST, "evil.example:8091")], true, false),
            (vec![(HOST, "127.0.0.1.evil.example:8091")], true, false),
            (vec![(HOST, "127.0.0.1:x")], true, false),
            (vec![(HOST, "127.0.0.1:8091"), (ORIGIN, "http://127.0.0.1:8091")], false, true),
            // An agent behind the gateway is another origin on the same host.
            (vec![(HOST, "127.0.0.1:8091"), (ORIGIN, "http://127.0.0.1:8090")], false, false),
            (vec![(HOST, "127.0.0.1:8091"), (ORIGIN, "null")], false, false),
            (vec![(HOST, "127.0.0.1:8091"), (FETCH_SITE, "same-site")], false, false),
            (vec![(HOST, "127.0.0.1:8091"), (FETCH_SITE, "cross-site")], false, false),
            (vec![(HOST, "127.0.0.1:8091"), (FETCH_SITE, "cross-site")], true, true),
            (vec![(HOST, "127.0.0.1:8091"), (FETCH_SITE, "same-origin")], false, true),
        ] {
            let refused = stranger(&names, &Method::GET, &headers(&pairs), is_page);
            assert_eq!(refused.is_none(), welcome, "{pairs:?}: {refused:?}");
        }
        assert!(stranger(&Names::Any, &Method::GET, &headers(&[(HOST, "console.example")]), false).is_none());
    }
}
