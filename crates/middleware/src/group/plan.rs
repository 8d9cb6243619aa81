//! Decides what happens to a Group next. Pure: the same observation gives the same plan, and a plan that was carried out
//! gives an empty one.

use std::collections::BTreeSet;

use agentcube_api::Quantity;
use agentcube_api::labels::MIDDLEWARE_FINALIZER;
use agentcube_api::middleware::GroupStatus;
use agentcube_api::middleware::component::Operation as Course;
use agentcube_api::middleware::group::{Failure, UpgradePhase, UpgradeStatus};
use agentcube_api::middleware::parts::Scenario;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::Value;

use super::lead;
use super::observe::{Answers, Observed};
use super::revision::Revision;
use super::status::{self, Outcome};
use crate::app::machine::later;
use crate::order::{Doubt, decide};

/// Longest time without any progress, if the group does not say.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(300);
/// Time until a change of roles can be seen.
const SOON: std::time::Duration = std::time::Duration::from_millis(200);
/// Revisions that are kept, if the group does not say.
const KEPT: usize = 5;

/// What is written or done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    Hold,
    WriteStatus(Box<GroupStatus>),
    /// A revision is kept.
    Record(Box<Revision>),
    Forget {
        revision: String,
    },
    Apply(Box<Value>),
    Expand {
        claim: String,
        size: Quantity,
    },
    /// The role moves to this Pod.
    Failover {
        from: String,
        to: String,
    },
    /// A Pod follows nobody, and so acknowledges nothing to whoever led.
    Fence {
        pod: String,
    },
    /// Nobody leads: this Pod does from now on.
    Promote {
        pod: String,
    },
    /// A Pod follows the one at this address.
    Follow {
        pod: String,
        leader: String,
    },
    /// A Pod is marked as taken for a revision, stopped and deleted; the StatefulSet makes another.
    Restart {
        pod: String,
        uid: String,
        revision: String,
    },
    /// A Pod is known to have a configuration.
    MarkConfiguration {
        pod: String,
        configuration: String,
    },
    /// The label for a role; an empty one goes.
    LabelRole {
        pod: String,
        role: String,
    },
    /// Workloads are deleted.
    Dismantle,
    Release,
}

/// What agents are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    Order {
        scenario: Scenario,
        pods: Vec<String>,
    },
    Check,
    Verify,
    /// With the digests of the files that it is to take.
    Reload {
        pod: String,
        uid: String,
        files: Vec<(String, String)>,
    },
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub operations: Vec<Operation>,
    /// To be answered first; then it is planned again.
    pub question: Option<Question>,
    /// When to look again, if nothing happens before.
    pub again: Option<Timestamp>,
}

pub fn plan(observed: &Observed<'_>) -> Plan {
    let group = observed.group;
    let held = group.finalizers().iter().any(|finalizer| finalizer == MIDDLEWARE_FINALIZER);
    if group.metadata.deletion_timestamp.is_some() {
        return if held { ending(observed) } else { Plan::default() };
    }
    if !held {
        return Plan { operations: vec![Operation::Hold], ..Plan::default() };
    }
    let settled = lead::settle(observed);
    let answers = Answers { roles: settled.roles.clone(), ..observed.answers.clone() };
    let observed = &Observed { answers: &answers, ..*observed };
    let mut status = group.status.clone().unwrap_or_default();
    status.leader = settled.leader;
    let told = lead::told(&settled.operations);
    let mut work = Work { observed, operations: Vec::new(), again: None, doubt: None, told };
    let outcome = match observed.rendered {
        Ok(rendered) => match work.pursue(rendered, &mut status) {
            Ok(outcome) => outcome,
            Err(question) => return Plan { question: Some(question), ..Plan::default() },
        },
        Err(fault) => Outcome::Unrendered(fault.clone()),
    };
    let roles = status::roles(observed);
    status::report(observed, &mut status, &outcome, work.doubt.as_ref(), settled.waits.as_deref());
    // Whoever followed the one that led is without anybody until it is told whom to follow.
    let moves = work.operations.iter().any(|one| matches!(one, Operation::Failover { .. }));
    if moves || !settled.operations.is_empty() {
        work.look_again(later(observed.now, SOON));
    }
    let Work { operations: next, again, .. } = work;
    // Who leads is settled, and shown, before Pods are touched: no Service leads to one that is about to go.
    let mut operations = settled.operations;
    operations.extend(roles);
    operations.extend(next);
    // The heir is recorded before it takes over: from then on it is the other who is of the past.
    let heir = operations.iter().find_map(|operation| match operation {
        Operation::Failover { to, .. } => Some(to),
        _ => None,
    });
    if let (Some(heir), Some(leader)) = (heir, &mut status.leader) {
        leader.pod = heir.clone();
    }
    if group.status.as_ref() != Some(&status) {
        operations.insert(0, Operation::WriteStatus(Box::new(status)));
    }
    Plan { operations, question: None, again }
}

