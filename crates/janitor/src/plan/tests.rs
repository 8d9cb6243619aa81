//! Tables and properties of the plan.

use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_secs(300);

fn name(name: &str) -> Name {
    Name { namespace: "default".into(), name: name.into() }
}

fn container(running: bool, sandbox_uid: &str) -> Container {
    Container {
        id: "sb-1".into(),
        agent: name("agent"),
        agent_uid: "a-1".into(),
        sandbox: name("box"),
        sandbox_uid: sandbox_uid.into(),
        running,
    }
}

fn present(uid: &str) -> Existence {
    Existence::Present { uid: uid.into() }
}

fn answers(agent: &Existence, sandbox: &Existence) -> Answers {
    Answers {
        agents: [(name("agent"), agent.clone())].into(),
        sandboxes: [(name("box"), sandbox.clone())].into(),
    }
}

#[test]
fn judges_by_what_is_proved() {
    use Existence::{Absent, Unknown};
    use Reason::{AgentPodDisappeared, SandboxNotFound, UidMismatch};
    let (gone, nothing, other) = (
        Verdict::Orphan(AgentPodDisappeared),
        Verdict::Orphan(SandboxNotFound),
        Verdict::Orphan(UidMismatch),
    );
    let (alive, own) = (present("a-1"), present("s-1"));
    let table = [
        // The agent, the sandbox, whether it runs, the UID that it knows.
        (Unknown, Absent, false, "s-1", Verdict::Unknown),
        (Unknown, Absent, true, "s-1", Verdict::Unknown),
        (Absent, own.clone(), true, "s-1", gone),
        (Absent, Unknown, true, "s-1", gone),
        (present("a-2"), own.clone(), true, "s-1", gone),
        (alive.clone(), Absent, true, "s-1", Verdict::Claimed),
        (alive.clone(), present("s-2"), true, "s-1", Verdict::Claimed),
        (alive.clone(), Absent, false, "s-1", nothing),
        (alive.clone(), Absent, false, "", nothing),
        (alive.clone(), Unknown, false, "s-1", Verdict::Unknown),
        (alive.clone(), own.clone(), false, "s-1", Verdict::Claimed),
        (alive.clone(), present("s-2"), false, "s-1", other),
        // It was made before its object: the name is all there is to go by.
        (alive, present("s-2"), false, "", Verdict::Claimed),
    ];
    for (agent, sandbox, running, uid, expected) in table {
        let judged = judge(&container(running, uid), &answers(&agent, &sandbox));
        assert_eq!(judged, expected, "{agent:?} {sandbox:?} {running} {uid:?}");
    }
    assert_eq!(judge(&container(false, ""), &Answers::default()), Verdict::Unknown);
}

#[test]
fn waits_for_the_grace() {
    let gone = answers(&Existence::Absent, &Existence::Absent);
    let all = [container(true, "s-1")];
    let at = |seconds| Duration::from_secs(seconds);
    let first = plan(&Suspects::new(), &all, &gone, at(10), GRACE);
    assert_eq!((first.removals.len(), first.next), (0, Some(GRACE)));
    let later = plan(&first.suspects, &all, &gone, at(200), GRACE);
    assert_eq!((later.removals.len(), later.next), (0, Some(at(110))));
    // Meanwhile the API server is out of reach: nothing is removed, and nothing forgotten.
    let silent = plan(&later.suspects, &all, &Answers::default(), at(1000), GRACE);
    assert_eq!((silent.removals.len(), silent.next), (0, None));
    assert_eq!(silent.suspects, first.suspects);
    let due = plan(&silent.suspects, &all, &gone, at(1001), GRACE);
    assert_eq!(due.removals, [Removal { container: all[0].clone(), reason: Reason::AgentPodDisappeared }]);
    // It could not be removed: the next scan tries again.
    assert_eq!(plan(&due.suspects, &all, &gone, at(1002), GRACE).removals.len(), 1);
    // Somebody claims it after all: everything begins anew.
    let claimed = plan(&due.suspects, &all, &answers(&present("a-1"), &Existence::Absent), at(1003), GRACE);
    assert_eq!(claimed, Plan::default());
    assert!(plan(&claimed.suspects, &all, &gone, at(1004), GRACE).removals.is_empty());
}

