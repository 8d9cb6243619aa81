//! The rules by which a Job itself says what the end of a Pod means: which failures are ignored, which end an index or
//! the whole Job, and which successes are enough.

use k8s_openapi::api::batch::v1::{Job, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;

use super::indexes::Indexes;

/// What a failed Pod means for its Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// It counts towards the limit.
    Count,
    Ignore,
    FailIndex,
    /// The Job fails, with this message.
    FailJob(String),
}

impl Action {
    pub(super) fn is_counted(&self) -> bool {
        *self != Action::Ignore
    }
}

/// What the first rule that matches says of a failed Pod.
pub(super) fn action(job: &Job, pod: &Pod) -> Action {
    let policy = job.spec.as_ref().and_then(|spec| spec.pod_failure_policy.as_ref());
    let rules = policy.map(|policy| policy.rules.as_slice()).unwrap_or_default();
    for (at, rule) in rules.iter().enumerate() {
        let Some(cause) = cause(rule, pod) else { continue };
        match rule.action.as_str() {
            "Ignore" => return Action::Ignore,
            "FailIndex" => return Action::FailIndex,
            "Count" => return Action::Count,
            "FailJob" => return Action::FailJob(format!("{cause} matching FailJob rule at index {at}")),
            _ => {}
        }
    }
    Action::Count
}

/// How a Pod matches a rule, in words; `None` if it does not.
fn cause(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    if let Some(requirement) = &rule.on_exit_codes {
        let containers = status.container_statuses.iter().flatten();
        let mut all = containers.chain(status.init_container_statuses.iter().flatten());
        let (container, code) = all.find_map(|container| matching_exit(container, requirement))?;
        return Some(format!("Container {container} for pod {name} failed with exit code {code}"));
    }
    let patterns = rule.on_pod_conditions.as_deref()?;
    let condition = status.conditions.iter().flatten().find(|condition| {
        patterns.iter().any(|pattern| {
            pattern.type_ == condition.type_
                && pattern.status.as_deref().unwrap_or("True") == condition.status
        })
    })?;
    Some(format!("Pod {name} has condition {}", condition.type_))
}

fn matching_exit<'a>(
    container: &'a ContainerStatus,
    requirement: &PodFailurePolicyOnExitCodesRequirement,
) -> Option<(&'a str, i32)> {
    let code = container.state.as_ref()?.terminated.as_ref()?.exit_code;
    let meant = requirement.container_name.as_ref().is_none_or(|name| *name == container.name);
    let listed = requirement.values.contains(&code);
    let matches = match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    };
    (meant && code != 0 && matches).then_some((container.name.as_str(), code))
}

/// The message of the first rule that says that these successes are enough.
pub(super) fn success(job: &Job, succeeded: &Indexes) -> Option<String> {
    let spec = job.spec.as_ref()?;
    let completions = spec.completions.unwrap_or(0);
    if succeeded.is_empty() {
        return None;
    }
    let met = spec.success_policy.as_ref()?.rules.iter().position(|rule| match &rule.succeeded_indexes {
        Some(indexes) => {
            let required = Indexes::parse(indexes, completions);
            let reached = required.overlap(succeeded);
            !required.is_empty()
                && (reached == required.len() || rule.succeeded_count.is_some_and(|count| reached >= count))
        }
        None => rule.succeeded_count.is_some_and(|count| succeeded.len() >= count),
    })?;
    Some(format!("Matched rules at index {met}"))
}
