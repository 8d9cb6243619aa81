//! Decides what happens to a Component next. Pure.

use std::collections::BTreeMap;

use agentcube_api::labels::MIDDLEWARE_FINALIZER;
use agentcube_api::middleware::component::Operation as Course;
use agentcube_api::middleware::parts::{GroupTemplate, ParentRef, PartPhase, Scenario, Values};
use agentcube_api::middleware::{Component, ComponentSpec, ComponentStatus, Group, GroupSpec};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::Value;

use super::status;
use crate::group::observe::Fault;
use crate::order::{Doubt, Order, decide};
use crate::refusals::Refused;

/// Everything that matters for a Component.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    pub component: &'a Component,
    /// Its Groups, by their names in the Component.
    pub groups: &'a BTreeMap<String, Group>,
    /// What the server does not let Groups be, by the same names.
    pub refused: &'a BTreeMap<String, Refused>,
    /// What the agent said to the question that an earlier plan had.
    pub answer: Option<&'a Result<Order, String>>,
    pub now: Timestamp,
}

/// What is written, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    Hold,
    WriteStatus(Box<ComponentStatus>),
    Tell { group: String, spec: Box<GroupSpec> },
    Remove { group: String },
    Release,
}

/// In which order the agent would treat these groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub scenario: Scenario,
    pub groups: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub operations: Vec<Operation>,
    /// To be answered first; then it is planned again.
    pub question: Option<Question>,
}

/// Name of a Group object.
pub fn group_name(component: &str, group: &str) -> String {
    format!("{component}-{group}")
}

/// What a Group is told.
pub fn group_spec(component: &Component, group: &GroupTemplate) -> GroupSpec {
    let spec: &ComponentSpec = &component.spec;
    GroupSpec {
        component_ref: ParentRef { name: component.name_any(), namespace: None },
        plugin_ref: spec.plugin_ref.clone(),
        runtime: spec.runtime.clone(),
        replicas: group.replicas,
        resources: group.resources.clone(),
        storage: group.storage.clone(),
        affinity: group.affinity.clone(),
        values: over(&spec.values, &group.values),
        policies: group.policies.clone(),
    }
}

/// Values with others over them; objects are merged, everything else is replaced.
pub fn over(base: &Values, more: &Values) -> Values {
    fn merge(base: &mut Value, more: &Value) {
        match (base, more) {
            (Value::Object(base), Value::Object(more)) => {
                for (key, value) in more {
                    merge(base.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
            (base, more) => *base = more.clone(),
        }
    }
    let mut merged = base.clone();
    for (key, value) in more {
        merge(merged.entry(key.clone()).or_insert(Value::Null), value);
    }
    merged
}

/// How a Group stands to what it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Missing, or told something else.
    Untold,
    Working,
    /// It was what it is to be, and some of it does not answer now.
    Degraded,
    Reached,
    Failed,
}

pub(super) fn standing(group: Option<&Group>, wanted: &GroupSpec) -> Standing {
    let Some(group) = group.filter(|group| group.spec == *wanted) else { return Standing::Untold };
    if group.metadata.deletion_timestamp.is_some() {
        return Standing::Untold;
    }
    let Some(status) = group.status.as_ref() else { return Standing::Working };
    if status.observed_generation != group.metadata.generation {
        return Standing::Working;
    }
    match status.phase.unwrap_or_default() {
        PartPhase::Ready => Standing::Reached,
        PartPhase::Failed => Standing::Failed,
        PartPhase::Degraded => Standing::Degraded,
        _ => Standing::Working,
    }
}

/// What the server has against a Group like this.
pub(super) fn refusal<'a>(observed: &Observed<'a>, name: &str, spec: &GroupSpec) -> Option<&'a Fault> {
    observed.refused.get(name).and_then(|refused| refused.of(spec))
}

/// Whether a Pod of the group leads.
pub(super) fn leads(group: Option<&Group>) -> bool {
    let pods = group
        .and_then(|group| group.status.as_ref())
        .map(|status| status.pods.as_slice())
        .unwrap_or_default();
    pods.iter().any(|pod| pod.leader)
}

pub fn plan(observed: &Observed<'_>) -> Plan {
    let component = observed.component;
    let held = component.finalizers().iter().any(|finalizer| finalizer == MIDDLEWARE_FINALIZER);
    if component.metadata.deletion_timestamp.is_some() {
        return if held { ending(observed) } else { Plan::default() };
    }
    if !held {
        return Plan { operations: vec![Operation::Hold], ..Plan::default() };
    }
    let wanted: Vec<(String, GroupSpec)> = component
        .spec
        .groups
        .iter()
        .map(|group| (group.name.clone(), group_spec(component, group)))
        .collect();
    let stands = |name: &str, spec: &GroupSpec| standing(observed.groups.get(name), spec);
    let surplus: Vec<&String> =
        observed.groups.keys().filter(|name| wanted.iter().all(|(one, _)| one != *name)).collect();
    let untold = wanted.iter().any(|(name, spec)| stands(name, spec) == Standing::Untold);
    let mut status = component.status.clone().unwrap_or_default();
    let generation = component.metadata.generation.unwrap_or(1);
    let current = status.current_operation.take().filter(|course| course.observed_generation == generation);
    let (course, doubt) = match current {
        Some(course) => (Some(course), None),
        None if untold || !surplus.is_empty() => match begin(observed, &wanted, generation) {
            Ok((course, doubt)) => (Some(course), Some(doubt)),
            Err(question) => return Plan { question: Some(question), ..Plan::default() },
        },
        None => (None, None),
    };
    let mut operations = Vec::new();
    if let Some(course) = &course {
        operations.extend(tell(observed, course, &wanted));
        let reached = wanted.iter().all(|(name, spec)| stands(name, spec) == Standing::Reached);
        if reached && let Some(name) = surplus.first() {
            // One after another, and nothing while one is going.
            if observed.groups[*name].metadata.deletion_timestamp.is_none() {
                operations.push(Operation::Remove { group: (*name).clone() });
            }
        }
    }
    let reached =
        wanted.iter().all(|(name, spec)| stands(name, spec) == Standing::Reached) && surplus.is_empty();
    status.current_operation = course.filter(|_| !reached);
    status::report(observed, &mut status, &wanted, doubt.as_ref());
    if component.status.as_ref() != Some(&status) {
        operations.insert(0, Operation::WriteStatus(Box::new(status)));
    }
    Plan { operations, question: None }
}

