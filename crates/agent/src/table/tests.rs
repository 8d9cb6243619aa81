use std::collections::HashMap;

use agentcube_protos::agent::{State, SyncResponse};
use agentcube_runtime::Exit;
use proptest::prelude::*;

use super::*;
use crate::machine::Ending;

const EXIT: Exit = Exit { code: 3, signal: None, out_of_memory: false };

fn table(capacity: u32) -> Table {
    let settings = Settings { uid: "agent".into(), incarnation: "one".into(), node: "node".into(), capacity };
    Table::new(settings)
}

fn fence(term: u64, incarnation: &str) -> Fence {
    Fence { term, agent_uid: "agent".into(), incarnation: incarnation.into() }
}

fn claim(name: &str, uid: &str) -> Claim {
    Claim { namespace: "default".into(), name: name.into(), uid: uid.into(), ..Claim::default() }
}

fn order(run: &str, name: &str) -> Order {
    Order { run: run.into(), claim: claim(name, ""), ..Order::default() }
}

fn reason<T: std::fmt::Debug>(refused: Result<T, Refusal>) -> Reason {
    refused.expect_err("a refusal").reason()
}

/// Runs one to its end.
fn ends(table: &mut Table, run: &str) {
    for event in [Event::Began, Event::Exited(EXIT), Event::Cleaned] {
        table.step(run, event, 7);
    }
}

#[test]
fn words_of_the_past_are_not_heard() {
    let mut table = table(1);
    table.check(Some(&fence(3, "one"))).expect("the first leader");
    let refused = table.check(Some(&fence(2, "one"))).expect_err("an older one");
    assert_eq!((refused.reason(), refused.term), (Reason::StaleTerm, 3));
    table.check(Some(&fence(4, "one"))).expect("a newer one");
    assert_eq!(reason(table.check(Some(&fence(3, "one")))), Reason::StaleTerm);
    assert_eq!(reason(table.check(Some(&fence(5, "two")))), Reason::OtherIncarnation);
    table.check(Some(&fence(4, "one"))).expect("words for another do not raise the term");
    assert_eq!(reason(table.check(Some(&fence(4, "")))), Reason::OtherIncarnation);
    assert_eq!(reason(table.check(None)), Reason::OtherIncarnation);
    table.check_first(Some(&fence(4, ""))).expect("whoever does not know us yet");
    let other = Fence { agent_uid: "somebody".into(), ..fence(9, "") };
    assert_eq!(reason(table.check_first(Some(&other))), Reason::OtherIncarnation);
    table.check(Some(&fence(4, "one"))).expect("still the same leader");
}

#[test]
fn admission() {
    let mut table = table(2);
    assert_eq!(table.admit(order("x", "a"), 0).expect("room"), Admitted::New);
    assert_eq!(table.admit(order("x", "a"), 0).expect("the same"), Admitted::Again);
    assert_eq!(reason(table.admit(order("x", "b"), 0)), Reason::Taken);
    let other = table.admit(order("y", "a"), 0).expect_err("one run for a name");
    assert_eq!((other.reason(), other.run_id.as_str()), (Reason::OtherRun, "x"));
    let late = Order { expire_unix_ms: 5, ..order("y", "b") };
    assert_eq!(reason(table.admit(late.clone(), 5)), Reason::Expired);
    table.admit(late, 4).expect("in time");
    assert_eq!(reason(table.admit(order("z", "c"), 0)), Reason::Full);
    assert_eq!(table.used(), 2);
    assert_eq!(table.admit(order("x", "a"), 0).expect("also when full"), Admitted::Again);
}

#[test]
fn uids_are_compared_once_they_are_known() {
    let mut table = table(2);
    table.admit(order("x", "a"), 0).expect("room");
    table.confirm("x", "uid-1");
    let same = Order { claim: claim("a", "uid-1"), ..order("x", "a") };
    assert_eq!(table.admit(same, 0).expect("the same"), Admitted::Again);
    let other = Order { claim: claim("a", "uid-2"), ..order("x", "a") };
    assert_eq!(reason(table.admit(other, 0)), Reason::Taken);
    assert_eq!(reason(table.stop("x", Some(&claim("a", "uid-2")), Why::Deleted)), Reason::Taken);
    assert!(!table.has("x"), "nothing was done");
}

#[test]
fn unknown_ids_are_answered() {
    let mut table = table(1);
    assert!(!table.stop("x", Some(&claim("a", "")), Why::Deleted).expect("no error"));
    assert_eq!(reason(table.admit(order("x", "a"), 0)), Reason::Tombstoned);
    assert_eq!(table.used(), 0);
    table.stop("x", None, Why::Noted).expect("again");
    let told = table.view(0).tombstones;
    assert_eq!((told.len(), told[0].why()), (1, Why::Deleted), "deleted is never forgotten for less");
    table.stop("y", None, Why::Abandoned).expect("no error");
    table.stop("y", None, Why::Deleted).expect("no error");
    let why: HashMap<String, Why> =
        table.view(0).tombstones.iter().map(|stone| (stone.run_id.clone(), stone.why())).collect();
    assert_eq!(why["y"], Why::Deleted);
}

