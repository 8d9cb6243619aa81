//! Tables over the plan. What a step does is played here, without a server and without agents, so that a plan can be
//! followed to its end: there it rests, and planning again does nothing.

use std::sync::Arc;
use std::time::Duration;

use agentcube_api::Sandbox;
use agentcube_api::labels;
use agentcube_api::sandbox::{SandboxPhase, SandboxStatus};
use agentcube_protos::agent::{Claim, Entry, State, Why};
use agentcube_protos::session::Exit;
use jiff::Timestamp;
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::json;

use super::observe::{Allocated, Annotated, Claimed, Logged, Observed};
use super::plan::{Step, next};
use crate::agents::{Contact, Seen};
use crate::names::{AgentId, RunId};
use crate::options::Timing;

const MINUTE: Duration = Duration::from_secs(60);

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).expect("a time")
}

fn object(spec: serde_json::Value) -> Sandbox {
    let mut object = json!({ "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "Sandbox",
        "metadata": { "name": "one", "namespace": "n", "generation": 1, "finalizers": [labels::SANDBOX_FINALIZER] },
        "spec": { "image": "i", "poolRef": "p" } });
    for (key, value) in spec.as_object().expect("an object") {
        object["spec"][key] = value.clone();
    }
    serde_json::from_value(object).expect("a Sandbox")
}

fn agent(name: &str) -> AgentId {
    AgentId { name: name.into(), uid: format!("uid-{name}") }
}

fn entry(run: &str, state: State) -> Entry {
    let claim = Claim { namespace: "n".into(), name: "one".into(), pool: "p".into(), ..Claim::default() };
    Entry {
        run_id: run.into(),
        claim: Some(claim),
        state: state.into(),
        ready: true,
        started_unix_ms: 5,
        ..Entry::default()
    }
}

fn at(run: &str, contact: Contact, started: bool) -> Allocated {
    Allocated { agent: agent("a"), node: String::new(), run: run.into(), contact, started }
}

fn heard(entry: Entry) -> Contact {
    Contact::Heard(Seen::Entry(Box::new(entry)))
}

fn silent(ago: Duration) -> Contact {
    Contact::Silent { ago, at: now() }
}

