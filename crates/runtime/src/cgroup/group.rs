//! The cgroup of one container, over all hierarchies.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::freezer::{Freezer, Place};
use super::{Controller, Hierarchy, Version, make};
use crate::Usage;
use crate::spec::Resources;

/// The kernel's default, in microseconds.
const CPU_PERIOD: u64 = 100_000;
/// The kernel refuses quotas below a millisecond.
const SMALLEST_QUOTA: u64 = 1_000;
const SHARES: std::ops::RangeInclusive<u64> = 2..=262_144;

#[derive(Debug, Clone)]
pub(crate) struct Group {
    version: Version,
    hierarchies: Vec<Hierarchy>,
    freezers: Vec<Place>,
    name: String,
}

impl Group {
    pub(super) fn new(version: Version, hierarchies: &[Hierarchy], freezers: &[Place], name: &str) -> Self {
        let below = |hierarchy: &Hierarchy| Hierarchy {
            controllers: hierarchy.controllers.clone(),
            directory: hierarchy.directory.join(name),
        };
        let hierarchies = hierarchies.iter().map(below).collect();
        Self { version, hierarchies, freezers: freezers.to_vec(), name: name.to_owned() }
    }

    /// Where its processes, or those of another group, can be frozen; `None` if this machine does not let us.
    pub(crate) fn freezer(&self, of: Option<&Path>) -> Option<Freezer> {
        match self.version {
            Version::V2 => Freezer::of_group(of.or(self.first())?),
            Version::V1 => self.freezers.iter().find_map(|place| place.group(&self.name)),
        }
    }

    /// A directory in which all of its processes are.
    pub(crate) fn first(&self) -> Option<&Path> {
        self.hierarchies.first().map(|hierarchy| hierarchy.directory.as_path())
    }

    fn directory(&self, controller: Controller) -> Option<&Path> {
        let has = |hierarchy: &&Hierarchy| hierarchy.controllers.contains(&controller);
        self.hierarchies.iter().find(has).map(|hierarchy| hierarchy.directory.as_path())
    }

    /// Makes the group and sets its limits.
    pub(crate) fn create(&self, resources: &Resources) -> io::Result<()> {
        for hierarchy in &self.hierarchies {
            make(&hierarchy.directory)?;
        }
        self.limit(resources)
    }

    /// Sets those limits for which the machine has a controller.
    pub(crate) fn limit(&self, resources: &Resources) -> io::Result<()> {
        for (controller, file, value) in settings(self.version, resources) {
            let Some(directory) = self.directory(controller) else { continue };
            match fs::write(directory.join(file), &value) {
                // Without swap accounting these two are not there, and nothing can be swapped unaccounted.
                Err(_) if file == "memory.memsw.limit_in_bytes" || file == "memory.swap.max" => {}
                Err(error) => {
                    return Err(io::Error::new(
                        error.kind(),
                        format!("cannot set {file} to {value}: {error}"),
                    ));
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// For `CLONE_INTO_CGROUP`; only v2 has it.
    pub(crate) fn open(&self) -> io::Result<Option<OwnedFd>> {
        match (self.version, self.hierarchies.first()) {
            (Version::V2, Some(hierarchy)) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                Ok(Some(rustix::fs::open(&hierarchy.directory, flags, Mode::empty())?))
            }
            _ => Ok(None),
        }
    }

    /// Moves the calling thread, which must be its process's only one, into the group. On v1, moving oneself by
    /// thread does not wait for a grace period of the whole machine, as moving a process does.
    pub(crate) fn enter(&self) -> io::Result<()> {
        if self.version == Version::V2 {
            return Ok(());
        }
        self.hierarchies.iter().try_for_each(|hierarchy| fs::write(hierarchy.directory.join("tasks"), "0"))
    }

    /// How many processes the kernel has killed for want of memory.
    pub(crate) fn out_of_memory_kills(&self) -> u64 {
        let file = match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        let text = self.read(Controller::Memory, file).unwrap_or_default();
        keyed(&text, "oom_kill")
    }

    pub(crate) fn usage(&self) -> Usage {
        let number = |controller, file| {
            self.read(controller, file).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        let (cpu_nanoseconds, memory, inactive_file) = match self.version {
            Version::V1 => (
                number(Controller::CpuTime, "cpuacct.usage"),
                number(Controller::Memory, "memory.usage_in_bytes"),
                "total_inactive_file",
            ),
            Version::V2 => {
                let cpu = self.read(Controller::CpuTime, "cpu.stat").unwrap_or_default();
                let microseconds = keyed(&cpu, "usage_usec");
                (
                    microseconds.saturating_mul(1000),
                    number(Controller::Memory, "memory.current"),
                    "inactive_file",
                )
            }
        };
        // The working set, as Kubernetes counts: without the file pages that the kernel would take back first.
        let statistics = self.read(Controller::Memory, "memory.stat").unwrap_or_default();
        Usage {
            cpu_nanoseconds,
            memory_bytes: memory.saturating_sub(keyed(&statistics, inactive_file)),
            processes: number(Controller::Pids, "pids.current"),
        }
    }

    fn read(&self, controller: Controller, file: &str) -> Option<String> {
        fs::read_to_string(self.directory(controller)?.join(file)).ok()
    }

    /// How an OCI runtime names the group: on v1 below the cgroup that it is itself in, which is the spawner's.
    pub(crate) fn oci_path(&self) -> String {
        let Some(hierarchy) = self.hierarchies.first() else { return String::new() };
        let directory = &hierarchy.directory;
        match self.version {
            Version::V2 => {
                let below = directory.strip_prefix("/sys/fs/cgroup").unwrap_or(directory);
                Path::new("/").join(below).display().to_string()
            }
            Version::V1 => {
                let names: Vec<_> =
                    directory.iter().rev().take(2).map(|name| name.to_string_lossy()).collect();
                names.iter().rev().map(AsRef::as_ref).collect::<Vec<&str>>().join("/")
            }
        }
    }

    /// Kills all processes of the group, without waiting for their end, and says how many there were.
    pub(crate) fn kill(&self) -> usize {
        let Some(hierarchy) = self.hierarchies.first() else { return 0 };
        let members = members(&hierarchy.directory).unwrap_or_default();
        for member in &members {
            let _ = pidfd_send_signal(member, Signal::KILL);
        }
        members.len()
    }

    /// Removes the group. `ResourceBusy` while a process is in it.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.hierarchies.iter().try_for_each(|hierarchy| remove(&hierarchy.directory))
    }
}

/// The processes of a cgroup. None is of somebody who got a member's number since.
pub(crate) fn members(directory: &Path) -> io::Result<Vec<OwnedFd>> {
    let read = || match fs::read_to_string(directory.join("cgroup.procs")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        other => other,
    };
    let mut found = Vec::new();
    for pid in read()?.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        // Still a member, so the descriptor is of a member.
        let number = pid.as_raw_nonzero().to_string();
        if read()?.lines().any(|member| member == number) {
            found.push(pidfd);
        }
    }
    Ok(found)
}

/// Removes a cgroup and those that its container has made in it.
pub(crate) fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
        other => return other,
    }
    for child in subgroups(directory)? {
        remove(&child)?;
    }
    fs::remove_dir(directory)
}

