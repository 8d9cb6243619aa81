//! What the gateway says of Gateways, their listeners and HTTPRoutes, in the words of the Gateway API. Pure: from what
//! is known to the status that is to be written.

use agentcube_api::conditions::gateway::{LIMITS_IN_FORCE, SECURITY_IN_FORCE};
use agentcube_api::conditions::{self, FALSE, TRUE, Update};
use gateway_api::gateways::{
    Gateway, GatewayListeners, GatewayStatus, GatewayStatusAddresses, GatewayStatusListeners,
    GatewayStatusListenersSupportedKinds,
};
use gateway_api::httproutes::{
    HttpRoute, HttpRouteParentRefs, HttpRouteStatus, HttpRouteStatusParents, HttpRouteStatusParentsParentRef,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::guard::{self, Guard};
use crate::route::{GatewayId, HostPattern, Listener, Route, Table};
use crate::tls::Unresolved;

/// API group of Gateways and HTTPRoutes.
pub(crate) const GROUP: &str = "gateway.networking.k8s.io";

const ACCEPTED: &str = "Accepted";
const PROGRAMMED: &str = "Programmed";
const RESOLVED: &str = "ResolvedRefs";

/// How a listener of a Gateway fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Serving {
    Yes,
    /// What it speaks is not spoken here.
    Unsupported(String),
    /// Its port cannot be had.
    Unavailable(String),
    /// It has no certificates.
    Unresolved(Unresolved),
}

/// Whether a listener can be served at all, before its port is asked for.
pub(crate) fn judge(listener: &GatewayListeners) -> Serving {
    match listener.protocol.as_str() {
        "HTTP" | "HTTPS" => Serving::Yes,
        other => Serving::Unsupported(format!("the built-in gateway serves HTTP and HTTPS, not {other}")),
    }
}

/// A listener as requests are routed by it.
pub(crate) fn routed(listener: &GatewayListeners) -> Option<Listener> {
    let port = u16::try_from(listener.port).ok()?;
    Some(Listener { port, host: HostPattern::read(listener.hostname.as_deref()) })
}

/// What is true of one aspect, and why.
struct Verdict {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Verdict {
    fn yes(reason: &'static str, message: &str) -> Verdict {
        Verdict { status: TRUE, reason, message: message.into() }
    }

    fn no(reason: &'static str, message: impl Into<String>) -> Verdict {
        Verdict { status: FALSE, reason, message: message.into() }
    }

