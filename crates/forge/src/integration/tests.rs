//! Tables over the plan, and what holds for every state: what was planned and applied is not planned again.

use std::time::Duration;

use agentcube_api::conditions::{self, READY};
use agentcube_api::frontend::integration::IntegrationPhase::{self, Building, Disabled, Failed, Succeeded};
use agentcube_api::labels::{FORGE_REBUILD, hash_label};
use jiff::Timestamp;
use kube::api::ObjectMeta;
use proptest::prelude::*;
use serde_json::json;

use super::Failure;
use super::plan::{JobState, Observed, Operation, Plan, SeenBundle, SeenJob, plan};
use crate::options::Limits;
use crate::raw::Integration;

/// An integration with what surrounds it; what is planned is done to it as the server would.
#[derive(Clone, Debug)]
struct World {
    integration: Integration,
    bundle: Option<SeenBundle>,
    jobs: Vec<SeenJob>,
    limits: Limits,
    now: Timestamp,
    uids: u32,
}

impl World {
    fn new() -> World {
        let metadata = ObjectMeta {
            name: Some("tasks".into()),
            namespace: Some("team".into()),
            uid: Some("fi".into()),
            generation: Some(1),
            ..ObjectMeta::default()
        };
        World {
            integration: Integration::new(metadata, json!({ "displayName": "A" })),
            bundle: None,
            jobs: Vec::new(),
            limits: Limits { retry_delay: Duration::ZERO, ..Limits::default() },
            now: Timestamp::UNIX_EPOCH,
            uids: 0,
        }
    }

    fn plan(&self) -> Plan {
        let hash = self.integration.hash();
        plan(&Observed {
            integration: &self.integration,
            hash: &hash,
            bundle: self.bundle.clone(),
            jobs: self.jobs.clone(),
            limits: &self.limits,
            now: self.now,
        })
    }

    /// Plans and applies once.
    fn step(&mut self) -> Plan {
        let plan = self.plan();
        self.integration.status = Some(plan.status.clone());
        for operation in &plan.operations {
            match operation {
                Operation::CreateJob { name } => {
                    assert!(self.jobs.iter().all(|job| job.name != *name), "{name} is there");
                    self.uids += 1;
                    let (name, uid) = (name.clone(), format!("job-{}", self.uids));
                    self.jobs.push(SeenJob { name, uid, is_ending: false, state: JobState::Running });
                }
                Operation::DeleteJob { name, .. } => self.jobs.retain(|job| job.name != *name),
            }
        }
        plan
    }

    /// Until nothing is left to do. Three passes are always enough.
    fn settle(&mut self) {
        for _ in 0..3 {
            self.step();
        }
        let last = self.plan();
        assert_eq!(last.operations, [], "{last:#?}");
        assert_eq!(Some(&last.status), self.integration.status.as_ref());
    }

    fn set(&mut self, spec: serde_json::Value) {
        self.integration.spec = spec;
        *self.integration.metadata.generation.as_mut().unwrap() += 1;
    }

    fn phase(&self) -> IntegrationPhase {
        self.integration.status.as_ref().unwrap().phase.unwrap()
    }

    fn builds(&self) -> i64 {
        self.integration.status.as_ref().unwrap().builds.unwrap_or_default()
    }

    fn end(&mut self, state: JobState) {
        self.jobs.last_mut().unwrap().state = state;
    }

    fn fail(&mut self, is_final: bool) {
        let said = Failure { is_final, ..Failure::text("broken") };
        self.end(JobState::Failed { at: Some(self.now), said });
    }

    /// What the last Job's runner writes.
    fn write(&mut self, hash: &str) {
        self.bundle = Some(SeenBundle {
            uid: "bundle".into(),
            is_ours: true,
            spec_label: hash_label(hash).to_owned(),
            manifest_hash: "sha256:m".into(),
            built_by: self.jobs.last().map(|job| job.name.clone()),
            is_whole: true,
        });
    }

    fn built() -> World {
        let mut world = World::new();
        world.settle();
        world.write(&world.integration.hash());
        world.end(JobState::Complete);
        world.settle();
        assert_eq!((world.phase(), world.builds()), (Succeeded, 1));
        world
    }
}

