//! What was measured, for people and for programs, and whether it reaches the targets.

use std::process::ExitCode;

use agentcube_testkit::target::{self, Target};
use serde_json::{Value, json};

use crate::load::Slice;
use crate::stage::{GATEWAY, LOGGED, NAMED, NOTHING, ROUTER, STATIC};
use crate::{CLIENTS, Measured};

const P50_TARGET: f64 = 1.05;
const P99_TARGET: f64 = 1.10;
const GATEWAY_TARGET: f64 = 0.8;

/// With so many clients: the names of the targets.
const NAMES: [(usize, [&str; 3]); 4] = [
    (
        1,
        [
            "router over nothing, 1 client, p50",
            "router over nothing, 1 client, p99",
            "gateway over static, 1 client, req/CPU-s",
        ],
    ),
    (
        10,
        [
            "router over nothing, 10 clients, p50",
            "router over nothing, 10 clients, p99",
            "gateway over static, 10 clients, req/CPU-s",
        ],
    ),
    (
        50,
        [
            "router over nothing, 50 clients, p50",
            "router over nothing, 50 clients, p99",
            "gateway over static, 50 clients, req/CPU-s",
        ],
    ),
    (
        200,
        [
            "router over nothing, 200 clients, p50",
            "router over nothing, 200 clients, p99",
            "gateway over static, 200 clients, req/CPU-s",
        ],
    ),
];

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match (values.get(values.len().saturating_sub(1) / 2), values.get(values.len() / 2)) {
        (Some(left), Some(right)) => f64::midpoint(*left, *right),
        _ => f64::NAN,
    }
}

impl Measured {
    fn median(&self, value: impl Fn(&Slice) -> f64) -> f64 {
        median(self.slices.iter().map(value))
    }

    fn per_second(&self) -> f64 {
        self.median(|slice| slice.requests as f64 / slice.seconds)
    }

    /// Over all rounds together: the kernel counts in steps that are long beside a slice.
    fn cpu_per_thousand(&self) -> f64 {
        let requests: usize = self.slices.iter().map(|slice| slice.requests).sum();
        self.slices.iter().map(|slice| slice.cpu_seconds).sum::<f64>() / requests as f64 * 1000.0
    }

    /// How it compares with another, round by round: what a machine does in a round meets both.
    fn over(&self, other: &Measured, value: impl Fn(&Slice) -> f64) -> f64 {
        median(self.slices.iter().zip(&other.slices).map(|(left, right)| value(left) / value(right)))
    }
}

fn of<'a>(results: &'a [Measured], front: &str, clients: usize) -> Option<&'a Measured> {
    results.iter().find(|it| it.front == front && it.clients == clients)
}

fn targets(results: &[Measured]) -> Vec<Target> {
    let mut targets = Vec::new();
    for (clients, [p50, p99, efficiency]) in NAMES {
        if let (Some(router), Some(floor)) = (of(results, ROUTER, clients), of(results, NOTHING, clients)) {
            let at_most = |name, measured, target| Target { name, measured, target, at_least: false };
            targets.push(at_most(p50, router.over(floor, |slice| slice.p50_us), P50_TARGET));
            targets.push(at_most(p99, router.over(floor, |slice| slice.p99_us), P99_TARGET));
        }
        if let (Some(gateway), Some(peer)) = (of(results, GATEWAY, clients), of(results, STATIC, clients)) {
            let measured = peer.cpu_per_thousand() / gateway.cpu_per_thousand();
            targets.push(Target { name: efficiency, measured, target: GATEWAY_TARGET, at_least: true });
        }
    }
    targets
}

fn to_json(measured: &Measured) -> Value {
    let rounds = |value: fn(&Slice) -> f64| measured.slices.iter().map(value).collect::<Vec<_>>();
    json!({
        "front": measured.front,
        "clients": measured.clients,
        "p50Micros": measured.median(|slice| slice.p50_us),
        "p99Micros": measured.median(|slice| slice.p99_us),
        "requestsPerSecond": measured.per_second(),
        "cpuSecondsPerThousand": measured.cpu_per_thousand(),
        "rounds": {
            "p50Micros": rounds(|slice| slice.p50_us),
            "p99Micros": rounds(|slice| slice.p99_us),
            "requestsPerSecond": rounds(|slice| slice.requests as f64 / slice.seconds),
            "cpuSeconds": rounds(|slice| slice.cpu_seconds),
        },
    })
}

fn table(results: &[Measured]) {
    println!(
        "{:<36}{:>8}{:>10}{:>10}{:>12}{:>14}",
        "", "clients", "p50 µs", "p99 µs", "requests/s", "CPU s/1,000"
    );
    for clients in CLIENTS {
        for it in results.iter().filter(|it| it.clients == clients) {
            let (p50, p99) = (it.median(|slice| slice.p50_us), it.median(|slice| slice.p99_us));
            let (rate, cpu) = (it.per_second(), it.cpu_per_thousand());
            println!("{:<36}{clients:>8}{p50:>10.0}{p99:>10.0}{rate:>12.0}{cpu:>14.3}", it.front);
        }
        println!();
    }
    println!("CPU: of Envoy, of the external processor or the gateway, and of the API server behind it;");
    println!("not of the clients, and not of the instances. Medians of rounds; CPU over all rounds.\n");
}

/// Where the ratio of the router comes from: each step over the one before it, by median and by processor time.
fn steps(results: &[Measured]) {
    for (left, right) in [(LOGGED, NOTHING), (NAMED, LOGGED), (ROUTER, NAMED)] {
        print!("{left:<34}over the last row: p50");
        let pairs = CLIENTS
            .iter()
            .filter_map(|clients| of(results, left, *clients).zip(of(results, right, *clients)));
        pairs.clone().for_each(|(left, right)| print!(" {:.2}", left.over(right, |slice| slice.p50_us)));
        print!(", CPU");
        pairs.for_each(|(left, right)| print!(" {:.2}", left.cpu_per_thousand() / right.cpu_per_thousand()));
        println!();
    }
    println!();
}

/// Prints the results; with `enforce`, a missed target fails and the worst stands on the last line.
pub(crate) fn print(results: &[Measured], as_json: bool, enforce: bool) -> ExitCode {
    let targets = targets(results);
    if as_json {
        let measured: Vec<Value> = results.iter().map(to_json).collect();
        println!("{:#}", json!({"measured": measured, "targets": target::to_json(&targets)}));
    } else {
        table(results);
        steps(results);
        targets.iter().for_each(|target| println!("{}", target.line()));
    }
    target::verdict(&targets, enforce)
}
