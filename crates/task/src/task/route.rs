//! The HTTPRoute of a Task, and where Envoy picks by header, the Service that its rules lead to. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use agentcube_api::{Task, labels};
use agentcube_instance::revision;
use gateway_api::httproutes::{
    HttpRoute, HttpRouteParentRefs, HttpRouteRules, HttpRouteRulesBackendRefs, HttpRouteRulesFilters,
    HttpRouteRulesFiltersResponseHeaderModifier, HttpRouteRulesFiltersType, HttpRouteRulesFiltersUrlRewrite,
    HttpRouteRulesFiltersUrlRewritePath, HttpRouteRulesFiltersUrlRewritePathType, HttpRouteRulesMatches,
    HttpRouteRulesMatchesHeaders, HttpRouteRulesMatchesHeadersType, HttpRouteRulesMatchesPath,
    HttpRouteRulesMatchesPathType, HttpRouteRulesTimeouts, HttpRouteSpec,
};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use kube::core::ObjectMeta;
use serde_json::json;

use crate::child::{MANAGED_BY, MANAGED_BY_US};
use crate::duration;
use crate::envoy::client::DESTINATION;
use crate::envoy::patch::RULE;
use crate::options::{Envoy, Picking, ServicePort};
use crate::task::identity;

/// Where a request leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination<'a> {
    /// Gateways of ours only, which look for themselves.
    BuiltIn,
    /// At least one gateway is Envoy's; the label is the name of the first of those.
    Envoy { envoy: &'a Envoy, label: String },
}

/// The route.
pub(crate) fn route(task: &Task, destination: &Destination<'_>) -> HttpRoute {
    let mut metadata = metadata(task, task.name_any());
    if let (Some(labels), Destination::Envoy { label, .. }) = (&mut metadata.labels, destination) {
        labels.insert(labels::GATEWAY.into(), label.clone());
    }
    let hostnames = Some(task.spec.routing.hostnames.clone()).filter(|hostnames| !hostnames.is_empty());
    let parents = task.spec.routing.gateway_refs.iter().map(|name| HttpRouteParentRefs {
        group: Some("gateway.networking.k8s.io".into()),
        kind: Some("Gateway".into()),
        name: name.clone(),
        ..HttpRouteParentRefs::default()
    });
    let spec = HttpRouteSpec {
        hostnames,
        parent_refs: Some(parents.collect()),
        rules: Some(rules(task, destination)),
    };
    HttpRoute { metadata, spec, status: None }
}

/// The rules. The name of each begins with [`RULE`], by which Envoy's routes are known to be ours.
fn rules(task: &Task, destination: &Destination<'_>) -> Vec<HttpRouteRules> {
    let limit = request_limit(task).filter(|limit| !limit.is_zero());
    let endless = "0s".to_owned();
    let mut rules = Vec::new();
    if let Some(limit) = limit {
        // A limit on requests would cut streams, which have limits of their own. Who wants one says so.
        rules.push(rule(task, "stream", Some(("Accept", ".*text/event-stream.*")), &endless));
        rules.push(rule(task, "request", None, &duration::text_of(limit)));
    } else {
        rules.push(rule(task, "all", None, &endless));
    }
    let Destination::Envoy { envoy, .. } = destination else { return rules };
    rules.iter_mut().for_each(|rule| rule.filters.get_or_insert_default().push(hide_token()));
    let placeholder = backend_ref(&envoy.placeholder);
    if envoy.picking != Picking::Header {
        rules.iter_mut().for_each(|rule| rule.backend_refs = Some(vec![placeholder.clone()]));
        return rules;
    }
    let mut picked: Vec<HttpRouteRules> = rules.iter().map(|rule| picked(task, rule)).collect();
    // What was not picked is denied, whatever it is.
    rules.truncate(1);
    let denied = HttpRouteRules {
        name: Some(format!("{RULE}-denied")),
        matches: Some(vec![path_match(task)]),
        backend_refs: Some(vec![placeholder]),
        ..rules[0].clone()
    };
    picked.push(denied);
    picked
}

fn rule(task: &Task, name: &str, header: Option<(&str, &str)>, limit: &str) -> HttpRouteRules {
    let mut matches = path_match(task);
    matches.headers = header.map(|(name, value)| vec![header_match(name, value)]);
    HttpRouteRules {
        name: Some(format!("{RULE}-{name}")),
        matches: Some(vec![matches]),
        filters: strip_prefix(task),
        timeouts: Some(HttpRouteRulesTimeouts { request: Some(limit.into()), backend_request: None }),
        backend_refs: None,
    }
}