#[test]
fn a_build_is_announced_before_it_begins_and_judged_by_its_bundle() {
    let mut world = World::new();
    let first = world.step();
    let active = first.status.active_build.clone().unwrap();
    assert_eq!(first.status.phase, Some(Building));
    assert_eq!(first.operations, [Operation::CreateJob { name: active.job_ref.name.clone() }]);
    assert_eq!((active.attempt, first.status.observed_spec_hash), (1, Some(world.integration.hash())));
    world.settle();
    assert_eq!(
        world.integration.status.as_ref().unwrap().active_build.as_ref().unwrap().job_ref.uid.as_deref(),
        Some("job-1")
    );
    world.write(&world.integration.hash());
    world.settle();
    assert_eq!(world.phase(), Building);
    world.end(JobState::Complete);
    world.settle();
    let status = world.integration.status.clone().unwrap();
    assert_eq!((status.phase, status.active_build), (Some(Succeeded), None));
    assert_eq!(status.observed_manifest_hash.as_deref(), Some("sha256:m"));
    assert_eq!(status.bundle_ref.unwrap().name, "fi-tasks");
    let ready = conditions::find(&status.conditions, READY).unwrap();
    assert_eq!((ready.status.as_str(), ready.observed_generation), ("True", Some(1)));
}

#[test]
fn whoever_crashes_before_the_job_is_there_makes_the_same() {
    let mut world = World::new();
    let plan = world.plan();
    world.integration.status = Some(plan.status.clone());
    assert_eq!(world.plan().operations, plan.operations);
    world.settle();
    assert_eq!((world.jobs.len(), world.builds()), (1, 1));
}

#[test]
fn a_job_that_is_complete_without_its_bundle_has_failed() {
    let mut world = World::new();
    world.settle();
    world.write("sha256:other");
    world.end(JobState::Complete);
    world.settle();
    assert_eq!((world.phase(), world.builds()), (Building, 2));
}

#[test]
fn there_are_three_attempts_and_then_a_rebuild_has_to_be_asked_for() {
    let mut world = World::new();
    for attempt in 1..=3 {
        world.settle();
        assert_eq!(
            world.integration.status.as_ref().unwrap().active_build.as_ref().unwrap().attempt,
            attempt
        );
        world.fail(false);
    }
    world.settle();
    assert_eq!((world.phase(), world.builds()), (Failed, 3));
    let status = world.integration.status.clone().unwrap();
    assert_eq!(status.message.as_deref(), Some("broken (after 3 attempts)"));
    let annotation = |value: &str| Some([(FORGE_REBUILD.to_owned(), value.to_owned())].into());
    world.integration.metadata.annotations = annotation("now");
    world.settle();
    assert_eq!((world.phase(), world.builds()), (Building, 4));
    world.write(&world.integration.hash());
    world.end(JobState::Complete);
    world.settle();
    // The same wish is obeyed once.
    assert_eq!((world.phase(), world.builds()), (Succeeded, 4));
    world.integration.metadata.annotations = annotation("again");
    world.settle();
    assert_eq!((world.phase(), world.builds()), (Building, 5));
    world.fail(true);
    world.settle();
    // A rebuild that fails takes nothing away.
    assert_eq!((world.phase(), world.builds()), (Succeeded, 5));
    assert!(world.integration.status.as_ref().unwrap().message.as_ref().unwrap().contains("broken"));
}

#[test]
fn what_cannot_work_is_not_tried_again_until_the_spec_changes() {
    let mut world = World::new();
    world.settle();
    world.fail(true);
    world.settle();
    assert_eq!((world.phase(), world.builds()), (Failed, 1));
    world.set(json!({ "displayName": "B" }));
    world.settle();
    assert_eq!((world.phase(), world.builds()), (Building, 2));
}

#[test]
fn the_second_attempt_waits_a_while() {
    let mut world = World::new();
    world.limits.retry_delay = Duration::from_secs(5);
    world.settle();
    world.fail(false);
    world.settle();
    assert_eq!(world.builds(), 1);
    assert_eq!(world.plan().requeue, Some(Duration::from_secs(5)));
    world.now = Timestamp::from_second(5).unwrap();
    world.settle();
    assert_eq!(world.builds(), 2);
}

#[test]
fn there_and_back_builds_nothing_twice_while_the_bundle_is_there() {
    let mut world = World::built();
    world.set(json!({ "displayName": "B" }));
    world.settle();
    assert_eq!((world.phase(), world.builds()), (Building, 2));
    // B's Job has written nothing yet.
    world.set(json!({ "displayName": "A" }));
    world.settle();
    assert_eq!((world.phase(), world.builds()), (Succeeded, 2));
    assert!(world.jobs.iter().all(|job| job.state != JobState::Running), "nobody waits for B");
    // Now B is built, and its bundle takes the place of A's; A's old Job is no news.
    world.set(json!({ "displayName": "B" }));
    world.settle();
    world.write(&world.integration.hash());
    world.end(JobState::Complete);
    world.settle();
    world.set(json!({ "displayName": "A" }));
    world.settle();
    assert_eq!((world.phase(), world.builds()), (Building, 4));
    assert_eq!(world.jobs.iter().filter(|job| job.state == JobState::Running).count(), 1);
}

