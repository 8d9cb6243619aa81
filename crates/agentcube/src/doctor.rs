//! `agentcube doctor`: what this machine has and lacks for running Pods, and how to get it. Tries it in processes that
//! end at once, and leaves nothing behind.

use std::path::Path;

use agentcube_runtime::host::{Capabilities, Feature};
use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::environment::Environment;
use crate::exit::Outcome;
use crate::output::{self, Machine, Paint, Table};
use crate::paths;

/// The oldest kernel that can make a whole tree of mounts read-only.
const OLDEST_KERNEL: (u32, u32) = (5, 12);

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube doctor
  agentcube doctor -o json

Exits with 1 when something that is required is missing.")]
pub(crate) struct Arguments {
    /// Print for machines
    #[arg(short, long)]
    output: Option<Machine>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Verdict {
    Good,
    /// Works without, but less well.
    Limited,
    Missing,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Check {
    fn good(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Good, found: found.into(), remedy: None }
    }

    fn limited(name: &'static str, found: impl Into<String>, remedy: &str) -> Self {
        Self { name, verdict: Verdict::Limited, found: found.into(), remedy: Some(remedy.to_owned()) }
    }

    fn missing(name: &'static str, found: impl Into<String>, remedy: &str) -> Self {
        Self { name, verdict: Verdict::Missing, found: found.into(), remedy: Some(remedy.to_owned()) }
    }
}

pub(crate) fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let checks = checks(environment);
    let well = checks.iter().all(|check| check.verdict != Verdict::Missing);
    match arguments.output {
        Some(machine) => machine.print(&json!({"ready": well, "checks": checks}))?,
        None => output::write(render(&checks, well, Paint::on(environment.stdout)).as_bytes())?,
    }
    Ok(if well { Outcome::Done } else { Outcome::Failed })
}

fn checks(environment: &Environment) -> Vec<Check> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mut checks = vec![kernel(&read("/proc/sys/kernel/osrelease"))];
    match Capabilities::probe(Some(environment.path.clone())) {
        Ok(found) => {
            checks.push(user(found.root));
            checks.extend(found.features.iter().map(feature));
            checks.push(cgroups(Path::new("/sys/fs/cgroup")));
            checks.push(oci_runtimes(&found));
        }
        Err(error) => {
            let remedy = "see whether this machine is out of processes or memory, and try again";
            checks.push(Check::missing("isolation", format!("cannot be tried: {error}"), remedy));
        }
    }
    checks.push(bundler(environment));
    checks.push(data_dir(environment));
    checks
}

/// Front ends are built by it; nothing else needs it.
fn bundler(environment: &Environment) -> Check {
    let path: Vec<_> = std::env::split_paths(&environment.path).collect();
    match agentcube_forge::service::find_bundler(None, &path) {
        Some(found) => Check::good("bundler", found.display().to_string()),
        None => Check::limited(
            "bundler",
            "no esbuild on the PATH: FrontendIntegrations cannot be built",
            agentcube_forge::service::HOW_TO_GET,
        ),
    }
}

fn user(root: bool) -> Check {
    let uid = rustix::process::geteuid().as_raw();
    Check::good(
        "user",
        if root { "root".to_owned() } else { format!("ordinary (uid {uid}): Pods run without root") },
    )
}

/// What is lacking is told as `what: how to get it`.
fn feature(feature: &Feature) -> Check {
    let Some(lacks) = &feature.lacks else { return Check::good(feature.name, "works") };
    let (found, remedy) = lacks.split_once(": ").unwrap_or((lacks, "run as root on a recent Linux"));
    match feature.needed {
        true => Check::missing(feature.name, found, remedy),
        false => Check::limited(feature.name, found, remedy),
    }
}

fn kernel(release: &str) -> Check {
    let release = release.trim();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().ok());
    let version = numbers.next().flatten().zip(numbers.next().flatten());
    match version {
        Some(version) if version >= OLDEST_KERNEL => Check::good("Linux kernel", release),
        Some(_) => Check::missing("Linux kernel", release, "use Linux 5.12 or later"),
        None => {
            Check::missing("Linux kernel", "not Linux, or /proc is not mounted", "run on Linux 5.12 or later")
        }
    }
}

