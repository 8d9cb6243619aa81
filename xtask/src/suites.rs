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
    /// The arguments of `cargo test`, once for each run.
    runs: &'static [&'static [&'static str]],
    needs: &'static [Need],
}

/// What `setup` has to obtain before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The real control plane, to compare with.
    Kubernetes,
    /// `runc`, `crun` and `runsc`.
    OciRuntimes,
    /// `containerd`, its shim and its client.
    Containerd,
    /// The definitions of Envoy Gateway and of the Gateway API.
    EnvoyDefinitions,
    /// The official clients and servers of MCP and A2A.
    ProtocolClients,
    /// Envoy itself.
    Envoy,
}

const SUITES: &[Suite] = &[
    Suite {
        name: "unit",
        about: "tests beside the code, of each crate, and of the examples in its documentation",
        runs: &[
            &[
                "--workspace",
                "--exclude",
                "agentcube-testkit",
                "--exclude",
                "agentcube-runtime",
                "--exclude",
                "agentcube-node",
                "--exclude",
                "agentcube-agent",
                "--exclude",
                "agentcube-sandbox",
            ],
            &["-p", "agentcube-testkit", "--lib", "--bins"],
        ],
        needs: &[],
    },
    Suite {
        name: "runtime",
        about: "isolated processes as root and without, what they try to escape, crashes at every step, images",
        runs: &[&["-p", "agentcube-runtime"]],
        needs: &[],
    },
    Suite {
        name: "oci",
        about: "containers by runc, crun and gVisor (as root)",
        runs: &[&[
            "-p",
            "agentcube-runtime",
            "--features",
            "oci-tests",
            "--test",
            "oci",
            "--test",
            "oci_kept",
        ]],
        needs: &[Need::OciRuntimes],
    },
    Suite {
        name: "containerd",
        about: "containers by a containerd of its own, and the janitor that looks after them (as root)",
        runs: &[
            &["-p", "agentcube-containerd", "--features", "containerd-tests", "--test", "containerd"],
            &["-p", "agentcube-janitor", "--features", "containerd-tests", "--test", "janitor"],
        ],
        needs: &[Need::Containerd],
    },
    Suite {
        name: "conformance",
        about: "the embedded API server against a real kube-apiserver",
        runs: &[&["-p", "agentcube-testkit", "--test", "conformance"]],
        needs: &[Need::Kubernetes],
    },
    Suite {
        name: "kubectl",
        about: "a kubectl session on both servers",
        runs: &[&["-p", "agentcube-testkit", "--test", "kubectl"]],
        needs: &[Need::Kubernetes],
    },
    Suite {
        name: "examples",
        about: "every example applied to both servers",
        runs: &[&["-p", "agentcube-testkit", "--test", "examples"]],
        needs: &[Need::Kubernetes],
    },
    Suite {
        name: "kube-rs",
        about: "clients, watchers and controllers of kube-rs on both servers; faults; logs and exec",
        runs: &[&["-p", "agentcube-testkit", "--test", "kube_rs"]],
        needs: &[Need::Kubernetes],
    },
    Suite {
        name: "workloads",
        about: "Deployments and other workloads under our controllers and under the real ones",
        runs: &[&["-p", "agentcube-testkit", "--test", "workloads"]],
        needs: &[Need::Kubernetes],
    },
    Suite {
        name: "task-controllers",
        about: "what the controllers of Tasks and TaskGateways write, held to the real definitions of Envoy Gateway",
        runs: &[&["-p", "agentcube-testkit", "--test", "task_controllers"]],
        needs: &[Need::Kubernetes, Need::EnvoyDefinitions],
    },
    Suite {
        name: "protocols",
        about: "the official clients and servers of MCP and A2A through two gateways, and through Envoy with two routers",
        runs: &[
            &["-p", "agentcube-router", "--features", "official-clients", "--test", "protocols"],
            &["-p", "agentcube-extproc", "--features", "official-clients", "--test", "protocols"],
        ],
        needs: &[Need::ProtocolClients, Need::Envoy],
    },
    Suite {
        name: "router",
        about: "sessions, streams, large bodies and failures through a real Envoy, and through the built-in gateway; a short campaign",
        runs: &[
            &["-p", "agentcube-extproc", "--features", "envoy-tests", "--test", "router"],
            &["-p", "agentcube-testkit", "--features", "router", "--test", "campaign"],
        ],
        needs: &[Need::Envoy],
    },
    Suite {
        name: "durability",
        about: "kill -9 under load, 30 times",
        runs: &[&["-p", "agentcube-testkit", "--test", "durability"]],
        needs: &[],
    },
    Suite {
        name: "task-faults",
        about: "sessions over three routers under faults; a router and the manager killed after every write",
        runs: &[&["-p", "agentcube-testkit", "--test", "task_faults"]],
        needs: &[Need::Kubernetes],
    },
    Suite {
        name: "node",
        about: "kubelet, network, controllers; `agentcube up` with real Pods, also without root; kill -9 at any moment",
        runs: &[&["-p", "agentcube-node"], &["-p", "agentcube-testkit", "--test", "node"]],
        needs: &[Need::Kubernetes],
    },
    Suite {
        name: "fastpath",
        about: "sandboxes: agents, controllers (on both servers), their log and model, death after every effect; `agentcube sandbox` on `up`; a short campaign",
        runs: &[
            &["-p", "agentcube-agent", "-p", "agentcube-sandbox"],
            &[
                "-p",
                "agentcube-testkit",
                "--test",
                "fastpath",
                "--test",
                "fleet",
                "--test",
                "sandbox_controllers",
            ],
        ],
        needs: &[Need::Kubernetes],
    },
    Suite {
        name: "stories",
        about: "the user stories and the end-to-end cases of Tasks on `agentcube up`, through its gateway",
        runs: &[&["-p", "agentcube-testkit", "--test", "stories"]],
        needs: &[],
    },
];

