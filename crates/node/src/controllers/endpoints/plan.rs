//! Decides how the slices and Endpoints of a Service must change. Pure; planned again on what it led to, nothing is
//! left to do.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::ResourceExt;

use super::desired::{self, Group, same_ports};
use super::legacy;
use super::observe::Observed;

/// What a slice holds at most.
pub(super) const MOST_ENDPOINTS: usize = 100;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operation {
    CreateSlice(Box<EndpointSlice>),
    UpdateSlice(Box<EndpointSlice>),
    DeleteSlice(Arc<EndpointSlice>),
    CreateEndpoints(Box<Endpoints>),
    UpdateEndpoints(Box<Endpoints>),
    DeleteEndpoints(Arc<Endpoints>),
}

pub(super) fn plan(observed: &Observed) -> Vec<Operation> {
    let Some(service) = &observed.service else {
        // Slices go with their owner; Endpoints have none.
        return legacy::leftover(observed).map(Operation::DeleteEndpoints).into_iter().collect();
    };
    let spec = service.spec.as_ref();
    let is_alias = spec.is_some_and(|spec| spec.type_.as_deref() == Some("ExternalName"));
    if is_alias || spec.is_none_or(|spec| spec.selector.is_none()) {
        return Vec::new();
    }
    let mut operations = slices(observed, service);
    operations.extend(legacy::plan(observed, service));
    operations
}

/// Slices on their way to what they should be.
#[derive(Default)]
struct Changes {
    create: Vec<EndpointSlice>,
    update: Vec<EndpointSlice>,
    delete: Vec<Arc<EndpointSlice>>,
}

fn slices(observed: &Observed, service: &Service) -> Vec<Operation> {
    let (own, foreign): (Vec<_>, Vec<_>) =
        observed.slices.iter().cloned().partition(|slice| is_own(slice, service));
    let mut changes = Changes { delete: foreign, ..Changes::default() };
    let groups = desired::groups(observed, service);
    for group in &groups {
        let held = own.iter().filter(|slice| serves(slice, group)).cloned().collect();
        changes.fill(service, group, held);
    }
    let unwanted = |slice: &&Arc<EndpointSlice>| !groups.iter().any(|group| serves(slice, group));
    changes.delete.extend(own.iter().filter(unwanted).cloned());
    changes.keep_one(service, observed.slices.len());
    changes.reuse(service);
    let create = match service.metadata.deletion_timestamp {
        // The garbage collector would have to catch up with whatever is created now.
        Some(_) => Vec::new(),
        None => changes.create,
    };
    let create = create.into_iter().map(|slice| Operation::CreateSlice(Box::new(slice)));
    let update = changes.update.into_iter().map(|slice| Operation::UpdateSlice(Box::new(slice)));
    create.chain(update).chain(changes.delete.into_iter().map(Operation::DeleteSlice)).collect()
}

fn is_own(slice: &EndpointSlice, service: &Service) -> bool {
    let mut owners = slice.metadata.owner_references.iter().flatten();
    let is_owner =
        owners.any(|owner| owner.kind == "Service" && Some(&owner.uid) == service.metadata.uid.as_ref());
    is_owner && slice.address_type == "IPv4"
}

fn serves(slice: &EndpointSlice, group: &Group) -> bool {
    same_ports(slice.ports.as_deref().unwrap_or_default(), &group.ports)
}

/// Whether two endpoints are the same thing, perhaps in different states.
fn is_same(left: &Endpoint, right: &Endpoint) -> bool {
    let target = |one: &Endpoint| {
        one.target_ref.as_ref().map(|target| (target.namespace.clone(), target.name.clone()))
    };
    left.addresses == right.addresses && left.hostname == right.hostname && target(left) == target(right)
}

fn count(slice: &EndpointSlice) -> usize {
    slice.endpoints.as_ref().map_or(0, Vec::len)
}

impl Changes {
    /// Puts a group's endpoints into its slices: first where they are, then where something changes anyway, then into
    /// one slice that takes all the rest, then into new ones. So few slices change, and their watchers hear little.
    fn fill(&mut self, service: &Service, group: &Group, held: Vec<Arc<EndpointSlice>>) {
        let mut rest = group.endpoints.clone();
        let (mut changed, mut unchanged) = (Vec::new(), Vec::new());
        for slice in held {
            let next = keep(&slice, &mut rest, service);
            if next == *slice {
                unchanged.push(next);
            } else if count(&next) == 0 && count(&slice) > 0 {
                self.delete.push(slice);
            } else {
                changed.push(next);
            }
        }
        changed.sort_by_key(|slice| std::cmp::Reverse(count(slice)));
        for slice in &mut changed {
            top_up(slice, &mut rest);
        }
        if rest.len() < MOST_ENDPOINTS && !rest.is_empty() {
            let fitting = unchanged.into_iter().filter(|slice| count(slice) + rest.len() <= MOST_ENDPOINTS);
            if let Some(mut slice) = fitting.max_by_key(count) {
                top_up(&mut slice, &mut rest);
                changed.push(slice);
            }
        }
        self.update.extend(changed);
        while !rest.is_empty() {
            let mut slice = desired::slice(service, group.ports.clone(), Vec::new());
            top_up(&mut slice, &mut rest);
            self.create.push(slice);
        }
    }

    /// A Service always has a slice, if only to say that there is nothing.
    fn keep_one(&mut self, service: &Service, existing: usize) {
        if existing > self.delete.len() || !self.create.is_empty() {
            return;
        }
        let placeholder = desired::slice(service, Vec::new(), Vec::new());
        let is_placeholder = |slice: &EndpointSlice| {
            count(slice) == 0
                && slice.ports.as_ref().is_none_or(Vec::is_empty)
                && slice.metadata.labels == placeholder.metadata.labels
                && is_own(slice, service)
        };
        match self.delete.as_slice() {
            [only] if is_placeholder(only) => self.delete.clear(),
            _ => self.create.push(placeholder),
        }
    }

    /// What would be deleted becomes what would be created.
    fn reuse(&mut self, service: &Service) {
        self.delete.retain(|old| {
            if !is_own(old, service) {
                return true;
            }
            let Some(new) = self.create.pop() else { return true };
            let mut slice = (**old).clone();
            (slice.ports, slice.endpoints) = (new.ports, new.endpoints);
            slice.metadata.labels = new.metadata.labels;
            self.update.push(slice);
            false
        });
    }
}

/// The slice with those of its endpoints that are still wanted, as they are now; these are taken from `rest`.
fn keep(slice: &EndpointSlice, rest: &mut Vec<Endpoint>, service: &Service) -> EndpointSlice {
    let mut next = slice.clone();
    let kept = slice.endpoints.iter().flatten().filter_map(|old| {
        let place = rest.iter().position(|new| is_same(old, new))?;
        let new = rest.remove(place);
        Some(Endpoint {
            hints: old.hints.clone(),
            deprecated_topology: old.deprecated_topology.clone(),
            ..new
        })
    });
    let kept: Vec<_> = kept.collect();
    if slice.endpoints.is_some() || !kept.is_empty() {
        next.endpoints = Some(kept);
    }
    if *slice.labels() != desired::slice_labels(service) {
        next.metadata.labels = Some(desired::slice_labels(service));
    }
    next
}

fn top_up(slice: &mut EndpointSlice, rest: &mut Vec<Endpoint>) {
    let room = MOST_ENDPOINTS.saturating_sub(count(slice)).min(rest.len());
    slice.endpoints.get_or_insert_default().extend(rest.drain(..room));
}

#[cfg(test)]
mod tests;
