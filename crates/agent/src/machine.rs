//! The life of one run, without effects: it starts, runs, is asked to end or ends by itself, and what it held is given
//! back. Whoever performs the effects tells what came of them.

use std::time::Duration;

use agentcube_runtime::Exit;

/// Who ended a run, if not its own program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Stopped,
    Expired,
    /// The controller was out of reach for too long, and nothing here can be frozen.
    Fenced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Its program runs.
    Began,
    /// It could not be started, and whatever was made for it is gone.
    Failed,
    /// It is to end within the grace.
    End {
        ending: Ending,
        grace: Duration,
    },
    GraceOver,
    /// Its first process has ended.
    Exited(Exit),
    /// Nothing of it is left in the kernel.
    Cleaned,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Whatever is waited for before the program runs is waited for no longer.
    Abandon,
    /// Ask the program to end.
    Signal,
    /// Say [`Event::GraceOver`] after this long; a later one replaces an earlier one.
    Wait(Duration),
    Kill,
    Clean,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Starting,
    Running,
    Stopping,
    Ended,
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    phase: Phase,
    began: bool,
    ending: Option<(Ending, Duration)>,
    exit: Option<Exit>,
}

impl Life {
    pub(crate) fn new() -> Self {
        Self { phase: Phase::Starting, began: false, ending: None, exit: None }
    }

    /// One that an earlier process has seen: it runs, or it has ended so, and what it held is still to be given back.
    pub(crate) fn resumed(exit: Option<Exit>, ending: Option<Ending>) -> Self {
        let phase = match (exit, ending) {
            (None, None) => Phase::Running,
            _ => Phase::Stopping,
        };
        Self { phase, began: true, ending: ending.map(|ending| (ending, Duration::ZERO)), exit }
    }

    /// Who ends it, if somebody does.
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.ending.map(|(ending, _)| ending)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// How it ended, and who ended it. None while it lives, and if it never ran.
    pub(crate) fn exit(&self) -> Option<(Exit, Option<Ending>)> {
        self.exit.map(|exit| (exit, self.ending.map(|(ending, _)| ending)))
    }