/// What takes too long to be run with all the others.
const ONLY_BY_NAME: &[Suite] = &[
    Suite {
        name: "campaign",
        about: "24,000 requests of 300 sessions while routers are restarted and instances die (only by its name)",
        runs: &[&["-p", "agentcube-testkit", "--features", "router", "--test", "campaign", "--", "--whole"]],
        needs: &[Need::Envoy],
    },
    Suite {
        name: "fleet",
        about: "10,000 sandboxes while controllers and agents are killed, and 60 s without an API server (only by its name)",
        runs: &[&["-p", "agentcube-testkit", "--test", "fleet", "--", "--whole"]],
        needs: &[],
    },
];

#[derive(Default)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

/// Names the suites.
pub(crate) fn list() {
    for suite in SUITES.iter().chain(ONLY_BY_NAME) {
        println!("{:<18}{}", suite.name, suite.about);
    }
}

/// Runs one suite or all; `false` when anything failed.
pub(crate) fn run(settings: &Settings, only: Option<&str>) -> Result<bool> {
    let chosen: Vec<&Suite> = match only {
        Some(only) => SUITES.iter().chain(ONLY_BY_NAME).filter(|suite| suite.name == only).collect(),
        None => SUITES.iter().collect(),
    };
    if chosen.is_empty() {
        bail!("no suite is called {:?}; `cargo xtask test --list` names them", only.unwrap_or_default());
    }
    let mut summary = Vec::new();
    // The suites skip, and count, what they cannot do without; with CI=true they fail.
    let needed = |need| chosen.iter().any(|suite| suite.needs.contains(&need));
    if needed(Need::Kubernetes)
        && let Err(error) = setup::run(settings)
    {
        summary.push(format!("SKIPPED: whatever needs a real kube-apiserver: {error:#}"));
    }
    if needed(Need::EnvoyDefinitions)
        && let Err(error) = setup::envoy::run(settings)
    {
        summary.push(format!("SKIPPED: whatever needs the definitions of Envoy Gateway: {error:#}"));
    }
    if needed(Need::Envoy)
        && let Err(error) = setup::proxy::run(settings)
    {
        summary.push(format!("SKIPPED: whatever needs Envoy: {error:#}"));
    }
    if needed(Need::OciRuntimes)
        && let Err(error) = setup::oci::run(settings)
    {
        summary.push(format!("SKIPPED: containers by some OCI runtimes: {error:#}"));
    }
    if needed(Need::Containerd)
        && let Err(error) = setup::containerd::run(settings)
    {
        summary.push(format!("SKIPPED: containers by containerd: {error:#}"));
    }
    if needed(Need::ProtocolClients)
        && let Err(error) = setup::protocols::run(settings)
    {
        summary.push(format!("SKIPPED: the official clients of MCP and A2A: {error:#}"));
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
    let mut counts = Counts::default();
    for args in suite.runs {
        run_tests(settings, suite.name, args, &mut counts, summary)?;
    }
    summary.push(format!(
        "{:<18}{} passed, {} failed, {} skipped",
        format!("{}:", suite.name),
        counts.passed,
        counts.failed,
        counts.skipped
    ));
    Ok(counts)
}

/// Runs `cargo test`, showing and counting what it says.
fn run_tests(
    settings: &Settings,
    suite: &str,
    args: &[&str],
    counts: &mut Counts,
    summary: &mut Vec<String>,
) -> Result<()> {
    let mut command: Command = cargo(&settings.root);
    command.args(["test", "--quiet", "--no-fail-fast", "--locked"]).args(args);
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run cargo")?;
    let output = child.stdout.take().context("cargo has no standard output")?;
    let (mut failed, mut skipped) = (0, 0);
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        if let Some(result) = line.strip_prefix("test result: ") {
            counts.passed += number_before(result, " passed");
            failed += number_before(result, " failed");
            skipped += number_before(result, " ignored");
        } else if line.starts_with("SKIPPED") {
            summary.push(format!("{line} [{suite}]"));
        }
    }
    // A test program that dies counts nothing, and must not pass for that.
    if !child.wait()?.success() && failed == 0 && skipped == 0 {
        failed = 1;
        summary.push(format!("FAILED: the suite {suite} did not run to its end"));
    }
    counts.failed += failed;
    counts.skipped += skipped;
    Ok(())
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
