//! Which Task a request is for, by port, host and path: the rules of the Gateway API for HTTPRoutes. Pure; the table
//! changes by one gateway or one Task at a time.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::agentcube::request::RequestHandlingSpec;
use agentcube_api::agentcube::routing::{Protocol, RoutePolicy, RoutingSpec};
use agentcube_api::{GoDuration, Task};
use agentcube_instance::TaskId;
use kube::ResourceExt;

use crate::breaker::Breaker;
use crate::extract::{self, Extractors};
use crate::observe::{Counts, OfTask};
use crate::protocol::Spoken;

/// How long a connection to an instance may take when the Task does not say.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a client may pause in the middle of a request when the Task does not say.
const UPLOAD_IDLE: Duration = Duration::from_secs(60);

/// The longest prefix that a Task may have, in bytes: what the schema of `pathPrefix` allows.
const LONGEST_PREFIX: usize = 1024;

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
    pub(crate) fn fits(&self, host: &str) -> Option<Fit> {
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
pub(crate) enum Fit {
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
    /// What is spoken with it.
    pub spoken: Spoken,
    pub limits: Limits,
    /// Why it cannot be served here, although it is routed here.
    pub unsupported: Option<Arc<str>>,
    /// What is counted of it; none before it is in a table that counts.
    pub counts: Option<Arc<OfTask>>,
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
    /// Silence of a client that has not sent all of its request.
    pub upload_idle: Option<Duration>,
    /// How much an instance gets at once, and how long requests wait for their turn.
    pub breaker: Breaker,
    pub patience: Duration,
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
            spoken: Spoken::read(routing),
            limits: Limits::read(&task.spec.request_handling, routing),
            counts: None,
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

    /// Whether all of its paths are below its own namespace, where no Task of another can have any.
    fn is_at_home(&self) -> bool {
        let below = self.prefix.strip_prefix('/').and_then(|path| path.strip_prefix(&*self.task.namespace));
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// What this gateway does not do yet, in words for the Task's owner.
fn unsupported(task: &Task, session: &SessionRule) -> Option<Arc<str>> {
    if let SessionRule::BySession(extractors) = session
        && extractors.is_empty()
        && task.spec.routing.protocol == Protocol::Http
    {
        return Some("sessions of protocol HTTP need routing.sessionIdentifier.extractors".into());
    }
    let tls = task.spec.request_handling.backend.tls_policy.is_some();
    tls.then(|| "the built-in gateway does not yet speak TLS to instances: remove backend.tlsPolicy".into())
}

impl Limits {
    fn read(handling: &RequestHandlingSpec, routing: &RoutingSpec) -> Limits {
        let timeout = handling.timeout.as_ref();
        let http = timeout.and_then(|timeout| timeout.http.as_ref());
        // Zero is no limit.
        let limit = |duration: Option<GoDuration>| {
            duration.map(GoDuration::to_std).filter(|duration| !duration.is_zero())
        };
        let connect = timeout.and_then(|timeout| limit(timeout.tcp.as_ref()?.connect_timeout));
        let stream_idle = http.and_then(|http| http.stream_idle_timeout);
        Limits {
            connect: connect.unwrap_or(CONNECT_TIMEOUT),
            request: limit(http.and_then(|http| http.request)),
            stream_idle: limit(stream_idle),
            breaker: Breaker::read(
                handling.circuit_breaker.as_ref(),
                routing.route_policy == RoutePolicy::BySession,
            ),
            patience: routing.reserve_timeout.to_std(),
            upload_idle: if stream_idle.is_some() { limit(stream_idle) } else { Some(UPLOAD_IDLE) },
        }
    }
}

/// All gateways of this class and all Tasks.
#[derive(Debug, Default)]
pub struct Table {
    gateways: HashMap<GatewayId, Vec<Listener>>,
    by_task: HashMap<(Arc<str>, Arc<str>), Arc<Route>>,
    by_prefix: HashMap<Box<str>, Vec<Arc<Route>>>,
    /// Who listens on a port, and for which hosts.
    by_port: HashMap<u16, Vec<(GatewayId, HostPattern)>>,
    counts: Option<Arc<Counts>>,
}

impl Table {
    /// An empty table whose Tasks are counted.
    pub fn counted(counts: Arc<Counts>) -> Table {
        Table { counts: Some(counts), ..Table::default() }
    }

    /// Takes in a gateway's listeners, or that it is gone. Gives the ports that it has or had; nothing if all was
    /// known.
    pub fn set_gateway(
        &mut self,
        gateway: GatewayId,
        listeners: Option<Vec<Listener>>,
    ) -> Option<BTreeSet<u16>> {
        if self.gateways.get(&gateway) == listeners.as_ref() {
            return None;
        }
        let old = self.gateways.remove(&gateway).unwrap_or_default();
        for port in old.iter().map(|listener| listener.port) {
            if let Some(users) = self.by_port.get_mut(&port) {
                users.retain(|(user, _)| *user != gateway);
                if users.is_empty() {
                    self.by_port.remove(&port);
                }
            }
        }
        for listener in listeners.iter().flatten() {
            let users = self.by_port.entry(listener.port).or_default();
            users.push((gateway.clone(), listener.host.clone()));
        }
        let new = listeners.iter().flatten();
        let ports = old.iter().chain(new).map(|listener| listener.port).collect();
        if let Some(listeners) = listeners {
            self.gateways.insert(gateway, listeners);
        }
        Some(ports)
    }

    /// Takes in a Task as it is now.
    pub fn set_task(&mut self, mut route: Route) {
        let key = (route.task.namespace.clone(), route.task.name.clone());
        let old = self.take_out(&key.0, &key.1);
        let new = || self.counts.as_ref().map(|counts| counts.of(&key.0, &key.1));
        route.counts = old.and_then(|old| old.counts.clone()).or_else(new);
        let route = Arc::new(route);
        self.by_prefix.entry(route.prefix.clone()).or_default().push(route.clone());
        self.by_task.insert(key, route);
    }

    /// Takes in that a Task is gone.
    pub fn remove_task(&mut self, namespace: &str, name: &str) {
        let old = self.take_out(namespace, name);
        if let Some(counts) = old.and_then(|old| old.counts.clone()) {
            counts.forget();
        }
    }

    fn take_out(&mut self, namespace: &str, name: &str) -> Option<Arc<Route>> {
        let old = self.by_task.remove(&(namespace.into(), name.into()))?;
        if let Some(routes) = self.by_prefix.get_mut(&old.prefix) {
            routes.retain(|route| !Arc::ptr_eq(route, &old));
            if routes.is_empty() {
                self.by_prefix.remove(&old.prefix);
            }
        }
        Some(old)
    }

    /// The route of a Task.
    pub fn task(&self, namespace: &str, name: &str) -> Option<&Arc<Route>> {
        self.by_task.get(&(namespace.into(), name.into()))
    }

    /// Whether any Task names this gateway.
    pub fn has_task_on(&self, gateway: &GatewayId) -> bool {
        self.by_task.values().any(|route| route.gateways.contains(gateway))
    }

    /// The same, of a Task that is known otherwise.
    pub fn route_of(&self, task: &TaskId) -> Option<&Arc<Route>> {
        self.by_task.get(&(task.namespace.clone(), task.name.clone()))
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

    /// The gateways by which a request came to this route; several if they fit it equally well.
    pub fn entrances(&self, route: &Route, port: u16, host: &str) -> Vec<GatewayId> {
        let host = host_name(host);
        let best = self.fit(route, port, &host);
        let of = |gateway: &GatewayId| {
            let listeners = self.gateways.get(gateway).into_iter().flatten();
            let of_port = listeners.filter(|at| at.port == port && self.admits(at, route));
            of_port.filter_map(|at| route.fits(at, &host)).max()
        };
        route.gateways.iter().filter(|gateway| best.is_some() && of(gateway) == best).cloned().collect()
    }

    fn fit(&self, route: &Route, port: u16, host: &str) -> Option<Fit> {
        let listeners = route.gateways.iter().filter_map(|gateway| self.gateways.get(gateway)).flatten();
        let of_port = listeners.filter(|at| at.port == port && self.admits(at, route));
        of_port.filter_map(|at| route.fits(at, host)).max()
    }

    /// Whether a listener takes requests in for a Task. Where a request could be meant for gateways of several
    /// namespaces, each gets the paths below its own name: by a longer path or a closer host a Task would otherwise
    /// get the requests, and the sessions, of another's.
    pub fn admits(&self, listener: &Listener, route: &Route) -> bool {
        let mut users = self.by_port.get(&listener.port).into_iter().flatten();
        let foreign = |user: &GatewayId| user.namespace != route.task.namespace;
        route.is_at_home() || !users.any(|(user, host)| foreign(user) && host.meets(&listener.host))
    }
}

/// A host as requests have it: without its port and a final dot, in lower case.
pub(crate) fn host_name(host: &str) -> String {
    let without_port = match host.rsplit_once(':') {
        // What ends with a bracket is an IPv6 address without a port.
        Some((name, _)) if !host.ends_with(']') => name,
        _ => host,
    };
    without_port.trim_end_matches('.').to_ascii_lowercase()
}

/// The path and everything above it, cut at slashes; the root is empty. What is longer than any prefix can be is left
/// out: each is hashed as a whole, and a path may be nothing but slashes.
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    let whole = Some(path.strip_suffix('/').unwrap_or(path));
    let all = std::iter::successors(whole, |path| path.rfind('/').map(|slash| &path[..slash]));
    all.skip_while(|prefix| prefix.len() > LONGEST_PREFIX)
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
        for route in [
            task("a", "chat", json!({})),
            task("a", "deep", json!({ "pathPrefix": "/a/chat/deep/" })),
            task("a", "twin", json!({ "pathPrefix": "/a/chat" })),
            task("a", "root", json!({ "pathPrefix": "/", "hostnames": ["root.example.com"] })),
            task("a", "wild", json!({ "pathPrefix": "/x", "hostnames": ["*.example.com"] })),
            task("a", "lost", json!({ "gatewayRefs": ["nowhere"], "pathPrefix": "/lost" })),
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
        assert_eq!(find(&table, "/a/chat").as_deref(), Some("a/twin"));
        assert_eq!(find(&table, "/new").as_deref(), Some("a/chat"));
        table.remove_task("a", "chat");
        assert_eq!(find(&table, "/new"), None);
        assert_eq!(table.set_gateway(gateway("a", "default"), None), Some(BTreeSet::from([80, 81])));
        assert_eq!(table.set_gateway(gateway("a", "default"), None), None);
        assert_eq!(find(&table, "/a/chat"), None);
        assert!(table.by_port.is_empty());
        table.remove_task("never", "there");
        assert!(!table.by_prefix.contains_key("/new"));
    }

    #[test]
    fn namespaces_that_share_a_port_keep_to_their_own_paths() {
        let mut table = table();
        let find = |table: &Table, host: &str, path: &str| {
            table.find(80, host, path).map(|route| route.task.to_string())
        };
        for route in [
            task("b", "chat", json!({})),
            task("b", "longer", json!({ "pathPrefix": "/a/chat/longer" })),
            task("b", "closer", json!({ "pathPrefix": "/a", "hostnames": ["localhost"] })),
            task("b", "wide", json!({ "pathPrefix": "/" })),
        ] {
            table.set_task(route);
        }
        // While b has no gateway on this port, all of a is served.
        assert_eq!(find(&table, "root.example.com", "/x").as_deref(), Some("a/root"));
        table.set_gateway(gateway("b", "default"), Some(vec![listener(80, "")]));
        for (host, path, expected) in [
            ("localhost", "/a/chat/longer", Some("a/chat")),
            ("localhost", "/a/chat", Some("a/chat")),
            ("localhost", "/b/chat", Some("b/chat")),
            ("localhost", "/other", None),
            ("root.example.com", "/x", None),
            ("y.example.com", "/x/1", None),
        ] {
            assert_eq!(find(&table, host, path).as_deref(), expected, "{host} {path}");
        }
        // Hosts that only one of them listens for are that one's as a whole.
        table.set_gateway(gateway("a", "default"), Some(vec![listener(80, "a.example.com")]));
        table.set_gateway(gateway("b", "default"), Some(vec![listener(80, "b.example.com")]));
        assert_eq!(find(&table, "b.example.com", "/a/chat/longer").as_deref(), Some("b/longer"));
        assert_eq!(find(&table, "b.example.com", "/other").as_deref(), Some("b/wide"));
        assert_eq!(find(&table, "a.example.com", "/a/chat/longer").as_deref(), Some("a/chat"));
    }

    #[test]
    fn only_prefixes_that_a_task_can_have_are_looked_up() {
        let slashes = "/".repeat(60_000);
        assert_eq!(prefixes(&slashes).map(str::len).max(), Some(LONGEST_PREFIX));
        let long = format!("/{}", "x".repeat(LONGEST_PREFIX - 1));
        let mut table = table();
        table.set_task(task("a", "long", json!({ "pathPrefix": long })));
        let found =
            table.find(80, "localhost", &format!("{long}{slashes}")).expect("the longest prefix is found");
        assert_eq!(&*found.task.name, "long");
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
            breaker: Breaker::read(None, false),
            patience: Duration::from_secs(30),
            connect: Duration::from_secs(2),
            request: None,
            stream_idle: Some(Duration::from_secs(60)),
            upload_idle: Some(Duration::from_secs(60)),
        };
        assert_eq!(route.limits, limits);
        for (given, idle, upload) in [(json!("0s"), None, None), (json!(null), None, Some(UPLOAD_IDLE))] {
            let mut object = object.clone();
            object["spec"]["requestHandling"]["timeout"]["http"]["streamIdleTimeout"] = given;
            let limits = read(&object).limits;
            assert_eq!((limits.stream_idle, limits.upload_idle), (idle, upload));
        }
        assert_eq!(route.unsupported, None);
        let param = Some(http::HeaderName::from_static("mcp-param-room"));
        object["spec"]["routing"]["mcp"] = json!({ "sessionParam": "Room", "sessionIds": "Sealed" });
        assert_eq!(read(&object).spoken, Spoken::Mcp(crate::protocol::mcp::Rule { param, sealed: true }));
        object["spec"]["routing"]["protocol"] = json!("HTTP");
        assert!(read(&object).unsupported.unwrap().contains("extractors"));
        object["spec"]["routing"] = json!({ "routePolicy": "Oneshot" });
        assert_eq!(read(&object).unsupported, None);
        object["spec"]["requestHandling"]["backend"] = json!({ "tlsPolicy": { "insecureSkipVerify": true } });
        assert!(read(&object).unsupported.unwrap().contains("TLS"));
    }
}
