//! GetSandbox and ListSandboxes, from memory: objects, and creates that have none yet.

use std::time::Duration;

use agentcube_api::Sandbox as Object;
use agentcube_api::conditions;
use agentcube_protos::fastpath::{ListRequest, ListResponse, Sandbox};
use agentcube_protos::refused::retry_after;
use kube::ResourceExt;
use tonic::{Code, Status};

use crate::core::Core;
use crate::names::{Name, RunId};
use crate::pending::{Create, Fate};

pub(super) fn get(core: &Core, name: &Name) -> Result<Sandbox, Status> {
    find(core, name).ok_or_else(|| match is_coming(core, name) {
        true => retry_after(Code::Unavailable, "its object is about to be made", Duration::from_secs(1)),
        false => Status::not_found(format!("there is no sandbox {}", name.name)),
    })
}

/// Whether an earlier controller has acknowledged it, as far as anybody says, and its object is not made yet.
fn is_coming(core: &Core, name: &Name) -> bool {
    let adopted = core.agents.runs_of(name).into_iter().any(|run| {
        !run.entry.object.is_empty() && !run.agent.is_condemned(&RunId::from(run.entry.run_id.as_str()))
    });
    let promised = core.options.log.as_ref().and_then(|log| log.of(name));
    adopted || promised.is_some_and(|open| !open.deleted)
}

pub(super) fn find(core: &Core, name: &Name) -> Option<Sandbox> {
    let object = core.sandboxes.get(&name.namespace, &name.name).map(|object| of_object(&object));
    let pending = || core.pending.get(name).filter(|create| create.fate == Fate::Kept);
    object.or_else(|| pending().map(|create| of_create(&create)))
}

pub(super) fn list(core: &Core, namespace: &str, request: &ListRequest) -> Result<ListResponse, Status> {
    let selector = Selector::parse(&request.label_selector).ok_or_else(|| {
        Status::invalid_argument("label_selector: write key, !key, key=value or key!=value, with commas")
    })?;
    let most = core.options.limits.list;
    let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(most).min(most);
    let mut items: Vec<Sandbox> =
        core.sandboxes.list(Some(namespace)).iter().map(|object| of_object(object)).collect();
    let there: std::collections::HashSet<String> = items.iter().map(|item| item.sandbox_id.clone()).collect();
    let pending = core.pending.of(namespace).into_iter().filter(|create| create.fate == Fate::Kept);
    let pending = pending.map(|create| of_create(&create));
    items.extend(pending.filter(|item| !there.contains(&item.sandbox_id)));
    items.retain(|item| {
        (request.pool_ref.is_empty() || item.pool_ref == request.pool_ref)
            && item.sandbox_id > request.r#continue
            && selector.fits(item)
    });
    items.sort_by(|a, b| a.sandbox_id.cmp(&b.sandbox_id));
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(|item| item.sandbox_id.clone());
    Ok(ListResponse { items, r#continue: next.unwrap_or_default() })
}

pub(super) fn of_object(object: &Object) -> Sandbox {
    let status = object.status.clone().unwrap_or_default();
    let ready = conditions::find(&status.conditions, conditions::READY);
    let (spec, meta) = (&object.spec, &object.metadata);
    Sandbox {
        sandbox_id: object.name_any(),
        namespace: object.namespace().unwrap_or_default(),
        uid: object.uid().unwrap_or_default(),
        phase: format!("{:?}", status.phase.unwrap_or_default()),
        pool_ref: spec.pool_ref.clone(),
        image: spec.image.clone(),
        agent_pod: status.assigned_pod.unwrap_or_default(),
        node: status.node_name.unwrap_or_default(),
        run_id: status.sandbox_id.unwrap_or_default(),
        endpoints: status.endpoints,
        ready: ready.is_some_and(|ready| ready.status == conditions::TRUE),
        paused: spec.paused,
        reason: ready.map(|ready| ready.reason.clone()).unwrap_or_default(),
        message: ready.map(|ready| ready.message.clone()).unwrap_or_default(),
        created_unix_ms: meta.creation_timestamp.as_ref().map_or(0, |at| at.0.as_millisecond()),
        expires_unix_ms: spec.expire_time.as_ref().map_or(0, |at| at.0.as_millisecond()),
        reset_revision: spec.reset_revision.unwrap_or(0),
        accepted_reset_revision: status.accepted_reset_revision.unwrap_or(0),
        labels: object.labels().clone().into_iter().collect(),
        deleted: meta.deletion_timestamp.is_some(),
        version: meta.resource_version.clone().unwrap_or_default(),
    }
}

/// A run whose object is still to be made.
fn of_create(create: &Create) -> Sandbox {
    Sandbox {
        phase: "Running".into(),
        agent_pod: create.agent.id().name.clone(),
        node: create.agent.node(),
        run_id: create.run.to_string(),
        endpoints: create.endpoints.clone(),
        ..of_object(&create.object)
    }
}

/// Which labels are wanted.
#[derive(Debug, PartialEq, Eq)]
struct Selector(Vec<(String, Test)>);

#[derive(Debug, PartialEq, Eq)]
enum Test {
    There,
    Absent,
    Is(String),
    IsNot(String),
}

impl Selector {
    fn parse(text: &str) -> Option<Selector> {
        if text.trim().is_empty() {
            return Some(Selector(Vec::new()));
        }
        text.split(',').map(|part| one(part.trim())).collect::<Option<_>>().map(Selector)
    }

    fn fits(&self, item: &Sandbox) -> bool {
        self.0.iter().all(|(key, test)| {
            let value = item.labels.get(key);
            match test {
                Test::There => value.is_some(),
                Test::Absent => value.is_none(),
                Test::Is(wanted) => value == Some(wanted),
                Test::IsNot(unwanted) => value != Some(unwanted),
            }
        })
    }
}

fn one(part: &str) -> Option<(String, Test)> {
    let (key, test) = if let Some((key, value)) = part.split_once("!=") {
        (key, Test::IsNot(value.trim().into()))
    } else if let Some((key, value)) = part.split_once('=') {
        (key, Test::Is(value.trim_start_matches('=').trim().into()))
    } else if let Some(key) = part.strip_prefix('!') {
        (key, Test::Absent)
    } else {
        (part, Test::There)
    };
    let key = key.trim();
    let fine = !key.is_empty() && !key.contains(|c: char| c.is_whitespace() || "()!=".contains(c));
    fine.then(|| (key.into(), test))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_say_what_is_wanted() {
        let labels = [("a".to_string(), "1".to_string())].into();
        let item = Sandbox { labels, ..Sandbox::default() };
        for (text, fits) in [
            ("", true),
            ("a", true),
            ("a=1", true),
            ("a==1", true),
            ("a!=1", false),
            ("!a", false),
            ("a=1,b", false),
            ("!b,a = 1", true),
        ] {
            assert_eq!(Selector::parse(text).expect(text).fits(&item), fits, "{text}");
        }
        for text in [",", "a in (b)", "=1", "!"] {
            assert_eq!(Selector::parse(text), None, "{text}");
        }
    }
}
