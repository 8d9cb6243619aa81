//! What is reported of a Task. Pure. Every way through it says which generation it is about, the failing ones too.

use agentcube_api::agentcube::TaskStatus;
use agentcube_api::agentcube::gateway::{ListenerProtocol, ListenerSpec, RouteParentStatus};
use agentcube_api::agentcube::task::{RouteStatusSummary, TaskPhase};
use agentcube_api::conditions::task::{
    EXT_PROC_READY, REASON_BUNDLE_BROKEN, REASON_CREATION_FAILED, REASON_EXT_PROC_CONFIGURED,
    REASON_GATEWAY_MISSING, REASON_INITIALIZE_FAILED, REASON_INSTANCES_FAILING, REASON_NOT_ACCEPTED,
    REASON_NOT_READY, REASON_PREPARING, REASON_READY, REASON_ROUTE_CREATED, REASON_SPEC_INITIALIZED,
    REASON_SPEC_INVALID, REASON_UNSUPPORTED, ROUTE_READY, SPEC_READY,
};
use agentcube_api::conditions::{self, READY};
use agentcube_instance::provider::{Repair, Repaired, SpecError, SpecStatus};
use gateway_api::httproutes::HttpRoute;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::observe::{Answers, Observed};
use super::plan::{Revision, Serve};
use super::route;
use crate::child::{self, Ensured};
use crate::envoy::{PolicyStatus, Verdict, extension, traffic, verdict};
use crate::options::Options;
use crate::said::{Said, no, not_yet, yes};

/// More than this a gateway is not quoted with.
const MOST_PARENTS: usize = 32;

/// How the writes went.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) spec: Result<Prepared, SpecError>,
    pub(crate) route: Result<Ensured, child::Error>,
    /// What became of the other objects of the route, where it was not well.
    pub(crate) others: Vec<child::Error>,
}

/// A revision that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prepared {
    pub(crate) repairs: Vec<Repair>,
    pub(crate) standing: SpecStatus,
}

/// The status.
pub(crate) fn status(
    observed: &Observed,
    serve: &Serve,
    outcome: &Outcome,
    answers: &Answers,
    options: &Options,
    now: &Time,
) -> TaskStatus {
    let task = &*observed.task;
    let generation = task.metadata.generation.unwrap_or(1);
    let mut status = task.status.clone().unwrap_or_default();
    let said = [
        (SPEC_READY, spec(serve, outcome, status.spec_id.as_deref())),
        (ROUTE_READY, route(observed, serve, outcome, answers, options)),
        (EXT_PROC_READY, ext_proc(observed, serve, answers)),
    ];
    let ready = ready(&said);
    let invalid = said[0].1.reason == REASON_SPEC_INVALID;
    status.phase = Some(match (invalid, ready.holds) {
        (true, _) => TaskPhase::Failed,
        (_, true) => TaskPhase::Serving,
        (_, false) => TaskPhase::Deploying,
    });
    for (type_, said) in said.into_iter().chain([(READY, ready)]) {
        said.set(&mut status.conditions, type_, generation, now);
    }
    // What is not prepared may turn out to be broken: until it is, the revision that works stays the current one.
    if let (Ok(revision), Ok(prepared)) = (&serve.revision, &outcome.spec)
        && !prepared.standing.preparing
    {
        status.spec_id = Some(revision.spec.to_string());
        status.template_hash = Some(revision.hash.clone());
    }
    let current = status.spec_id.clone();
    let draining = serve.draining.iter().map(ToString::to_string);
    // A next revision that could not be made leaves the current one current.
    status.draining_spec_ids = draining.filter(|spec| Some(spec) != current.as_ref()).collect();
    status.instances = Some(observed.instances);
    status.route_status = answers.route.as_deref().map(parents);
    status.address = address(observed);
    status.observed_generation = Some(generation);
    status
}

/// What is left to be said of a Task that is being deleted and cannot go yet.
pub(crate) fn ending(mut status: TaskStatus, generation: i64, why: &str, now: &Time) -> TaskStatus {
    let said = no(REASON_NOT_READY, format!("is being deleted: {why}"));
    said.set(&mut status.conditions, READY, generation, now);
    status.observed_generation = Some(generation);
    status
}

