//! Decides what is to be done for a Task. Synchronous and total: no client, no clock.

use std::collections::BTreeSet;
use std::sync::Arc;

use agentcube_api::agentcube::TaskStatus;
use agentcube_api::{Task, conditions, labels};
use agentcube_instance::SpecId;
use agentcube_instance::provider::SpecError;
use agentcube_instance::revision::label_value;
use gateway_api::httproutes::HttpRoute;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::observe::Observed;
use super::route::{self, Destination};
use crate::child::Look;
use crate::envoy::{BackendTrafficPolicy, BackendTrafficPolicySpec, traffic};
use crate::options::{Implementation, Options, Picking};

/// The most draining revisions that the status has room for; more wait for those.
const MOST_DRAINING: usize = 64;

/// What is to be done for a Task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Plan {
    /// The Task is deleted, and has no business of ours left.
    Nothing,
    /// The Task is deleted: release these and let go of it. Waits for nobody: sessions and instances are owned by the
    /// Task and go after it, so that a lifecycle manager that does not run cannot hold its deletion up.
    End { release: Vec<SpecId> },
    /// The Task is to be served.
    Serve(Box<Serve>),
}

/// How a Task is to be served.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Serve {
    /// The Task has to be held before anything is made for it.
    pub(crate) hold: bool,
    pub(crate) revision: Result<Revision, SpecError>,
    /// Revisions that only live sessions keep. To be reported before any of them is released.
    pub(crate) draining: Vec<SpecId>,
    /// Revisions that nothing keeps any longer.
    pub(crate) release: Vec<SpecId>,
    pub(crate) route: HttpRoute,
    pub(crate) route_look: Look,
    /// Other objects that are to be there.
    pub(crate) policy: Option<BackendTrafficPolicy>,
    pub(crate) service: Option<Service>,
    /// Objects that are to go.
    pub(crate) stale_policies: Vec<Arc<BackendTrafficPolicy>>,
    pub(crate) stale_services: Vec<Arc<Service>>,
    /// The label by which the shared policy selects the route; none where no Envoy is involved.
    pub(crate) label: Option<String>,
    /// Why the gateways cannot do what the Task asks for.
    pub(crate) unsupported: Option<String>,
}

/// The revision that new sessions are to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Revision {
    pub(crate) spec: SpecId,
    pub(crate) hash: String,
    /// It was made before.
    pub(crate) known: bool,
    /// A change of scaling has to be carried over.
    pub(crate) update: bool,
}

/// Decides.
pub(crate) fn plan(observed: &Observed, options: &Options) -> Plan {
    let task = &*observed.task;
    let held = task.finalizers().iter().any(|finalizer| finalizer == labels::TASK_FINALIZER);
    if task.metadata.deletion_timestamp.is_some() {
        let release = observed.standing.keys().cloned().collect();
        return if held { Plan::End { release } } else { Plan::Nothing };
    }
    let status = task.status.clone().unwrap_or_default();
    let revision = observed.hash.clone().map(|hash| revision(observed, &status, hash));
    let (draining, release) = draining(observed, &status, revision.as_ref().ok());
    let destination = destination(observed, options);
    let envoy = match &destination {
        Destination::BuiltIn => None,
        Destination::Envoy { envoy, label } => Some((*envoy, label.clone())),
    };
    let policy = envoy.as_ref().and_then(|(envoy, _)| policy(task, envoy.picking));
    let service =
        envoy.as_ref().filter(|(envoy, _)| envoy.picking == Picking::Header).map(|_| route::service(task));
    let other_policy =
        |have: &&Arc<BackendTrafficPolicy>| policy.as_ref().is_none_or(|p| p.name_any() != have.name_any());
    let other_service =
        |have: &&Arc<Service>| service.as_ref().is_none_or(|s| s.name_any() != have.name_any());
    Plan::Serve(Box::new(Serve {
        hold: !held,
        draining,
        release,
        route: route::route(task, &destination),
        route_look: Look { known: was_routed(&status), closely: observed.closely },
        stale_policies: observed.policies.iter().filter(other_policy).cloned().collect(),
        stale_services: observed.services.iter().filter(other_service).cloned().collect(),
        unsupported: unsupported(observed, options, envoy.as_ref().map(|(envoy, _)| envoy.picking)),
        label: envoy.map(|(_, label)| label),
        revision,
        policy,
        service,
    }))
}