pub(super) struct Work<'a> {
    pub(super) observed: &'a Observed<'a>,
    pub(super) operations: Vec<Operation>,
    again: Option<Timestamp>,
    doubt: Option<Option<Doubt>>,
    /// Pods that are told something about who leads.
    pub(super) told: BTreeSet<String>,
}

impl<'a> Work<'a> {
    /// Goes for what was rendered; or, if that has failed, back to the last complete revision.
    fn pursue(&mut self, rendered: &'a Revision, status: &mut GroupStatus) -> Result<Outcome, Question> {
        status.failure = status.failure.take().filter(|failure| failure.revision == rendered.name);
        let last = self.last(status);
        let target = match (&status.failure, last) {
            (Some(_), Some(last)) => last,
            _ => rendered,
        };
        if !self.observed.revisions.contains_key(&target.name) {
            self.operations.push(Operation::Record(Box::new(target.clone())));
        }
        let arrived = self.arrived(target);
        let completed = status.last_completed_revision.as_deref() == Some(&target.name);
        let course = status.current_operation.take();
        let course = course.filter(|course| course.revision.as_deref() == Some(&target.name));
        if completed && course.is_none() && (arrived || self.only_unready(target)) {
            return Ok(self.settled(target, status, arrived));
        }
        let mut course = match course {
            Some(course) => course,
            None => self.begin(target, status)?,
        };
        let outcome = self.follow(target, &mut course, status, arrived)?;
        let given_up = status.failure.as_ref().is_some_and(|failure| failure.revision == target.name);
        if !given_up && !matches!(outcome, Outcome::Settled { .. }) {
            status.current_operation = Some(course);
        }
        Ok(outcome)
    }