#[test]
fn switching_off_and_on_builds_nothing() {
    let mut world = World::built();
    world.set(json!({ "displayName": "A", "enabled": false }));
    world.settle();
    assert_eq!(world.phase(), Disabled);
    let status = world.integration.status.clone().unwrap();
    assert_eq!(status.bundle_ref.unwrap().name, "fi-tasks");
    assert_eq!(status.observed_generation, Some(2));
    world.set(json!({ "displayName": "A", "enabled": true }));
    world.settle();
    assert_eq!((world.phase(), world.builds()), (Succeeded, 1));
    // While it is off nothing is built, not even what changes; and what runs is stopped.
    world.set(json!({ "displayName": "C" }));
    world.settle();
    world.set(json!({ "displayName": "C", "enabled": false }));
    world.settle();
    assert!(world.jobs.iter().all(|job| job.state != JobState::Running));
}

#[test]
fn a_bundle_that_is_gone_or_spoilt_is_built_again() {
    for spoil in [
        |world: &mut World| world.bundle = None,
        |world: &mut World| world.bundle.as_mut().unwrap().is_whole = false,
        |world: &mut World| world.bundle.as_mut().unwrap().is_ours = false,
    ] {
        let mut world = World::built();
        spoil(&mut world);
        world.settle();
        assert_eq!((world.phase(), world.builds()), (Building, 2));
    }
}

#[test]
fn a_runner_that_dies_after_its_write_has_done_everything() {
    let mut world = World::new();
    world.settle();
    world.write(&world.integration.hash());
    world.fail(false);
    world.settle();
    assert_eq!((world.phase(), world.builds()), (Succeeded, 1));
    // And so has one whose Job somebody deletes.
    let mut world = World::new();
    world.settle();
    world.write(&world.integration.hash());
    world.jobs.clear();
    world.settle();
    assert_eq!((world.phase(), world.builds()), (Succeeded, 1));
}

#[test]
fn old_jobs_go_and_the_latest_stay() {
    let mut world = World::new();
    for number in 0..6 {
        world.set(json!({ "displayName": number.to_string() }));
        world.settle();
        world.write(&world.integration.hash());
        world.end(JobState::Complete);
        world.settle();
    }
    let numbers: Vec<Option<i64>> = world.jobs.iter().map(|job| crate::names::number(&job.name)).collect();
    assert_eq!(numbers, [Some(4), Some(5), Some(6)]);
}

#[derive(Clone, Debug)]
enum Happening {
    Spec(u8, bool),
    Rebuild(u8),
    Complete,
    Fail(bool),
    Write,
    WriteStale,
    DeleteBundle,
    DeleteJobs,
    LoseStatus,
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let one = prop_oneof![
        (0..3_u8, any::<bool>()).prop_map(|(spec, enabled)| Happening::Spec(spec, enabled)),
        (0..3_u8).prop_map(Happening::Rebuild),
        Just(Happening::Complete),
        any::<bool>().prop_map(Happening::Fail),
        Just(Happening::Write),
        Just(Happening::WriteStale),
        Just(Happening::DeleteBundle),
        Just(Happening::DeleteJobs),
        Just(Happening::LoseStatus),
    ];
    proptest::collection::vec(one, 1..24)
}

proptest! {
    #[test]
    fn planning_the_applied_result_does_nothing(happenings in happenings()) {
        let mut world = World::new();
        for happening in happenings {
            match happening {
                Happening::Spec(spec, enabled) => world.set(json!({ "displayName": spec, "enabled": enabled })),
                Happening::Rebuild(value) => {
                    world.integration.metadata.annotations = Some([(FORGE_REBUILD.to_owned(), value.to_string())].into());
                }
                Happening::Complete if !world.jobs.is_empty() => world.end(JobState::Complete),
                Happening::Fail(is_final) if !world.jobs.is_empty() => world.fail(is_final),
                Happening::Write => world.write(&world.integration.hash()),
                Happening::WriteStale => world.write("sha256:stale"),
                Happening::DeleteBundle => world.bundle = None,
                Happening::DeleteJobs => world.jobs.clear(),
                Happening::LoseStatus => world.integration.status = None,
                Happening::Complete | Happening::Fail(_) => {}
            }
            world.settle();
            let running = world.jobs.iter().filter(|job| job.state == JobState::Running).count();
            prop_assert!(running <= 1, "at most one build runs: {world:#?}");
            let status = world.integration.status.as_ref().unwrap();
            prop_assert_eq!(status.observed_generation, world.integration.metadata.generation);
            if status.phase == Some(Succeeded) {
                let label = hash_label(&world.integration.hash()).to_owned();
                prop_assert_eq!(&world.bundle.as_ref().unwrap().spec_label, &label);
            }
        }
    }
}
