//! Which Task a request is for, by port, host and path: the rules of the Gateway API for HTTPRoutes. Pure; the table
//! changes by one gateway or one Task at a time.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::agentcube::request::RequestHandlingSpec;
use agentcube_api::agentcube::routing::{Protocol, RoutePolicy};
use agentcube_api::{GoDuration, Task};
use agentcube_instance::TaskId;
use kube::ResourceExt;

use crate::extract::{self, Extractors};

/// How long a connection to an instance may take when the Task does not say.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A gateway, by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatewayId {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

/// Where a gateway takes requests in: a port, and the hosts that it answers for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    pub port: u16,
    pub host: HostPattern,
}

/// A host name, all names below a domain, or any name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    Any,
    /// `.example.com`, for `*.example.com`.
    Below(Box<str>),
    Exact(Box<str>),
}

impl HostPattern {
    /// Reads a host name of the API; none is any.
    pub fn read(text: Option<&str>) -> HostPattern {
        match text.unwrap_or_default() {
            "" | "*" => HostPattern::Any,
            text => match text.strip_prefix('*') {
                Some(domain) => HostPattern::Below(domain.to_ascii_lowercase().into()),
                None => HostPattern::Exact(text.to_ascii_lowercase().into()),
            },
        }
    }

    /// How closely the host fits; none if it does not.
    fn fits(&self, host: &str) -> Option<Fit> {
        match self {
            HostPattern::Any => Some(Fit::Any),
            HostPattern::Below(domain) => {
                let below = host.len() > domain.len() && host.ends_with(&**domain);
                below.then_some(Fit::Below(domain.len()))
            }
            HostPattern::Exact(name) => (host == &**name).then_some(Fit::Exact),
        }
    }

    /// Whether a host could fit both.
    pub fn meets(&self, other: &HostPattern) -> bool {
        match (self, other) {
            (HostPattern::Any, _) | (_, HostPattern::Any) => true,
            (HostPattern::Exact(name), pattern) | (pattern, HostPattern::Exact(name)) => {
                pattern.fits(name).is_some()
            }
            (HostPattern::Below(one), HostPattern::Below(other)) => {
                one.ends_with(&**other) || other.ends_with(&**one)
            }
        }
    }
}

/// How closely a host fits; closer is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    Any,
    Below(usize),
    Exact,
}

/// A Task as requests are to be passed to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    pub task: TaskId,
    /// Without a slash at its end; empty for the root.
    pub prefix: Box<str>,
    /// The gateways that it is served on, all of its namespace.
    pub gateways: Vec<GatewayId>,
    /// Hosts of its own; none means those of the listeners.
    pub hosts: Vec<HostPattern>,
    pub session: SessionRule,
    pub limits: Limits,
    /// Why it cannot be served here, although it is routed here.
    pub unsupported: Option<Arc<str>>,
    created: i64,
}

/// Whether requests belong to sessions.
#[derive(Clone, Debug, PartialEq)]
pub enum SessionRule {
    /// Any idle instance.
    Oneshot,
    /// The instance of the session, whose key is found by these.
    BySession(Extractors),
}

/// How long things may take; none is without limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub connect: Duration,
    /// From the end of the request to the end of the response; not for streams.
    pub request: Option<Duration>,
    /// Silence on a stream.
    pub stream_idle: Option<Duration>,
}

impl Route {
    /// How the Task is served; nothing if it has no namespace or UID, which no Task of a server lacks.
    pub fn read(task: &Task) -> Option<Route> {
        let id = TaskId {
            namespace: task.namespace()?.into(),
            name: task.name_any().into(),
            uid: task.uid()?.into(),
        };
        let routing = &task.spec.routing;
        let gateway =
            |name: &String| GatewayId { namespace: id.namespace.clone(), name: name.as_str().into() };
        let session = match routing.route_policy {
            RoutePolicy::Oneshot => SessionRule::Oneshot,
            RoutePolicy::BySession => {
                let places = routing.session_identifier.iter().flat_map(|spec| &spec.extractors);
                SessionRule::BySession(extract::Extractors::read(places))
            }
        };
        let prefix = routing.path_prefix_for(&id.namespace, &id.name);
        Some(Route {
            prefix: prefix.trim_end_matches('/').into(),
            gateways: routing.gateway_refs.iter().map(gateway).collect(),
            hosts: routing.hostnames.iter().map(|host| HostPattern::read(Some(host))).collect(),
            unsupported: unsupported(task, &session),
            session,
            limits: Limits::read(&task.spec.request_handling),
            created: task.creation_timestamp().map_or(0, |time| time.0.as_second()),
            task: id,
        })
    }

