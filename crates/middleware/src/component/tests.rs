//! The Component planner with Groups that do as they are told, fail, or take their time.

use std::collections::BTreeMap;

use agentcube_api::conditions;
use agentcube_api::middleware::group::GroupPodStatus;
use agentcube_api::middleware::parts::PartPhase;
use agentcube_api::middleware::{Component, Group, GroupStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::json;

use super::plan::{Observed, Operation, Plan, group_spec, plan};
use crate::order::Order;
use crate::refusals::Refused;

struct World {
    component: Component,
    groups: BTreeMap<String, Group>,
    refused: BTreeMap<String, Refused>,
    answer: Result<Order, String>,
    asked: u32,
    now: Timestamp,
    gone: bool,
}

fn order(names: &str, concurrent: bool) -> Result<Order, String> {
    Ok(Order { names: names.split_whitespace().map(str::to_owned).collect(), concurrent })
}

impl World {
    fn new(groups: &str) -> World {
        let groups: Vec<_> = groups.split_whitespace().map(|name| json!({ "name": name })).collect();
        let component = json!({
            "metadata": { "name": "c", "namespace": "here", "generation": 1,
                "finalizers": ["middleware.io/stop-order"] },
            "spec": { "appRef": { "name": "app" }, "pluginRef": { "name": "p-v1" },
                "runtime": { "name": "r", "version": "1" }, "groups": groups },
        });
        World {
            component: serde_json::from_value(component).unwrap(),
            groups: BTreeMap::new(),
            refused: BTreeMap::new(),
            answer: Err("nobody is there".into()),
            asked: 0,
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            gone: false,
        }
    }

    fn plan(&mut self) -> Plan {
        let (component, groups, refused) = (&self.component, &self.groups, &self.refused);
        let observed = |answer| Observed { component, groups, refused, answer, now: self.now };
        let first = plan(&observed(None));
        if first.question.is_none() {
            return first;
        }
        let second = plan(&observed(Some(&self.answer)));
        assert_eq!(second.question, None, "an answer is an answer");
        self.asked += 1;
        second
    }

    fn pass(&mut self, writes: usize) -> bool {
        let plan = self.plan();
        let any = !plan.operations.is_empty();
        for operation in plan.operations.into_iter().take(writes) {
            match operation {
                Operation::Hold => unreachable!(),
                Operation::WriteStatus(status) => self.component.status = Some(*status),
                Operation::Tell { group, spec } => {
                    self.check(&group);
                    let object = self.groups.entry(group.clone()).or_insert_with(|| {
                        let metadata = json!({ "name": group, "generation": 0 });
                        serde_json::from_value(json!({ "metadata": metadata, "spec": &*spec })).unwrap()
                    });
                    object.spec = *spec;
                    object.metadata.generation = object.metadata.generation.map(|generation| generation + 1);
                }
                Operation::Remove { group } => {
                    let object = self.groups.get_mut(&group).unwrap();
                    object.metadata.deletion_timestamp = Some(Time(self.now));
                }
                Operation::Release => self.gone = true,
            }
        }
        any
    }

    fn settle(&mut self) {
        while !self.gone && self.pass(usize::MAX) {}
    }

    /// One after another: no group that is at rest is told anything while another is between two states, unless the agent
    /// allows it.
    fn check(&self, told: &str) {
        let course = self.component.status.as_ref().and_then(|status| status.current_operation.as_ref());
        let at_rest = self.groups.get(told).is_none_or(|group| !self.is_between(group));
        if at_rest && !course.expect("it is written down first").concurrent {
            let others = self.component.spec.groups.iter().filter(|group| group.name != told);
            let busy =
                others.filter_map(|group| self.groups.get(&group.name)).find(|group| self.is_between(group));
            assert!(busy.is_none(), "{told} is told while another is at work");
        }
    }

    fn is_between(&self, group: &Group) -> bool {
        let status = group.status.clone().unwrap_or_default();
        let settled = [Some(PartPhase::Ready), Some(PartPhase::Failed)].contains(&status.phase);
        status.observed_generation != group.metadata.generation || !settled
    }

    fn report(&mut self, group: &str, phase: PartPhase) {
        self.groups.retain(|name, object| name != group || object.metadata.deletion_timestamp.is_none());
        if let Some(object) = self.groups.get_mut(group) {
            let observed_generation = object.metadata.generation;
            let pods = object.status.take().unwrap_or_default().pods;
            object.status =
                Some(GroupStatus { phase: Some(phase), observed_generation, pods, ..GroupStatus::default() });
        }
    }

    fn obey(&mut self) {
        for name in self.groups.keys().cloned().collect::<Vec<_>>() {
            self.report(&name, PartPhase::Ready);
        }
    }

    fn finish(&mut self) {
        for _ in 0..50 {
            self.settle();
            self.obey();
            if self.gone || self.plan().operations.is_empty() {
                return;
            }
        }
        panic!("no end: {:#?}", self.component.status);
    }

    fn edit(&mut self, change: impl FnOnce(&mut Component)) {
        change(&mut self.component);
        self.component.metadata.generation = self.component.metadata.generation.map(|number| number + 1);
    }

    fn phase(&self) -> PartPhase {
        self.component.status.clone().unwrap_or_default().phase.unwrap()
    }

    fn versions(&self) -> Vec<&str> {
        self.groups.values().map(|group| group.spec.runtime.version.as_str()).collect()
    }
}

fn upgrade(world: &mut World, version: &str) {
    world.edit(|component| component.spec.runtime.version = version.into());
}

#[test]
fn groups_are_treated_in_the_agents_order() {
    let mut world = World::new("a b c");
    world.finish();
    assert_eq!((world.phase(), world.asked), (PartPhase::Ready, 0), "nobody to ask at first");
    world.answer = order("c a b", false);
    upgrade(&mut world, "2");
    for versions in [["1", "1", "2"], ["2", "1", "2"], ["2", "2", "2"]] {
        world.settle();
        assert_eq!(world.versions(), versions);
        assert_eq!(world.phase(), PartPhase::Progressing);
        world.obey();
    }
    world.finish();
    assert_eq!((world.phase(), world.asked), (PartPhase::Ready, 1));
    world.answer = order("", true);
    upgrade(&mut world, "3");
    world.settle();
    assert_eq!(world.versions(), ["3", "3", "3"]);
}

#[test]
fn without_an_agent_one_after_another_leader_last() {
    for answer in [Err("no".into()), order("a b", true), order("a a b", true)] {
        let mut world = World::new("a b c");
        world.finish();
        let leader = GroupPodStatus { name: "a-0".into(), leader: true, ..GroupPodStatus::default() };
        world.groups.get_mut("a").unwrap().status.as_mut().unwrap().pods = vec![leader];
        world.answer = answer;
        upgrade(&mut world, "2");
        world.settle();
        assert_eq!(world.versions(), ["1", "2", "1"]);
        let status = world.component.status.clone().unwrap();
        assert_eq!(status.current_operation.unwrap().order, ["b", "c", "a"]);
        let known = conditions::find(&status.conditions, conditions::middleware::ORDER_KNOWN).unwrap();
        assert_eq!(known.status, "False");
    }
}

#[test]
fn a_failure_stops_and_the_way_back_begins_where_it_stopped() {
    let mut world = World::new("a b c");
    world.finish();
    world.answer = order("a b c", false);
    upgrade(&mut world, "2");
    world.settle();
    world.obey();
    world.settle();
    world.report("b", PartPhase::Failed);
    world.settle();
    assert_eq!((world.phase(), world.versions()), (PartPhase::Failed, vec!["2", "2", "1"]));
    // The App takes it back; meanwhile b is at work again.
    world.report("b", PartPhase::Progressing);
    upgrade(&mut world, "1");
    world.settle();
    assert_eq!(world.versions(), ["2", "1", "1"], "b first: a waits until b is at rest");
    world.finish();
    assert_eq!((world.phase(), world.versions()), (PartPhase::Ready, vec!["1", "1", "1"]));
}

#[test]
fn what_the_server_refuses_is_said_and_not_tried_again() {
    let mut world = World::new("a b");
    let template = world.component.spec.groups[0].clone();
    let what = crate::refusals::form(&group_spec(&world.component, &template));
    let reason = conditions::middleware::REASON_FORBIDDEN;
    let fault = crate::group::observe::Fault { reason, message: "not allowed".into() };
    world.refused = [("a".to_owned(), Refused { what, fault })].into();
    world.settle();
    let status = world.component.status.clone().unwrap();
    let ready = conditions::find(&status.conditions, conditions::READY).unwrap();
    assert_eq!((status.phase, ready.reason.as_str()), (Some(PartPhase::Failed), reason));
    assert_eq!((ready.message.as_str(), world.groups.len()), ("group a: not allowed", 0));
    // Something else is wanted, or some time has passed.
    world.refused.clear();
    world.finish();
    assert_eq!((world.phase(), world.groups.len()), (PartPhase::Ready, 2));
}

#[test]
fn groups_come_and_go() {
    let mut world = World::new("a b");
    world.finish();
    world.edit(|component| {
        component.spec.groups[0].name = "c".into();
    });
    world.settle();
    assert!(world.groups["a"].metadata.deletion_timestamp.is_none(), "first what is new");
    world.finish();
    assert_eq!(world.groups.keys().collect::<Vec<_>>(), ["b", "c"]);
    world.component.metadata.deletion_timestamp = Some(Time(world.now));
    world.answer = order("c b", false);
    world.settle();
    assert!(world.groups["b"].metadata.deletion_timestamp.is_none());
    world.finish();
    assert!(world.gone);
}

#[derive(Clone, Debug)]
enum Step {
    Version(u8),
    Groups(u8),
    Pass(usize),
    Report(usize, u8),
    Answer(Result<(Vec<u8>, bool), String>),
}

fn step() -> impl Strategy<Value = Step> {
    let answer = prop_oneof![
        Just(Err("no".to_owned())),
        (prop::collection::vec(0..4u8, 0..4), any::<bool>()).prop_map(Ok),
        Just(Ok((vec![2, 0, 1], false))),
    ];
    prop_oneof![
        1 => (0..3u8).prop_map(Step::Version),
        1 => (1..4u8).prop_map(Step::Groups),
        3 => (0..4usize).prop_map(Step::Pass),
        3 => (0..3usize, 0..3u8).prop_map(|(at, phase)| Step::Report(at, phase)),
        1 => answer.prop_map(Step::Answer),
    ]
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_groups_become_what_is_wanted_last(steps in prop::collection::vec(step(), 1..50)) {
        let mut world = World::new("a b");
        for step in steps {
            match step {
                Step::Version(version) => upgrade(&mut world, &version.to_string()),
                Step::Groups(count) => world.edit(|component| {
                    let template = component.spec.groups[0].clone();
                    component.spec.groups = NAMES[..usize::from(count)].iter().map(|name| {
                        let mut group = template.clone();
                        group.name = (*name).into();
                        group
                    }).collect();
                }),
                Step::Pass(writes) => drop(world.pass(writes)),
                Step::Report(at, phase) => {
                    let phases = [PartPhase::Ready, PartPhase::Failed, PartPhase::Progressing];
                    // Who is at rest stays so until told something else.
                    let name = NAMES[at];
                    if world.groups.get(name).is_some_and(|group| world.is_between(group)) {
                        world.report(name, phases[usize::from(phase)]);
                    }
                }
                Step::Answer(answer) => world.answer = answer.map(|(names, concurrent)| Order {
                    names: names.into_iter().map(|at| NAMES[usize::from(at)].to_owned()).collect(), concurrent,
                }),
            }
        }
        world.finish();
        prop_assert_eq!(world.phase(), PartPhase::Ready);
        prop_assert_eq!(world.groups.len(), world.component.spec.groups.len());
        for group in &world.component.spec.groups {
            prop_assert_eq!(&world.groups[&group.name].spec, &group_spec(&world.component, group));
        }
        prop_assert!(world.plan().operations.is_empty());
    }
}
