//! What a StatefulSet reports: counts of the Pods that were observed, and the revisions that it stands between.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::Pod;

use super::identity;
use super::plan::{is_leaving, min_ready_seconds};
use super::revisions::Versions;
use crate::controllers::pods::{self, Availability};

pub(super) fn report(
    set: &StatefulSet,
    pods: &[&Pod],
    versions: &Versions,
    now: Timestamp,
) -> StatefulSetStatus {
    let count = |counts: &dyn Fn(&Pod) -> bool| {
        let counted = pods.iter().filter(|pod| identity::ordinal(pod).is_some() && counts(pod)).count();
        i32::try_from(counted).unwrap_or(i32::MAX)
    };
    let ready = |pod: &Pod| pods::phase(pod) == "Running" && pods::is_ready(pod);
    let at = |pod: &Pod, name: &str| !is_leaving(pod) && identity::revision_of(pod) == name;
    let mut status = StatefulSetStatus {
        replicas: count(&|_| true),
        ready_replicas: Some(count(&ready)),
        available_replicas: Some(count(&|pod| {
            ready(pod) && pods::availability(pod, min_ready_seconds(set), now) == Availability::Available
        })),
        current_replicas: Some(count(&|pod| at(pod, &versions.current.name))),
        updated_replicas: Some(count(&|pod| at(pod, &versions.update.name))),
        current_revision: Some(versions.current.name.clone()),
        update_revision: Some(versions.update.name.clone()),
        collision_count: Some(versions.collisions),
        observed_generation: set.metadata.generation,
        conditions: set.status.as_ref().and_then(|status| status.conditions.clone()),
    };
    complete_update(set, &mut status);
    status
}

/// Once every replica is at the update revision and ready, that revision is the current one.
fn complete_update(set: &StatefulSet, status: &mut StatefulSetStatus) {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    let rolling = strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("OnDelete");
    let wanted = identity::replicas(set);
    if rolling
        && status.replicas == wanted
        && status.updated_replicas == Some(wanted)
        && status.ready_replicas == Some(wanted)
    {
        status.current_replicas = status.updated_replicas;
        status.current_revision.clone_from(&status.update_revision);
    }
}

/// Whether two reports say the same; a count of zero may be left out.
pub(super) fn is_same(a: &StatefulSetStatus, b: &StatefulSetStatus) -> bool {
    let counts = |one: &StatefulSetStatus| {
        [
            one.ready_replicas,
            one.available_replicas,
            one.current_replicas,
            one.updated_replicas,
            one.collision_count,
        ]
        .map(|count| count.unwrap_or(0))
    };
    a.replicas == b.replicas
        && counts(a) == counts(b)
        && a.current_revision == b.current_revision
        && a.update_revision == b.update_revision
        && a.observed_generation == b.observed_generation
}