    /// The rest of a path below the prefix, beginning with a slash; none if the path is not below it.
    pub fn rest<'a>(&self, path: &'a str) -> Option<&'a str> {
        let rest = path.strip_prefix(&*self.prefix)?;
        match rest.as_bytes().first() {
            None => Some("/"),
            Some(b'/') => Some(rest),
            Some(_) => None,
        }
    }

    fn fits(&self, listener: &Listener, host: &str) -> Option<Fit> {
        let at_listener = listener.host.fits(host)?;
        if self.hosts.is_empty() {
            return Some(at_listener);
        }
        self.hosts.iter().filter_map(|pattern| pattern.fits(host)).max()
    }
}

/// What this gateway does not do yet, in words for the Task's owner.
fn unsupported(task: &Task, session: &SessionRule) -> Option<Arc<str>> {
    let routing = &task.spec.routing;
    if let SessionRule::BySession(extractors) = session
        && extractors.is_empty()
    {
        let protocol = match routing.protocol {
            Protocol::Http => "HTTP",
            Protocol::Mcp => "MCP",
            Protocol::A2a => "A2A",
        };
        let message = format!(
            "the built-in gateway does not yet know sessions of protocol {protocol}: \
             give routing.sessionIdentifier.extractors"
        );
        return Some(message.into());
    }
    let tls = task.spec.request_handling.backend.tls_policy.is_some();
    tls.then(|| "the built-in gateway does not yet speak TLS to instances: remove backend.tlsPolicy".into())
}

impl Limits {
    fn read(handling: &RequestHandlingSpec) -> Limits {
        let timeout = handling.timeout.as_ref();
        let http = timeout.and_then(|timeout| timeout.http.as_ref());
        // Zero is no limit.
        let limit = |duration: Option<GoDuration>| {
            duration.map(GoDuration::to_std).filter(|duration| !duration.is_zero())
        };
        let connect = timeout.and_then(|timeout| limit(timeout.tcp.as_ref()?.connect_timeout));
        Limits {
            connect: connect.unwrap_or(CONNECT_TIMEOUT),
            request: limit(http.and_then(|http| http.request)),
            stream_idle: limit(http.and_then(|http| http.stream_idle_timeout)),
        }
    }
}

/// All gateways of this class and all Tasks.
#[derive(Debug, Default)]
pub struct Table {
    gateways: HashMap<GatewayId, Vec<Listener>>,
    by_task: HashMap<(Arc<str>, Arc<str>), Arc<Route>>,
    by_prefix: HashMap<Box<str>, Vec<Arc<Route>>>,
}

impl Table {
    /// Takes in a gateway's listeners, or that it is gone.
    pub fn set_gateway(&mut self, gateway: GatewayId, listeners: Option<Vec<Listener>>) {
        match listeners {
            Some(listeners) => self.gateways.insert(gateway, listeners),
            None => self.gateways.remove(&gateway),
        };
    }

    /// Takes in a Task as it is now.
    pub fn set_task(&mut self, route: Route) {
        let key = (route.task.namespace.clone(), route.task.name.clone());
        self.remove_task(&key.0, &key.1);
        let route = Arc::new(route);
        self.by_prefix.entry(route.prefix.clone()).or_default().push(route.clone());
        self.by_task.insert(key, route);
    }

    /// Takes in that a Task is gone.
    pub fn remove_task(&mut self, namespace: &str, name: &str) {
        let Some(old) = self.by_task.remove(&(namespace.into(), name.into())) else { return };
        if let Some(routes) = self.by_prefix.get_mut(&old.prefix) {
            routes.retain(|route| !Arc::ptr_eq(route, &old));
            if routes.is_empty() {
                self.by_prefix.remove(&old.prefix);
            }
        }
    }

    /// The route of a Task.
    pub fn task(&self, namespace: &str, name: &str) -> Option<&Arc<Route>> {
        self.by_task.get(&(namespace.into(), name.into()))
    }