#[test]
fn every_end_frees_the_slot() {
    let failed: &[Event] = &[Event::Failed];
    let stopped: &[Event] = &[
        Event::Began,
        Event::End { ending: Ending::Stopped, grace: Duration::ZERO },
        Event::Exited(EXIT),
        Event::Cleaned,
    ];
    let exited: &[Event] = &[Event::Began, Event::Exited(EXIT), Event::Cleaned];
    for events in [failed, stopped, exited] {
        let mut table = table(1);
        table.admit(order("x", "a"), 0).expect("room");
        for event in events {
            assert_eq!(table.used(), 1, "not before it is over: {events:?}");
            table.step("x", *event, 0);
        }
        assert_eq!(table.used(), 0, "{events:?}");
    }
}

#[test]
fn what_ended_is_told_until_it_was_noted() {
    let mut table = table(1);
    table.admit(order("x", "a"), 0).expect("room");
    ends(&mut table, "x");
    let told = table.view(0).entries;
    assert_eq!((told.len(), told[0].state()), (1, State::Ended));
    let exit = told[0].exit.clone().expect("it has ended");
    assert_eq!((exit.code, exit.reason.as_str(), exit.ended_unix_ms), (3, "Exited", 7));
    assert_eq!(reason(table.admit(order("y", "a"), 0)), Reason::OtherRun, "its end comes first");
    assert!(table.stop("x", None, Why::Noted).expect("noted"));
    assert_eq!(table.view(0).entries.len(), 0);
    table.admit(order("y", "a"), 0).expect("its name is free");
}

#[test]
fn what_nobody_notes_is_bounded() {
    let mut table = table(1);
    for number in 0..MOST_ENDED {
        let name = format!("x{number}");
        table.admit(order(&name, &name), 0).expect("room");
        ends(&mut table, &name);
    }
    assert_eq!(reason(table.admit(order("more", "more"), 0)), Reason::Full);
    table.stop("x0", None, Why::Noted).expect("noted");
    table.admit(order("more", "more"), 0).expect("room again");
}

#[test]
fn objects_that_wait_fit_into_a_message() {
    let mut table = table(MOST_CAPACITY);
    let large = |name: &str| Order { object: vec![0; 1 << 19], ..order(name, name) };
    for name in ["a", "b", "c", "d", "e"] {
        table.admit(large(name), 0).expect("room");
    }
    assert_eq!(reason(table.admit(large("f"), 0)), Reason::Full);
    table.confirm("a", "uid");
    table.admit(large("f"), 0).expect("one less");
    let bytes = prost::Message::encoded_len(&table.view(0));
    assert!(bytes < agentcube_protos::link::LONGEST_MESSAGE, "{bytes}");
}

#[test]
fn only_empty_agents_go() {
    let mut table = table(2);
    table.admit(order("x", "a"), 0).expect("room");
    assert!(!table.configure(0, true));
    ends(&mut table, "x");
    assert!(!table.configure(0, true), "its end was not noted");
    table.stop("x", None, Why::Noted).expect("noted");
    assert!(table.configure(0, true));
    assert_eq!(reason(table.admit(order("y", "b"), 0)), Reason::Draining);
    assert!(!table.configure(1, false));
    table.admit(order("y", "b"), 0).expect("in use again");
    assert_eq!(reason(table.admit(order("z", "c"), 0)), Reason::Full, "the new capacity counts");
}

#[test]
fn times_that_have_come() {
    let mut lease = Lease::new(Duration::from_secs(15));
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let first = lease.answered(start);
    lease.acknowledged(first);
    let mut table = table(4);
    let expires = Order { expire_unix_ms: 60_000, recovery: Duration::from_secs(100), ..order("x", "a") };
    table.admit(expires, 0).expect("room");
    table.confirm("x", "uid-x");
    let patient = Order { recovery: Duration::from_secs(1_000), ..order("y", "b") };
    table.admit(patient, 0).expect("room");
    assert_eq!(table.due(0, start, &lease).1, Some(Duration::from_millis(13_500)), "nobody knows it yet");
    table.confirm("y", "uid-y");
    let due = |table: &Table, seconds: u64| {
        let (mut due, next) = table.due(seconds as i64 * 1_000, at(seconds), &lease);
        due.sort_by(|one, other| one.0.cmp(&other.0));
        (due, next.map(|next| next.as_secs()))
    };
    assert_eq!(due(&table, 0), (vec![], Some(60)));
    assert_eq!(due(&table, 60), (vec![("x".into(), Due::Expire)], Some(30)));
    let both = vec![("x".to_owned(), Due::Expire), ("x".to_owned(), Due::Fence)];
    assert_eq!(due(&table, 90), (both, Some(810)));
    table.change("x", |run| (run.fenced, run.expire_unix_ms) = (true, 0));
    assert_eq!(due(&table, 90), (vec![], Some(810)));
    table.step("y", Event::End { ending: Ending::Stopped, grace: Duration::ZERO }, 0);
    assert_eq!(due(&table, 2_000), (vec![], None), "what ends needs nothing more");
}

