//! What a container uses, as its shim counts.

use agentcube_runtime::{ContainerId, Error, Usage};
use prost::Message;

use crate::client::{Client, During, ask};
use crate::container::unknown;
use crate::generated::containerd::services::tasks::v1::MetricsRequest;
use crate::generated::containerd::types::Any;
use crate::generated::io::containerd::cgroups::{v1, v2};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    pub(crate) usage: Usage,
    /// Processes that the kernel has killed for want of memory.
    pub(crate) out_of_memory_kills: u64,
}

impl Client {
    pub(crate) async fn measure(&self, id: &ContainerId) -> Result<Measured, Error> {
        let request = MetricsRequest { filters: vec![format!("id=={id}")] };
        let answer = ask(self.tasks().metrics(self.request(request))).await;
        let metrics = answer.during("measuring the container")?.metrics;
        let found =
            metrics.into_iter().find(|metric| metric.id == id.as_str()).and_then(|metric| metric.data);
        read(&found.ok_or_else(|| unknown(id))?)
    }
}

fn read(data: &Any) -> Result<Measured, Error> {
    let malformed = |error: prost::DecodeError| Error::Step {
        step: "measuring the container",
        reason: error.to_string(),
    };
    match data.type_url.rsplit('/').next().unwrap_or_default() {
        "io.containerd.cgroups.v1.Metrics" => {
            let metrics = v1::Metrics::decode(&*data.value).map_err(malformed)?;
            let memory = metrics.memory.unwrap_or_default();
            let used = memory.usage.unwrap_or_default().usage;
            Ok(Measured {
                usage: Usage {
                    cpu_nanoseconds: metrics.cpu.and_then(|cpu| cpu.usage).unwrap_or_default().total,
                    memory_bytes: used.saturating_sub(memory.total_inactive_file),
                    processes: metrics.pids.unwrap_or_default().current,
                },
                out_of_memory_kills: metrics.memory_oom_control.unwrap_or_default().oom_kill,
            })
        }
        "io.containerd.cgroups.v2.Metrics" => {
            let metrics = v2::Metrics::decode(&*data.value).map_err(malformed)?;
            let memory = metrics.memory.unwrap_or_default();
            Ok(Measured {
                usage: Usage {
                    cpu_nanoseconds: metrics.cpu.unwrap_or_default().usage_usec.saturating_mul(1000),
                    memory_bytes: memory.usage.saturating_sub(memory.inactive_file),
                    processes: metrics.pids.unwrap_or_default().current,
                },
                out_of_memory_kills: metrics.memory_events.unwrap_or_default().oom_kill,
            })
        }
        other => {
            Err(Error::Unsupported(format!("the shim counts in a way that is not known here: {other:?}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_versions_of_cgroups() {
        let memory =
            v1::MemoryStat { total_inactive_file: 10, usage: Some(v1::MemoryEntry { limit: 0, usage: 100 }) };
        let old = v1::Metrics {
            pids: Some(v1::PidsStat { current: 3 }),
            cpu: Some(v1::CpuStat { usage: Some(v1::CpuUsage { total: 5_000 }) }),
            memory: Some(memory),
            memory_oom_control: Some(v1::MemoryOomControl { oom_kill: 1 }),
        };
        let new = v2::Metrics {
            pids: Some(v2::PidsStat { current: 3 }),
            cpu: Some(v2::CpuStat { usage_usec: 5 }),
            memory: Some(v2::MemoryStat { usage: 100, inactive_file: 10 }),
            memory_events: Some(v2::MemoryEvents { oom_kill: 1 }),
        };
        let usage = Usage { cpu_nanoseconds: 5_000, memory_bytes: 90, processes: 3 };
        for (version, value) in [("v1", old.encode_to_vec()), ("v2", new.encode_to_vec())] {
            let type_url = format!("io.containerd.cgroups.{version}.Metrics");
            let measured = read(&Any { type_url, value }).unwrap();
            assert_eq!(measured, Measured { usage, out_of_memory_kills: 1 }, "{version}");
        }
        assert!(read(&Any { type_url: "other".into(), value: Vec::new() }).is_err());
    }
}
