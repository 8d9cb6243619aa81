//! The test suites: what they are, what they need, and one closing line over all of them.

mod programs;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use self::programs::Program;
pub(crate) use self::programs::{Tools, tools};
use crate::{Settings, cluster, setup};

/// A suite: test programs, and what they need.
struct Suite {
    name: &'static str,
    about: &'static str,
    tests: &'static [Tests],
    /// What its programs are started with.
    arguments: &'static [&'static str],
    needs: &'static [Need],
}

/// Test programs of a package.
enum Tests {
    /// One below its directory `tests`.
    Program(&'static str, &'static str),
    /// All of its programs that no suite names one by one.
    Package(&'static str),
    /// All of the packages that no suite names.
    OtherPackages,
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
    /// A program that renders templates by Go.
    GoTemplates,
    /// Redis and PostgreSQL.
    Middleware,
    /// Node with the console's modules, and Chromium.
    Browser,
    /// esbuild, which is one of the console's modules.
    Bundler,
    /// A whole cluster, which runs meanwhile.
    Cluster,
}

const SUITES: &[Suite] = &[
    Suite {
        name: "unit",
        about: "tests beside the code of each crate, and of its parts together",
        tests: &[Tests::OtherPackages, Tests::Package("agentcube-testkit")],
        arguments: &[],
        needs: &[],
    },
    Suite {
        name: "runtime",
        about: "isolated processes as root and without, what they try to escape, crashes at every step, images",
        tests: &[Tests::Package("agentcube-runtime")],
        arguments: &[],
        needs: &[],
    },
    Suite {
        name: "oci",
        about: "containers by runc, crun and gVisor (as root)",
        tests: &[Tests::Program("agentcube-runtime", "oci"), Tests::Program("agentcube-runtime", "oci_kept")],
        arguments: &[],
        needs: &[Need::OciRuntimes],
    },
    Suite {
        name: "containerd",
        about: "containers by a containerd of its own, and the janitor that looks after them (as root)",
        tests: &[
            Tests::Program("agentcube-containerd", "containerd"),
            Tests::Program("agentcube-janitor", "janitor"),
        ],
        arguments: &[],
        needs: &[Need::Containerd],
    },
    Suite {
        name: "templates",
        about: "templates as Go itself renders them, with the functions of sprig and Helm: a table, and some that nobody wrote",
        tests: &[Tests::Program("agentcube-template", "go")],
        arguments: &[],
        needs: &[Need::GoTemplates],
    },
    Suite {
        name: "conformance",
        about: "the embedded API server against a real kube-apiserver",
        tests: &[Tests::Program("agentcube-testkit", "conformance")],
        arguments: &[],
        needs: &[Need::Kubernetes],
    },
    Suite {
        name: "kubectl",
        about: "a kubectl session on both servers",
        tests: &[Tests::Program("agentcube-testkit", "kubectl")],
        arguments: &[],
        needs: &[Need::Kubernetes],
    },
    Suite {
        name: "examples",
        about: "every example applied to both servers",
        tests: &[Tests::Program("agentcube-testkit", "examples")],
        arguments: &[],
        needs: &[Need::Kubernetes],
    },
    Suite {
        name: "kube-rs",
        about: "clients, watchers and controllers of kube-rs on both servers; faults; logs and exec",
        tests: &[Tests::Program("agentcube-testkit", "kube_rs")],
        arguments: &[],
        needs: &[Need::Kubernetes],
    },
    Suite {
        name: "workloads",
        about: "Deployments and other workloads under our controllers and under the real ones",
        tests: &[Tests::Program("agentcube-testkit", "workloads")],
        arguments: &[],
        needs: &[Need::Kubernetes],
    },
    Suite {
        name: "task-controllers",
        about: "what the controllers of Tasks and TaskGateways write, held to the real definitions of Envoy Gateway",
        tests: &[Tests::Program("agentcube-testkit", "task_controllers")],
        arguments: &[],
        needs: &[Need::Kubernetes, Need::EnvoyDefinitions],
    },
    Suite {
        name: "protocols",
        about: "the official clients and servers of MCP and A2A through two gateways, and through Envoy with two routers",
        tests: &[
            Tests::Program("agentcube-router", "protocols"),
            Tests::Program("agentcube-extproc", "protocols"),
        ],
        arguments: &[],
        needs: &[Need::ProtocolClients, Need::Envoy],
    },
    Suite {
        name: "router",
        about: "sessions, streams, large bodies and failures through a real Envoy, and through the built-in gateway; a short campaign",
        tests: &[
            Tests::Program("agentcube-extproc", "router"),
            Tests::Program("agentcube-testkit", "campaign"),
        ],
        arguments: &[],
        needs: &[Need::Envoy],
    },
    Suite {
        name: "durability",
        about: "kill -9 under load, 30 times",
        tests: &[Tests::Program("agentcube-testkit", "durability")],
        arguments: &[],
        needs: &[],
    },
    Suite {
        name: "task-faults",
        about: "sessions over three routers under faults; a router and the manager killed after every write",
        tests: &[Tests::Program("agentcube-testkit", "task_faults")],
        arguments: &[],
        needs: &[Need::Kubernetes],
    },
    Suite {
        name: "node",
        about: "kubelet, network, controllers; `agentcube up` with real Pods, also without root; kill -9 at any moment",
        tests: &[Tests::Package("agentcube-node"), Tests::Program("agentcube-testkit", "node")],
        arguments: &[],
        needs: &[Need::Kubernetes],
    },
    Suite {
        name: "fastpath",
        about: "sandboxes: agents, controllers (on both servers), their log and model, death after every effect; `agentcube sandbox` on `up`; a short campaign",
        tests: &[
            Tests::Package("agentcube-agent"),
            Tests::Package("agentcube-sandbox"),
            Tests::Program("agentcube-testkit", "fastpath"),
            Tests::Program("agentcube-testkit", "fleet"),
            Tests::Program("agentcube-testkit", "sandbox_controllers"),
        ],
        arguments: &[],
        needs: &[Need::Kubernetes, Need::OciRuntimes, Need::Containerd],
    },
    Suite {
        name: "console",
        about: "the web console on `agentcube up`, in a real Chromium: each page with its main action, axe, what pages may not do",
        tests: &[Tests::Program("agentcube-testkit", "console"), Tests::Package("agentcube-console")],
        arguments: &[],
        needs: &[Need::Browser],
    },
    Suite {
        name: "stories",
        about: "the user stories and the end-to-end cases of Tasks on `agentcube up`, through its gateway",
        tests: &[Tests::Program("agentcube-testkit", "stories")],
        arguments: &[],
        needs: &[],
    },
    Suite {
        name: "middleware",
        about: "Redis on `agentcube up`, changed, upgraded (also from 6.2 to 7.0), cancelled and killed under a client that writes all the time; backup and restore",
        tests: &[Tests::Program("agentcube-testkit", "middleware")],
        arguments: &["redis"],
        needs: &[Need::Middleware],
    },
    Suite {
        name: "middleware-controllers",
        about: "the controllers of middleware on kube-apiserver, by the cases that hold on the embedded one",
        tests: &[Tests::Program("agentcube-testkit", "middleware_controllers")],
        arguments: &[],
        needs: &[Need::Kubernetes],
    },
    Suite {
        name: "forge",
        about: "front ends: controllers and runner on both API servers, the build service with esbuild, all of it in `up`",
        tests: &[Tests::Program("agentcube-testkit", "forge")],
        arguments: &[],
        needs: &[Need::Kubernetes, Need::Bundler],
    },
    Suite {
        name: "cluster",
        about: "installed into a real cluster: the end-to-end cases through Envoy Gateway and real Pods, faults under load; then what holds for every API server",
        // The first leaves the cluster as it was; the others do not.
        tests: &[
            Tests::Program("agentcube-testkit", "stories"),
            Tests::Program("agentcube-testkit", "conformance"),
            Tests::Program("agentcube-testkit", "kube_rs"),
            Tests::Program("agentcube-testkit", "examples"),
            Tests::Program("agentcube-testkit", "task_faults"),
            Tests::Program("agentcube-testkit", "sandbox_controllers"),
        ],
        arguments: &["--cluster"],
        needs: &[Need::Cluster],
    },
];

/// What takes too long to be run with all the others.
const ONLY_BY_NAME: &[Suite] = &[
    Suite {
        name: "campaign",
        about: "24,000 requests of 300 sessions while routers are restarted and instances die (only by its name)",
        tests: &[Tests::Program("agentcube-testkit", "campaign")],
        arguments: &["--whole"],
        needs: &[Need::Envoy],
    },
    Suite {
        name: "middleware-deaths",
        about: "Redis on `agentcube up` with controllers that die after each kind of effect (only by its name, until it was seen more often)",
        tests: &[Tests::Program("agentcube-testkit", "middleware")],
        arguments: &["deaths"],
        needs: &[Need::Middleware],
    },
    Suite {
        name: "cluster-middleware",
        about: "Redis on a real cluster, by ordinary images (only by its name, until it was seen more often)",
        tests: &[Tests::Program("agentcube-testkit", "middleware")],
        arguments: &["--cluster"],
        needs: &[Need::Cluster, Need::Middleware],
    },
    Suite {
        name: "postgresql",
        about: "PostgreSQL on `agentcube up`, configured, upgraded, cancelled, killed, kept and restored under a client that commits (only by its name, until it was seen more often)",
        tests: &[Tests::Program("agentcube-testkit", "middleware")],
        arguments: &["postgresql"],
        needs: &[Need::Middleware],
    },
    Suite {
        name: "fleet",
        about: "10,000 sandboxes while controllers and agents are killed, and 60 s without an API server (only by its name)",
        tests: &[Tests::Program("agentcube-testkit", "fleet")],
        arguments: &["--whole"],
        needs: &[Need::OciRuntimes, Need::Containerd],
    },
    Suite {
        name: "cluster-bulk",
        about: "1,000 Tasks and 2,000 sessions on a real cluster: what controllers and routers use (only by its name)",
        tests: &[Tests::Program("agentcube-testkit", "stories")],
        arguments: &["--cluster", "--bulk"],
        needs: &[Need::Cluster],
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
    if needed(Need::GoTemplates)
        && let Err(error) = setup::templates::run(settings)
    {
        summary.push(format!("SKIPPED: templates by Go: {error:#}"));
    }
    if needed(Need::Middleware)
        && let Err(error) = setup::middleware::run(settings)
    {
        summary.push(format!("SKIPPED: Redis and PostgreSQL as middleware: {error:#}"));
    }
    if needed(Need::Browser)
        && let Err(error) = setup::console::modules(settings).and_then(|()| setup::console::browser(settings))
    {
        summary.push(format!("SKIPPED: the console in a browser: {error:#}"));
    }
    if needed(Need::Bundler)
        && let Err(error) = setup::console::modules(settings)
    {
        summary.push(format!("SKIPPED: front ends: {error:#}"));
    }
    let programs = programs::build(settings, &chosen)?;
    let mut total = Counts::default();
    for suite in chosen {
        let running = match suite.needs.contains(&Need::Cluster) {
            true => Some(Cluster::start(settings, &programs)),
            false => None,
        };
        if let Some(Err(error)) = &running {
            summary.push(format!("SKIPPED: whatever needs a whole cluster: {error:#} [{}]", suite.name));
        }
        let mut counts = run_suite(suite, &programs, &mut summary)?;
        if let Some(Ok(cluster)) = running {
            match cluster.end() {
                Ok(()) => counts.passed += 1,
                Err(error) => {
                    counts.failed += 1;
                    summary.push(format!("FAILED: the cluster ends and leaves nothing: {error:#}"));
                }
            }
        }
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

/// A cluster for as long as a suite runs, unless it ran before.
struct Cluster<'a> {
    settings: &'a Settings,
    kept: bool,
    /// What there was on the machine before.
    before: BTreeSet<String>,
}

impl<'a> Cluster<'a> {
    fn start(settings: &'a Settings, programs: &[Program]) -> Result<Cluster<'a>> {
        let kept = cluster::runs(settings);
        let product = programs.iter().find(|program| program.is_the_product());
        let program = product.map(|product| product.executable.clone());
        // Whatever was started of one that does not come up is ended, too.
        let started = Cluster { settings, kept, before: cluster::traces::now() };
        cluster::run(settings, cluster::Action::Up { dir: None, program, release: false })?;
        Ok(started)
    }

    /// Ends it, unless it ran before; then nothing may be left of it.
    fn end(mut self) -> Result<()> {
        if std::mem::replace(&mut self.kept, true) {
            return Ok(());
        }
        cluster::run(self.settings, cluster::Action::Down { dir: None })?;
        let left = cluster::traces::now();
        let left: Vec<&String> = left.difference(&self.before).collect();
        ensure!(left.is_empty(), "left: {left:?}");
        Ok(())
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = cluster::run(self.settings, cluster::Action::Down { dir: None })
        {
            eprintln!("    the cluster does not end: {error:#}");
        }
    }
}

fn run_suite(suite: &Suite, programs: &[Program], summary: &mut Vec<String>) -> Result<Counts> {
    eprintln!("== {}: {}", suite.name, suite.about);
    let begun = Instant::now();
    let mut counts = Counts::default();
    let mut chosen: Vec<&Program> = programs.iter().filter(|program| program.is_of(suite)).collect();
    chosen.sort_by_key(|program| program.place_in(suite));
    ensure!(!chosen.is_empty(), "the suite {} has no test programs", suite.name);
    for program in chosen {
        run_program(program, suite, programs, &mut counts, summary)?;
    }
    summary.push(format!(
        "{:<18}{} passed, {} failed, {} skipped, in {} s",
        format!("{}:", suite.name),
        counts.passed,
        counts.failed,
        counts.skipped,
        begun.elapsed().as_secs()
    ));
    Ok(counts)
}

/// Runs a test program, showing and counting what it says.
fn run_program(
    program: &Program,
    suite: &Suite,
    programs: &[Program],
    counts: &mut Counts,
    summary: &mut Vec<String>,
) -> Result<()> {
    eprintln!("   {} {}", program.package, program.name);
    let mut command = program.command();
    command.arg("--quiet").args(suite.arguments);
    if let Some(product) = programs.iter().find(|program| program.is_the_product()) {
        command.env("AGENTCUBE_PROGRAM", &product.executable);
    }
    command.env("AGENTCUBE_XTASK", std::env::current_exe()?);
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run a test program")?;
    let output = child.stdout.take().context("a test program has no standard output")?;
    let (mut failed, mut skipped) = (0, 0);
    let mut complaints = Complaints::default();
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        complaints.read(&line);
        if let Some(result) = line.strip_prefix("test result: ") {
            counts.passed += number_before(result, " passed");
            failed += number_before(result, " failed");
            skipped += number_before(result, " ignored");
        } else if line.starts_with("SKIPPED") {
            summary.push(format!("{line} [{}]", suite.name));
        }
    }
    // A test program that dies counts nothing, and must not pass for that.
    if !child.wait()?.success() {
        if failed == 0 && skipped == 0 {
            failed = 1;
        }
        let (package, name) = (&program.package, &program.name);
        summary.push(format!("FAILED: {package} {name} [{}]", suite.name));
        summary.extend(complaints.told());
    }
    counts.failed += failed;
    counts.skipped += skipped;
    Ok(())
}

/// What a test program says of its failures, said again at the end, where it is looked for.
#[derive(Default)]
struct Complaints {
    reading: bool,
    lines: Vec<String>,
}

impl Complaints {
    /// Of one program, and of one line.
    const LINES: usize = 60;
    const WIDTH: usize = 500;

    fn read(&mut self, line: &str) {
        // The trials of ours say it right away, the built-in harness in the end.
        let begins = line == "failures:" || line.starts_with("test ") && line.ends_with(" ... FAILED");
        let ends = line.starts_with("test ") && !begins;
        self.reading = !ends && (begins || self.reading);
        if self.reading {
            self.lines.push(line.chars().take(Self::WIDTH).collect());
        }
    }

    /// The beginning says what failed, the end what the processes of the test said last.
    fn told(self) -> Vec<String> {
        let omitted = self.lines.len().saturating_sub(Self::LINES);
        let (first, last) = self.lines.split_at(self.lines.len().min(Self::LINES / 2));
        let first = first.iter().cloned();
        let between = (omitted > 0).then(|| format!("... {omitted} lines more, above"));
        let last = last.iter().skip(omitted).cloned();
        first.chain(between).chain(last).map(|line| format!("    {line}")).collect()
    }
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

    #[test]
    fn says_again_what_failed_and_nothing_of_what_passed() {
        let ours = "test a ... ok\ntest b ... FAILED\n    why\ntest c ... ok\ntest result: FAILED. 2 passed";
        let built_in = "\nfailures:\n\n---- b stdout ----\nwhy\n\nfailures:\n    b\n\ntest result: FAILED.";
        let told = |text: &str| {
            let mut complaints = Complaints::default();
            text.lines().for_each(|line| complaints.read(line));
            complaints.told().iter().map(|line| line.trim().to_owned()).filter(|it| !it.is_empty()).collect()
        };
        let expected: [Vec<&str>; 2] = [
            vec!["test b ... FAILED", "why"],
            vec!["failures:", "---- b stdout ----", "why", "failures:", "b"],
        ];
        let told: [Vec<String>; 2] = [told(ours), told(built_in)];
        assert_eq!(told, expected);
    }

    #[test]
    fn says_the_beginning_and_the_end_of_long_complaints() {
        let mut complaints = Complaints::default();
        complaints.read("test a ... FAILED");
        (0..1000).for_each(|number| complaints.read(&format!("line {number}")));
        let told = complaints.told();
        assert_eq!(told.len(), Complaints::LINES + 1);
        assert_eq!([told[0].trim(), told[60].trim()], ["test a ... FAILED", "line 999"]);
        assert_eq!(told[30].trim(), "... 941 lines more, above");
    }
}