fn revision(observed: &Observed, status: &TaskStatus, hash: String) -> Revision {
    let task = &*observed.task;
    let generation = task.metadata.generation.unwrap_or(1);
    match &status.spec_id {
        Some(spec) if status.template_hash.as_ref() == Some(&hash) => {
            let carried =
                conditions::is_true_for(&status.conditions, conditions::task::SPEC_READY, generation);
            Revision { spec: SpecId(spec.as_str().into()), hash, known: true, update: !carried }
        }
        _ => {
            let drains = |spec: &SpecId| status.draining_spec_ids.iter().any(|name| **name == *spec.0);
            // One that is being prepared stays the next one, whatever else of the Task changes meanwhile.
            let begun = observed.hashes.iter().find(|(spec, of)| **of == hash && !drains(spec));
            let spec = begun.map(|(spec, _)| spec.clone());
            let known = spec.is_some();
            let spec = spec.unwrap_or_else(|| SpecId(format!("{}-{generation}", task.name_any()).into()));
            Revision { spec, hash, known, update: known }
        }
    }
}

/// Which revisions drain, and which of these are over. One is over when no instance of it is left: a session on it
/// would hold one. Only a revision that was reported to drain is ever released, so that no router takes it for current.
fn draining(observed: &Observed, status: &TaskStatus, next: Option<&Revision>) -> (Vec<SpecId>, Vec<SpecId>) {
    let told: BTreeSet<SpecId> =
        status.draining_spec_ids.iter().map(|name| SpecId(name.as_str().into())).collect();
    let current = status.spec_id.as_ref().map(|name| SpecId(name.as_str().into()));
    let stays = |spec: &SpecId| match next {
        Some(next) => *spec == next.spec,
        // Without a next one, the current one stays.
        None => Some(spec) == current.as_ref(),
    };
    let all: BTreeSet<&SpecId> = told.iter().chain(&observed.revisions).chain(&current).collect();
    let over = |spec: &SpecId| observed.standing.get(spec).is_some_and(|standing| standing.total == 0);
    let (release, draining): (Vec<SpecId>, Vec<SpecId>) = all
        .into_iter()
        .filter(|spec| !stays(spec))
        .cloned()
        .partition(|spec| told.contains(spec) && over(spec));
    (draining.into_iter().take(MOST_DRAINING).collect(), release)
}

/// Where the route leads. The shared policy of the first gateway of Envoy's serves all of them: it goes with the route.
fn destination<'a>(observed: &Observed, options: &'a Options) -> Destination<'a> {
    let first =
        observed.gateways.iter().find(|named| named.implementation(options) == Some(Implementation::Envoy));
    match (first, &options.envoy) {
        (Some(named), Some(envoy)) => Destination::Envoy { envoy, label: label_value(&named.name) },
        _ => Destination::BuiltIn,
    }
}

fn policy(task: &Task, picking: Picking) -> Option<BackendTrafficPolicy> {
    let spec = traffic::of_task(task, picking)?;
    // A gateway's policy has the gateway's name.
    let metadata = route::metadata(task, format!("{}.task", task.name_any()));
    Some(BackendTrafficPolicy { metadata, spec: BackendTrafficPolicySpec(spec), status: None })
}

fn unsupported(observed: &Observed, options: &Options, picking: Option<Picking>) -> Option<String> {
    let handling = &observed.task.spec.request_handling;
    if picking.is_some() && handling.backend.tls_policy.is_some() {
        return Some(
            "requestHandling.backend.tlsPolicy is not done through Envoy Gateway: leave it out, or use a gateway of \
             class agentcube"
                .into(),
        );
    }
    let envoy = |named: &&super::observe::Named| named.implementation(options) == Some(Implementation::Envoy);
    let named = observed.gateways.iter().find(envoy).filter(|_| options.envoy.is_none())?;
    Some(format!("TaskGateway {} needs Envoy Gateway, which this operator is not set up for", named.name))
}

/// Whether the route was there before, as far as the status knows.
fn was_routed(status: &TaskStatus) -> bool {
    let condition = conditions::find(&status.conditions, conditions::task::ROUTE_READY);
    condition.is_some_and(|condition| condition.reason != conditions::task::REASON_CREATION_FAILED)
}
