//! How much memory `up` takes with everything that it started. Only reads what the kernel tells about processes.

use std::collections::HashMap;

use serde::Serialize;

/// Memory of a process and of all below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Footprint {
    /// Of the process alone.
    pub(crate) own_bytes: u64,
    pub(crate) total_bytes: u64,
    pub(crate) processes: usize,
}

impl Footprint {
    /// Processes that end meanwhile count as little as they hold.
    pub(crate) fn of(root: i32) -> Self {
        let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let parent = |pid: i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, parent(&stat)?))
        };
        let tree = descendants(root, &numbers.filter_map(parent).collect());
        // Each is read once: what is read again may have become more or less meanwhile.
        let own_bytes = memory(root);
        let below: u64 = tree.iter().filter(|pid| **pid != root).map(|pid| memory(*pid)).sum();
        Self { own_bytes, total_bytes: own_bytes + below, processes: tree.len() }
    }
}

/// The process and all below it.
fn descendants(root: i32, parents: &HashMap<i32, i32>) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    // Nothing has the root below it, whatever numbers were given anew while we looked.
    for (pid, parent) in parents.iter().filter(|(pid, _)| **pid != root) {
        children.entry(*parent).or_default().push(*pid);
    }
    let (mut found, mut next) = (vec![root], 0);
    while let Some(pid) = found.get(next) {
        found.extend(children.remove(pid).unwrap_or_default());
        next += 1;
    }
    found
}

fn parent(stat: &str) -> Option<i32> {
    // The name, in parentheses, may itself hold spaces and parentheses.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Memory that is shared counts in parts, where the kernel lets us see it; else whole.
fn memory(pid: i32) -> u64 {
    let field = |file: &str, name: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
        kilobytes(&text, name).map(|kilobytes| kilobytes * 1024)
    };
    field("smaps_rollup", "Pss:").or_else(|| field("status", "VmRSS:")).unwrap_or_default()
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_tree_is_all_below_its_root() {
        let parents = HashMap::from([(2, 1), (3, 1), (4, 2), (5, 4), (6, 9), (9, 6)]);
        let of = |root| {
            let mut found = descendants(root, &parents);
            found.sort_unstable();
            found
        };
        assert_eq!(of(2), [2, 4, 5]);
        assert_eq!(of(1), [1, 2, 3, 4, 5]);
        assert_eq!(of(7), [7]);
        assert_eq!(of(6), [6, 9], "a circle ends");
    }

    #[test]
    fn what_the_kernel_tells_is_read() {
        assert_eq!(parent("7 (a) b (c)) S 42 7 7 0"), Some(42));
        assert_eq!(parent("garbage"), None);
        assert_eq!(kilobytes("Rss:  9 kB\nPss:                1234 kB\n", "Pss:"), Some(1234));
        assert_eq!(kilobytes("VmRSS:\t0 bytes\n", "VmRSS:"), None);
    }

    #[test]
    fn a_child_is_counted_while_memory_comes_and_goes() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let done = AtomicBool::new(false);
        let found: Vec<Footprint> = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::black_box(vec![1_u8; 32 << 20]);
                }
            });
            let found = (0..100).map(|_| Footprint::of(own)).collect();
            done.store(true, Ordering::Relaxed);
            found
        });
        child.kill().unwrap();
        child.wait().unwrap();
        for found in found {
            assert!(found.own_bytes > 0 && found.processes >= 2, "{found:?}");
            assert!(found.total_bytes > found.own_bytes, "{found:?}");
        }
    }
}
