//! Every row of the protocol as a table, and what must hold whatever the situation.

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::identity::{SessionKey, SpecId};
use crate::record::Reservation;

const ME: &str = "router-a";
const OTHER: &str = "router-b";

fn session() -> Session {
    Session {
        namespace: "prod".into(),
        task_uid: "t1".into(),
        key: SessionKey::new("user-1").unwrap(),
        uid: "l1".into(),
        version: 7,
        holder: Some(instance("p1").id),
        binding: 1,
        binder: OTHER.into(),
        created: Timestamp::UNIX_EPOCH,
        renewed: Timestamp::UNIX_EPOCH,
        releasing: false,
        rests: None,
        ending: false,
        interrupted: false,
    }
}

fn held(lease: &str, binding: i32) -> Hold {
    let reservation = Reservation { lease: lease.into(), binding };
    Hold::Held { key: SessionKey::new("user-1").unwrap(), reservation }
}

fn instance(uid: &str) -> Instance {
    Instance {
        namespace: "prod".into(),
        id: InstanceId::pod(format!("agent-{uid}"), uid),
        version: 9,
        task_uid: "t1".into(),
        spec_id: SpecId("agent-1".into()),
        slot: Some(0),
        address: Some([10, 0, 0, 7].into()),
        port: None,
        life: Life::Ready,
        hold: Hold::Free,
        paused: false,
        woken: None,
        releasing: false,
        created_for: None,
        created: Timestamp::UNIX_EPOCH,
        last_active: None,
    }
}

/// A situation that a test changes and then decides.
#[derive(Debug)]
struct Case {
    /// In place of the session.
    lease: Option<LeaseView<'static>>,
    session: Option<Session>,
    holder: Option<Instance>,
    fresh: bool,
    gone: bool,
    given: Option<Instance>,
    asked: bool,
    now: u64,
    since: u64,
    sent: Option<u64>,
    took: bool,
}

impl Case {
    fn new() -> Case {
        Case {
            lease: None,
            session: Some(session()),
            holder: Some(Instance { hold: held("l1", 1), ..instance("p1") }),
            fresh: false,
            gone: false,
            given: None,
            asked: false,
            now: 100_000,
            since: 100_000,
            sent: None,
            took: false,
        }
    }

    fn with(change: impl FnOnce(&mut Case)) -> Case {
        let mut case = Case::new();
        change(&mut case);
        case
    }

    fn session(&mut self) -> &mut Session {
        self.session.as_mut().unwrap()
    }

    fn holder(&mut self) -> &mut Instance {
        self.holder.as_mut().unwrap()
    }

    /// My own, written just now.
    fn mine(&mut self) -> &mut Case {
        self.session().binder = ME.into();
        self.sent = Some(self.now);
        self
    }

    /// The first write of a binding was made and the second was not.
    fn half_made(&mut self) -> &mut Case {
        self.holder().hold = Hold::Free;
        self
    }

    fn decide(&self) -> Step {
        let millis = Duration::from_millis;
        decide(&Situation {
            me: ME,
            now: millis(self.now),
            timing: &Timing::default(),
            lease: match (self.lease, &self.session) {
                (Some(view), _) => view,
                (None, None) => LeaseView::Absent,
                (None, Some(session)) => LeaseView::Seen { session, since: millis(self.since) },
            },
            holder: match &self.holder {
                _ if self.gone => HolderView::Gone,
                None => HolderView::Unknown,
                Some(instance) => HolderView::Seen { instance, fresh: self.fresh },
            },
            candidate: match &self.given {
                Some(instance) => Candidate::Given(instance),
                None if self.asked => Candidate::Awaited,
                None => Candidate::Unasked,
            },
            sent: self.sent.map(millis),
            took: self.took,
        })
    }
}

fn wait(why: Why) -> Step {
    Step::Wait { until: None, why }
}

fn wait_until(millis: u64, why: Why) -> Step {
    Step::Wait { until: Some(Duration::from_millis(millis)), why }
}

#[track_caller]
fn expect(step: Step, change: impl FnOnce(&mut Case)) {
    assert_eq!(Case::with(change).decide(), step);
}