/// Begins a course, in the agent's order.
fn begin(
    observed: &Observed<'_>,
    wanted: &[(String, GroupSpec)],
    generation: i64,
) -> Result<(Course, Option<Doubt>), Question> {
    let names: Vec<String> = wanted.iter().map(|(name, _)| name.clone()).collect();
    let upgraded = wanted.iter().any(|(name, spec)| {
        observed.groups.get(name).is_some_and(|group| {
            (&group.spec.runtime, &group.spec.plugin_ref) != (&spec.runtime, &spec.plugin_ref)
        })
    });
    let scenario = match () {
        () if observed.groups.is_empty() => Scenario::Provision,
        () if upgraded => Scenario::Upgrade,
        () => Scenario::Update,
    };
    let (order, doubt) = ordered(observed, scenario, &names)?;
    let course = Course {
        scenario,
        observed_generation: generation,
        started_at: Some(Time(observed.now)),
        order: order.names,
        concurrent: order.concurrent,
        revision: None,
        progress: 0,
        progressed_at: None,
    };
    Ok((course, doubt))
}

/// The order for groups; nobody needs to be asked about one, or before there is anybody to ask.
fn ordered(
    observed: &Observed<'_>,
    scenario: Scenario,
    names: &[String],
) -> Result<(Order, Option<Doubt>), Question> {
    if names.len() < 2 || scenario == Scenario::Provision {
        return Ok((Order { names: names.to_vec(), concurrent: false }, None));
    }
    match observed.answer {
        None => Err(Question { scenario, groups: names.to_vec() }),
        Some(answer) => {
            let leads = |name: &str| leads(observed.groups.get(name));
            Ok(decide(names, leads, answer.as_ref().map_err(String::as_str)))
        }
    }
}

/// Tells the next group, or all that are left if the order does not matter. Whoever is in the middle of something comes
/// first, so that not more are between two states than were.
fn tell(observed: &Observed<'_>, course: &Course, wanted: &[(String, GroupSpec)]) -> Vec<Operation> {
    let between = |name: &String| {
        observed.groups.get(name).is_some_and(|group| {
            let going = group.metadata.deletion_timestamp.is_some();
            going || standing(Some(group), &group.spec) == Standing::Working
        })
    };
    let mut order: Vec<&String> = course.order.iter().collect();
    order.sort_by_key(|name| !between(name));
    let mut operations = Vec::new();
    for name in order {
        let Some((_, spec)) = wanted.iter().find(|(one, _)| one == name) else { continue };
        let standing = standing(observed.groups.get(name), spec);
        let going =
            observed.groups.get(name).is_some_and(|group| group.metadata.deletion_timestamp.is_some());
        let refused = refusal(observed, name, spec).is_some();
        if standing == Standing::Untold && !going && !refused {
            operations.push(Operation::Tell { group: name.clone(), spec: Box::new(spec.clone()) });
        }
        if !course.concurrent && standing != Standing::Reached {
            break;
        }
    }
    operations
}

/// The end: Groups go one after another, in the agent's order.
fn ending(observed: &Observed<'_>) -> Plan {
    let component = observed.component;
    if observed.groups.is_empty() {
        return Plan { operations: vec![Operation::Release], question: None };
    }
    let mut status = component.status.clone().unwrap_or_default();
    let current = status.current_operation.take().filter(|course| course.scenario == Scenario::Stop);
    let course = match current {
        Some(course) => course,
        None => {
            let names: Vec<String> = observed.groups.keys().cloned().collect();
            match ordered(observed, Scenario::Stop, &names) {
                Ok((order, _)) => Course {
                    scenario: Scenario::Stop,
                    observed_generation: component.metadata.generation.unwrap_or(1),
                    started_at: Some(Time(observed.now)),
                    order: order.names,
                    concurrent: order.concurrent,
                    revision: None,
                    progress: 0,
                    progressed_at: None,
                },
                Err(question) => return Plan { question: Some(question), ..Plan::default() },
            }
        }
    };
    let mut left: Vec<&String> = observed.groups.keys().collect();
    left.sort_by_key(|name| course.order.iter().position(|one| one == *name).unwrap_or(course.order.len()));
    if !course.concurrent {
        left.truncate(1);
    }
    let staying =
        left.into_iter().filter(|name| observed.groups[*name].metadata.deletion_timestamp.is_none());
    let mut operations: Vec<Operation> =
        staying.map(|name| Operation::Remove { group: name.clone() }).collect();
    status.current_operation = Some(course);
    status::terminating(component, &mut status, observed.groups, observed.now);
    if component.status.as_ref() != Some(&status) {
        operations.insert(0, Operation::WriteStatus(Box::new(status)));
    }
    Plan { operations, question: None }
}
