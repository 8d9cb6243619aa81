//! The test suites: what they are, what they need, and one closing line over all of them.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::process::cargo;
use crate::{Settings, setup};

/// A suite: a `cargo test` invocation.
struct Suite {
    name: &'static str,
    about: &'static str,
    args: &'static [&'static str],
    /// Compares with the real Kubernetes control plane.
    needs_kubernetes: bool,
}

const fn testkit(
    name: &'static str,
    about: &'static str,
    args: &'static [&'static str],
    real: bool,
) -> Suite {
    Suite { name, about, args, needs_kubernetes: real }
}

const SUITES: &[Suite] = &[
    testkit("unit", "tests beside the code", &["--workspace", "--lib", "--bins"], false),
    testkit("doc", "the examples in the documentation of the code", &["--workspace", "--doc"], false),
    testkit(
        "conformance",
        "the embedded API server against a real kube-apiserver",
        &["-p", "agentcube-testkit", "--test", "conformance"],
        true,
    ),
    testkit(
        "kubectl",
        "a kubectl session on both servers",
        &["-p", "agentcube-testkit", "--test", "kubectl"],
        true,
    ),
    testkit(
        "examples",
        "every example applied to both servers",
        &["-p", "agentcube-testkit", "--test", "examples"],
        true,
    ),
    testkit(
        "durability",
        "kill -9 under load, 30 times",
        &["-p", "agentcube-testkit", "--test", "durability"],
        false,
    ),
];

#[derive(Default)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

/// Names the suites.
pub(crate) fn list() {
    for suite in SUITES {
        println!("{:<14}{}", suite.name, suite.about);
    }
}

/// Runs one suite or all; `false` when anything failed.
pub(crate) fn run(settings: &Settings, only: Option<&str>) -> Result<bool> {
    let chosen: Vec<&Suite> =
        SUITES.iter().filter(|suite| only.is_none_or(|only| only == suite.name)).collect();
    if chosen.is_empty() {
        bail!("no suite is called {:?}; `cargo xtask test --list` names them", only.unwrap_or_default());
    }
    let mut summary = Vec::new();
    if chosen.iter().any(|suite| suite.needs_kubernetes)
        && let Err(error) = setup::run(settings)
    {
        // The suites skip, and count, what they cannot compare; with CI=true they fail.
        summary.push(format!("SKIPPED: whatever needs a real kube-apiserver: {error:#}"));
    }
    let mut total = Counts::default();
    for suite in chosen {
        let counts = run_suite(settings, suite, &mut summary)?;
        total.passed += counts.passed;
        total.failed += counts.failed;
        total.skipped += counts.skipped;
    }
    println!();
    for line in summary {
        println!("{line}");
    }
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    Ok(total.failed == 0 && !(settings.strict && total.skipped > 0))
}

fn run_suite(settings: &Settings, suite: &Suite, summary: &mut Vec<String>) -> Result<Counts> {
    eprintln!("== {}: {}", suite.name, suite.about);
    let mut command: Command = cargo(&settings.root);
    command.args(["test", "--quiet", "--no-fail-fast"]).args(suite.args);
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run cargo")?;
    let output = child.stdout.take().context("cargo has no standard output")?;
    let mut counts = Counts::default();
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        if let Some(result) = line.strip_prefix("test result: ") {
            counts.passed += number_before(result, " passed");
            counts.failed += number_before(result, " failed");
            counts.skipped += number_before(result, " ignored");
        } else if line.starts_with("SKIPPED") {
            summary.push(format!("{line} [{}]", suite.name));
        }
    }
    let succeeded = child.wait()?.success();
    if !succeeded && counts.failed == 0 && counts.skipped == 0 {
        counts.failed += 1;
        summary.push(format!("FAILED: the suite {} did not run to its end", suite.name));
    }
    summary.push(format!(
        "{:<14}{} passed, {} failed, {} skipped",
        format!("{}:", suite.name),
        counts.passed,
        counts.failed,
        counts.skipped
    ));
    Ok(counts)
}

fn number_before(text: &str, word: &str) -> u64 {
    let Some(end) = text.find(word) else { return 0 };
    let digits = text[..end].rsplit(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_closing_line_of_a_test_program() {
        let line = "FAILED. 12 passed; 3 failed; 4 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(
            [" passed", " failed", " ignored"].map(|word| number_before(line, word)),
            [12, 3, 4],
            "{line}"
        );
        assert_eq!(number_before("nothing here", " passed"), 0);
    }
}
