//! `agentcube doctor`: what this machine has and lacks for running Pods, and how to get it. Only looks; changes nothing.

use std::path::Path;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::environment::Environment;
use crate::exit::Outcome;
use crate::output::{self, Machine, Paint, Table};
use crate::paths;

/// The oldest kernel on which unprivileged processes can mount an overlay.
const OLDEST_KERNEL: (u32, u32) = (5, 11);

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
    vec![
        kernel(&read("/proc/sys/kernel/osrelease")),
        user_namespaces(
            rustix::process::geteuid().is_root(),
            &read("/proc/sys/user/max_user_namespaces"),
            &read("/proc/sys/kernel/unprivileged_userns_clone"),
            &read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        ),
        overlay(&read("/proc/filesystems")),
        seccomp(&read("/proc/self/status")),
        cgroups(Path::new("/sys/fs/cgroup"), &read("/proc/self/cgroup")),
        data_dir(environment),
        oci_runtimes(environment),
    ]
}

fn kernel(release: &str) -> Check {
    let release = release.trim();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().ok());
    let version = numbers.next().flatten().zip(numbers.next().flatten());
    match version {
        Some(version) if version >= OLDEST_KERNEL => Check::good("Linux kernel", release),
        Some(_) => Check::missing("Linux kernel", release, "use Linux 5.11 or later"),
        None => {
            Check::missing("Linux kernel", "not Linux, or /proc is not mounted", "run on Linux 5.11 or later")
        }
    }
}

fn user_namespaces(root: bool, most: &str, unprivileged: &str, apparmor: &str) -> Check {
    const NAME: &str = "user namespaces";
    if root {
        return Check::good(NAME, "not needed: running as root");
    }
    if most.trim().parse::<u64>().unwrap_or(0) == 0 {
        return Check::missing(NAME, "none allowed", "as root: sysctl -w user.max_user_namespaces=65536");
    }
    if unprivileged.trim() == "0" {
        return Check::missing(
            NAME,
            "for root only",
            "as root: sysctl -w kernel.unprivileged_userns_clone=1",
        );
    }
    if apparmor.trim() == "1" {
        let remedy = "as root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0";
        return Check::missing(NAME, "restricted by AppArmor", remedy);
    }
    Check::good(NAME, "allowed")
}

fn overlay(filesystems: &str) -> Check {
    if filesystems.lines().any(|line| line.trim_start_matches("nodev").trim() == "overlay") {
        return Check::good("overlay file system", "in the kernel");
    }
    Check::limited(
        "overlay file system",
        "not loaded",
        "as root: modprobe overlay; without it images are read-only",
    )
}

fn seccomp(status: &str) -> Check {
    if status.lines().any(|line| line.starts_with("Seccomp:")) {
        return Check::good("seccomp", "in the kernel");
    }
    Check::missing("seccomp", "not in the kernel", "use a kernel with CONFIG_SECCOMP_FILTER")
}

/// Limits need a cgroup that we may write to; without one, Pods run without limits.
fn cgroups(root: &Path, own: &str) -> Check {
    const NAME: &str = "cgroups";
    if root.join("cgroup.controllers").exists() {
        let path = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
        let directory = root.join(path.trim_start_matches('/'));
        if may_write(&directory) {
            return Check::good(NAME, "version 2, writable");
        }
        let remedy =
            "start it as a service of your own: systemd-run --user --scope -p Delegate=yes agentcube up";
        return Check::limited(NAME, "version 2, not writable: Pods run without limits", remedy);
    }
    let controllers: Vec<&str> =
        ["cpu", "memory", "pids"].into_iter().filter(|name| root.join(name).is_dir()).collect();
    if controllers.is_empty() {
        return Check::limited(
            NAME,
            "not mounted: Pods run without limits",
            "as root: mount -t cgroup2 none /sys/fs/cgroup",
        );
    }
    if controllers.iter().all(|name| may_write(&root.join(name))) {
        return Check::good(NAME, format!("version 1, writable: {}", controllers.join(", ")));
    }
    Check::limited(
        NAME,
        "version 1, not writable: Pods run without limits",
        "run as root, or boot with cgroups version 2",
    )
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

fn oci_runtimes(environment: &Environment) -> Check {
    let has = |name: &&str| {
        std::env::split_paths(&environment.path).any(|directory| directory.join(name).is_file())
    };
    let found: Vec<&str> = ["runc", "crun", "runsc"].into_iter().filter(has).collect();
    if found.is_empty() {
        let remedy = "install runc, crun or gVisor's runsc if a RuntimeClass asks for it";
        return Check::limited("OCI runtimes", "none; Pods run natively", remedy);
    }
    Check::good("OCI runtimes", found.join(", "))
}

fn render(checks: &[Check], well: bool, paint: Paint) -> String {
    let mut table = Table::plain();
    for check in checks {
        let mark = match check.verdict {
            Verdict::Good => paint.good("ok"),
            Verdict::Limited => paint.warning("limited"),
            Verdict::Missing => paint.bad("MISSING"),
        };
        table.row([mark, check.name.to_owned(), check.found.clone()]);
        if let Some(remedy) = &check.remedy {
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
            ("5.11.0", Verdict::Good),
            ("5.4.0-100-generic", Verdict::Missing),
            ("", Verdict::Missing),
        ] {
            assert_eq!(kernel(release).verdict, expected, "{release}");
        }
    }

    #[test]
    fn user_namespaces_may_be_closed_in_three_ways() {
        for (root, most, unprivileged, apparmor, expected) in [
            (true, "0", "0", "1", Verdict::Good),
            (false, "100\n", "", "", Verdict::Good),
            (false, "100", "1", "0", Verdict::Good),
            (false, "0", "1", "0", Verdict::Missing),
            (false, "100", "0\n", "0", Verdict::Missing),
            (false, "100", "1", "1\n", Verdict::Missing),
        ] {
            let check = user_namespaces(root, most, unprivileged, apparmor);
            assert_eq!(check.verdict, expected, "{check:?}");
            assert_eq!(check.remedy.is_some(), expected != Verdict::Good);
        }
    }

    #[test]
    fn what_is_missing_comes_with_a_remedy() {
        let checks = [Check::good("a", "x"), Check::missing("b", "none", "get it")];
        let text = render(&checks, false, Paint::on(Default::default()));
        assert_eq!(
            text,
            "ok        a   x\nMISSING   b   none\n              -> get it\nSomething that Pods need is missing.\n"
        );
        assert_eq!(overlay("nodev\tsysfs\nnodev\toverlay\n").verdict, Verdict::Good);
        assert_eq!(overlay("nodev\tsysfs\n").verdict, Verdict::Limited);
    }
}
