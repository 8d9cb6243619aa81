//! What containers say of whose they are, where a runtime keeps labels. The janitor of a node goes by them.

use std::collections::BTreeMap;

use agentcube_api::labels::{
    RUNTIME_AGENT_NAME, RUNTIME_AGENT_UID, RUNTIME_CLAIM_UID, RUNTIME_ID, RUNTIME_MANAGED, RUNTIME_NAMESPACE,
    RUNTIME_SANDBOX_NAME,
};

use crate::Options;
use crate::describe::{Place, Wanted};
use crate::run::Living;

/// The labels of a run's container. One whose object is yet to be made has no UID of it.
pub(crate) fn of(wanted: &Wanted, place: &Place, options: &Options) -> BTreeMap<String, String> {
    let run = place.container.as_str();
    let all = [
        (RUNTIME_MANAGED, "true"),
        (RUNTIME_AGENT_UID, &options.uid),
        (RUNTIME_AGENT_NAME, &options.name),
        (RUNTIME_NAMESPACE, &wanted.who.namespace),
        (RUNTIME_ID, run.strip_prefix("sb-").unwrap_or(run)),
        (RUNTIME_CLAIM_UID, &wanted.uid),
        (RUNTIME_SANDBOX_NAME, &wanted.who.name),
    ];
    all.into_iter().map(|(label, value)| (label.to_owned(), value.to_owned())).collect()
}

/// Says with the containers of runs which objects are theirs. Nobody waits for that: what cannot be said now is only not
/// known to the janitor, which then asks for the name.
pub(crate) fn write_objects(objects: Vec<(Living, String)>) {
    if objects.is_empty() {
        return;
    }
    tokio::spawn(async move {
        for (living, uid) in objects {
            if let Err(error) = living.runtime.label(&living.place.container, RUNTIME_CLAIM_UID, &uid).await {
                tracing::debug!(container = %living.place.container, "its object was not written down: {error}");
            }
        }
    });
}