#[test]
fn nothing_starts_out_of_contact() {
    let mut table = table(2);
    let mut lease = Lease::new(Duration::from_secs(15));
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let known = Order { claim: claim("a", "uid"), recovery: Duration::from_secs(60), ..order("x", "a") };
    let unknown = Order { claim: claim("a", ""), ..known.clone() };
    assert_eq!(reason(table.in_contact(&known, &lease, start)), Reason::Unknown, "nobody has asked yet");
    let first = lease.answered(start);
    assert_eq!(reason(table.in_contact(&known, &lease, start)), Reason::Unknown, "nobody has heard us yet");
    lease.acknowledged(first);
    for (seconds, order, expected) in [
        (0, &known, true),
        (53, &known, true),
        (54, &known, false),
        (13, &unknown, true),
        (14, &unknown, false),
    ] {
        let contact = table.in_contact(order, &lease, at(seconds));
        assert_eq!(contact.is_ok(), expected, "{seconds} {:?}", order.claim.uid);
    }
    table.admit(known.clone(), 0).expect("room");
    table.in_contact(&known, &lease, at(99)).expect("it is only asked what came of it");
}

#[derive(Debug, Clone)]
enum Step {
    Admit(u8, u8),
    Stop(u8),
    Event(u8, u8),
    Sync,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        3 => (0_u8..8, 0_u8..4).prop_map(|(run, name)| Step::Admit(run, name)),
        1 => (0_u8..8).prop_map(Step::Stop),
        4 => (0_u8..8, 0_u8..5).prop_map(|(run, event)| Step::Event(run, event)),
        1 => Just(Step::Sync),
    ];
    proptest::collection::vec(one, 0..80)
}

/// A controller that only hears what has changed.
#[derive(Default)]
struct Heard {
    version: u64,
    states: HashMap<String, State>,
}

impl Heard {
    fn hear(&mut self, said: SyncResponse) {
        if said.whole {
            self.states.clear();
        }
        // What came again after it went is told in both lists, and is there.
        self.states.retain(|run, _| !said.gone.contains(run));
        self.states.extend(said.entries.iter().map(|entry| (entry.run_id.clone(), entry.state())));
        self.version = said.version;
    }
}

proptest! {
    /// Slots are never exceeded, a name has one run, a stopped run is not started, refusals change nothing, and who
    /// hears only changes knows as much as who hears everything.
    #[test]
    fn whatever_is_asked(steps in steps()) {
        let mut table = table(3);
        let mut heard = Heard::default();
        for step in steps {
            match step {
                Step::Admit(run, name) => {
                    let (run, name) = (format!("x{run}"), format!("n{name}"));
                    let (version, buried) = (table.version(), table.has(&run));
                    let admitted = table.admit(order(&run, &name), 0);
                    prop_assert!(!buried || admitted.is_err());
                    prop_assert!(matches!(admitted, Ok(Admitted::New)) || table.version() == version);
                }
                Step::Stop(run) => {
                    table.stop(&format!("x{run}"), None, Why::Deleted).expect("no claim to differ");
                }
                Step::Event(run, event) => {
                    let end = Event::End { ending: Ending::Stopped, grace: Duration::ZERO };
                    let events = [Event::Began, Event::Failed, end, Event::Exited(EXIT), Event::Cleaned];
                    table.step(&format!("x{run}"), events[usize::from(event)], 0);
                }
                Step::Sync => heard.hear(table.view(heard.version)),
            }
            prop_assert!(table.used() <= 3);
            let mut names: Vec<_> = table.runs.values().map(|run| run.claim.name.clone()).collect();
            names.sort_unstable();
            names.dedup();
            prop_assert_eq!(names.len(), table.runs.len());
            prop_assert_eq!(table.names.len(), table.runs.len());
        }
        heard.hear(table.view(heard.version));
        let mut whole = Heard::default();
        whole.hear(table.view(0));
        prop_assert_eq!(heard.states, whole.states);
    }
}
