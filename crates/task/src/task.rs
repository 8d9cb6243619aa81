//! The Task controller: prepares the revisions of a Task's instances, makes its route, and reports. It never touches a
//! session: those are the routers' and the lifecycle manager's.

mod apply;
mod observe;
mod plan;
mod references;
pub(crate) mod route;
mod status;
#[cfg(test)]
mod tests;

use agentcube_api::Task;
use agentcube_instance::TaskId;
use kube::ResourceExt;

pub(crate) use apply::Reconciler;
pub(crate) use references::Reference;

/// What tells the Task apart.
pub(crate) fn identity(task: &Task) -> TaskId {
    TaskId {
        namespace: task.namespace().unwrap_or_default().into(),
        name: task.name_any().into(),
        uid: task.uid().unwrap_or_default().into(),
    }
}
