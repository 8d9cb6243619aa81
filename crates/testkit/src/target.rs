//! A number that a measurement is to reach, and whether it does.

use std::process::ExitCode;

use serde_json::{Value, json};

/// A target: how far it is reached is 1 exactly at it, and more is better.
pub struct Target {
    pub name: &'static str,
    pub measured: f64,
    pub target: f64,
    pub at_least: bool,
}

impl Target {
    fn reached(&self) -> f64 {
        if self.at_least { self.measured / self.target } else { self.target / self.measured }
    }

    /// For people.
    pub fn line(&self) -> String {
        let sign = if self.at_least { "≥" } else { "≤" };
        let verdict = if self.reached() >= 1.0 { "reached" } else { "MISSED" };
        format!("{:<46}{:>10.2}   target {sign} {:<7}{verdict}", self.name, self.measured, self.target)
    }
}

/// For programs.
pub fn to_json(targets: &[Target]) -> Value {
    let one = |it: &Target| json!({"name": it.name, "measured": it.measured, "target": it.target, "reached": it.reached() >= 1.0});
    targets.iter().map(one).collect()
}

/// With `enforce`, a missed target fails and the worst stands on the last line.
pub fn verdict(targets: &[Target], enforce: bool) -> ExitCode {
    let worst = targets.iter().min_by(|left, right| left.reached().total_cmp(&right.reached()));
    match worst {
        Some(worst) if enforce && worst.reached() < 1.0 => {
            println!("worst: {}", worst.line());
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
