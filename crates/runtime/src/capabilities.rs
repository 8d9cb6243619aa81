//! Linux capabilities: their numbers and names, the default set, and giving up all others.

use std::collections::BTreeSet;
use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::spec::Capability;

/// In the order of their numbers.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

pub const SYS_PTRACE: Capability = Capability(19);
pub const SYS_ADMIN: Capability = Capability(21);
pub const SYS_BOOT: Capability = Capability(22);
pub const SYS_TIME: Capability = Capability(25);

/// What a container has unless its spec says otherwise: what containerd gives, without raw sockets and device nodes.
pub fn default_set() -> BTreeSet<Capability> {
    let names = [
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "SETGID",
        "SETUID",
        "SETPCAP",
        "NET_BIND_SERVICE",
        "SYS_CHROOT",
        "AUDIT_WRITE",
        "SETFCAP",
    ];
    names.into_iter().filter_map(Capability::named).collect()
}

/// Every capability that this kernel may know.
pub fn all() -> BTreeSet<Capability> {
    (0..NAMES.len() as u8).map(Capability).collect()
}

impl Capability {
    /// By its name, with or without `CAP_`, in any case.
    pub fn named(name: &str) -> Option<Self> {
        let upper = name.to_ascii_uppercase();
        let name = upper.strip_prefix("CAP_").unwrap_or(&upper);
        NAMES.iter().position(|&known| known == name).map(|number| Self(number as u8))
    }

    pub fn name(self) -> Option<&'static str> {
        NAMES.get(usize::from(self.0)).copied()
    }
}

/// Makes `keep` the most that this process and its programs can ever have. Needs `SETPCAP`.
pub(crate) fn bound(keep: &BTreeSet<Capability>) -> io::Result<()> {
    for number in 0..64 {
        if keep.contains(&Capability(number)) {
            continue;
        }
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // The kernel knows no higher ones.
            Err(rustix::io::Errno::INVAL) => break,
            other => other?,
        }
    }
    Ok(())
}

/// Gives up what is not in `keep`. A program that a user other than root runs has none of them after `execve`, as
/// container runtimes have it: nothing is inheritable or ambient.
pub(crate) fn keep_only(keep: &BTreeSet<Capability>) -> io::Result<()> {
    let bits = keep.iter().fold(0u64, |bits, capability| bits | (1 << (capability.0 & 63)));
    let have = rustix::thread::capabilities(None)?;
    let kept = have.permitted & CapabilitySet::from_bits_retain(bits);
    rustix::thread::clear_ambient_capability_set()?;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_agree_with_the_kernel() {
        for (name, number) in [("CAP_CHOWN", 0), ("sys_admin", 21), ("MKNOD", 27), ("CHECKPOINT_RESTORE", 40)]
        {
            assert_eq!(Capability::named(name), Some(Capability(number)));
        }
        assert_eq!(Capability::named("CAP_ALL"), None);
        assert_eq!(Capability(21).name(), Some("SYS_ADMIN"));
        assert_eq!(Capability(41).name(), None);
    }

    #[test]
    fn the_default_cannot_forge_packets_or_make_devices() {
        let set = default_set();
        assert_eq!(set.len(), 12);
        for name in ["NET_RAW", "MKNOD", "SYS_ADMIN", "SYS_PTRACE", "NET_ADMIN"] {
            assert!(!set.contains(&Capability::named(name).unwrap()), "{name}");
        }
    }
}
