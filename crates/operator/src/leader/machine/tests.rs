//! A table over what follows from what was seen, and candidates that meet over a server which delays, refuses and
//! loses, while they stall, crash and come again.

use proptest::prelude::*;

use super::*;

fn options(identity: &str) -> Options {
    Options::new("default", "lead", identity)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn lease(holder: &str, seconds: Option<i32>, version: u64) -> Lease {
    let spec = LeaseSpec {
        holder_identity: Some(holder.into()),
        lease_duration_seconds: seconds,
        ..LeaseSpec::default()
    };
    let metadata = ObjectMeta { resource_version: Some(version.to_string()), ..ObjectMeta::default() };
    Lease { metadata, spec: Some(spec) }
}

#[test]
fn what_follows_from_what_was_seen() {
    let start = Instant::now();
    let held = |holder, seconds| Seen::Lease(Box::new(lease(holder, seconds, 1)), start);
    let table = [
        (Seen::Absent, 0, Decision::Create),
        (held("", Some(15)), 0, Decision::Write),
        (held("me", Some(15)), 0, Decision::Write),
        (held("before", Some(15)), 0, Decision::Write),
        (held("other", Some(15)), 0, Decision::StandBy(start + secs(15))),
        (held("other", Some(15)), 14, Decision::StandBy(start + secs(15))),
        (held("other", Some(15)), 15, Decision::Write),
        // The holder says for how long it counts as alive; if it does not, one's own measure counts.
        (held("other", Some(60)), 15, Decision::StandBy(start + secs(60))),
        (held("other", None), 14, Decision::StandBy(start + secs(15))),
        (held("other", Some(-1)), 15, Decision::Write),
        (Seen::Removed(start), 14, Decision::StandBy(start + secs(15))),
        (Seen::Removed(start), 15, Decision::Create),
    ];
    for (seen, after, wanted) in table {
        assert_eq!(
            decide(&seen, &["me", "before"], secs(15), start + secs(after)),
            wanted,
            "{seen:?} after {after} s"
        );
    }
}

#[test]
fn a_lease_that_does_not_change_keeps_its_age_and_one_that_does_is_young() {
    let start = Instant::now();
    let mut machine = Machine::new(options("me"), start);
    let since = |machine: &Machine| match &machine.seen {
        Seen::Lease(_, since) => *since,
        other => panic!("{other:?}"),
    };
    for (version, at, wanted) in [(1, 0, 0), (1, 4, 0), (2, 6, 6), (2, 9, 6)] {
        let now = start + secs(at);
        machine.learn(Answer::Read(Some(lease("other", Some(15), version))), now, now);
        assert_eq!(since(&machine), start + secs(wanted));
    }
    let now = start + secs(10);
    machine.learn(Answer::Read(None), now, now);
    assert_eq!(machine.seen, Seen::Removed(now));
}

#[test]
fn the_claim_counts_transitions_and_keeps_what_others_wrote() {
    let start = Instant::now();
    let mut machine = Machine::new(options("me"), start);
    let now = Timestamp::UNIX_EPOCH;
    assert_eq!(machine.claim(now).spec.unwrap().lease_transitions, Some(0));
    let mut other = lease("other", Some(15), 7);
    other.metadata.labels = Some([("team".to_owned(), "a".to_owned())].into());
    other.spec.as_mut().unwrap().lease_transitions = Some(3);
    machine.learn(Answer::Read(Some(other)), start, start);
    assert_eq!(machine.release(now), None, "it is not ours to release");
    let claim = machine.claim(now);
    assert_eq!(claim.metadata.labels.as_ref().unwrap()["team"], "a");
    assert_eq!(claim.spec.as_ref().unwrap().lease_transitions, Some(4));
    machine.learn(Answer::Written(claim), start, start);
    assert_eq!(machine.claim(now).spec.unwrap().lease_transitions, Some(4));
    assert_eq!(holder(&machine.release(now).unwrap()), "");
}

/// What befalls one request: when it reaches the server and when its answer comes back, in tenths of a second, and
/// whether it is refused, or its answer lost.
#[derive(Clone, Copy, Debug)]
struct Fate {
    there: u64,
    back: u64,
    refused: bool,
    lost: bool,
}

const SMOOTH: Fate = Fate { there: 0, back: 0, refused: false, lost: false };

fn fate() -> impl Strategy<Value = Fate> {
    let delay = || prop_oneof![4 => 0..3_u64, 1 => 0..120_u64];
    (delay(), delay(), prop::bool::weighted(0.15), prop::bool::weighted(0.15))
        .prop_map(|(there, back, refused, lost)| Fate { there, back, refused, lost })
}

/// What befalls a candidate.
#[derive(Clone, Copy, Debug)]
enum Blow {
    /// It does nothing for so many tenths of a second.
    Stall(u64),
    /// It is gone, and another process takes its place.
    Crash,
    /// It gives the Lease back, and another process takes its place.
    Leave,
}

fn blow() -> impl Strategy<Value = Blow> {
    prop_oneof![(0..300_u64).prop_map(Blow::Stall), Just(Blow::Crash), Just(Blow::Leave)]
}

struct Sent {
    candidate: usize,
    life: usize,
    at: Instant,
    reaches: u64,
    returns: u64,
    write: Option<(Action, Lease)>,
    fate: Fate,
    answer: Option<Answer>,
}

struct Candidate {
    machine: Machine,
    /// What its clock showed at the beginning.
    origin: Instant,
    life: usize,
    waiting: bool,
    rests_until: u64,
    stalled_until: u64,
}

impl Candidate {
    fn clock(&self, tick: u64) -> Instant {
        self.origin + Duration::from_millis(100) * u32::try_from(tick).unwrap()
    }

    fn leads(&self, tick: u64) -> bool {
        self.machine.leads_until().is_some_and(|until| self.clock(tick) < until)
    }

    fn replace(&mut self, name: usize, tick: u64) {
        self.life += 1;
        self.machine = Machine::new(options(&format!("{name}-{}", self.life)), self.clock(tick));
        (self.waiting, self.rests_until, self.stalled_until) = (false, 0, 0);
    }
}

/// The server: one Lease, replaced only by who has seen its version.
#[derive(Default)]
struct World {
    lease: Option<Lease>,
    version: u64,
    sent: Vec<Sent>,
}

impl World {
    fn serve(&mut self, tick: u64) {
        for index in 0..self.sent.len() {
            let sent = &mut self.sent[index];
            if sent.answer.is_some() || sent.reaches > tick {
                continue;
            }
            sent.answer = Some(match &sent.write {
                _ if sent.fate.refused => Answer::Failed,
                None => Answer::Read(self.lease.clone()),
                Some((action, lease)) => {
                    let fits = match (action, &self.lease) {
                        (Action::Create, held) => held.is_none(),
                        (_, Some(held)) => version(held) == version(lease),
                        (_, None) => false,
                    };
                    if fits {
                        self.version += 1;
                        let mut lease = lease.clone();
                        lease.metadata.resource_version = Some(self.version.to_string());
                        self.lease = Some(lease.clone());
                        Answer::Written(lease)
                    } else {
                        Answer::Failed
                    }
                }
            });
            if sent.fate.lost {
                sent.answer = Some(Answer::Failed);
            }
        }
    }

    /// One tick of a candidate: takes in answers, and acts.
    fn drive(&mut self, number: usize, candidate: &mut Candidate, tick: u64, fate: impl FnOnce() -> Fate) {
        if tick < candidate.stalled_until {
            return;
        }
        let now = candidate.clock(tick);
        if candidate.machine.leads_until().is_some_and(|until| until <= now) {
            candidate.machine.expired(now);
            (candidate.waiting, candidate.rests_until) = (false, 0);
            // Whatever was under way goes on without anybody waiting for it.
            self.sent
                .iter_mut()
                .filter(|sent| sent.candidate == number)
                .for_each(|sent| sent.life = usize::MAX);
        }
        let mine = |sent: &Sent| sent.candidate == number && sent.life == candidate.life;
        if let Some(index) = self.sent.iter().position(|sent| mine(sent) && sent.returns <= tick) {
            let sent = &mut self.sent[index];
            // Too late for the one who asked, but it may still reach the server.
            let answer = sent.answer.clone().unwrap_or(Answer::Failed);
            let late = now.duration_since(sent.at) > options("").patience();
            sent.life = usize::MAX;
            candidate.machine.learn(if late { Answer::Failed } else { answer }, sent.at, now);
            candidate.waiting = false;
        }
        if candidate.waiting || tick < candidate.rests_until {
            return;
        }
        match candidate.machine.next(now) {
            Action::Rest(until) => {
                let rest = until.duration_since(now).as_millis().div_ceil(100);
                candidate.rests_until = tick + u64::try_from(rest).unwrap();
            }
            action => {
                let fate = fate();
                let claim = candidate.machine.claim(Timestamp::UNIX_EPOCH);
                let write = (action != Action::Read).then_some((action, claim));
                let reaches = tick + fate.there;
                let patience = u64::try_from(options("").patience().as_millis() / 100).unwrap();
                let returns = (reaches + fate.back).min(tick + patience);
                candidate.waiting = true;
                let (life, at) = (candidate.life, now);
                let sent = Sent { candidate: number, life, at, reaches, returns, write, fate, answer: None };
                self.sent.push(sent);
            }
        }
        self.sent.retain(|sent| sent.answer.is_none() || sent.life != usize::MAX);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn never_two_leaders_and_one_in_the_end(
        fates in prop::collection::vec(fate(), 1..60),
        blows in prop::collection::vec((1..1200_u64, 0..3_usize, blow()), 0..12),
        skews in prop::collection::vec(0..100_000_u64, 3),
    ) {
        let start = Instant::now();
        let mut candidates: Vec<Candidate> = (0..3)
            .map(|number| {
                let origin = start + Duration::from_millis(skews[number]);
                let machine = Machine::new(options(&format!("{number}-0")), origin);
                Candidate { machine, origin, life: 0, waiting: false, rests_until: 0, stalled_until: 0 }
            })
            .collect();
        let mut world = World::default();
        let mut fates = fates.into_iter().cycle();
        let (calm, end) = (1200, 2000);
        for tick in 0..end {
            for (_, number, blow) in blows.iter().filter(|(at, ..)| *at == tick) {
                let candidate = &mut candidates[*number];
                match blow {
                    Blow::Stall(ticks) => candidate.stalled_until = tick + ticks,
                    Blow::Crash => candidate.replace(*number, tick),
                    Blow::Leave => {
                        if let Some(lease) = candidate.machine.release(Timestamp::UNIX_EPOCH)
                            && world.lease.as_ref().is_some_and(|held| version(held) == version(&lease))
                        {
                            world.version += 1;
                            world.lease = Some(lease);
                            let version = Some(world.version.to_string());
                            world.lease.as_mut().unwrap().metadata.resource_version = version;
                        }
                        candidate.replace(*number, tick);
                    }
                }
            }
            // Whoever reaches the server in this tick, reaches it before and after the others are served.
            for (number, candidate) in candidates.iter_mut().enumerate() {
                world.serve(tick);
                let fate = || if tick < calm { fates.next().unwrap() } else { SMOOTH };
                world.drive(number, candidate, tick, fate);
            }
            let leaders: Vec<usize> = (0..3).filter(|number| candidates[*number].leads(tick)).collect();
            prop_assert!(leaders.len() <= 1, "{leaders:?} lead at {tick}");
        }
        let leaders = candidates.iter().filter(|candidate| candidate.leads(end)).count();
        prop_assert_eq!(leaders, 1, "somebody leads in the end");
    }
}