/// Which there are; what can be done with them is tried on its own.
fn cgroups(root: &Path) -> Check {
    if root.join("cgroup.controllers").exists() {
        Check::good("cgroups", "version 2")
    } else if ["cpu", "memory", "pids"].into_iter().any(|name| root.join(name).is_dir()) {
        Check::good("cgroups", "version 1")
    } else {
        Check::limited("cgroups", "not mounted", "as root: mount -t cgroup2 none /sys/fs/cgroup")
    }
}

fn may_write(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

fn data_dir(environment: &Environment) -> Check {
    let data = paths::default_data_dir(environment);
    let shown = data.path().display().to_string();
    let existing = data.path().ancestors().find(|path| path.exists());
    if existing.is_some_and(may_write) {
        return Check::good("data directory", shown);
    }
    Check::missing("data directory", format!("cannot write to {shown}"), "choose another with --data-dir")
}

/// Pods need none, unless their RuntimeClass asks for it.
fn oci_runtimes(found: &Capabilities) -> Check {
    let names: Vec<&str> = found.runtimes.iter().map(|(name, _)| *name).collect();
    Check::good(
        "OCI runtimes",
        if names.is_empty() { "none; Pods run natively".into() } else { names.join(", ") },
    )
}

fn render(checks: &[Check], well: bool, paint: Paint) -> String {
    let mut table = Table::plain();
    for (index, check) in checks.iter().enumerate() {
        let mark = match check.verdict {
            Verdict::Good => paint.good("ok"),
            Verdict::Limited => paint.warning("limited"),
            Verdict::Missing => paint.bad("MISSING"),
        };
        table.row([mark, check.name.to_owned(), check.found.clone()]);
        // What helps against several things is told once, after the last.
        let again = checks.get(index + 1).is_some_and(|next| next.remedy == check.remedy);
        if let Some(remedy) = check.remedy.as_ref().filter(|_| !again) {
            table.row([String::new(), String::new(), format!("-> {remedy}")]);
        }
    }
    let last = if well { "This machine can run Pods." } else { "Something that Pods need is missing." };
    format!("{}{last}\n", table.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels() {
        for (release, expected) in [
            ("6.18.5-custom\n", Verdict::Good),
            ("5.12.0", Verdict::Good),
            ("5.4.0-100-generic", Verdict::Missing),
            ("", Verdict::Missing),
        ] {
            assert_eq!(kernel(release).verdict, expected, "{release}");
        }
    }

    #[test]
    fn features_become_checks() {
        let case = |needed, lacks: Option<&str>| {
            feature(&Feature { name: "x", needed, lacks: lacks.map(str::to_owned) })
        };
        assert_eq!(case(true, None), Check::good("x", "works"));
        assert_eq!(case(true, Some("none: do this: now")), Check::missing("x", "none", "do this: now"));
        assert_eq!(case(false, Some("none: do this")), Check::limited("x", "none", "do this"));
    }

    #[test]
    fn cgroups_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(cgroups(directory.path()).verdict, Verdict::Limited);
        std::fs::create_dir(directory.path().join("memory")).unwrap();
        assert_eq!(cgroups(directory.path()).found, "version 1");
        std::fs::write(directory.path().join("cgroup.controllers"), "memory").unwrap();
        assert_eq!(cgroups(directory.path()).found, "version 2");
    }

    #[test]
    fn what_is_missing_comes_with_a_remedy() {
        let checks = [
            Check::good("a", "x"),
            Check::limited("b", "little", "get it"),
            Check::missing("c", "none", "get it"),
        ];
        let text = render(&checks, false, Paint::on(Default::default()));
        let expected = "ok        a   x
limited   b   little
MISSING   c   none
              -> get it
Something that Pods need is missing.
";
        assert_eq!(text, expected);
    }
}