pub(crate) fn subgroups(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// The files to write for these limits, in order.
fn settings(version: Version, resources: &Resources) -> Vec<(Controller, &'static str, String)> {
    let mut settings = Vec::new();
    if let Some(bytes) = resources.memory_bytes {
        let bytes = bytes.to_string();
        match version {
            Version::V1 => {
                settings.push((Controller::Memory, "memory.limit_in_bytes", bytes.clone()));
                settings.push((Controller::Memory, "memory.memsw.limit_in_bytes", bytes));
            }
            Version::V2 => {
                settings.push((Controller::Memory, "memory.max", bytes));
                settings.push((Controller::Memory, "memory.swap.max", "0".to_owned()));
                // As the kubelet asks: a container that lost a process to this is ended as a whole.
                settings.push((Controller::Memory, "memory.oom.group", "1".to_owned()));
            }
        }
    }
    if let Some(millis) = resources.cpu_request_millis {
        let shares = (millis.saturating_mul(1024) / 1000).clamp(*SHARES.start(), *SHARES.end());
        settings.push(match version {
            Version::V1 => (Controller::Cpu, "cpu.shares", shares.to_string()),
            Version::V2 => (Controller::Cpu, "cpu.weight", weight(shares).to_string()),
        });
    }
    if let Some(millis) = resources.cpu_millis {
        let quota = (millis.saturating_mul(CPU_PERIOD) / 1000).max(SMALLEST_QUOTA);
        settings.push(match version {
            Version::V1 => (Controller::Cpu, "cpu.cfs_quota_us", quota.to_string()),
            Version::V2 => (Controller::Cpu, "cpu.max", format!("{quota} {CPU_PERIOD}")),
        });
    }
    if let Some(processes) = resources.processes {
        settings.push((Controller::Pids, "pids.max", processes.to_string()));
    }
    settings
}

/// Maps the shares of v1 onto the weights of v2, as OCI runtimes have done it since there was v2.
fn weight(shares: u64) -> u64 {
    1 + (shares - SHARES.start()) * 9999 / (SHARES.end() - SHARES.start())
}

/// The number after a key at the beginning of a line; 0 when it is not there.
fn keyed(text: &str, key: &str) -> u64 {
    let value = |line: &str| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_the_files_of_each_version() {
        let resources = Resources {
            memory_bytes: Some(64 << 20),
            cpu_millis: Some(1500),
            cpu_request_millis: Some(250),
            processes: Some(100),
        };
        let written = |version| {
            settings(version, &resources)
                .into_iter()
                .map(|(_, file, value)| format!("{file}={value}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            written(Version::V1),
            "memory.limit_in_bytes=67108864 memory.memsw.limit_in_bytes=67108864 cpu.shares=256 \
             cpu.cfs_quota_us=150000 pids.max=100"
        );
        assert_eq!(
            written(Version::V2),
            "memory.max=67108864 memory.swap.max=0 memory.oom.group=1 cpu.weight=10 cpu.max=150000 100000 \
             pids.max=100"
        );
        assert!(settings(Version::V2, &Resources::default()).is_empty());
    }

    #[test]
    fn keeps_to_what_the_kernel_accepts() {
        let resources =
            Resources { cpu_millis: Some(1), cpu_request_millis: Some(0), ..Resources::default() };
        let v1 = settings(Version::V1, &resources);
        assert_eq!((v1[0].2.as_str(), v1[1].2.as_str()), ("2", "1000"));
        let huge = Resources { cpu_request_millis: Some(u64::MAX), ..Resources::default() };
        assert_eq!(settings(Version::V2, &huge)[0].2, "10000");
    }

    #[test]
    fn reads_keys_whole() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(keyed(text, "oom_kill"), 3);
        assert_eq!(keyed(text, "oom"), 0);
    }
}