    pub fn listeners(&self, gateway: &GatewayId) -> Option<&[Listener]> {
        self.gateways.get(gateway).map(Vec::as_slice)
    }

    /// The Task for a request that came in on a port. The closest host wins, then the longest path, then the older
    /// Task, then the name.
    pub fn find(&self, port: u16, host: &str, path: &str) -> Option<Arc<Route>> {
        let host = host_name(host);
        let candidates = prefixes(path).filter_map(|prefix| self.by_prefix.get(prefix)).flatten();
        let fitting = candidates.filter_map(|route| Some((self.fit(route, port, &host)?, route)));
        let best = fitting.max_by_key(|(fit, route)| {
            let id = Reverse((&route.task.namespace, &route.task.name));
            (*fit, route.prefix.len(), Reverse(route.created), id)
        });
        best.map(|(_, route)| route.clone())
    }

    fn fit(&self, route: &Route, port: u16, host: &str) -> Option<Fit> {
        let listeners = route.gateways.iter().filter_map(|gateway| self.gateways.get(gateway)).flatten();
        listeners.filter(|at| at.port == port).filter_map(|at| route.fits(at, host)).max()
    }
}

/// A host as requests have it: without its port and a final dot, in lower case.
fn host_name(host: &str) -> String {
    let without_port = match host.rsplit_once(':') {
        // What ends with a bracket is an IPv6 address without a port.
        Some((name, _)) if !host.ends_with(']') => name,
        _ => host,
    };
    without_port.trim_end_matches('.').to_ascii_lowercase()
}

