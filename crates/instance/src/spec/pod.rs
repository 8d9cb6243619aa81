//! Tasks of type pod: an instance is the Pod that the Task describes. Whatever the template says passes through:
//! scheduler, queue and group annotations, volumes, side containers.

use agentcube_api::Task;

use super::render::Rendered;
use crate::provider::SpecError;
use crate::revision::Form;

pub(super) fn render(task: &Task) -> Result<Rendered, SpecError> {
    let Some(template) = task.spec.deployment.pod_template.clone() else {
        return Err(SpecError::Invalid("deployment.podTemplate is missing, which type pod needs".into()));
    };
    Ok(Rendered { form: Form::Slots, template, children: Vec::new(), prepare: Vec::new() })
}
