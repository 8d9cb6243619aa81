//! What was measured, for people and for programs, and whether it reaches the targets.

use std::process::ExitCode;
use std::time::Duration;

use agentcube_testkit::containers::times::Times;
use agentcube_testkit::target::{self, Target};
use serde_json::{Value, json};

use crate::Measured;

pub(crate) const FLOOR: &str = "plain process";
pub(crate) const NATIVE: &str = "native";
pub(crate) const POOLED: &str = "native, sandbox ready";
pub(crate) const PREPARED: &str = "native, prepared";
const PEER: &str = "runc run";
const ANSWERING_TARGET_MS: f64 = 5.0;
const PEER_TARGET: f64 = 0.25;
const MANY_TARGET_MS: f64 = 50.0;
const CLAIM_TARGET_MS: f64 = 1.0;

type Row = (&'static str, fn(&Measured) -> f64);

const ROWS: [Row; 8] = [
    ("one at a time: running, p50 ms", |it| at(50, &it.one, |times| times.running)),
    ("one at a time: running, p99 ms", |it| at(99, &it.one, |times| times.running)),
    ("one at a time: answering, p50 ms", |it| at(50, &it.one, |times| times.answering)),
    ("one at a time: answering, p99 ms", |it| at(99, &it.one, |times| times.answering)),
    ("50 at once: running, p50 ms", |it| at(50, &it.many, |times| times.running)),
    ("50 at once: running, p99 ms", |it| at(99, &it.many, |times| times.running)),
    ("50 at once: answering, p50 ms", |it| at(50, &it.many, |times| times.answering)),
    ("50 at once: answering, p99 ms", |it| at(99, &it.many, |times| times.answering)),
];

fn at(percent: usize, all: &[Times], of: fn(&Times) -> Duration) -> f64 {
    let mut times: Vec<Duration> = all.iter().map(of).collect();
    times.sort();
    let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
}

fn targets(measured: &[Measured]) -> Vec<Target> {
    let of = |name: &str| measured.iter().find(|it| it.name == name);
    let answering = |it: &Measured| at(50, &it.one, |times| times.answering);
    let mut targets = Vec::new();
    if let Some(native) = of(NATIVE) {
        let at_most = |name, measured, target| Target { name, measured, target, at_least: false };
        targets.push(at_most("one at a time: answering, p50 ms", answering(native), ANSWERING_TARGET_MS));
        if let Some(peer) = of(PEER) {
            let share = answering(native) / answering(peer);
            targets.push(at_most("the same over `runc run`", share, PEER_TARGET));
        }
        let many = at(99, &native.many, |times| times.answering);
        targets.push(at_most("50 at once: answering, p99 ms", many, MANY_TARGET_MS));
        if let Some(prepared) = of(PREPARED) {
            let many = at(99, &prepared.many, |times| times.answering);
            targets.push(at_most("the same of prepared ones", many, MANY_TARGET_MS));
            let claim = at(50, &prepared.one, |times| times.running);
            targets.push(at_most("claim of a prepared one: running, p50 ms", claim, CLAIM_TARGET_MS));
        }
    }
    targets
}

/// Prints the results; with `enforce`, a missed target fails and the worst stands on the last line.
pub(crate) fn print(measured: &[Measured], skipped: &[String], as_json: bool, enforce: bool) -> ExitCode {
    let targets = targets(measured);
    if as_json {
        println!("{:#}", to_json(measured, skipped, &targets));
    } else {
        print!("{:<36}", "");
        measured.iter().for_each(|it| print!("{:>24}", it.name));
        println!();
        for (name, value) in ROWS {
            print!("{name:<36}");
            measured.iter().for_each(|it| print!("{:>24.2}", value(it)));
            println!();
        }
        skipped.iter().for_each(|why| println!("SKIPPED: {why}"));
        println!();
        targets.iter().for_each(|target| println!("{}", target.line()));
    }
    target::verdict(&targets, enforce)
}

fn to_json(measured: &[Measured], skipped: &[String], targets: &[Target]) -> Value {
    let values = |it: &Measured| -> Value {
        ROWS.iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value(it))))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let runtimes: serde_json::Map<String, Value> =
        measured.iter().map(|it| (it.name.clone(), values(it))).collect();
    json!({"runtimes": runtimes, "skipped": skipped, "targets": target::to_json(targets)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let times = |milliseconds| Times {
            running: Duration::from_millis(milliseconds),
            answering: Duration::from_millis(2 * milliseconds),
        };
        let all: Vec<Times> = (1..=200).rev().map(times).collect();
        assert_eq!(at(50, &all, |times| times.running), 100.0);
        assert_eq!(at(99, &all, |times| times.answering), 396.0);
        assert_eq!(at(99, &all[..1], |times| times.running), 200.0);
        assert!(at(50, &[], |times| times.running).is_nan());
    }
}