fn in_phase(mut object: Sandbox, phase: SandboxPhase, run: Option<&str>) -> Sandbox {
    let started_at = (phase != SandboxPhase::Bound)
        .then(|| serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time"));
    object.status = Some(SandboxStatus {
        phase: Some(phase),
        sandbox_id: run.map(Into::into),
        assigned_pod: Some("a".into()),
        assigned_pod_uid: Some("uid-a".into()),
        started_at,
        observed_generation: Some(1),
        ..SandboxStatus::default()
    });
    object
}

/// Everything is well but for what a test says.
fn seen(object: Sandbox, assigned: Option<Allocated>) -> Observed {
    Observed {
        object: Some(Arc::new(object)),
        pool: true,
        open: true,
        all_heard: true,
        all_asked: true,
        born: true,
        assigned,
        listening: 10 * MINUTE,
        ..Observed::default()
    }
}

fn plan(seen: &Observed) -> Step {
    next(seen, now(), &Timing::default())
}

fn phase_of(step: &Step) -> SandboxPhase {
    match step {
        Step::Write { status, .. } => status.phase.expect("a phase"),
        other => panic!("no write: {other:?}"),
    }
}

#[test]
fn without_a_finalizer_nothing_else_happens_first() {
    let mut bare = object(json!({}));
    bare.metadata.finalizers = None;
    assert_eq!(plan(&seen(bare, None)), Step::Hold);
    assert_eq!(plan(&seen(object(json!({})), None)), Step::Assign);
}

#[test]
fn nothing_is_placed_before_everybody_was_asked_or_without_a_pool() {
    let closed = Observed { open: false, ..seen(object(json!({})), None) };
    assert!(matches!(plan(&closed), Step::Rest(Some(_))));
    let poolless = Observed { pool: false, ..seen(object(json!({})), None) };
    assert_eq!(phase_of(&plan(&poolless)), SandboxPhase::Pending);
}

#[test]
fn a_bound_one_is_started_where_it_is_bound_and_nowhere_else() {
    let bound = in_phase(object(json!({})), SandboxPhase::Bound, Some("x"));
    let absent = at("x", Contact::Heard(Seen::Absent), false);
    assert_eq!(plan(&seen(bound.clone(), Some(absent.clone()))), Step::Start(absent));
    // With a tombstone, or a dead agent, nothing of it can run: another run is chosen.
    let stopped = at("x", Contact::Heard(Seen::Stopped(Why::Abandoned)), false);
    assert_eq!(plan(&seen(bound.clone(), Some(stopped))), Step::Assign);
    assert_eq!(plan(&seen(bound, Some(at("x", Contact::Dead, false)))), Step::Assign);
}

#[test]
fn manual_waits_for_somebody_and_auto_recreate_does_not() {
    for (policy, stays) in [("Manual", true), ("AutoRecreate", false)] {
        let running = in_phase(object(json!({ "failurePolicy": policy })), SandboxPhase::Running, Some("x"));
        let dead = seen(running.clone(), Some(at("x", Contact::Dead, true)));
        if stays {
            assert_eq!(phase_of(&plan(&dead)), SandboxPhase::Lost);
        } else {
            assert_eq!(plan(&dead), Step::Assign);
        }
        // That the agent does not have it is no proof while a start may be on its way.
        let absent = seen(running, Some(at("x", Contact::Heard(Seen::Absent), true)));
        match plan(&absent) {
            Step::Write { status, .. } => assert!(stays && status.phase == Some(SandboxPhase::Lost)),
            Step::Stop { why: Why::Abandoned, .. } => assert!(!stays),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn not_before_its_time() {
    let spec = json!({ "failurePolicy": "AutoRecreate", "recoveryTimeoutSeconds": 300 });
    let running = in_phase(object(spec.clone()), SandboxPhase::Running, Some("x"));
    let brief = seen(running.clone(), Some(at("x", silent(Duration::from_secs(5)), true)));
    assert_eq!(plan(&brief), Step::Rest(Some(Duration::from_secs(10))));
    // Lost is written first, also when all the time has passed: then a run is given up or let go on, never both.
    let long = seen(running, Some(at("x", silent(10 * MINUTE), true)));
    assert_eq!(phase_of(&plan(&long)), SandboxPhase::Lost);
    let lost = in_phase(object(spec), SandboxPhase::Lost, Some("x"));
    let early = seen(lost.clone(), Some(at("x", silent(MINUTE), true)));
    assert_eq!(plan(&early), Step::Rest(Some(4 * MINUTE)));
    assert_eq!(plan(&seen(lost, Some(at("x", silent(5 * MINUTE), true)))), Step::Assign);
}

#[test]
fn a_fenced_run_goes_on_only_after_it_is_written_that_it_runs() {
    let fenced = Entry { fenced: true, ..entry("x", State::Running) };
    let lost = in_phase(object(json!({})), SandboxPhase::Lost, Some("x"));
    let first = plan(&seen(lost.clone(), Some(at("x", heard(fenced.clone()), true))));
    assert_eq!(phase_of(&first), SandboxPhase::Running);
    let Step::Write { status, .. } = first else { panic!("a write") };
    let written = Sandbox { status: Some(*status), ..lost };
    let second = plan(&seen(written, Some(at("x", heard(fenced), true))));
    assert_eq!(second, Step::Unfence { agent: agent("a"), run: "x".into() });
}

#[test]
fn a_reset_stops_first_and_then_chooses_another_run() {
    let reset = |phase| in_phase(object(json!({ "resetRevision": 2 })), phase, Some("x"));
    let running = at("x", heard(entry("x", State::Running)), true);
    let expected = Step::Stop { agent: agent("a"), run: "x".into(), why: Why::Replaced };
    assert_eq!(plan(&seen(reset(SandboxPhase::Running), Some(running))), expected);
    let stopped = at("x", Contact::Heard(Seen::Stopped(Why::Replaced)), true);
    assert_eq!(plan(&seen(reset(SandboxPhase::Running), Some(stopped))), Step::Assign);
    let mut done = reset(SandboxPhase::Lost);
    done.status.as_mut().expect("a status").accepted_reset_revision = Some(2);
    assert!(matches!(plan(&seen(done, Some(at("x", Contact::Dead, true)))), Step::Rest(_)));
}

#[test]
fn what_ended_is_reported_then_noted() {
    for (reason, expected) in [("Exited", SandboxPhase::Failed), ("Expired", SandboxPhase::Expired)] {
        let exit = Some(Exit { code: 0, reason: reason.into(), ended_unix_ms: 1 });
        let ended = Entry { exit, ..entry("x", State::Ended) };
        let running = in_phase(object(json!({})), SandboxPhase::Running, Some("x"));
        let step = plan(&seen(running.clone(), Some(at("x", heard(ended.clone()), true))));
        let Step::Write { status, .. } = step else { panic!("a write") };
        assert_eq!((status.phase, &status.sandbox_id), (Some(expected), &None));
        let written = Sandbox { status: Some(*status), ..running };
        let left = Observed { runs: vec![claimed(ended, None)], ..seen(written.clone(), None) };
        let noted = Step::Stop { agent: agent("a"), run: "x".into(), why: Why::Noted };
        assert_eq!(plan(&left), noted);
        assert_eq!(plan(&seen(written, None)), Step::Rest(None));
    }
}

fn claimed(entry: Entry, silent: Option<Duration>) -> Claimed {
    Claimed { agent: agent("a"), node: String::new(), fits: true, condemned: false, silent, entry }
}

#[test]
fn a_run_without_an_object_is_adopted_from_its_record_or_stopped() {
    let record = Entry { object: b"{}".to_vec(), ..entry("x", State::Running) };
    let orphan = |claimed: Claimed| Observed { runs: vec![claimed], ..Observed::default() };
    let with_record = claimed(record.clone(), None);
    assert_eq!(plan(&orphan(with_record.clone())), Step::Adopt(with_record.clone()));
    let strange = Claimed { fits: false, ..with_record.clone() };
    assert_eq!(plan(&orphan(strange)), Step::StopOrphan { agent: agent("a"), run: "x".into() });
    let without = claimed(entry("x", State::Running), None);
    assert_eq!(plan(&orphan(without)), Step::StopOrphan { agent: agent("a"), run: "x".into() });
    // Whatever was sent a stop is never adopted.
    let condemned = Claimed { condemned: true, ..with_record.clone() };
    assert!(matches!(plan(&orphan(condemned)), Step::Stop { .. }));
    let pending = Observed { pending: Some("x".into()), ..orphan(with_record) };
    assert_eq!(plan(&pending), Step::Rest(None));
    assert_eq!(plan(&orphan(claimed(record, Some(MINUTE)))), Step::Rest(None));
}

#[test]
fn an_annotation_is_moved_and_removed_when_nothing_can_come_any_more() {
    let bare = object(json!({}));
    let fits = |contact| Annotated::Fits(at("x", contact, true));
    let running = heard(entry("x", State::Running));
    let fresh = Observed { annotated: fits(running.clone()), ..seen(bare.clone(), None) };
    let Step::Write { status, .. } = plan(&fresh) else { panic!("a write") };
    assert_eq!((status.phase, status.sandbox_id.as_deref()), (Some(SandboxPhase::Running), Some("x")));
    let moved = Sandbox { status: Some(*status), ..bare.clone() };
    let both =
        Observed { annotated: fits(running.clone()), ..seen(moved.clone(), Some(at("x", running, true))) };
    assert_eq!(plan(&both), Step::Unannotate);
    assert!(matches!(plan(&Observed { born: false, ..both.clone() }), Step::Rest(Some(_))));
    let record = heard(Entry { object: vec![1], ..entry("x", State::Running) });
    let kept = Observed { annotated: fits(record.clone()), ..seen(moved, Some(at("x", record, true))) };
    assert!(matches!(plan(&kept), Step::Rest(Some(_))), "its agent would have it adopted");
    // Deleted before it was made: it is deleted again.
    let late =
        Observed { annotated: fits(Contact::Heard(Seen::Stopped(Why::Deleted))), ..seen(bare.clone(), None) };
    assert_eq!(plan(&late), Step::Delete);
    // It ran and its agent does not have it: it is not started for the first time.
    let gone = Observed { annotated: fits(Contact::Heard(Seen::Absent)), ..seen(bare, None) };
    assert_eq!(phase_of(&plan(&gone)), SandboxPhase::Lost);
}

#[test]
fn recovery_never_reads_the_annotation() {
    let lost = in_phase(object(json!({ "failurePolicy": "AutoRecreate" })), SandboxPhase::Lost, Some("y"));
    let old = Annotated::Fits(at("x", silent(MINUTE), true));
    let seen = Observed { annotated: old, ..seen(lost, Some(at("y", Contact::Dead, true))) };
    assert_eq!(plan(&seen), Step::Assign);
}

#[test]
fn what_cannot_be_trusted_is_marked_then_everybody_asked_then_removed() {
    let corrupt =
        |object: Sandbox| Observed { annotated: Annotated::Corrupt("no".into()), ..seen(object, None) };
    let bare = object(json!({}));
    let Step::Write { status, .. } = plan(&corrupt(bare.clone())) else { panic!("a write") };
    let marked = Sandbox { status: Some(*status), ..bare };
    let waits = Observed { all_heard: false, ..corrupt(marked.clone()) };
    assert!(matches!(plan(&waits), Step::Rest(Some(_))));
    assert_eq!(plan(&corrupt(marked.clone())), Step::Unannotate);
    let later = Entry { started_unix_ms: 9, ..entry("y", State::Running) };
    let two = vec![claimed(later, None), claimed(entry("x", State::Running), None)];
    let several = Observed { runs: two, ..corrupt(marked.clone()) };
    assert_eq!(plan(&several), Step::Stop { agent: agent("a"), run: "y".into(), why: Why::Replaced });
    let one = Observed { runs: vec![claimed(entry("x", State::Running), None)], ..corrupt(marked) };
    assert_eq!(phase_of(&plan(&one)), SandboxPhase::Running);
}

fn deleted(mut object: Sandbox) -> Sandbox {
    object.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
    object
}

#[test]
fn a_deletion_waits_for_the_agent_for_proof_or_for_the_fence() {
    let gone = || deleted(in_phase(object(json!({})), SandboxPhase::Terminating, Some("x")));
    let with = |contact| plan(&seen(gone(), Some(at("x", contact, true))));
    let stop = Step::Stop { agent: agent("a"), run: "x".into(), why: Why::Deleted };
    assert_eq!(with(heard(entry("x", State::Running))), stop);
    assert_eq!(with(Contact::Heard(Seen::Absent)), stop, "a start may be on its way");
    assert_eq!(with(Contact::Heard(Seen::Stopped(Why::Deleted))), Step::Release);
    assert_eq!(with(Contact::Dead), Step::Release);
    assert_eq!(with(silent(Duration::from_secs(20))), Step::Rest(Some(Duration::from_secs(40))));
    assert_eq!(with(silent(MINUTE)), Step::Release);
    let unasked = Observed { all_asked: false, ..seen(gone(), Some(at("x", Contact::Dead, true))) };
    assert!(matches!(plan(&unasked), Step::Rest(Some(_))), "somebody may have it for adoption");
    let late = Observed { kept_for: Some(MINUTE), ..seen(gone(), None) };
    assert_eq!(plan(&late), Step::Rest(Some(MINUTE)));
}

#[test]
fn another_s_pending_run_is_resolved_first() {
    let pending = Observed { pending: Some("y".into()), ..seen(object(json!({})), None) };
    assert!(matches!(plan(&pending), Step::Rest(Some(_))));
}

fn logged_at(run: &str, contact: Contact) -> Logged {
    Logged {
        agent: agent("a"),
        run: run.into(),
        deleted: false,
        contact,
        known: true,
        condemned: false,
        open: true,
        all_asked: true,
        late: None,
    }
}

#[test]
fn what_the_log_has_promised_is_made_or_was_never_told() {
    let with = |logged: Logged| plan(&Observed { logged: Some(logged), ..Observed::default() });
    let forget = Step::Forget { run: "x".into(), proved: false };
    // The life of the agent that it was meant for goes on, without it.
    assert_eq!(with(logged_at("x", Contact::Heard(Seen::Absent))), forget);
    assert_eq!(with(logged_at("x", Contact::Heard(Seen::Stopped(Why::Abandoned)))), forget);
    let condemned = Logged { condemned: true, ..logged_at("x", Contact::Heard(Seen::Absent)) };
    assert_eq!(with(condemned), Step::Stop { agent: agent("a"), run: "x".into(), why: Why::Abandoned });
    // It ended with its agent, or nobody hears of it.
    assert_eq!(with(logged_at("x", Contact::Dead)), Step::Recover);
    assert_eq!(with(logged_at("x", silent(MINUTE))), Step::Recover);
    assert_eq!(
        with(logged_at("x", silent(Duration::from_secs(5)))),
        Step::Rest(Some(Duration::from_secs(10)))
    );
    let unasked = Logged { open: false, ..logged_at("x", Contact::Dead) };
    assert!(matches!(with(unasked), Step::Rest(Some(_))));
    // What runs is adopted, and the fast path sees to its own.
    let order = Entry { object: b"{}".to_vec(), ..entry("x", State::Running) };
    let runs = vec![claimed(order.clone(), None)];
    let logged = Some(logged_at("x", heard(order)));
    let seen_running = Observed { runs, logged: logged.clone(), ..Observed::default() };
    assert!(matches!(plan(&seen_running), Step::Adopt(_)));
    let pending = Observed { pending: Some("x".into()), logged: logged.clone(), ..Observed::default() };
    assert_eq!(plan(&pending), Step::Rest(None));
    let made = in_phase(object(json!({})), SandboxPhase::Running, Some("x"));
    assert_eq!(plan(&Observed { logged, ..seen(made, None) }), forget);
}

#[test]
fn what_the_log_has_deleted_stays_so_until_nothing_can_come_back() {
    let entry_of = |contact| Logged { deleted: true, ..logged_at("x", contact) };
    let with = |logged: Logged| plan(&Observed { logged: Some(logged), ..Observed::default() });
    let stop = Step::Stop { agent: agent("a"), run: "x".into(), why: Why::Deleted };
    let over = || entry_of(Contact::Heard(Seen::Stopped(Why::Deleted)));
    assert_eq!(with(entry_of(Contact::Heard(Seen::Absent))), stop, "a start may be on its way");
    assert_eq!(with(over()), Step::Forget { run: "x".into(), proved: true });
    assert_eq!(with(Logged { late: Some(MINUTE), ..over() }), Step::Rest(Some(MINUTE)));
    assert!(matches!(with(Logged { all_asked: false, ..over() }), Step::Rest(Some(_))));
    assert!(matches!(with(entry_of(silent(MINUTE))), Step::Rest(Some(_))), "it may be heard of again");
    let unknown = Logged { known: false, ..entry_of(silent(MINUTE)) };
    assert_eq!(with(unknown), Step::Forget { run: "x".into(), proved: true });
    // An order is stopped, not adopted, and a late object goes.
    let order = Entry { object: b"{}".to_vec(), ..entry("y", State::Running) };
    let offered = Observed { runs: vec![claimed(order, None)], logged: Some(over()), ..Observed::default() };
    assert_eq!(plan(&offered), Step::Stop { agent: agent("a"), run: "y".into(), why: Why::Deleted });
    let late = in_phase(object(json!({})), SandboxPhase::Running, Some("x"));
    assert_eq!(plan(&Observed { logged: Some(over()), ..seen(late.clone(), None) }), Step::Delete);
    let pending = Observed { pending: Some("x".into()), logged: Some(over()), ..seen(late, None) };
    assert_eq!(plan(&pending), Step::Delete);
    // One that somebody has made since has nothing to do with it.
    let other = in_phase(object(json!({})), SandboxPhase::Running, Some("z"));
    let beside =
        Observed { logged: Some(over()), ..seen(other, Some(at("z", Contact::Heard(Seen::Absent), true))) };
    assert_eq!(plan(&beside), Step::Forget { run: "x".into(), proved: false });
}

/// Plays what a step does.
fn play(seen: &mut Observed, step: &Step, minted: &mut u32) {
    let mut object = (**seen.object.as_ref().expect("an object")).clone();
    match step {
        Step::Hold => object.metadata.finalizers = Some(vec![labels::SANDBOX_FINALIZER.into()]),
        Step::Release => seen.assigned = None,
        Step::Unannotate => seen.annotated = Annotated::None,
        Step::Write { status, .. } => object.status = Some((**status).clone()),
        Step::Assign => {
            *minted += 1;
            let run = format!("new-{minted}");
            let at = at(&run, Contact::Heard(Seen::Absent), false);
            object.status = Some(*super::status::bound(&object, &at, now()));
        }
        Step::Start(at) => {
            let running = Contact::Heard(Seen::Entry(Box::new(entry(at.run.as_str(), State::Running))));
            seen.assigned = Some(Allocated { contact: running, ..at.clone() });
        }
        Step::Stop { run, why, .. } => {
            seen.runs.retain(|claimed| claimed.run() != *run);
            for at in seen.assigned.iter_mut().filter(|at| at.run == *run) {
                at.contact = Contact::Heard(Seen::Stopped(*why));
            }
            for logged in seen.logged.iter_mut().filter(|logged| logged.run == *run) {
                logged.contact = Contact::Heard(Seen::Stopped(*why));
            }
        }
        Step::Pause { paused, .. } => change(seen, |entry| entry.paused = *paused),
        Step::Unfence { .. } => change(seen, |entry| entry.fenced = false),
        Step::Delete => object = deleted(object),
        Step::Forget { .. } => seen.logged = None,
        Step::Rest(_) | Step::Adopt(_) | Step::StopOrphan { .. } | Step::Recover => {}
    }
    if *step == Step::Release {
        object.metadata.finalizers = None;
    }
    let named = object
        .status
        .as_ref()
        .and_then(|status| status.sandbox_id.clone())
        .map(|run| RunId::from(run.as_str()));
    seen.assigned = named.map(|run| {
        let known = seen.assigned.take().filter(|at| at.run == run);
        let found = seen.runs.iter().find(|claimed| claimed.run() == run);
        let contact = found.map_or(Contact::Heard(Seen::Absent), |claimed| heard(claimed.entry.clone()));
        let started = object.status.as_ref().is_some_and(|status| status.started_at.is_some());
        Allocated { started, ..known.unwrap_or_else(|| at(run.as_str(), contact, false)) }
    });
    seen.object = Some(Arc::new(object));
}

fn change(seen: &mut Observed, change: impl FnOnce(&mut Entry)) {
    if let Some(Allocated { contact: Contact::Heard(Seen::Entry(entry)), .. }) = &mut seen.assigned {
        change(entry);
    }
}

fn contact() -> impl Strategy<Value = Contact> {
    prop_oneof![
        Just(Contact::Dead),
        Just(Contact::Heard(Seen::Absent)),
        Just(Contact::Heard(Seen::Stopped(Why::Replaced))),
        (0..400_u64).prop_map(|ago| silent(Duration::from_secs(ago))),
        (
            prop_oneof![Just(State::Running), Just(State::Ended), Just(State::Starting)],
            any::<bool>(),
            any::<bool>()
        )
            .prop_map(|(state, paused, fenced)| heard(Entry { paused, fenced, ..entry("x", state) })),
    ]
}

proptest! {
    #[test]
    fn every_plan_comes_to_rest_and_planning_again_does_nothing(
        contact in contact(),
        phase in prop_oneof![Just(SandboxPhase::Bound), Just(SandboxPhase::Running), Just(SandboxPhase::Lost)],
        (auto, paused, is_deleted) in (any::<bool>(), any::<bool>(), any::<bool>()),
        (reset, expired) in (proptest::option::of(1..3_i64), any::<bool>()),
        (annotated, strays) in (any::<bool>(), 0..3_u32),
        logged in proptest::option::of((prop_oneof![Just("x"), Just("y")], any::<bool>(), self::contact())),
    ) {
        let mut spec = json!({ "failurePolicy": if auto { "AutoRecreate" } else { "Manual" }, "paused": paused,
            "resetRevision": reset });
        if expired {
            spec["expireTime"] = json!("2020-01-01T00:00:00Z");
        }
        let mut object = in_phase(object(spec), phase, Some("x"));
        object.annotations_mut().insert("mine".into(), "1".into());
        if is_deleted {
            object = deleted(object);
        }
        let stray = |number| claimed(entry(&format!("stray-{number}"), State::Running), None);
        let assigned = at("x", contact.clone(), phase != SandboxPhase::Bound);
        let mut seen = Observed { runs: (0..strays).map(stray).collect(), ..seen(object, Some(assigned)) };
        seen.logged = logged.map(|(run, deleted, contact)| Logged { deleted, ..logged_at(run, contact) });
        if annotated {
            seen.annotated = Annotated::Corrupt("spoilt".into());
        }
        let mut minted = 0;
        for _ in 0..30 {
            let step = plan(&seen);
            if matches!(step, Step::Rest(_)) {
                prop_assert_eq!(plan(&seen), step);
                prop_assert!(minted <= 1, "chose {} runs in a row", minted);
                return Ok(());
            }
            play(&mut seen, &step, &mut minted);
            let object = seen.object.as_ref().expect("an object");
            prop_assert_eq!(object.annotations().get("mine").map(String::as_str), Some("1"));
        }
        prop_assert!(false, "no end: {:?}", plan(&seen));
    }
}