fn other() -> Instance {
    instance("p2")
}

#[test]
fn a_hit_needs_both_sides() {
    expect(Step::Serve, |_| ());
    expect(Step::Confirm, |case| case.session().releasing = true);
    expect(Step::KeepInstance, |case| case.holder().releasing = true);
    expect(wait(Why::Ending), |case| case.session().ending = true);
    expect(wait(Why::Address), |case| case.holder().address = None);
    expect(Step::ReadHolder, |case| case.holder = None);
    for hold in [held("l1", 2), held("l2", 1), Hold::Free, Hold::Spoilt] {
        expect(wait_until(110_000, Why::Binder), |case| case.holder().hold = hold);
    }
}

#[test]
fn without_a_lease_one_is_created() {
    expect(Step::Ask, |case| case.session = None);
    expect(Step::Create { holder: None }, |case| (case.session, case.asked) = (None, true));
    expect(Step::Create { holder: Some(other().id) }, |case| {
        (case.session, case.given) = (None, Some(other()));
    });
    expect(Step::ReadLease, |case| case.lease = Some(LeaseView::Unknown));
    expect(wait(Why::Spoilt), |case| case.lease = Some(LeaseView::Spoilt));
}

#[test]
fn a_binder_completes_in_time_and_confirms_when_late() {
    expect(Step::TakeInstance, |case| {
        case.mine().half_made();
    });
    // Took it, in time: serve. Took it, late: confirm first. Confirmed: serve.
    expect(Step::Serve, |case| {
        case.mine().took = true;
        case.now += 2_499;
    });
    expect(Step::Confirm, |case| {
        case.mine().took = true;
        case.now += 2_500;
    });
    expect(Step::Confirm, |case| {
        case.mine().took = true;
        case.sent = None;
    });
    expect(Step::Serve, |case| {
        case.mine().now += 60_000;
    });
    // Late before the second write: not a patch without having asked whether the Lease is still mine.
    expect(Step::Confirm, |case| {
        case.mine().half_made().now += 2_500;
    });
    expect(Step::Confirm, |case| {
        case.mine().half_made().sent = None;
    });
}

#[test]
fn a_waiting_binder_renews_and_points() {
    let waiting = |case: &mut Case| {
        case.mine();
        case.session().holder = None;
        case.holder = None;
    };
    expect(Step::Ask, waiting);
    expect(wait_until(102_500, Why::Instance), |case| {
        waiting(case);
        case.asked = true;
    });
    expect(Step::Confirm, |case| {
        waiting(case);
        (case.asked, case.now) = (true, 102_500);
    });
    expect(Step::Point { holder: other().id, lost: false }, |case| {
        waiting(case);
        case.given = Some(other());
    });
}

#[test]
fn others_wait_for_the_binder_and_then_take_over() {
    let waiting = |case: &mut Case| {
        case.session().holder = None;
        case.holder = None;
        case.given = Some(other());
    };
    expect(wait_until(110_000, Why::Binder), waiting);
    expect(Step::TakeOver, |case| {
        waiting(case);
        case.now = 110_000;
    });
    expect(wait_until(110_000, Why::Binder), |case| {
        case.half_made();
    });
    expect(Step::ReadHolder, |case| {
        case.half_made().now = 110_000;
    });
    expect(Step::TakeOver, |case| {
        case.half_made().now = 110_000;
        case.fresh = true;
    });
    // The fresh read shows that it was bound after all.
    expect(Step::Serve, |case| {
        case.now = 110_000;
        case.fresh = true;
    });
}

#[test]
fn a_dead_instance_is_replaced_by_anybody() {
    type Change = fn(&mut Case);
    let dead: [Change; 2] = [|case| case.gone = true, |case| case.holder().life = Life::Dead];
    let whose: [Change; 2] = [|_| (), |case| case.session().binder = ME.into()];
    for change in dead.iter().flat_map(|dead| whose.map(|whose| (dead, whose))) {
        let lost = |case: &mut Case| {
            change.0(case);
            change.1(case);
        };
        expect(Step::Ask, lost);
        expect(Step::Claim { lost: true }, |case| {
            lost(case);
            case.asked = true;
        });
        expect(Step::Point { holder: other().id, lost: true }, |case| {
            lost(case);
            case.given = Some(other());
        });
        expect(wait(Why::Ending), |case| {
            lost(case);
            case.session().ending = true;
        });
    }
}

