//! Jobs, whose Pods are the instances of run-to-completion Tasks. A Job chooses itself which Pods it ends when it is
//! scaled down, so that is done only when all of them are idle and no router will use any of them.

use super::{Planner, Step, after};
use crate::identity::Kind;
use crate::lifecycle::operation::{Operation, PodRef, Reason};
use crate::lifecycle::routers::Seen;
use crate::lifecycle::view::{SeenInstance, SeenJob, Wanted};
use crate::record::Hold;

impl<'a> Planner<'a> {
    pub(super) fn jobs(&mut self) {
        let Some(task) = self.wanted() else { return };
        let view = self.view;
        for job in view.jobs.values().filter(|job| !job.deleted && task.current.is_some()) {
            let its = |instance: &&SeenInstance| {
                let record = &instance.record;
                record.slot.is_none() && record.spec_id == job.spec_id && instance.is_alive()
            };
            let pods: Vec<&SeenInstance> = view.instances.values().filter(its).collect();
            self.job(task, job, &pods);
        }
    }

    fn job(&mut self, task: &Wanted, job: &SeenJob, pods: &[&SeenInstance]) {
        let current = task.is_current(&job.spec_id);
        let floor = if current { i32::try_from(task.min).unwrap_or(i32::MAX) } else { 0 };
        if job.parallelism < floor {
            self.set_parallelism(job, floor, Vec::new(), Reason::MinimumKept);
        } else if job.parallelism > floor && self.is_idle(task, job, pods, current) {
            self.scale_down(job, floor, pods, current);
        } else if pods.len() <= usize::try_from(job.parallelism).unwrap_or(0) {
            // What the Job has left after it was scaled down is of use again, unless it was used before.
            let fresh = pods.iter().filter(|pod| pod.record.last_active.is_none());
            fresh.for_each(|pod| self.unmark(pod));
        }
    }

    fn set_parallelism(&mut self, job: &SeenJob, to: i32, marked: Vec<PodRef>, reason: Reason) {
        let (job, version, from) = (job.name.clone(), job.version, job.parallelism);
        self.push(Operation::SetParallelism { job, version, from, to, marked, reason });
    }

    /// Whether none of the Job's instances was used for long enough, so that the routers may be asked. An objection
    /// of a router to one of them is one to all.
    fn is_idle(&mut self, task: &Wanted, job: &SeenJob, pods: &[&SeenInstance], current: bool) -> bool {
        let idle = task.idle.unwrap_or(self.rules.limits.idle);
        if pods.iter().any(|pod| pod.record.hold != Hold::Free) {
            return false;
        }
        let view = self.view;
        let resting = |pod: &&&SeenInstance| view.rests.contains_key(&*pod.record.id.uid);
        for until in pods.iter().filter(resting).map(|pod| view.rests[&*pod.record.id.uid]) {
            if !self.is_past(until) {
                return false;
            }
        }
        // A change of the parallelism is for somebody's sake, though its Pods may not have appeared yet.
        if !current {
            return true;
        }
        self.is_past(job.since + idle) && pods.iter().all(|pod| self.is_due(after(pod.idle_since(), idle)))
    }

    fn scale_down(&mut self, job: &SeenJob, floor: i32, pods: &[&SeenInstance], current: bool) {
        let reason = if current { Reason::InstanceExcess } else { Reason::RevisionDrained };
        let steps: Vec<Step> = pods
            .iter()
            .map(|pod| {
                let marked = pod.mark.as_ref().map(|_| pod.since);
                self.ask(&pod.record.id.uid, marked, Seen::Instance(Kind::Pod, pod.record.version))
            })
            .collect();
        if steps.iter().all(|step| *step == Step::Go) {
            if pods.is_empty() && self.routers.any_silent(&self.rules.timing, self.now.instant) {
                self.wait_for_routers();
                return;
            }
            let marked = pods.iter().map(|pod| pod.reference()).collect();
            return self.set_parallelism(job, floor, marked, reason);
        }
        let withdraw = steps.contains(&Step::Withdraw);
        for (pod, step) in pods.iter().zip(steps) {
            match step {
                _ if withdraw => self.unmark(pod),
                Step::Mark => {
                    let confirm = super::super::operation::Confirm::Nothing;
                    self.push(Operation::MarkInstance { pod: pod.reference(), reason, confirm });
                }
                _ => {}
            }
        }
    }
}
