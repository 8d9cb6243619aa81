//! What was measured, for people and for programs, and whether it reaches the targets.

use std::process::ExitCode;
use std::time::Duration;

use agentcube_protos::session::Timings;
use agentcube_testkit::target::{self, Target};
use serde_json::{Value, json};

use crate::{Measured, Sample};

pub(crate) const FAST: &str = "fast path";
pub(crate) const PREPARED: &str = "fast path, prepared";
pub(crate) const STRONG: &str = "fast path, STRONG";
pub(crate) const OBJECT: &str = "object and watch";
pub(crate) const SESSION: &str = "new session";
pub(crate) const SESSION_PREPARED: &str = "new session, prepared";
pub(crate) const CTR: &str = "ctr run";
pub(crate) const FLOOR: &str = "plain process";
const PEER: &str = "runc run";
/// What the fast path was asked for by those who thought of it, with every runtime.
const EVERY_RUNTIME_MS: f64 = 50.0;

type Stage = (&'static str, fn(&Sample, &Timings) -> Duration);

/// What a create is made of; the rest of it is the call.
const STAGES: [Stage; 6] = [
    ("rpc", |sample, it| {
        let known = it.allocate + it.log + it.admit + it.start + it.ready;
        sample.answering.saturating_sub(Duration::from_micros(known))
    }),
    ("allocate", |_, it| Duration::from_micros(it.allocate)),
    ("log", |_, it| Duration::from_micros(it.log)),
    ("admit", |_, it| Duration::from_micros(it.admit)),
    ("start", |_, it| Duration::from_micros(it.start)),
    ("ready", |_, it| Duration::from_micros(it.ready)),
];

fn at(percent: usize, mut times: Vec<Duration>) -> f64 {
    times.sort();
    let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
}

fn answering(percent: usize, samples: &[Sample]) -> f64 {
    at(percent, samples.iter().map(|sample| sample.answering).collect())
}

fn stage(samples: &[Sample], (_, of): Stage) -> f64 {
    at(50, samples.iter().filter_map(|sample| Some(of(sample, sample.stages.as_ref()?))).collect())
}

fn targets(measured: &[Measured]) -> Vec<Target> {
    let of = |name: &str| measured.iter().find(|it| it.name == name);
    let at_most = |name, measured, target| Target { name, measured, target, at_least: false };
    let mut targets = Vec::new();
    if let Some(fast) = of(FAST) {
        targets.push(at_most("one at a time: answering, p50 ms", answering(50, &fast.one), 5.0));
        if let Some(peer) = of(PEER) {
            let share = answering(50, &fast.one) / answering(50, &peer.one);
            targets.push(at_most("the same over `runc run`", share, 0.25));
        }
        targets.push(at_most("50 at once: answering, p99 ms", answering(99, &fast.many), 50.0));
    }
    if let Some(prepared) = of(PREPARED) {
        targets.push(at_most("50 prepared at once: p99 ms", answering(99, &prepared.many), 50.0));
        targets.push(at_most("claim of a prepared one, p50 ms", stage(&prepared.one, STAGES[4]), 1.0));
    }
    let sessions =
        [("first request of a session, p50 ms", SESSION), ("the same, prepared, p50 ms", SESSION_PREPARED)];
    for (name, way) in sessions {
        targets.extend(of(way).map(|it| at_most(name, answering(50, &it.one), 25.0)));
    }
    let runtimes = [("with runc, p50 ms", "fast path, runc"), ("with crun, p50 ms", "fast path, crun")];
    for (name, way) in runtimes {
        targets.extend(of(way).map(|it| at_most(name, answering(50, &it.one), EVERY_RUNTIME_MS)));
    }
    targets
}

/// Prints the results; with `enforce`, a missed target fails and the worst stands on the last line.
pub(crate) fn print(measured: &[Measured], skipped: &[String], as_json: bool, enforce: bool) -> ExitCode {
    let targets = targets(measured);
    if as_json {
        println!("{:#}", to_json(measured, skipped, &targets));
        return target::verdict(&targets, enforce);
    }
    print!("create to answering, ms{:>18}{:>10}{:>15}", "one: p50", "p99", "rested: p50");
    println!("{:>17}{:>10}", "50 at once: p50", "p99");
    for it in measured {
        let [one, first, many] = [&it.one, &it.first, &it.many];
        print!("{:<28}{:>13.2}{:>10.2}", it.name, answering(50, one), answering(99, one));
        print!("{:>15.2}", answering(50, first));
        println!("{:>17.2}{:>10.2}", answering(50, many), answering(99, many));
    }
    println!("\nstages of one, p50 ms");
    for it in measured.iter().filter(|it| it.one.iter().any(|sample| sample.stages.is_some())) {
        print!("{:<28}", it.name);
        STAGES.iter().for_each(|one| print!("  {} {:.2}", one.0, stage(&it.one, *one)));
        println!();
    }
    skipped.iter().for_each(|why| println!("SKIPPED: {why}"));
    println!();
    targets.iter().for_each(|target| println!("{}", target.line()));
    target::verdict(&targets, enforce)
}

fn to_json(measured: &[Measured], skipped: &[String], targets: &[Target]) -> Value {
    let values = |samples: &[Sample]| {
        let stages: serde_json::Map<String, Value> =
            STAGES.iter().map(|one| (one.0.to_owned(), json!(stage(samples, *one)))).collect();
        json!({
            "answeringP50Ms": answering(50, samples), "answeringP99Ms": answering(99, samples),
            "stagesP50Ms": stages,
        })
    };
    let ways: serde_json::Map<String, Value> = measured
        .iter()
        .map(|it| {
            let all = [("one", &it.one), ("firstAfterARest", &it.first), ("fiftyAtOnce", &it.many)];
            (
                it.name.clone(),
                all.into_iter().map(|(name, samples)| (name.to_owned(), values(samples))).collect(),
            )
        })
        .collect();
    json!({ "ways": ways, "skipped": skipped, "targets": target::to_json(targets) })
}