#[test]
fn an_instance_that_may_still_run_is_ended_first() {
    expect(Step::DeleteInstance, |case| case.holder().life = Life::Unready);
    expect(wait(Why::OldInstance), |case| {
        case.holder().life = Life::Terminating;
        case.given = Some(other());
    });
    expect(Step::DeleteInstance, |case| {
        case.holder().life = Life::Unready;
        case.session().releasing = true;
    });
}

#[test]
fn a_binder_whose_instance_is_somebody_elses_looks_before_it_leaves() {
    let taken = |case: &mut Case| {
        case.mine();
        case.holder().hold = held("l2", 1);
        case.given = Some(other());
    };
    expect(Step::ReadHolder, taken);
    expect(Step::Point { holder: other().id, lost: false }, |case| {
        taken(case);
        case.fresh = true;
    });
    expect(Step::Claim { lost: false }, |case| {
        taken(case);
        (case.fresh, case.given, case.asked) = (true, None, true);
    });
}

#[test]
fn a_spoilt_instance_is_ended_and_not_left() {
    for hold in [Hold::Spoilt, Hold::Free] {
        for (life, step) in [
            (Life::Unready, Step::DeleteInstance),
            (Life::Starting, Step::DeleteInstance),
            (Life::Terminating, wait(Why::OldInstance)),
        ] {
            expect(step, |case| {
                case.mine().given = Some(other());
                (case.holder().hold, case.holder().life) = (hold.clone(), life);
            });
        }
    }
    expect(Step::DeleteInstance, |case| {
        case.mine();
        case.holder().hold = Hold::Spoilt;
    });
}

fn any_case() -> impl Strategy<Value = Case> {
    let lives = [Life::Starting, Life::Ready, Life::Unready, Life::Terminating, Life::Dead];
    let holds = [Hold::Free, Hold::Spoilt, held("l1", 1), held("l1", 2), held("l2", 1)];
    let session = (any::<[bool; 4]>(), prop::sample::select(holds.to_vec()));
    let flags = any::<[bool; 7]>();
    (session, flags, prop::sample::select(lives.to_vec()), 0..12_000u64, prop::option::of(0..12_000u64))
        .prop_map(|((session, hold), flags, life, age, sent)| {
            Case::with(|case| {
                let [mine, pointed, releasing, ending] = session;
                let [fresh, gone, given, asked, took, known, marked] = flags;
                case.holder().releasing = marked;
                case.session().binder = if mine { ME } else { OTHER }.into();
                (case.session().releasing, case.session().ending) = (releasing, ending);
                if !pointed {
                    case.session().holder = None;
                }
                (case.holder().hold, case.holder().life) = (hold, life);
                (case.fresh, case.gone, case.asked, case.took) = (fresh, gone, asked, took);
                case.given = given.then(other);
                if !known {
                    case.holder = None;
                }
                case.since = case.now - age;
                case.sent = sent.map(|age| case.now - age);
            })
        })
}

proptest! {
    #[test]
    fn nobody_serves_or_leaves_what_may_be_in_use(case in any_case()) {
        let session = case.session.as_ref().unwrap();
        let holder = case.holder.as_ref().filter(|_| !case.gone && session.holder.is_some());
        let bound = holder.is_some_and(|holder| holder.is_bound_to(session));
        let alive = holder.is_some_and(|holder| holder.life != Life::Dead);
        match case.decide() {
            Step::Serve => {
                prop_assert!(bound && !session.ending && !session.releasing);
                prop_assert_eq!(holder.unwrap().life, Life::Ready);
                prop_assert!(!holder.unwrap().releasing);
            }
            Step::Point { .. } | Step::Claim { .. } => {
                prop_assert!(!session.ending);
                prop_assert!(!(bound && alive), "the old instance may still run");
                if alive {
                    let mine = &*session.binder == ME;
                    prop_assert!(mine && case.fresh, "left without a fresh look");
                }
            }
            Step::TakeInstance => {
                prop_assert_eq!(&*session.binder, ME);
                prop_assert!(holder.is_some_and(|holder| holder.hold == Hold::Free));
                prop_assert!(case.sent.is_some_and(|sent| case.now - sent < 2_500));
            }
            Step::DeleteInstance => prop_assert!(alive && (bound || &*session.binder == ME)),
            Step::TakeOver => prop_assert!(&*session.binder != ME && case.now - case.since >= 10_000),
            Step::Wait { until: Some(until), .. } => {
                prop_assert!(until > Duration::from_millis(case.now), "would spin");
            }
            _ => {}
        }
    }
}

