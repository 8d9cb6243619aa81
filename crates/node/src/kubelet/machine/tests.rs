//! The machine against a node that does at once what it is asked, and the properties that hold for any news.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use proptest::prelude::*;
use serde_json::json;

use super::plan::Plan;
use super::state::Part;
use super::*;
use crate::kubelet::status::{Surroundings, status};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 9);

fn pod(spec: serde_json::Value) -> Pod {
    let meta = json!({"name": "p", "namespace": "n", "uid": "u", "generation": 1});
    serde_json::from_value(json!({"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})).unwrap()
}

/// A Pod with a node that does everything at once.
struct World {
    pod: Pod,
    state: State,
    now: Timestamp,
    timing: Timing,
    /// Everything that was asked for, as one word each.
    log: Vec<String>,
    /// How the next starts go: an error, or fine.
    start_errors: VecDeque<&'static str>,
    pull_errors: VecDeque<(&'static str, &'static str)>,
    runs: u32,
}

impl World {
    fn new(spec: serde_json::Value) -> Self {
        let pod = pod(spec);
        let now = Timestamp::from_second(1_000_000).unwrap();
        let mut state = State::adopt(&pod, now);
        state.started = Some(now);
        let (log, start_errors, pull_errors) = Default::default();
        let mut world =
            Self { pod, state, now, timing: Timing::default(), log, start_errors, pull_errors, runs: 0 };
        world.settle();
        world
    }

    fn status(&self) -> PodStatus {
        let around = Surroundings { host: IpAddr::from([192, 0, 2, 1]), now: self.now, timing: &self.timing };
        status(&self.pod, &self.state, around)
    }

    /// Plans and performs until there is nothing to do but wait.
    fn settle(&mut self) -> Plan {
        for _ in 0..200 {
            self.pod.status = Some(self.status());
            let was = std::mem::replace(&mut self.state.reported, true);
            let plan = plan(&self.pod, &self.state, self.now, &self.timing);
            if plan.operations.is_empty() && was {
                return plan;
            }
            for operation in &plan.operations {
                self.state.begin(&self.pod, operation, self.now, &self.timing);
            }
            let again = super::plan(&self.pod, &self.state, self.now, &self.timing);
            let twice = again.operations.iter().find(|operation| plan.operations.contains(operation));
            assert_eq!(twice, None, "planned again after {:?}", plan.operations);
            for operation in plan.operations {
                self.state.reported = false;
                if let Some(report) = self.perform(operation) {
                    self.state.absorb(&self.pod, report, self.now, &self.timing);
                }
            }
        }
        panic!("it never settles: {:?}", self.log);
    }

    fn perform(&mut self, operation: Operation) -> Option<Report> {
        let id = |world: &Self, name: &str| world.id(name);
        let (word, report) = match operation {
            Operation::PrepareVolumes => ("volumes".into(), Some(Report::VolumesReady)),
            Operation::CreateSandbox => ("sandbox".into(), Some(Report::SandboxReady(ADDRESS))),
            Operation::Pull { container } => match self.pull_errors.pop_front() {
                Some((reason, message)) => (
                    format!("pull {container}"),
                    Some(Report::PullFailed { container, reason, message: message.into() }),
                ),
                None => (
                    format!("pull {container}"),
                    Some(Report::Pulled { container, image_id: "sha256:1".into() }),
                ),
            },
            Operation::Start { container, attempt } => {
                self.runs += 1;
                let (word, id) =
                    (format!("start {container} {attempt}"), format!("{container}-{}", self.runs));
                match self.start_errors.pop_front() {
                    Some(message) => {
                        let message = message.to_owned();
                        (word, Some(Report::StartFailed { container, id, message }))
                    }
                    None => (word, Some(Report::Started { container, id })),
                }
            }
            Operation::AnnounceBackOff { message, .. } => (message, None),
            Operation::PostStart { container } => {
                let id = id(self, &container);
                (format!("post-start {container}"), Some(Report::HookReturned { container, id, error: None }))
            }
            Operation::Probe { container, kind, .. } => (format!("probe {container} {kind:?}"), None),
            Operation::Stop { message, hook, container, .. } => {
                let id = id(self, &container);
                let hook = hook.then_some(Report::PreStopReturned { container, id });
                (message, hook)
            }
            Operation::Signal { container } => (format!("signal {container}"), None),
            Operation::Kill { container } => {
                self.log.push(format!("kill {container}"));
                self.exit(&container, 137);
                return None;
            }
            Operation::CancelPull { container } => (format!("cancel {container}"), None),
            Operation::Clean { container, .. } => (format!("clean {container}"), None),
            Operation::End(end) => (end.reason.to_owned(), None),
            Operation::BeginEnding => return None,
            Operation::RemoveSandbox => ("-sandbox".into(), Some(Report::SandboxRemoved)),
            Operation::RemoveVolumes => ("-volumes".into(), Some(Report::VolumesRemoved)),
            Operation::RemoveDirectory => ("-directory".into(), Some(Report::DirectoryRemoved)),
            Operation::Delete => ("delete".into(), Some(Report::Deleted)),
        };
        self.log.push(word);
        report
    }

    fn id(&self, name: &str) -> String {
        self.state.containers[name].running().map(|it| it.id.clone()).unwrap_or_default()
    }

    fn report(&mut self, report: Report) {
        self.state.absorb(&self.pod, report, self.now, &self.timing);
        self.state.reported = false;
    }

    fn exit(&mut self, name: &str, code: i32) {
        let id = self.id(name);
        let since = self.state.containers[name].running().map(|it| it.since);
        let reason = if code == 0 { "Completed" } else { "Error" };
        let (at, message) = (Some(self.now), String::new());
        let ended = Ended {
            id: id.clone(),
            code,
            reason: reason.into(),
            message,
            since,
            at,
            stopped_for: None,
            cleaned: false,
        };
        self.report(Report::Exited { container: name.into(), id, ended });
    }

    fn exits(&mut self, name: &str, code: i32) -> Plan {
        self.exit(name, code);
        self.settle()
    }

    fn answers(&mut self, name: &str, kind: Kind, verdict: Verdict) -> Plan {
        let id = self.id(name);
        self.report(Report::Probed { container: name.into(), id, kind, verdict });
        self.settle()
    }

    /// Lets time pass, to the second.
    fn pass(&mut self, count: i64) -> Plan {
        self.now = after(self.now, seconds(count));
        self.settle()
    }

    fn delete(&mut self, grace: i64) -> Plan {
        self.pod.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(after(self.now, seconds(grace))));
        self.pod.metadata.deletion_grace_period_seconds = Some(grace);
        self.state.reported = false;
        self.settle()
    }

    fn said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    fn phase(&self) -> String {
        self.status().phase.unwrap()
    }

    fn container(&self, name: &str) -> ContainerStatus {
        let status = self.status();
        let all = status.init_container_statuses.into_iter().chain(status.container_statuses).flatten();
        all.into_iter().find(|status| status.name == name).unwrap()
    }

    /// The reason of its waiting or terminated state, or `Running`.
    fn word(&self, name: &str) -> String {
        let state = self.container(name).state.unwrap();
        let waiting = state.waiting.and_then(|it| it.reason);
        waiting.or(state.terminated.and_then(|it| it.reason)).unwrap_or_else(|| "Running".into())
    }

    fn condition(&self, kind: &str) -> String {
        let conditions = self.status().conditions.unwrap();
        let it = conditions.into_iter().find(|condition| condition.type_ == kind).unwrap();
        format!("{} {} {}", it.status, it.reason.unwrap_or_default(), it.message.unwrap_or_default())
            .trim()
            .to_owned()
    }
}

fn one(policy: &str) -> serde_json::Value {
    json!({"restartPolicy": policy, "containers": [{"name": "c", "image": "i"}]})
}

#[test]
fn runs_to_completion_and_gives_everything_back() {
    let mut world = World::new(one("Never"));
    assert_eq!(world.said(), ["volumes", "sandbox", "pull c", "start c 0"]);
    assert_eq!((world.phase(), world.condition("Ready")), ("Running".into(), "True".into()));
    let plan = world.exits("c", 0);
    assert_eq!(world.said(), ["clean c", "-sandbox", "-volumes"]);
    assert!(!plan.finished, "the object is still there");
    assert_eq!((world.phase(), world.word("c")), ("Succeeded".into(), "Completed".into()));
    assert_eq!(world.condition("Ready"), "False PodCompleted");
    assert_eq!(world.condition("Initialized"), "True PodCompleted");
    assert_eq!(world.condition("PodReadyToStartContainers"), "False");
    assert_eq!(world.status().pod_ip.as_deref(), Some("10.244.0.9"), "the address stays in the status");
}

#[test]
fn restart_policies() {
    let table = [("Always", 0, "Running"), ("Always", 1, "Running"), ("OnFailure", 0, "Succeeded")];
    let rest = [("OnFailure", 3, "Running"), ("Never", 0, "Succeeded"), ("Never", 3, "Failed")];
    for (policy, code, phase) in table.into_iter().chain(rest) {
        let mut world = World::new(one(policy));
        world.exits("c", code);
        assert_eq!(world.phase(), phase, "{policy} {code}");
        let restarts = i32::from(phase == "Running");
        assert_eq!(world.container("c").restart_count, restarts, "{policy} {code}");
    }
}

#[test]
fn crash_loops_back_off_and_recover() {
    let mut world = World::new(one("Always"));
    world.exits("c", 1);
    assert_eq!(
        (world.word("c"), world.container("c").restart_count),
        ("Running".into(), 1),
        "at once, first"
    );
    world.said();
    let plan = world.exits("c", 1);
    assert_eq!(world.said(), ["clean c", "Back-off restarting failed container c in pod p_n(u)"]);
    assert_eq!(plan.wake, Some(after(world.now, seconds(10))));
    assert_eq!((world.word("c"), world.phase()), ("CrashLoopBackOff".into(), "Running".into()));
    let state = world.container("c").state.unwrap().waiting.unwrap();
    assert_eq!(state.message.unwrap(), "back-off 10s restarting failed container=c pod=p_n(u)");
    assert_eq!(world.container("c").last_state.unwrap().terminated.unwrap().exit_code, 1);
    assert_eq!(world.condition("Ready"), "False ContainersNotReady containers with unready status: [c]");
    world.pass(9);
    assert_eq!(world.word("c"), "CrashLoopBackOff");
    world.pass(1);
    assert_eq!((world.word("c"), world.container("c").restart_count), ("Running".into(), 2));
    world.exits("c", 0);
    assert_eq!(world.settle().wake, Some(after(world.now, seconds(20))), "success counts as well");
    world.pass(20);
    world.pass(601);
    world.exits("c", 1);
    assert_eq!(world.word("c"), "Running", "a long run is forgiven");
}

#[test]
fn init_containers_run_in_order_and_once() {
    let spec = json!({"restartPolicy": "Always", "containers": [{"name": "c", "image": "i"}],
        "initContainers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]});
    let mut world = World::new(spec);
    assert_eq!(world.said(), ["volumes", "sandbox", "pull a", "start a 0"]);
    assert_eq!((world.phase(), world.word("c")), ("Pending".into(), "PodInitializing".into()));
    let expected = "False ContainersNotInitialized containers with incomplete status: [a b]";
    assert_eq!(world.condition("Initialized"), expected);
    world.exits("a", 1);
    assert_eq!(world.said(), ["clean a", "pull a", "start a 1"]);
    world.exits("a", 0);
    assert_eq!(world.said(), ["clean a", "pull b", "start b 0"]);
    assert!(world.container("a").ready);
    world.exits("b", 0);
    assert_eq!(world.said(), ["clean b", "pull c", "start c 0"]);
    assert_eq!(world.condition("Initialized"), "True");
    world.exits("c", 1);
    assert_eq!(world.said(), ["clean c", "pull c", "start c 1"]);
}

#[test]
fn a_failed_init_container_fails_a_pod_that_never_restarts() {
    let mut spec = one("Never");
    spec["initContainers"] = json!([{"name": "a", "image": "i"}]);
    let mut world = World::new(spec);
    world.exits("a", 2);
    assert_eq!((world.phase(), world.word("a")), ("Failed".into(), "Error".into()));
    assert_eq!(world.word("c"), "PodInitializing", "it was never its turn");
    assert!(world.said().contains(&"-sandbox".to_owned()));
}

#[test]
fn no_phase_is_final_while_a_sidecar_runs() {
    let mut spec = one("Never");
    spec["initContainers"] =
        json!([{"name": "s", "image": "i", "restartPolicy": "Always"}, {"name": "a", "image": "i"}]);
    let mut world = World::new(spec);
    world.exits("a", 1);
    assert_eq!(world.phase(), "Pending", "the sidecar is being stopped");
    world.exits("s", 143);
    assert_eq!(world.phase(), "Failed");
}

#[test]
fn sidecars_start_in_order_and_end_last() {
    let mut spec = one("Never");
    let probe = json!({"tcpSocket": {"port": 1}, "periodSeconds": 1});
    spec["initContainers"] = json!([{"name": "s", "image": "i", "restartPolicy": "Always", "startupProbe": probe},
        {"name": "t", "image": "i", "restartPolicy": "Always"}]);
    let mut world = World::new(spec);
    assert_eq!(world.said(), ["volumes", "sandbox", "pull s", "start s 0", "probe s Startup"]);
    assert_eq!(world.phase(), "Pending");
    world.answers("s", Kind::Startup, Verdict::Success);
    assert_eq!(world.said(), ["pull t", "start t 0", "pull c", "start c 0"]);
    assert_eq!(world.phase(), "Running");
    world.exits("t", 1);
    assert_eq!(world.said(), ["clean t", "pull t", "start t 1"], "kept running");
    world.exits("c", 0);
    assert_eq!(world.said(), ["clean c", "Stopping container t", "signal t"]);
    assert_eq!(world.phase(), "Running", "sidecars still run");
    world.exits("t", 143);
    assert_eq!(world.said(), ["clean t", "Stopping container s", "signal s"]);
    world.exits("s", 143);
    assert_eq!(
        (world.phase(), world.said()),
        ("Succeeded".into(), vec!["clean s".into(), "-sandbox".into(), "-volumes".into()])
    );
}

#[test]
fn graceful_deletion_hooks_signals_kills_and_deletes() {
    let mut spec = one("Always");
    spec["containers"][0]["lifecycle"] =
        json!({"preStop": {"exec": {"command": ["x"]}}, "postStart": {"exec": {"command": ["y"]}}});
    let mut world = World::new(spec);
    assert_eq!(world.said(), ["volumes", "sandbox", "pull c", "start c 0", "post-start c"]);
    let plan = world.delete(30);
    assert_eq!(world.said(), ["Stopping container c", "signal c"]);
    assert_eq!(plan.wake, Some(after(world.now, seconds(30))));
    world.pass(30);
    assert_eq!(world.said(), ["kill c", "clean c", "-sandbox", "-volumes", "delete"]);
    assert_eq!(
        (world.phase(), world.container("c").state.unwrap().terminated.unwrap().exit_code),
        ("Failed".into(), 137)
    );
    world.state.gone = true;
    assert!(world.settle().finished);
    assert_eq!(world.said(), ["-directory"]);
}

#[test]
fn a_shorter_grace_counts_but_leaves_a_moment() {
    let mut world = World::new(one("Always"));
    world.delete(30);
    world.delete(0);
    world.said();
    world.pass(1);
    assert_eq!(world.said(), [""; 0]);
    world.pass(1);
    assert_eq!(world.said()[0], "kill c");
}

#[test]
fn a_broken_container_is_stopped_and_started_again() {
    let mut spec = one("OnFailure");
    spec["containers"][0]["livenessProbe"] =
        json!({"exec": {"command": ["x"]}, "failureThreshold": 1, "terminationGracePeriodSeconds": 5});
    let mut world = World::new(spec);
    world.said();
    let plan = world.answers("c", Kind::Liveness, Verdict::Failure("no".into()));
    assert_eq!(world.said(), ["Container c failed liveness probe, will be restarted", "signal c"]);
    assert_eq!(plan.wake, Some(after(world.now, seconds(5))), "the probe's own grace");
    world.exits("c", 0);
    assert_eq!(world.container("c").restart_count, 1, "though it ended well");
    assert_eq!(world.word("c"), "Running");
}

#[test]
fn readiness_follows_the_probe_and_the_gates() {
    let mut spec = one("Always");
    spec["containers"][0]["readinessProbe"] = json!({"exec": {"command": ["x"]}, "failureThreshold": 1});
    spec["readinessGates"] = json!([{"conditionType": "example.com/gate"}]);
    let mut world = World::new(spec);
    assert_eq!(
        world.condition("ContainersReady"),
        "False ContainersNotReady containers with unready status: [c]"
    );
    world.answers("c", Kind::Readiness, Verdict::Success);
    assert_eq!(world.condition("ContainersReady"), "True");
    let missing = "corresponding condition of pod readiness gate \"example.com/gate\" does not exist.";
    assert_eq!(world.condition("Ready"), format!("False ReadinessGatesNotReady {missing}"));
    let gate = serde_json::from_value(json!({"type": "example.com/gate", "status": "True"})).unwrap();
    world.pod.status.as_mut().unwrap().conditions.as_mut().unwrap().push(gate);
    assert_eq!(world.condition("Ready"), "True");
    assert_eq!(world.condition("example.com/gate"), "True", "it is not ours to remove");
}

#[test]
fn pulls_back_off_after_the_error_was_told() {
    let mut world = World::new(json!({"containers": []}));
    world.pod = pod(one("Always"));
    world.state = State::adopt(&world.pod, world.now);
    world.pull_errors = [("ErrImagePull", "no such host"), ("ErrImagePull", "again")].into();
    world.settle();
    assert!(world.said().contains(&"Back-off pulling image \"i\"".to_owned()));
    assert_eq!((world.word("c"), world.phase()), ("ImagePullBackOff".into(), "Pending".into()));
    let message = world.container("c").state.unwrap().waiting.unwrap().message.unwrap();
    assert_eq!(message, "Back-off pulling image \"i\": ErrImagePull: no such host");
    assert_eq!(world.pass(10).wake, Some(after(world.now, seconds(20))));
    world.pass(20);
    assert_eq!((world.word("c"), world.container("c").restart_count), ("Running".into(), 0));
}

#[test]
fn a_program_that_cannot_be_executed() {
    let mut world = World::new(json!({"containers": []}));
    world.pod = pod(one("Always"));
    world.state = State::adopt(&world.pod, world.now);
    world.start_errors = ["no such file", "no such file"].into();
    world.settle();
    assert_eq!(world.word("c"), "CrashLoopBackOff");
    let last = world.container("c").last_state.unwrap().terminated.unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (128, Some("StartError")));
    assert_eq!(last.message.as_deref(), Some("no such file"));
}

#[test]
fn deadlines_end_a_pod() {
    let mut spec = one("Always");
    spec["activeDeadlineSeconds"] = json!(60);
    let mut world = World::new(spec);
    world.said();
    world.pass(60);
    assert_eq!(world.said(), ["DeadlineExceeded", "Stopping container c", "signal c"]);
    assert_eq!(world.phase(), "Running", "not before its containers ended");
    world.exits("c", 0);
    let status = world.status();
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some("DeadlineExceeded"))
    );
}

#[test]
fn containers_that_another_process_ran_are_started_again() {
    for (policy, phase, restarts) in
        [("Always", "Running", 1), ("OnFailure", "Running", 1), ("Never", "Failed", 0)]
    {
        let mut before = World::new(one(policy));
        assert_eq!(before.word("c"), "Running");
        before.state = State::adopt(&before.pod, before.now);
        before.settle();
        assert_eq!(
            (before.phase().as_str(), before.container("c").restart_count),
            (phase, restarts),
            "{policy}"
        );
        let states = before.container("c");
        let ended = states.last_state.unwrap().terminated.or(states.state.unwrap().terminated).unwrap();
        assert_eq!((ended.exit_code, ended.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    }
}

#[test]
fn a_finished_pod_stays_finished_for_the_next_process() {
    let mut world = World::new(one("OnFailure"));
    world.exits("c", 0);
    let status = world.status();
    world.said();
    world.state = State::adopt(&world.pod, world.now);
    world.settle();
    assert_eq!(world.said(), ["-sandbox", "-volumes"]);
    assert_eq!(world.status(), status);
}

#[test]
fn deletion_before_anything_ran() {
    let mut world = World::new(json!({"containers": []}));
    world.pod = pod(one("Always"));
    world.state = State { volumes: Part::Making, ..State::adopt(&world.pod, world.now) };
    world.said();
    world.delete(30);
    assert_eq!(world.said(), ["-sandbox"], "volumes are still being made");
    world.report(Report::VolumesReady);
    world.settle();
    assert_eq!(world.said(), ["-volumes", "delete"]);
    assert_eq!((world.phase(), world.word("c")), ("Failed".into(), "ContainerStatusUnknown".into()));
}

#[test]
fn a_node_that_stops_tells_nobody() {
    let mut world = World::new(one("Never"));
    world.said();
    world.state.leaving = true;
    let plan = world.settle();
    assert_eq!(
        (world.said(), plan.wake),
        (vec!["Stopping container c".into(), "signal c".into()], Some(after(world.now, seconds(5))))
    );
    world.exit("c", 0);
    assert!(world.settle().finished);
    assert_eq!(world.said(), ["clean c", "-sandbox"], "volumes and directory are kept for the next process");
}

#[derive(Debug, Clone)]
enum Step {
    Exit(bool, i32),
    Probe(bool, u8, bool),
    Pass(i64),
    StartFails,
    PullFails,
    Delete(i64),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (any::<bool>(), 0..3i32).prop_map(|(which, code)| Step::Exit(which, code)),
        4 => (any::<bool>(), 0..3u8, any::<bool>()).prop_map(|(which, kind, good)| Step::Probe(which, kind, good)),
        3 => (0..40i64).prop_map(Step::Pass),
        1 => Just(Step::StartFails),
        1 => Just(Step::PullFails),
        1 => (0..20i64).prop_map(Step::Delete),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..30)
}

proptest! {
    /// Whatever happens: planning settles, counts never fall, final phases stay, a run that ended never runs again,
    /// and a deleted Pod ends.
    #[test]
    fn always_settles_and_never_goes_back(policy in 0..3usize, steps in steps()) {
        let probe = json!({"exec": {"command": ["x"]}, "periodSeconds": 1, "failureThreshold": 2});
        let container = |name: &str| json!({"name": name, "image": "i", "livenessProbe": probe,
            "readinessProbe": probe, "startupProbe": probe});
        let policy = ["Always", "OnFailure", "Never"][policy];
        let mut world = World::new(json!({"restartPolicy": policy,
            "containers": [container("c")], "initContainers": [{"name": "a", "image": "i"}]}));
        let mut before = world.status();
        let mut over: Vec<String> = Vec::new();
        for step in steps {
            let name = |which: bool| if which { "c" } else { "a" };
            match step {
                Step::Exit(which, code) => { world.exits(name(which), code); }
                Step::Probe(which, kind, good) => {
                    let verdict = if good { Verdict::Success } else { Verdict::Failure("no".into()) };
                    world.answers(name(which), Kind::ALL[usize::from(kind)], verdict);
                }
                Step::Pass(count) => { world.pass(count); }
                Step::StartFails => world.start_errors.push_back("no"),
                Step::PullFails => world.pull_errors.push_back(("ErrImagePull", "no")),
                Step::Delete(grace) => { world.delete(grace); }
                Step::Restart => { world.state = State::adopt(&world.pod, world.now); world.settle(); }
            }
            let status = world.status();
            let all = |status: &PodStatus| -> Vec<ContainerStatus> {
                let init = status.init_container_statuses.clone().into_iter();
                init.chain(status.container_statuses.clone()).flatten().collect()
            };
            for (old, new) in all(&before).iter().zip(all(&status)) {
                prop_assert!(new.restart_count >= old.restart_count, "{old:?} {new:?}");
                let state = new.state.unwrap_or_default();
                if let Some(id) = state.terminated.and_then(|it| it.container_id) {
                    over.push(id);
                }
                if state.running.is_some() {
                    let id = new.container_id.unwrap_or_default();
                    prop_assert!(!over.contains(&id), "{id} ended and runs");
                }
            }
            if matches!(before.phase.as_deref(), Some("Succeeded" | "Failed")) {
                prop_assert_eq!(&before.phase, &status.phase);
            }
            before = status;
        }
        world.delete(1);
        for _ in 0..6 {
            world.pass(3);
        }
        prop_assert!(world.said().contains(&"delete".to_owned()), "{:?}", world.state);
    }
}
