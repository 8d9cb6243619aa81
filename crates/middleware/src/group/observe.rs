//! What the planner of Groups knows, as plain data.

use std::collections::BTreeMap;

use agentcube_api::Quantity;
use agentcube_api::middleware::Group;
use agentcube_api::middleware::group::Policies;
use jiff::Timestamp;
use serde_json::Value;

use super::revision::Revision;
use crate::order::Order;

/// Everything that matters for a Group.
#[derive(Clone, Copy)]
pub struct Observed<'a> {
    pub group: &'a Group,
    /// The group's own, over the plugin's.
    pub policies: &'a Policies,
    /// The plugin can move the leader's role.
    pub failover: bool,
    /// What the plugin's templates give for the spec, or why nothing is to be done.
    pub rendered: Result<&'a Revision, &'a Fault>,
    /// Revisions that are kept, by name, and their numbers.
    pub revisions: &'a BTreeMap<String, (i64, Revision)>,
    /// Whether an object is on the server as it should be.
    pub stands: &'a dyn Fn(&Value) -> bool,
    pub set: Option<&'a Set>,
    /// Deployments have come to their end.
    pub others_ready: bool,
    /// By ordinal.
    pub pods: &'a [Pod],
    pub claims: &'a [Claim],
    pub answers: &'a Answers,
    /// Time between one Pod and the next.
    pub pause: std::time::Duration,
    /// Since when somebody looks: nobody is late for what nobody looked at.
    pub since: Timestamp,
    pub now: Timestamp,
}

/// Why nothing can be rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// A reason of a condition.
    pub reason: &'static str,
    pub message: String,
}

/// The StatefulSet as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    pub replicas: i32,
    /// Cannot be changed, so what was first stays.
    pub claim_templates: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    pub uid: String,
    pub ordinal: i32,
    /// By its probe, and by its agent if that knows better.
    pub ready: bool,
    /// By its probe alone, which is what everybody else sees, and later than its agent.
    pub shown_ready: bool,
    pub terminating: bool,
    /// The revision of the template that it was made from.
    pub revision: String,
    /// The revision of the configuration that it is known to have.
    pub configuration: String,
    pub created: Timestamp,
    /// Where its agent is, and others find it.
    pub address: Option<String>,
    /// The role that its label says.
    pub labelled: Option<String>,
    /// The revision for which somebody has begun to take it down; it may be stopped already.
    pub taken_for: Option<String>,
    /// Why no node takes it, if none does.
    pub homeless: Option<String>,
}

impl Pod {
    /// As its agent sees it, too: probes find out later that something is not ready.
    pub(super) fn as_said(&self, role: Option<&Role>) -> Pod {
        let denied = role.and_then(|role| role.ready) == Some(false);
        Pod { ready: self.ready && !denied, ..self.clone() }
    }
}

/// A volume claim of the StatefulSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub name: String,
    /// The name of its template.
    pub template: String,
    pub requested: Quantity,
    pub capacity: Option<Quantity>,
}

/// What a Pod says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    pub name: String,
    pub leader: bool,
    /// How much of the data it has, within a history.
    pub position: Option<u64>,
    pub history: Option<String>,
    /// The history from which it took over.
    pub previous_history: Option<String>,
    /// How much it has of that.
    pub previous_position: Option<u64>,
    /// The address of whom it follows, if anybody.
    pub follows: Option<String>,
    /// Whether it can serve now, if its agent knows: its probe finds out later.
    pub ready: Option<bool>,
}

/// What agents have said. What is missing was not asked yet, or is not known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answers {
    pub order: Option<Result<Order, String>>,
    pub checked: Option<Result<(), String>>,
    pub verified: Option<Result<(), String>>,
    /// By uid of the Pod: whether it has to be restarted to take the configuration.
    pub reloaded: BTreeMap<String, Result<bool, String>>,
    /// By name of the Pod.
    pub roles: BTreeMap<String, Role>,
}
