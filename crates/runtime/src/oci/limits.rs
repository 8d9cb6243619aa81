//! Limits in the words of the OCI runtime specification, for cgroups that the runtime makes. Pure, but for one look at
//! what this machine accounts for.

use std::path::Path;

use serde::Serialize;

use crate::spec::Resources;

/// In microseconds, as everybody has it.
const PERIOD: u64 = 100_000;
/// The kernel refuses quotas below a millisecond.
const SMALLEST_QUOTA: u64 = 1_000;

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<Cpu>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pids: Option<Pids>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Memory {
    limit: u64,
    /// Memory and swap together.
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<u64>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Cpu {
    #[serde(skip_serializing_if = "Option::is_none")]
    shares: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<u64>,
    period: u64,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Pids {
    limit: u64,
}

impl Limits {
    pub(super) fn new(resources: &Resources) -> Self {
        Self::on(resources, accounts_for_swap())
    }

    fn on(resources: &Resources, swap: bool) -> Self {
        let shares = resources.cpu_request_millis.map(|millis| {
            let shares = millis.saturating_mul(1024) / 1000;
            shares.clamp(2, 262_144)
        });
        let quota =
            resources.cpu_millis.map(|millis| (millis.saturating_mul(PERIOD) / 1000).max(SMALLEST_QUOTA));
        let cpu = (shares.is_some() || quota.is_some()).then_some(Cpu { shares, quota, period: PERIOD });
        Self {
            memory: resources.memory_bytes.map(|limit| Memory { limit, swap: swap.then_some(limit) }),
            cpu,
            pids: resources.processes.map(|limit| Pids { limit }),
        }
    }
}

/// Where it does not, a limit of swap cannot be set, and nothing can be swapped unaccounted.
fn accounts_for_swap() -> bool {
    let top = Path::new("/sys/fs/cgroup");
    if !top.join("cgroup.controllers").exists() {
        return top.join("memory/memory.memsw.limit_in_bytes").exists();
    }
    let groups = std::fs::read_dir(top).into_iter().flatten().flatten();
    groups.map(|group| group.path().join("memory.swap.max")).any(|file| file.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_limited() {
        let none = serde_json::to_value(Limits::on(&Resources::default(), true)).unwrap();
        assert_eq!(none, serde_json::json!({}));
        let resources = Resources {
            memory_bytes: Some(1 << 20),
            cpu_millis: Some(250),
            cpu_request_millis: Some(100),
            processes: Some(7),
        };
        assert_eq!(
            serde_json::to_value(Limits::on(&resources, true)).unwrap(),
            serde_json::json!({
                "memory": {"limit": 1 << 20, "swap": 1 << 20},
                "cpu": {"shares": 102, "quota": 25_000, "period": 100_000},
                "pids": {"limit": 7},
            })
        );
        let tiny = Resources { cpu_millis: Some(1), memory_bytes: Some(5), ..Resources::default() };
        assert_eq!(
            serde_json::to_value(Limits::on(&tiny, false)).unwrap(),
            serde_json::json!({"memory": {"limit": 5}, "cpu": {"quota": 1_000, "period": 100_000}})
        );
    }
}
