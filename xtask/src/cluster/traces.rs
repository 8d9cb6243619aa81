//! What a cluster could leave on a machine: devices, namespaces and mounts. To see that ending it leaves nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What there is now, a line each.
pub(crate) fn now() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut list = |what: &str, directory: &str| {
        for entry in fs::read_dir(Path::new(directory)).into_iter().flatten().flatten() {
            found.insert(format!("{what} {}", entry.file_name().to_string_lossy()));
        }
    };
    list("network device", "/sys/class/net");
    list("network namespace", "/run/netns");
    for hierarchy in ["", "/memory", "/unified"] {
        list(&format!("cgroup{hierarchy}"), &format!("/sys/fs/cgroup{hierarchy}"));
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    found.extend(mounts.lines().filter_map(|line| Some(format!("mount {}", line.split(' ').nth(1)?))));
    found
}