#[test]
fn what_is_not_ours_is_not_read() {
    let own = BTreeMap::from(
        [
            (labels::RUNTIME_MANAGED, "true"),
            (labels::RUNTIME_AGENT_UID, "a-1"),
            (labels::RUNTIME_AGENT_NAME, "agent"),
            (labels::RUNTIME_NAMESPACE, "default"),
            (labels::RUNTIME_SANDBOX_NAME, "box"),
            (labels::RUNTIME_CLAIM_UID, "s-1"),
        ]
        .map(|(label, value)| (label.to_owned(), value.to_owned())),
    );
    assert_eq!(Container::read("sb-1", &own, true), Some(container(true, "s-1")));
    for (label, needed) in own.keys().map(|label| (label, label != labels::RUNTIME_CLAIM_UID)) {
        let mut less = own.clone();
        less.remove(label);
        assert_eq!(Container::read("sb-1", &less, true).is_none(), needed, "{label}");
        less.insert(label.clone(), String::new());
        assert_eq!(Container::read("sb-1", &less, true).is_none(), needed, "{label} is empty");
    }
    let mut foreign = own;
    foreign.insert(labels::RUNTIME_MANAGED.into(), "no".into());
    assert_eq!(Container::read("sb-1", &foreign, true), None);
}

fn existence() -> impl Strategy<Value = Existence> {
    prop_oneof![
        Just(Existence::Unknown),
        Just(Existence::Absent),
        prop_oneof![Just("1"), Just("2")].prop_map(present),
    ]
}

prop_compose! {
    fn any_container()(id in 0..4_u8, agent in 0..2_u8, sandbox in 0..3_u8, uid in "[12]?", running: bool) -> Container {
        Container {
            id: format!("sb-{id}"),
            agent: name(&format!("agent-{agent}")),
            agent_uid: "1".into(),
            sandbox: name(&format!("box-{sandbox}")),
            sandbox_uid: uid,
            running,
        }
    }
}

prop_compose! {
    fn any_answers()(agents in prop::collection::vec(existence(), 2), sandboxes in prop::collection::vec(existence(), 3)) -> Answers {
        let named = |kind: &str, all: Vec<Existence>| {
            all.into_iter().enumerate().map(|(at, one)| (name(&format!("{kind}-{at}")), one)).collect()
        };
        Answers { agents: named("agent", agents), sandboxes: named("box", sandboxes) }
    }
}

fn distinct(containers: Vec<Container>) -> Vec<Container> {
    let mut all: BTreeMap<String, Container> = BTreeMap::new();
    all.extend(containers.into_iter().map(|one| (one.id.clone(), one)));
    all.into_values().collect()
}

proptest! {
    /// Scans in a row: only what was proved at the first and at the last of a time of grace, and never claimed in
    /// between, is removed; and what a plan removes is all there is to remove.
    #[test]
    fn removes_only_what_is_proved(
        scans in prop::collection::vec((prop::collection::vec(any_container(), 0..4), any_answers(), 0..400_u64), 1..12),
    ) {
        let (mut suspects, mut now) = (Suspects::new(), Duration::ZERO);
        let mut proved: BTreeMap<String, Duration> = BTreeMap::new();
        for (containers, answers, passed) in scans {
            now += Duration::from_secs(passed);
            let containers = distinct(containers);
            proved.retain(|id, _| containers.iter().any(|one| one.id == *id));
            for one in &containers {
                match judge(one, &answers) {
                    Verdict::Claimed => { proved.remove(&one.id); }
                    Verdict::Unknown => {}
                    Verdict::Orphan(_) => { proved.entry(one.id.clone()).or_insert(now); }
                }
            }
            let made = plan(&suspects, &containers, &answers, now, GRACE);
            for removal in &made.removals {
                prop_assert_eq!(judge(&removal.container, &answers), Verdict::Orphan(removal.reason));
                prop_assert!(now - proved[&removal.container.id] >= GRACE);
            }
            let due = containers.iter().filter(|one| {
                matches!(judge(one, &answers), Verdict::Orphan(_)) && now - proved[&one.id] >= GRACE
            });
            prop_assert_eq!(due.count(), made.removals.len());
            prop_assert!(made.suspects.keys().eq(proved.keys()));
            // Once they are gone there is nothing more to do.
            let left: Vec<Container> = containers
                .iter()
                .filter(|one| !made.removals.iter().any(|removal| removal.container.id == one.id))
                .cloned()
                .collect();
            let again = plan(&made.suspects, &left, &answers, now, GRACE);
            prop_assert!(again.removals.is_empty());
            suspects = made.suspects;
        }
    }

    #[test]
    fn does_nothing_without_answers(containers in prop::collection::vec(any_container(), 0..4), now in 0..10_000_u64) {
        let containers = distinct(containers);
        let suspects: Suspects = containers
            .iter()
            .map(|one| (one.id.clone(), Suspect { since: Duration::ZERO, reason: Reason::SandboxNotFound }))
            .collect();
        let made = plan(&suspects, &containers, &Answers::default(), Duration::from_secs(now), GRACE);
        prop_assert!(made.removals.is_empty());
    }
}