/// The same rule for requests that the router has picked an instance for.
fn picked(task: &Task, rule: &HttpRouteRules) -> HttpRouteRules {
    let mut rule = rule.clone();
    for matches in rule.matches.iter_mut().flatten() {
        matches.headers.get_or_insert_default().push(header_match(DESTINATION, ".+"));
    }
    let port = task.spec.request_handling.backend.port;
    let service =
        ServicePort { namespace: task.namespace().unwrap_or_default(), name: service_name(task), port };
    rule.backend_refs = Some(vec![backend_ref(&service)]);
    rule
}

fn path_match(task: &Task) -> HttpRouteRulesMatches {
    HttpRouteRulesMatches {
        path: Some(HttpRouteRulesMatchesPath {
            r#type: Some(HttpRouteRulesMatchesPathType::PathPrefix),
            value: Some(prefix(task)),
        }),
        ..HttpRouteRulesMatches::default()
    }
}

fn header_match(name: &str, expression: &str) -> HttpRouteRulesMatchesHeaders {
    HttpRouteRulesMatchesHeaders {
        name: name.into(),
        r#type: Some(HttpRouteRulesMatchesHeadersType::RegularExpression),
        value: expression.into(),
    }
}

/// The path under which the Task is served, without a slash at its end, except when there is nothing else.
pub(crate) fn prefix(task: &Task) -> String {
    let prefix = task.spec.routing.path_prefix_for(&task.namespace().unwrap_or_default(), &task.name_any());
    match prefix.trim_end_matches('/') {
        "" => "/".into(),
        trimmed => trimmed.into(),
    }
}

fn strip_prefix(task: &Task) -> Option<Vec<HttpRouteRulesFilters>> {
    if prefix(task) == "/" {
        return None;
    }
    let path = HttpRouteRulesFiltersUrlRewritePath {
        r#type: HttpRouteRulesFiltersUrlRewritePathType::ReplacePrefixMatch,
        replace_prefix_match: Some("/".into()),
        ..HttpRouteRulesFiltersUrlRewritePath::default()
    };
    Some(vec![HttpRouteRulesFilters {
        r#type: HttpRouteRulesFiltersType::UrlRewrite,
        url_rewrite: Some(HttpRouteRulesFiltersUrlRewrite { hostname: None, path: Some(path) }),
        ..HttpRouteRulesFilters::default()
    }])
}

/// Envoy asks nobody about most answers, and what a client hears of a token it could show to other instances.
fn hide_token() -> HttpRouteRulesFilters {
    HttpRouteRulesFilters {
        r#type: HttpRouteRulesFiltersType::ResponseHeaderModifier,
        response_header_modifier: Some(HttpRouteRulesFiltersResponseHeaderModifier {
            remove: Some(vec![labels::RESERVED_TOKEN_HEADER.into()]),
            ..HttpRouteRulesFiltersResponseHeaderModifier::default()
        }),
        ..HttpRouteRulesFilters::default()
    }
}

fn backend_ref(service: &ServicePort) -> HttpRouteRulesBackendRefs {
    HttpRouteRulesBackendRefs {
        group: Some(String::new()),
        kind: Some("Service".into()),
        name: service.name.clone(),
        namespace: Some(service.namespace.clone()),
        port: Some(service.port),
        ..HttpRouteRulesBackendRefs::default()
    }
}

fn request_limit(task: &Task) -> Option<Duration> {
    let http = task.spec.request_handling.timeout.as_ref()?.http.as_ref()?;
    http.request.map(agentcube_api::GoDuration::to_std)
}

/// The Service of all instances of a Task, from which Envoy takes the one that the header names.
pub(crate) fn service(task: &Task) -> Service {
    let port = task.spec.request_handling.backend.port;
    let spec = json!({
        "clusterIP": "None",
        "selector": { labels::TASK_UID: task.uid().unwrap_or_default() },
        "ports": [{ "name": "http", "protocol": "TCP", "port": port, "targetPort": port }],
    });
    let spec = serde_json::from_value(spec).expect("this is the spec of a Service");
    Service { metadata: metadata(task, service_name(task)), spec: Some(spec), status: None }
}

/// Not the Task's own name: users make Services of that.
fn service_name(task: &Task) -> String {
    format!("{}-instances", task.name_any())
}

/// What all children of a Task carry.
pub(crate) fn metadata(task: &Task, name: String) -> ObjectMeta {
    let id = identity(task);
    let labels = BTreeMap::from([
        (MANAGED_BY.into(), MANAGED_BY_US.into()),
        (labels::TASK.into(), revision::label_value(&id.name)),
        (labels::TASK_UID.into(), id.uid.to_string()),
    ]);
    ObjectMeta {
        name: Some(name),
        namespace: Some(id.namespace.to_string()),
        labels: Some(labels),
        owner_references: Some(vec![revision::owner(&id)]),
        ..ObjectMeta::default()
    }
}