    /// Takes in what happened; what is to be done next, in this order.
    pub(crate) fn step(&mut self, event: Event) -> Vec<Effect> {
        match (self.phase, event) {
            (Phase::Starting, Event::Began) => {
                (self.phase, self.began) = (Phase::Running, true);
                Vec::new()
            }
            (Phase::Stopping, Event::Began) if !self.began => {
                self.began = true;
                let grace = self.ending.map_or(Duration::ZERO, |(_, grace)| grace);
                ask(grace)
            }
            (Phase::Starting | Phase::Stopping, Event::Failed) if !self.began => {
                self.phase = Phase::Ended;
                Vec::new()
            }
            (Phase::Starting, Event::End { ending, grace }) => {
                (self.phase, self.ending) = (Phase::Stopping, Some((ending, grace)));
                vec![Effect::Abandon]
            }
            (Phase::Running, Event::End { ending, grace }) => {
                (self.phase, self.ending) = (Phase::Stopping, Some((ending, grace)));
                ask(grace)
            }
            (Phase::Stopping, Event::End { grace, .. }) => self.hurry(grace),
            (Phase::Stopping, Event::GraceOver) if self.lives() => vec![Effect::Kill],
            (Phase::Running | Phase::Stopping, Event::Exited(exit)) if self.lives() => {
                (self.phase, self.exit) = (Phase::Stopping, Some(exit));
                vec![Effect::Clean]
            }
            (Phase::Stopping, Event::Cleaned) if self.exit.is_some() => {
                self.phase = Phase::Ended;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn lives(&self) -> bool {
        self.began && self.exit.is_none()
    }

    /// A second wish to end can only shorten what the first has granted.
    fn hurry(&mut self, grace: Duration) -> Vec<Effect> {
        let Some((_, granted)) = self.ending.as_mut().filter(|(_, granted)| grace < *granted) else {
            return Vec::new();
        };
        *granted = grace;
        match (self.lives(), grace.is_zero()) {
            (false, _) => Vec::new(),
            (true, true) => vec![Effect::Kill],
            (true, false) => vec![Effect::Wait(grace)],
        }
    }
}

fn ask(grace: Duration) -> Vec<Effect> {
    if grace.is_zero() { vec![Effect::Kill] } else { vec![Effect::Signal, Effect::Wait(grace)] }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EXIT: Exit = Exit { code: 0, signal: None, out_of_memory: false };
    const LONG: Duration = Duration::from_secs(5);
    const SHORT: Duration = Duration::from_secs(1);

    fn end(grace: Duration) -> Event {
        Event::End { ending: Ending::Stopped, grace }
    }

    #[test]
    fn lives_as_told() {
        use Effect::{Abandon, Clean, Kill, Signal, Wait};
        let table: &[(&[Event], Phase, &[Effect])] = &[
            (&[], Phase::Starting, &[]),
            (&[Event::Began], Phase::Running, &[]),
            (&[Event::Failed], Phase::Ended, &[]),
            (&[Event::Began, Event::Exited(EXIT)], Phase::Stopping, &[Clean]),
            (&[Event::Began, Event::Exited(EXIT), Event::Cleaned], Phase::Ended, &[Clean]),
            (&[Event::Began, end(LONG)], Phase::Stopping, &[Signal, Wait(LONG)]),
            (&[Event::Began, end(Duration::ZERO)], Phase::Stopping, &[Kill]),
            (&[Event::Began, end(LONG), Event::GraceOver], Phase::Stopping, &[Signal, Wait(LONG), Kill]),
            (&[Event::Began, end(LONG), end(SHORT)], Phase::Stopping, &[Signal, Wait(LONG), Wait(SHORT)]),
            (&[Event::Began, end(SHORT), end(LONG)], Phase::Stopping, &[Signal, Wait(SHORT)]),
            (&[end(LONG), Event::Failed], Phase::Ended, &[Abandon]),
            (&[end(LONG), Event::Began], Phase::Stopping, &[Abandon, Signal, Wait(LONG)]),
            (&[end(LONG), end(Duration::ZERO), Event::Began], Phase::Stopping, &[Abandon, Kill]),
            (
                &[Event::Began, end(LONG), Event::Exited(EXIT), Event::GraceOver, Event::Cleaned],
                Phase::Ended,
                &[Signal, Wait(LONG), Clean],
            ),
        ];
        for (events, phase, effects) in table {
            let mut life = Life::new();
            let done: Vec<Effect> = events.iter().flat_map(|event| life.step(*event)).collect();
            assert_eq!((life.phase(), done.as_slice()), (*phase, *effects), "{events:?}");
        }
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::Began),
            Just(Event::Failed),
            (0_u64..3).prop_map(|seconds| end(Duration::from_secs(seconds))),
            Just(Event::GraceOver),
            Just(Event::Exited(EXIT)),
            Just(Event::Cleaned),
        ]
    }

    proptest! {
        /// In whatever order things happen: it is cleaned once and only after its end, never killed after it, and what
        /// has ended stays so.
        #[test]
        fn any_order_of_events_makes_sense(events in proptest::collection::vec(event(), 0..12)) {
            let mut life = Life::new();
            let mut cleaned = 0;
            for event in events {
                let before = life;
                let effects = life.step(event);
                if before.phase() == Phase::Ended {
                    prop_assert_eq!(life, before);
                    prop_assert!(effects.is_empty());
                }
                if before.exit.is_some() {
                    prop_assert!(effects.is_empty(), "{:?}", effects);
                    prop_assert_eq!(life.exit, before.exit);
                }
                cleaned += effects.iter().filter(|effect| **effect == Effect::Clean).count();
                prop_assert!(life.phase() != Phase::Running || life.ending.is_none());
            }
            prop_assert!(cleaned <= 1);
        }
    }
}
