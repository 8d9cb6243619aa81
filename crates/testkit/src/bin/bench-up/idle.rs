//! What processes cost while nothing happens, as the kernel counts it.
#![allow(dead_code, reason = "each measurement uses a part of it")]

use std::time::Duration;

use anyhow::{Context, Result};

#[derive(Default)]
pub(crate) struct Idle {
    /// Of all processes together; pages that two of them share count twice.
    pub(crate) resident_bytes: u64,
    /// The same, with shared pages split among those who share them.
    pub(crate) proportional_bytes: u64,
    pub(crate) threads: u64,
    /// The share of one core.
    pub(crate) cpu: f64,
}

pub(crate) async fn measure(processes: &[u32], time: Duration) -> Result<Idle> {
    let before = cpu_ticks(processes)?;
    tokio::time::sleep(time).await;
    let used = (cpu_ticks(processes)? - before) as f64 / ticks_per_second();
    Ok(Idle {
        resident_bytes: number(processes, "smaps_rollup", "Rss:")? * 1024,
        proportional_bytes: number(processes, "smaps_rollup", "Pss:")? * 1024,
        threads: number(processes, "status", "Threads:")?,
        cpu: used / time.as_secs_f64(),
    })
}

/// The sum of a number that a file of `/proc` names.
fn number(processes: &[u32], file: &str, key: &str) -> Result<u64> {
    let one = |pid: &u32| -> Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/{file}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix(key)).context("a line is missing")?;
        Ok(line.split_whitespace().next().context("a number is missing")?.parse()?)
    };
    processes.iter().map(one).sum()
}

/// User and system time.
pub(crate) fn cpu_ticks(processes: &[u32]) -> Result<u64> {
    let one = |pid: &u32| -> Result<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let (_, fields) = stat.rsplit_once(") ").context("an odd /proc/PID/stat")?;
        let times = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
        Ok(times.sum::<Result<u64, _>>()?)
    };
    processes.iter().map(one).sum()
}

pub(crate) fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}
