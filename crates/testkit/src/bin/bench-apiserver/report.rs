//! What was measured, for people and for programs, and whether it reaches the targets.

use std::process::ExitCode;

use agentcube_testkit::target::{self, Target};
use serde_json::{Value, json};

use crate::Results;
use crate::load::Measured;

const WRITES_TARGET: f64 = 5.0;
const MEMORY_TARGET: f64 = 0.1;
const READY_TARGET_MS: f64 = 100.0;

fn targets(results: &Results) -> Vec<Target> {
    let Results { memory, durable, real } = results;
    let writes = |name, ours: f64, theirs: f64| Target {
        name,
        measured: ours / theirs,
        target: WRITES_TARGET,
        at_least: true,
    };
    let memory_share = |name, ours: u64, theirs: u64| Target {
        name,
        measured: ours as f64 / theirs as f64,
        target: MEMORY_TARGET,
        at_least: false,
    };
    let ready = |name, measured: &Measured| Target {
        name,
        measured: milliseconds(measured),
        target: READY_TARGET_MS,
        at_least: false,
    };
    vec![
        writes("writes/s over theirs, 1 client, memory", memory.writes_one, real.writes_one),
        writes("writes/s over theirs, 16 clients, memory", memory.writes_many, real.writes_many),
        writes("writes/s over theirs, 1 client, durable", durable.writes_one, real.writes_one),
        writes("writes/s over theirs, 16 clients, durable", durable.writes_many, real.writes_many),
        memory_share("RSS over theirs, idle, durable", durable.resident_idle, real.resident_idle),
        memory_share("RSS over theirs, loaded, durable", durable.resident_loaded, real.resident_loaded),
        ready("start to ready in ms, memory", memory),
        ready("start to ready in ms, durable", durable),
    ]
}

fn milliseconds(measured: &Measured) -> f64 {
    measured.start.as_secs_f64() * 1000.0
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

/// Prints the results; with `enforce`, a missed target fails and the worst stands on the last line.
pub(crate) fn print(results: &Results, as_json: bool, enforce: bool) -> ExitCode {
    let targets = targets(results);
    if as_json {
        println!("{:#}", to_json(results, &targets));
    } else {
        print_table(results);
        targets.iter().for_each(|target| println!("{}", target.line()));
    }
    target::verdict(&targets, enforce)
}

type Row = (&'static str, fn(&Measured) -> f64);

const ROWS: [Row; 7] = [
    ("writes/s, 1 client", |measured| measured.writes_one),
    ("writes/s, 16 clients", |measured| measured.writes_many),
    ("events/s to 100 watchers", |measured| measured.fan_out),
    ("list of 10,000, ms", |measured| measured.list.as_secs_f64() * 1000.0),
    ("start to ready, ms", milliseconds),
    ("RSS idle, MiB", |measured| mebibytes(measured.resident_idle)),
    ("RSS loaded, MiB", |measured| mebibytes(measured.resident_loaded)),
];

fn print_table(results: &Results) {
    println!("{:<28}{:>16}{:>18}{:>24}", "", "embedded memory", "embedded durable", "kube-apiserver + etcd");
    for (name, value) in ROWS {
        let [memory, durable, real] = [&results.memory, &results.durable, &results.real].map(value);
        println!("{name:<28}{memory:>16.1}{durable:>18.1}{real:>24.1}");
    }
    println!();
}

fn to_json(results: &Results, targets: &[Target]) -> Value {
    let values = |measured: &Measured| -> Value {
        ROWS.iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value(measured))))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    json!({
        "embeddedMemory": values(&results.memory),
        "embeddedDurable": values(&results.durable),
        "kubeApiserverAndEtcd": values(&results.real),
        "targets": target::to_json(targets),
    })
}
