//! What this machine is and has. What cannot be read is empty or zero: a node must come up on odd machines, too.

use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::NodeSystemInfo;

/// Less free memory than this is pressure.
const SHORT_MEMORY: u64 = 100 << 20;
/// Less free disk than a tenth is pressure, as for the kubelet.
const SHORT_DISK_PART: u64 = 10;
/// More free disk than this never is: a tenth of a big disk that the machine's owner shares with us is plenty.
const ENOUGH_DISK: u64 = 2 << 30;

#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    pub(super) processors: usize,
    pub(super) memory_bytes: u64,
    available_bytes: u64,
    pub(super) disk_bytes: u64,
    free_disk_bytes: u64,
    pub(super) info: NodeSystemInfo,
}

pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl Facts {
    pub(super) fn read(directory: &Path) -> Self {
        let memory = read("/proc/meminfo");
        let disk = rustix::fs::statvfs(directory).ok();
        let blocks = |count: fn(&rustix::fs::StatVfs) -> u64| {
            disk.as_ref().map_or(0, |disk| count(disk).saturating_mul(disk.f_frsize))
        };
        Self {
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kibibytes(&memory, "MemTotal:"),
            available_bytes: kibibytes(&memory, "MemAvailable:"),
            disk_bytes: blocks(|disk| disk.f_blocks),
            free_disk_bytes: blocks(|disk| disk.f_bavail),
            info: info(),
        }
    }

    pub(super) fn memory_is_short(&self) -> bool {
        self.available_bytes < SHORT_MEMORY
    }

    pub(super) fn disk_is_short(&self) -> bool {
        self.free_disk_bytes < ENOUGH_DISK.min(self.disk_bytes / SHORT_DISK_PART)
    }
}

fn info() -> NodeSystemInfo {
    let uname = rustix::system::uname();
    let release = read("/etc/os-release");
    let image = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let version = env!("CARGO_PKG_VERSION");
    let machine = read("/etc/machine-id");
    NodeSystemInfo {
        architecture: architecture().to_owned(),
        boot_id: read("/proc/sys/kernel/random/boot_id"),
        container_runtime_version: format!("agentcube://{version}"),
        kernel_version: uname.release().to_string_lossy().into_owned(),
        kube_proxy_version: String::new(),
        kubelet_version: format!("v1.36.4+agentcube-{version}"),
        machine_id: machine.clone(),
        operating_system: "linux".to_owned(),
        os_image: image.unwrap_or("Linux").trim_matches('"').to_owned(),
        system_uuid: machine,
        ..NodeSystemInfo::default()
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// A line of `/proc/meminfo`.
fn kibibytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().map_or(0, |kib| kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_big_disk_is_short_later_than_a_small_one() {
        let short = |disk_bytes, free_disk_bytes| {
            Facts { disk_bytes, free_disk_bytes, ..Facts::default() }.disk_is_short()
        };
        assert!(short(10 << 30, (1 << 30) - 1) && !short(10 << 30, 1 << 30));
        assert!(short(1 << 40, (2 << 30) - 1) && !short(1 << 40, 2 << 30));
    }

    #[test]
    fn this_machine_has_something() {
        let facts = Facts::read(Path::new("/"));
        assert!(facts.processors > 0 && facts.memory_bytes > facts.available_bytes && facts.disk_bytes > 0);
        assert!(!facts.info.kernel_version.is_empty());
        assert_eq!(kibibytes("MemTotal:        7 kB\nMemFree: 1 kB", "MemTotal:"), 7168);
        assert_eq!(kibibytes("", "MemTotal:"), 0);
    }
}
