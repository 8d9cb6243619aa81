//! What was measured, for people and for programs, and whether it reaches the targets.

use std::process::ExitCode;
use std::time::Duration;

use agentcube_testkit::target::{self, Target};
use serde_json::{Value, json};

use crate::Measured;

const SERVED_TARGET_MS: f64 = 1000.0;
const MEMORY_TARGET_MB: f64 = 80.0;

type Row = (&'static str, fn(&Measured) -> f64);

const ROWS: [Row; 8] = [
    ("fresh: start to ready, ms", |it| median(&it.ready_fresh)),
    ("fresh: start to a Pod's answer, ms", |it| median(&it.served_fresh)),
    ("with data: start to ready, ms", |it| median(&it.ready_again)),
    ("with data: start to a Pod's answer, ms", |it| median(&it.served_again)),
    ("idle: RSS of both processes, MB", |it| it.idle.resident_bytes as f64 / 1e6),
    ("idle: PSS of both processes, MB", |it| it.idle.proportional_bytes as f64 / 1e6),
    ("idle: threads", |it| it.idle.threads as f64),
    ("idle: CPU, % of a core", |it| it.idle.cpu * 100.0),
];

fn median(times: &[Duration]) -> f64 {
    let mut times = times.to_vec();
    times.sort();
    times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
}

fn targets(measured: &Measured) -> Vec<Target> {
    let at_most = |name, measured, target| Target { name, measured, target, at_least: false };
    vec![
        at_most("fresh: start to a Pod's answer, ms", median(&measured.served_fresh), SERVED_TARGET_MS),
        at_most("with data: start to a Pod's answer, ms", median(&measured.served_again), SERVED_TARGET_MS),
        at_most("idle: RSS, MB", measured.idle.resident_bytes as f64 / 1e6, MEMORY_TARGET_MB),
    ]
}

/// Prints the results; with `enforce`, a missed target fails and the worst stands on the last line.
pub(crate) fn print(measured: &Measured, as_json: bool, enforce: bool) -> ExitCode {
    let targets = targets(measured);
    if as_json {
        let values: serde_json::Map<String, Value> =
            ROWS.iter().map(|(name, value)| ((*name).to_owned(), json!(value(measured)))).collect();
        println!("{:#}", json!({"up": values, "targets": target::to_json(&targets)}));
    } else {
        ROWS.iter().for_each(|(name, value)| println!("{name:<44}{:>10.1}", value(measured)));
        println!();
        targets.iter().for_each(|target| println!("{}", target.line()));
    }
    target::verdict(&targets, enforce)
}
