//! What was measured, for people and for programs, and whether it reaches the targets.

use std::process::ExitCode;
use std::time::Duration;

use agentcube_testkit::target::{self, Target};
use serde_json::{Value, json};

use crate::Results;
use crate::lookup::SESSIONS;

const LOOKUP_TARGET_US: f64 = 20.0;
const MEMORY_TARGET_BYTES: f64 = 1024.0;
const BIND_TARGET: f64 = 1.5;

/// In milliseconds.
fn at(percent: usize, all: &[Duration]) -> f64 {
    let mut times = all.to_vec();
    times.sort();
    let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
}

/// From the second to the last size.
fn bytes_per_session(results: &Results) -> f64 {
    match results.lookup.as_slice() {
        [.., before, last] => {
            let grown = last.memory_bytes.saturating_sub(before.memory_bytes) as f64;
            grown / last.sessions.saturating_sub(before.sessions).max(1) as f64
        }
        _ => f64::NAN,
    }
}

type Row = (String, f64);

fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for it in &results.lookup {
        rows.push((format!("lookup among {} sessions, p50 µs", it.sessions), it.p50_us));
        rows.push((format!("lookup among {} sessions, p99 µs", it.sessions), it.p99_us));
    }
    if !results.lookup.is_empty() {
        rows.push(("memory per session, bytes".into(), bytes_per_session(results)));
    }
    if let Some(bind) = &results.bind {
        for percent in [50, 99] {
            rows.push((format!("binding an idle instance, p{percent} ms"), at(percent, &bind.bind)));
            rows.push((format!("two plain writes, p{percent} ms"), at(percent, &bind.two_writes)));
        }
    }
    if let Some(cold) = &results.cold {
        for percent in [50, 99] {
            rows.push((format!("100 cold starts at once, p{percent} ms"), at(percent, &cold.cold)));
            rows.push((format!("100 plain Pods at once, p{percent} ms"), at(percent, &cold.plain)));
        }
        rows.push(("100 cold starts, until the last, ms".into(), at(50, &cold.cold_all)));
        rows.push(("100 plain Pods, until the last, ms".into(), at(50, &cold.plain_all)));
        rows.push(("the same over plain Pods".into(), at(50, &cold.cold_all) / at(50, &cold.plain_all)));
    }
    rows
}

fn targets(results: &Results) -> Vec<Target> {
    let at_most = |name, measured, target| Target { name, measured, target, at_least: false };
    let mut targets = Vec::new();
    if let Some(most) = results.lookup.iter().find(|it| Some(&it.sessions) == SESSIONS.last()) {
        targets.push(at_most("lookup among 100,000 sessions, p99 µs", most.p99_us, LOOKUP_TARGET_US));
        let memory = bytes_per_session(results);
        targets.push(at_most("memory per session, bytes", memory, MEMORY_TARGET_BYTES));
    }
    if let Some(bind) = &results.bind {
        let share = at(50, &bind.bind) / at(50, &bind.two_writes);
        targets.push(at_most("binding over two plain writes, p50", share, BIND_TARGET));
    }
    targets
}

/// Prints the results; with `enforce`, a missed target fails and the worst stands on the last line.
pub(crate) fn print(results: &Results, as_json: bool, enforce: bool) -> ExitCode {
    let (rows, targets) = (rows(results), targets(results));
    if as_json {
        let values: serde_json::Map<String, Value> =
            rows.into_iter().map(|(name, value)| (name, json!(value))).collect();
        println!("{:#}", json!({"measured": values, "targets": target::to_json(&targets)}));
    } else {
        rows.iter().for_each(|(name, value)| println!("{name:<46}{value:>10.2}"));
        println!();
        targets.iter().for_each(|target| println!("{}", target.line()));
    }
    target::verdict(&targets, enforce)
}