/// The path and everything above it, cut at slashes; the root is empty.
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    let whole = Some(path.strip_suffix('/').unwrap_or(path));
    std::iter::successors(whole, |path| path.rfind('/').map(|slash| &path[..slash]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn task(namespace: &str, name: &str, routing: serde_json::Value) -> Route {
        let mut routing = routing;
        if routing.get("routePolicy").is_none() {
            routing["routePolicy"] = json!("Oneshot");
        }
        let object = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "Task",
            "metadata": { "namespace": namespace, "name": name, "uid": format!("{namespace}-{name}"),
                "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} }, "routing": routing },
        });
        Route::read(&serde_json::from_value(object).unwrap()).unwrap()
    }

    fn gateway(namespace: &str, name: &str) -> GatewayId {
        GatewayId { namespace: namespace.into(), name: name.into() }
    }

    fn listener(port: u16, host: &str) -> Listener {
        Listener { port, host: HostPattern::read(Some(host)) }
    }

    fn table() -> Table {
        let mut table = Table::default();
        table.set_gateway(
            gateway("a", "default"),
            Some(vec![listener(80, ""), listener(81, "*.example.com")]),
        );
        table.set_gateway(gateway("b", "default"), Some(vec![listener(80, "")]));
        for route in [
            task("a", "chat", json!({})),
            task("a", "deep", json!({ "pathPrefix": "/a/chat/deep/" })),
            task("a", "root", json!({ "pathPrefix": "/", "hostnames": ["root.example.com"] })),
            task("a", "wild", json!({ "pathPrefix": "/x", "hostnames": ["*.example.com"] })),
            task("b", "chat", json!({})),
            task("b", "lost", json!({ "gatewayRefs": ["nowhere"], "pathPrefix": "/lost" })),
            task("b", "twin", json!({ "pathPrefix": "/a/chat" })),
        ] {
            table.set_task(route);
        }
        table
    }

    #[test]
    fn requests_find_their_task() {
        let table = table();
        for (port, host, path, expected) in [
            (80, "localhost", "/a/chat", Some("a/chat")),
            (80, "localhost", "/a/chat/", Some("a/chat")),
            (80, "localhost", "/a/chat/x/y", Some("a/chat")),
            (80, "localhost", "/a/chatter", None),
            (80, "localhost", "/a/chat/deep/y", Some("a/deep")),
            (80, "localhost", "/a/chat/deeper", Some("a/chat")),
            (80, "localhost", "/b/chat", Some("b/chat")),
            (80, "localhost", "/lost", None),
            (80, "localhost", "/", None),
            (80, "localhost", "", None),
            // A closer host goes before a longer path.
            (80, "ROOT.example.com:80", "/a/chat", Some("a/root")),
            (80, "root.example.com", "/anything", Some("a/root")),
            (80, "y.example.com", "/x/1", Some("a/wild")),
            (80, "example.com", "/x/1", None),
            (81, "y.example.com", "/a/chat", Some("a/chat")),
            (81, "localhost", "/a/chat", None),
            (82, "localhost", "/a/chat", None),
        ] {
            let found = table.find(port, host, path).map(|route| route.task.to_string());
            assert_eq!(found.as_deref(), expected, "{port} {host} {path}");
        }
    }

    #[test]
    fn changes_replace_and_removals_leave_nothing() {
        let mut table = table();
        table.set_task(task("a", "chat", json!({ "pathPrefix": "/new" })));
        let find =
            |table: &Table, path: &str| table.find(80, "localhost", path).map(|route| route.task.to_string());
        // What was behind it is served now.
        assert_eq!(find(&table, "/a/chat").as_deref(), Some("b/twin"));
        assert_eq!(find(&table, "/new").as_deref(), Some("a/chat"));
        table.remove_task("a", "chat");
        assert_eq!(find(&table, "/new"), None);
        table.set_gateway(gateway("b", "default"), None);
        assert_eq!(find(&table, "/a/chat"), None);
        table.remove_task("never", "there");
        assert!(!table.by_prefix.contains_key("/new"));
    }

    #[test]
    fn prefixes_end_at_slashes() {
        let route = task("a", "chat", json!({}));
        for (path, rest) in [
            ("/a/chat", Some("/")),
            ("/a/chat/", Some("/")),
            ("/a/chat//x", Some("//x")),
            ("/a/chat/x", Some("/x")),
            ("/a/chats", None),
            ("/b", None),
        ] {
            assert_eq!(route.rest(path), rest, "{path}");
        }
        assert_eq!(task("a", "root", json!({ "pathPrefix": "/" })).rest("/x"), Some("/x"));
        assert_eq!(prefixes("/a/b/").collect::<Vec<_>>(), ["/a/b", "/a", ""]);
        assert_eq!(prefixes("/").collect::<Vec<_>>(), [""]);
    }

    #[test]
    fn hosts_meet() {
        let pattern = |text: &str| HostPattern::read(Some(text));
        for (one, other, meet) in [
            ("", "a.b", true),
            ("a.b", "a.b", true),
            ("a.b", "c.b", false),
            ("*.b", "a.b", true),
            ("*.b", "b", false),
            ("*.a.b", "*.b", true),
            ("*.a.b", "*.c", false),
        ] {
            assert_eq!(pattern(one).meets(&pattern(other)), meet, "{one} {other}");
            assert_eq!(pattern(other).meets(&pattern(one)), meet, "{other} {one}");
        }
        assert_eq!(host_name("[::1]:80"), "[::1]");
        assert_eq!(host_name("[::1]"), "[::1]");
        assert_eq!(host_name("Example.COM.:80"), "example.com");
    }

    #[test]
    fn limits_and_what_is_not_served() {
        let mut object = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "Task",
            "metadata": { "namespace": "a", "name": "b", "uid": "c" },
            "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} },
                "routing": { "routePolicy": "BySession", "protocol": "MCP" },
                "requestHandling": { "timeout": { "tcp": { "connectTimeout": "2s" },
                    "http": { "request": "0s", "streamIdleTimeout": "1m" } } } },
        });
        let read = |object: &serde_json::Value| {
            Route::read(&serde_json::from_value(object.clone()).unwrap()).unwrap()
        };
        let route = read(&object);
        let limits = Limits {
            connect: Duration::from_secs(2),
            request: None,
            stream_idle: Some(Duration::from_secs(60)),
        };
        assert_eq!(route.limits, limits);
        assert!(route.unsupported.unwrap().contains("MCP"));
        object["spec"]["routing"] = json!({ "routePolicy": "Oneshot" });
        assert_eq!(read(&object).unsupported, None);
        object["spec"]["requestHandling"]["backend"] = json!({ "tlsPolicy": { "insecureSkipVerify": true } });
        assert!(read(&object).unsupported.unwrap().contains("TLS"));
    }
}