    fn put(self, type_: &str, generation: Option<i64>, conditions: &mut Vec<Condition>, now: &Time) {
        let Verdict { status, reason, message } = self;
        let update = Update { type_, status, reason, message, observed_generation: generation };
        conditions::set(conditions, update, now);
    }
}

/// The status of a Gateway, given how each of its listeners fares and how many routes it has, and why nobody is let in,
/// if that is so.
pub(crate) fn gateway(
    gateway: &Gateway,
    listeners: &[(Serving, i32)],
    lost: Option<&str>,
    address: &str,
    now: &Time,
) -> GatewayStatus {
    let generation = gateway.metadata.generation;
    let old = gateway.status.clone().unwrap_or_default();
    let mut conditions = old.conditions.unwrap_or_default();
    Verdict::yes("Accepted", "served by the built-in gateway").put(
        ACCEPTED,
        generation,
        &mut conditions,
        now,
    );
    let troubles: Vec<String> = gateway
        .spec
        .listeners
        .iter()
        .zip(listeners)
        .filter_map(|(listener, (serving, _))| match serving {
            Serving::Yes => None,
            Serving::Unsupported(why)
            | Serving::Unavailable(why)
            | Serving::Unresolved(Unresolved::Invalid(why) | Unresolved::Forbidden(why)) => {
                Some(format!("listener {}: {why}", listener.name))
            }
        })
        .collect();
    let programmed = match (lost, troubles.as_slice()) {
        (Some(why), _) => Verdict::no("Invalid", format!("{why}: nobody is let in")),
        (None, []) => Verdict::yes("Programmed", "all listeners are served"),
        (None, some) if some.len() < listeners.len() => Verdict::yes("Programmed", &some.join("; ")),
        (None, all) => Verdict::no("Invalid", all.join("; ")),
    };
    programmed.put(PROGRAMMED, generation, &mut conditions, now);
    let before = old.listeners.unwrap_or_default();
    let each = gateway.spec.listeners.iter().zip(listeners).map(|(listener, (serving, routes))| {
        let old = before.iter().find(|old| old.name == listener.name);
        let conditions = old.map(|old| old.conditions.clone()).unwrap_or_default();
        listener_status(listener, serving, *routes, conditions, generation, now)
    });
    let type_ = match address.parse::<std::net::IpAddr>() {
        Ok(_) => "IPAddress",
        Err(_) => "Hostname",
    };
    GatewayStatus {
        addresses: Some(vec![GatewayStatusAddresses { r#type: Some(type_.into()), value: address.into() }]),
        conditions: Some(conditions),
        listeners: Some(each.collect()),
        ..old
    }
}

fn listener_status(
    listener: &GatewayListeners,
    serving: &Serving,
    attached_routes: i32,
    mut conditions: Vec<Condition>,
    generation: Option<i64>,
    now: &Time,
) -> GatewayStatusListeners {
    let (accepted, programmed) = match serving {
        Serving::Yes => (
            Verdict::yes("Accepted", "the listener is valid"),
            Verdict::yes("Programmed", "requests are taken in"),
        ),
        Serving::Unsupported(why) => {
            (Verdict::no("UnsupportedProtocol", why), Verdict::no("Invalid", "the listener is not accepted"))
        }
        Serving::Unavailable(why) => {
            (Verdict::no("PortUnavailable", why), Verdict::no("Invalid", "the listener is not accepted"))
        }
        Serving::Unresolved(_) => (
            Verdict::yes("Accepted", "the listener is valid"),
            Verdict::no("Invalid", "there are no certificates for it"),
        ),
    };
    let resolved = match serving {
        Serving::Unresolved(Unresolved::Invalid(why)) => Verdict::no("InvalidCertificateRef", why),
        Serving::Unresolved(Unresolved::Forbidden(why)) => Verdict::no("RefNotPermitted", why),
        _ => Verdict::yes("ResolvedRefs", "all that it names is there"),
    };
    accepted.put(ACCEPTED, generation, &mut conditions, now);
    programmed.put(PROGRAMMED, generation, &mut conditions, now);
    resolved.put(RESOLVED, generation, &mut conditions, now);
    let kind = GatewayStatusListenersSupportedKinds { group: Some(GROUP.into()), kind: "HTTPRoute".into() };
    GatewayStatusListeners {
        attached_routes,
        conditions,
        name: listener.name.clone(),
        supported_kinds: Some(vec![kind]),
    }
}

/// The Gateway that a reference of a route names; none if it names something else.
pub(crate) fn parent(reference: &HttpRouteParentRefs, namespace: &str) -> Option<GatewayId> {
    let group = reference.group.as_deref().unwrap_or(GROUP);
    let kind = reference.kind.as_deref().unwrap_or("Gateway");
    (group == GROUP && kind == "Gateway").then(|| GatewayId {
        namespace: reference.namespace.as_deref().unwrap_or(namespace).into(),
        name: reference.name.as_str().into(),
    })
}

/// Whether a route is attached to a listener, once it is accepted.
pub(crate) fn attaches(
    route: &HttpRoute,
    reference: &HttpRouteParentRefs,
    listener: &GatewayListeners,
) -> bool {
    let section = reference.section_name.as_ref().is_none_or(|name| *name == listener.name);
    let port = reference.port.is_none_or(|port| port == listener.port);
    let of_listener = HostPattern::read(listener.hostname.as_deref());
    let hosts = route.spec.hostnames.as_deref().unwrap_or_default();
    let meets = hosts.iter().any(|host| HostPattern::read(Some(host)).meets(&of_listener));
    section && port && (hosts.is_empty() || meets)
}

/// What is known of a route when its status is made.
pub(crate) struct Known<'a> {
    /// The Task that the route belongs to, as it is served.
    pub(crate) task: Option<&'a Route>,
    /// The Gateways of ours that it names.
    pub(crate) gateways: &'a [(HttpRouteParentRefs, std::sync::Arc<Gateway>)],
    pub(crate) controller: &'a str,
    /// Which listeners take requests in for it.
    pub(crate) table: &'a Table,
}

/// The status of an HTTPRoute: ours for the Gateways of ours, and everybody else's as it was.
pub(crate) fn route(route: &HttpRoute, known: &Known<'_>, now: &Time) -> HttpRouteStatus {
    let before = route.status.as_ref().map(|status| status.parents.clone()).unwrap_or_default();
    let others = before.iter().filter(|parent| parent.controller_name != known.controller);
    let mut parents: Vec<HttpRouteStatusParents> = others.cloned().collect();
    for (reference, gateway) in known.gateways {
        let parent_ref = said(reference);
        let old =
            before.iter().find(|old| old.controller_name == known.controller && old.parent_ref == parent_ref);
        let mut conditions = old.map(|old| old.conditions.clone()).unwrap_or_default();
        let generation = route.metadata.generation;
        accepted(route, reference, gateway, known).put(ACCEPTED, generation, &mut conditions, now);
        Verdict::yes("ResolvedRefs", "instances are found by reservation").put(
            RESOLVED,
            generation,
            &mut conditions,
            now,
        );
        let controller_name = known.controller.to_owned();
        parents.push(HttpRouteStatusParents { conditions, controller_name, parent_ref });
    }
    HttpRouteStatus { parents }
}

fn accepted(
    route: &HttpRoute,
    reference: &HttpRouteParentRefs,
    gateway: &Gateway,
    known: &Known<'_>,
) -> Verdict {
    if gateway.metadata.namespace != route.metadata.namespace {
        return Verdict::no("NotAllowedByListeners", "a Task is served by gateways of its own namespace");
    }
    let Some(task) = known.task else {
        let message = "the built-in gateway serves Tasks: this HTTPRoute belongs to none";
        return Verdict::no("UnsupportedValue", message);
    };
    if let Some(why) = &task.unsupported {
        return Verdict::no("UnsupportedValue", &**why);
    }
    let named = gateway.spec.listeners.iter().any(|listener| {
        let section = reference.section_name.as_ref().is_none_or(|name| *name == listener.name);
        section && reference.port.is_none_or(|port| port == listener.port)
    });
    if !named {
        return Verdict::no("NoMatchingParent", "the Gateway has no such listener");
    }
    let mut attached =
        gateway.spec.listeners.iter().filter(|listener| attaches(route, reference, listener)).peekable();
    let Some(first) = attached.peek().map(|listener| listener.port) else {
        return Verdict::no("NoMatchingListenerHostname", "no listener answers for any of its hostnames");
    };
    if attached.any(|listener| admitted(listener, task, known.table)) {
        return Verdict::yes("Accepted", "requests are routed to the Task");
    }
    let namespace = &task.task.namespace;
    let message = format!(
        "Gateways of other namespaces listen on port {first} for the same hosts, so Tasks of this one are served \
         below /{namespace}/ there: begin routing.pathPrefix with that, or leave it out; or give the listener a \
         hostname, or a port, that only this namespace uses"
    );
    Verdict::no("NotAllowedByListeners", message)
}

/// Whether a listener takes requests in for a Task, whoever else uses its port.
pub(crate) fn admitted(listener: &GatewayListeners, task: &Route, table: &Table) -> bool {
    routed(listener).is_some_and(|listener| table.admits(&listener, task))
}

/// A reference as a status repeats it.
fn said(reference: &HttpRouteParentRefs) -> HttpRouteStatusParentsParentRef {
    HttpRouteStatusParentsParentRef {
        group: reference.group.clone(),
        kind: reference.kind.clone(),
        name: reference.name.clone(),
        namespace: reference.namespace.clone(),
        port: reference.port,
        section_name: reference.section_name.clone(),
    }
}

/// Puts the conditions of a Gateway that speak of its TaskGateway's policy, of this generation of it.
pub(crate) fn policy(conditions: &mut Vec<Condition>, guard: &Guard, generation: Option<i64>, now: &Time) {
    for (type_, said) in [(SECURITY_IN_FORCE, guard.security()), (LIMITS_IN_FORCE, guard.rate_limits())] {
        let verdict = match said {
            Some(guard::Verdict::InForce(message)) => Verdict::yes("InForce", &message),
            Some(guard::Verdict::Unsupported(why)) => Verdict::no("Unsupported", why),
            Some(guard::Verdict::Unknown(why)) => Verdict::no("PolicyUnknown", why),
            Some(guard::Verdict::WithoutKeys(why)) => Verdict::no("KeysUnavailable", why),
            None => {
                conditions::remove(conditions, type_);
                continue;
            }
        };
        verdict.put(type_, generation, conditions, now);
    }
}

/// Puts the condition of a class that is ours.
pub(crate) fn class(conditions: &mut Vec<Condition>, generation: Option<i64>, now: &Time) {
    Verdict::yes("Accepted", "Gateways of this class are served").put(ACCEPTED, generation, conditions, now);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_task_outside_of_its_namespaces_paths_is_told_so_on_a_shared_port() {
        let metadata = json!({ "namespace": "b", "name": "chat", "uid": "1" });
        let task = Route::read(
            &serde_json::from_value(json!({
                "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": metadata,
                "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} },
                    "routing": { "routePolicy": "Oneshot", "pathPrefix": "/a/chat" } },
            }))
            .unwrap(),
        )
        .unwrap();
        let of_task: HttpRoute = serde_json::from_value(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": metadata,
            "spec": { "parentRefs": [{ "name": "default" }] },
        }))
        .unwrap();
        let gateway: Gateway = serde_json::from_value(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": { "namespace": "b", "name": "default" },
            "spec": { "gatewayClassName": "agentcube",
                "listeners": [{ "name": "http", "port": 80, "protocol": "HTTP" }] },
        }))
        .unwrap();
        let reference = of_task.spec.parent_refs.as_ref().unwrap()[0].clone();
        let gateways = [(reference, std::sync::Arc::new(gateway))];
        let said = |table: &Table| {
            let known = Known { task: Some(&task), gateways: &gateways, controller: "us", table };
            let now = Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
            let status = route(&of_task, &known, &now);
            let accepted = status.parents[0].conditions.iter().find(|it| it.type_ == ACCEPTED).unwrap();
            (accepted.reason.clone(), accepted.message.clone())
        };
        let mut table = Table::default();
        let id = |namespace: &str| GatewayId { namespace: namespace.into(), name: "default".into() };
        let any = || Some(vec![Listener { port: 80, host: HostPattern::Any }]);
        table.set_gateway(id("b"), any());
        assert_eq!(said(&table).0, "Accepted");
        table.set_gateway(id("a"), any());
        let (reason, message) = said(&table);
        assert_eq!(reason, "NotAllowedByListeners");
        assert!(message.contains("/b/") && message.contains("port 80"), "{message}");
    }
}