    /// The last complete revision, if it is kept.
    fn last(&self, status: &GroupStatus) -> Option<&'a Revision> {
        let name = status.last_completed_revision.as_ref()?;
        self.observed.revisions.get(name).map(|(_, revision)| revision)
    }

    pub(super) fn look_again(&mut self, at: Timestamp) {
        self.again = Some(self.again.map_or(at, |again| again.min(at)));
    }

    /// Nothing is left to do.
    fn settled(&mut self, target: &Revision, status: &GroupStatus, arrived: bool) -> Outcome {
        // Services and the like may have been changed by somebody.
        self.apply(target, target.replicas);
        self.prune(status);
        Outcome::Settled { arrived, failure: status.failure.clone() }
    }

    /// Everything is there as it should be, but for Pods that do not answer just now.
    fn only_unready(&self, target: &Revision) -> bool {
        let observed = self.observed;
        let current = |pod: &super::observe::Pod| {
            pod.terminating
                || !super::roll::is_outdated(observed, target, pod) && self.is_configured(target, pod)
        };
        observed.set.is_none_or(|set| set.replicas == target.replicas)
            && observed.pods.iter().all(current)
            && self.volumes_requested(target)
    }

    fn is_configured(&self, target: &Revision, pod: &super::observe::Pod) -> bool {
        target.configuration.is_empty() || pod.configuration == target.configuration
    }

    fn volumes_requested(&self, target: &Revision) -> bool {
        let small = |claim: &super::observe::Claim| {
            target.volume(&claim.template).is_some_and(|size| claim.requested < size)
        };
        !self.observed.claims.iter().any(small)
    }

    /// Whether all is as the revision wants it.
    fn arrived(&self, target: &Revision) -> bool {
        let observed = self.observed;
        let templates = observed.set.map(|set| &set.claim_templates);
        let pods =
            observed.pods.iter().filter(|pod| pod.ready && !pod.terminating && pod.ordinal < target.replicas);
        let wanted = if target.pods.is_empty() { 0 } else { target.replicas };
        let grown = |claim: &super::observe::Claim| {
            target
                .volume(&claim.template)
                .is_none_or(|size| claim.capacity.as_ref().is_some_and(|is| *is >= size))
        };
        target.applied(target.replicas, templates).iter().all(|object| (observed.stands)(object))
            && i32::try_from(pods.count()).is_ok_and(|count| count == wanted)
            && i32::try_from(observed.pods.len()).is_ok_and(|count| count == wanted)
            && self.only_unready(target)
            && observed.claims.iter().all(grown)
            && observed.others_ready
    }

    fn begin(&mut self, target: &Revision, status: &mut GroupStatus) -> Result<Course, Question> {
        let observed = self.observed;
        let back = status.last_completed_revision.as_deref() == Some(&target.name);
        let from = status.current_version.clone();
        let scenario = match &from {
            None => Scenario::Provision,
            Some(from) if !back && *from != target.version => Scenario::Upgrade,
            Some(_) => Scenario::Update,
        };
        let outdated = observed.pods.iter().filter(|pod| super::roll::is_outdated(observed, target, pod));
        let names: Vec<String> = outdated.map(|pod| pod.name.clone()).collect();
        let (order, doubt) = match (&observed.answers.order, names.len()) {
            (_, 0 | 1) => (crate::order::Order { names, concurrent: false }, None),
            (None, _) => return Err(Question::Order { scenario, pods: names }),
            (Some(answer), _) => {
                let leads = |name: &str| super::roll::leads(observed, name);
                decide(&names, leads, answer.as_ref().map_err(String::as_str))
            }
        };
        self.doubt = Some(doubt);
        status.upgrade_status = match scenario {
            Scenario::Upgrade => Some(UpgradeStatus {
                phase: Some(UpgradePhase::Checking),
                from_version: from,
                to_version: Some(target.version.clone()),
                updated_replicas: 0,
                total_replicas: target.replicas,
            }),
            _ => status.upgrade_status.take().map(|upgrade| match status.failure.is_some() {
                true => UpgradeStatus { phase: Some(UpgradePhase::RollingBack), ..upgrade },
                false => upgrade,
            }),
        };
        Ok(Course {
            scenario,
            observed_generation: observed.group.metadata.generation.unwrap_or(1),
            started_at: Some(Time(observed.now)),
            order: order.names,
            concurrent: order.concurrent,
            revision: Some(target.name.clone()),
            progress: 0,
            progressed_at: Some(Time(observed.now)),
        })
    }

    /// One step on the way to a revision.
    fn follow(
        &mut self,
        target: &Revision,
        course: &mut Course,
        status: &mut GroupStatus,
        arrived: bool,
    ) -> Result<Outcome, Question> {
        let observed = self.observed;
        let upgrades = course.scenario == Scenario::Upgrade;
        let phase = status.upgrade_status.as_ref().and_then(|upgrade| upgrade.phase);
        if upgrades && phase == Some(UpgradePhase::Checking) {
            if observed.policies.pre_upgrade_check.is_some() {
                match &observed.answers.checked {
                    None => return Err(Question::Check),
                    Some(Err(message)) => {
                        let message = format!("the check before the upgrade failed: {message}");
                        return Ok(self.failed(target, status, message));
                    }
                    Some(Ok(())) => {}
                }
            }
            enter(status, UpgradePhase::Upgrading);
        }
        if arrived {
            if upgrades && observed.policies.post_upgrade_verify.is_some() {
                enter(status, UpgradePhase::Verifying);
                match &observed.answers.verified {
                    None => return Err(Question::Verify),
                    Some(Err(message)) => {
                        let message = format!("the verification after the upgrade failed: {message}");
                        return Ok(self.failed(target, status, message));
                    }
                    Some(Ok(())) => {}
                }
            }
            return Ok(self.complete(target, course, status));
        }
        let progress = self.progress(target);
        if progress > course.progress {
            course.progress = progress;
            course.progressed_at = Some(Time(observed.now));
        }
        if let Some(upgrade) = status.upgrade_status.as_mut().filter(|_| upgrades) {
            upgrade.updated_replicas = super::roll::updated(observed, target);
        }
        let patience = observed.policies.rolling_update.as_ref().and_then(|update| update.timeout);
        let patience = patience.map_or(PATIENCE, |timeout| timeout.to_std());
        let deadline = course.progressed_at.as_ref().map(|at| later(at.0.max(observed.since), patience));
        self.again = deadline.filter(|deadline| *deadline > observed.now);
        let late = deadline.is_some_and(|deadline| deadline <= observed.now);
        if late {
            let message = format!(
                "no progress within {}: {}",
                agentcube_api::GoDuration::from(patience),
                status::obstacle(observed, target)
            );
            let outcome = self.failed(target, status, message);
            if status.failure.as_ref().is_some_and(|failure| failure.revision == target.name) {
                return Ok(outcome);
            }
            // It stays the aim: whatever mends itself goes on.
            self.advance(target, course)?;
            return Ok(outcome);
        }
        self.advance(target, course)?;
        Ok(Outcome::Working { back: status.failure.clone(), what: status::obstacle(observed, target) })
    }

    /// What comes next: objects, volumes, configuration, Pods.
    fn advance(&mut self, target: &Revision, course: &Course) -> Result<(), Question> {
        let replicas = self.replicas(target);
        self.apply(target, replicas);
        for claim in self.observed.claims {
            if let Some(size) = target.volume(&claim.template).filter(|size| claim.requested < *size) {
                self.operations.push(Operation::Expand { claim: claim.name.clone(), size });
            }
        }
        // Pods are touched when what they are made of is there.
        if self
            .operations
            .iter()
            .any(|operation| matches!(operation, Operation::Apply(_) | Operation::Record(_)))
        {
            return Ok(());
        }
        self.roll(target, course)
    }

    /// How many Pods there are to be for now: no leader is scaled away while another could lead.
    fn replicas(&mut self, target: &Revision) -> i32 {
        let observed = self.observed;
        let Some(set) = observed.set.filter(|set| set.replicas > target.replicas && observed.failover) else {
            return target.replicas;
        };
        let leader = observed.pods.iter().find(|pod| super::roll::leads(observed, &pod.name));
        let heir =
            observed.pods.iter().find(|pod| pod.ordinal < target.replicas && pod.ready && !pod.terminating);
        match (leader.filter(|leader| leader.ordinal >= target.replicas && leader.ready), heir) {
            (Some(leader), Some(heir)) => {
                self.operations
                    .push(Operation::Failover { from: leader.name.clone(), to: heir.name.clone() });
                set.replicas
            }
            _ => target.replicas,
        }
    }

    fn apply(&mut self, target: &Revision, replicas: i32) {
        let templates = self.observed.set.map(|set| &set.claim_templates);
        let objects = target.applied(replicas, templates);
        let wrong = objects.into_iter().filter(|object| !(self.observed.stands)(object));
        self.operations.extend(wrong.map(|object| Operation::Apply(Box::new(object))));
    }

    /// How far it has come; Pods that have to go count against it.
    fn progress(&self, target: &Revision) -> i32 {
        let observed = self.observed;
        let volumes = observed.claims.iter().filter(|claim| {
            target
                .volume(&claim.template)
                .is_none_or(|size| claim.capacity.as_ref().is_some_and(|is| *is >= size))
        });
        let pods = observed.pods.iter().filter(|pod| pod.ready && !pod.terminating);
        let made = pods.filter(|pod| !super::roll::is_outdated(observed, target, pod));
        let (mut done, mut surplus) = (volumes.count(), 0);
        for pod in made {
            done += 1 + usize::from(self.is_configured(target, pod));
            surplus += 2 * usize::from(pod.ordinal >= target.replicas);
        }
        i32::try_from(10_000 + done).unwrap_or(i32::MAX) - i32::try_from(2 * surplus).unwrap_or(0)
    }

    /// The revision cannot be reached. If that may be undone, it is remembered, and the next plan goes back.
    fn failed(&mut self, target: &Revision, status: &mut GroupStatus, message: String) -> Outcome {
        let other = self.last(status).is_some_and(|last| last.name != target.name);
        if other && self.observed.policies.undoes_failures() {
            status.failure = Some(Failure { revision: target.name.clone(), message: message.clone() });
            if status
                .upgrade_status
                .as_ref()
                .is_some_and(|upgrade| upgrade.phase != Some(UpgradePhase::Completed))
            {
                enter(status, UpgradePhase::RollingBack);
            }
            return Outcome::Working { back: status.failure.clone(), what: message };
        }
        Outcome::Failed(message)
    }

    fn complete(&mut self, target: &Revision, course: &Course, status: &mut GroupStatus) -> Outcome {
        status.last_completed_revision = Some(target.name.clone());
        status.current_version = Some(target.version.clone());
        if let Some(upgrade) = &mut status.upgrade_status {
            upgrade.phase = match (course.scenario, &status.failure) {
                (Scenario::Upgrade, _) => Some(UpgradePhase::Completed),
                (_, Some(_)) => Some(UpgradePhase::Failed),
                // Given up by whoever wanted it.
                _ if upgrade.phase != Some(UpgradePhase::Completed) => Some(UpgradePhase::Failed),
                _ => upgrade.phase,
            };
            if course.scenario == Scenario::Upgrade {
                upgrade.updated_replicas = target.replicas;
            }
        }
        self.prune(status);
        Outcome::Settled { arrived: true, failure: status.failure.clone() }
    }

    /// Forgets the oldest revisions beyond the limit, but never the last complete one or one that is wanted.
    fn prune(&mut self, status: &GroupStatus) {
        let observed = self.observed;
        let limit = observed.policies.rollback.as_ref().and_then(|rollback| rollback.limit);
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(KEPT);
        let mut kept: Vec<(i64, &String)> =
            observed.revisions.iter().map(|(name, (number, _))| (*number, name)).collect();
        kept.sort();
        let surplus = kept.len().saturating_sub(limit);
        let needed = |name: &String| {
            status.last_completed_revision.as_ref() == Some(name)
                || observed.rendered.is_ok_and(|rendered| rendered.name == *name)
        };
        let forgotten = kept.into_iter().filter(|(_, name)| !needed(name)).take(surplus);
        self.operations.extend(forgotten.map(|(_, name)| Operation::Forget { revision: name.clone() }));
    }
}

fn enter(status: &mut GroupStatus, phase: UpgradePhase) {
    if let Some(upgrade) = &mut status.upgrade_status {
        upgrade.phase = Some(phase);
    }
}

/// The end: workloads first; the rest goes with the Group.
fn ending(observed: &Observed<'_>) -> Plan {
    let group = observed.group;
    if observed.set.is_none() && observed.pods.is_empty() {
        return Plan { operations: vec![Operation::Release], ..Plan::default() };
    }
    let mut operations = Vec::new();
    let mut status = group.status.clone().unwrap_or_default();
    status::terminating(observed, &mut status);
    if group.status.as_ref() != Some(&status) {
        operations.push(Operation::WriteStatus(Box::new(status)));
    }
    if observed.set.is_some() {
        operations.push(Operation::Dismantle);
    }
    Plan { operations, ..Plan::default() }
}
