//! UpdateSandbox: changes of the object. The reconciler carries them out, as if somebody had written them by hand.

use std::sync::Arc;
use std::time::Duration;

use agentcube_protos::fastpath::update_request::Change;
use agentcube_protos::fastpath::{FailurePolicy, Sandbox, UpdateRequest};
use agentcube_protos::refused::retry_after;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};
use tonic::{Code, Status};

use super::{of_api, read};
use crate::core::Core;
use crate::names::Name;
use crate::object;
use crate::pending::{Fate, Made};

pub(super) async fn update(
    core: &Arc<Core>,
    name: &Name,
    request: &UpdateRequest,
) -> Result<Sandbox, Status> {
    let patch = Patch::Merge(patch(request, Timestamp::now())?);
    let _one = core.locks.lock(name).await;
    if let Some(create) = core.pending.get(name)
        && (create.fate != Fate::Kept || core.make_once(name, &create).await != Made::Over)
    {
        let message = "it has no object yet, because the API server does not answer; ask again";
        return Err(retry_after(Code::Unavailable, message, Duration::from_secs(1)));
    }
    let api = core.api(&name.namespace);
    let answer = core.answered(api.patch(&name.name, &PatchParams::default(), &patch)).await;
    let object = answer.map_err(of_api)?;
    let shown = read::of_object(&object);
    core.sandboxes.put(object);
    core.queue.add(name.clone());
    Ok(shown)
}

fn patch(request: &UpdateRequest, now: Timestamp) -> Result<Value, Status> {
    let spec = match request.change {
        None => json!({}),
        Some(Change::ExpireSeconds(0)) => json!({ "expireTime": null }),
        Some(Change::ExpireSeconds(seconds)) => json!({ "expireTime": object::expire_at(now, seconds)? }),
        Some(Change::ResetRevision(revision)) if revision < 0 => {
            return Err(Status::invalid_argument("reset_revision must not be negative"));
        }
        Some(Change::ResetRevision(revision)) => json!({ "resetRevision": revision }),
        Some(Change::FailurePolicy(policy)) => {
            let policy = FailurePolicy::try_from(policy)
                .map_err(|_| Status::invalid_argument("failure_policy is not known"))?;
            json!({ "failurePolicy": object::policy(policy) })
        }
        Some(Change::RecoveryTimeoutSeconds(seconds)) => json!({ "recoveryTimeoutSeconds": seconds }),
        Some(Change::Paused(paused)) => json!({ "paused": paused }),
    };
    let labels = request.labels.iter().map(|(key, value)| {
        (key.clone(), if value.is_empty() { Value::Null } else { Value::String(value.clone()) })
    });
    let labels: Map<String, Value> = labels.collect();
    if request.change.is_none() && labels.is_empty() {
        return Err(Status::invalid_argument("nothing is to be changed"));
    }
    Ok(json!({ "spec": spec, "metadata": { "labels": labels } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_changes_and_labels_are_merged() {
        let labels = [("a".to_string(), String::new()), ("b".to_string(), "1".to_string())].into();
        let request =
            UpdateRequest { change: Some(Change::Paused(true)), labels, ..UpdateRequest::default() };
        let expected =
            json!({ "spec": { "paused": true }, "metadata": { "labels": { "a": null, "b": "1" } } });
        assert_eq!(patch(&request, Timestamp::UNIX_EPOCH).expect("fine"), expected);
        assert!(patch(&UpdateRequest::default(), Timestamp::UNIX_EPOCH).is_err());
        let change = Some(Change::ExpireSeconds(-1));
        assert!(patch(&UpdateRequest { change, ..UpdateRequest::default() }, Timestamp::UNIX_EPOCH).is_err());
    }
}
