//! That nothing goes wrong says little if nothing happens, or if things never come to rest. Here all states are kept:
//! from each an end has to be reachable, without luck, by what follows by itself.

use std::collections::{BTreeSet, HashMap};

use stateright::Model;

use super::state::{Budget, State};
use super::{CALM, Setup, after, rests, step};

/// Everything that can be reached.
struct Explored {
    states: Vec<State>,
    /// From where each is reached by what follows by itself.
    before: Vec<Vec<usize>>,
    rests: Vec<usize>,
    /// What was done, in words.
    steps: BTreeSet<String>,
}

fn explore(setup: Setup) -> Explored {
    let mut all = Explored {
        states: setup.init_states(),
        before: vec![Vec::new()],
        rests: Vec::new(),
        steps: BTreeSet::new(),
    };
    let mut known = HashMap::from([(all.states[0].clone(), 0)]);
    let mut at = 0;
    while at < all.states.len() {
        let state = all.states[at].clone();
        let (mut steps, mut duties) = (Vec::new(), Vec::new());
        step::possible(&setup, &state, &mut steps);
        step::duties(&setup, &state, &mut duties);
        for step in steps {
            let next = after(&setup, &state, step);
            if next != state {
                all.steps.insert(words(&format!("{step:?}")));
            }
            let index = *known.entry(next.clone()).or_insert(all.states.len());
            if index == all.states.len() {
                all.states.push(next);
                all.before.push(Vec::new());
            }
            if duties.contains(&step) {
                all.before[index].push(at);
            }
        }
        if rests(&setup, &state) {
            all.rests.push(at);
        }
        at += 1;
    }
    all
}

/// A step without its numbers.
fn words(step: &str) -> String {
    let words = step.split(|letter: char| !letter.is_alphabetic());
    let names = words.filter(|word| word.starts_with(char::is_uppercase));
    names.collect::<Vec<_>>().join(" ")
}

fn comes_to_rest(setup: Setup) -> BTreeSet<String> {
    let Explored { states, before, mut rests, steps } = explore(setup);
    let mut ends = vec![false; states.len()];
    while let Some(at) = rests.pop() {
        if !std::mem::replace(&mut ends[at], true) {
            rests.extend(&before[at]);
        }
    }
    let stuck = (0..states.len()).find(|at| !ends[*at]).map(|at| &states[at]);
    eprintln!("{} states", states.len());
    assert!(stuck.is_none(), "this never comes to rest: {stuck:#?}");
    steps
}

#[test]
fn everything_happens_and_comes_to_rest() {
    let rough = Budget { deletes: 1, lost: 1, crashes: 1, keepers: 1, ..CALM };
    let mut steps = comes_to_rest(Setup::new(2, Budget { fast: 1, ..rough }).wal());
    steps.extend(comes_to_rest(Setup::new(2, Budget { fast: 1, ..rough })));
    steps.extend(comes_to_rest(Setup::new(2, Budget { strong: 1, full: 1, keepers: 0, ..rough })));
    steps.extend(comes_to_rest(Setup::new(2, Budget { objects: 1, resets: 1, crashes: 0, ..rough }).auto()));
    steps.extend(comes_to_rest(Setup::new(2, Budget { objects: 1, ticks: 2, lost: 1, ..CALM }).auto()));
    let wanted = [
        "Answer There",
        "Answer Deleted",
        "Arrive",
        "Call Confirm",
        "Call Start",
        "Call Stop Abandoned",
        "Call Stop Deleted",
        "Call Stop Replaced",
        "Call Thaw",
        "Forget Run",
        "Freeze",
        "Full",
        "Log Run",
        "LogDeleted Run",
        "LoseCall Start",
        "LoseWrite Create Some Run",
        "Turn Delete Run",
        "Turn Object Run",
        "Write Change Assign Run",
        "Write Change Clear",
        "Write Change Finalize",
        "Write Change Move Bound",
        "Write Change Move Lost",
        "Write Change Move Running",
        "Write Change Phase Lost",
        "Write Change Phase Running",
        "Write Create Some Run",
        "Write Delete",
    ];
    let missing: Vec<_> = wanted.into_iter().filter(|step| !steps.contains(*step)).collect();
    assert!(missing.is_empty(), "never: {missing:?}; only {steps:#?}");
}
