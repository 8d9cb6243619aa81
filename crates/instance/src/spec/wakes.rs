//! Which change has which Task looked at again.

use std::sync::Arc;

use agentcube_api::Sandbox;
use agentcube_operator::cache::{Cache, Change, Object};
use futures_util::future::ready;
use futures_util::stream::{self, BoxStream, StreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{Resource, ResourceExt};

use super::health::{self, Troubled};
use crate::provider::TaskName;

/// The Tasks that own what has changed.
pub(super) fn of_owned<K: Object>(cache: &Cache<K>) -> BoxStream<'static, TaskName> {
    changes(cache)
        .filter_map(|change| {
            let object = change.latest();
            ready(name(&**object, owner(&**object, "Task")))
        })
        .boxed()
}

/// The Tasks of Sandboxes whose trouble has changed.
pub(super) fn of_sandboxes(sandboxes: &Cache<Sandbox>) -> BoxStream<'static, TaskName> {
    changes(sandboxes)
        .filter_map(|change| {
            let trouble = |sandbox: &Option<Arc<Sandbox>>| sandbox.as_deref().and_then(Troubled::trouble);
            let news = trouble(&change.old) != trouble(&change.new);
            let sandbox = change.latest();
            ready(name(&**sandbox, news.then(|| owner(&**sandbox, "Task")).flatten()))
        })
        .boxed()
}

/// The Tasks of instances whose trouble has changed. Instances come and go too often to tell of each.
pub(super) fn of_instances(pods: &Cache<Pod>, jobs: &Cache<Job>) -> BoxStream<'static, TaskName> {
    let jobs = jobs.clone();
    changes(pods)
        .filter_map(move |change| {
            let trouble = |pod: &Option<Arc<Pod>>| pod.as_deref().and_then(health::trouble);
            let news = trouble(&change.old) != trouble(&change.new);
            let pod = change.latest();
            let of_job = || owner(&*jobs.get(&pod.namespace()?, &owner(&**pod, "Job")?)?, "Task");
            let task = news.then(|| owner(&**pod, "Task").or_else(of_job)).flatten();
            ready(name(&**pod, task))
        })
        .boxed()
}

/// All Tasks that have keys, when the operator's keys change.
pub(super) fn of_keys(masters: &Cache<Secret>, keys: &Cache<Secret>) -> BoxStream<'static, TaskName> {
    let keys = keys.clone();
    changes(masters)
        .flat_map(move |_| {
            let all = keys.list(None);
            let tasks = all.iter().filter_map(|secret| name(&**secret, owner(&**secret, "Task")));
            stream::iter(tasks.collect::<Vec<_>>())
        })
        .boxed()
}

fn changes<K: Object>(cache: &Cache<K>) -> BoxStream<'static, Change<K>> {
    let next = |mut receiver: agentcube_operator::cache::Receiver<K>| async move {
        let change = receiver.recv().await;
        Some((change, receiver))
    };
    stream::unfold(cache.subscribe(), next).boxed()
}

/// The name of the controller of this object, if it is of this kind.
fn owner<K: Resource>(object: &K, kind: &str) -> Option<String> {
    let owners = object.meta().owner_references.iter().flatten();
    let controller = owners.into_iter().find(|owner| owner.controller == Some(true) && owner.kind == kind);
    controller.map(|owner| owner.name.clone())
}

fn name<K: Resource>(object: &K, task: Option<String>) -> Option<TaskName> {
    Some(TaskName { namespace: object.meta().namespace.as_deref()?.into(), name: task?.into() })
}
