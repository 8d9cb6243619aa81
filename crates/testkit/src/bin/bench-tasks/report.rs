//! What was measured, for people and for programs, and whether it reaches the targets.

use std::process::ExitCode;

use agentcube_testkit::target::{self, Target};
use serde_json::{Value, json};

use crate::load::Measured;

const SERVING_TARGET_S: f64 = 30.0;
const MEMORY_TARGET_MB: f64 = 150.0;
const CPU_TARGET_PERCENT: f64 = 1.0;

type Row = (&'static str, fn(&Measured) -> f64);

const SERVING: &str = "1,000 Tasks applied to all served, s";
const MEMORY: &str = "resident memory of the controllers then, MB";
const CONTROLLER_CPU: &str = "controllers, 1,000 idle instances: CPU, %";
const ROUTER_CPU: &str = "router, 1,000 idle instances: CPU, %";

const ROWS: [Row; 9] = [
    ("1,000 Tasks applied, s", |it| it.applied.as_secs_f64()),
    (SERVING, |it| it.serving.as_secs_f64()),
    (MEMORY, |it| megabytes(it.controller_bytes)),
    ("resident memory of the router then, MB", |it| megabytes(it.router_bytes)),
    ("1,000 instances asked for to all idle, s", |it| it.scaled.as_secs_f64()),
    (CONTROLLER_CPU, |it| it.controller.cpu * 100.0),
    (ROUTER_CPU, |it| it.router.cpu * 100.0),
    ("controllers, 1,000 idle instances: memory, MB", |it| megabytes(it.controller.resident_bytes)),
    ("router, 1,000 idle instances: memory, MB", |it| megabytes(it.router.resident_bytes)),
];

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn targets(measured: &Measured) -> Vec<Target> {
    let at_most = |name: &'static str, target| {
        let value = ROWS.iter().find(|(row, _)| *row == name).map_or(f64::NAN, |(_, value)| value(measured));
        Target { name, measured: value, target, at_least: false }
    };
    vec![
        at_most(SERVING, SERVING_TARGET_S),
        at_most(MEMORY, MEMORY_TARGET_MB),
        at_most(CONTROLLER_CPU, CPU_TARGET_PERCENT),
        at_most(ROUTER_CPU, CPU_TARGET_PERCENT),
    ]
}

/// Prints the results; with `enforce`, a missed target fails and the worst stands on the last line.
pub(crate) fn print(measured: &Measured, as_json: bool, enforce: bool) -> ExitCode {
    let targets = targets(measured);
    if as_json {
        let values: serde_json::Map<String, Value> =
            ROWS.iter().map(|(name, value)| ((*name).to_owned(), json!(value(measured)))).collect();
        println!("{:#}", json!({"measured": values, "targets": target::to_json(&targets)}));
    } else {
        ROWS.iter().for_each(|(name, value)| println!("{name:<50}{:>10.2}", value(measured)));
        println!();
        targets.iter().for_each(|target| println!("{}", target.line()));
    }
    target::verdict(&targets, enforce)
}