#[test]
fn who_wants_no_new_session_gets_none() {
    let (of, intact) = (|lease: &str| Some(lease.into()), |lease| Which::Intact { lease, binding: None });
    let existing = |lease| Which::Existing { lease };
    let replaced = Step::Claim { lost: true };
    let waiting = Session { holder: None, ..session() };
    let ending = Session { ending: true, ..session() };
    for (which, session, step, missing) in [
        (Which::OrNew, None, &Step::Ask, false),
        (existing(None), None, &Step::Ask, true),
        (existing(of("l1")), Some(session()), &replaced, false),
        (existing(of("l2")), Some(session()), &Step::Serve, true),
        (existing(None), Some(ending), &Step::Serve, true),
        (existing(None), Some(waiting.clone()), &Step::TakeOver, false),
        (intact(None), Some(waiting), &Step::TakeOver, true),
        (intact(of("l1")), Some(session()), &Step::Serve, false),
        (
            Which::Intact { lease: None, binding: Some(session().binding) },
            Some(session()),
            &Step::Serve,
            false,
        ),
        (
            Which::Intact { lease: None, binding: Some(session().binding - 1) },
            Some(session()),
            &Step::Serve,
            true,
        ),
        (intact(None), Some(session()), &Step::ReadHolder, false),
        (intact(None), Some(session()), &replaced, true),
        (intact(None), Some(session()), &Step::DeleteInstance, true),
        (intact(None), Some(session()), &Step::Wait { until: None, why: Why::OldInstance }, true),
    ] {
        assert_eq!(is_missing(&which, session.as_ref(), step), missing, "{which:?} {step:?}");
    }
}

#[test]
fn what_rests_is_woken_before_it_is_served() {
    let resting = |change: &dyn Fn(&mut Case)| {
        Case::with(|case| {
            case.session().rests = Some(7);
            change(case);
        })
        .decide()
    };
    let waking = Step::Wait { until: None, why: Why::Waking };
    let paused = |case: &mut Case| (case.holder().paused, case.holder().life) = (true, Life::Paused);
    assert_eq!(resting(&paused), Step::Wake);
    // Not paused yet: whoever is about to do that must fail.
    assert_eq!(resting(&|_| ()), Step::Wake);
    assert_eq!(resting(&|case| case.holder().woken = Some(6)), Step::Wake);
    assert_eq!(resting(&|case| (case.holder().woken, case.holder().life) = (Some(7), Life::Paused)), waking);
    assert_eq!(resting(&|case| case.holder().woken = Some(7)), Step::Resume);
    // Woken since what is known of the session: the write will tell.
    assert_eq!(resting(&|case| case.holder().woken = Some(8)), Step::Resume);
    let marked = |case: &mut Case| {
        case.holder().woken = Some(7);
        case.session().releasing = true;
    };
    assert_eq!(resting(&marked), Step::Resume);
    // Paused again by hand.
    let by_hand = |case: &mut Case| {
        paused(case);
        case.holder().woken = Some(7);
    };
    assert_eq!(resting(&by_hand), Step::Wake);
    assert_eq!(Case::with(paused).decide(), Step::Wake);
    // What is lost is replaced, paused or not.
    assert_eq!(resting(&|case| case.holder().life = Life::Unready), Step::DeleteInstance);
    assert_eq!(
        resting(&|case| case.holder().life = Life::Terminating),
        Step::Wait { until: None, why: Why::OldInstance }
    );
}