fn ready(said: &[(&'static str, Said)]) -> Said {
    let failing: Vec<String> = said
        .iter()
        .filter(|(_, said)| !said.holds)
        .map(|(type_, said)| format!("{type_}: {}", said.message))
        .collect();
    if failing.is_empty() {
        // Trouble that does not stop the Task is still worth a word.
        let trouble = said.iter().find(|(type_, _)| *type_ == SPEC_READY).map(|(_, said)| &said.message);
        let trouble =
            trouble.filter(|message| message.contains(TROUBLE)).map(|message| format!(": {message}"));
        return yes(REASON_READY, format!("All components ready{}", trouble.unwrap_or_default()));
    }
    no(REASON_NOT_READY, failing.join("; "))
}

const TROUBLE: &str = "some instances do not come up";

/// Of a revision that is not prepared: whether that takes time, or cannot be; and what serves meanwhile.
fn preparing(revision: &Revision, standing: &SpecStatus, current: Option<&str>) -> Said {
    let spec = &revision.spec;
    let other = current.filter(|current| **current != *spec.0);
    let meanwhile =
        other.map(|current| format!(" (revision {current} serves meanwhile)")).unwrap_or_default();
    match &standing.trouble {
        Some(trouble) => {
            no(REASON_BUNDLE_BROKEN, format!("revision {spec} is not ready{meanwhile}: {trouble}"))
        }
        None => no(REASON_PREPARING, format!("revision {spec} is being prepared{meanwhile}")),
    }
}

fn spec(serve: &Serve, outcome: &Outcome, current: Option<&str>) -> Said {
    let (revision, prepared) = match (&serve.revision, &outcome.spec) {
        (Err(error), _) | (_, Err(error)) => return spec_error(error),
        (Ok(revision), Ok(prepared)) => (revision, prepared),
    };
    let standing = &prepared.standing;
    if standing.preparing {
        return preparing(revision, standing, current);
    }
    match &standing.trouble {
        Some(trouble) if standing.available == 0 => {
            return no(
                REASON_INSTANCES_FAILING,
                format!("no instance of {} comes up: {trouble}", revision.spec),
            );
        }
        Some(trouble) => {
            let message = format!("revision {} is ready, but {TROUBLE}: {trouble}", revision.spec);
            return yes(REASON_SPEC_INITIALIZED, message);
        }
        None => {}
    }
    let repairs = prepared.repairs.iter().map(|repair| match repair.what {
        Repaired::Recreated => format!("{} {} was recreated after deletion", repair.kind, repair.name),
        Repaired::Restored => format!("{} {} was restored after a change", repair.kind, repair.name),
    });
    let repairs: Vec<String> = repairs.collect();
    let repaired = Some(repairs.join("; ")).filter(|_| !repairs.is_empty());
    yes(REASON_SPEC_INITIALIZED, format!("revision {} is ready", revision.spec)).after(repaired)
}

fn spec_error(error: &SpecError) -> Said {
    match error {
        SpecError::Invalid(message) => no(REASON_SPEC_INVALID, message.clone()),
        SpecError::Missing { reason, message } => no(reason, message.clone()),
        SpecError::Blocked(message) => no(REASON_INITIALIZE_FAILED, message.clone()),
        SpecError::Transient(message) => {
            no(REASON_INITIALIZE_FAILED, format!("will be tried again: {message}"))
        }
    }
}

fn route(
    observed: &Observed,
    serve: &Serve,
    outcome: &Outcome,
    answers: &Answers,
    options: &Options,
) -> Said {
    let task = &observed.task;
    if let Some(said) = gateways_missing(observed) {
        return said;
    }
    let errors: Vec<&child::Error> =
        outcome.route.as_ref().err().into_iter().chain(&outcome.others).collect();
    if !errors.is_empty() {
        let errors: Vec<String> = errors.into_iter().map(ToString::to_string).collect();
        return no(REASON_CREATION_FAILED, errors.join("; "));
    }
    if let Some(why) = &serve.unsupported {
        return no(REASON_UNSUPPORTED, why.clone());
    }
    let name = task.name_any();
    let Some(route) = answers.route.as_deref().filter(|route| route.metadata.deletion_timestamp.is_none())
    else {
        return no(
            REASON_CREATION_FAILED,
            format!("HTTPRoute {name} is being deleted; it will be made again"),
        );
    };
    let repaired = match outcome.route {
        Ok(Ensured::Recreated) => Some(format!("HTTPRoute {name} was recreated after deletion")),
        Ok(Ensured::Restored) => Some(format!("HTTPRoute {name} was restored after a change")),
        _ => None,
    };
    for gateway in &task.spec.routing.gateway_refs {
        match parent_verdict(route, gateway) {
            Verdict::Taken => {}
            Verdict::Refused(why) => {
                return no(REASON_NOT_ACCEPTED, format!("Gateway {gateway} refuses HTTPRoute {name}: {why}"));
            }
            Verdict::Unknown => {
                let message = format!("Gateway {gateway} has not accepted HTTPRoute {name} yet");
                return not_yet(REASON_NOT_ACCEPTED, message).after(repaired);
            }
        }
    }
    let picking = serve.label.as_ref().and(options.envoy.as_ref()).map(|envoy| envoy.picking);
    let left_out = picking.map(|picking| traffic::not_applied(task, picking)).unwrap_or_default();
    let note = match left_out.as_slice() {
        [] => String::new(),
        names => format!("; Envoy does not apply requestHandling.{}", names.join(", ")),
    };
    yes(REASON_ROUTE_CREATED, format!("HTTPRoute {name} is accepted{note}")).after(repaired)
}

fn gateways_missing(observed: &Observed) -> Option<Said> {
    let missing = observed.gateways.iter().filter(|named| named.gateway.is_none());
    let missing: Vec<&str> = missing.map(|named| named.name.as_str()).collect();
    let namespace = observed.task.namespace().unwrap_or_default();
    (!missing.is_empty()).then(|| {
        let message = format!(
            "there is no TaskGateway {} in namespace {namespace}: create it, or change routing.gatewayRefs",
            missing.join(", ")
        );
        no(REASON_GATEWAY_MISSING, message)
    })
}

fn parent_verdict(route: &HttpRoute, gateway: &str) -> Verdict {
    let parents = route.status.iter().flat_map(|status| &status.parents);
    let mut of_gateway = parents.filter(|parent| parent.parent_ref.name == gateway).peekable();
    if of_gateway.peek().is_none() {
        return Verdict::Unknown;
    }
    let generation = route.metadata.generation.unwrap_or(1);
    let mut sum = Verdict::Taken;
    for parent in of_gateway {
        let resolved = conditions::find(&parent.conditions, "ResolvedRefs").map(|_| "ResolvedRefs");
        let wanted: Vec<&str> = ["Accepted"].into_iter().chain(resolved).collect();
        match verdict(&parent.conditions, &wanted, generation) {
            Verdict::Taken => {}
            other => sum = other,
        }
    }
    sum
}

fn ext_proc(observed: &Observed, serve: &Serve, answers: &Answers) -> Said {
    if observed.gateways.iter().all(|named| named.gateway.is_none()) {
        return gateways_missing(observed)
            .unwrap_or_else(|| no(REASON_GATEWAY_MISSING, "there is no gateway"));
    }
    let Some(label) = &serve.label else {
        if let Some(why) = &serve.unsupported {
            return no(REASON_UNSUPPORTED, why.clone());
        }
        return yes(REASON_EXT_PROC_CONFIGURED, "the built-in gateway needs no external processor");
    };
    let Some(policy) = &answers.policy else {
        let message = format!("TaskGateway {label} has no EnvoyExtensionPolicy yet");
        return no(REASON_NOT_ACCEPTED, message);
    };
    let name = policy.name_any();
    let longest = observed.task.spec.routing.reserve_timeout.to_std();
    if extension::limit_of(&policy.spec.0).is_none_or(|limit| limit <= longest) {
        let message =
            format!("EnvoyExtensionPolicy {name} does not wait as long as routing.reserveTimeout allows yet");
        return no(REASON_NOT_ACCEPTED, message);
    }
    match PolicyStatus::verdict(policy.status.as_ref(), policy.metadata.generation.unwrap_or(1)) {
        Verdict::Taken => {
            yes(REASON_EXT_PROC_CONFIGURED, format!("EnvoyExtensionPolicy {name} selects the route"))
        }
        Verdict::Refused(why) => {
            no(REASON_NOT_ACCEPTED, format!("EnvoyExtensionPolicy {name} is refused: {why}"))
        }
        Verdict::Unknown => {
            no(REASON_NOT_ACCEPTED, format!("EnvoyExtensionPolicy {name} has not been accepted yet"))
        }
    }
}

/// What the gateways say of the route, as they say it.
fn parents(route: &HttpRoute) -> RouteStatusSummary {
    let parents = route.status.iter().flat_map(|status| &status.parents).take(MOST_PARENTS);
    let copied = parents.filter_map(|parent| {
        let value = serde_json::to_value(parent).ok()?;
        serde_json::from_value::<RouteParentStatus>(value).ok()
    });
    RouteStatusSummary { parent_statuses: copied.collect() }
}

/// Where the Task is reached: through the first of its gateways that has an address.
fn address(observed: &Observed) -> Option<String> {
    let gateways = observed.gateways.iter().filter_map(|named| named.gateway.as_ref());
    for gateway in gateways {
        let Some(address) = gateway.status.as_ref().and_then(|status| status.addresses.first()) else {
            continue;
        };
        // The best for a client: encrypted if there is a choice.
        let listeners = &gateway.spec.listeners;
        let encrypted = listeners.iter().find(|listener| listener.protocol == ListenerProtocol::Https);
        let listener = encrypted.or(listeners.first())?;
        let names = observed.task.spec.routing.hostnames.iter().chain(&listener.hostname);
        let name = names.into_iter().find(|name| !name.starts_with("*."));
        let host = name.unwrap_or(&address.value);
        return Some(url(listener, host, &route::prefix(&observed.task)));
    }
    None
}

fn url(listener: &ListenerSpec, host: &str, prefix: &str) -> String {
    let (scheme, usual) = match listener.protocol {
        ListenerProtocol::Https => ("https", 443),
        ListenerProtocol::Http | ListenerProtocol::WebSocket => ("http", 80),
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let port = if listener.port == usual { String::new() } else { format!(":{}", listener.port) };
    format!("{scheme}://{host}{port}{prefix}")
}
