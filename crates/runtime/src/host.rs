//! What this machine can do for us, and what it lacks. Each thing is tried, not guessed from versions.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use crate::cgroup::{Controller, Tree};
use crate::rootfs::mount::{self, Extent, NO_SUID};
use crate::spawner::clone::{self, Ended, NEW_MOUNT, NEW_SANDBOX, NEW_USER};
use crate::spawner::start::{has_privileges, map_user, user_maps};

pub(crate) const NO_USER_NAMESPACES: &str = "this machine does not let ordinary users make user namespaces: run as \
    root, or allow it with `sysctl kernel.unprivileged_userns_clone=1` (Debian), \
    `sysctl kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu) or `sysctl user.max_user_namespaces=10000`";
pub(crate) const NO_OVERLAY: &str = "this machine does not let us mount an overlay there: load it with `modprobe \
    overlay`; without root it takes Linux 5.11 and a directory that is not on an overlay or a network itself";
const NO_MOUNT_ATTRIBUTES: &str = "this kernel has no mount_setattr: it takes Linux 5.12";
const NO_FIREWALL: &str = "this kernel has no nf_tables for us: load it with `modprobe nf_tables nft_chain_nat \
    nft_redir nft_ct nft_reject_ipv4`";
const NO_SECCOMP: &str = "this kernel has no seccomp filters: it takes one with CONFIG_SECCOMP_FILTER";

/// Something that Pods need of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    pub name: &'static str,
    /// What is missing and how to get it; `None` when it is there.
    pub lacks: Option<String>,
    /// Without it no Pod can run. What is not needed has a lesser stand-in, or is for some Pods only.
    pub needed: bool,
}

/// What this machine offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    pub root: bool,
    pub features: Vec<Feature>,
    /// OCI runtimes that were found: name and path.
    pub runtimes: Vec<(&'static str, PathBuf)>,
}

impl Capabilities {
    /// Tries everything, and leaves nothing. `search` is where programs are looked for, as in `PATH`.
    pub fn probe(search: Option<OsString>) -> io::Result<Self> {
        let root = has_privileges();
        let feature =
            |name, needed, lacks: Option<&str>| Feature { name, needed, lacks: lacks.map(str::to_owned) };
        let mut features = Vec::new();
        let namespaces = attempt(|| Ok(()));
        if !root {
            features.push(feature("user namespaces", true, namespaces.err().map(|_| NO_USER_NAMESPACES)));
        }
        let lacking = |sentence, work: fn() -> io::Result<()>| attempt(work).err().map(|_| sentence);
        features.push(feature("mount attributes", true, lacking(NO_MOUNT_ATTRIBUTES, mount_attributes)));
        features.push(feature("overlay", true, lacking(NO_OVERLAY, overlay)));
        features.push(feature("nf_tables", true, lacking(NO_FIREWALL, firewall)));
        features.push(feature("seccomp", true, lacking(NO_SECCOMP, seccomp)));
        features.extend(cgroups(root)?);
        Ok(Self { root, features, runtimes: runtimes(search) })
    }

    /// All that Pods need is there.
    pub fn suffice(&self) -> bool {
        self.features.iter().all(|feature| feature.lacks.is_none() || !feature.needed)
    }
}

/// Tries something in a process of its own, in namespaces as a container has them.
fn attempt(work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let maps = (!has_privileges()).then(user_maps);
    let flags = NEW_MOUNT | NEW_SANDBOX | if maps.is_some() { NEW_USER } else { 0 };
    let child = clone::clone(flags, None, || {
        let mapped = maps.as_ref().is_none_or(|(uids, gids)| map_user(uids, gids).is_ok());
        let worked = mapped && work().is_ok();
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(i32::from(!worked)) }
    })?;
    match clone::wait(child.pidfd.as_fd())? {
        Ended::Code(0) => Ok(()),
        _ => Err(io::Error::other("the machine refused")),
    }
}

fn mount_attributes() -> io::Result<()> {
    let tree = mount::filesystem("tmpfs", &[], NO_SUID)?;
    mount::restrict(tree, NO_SUID, Extent::Tree)
}

/// In memory: whether a certain directory can be an upper one is seen when it is used.
fn overlay() -> io::Result<()> {
    rustix::mount::fsopen("overlay", rustix::mount::FsOpenFlags::FSOPEN_CLOEXEC)?;
    Ok(())
}

fn firewall() -> io::Result<()> {
    crate::netns::prepare().map_err(io::Error::other)
}

fn seccomp() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    crate::seccomp::Filter::new(&crate::capabilities::default_set()).load()
}

/// Limits have stand-ins without cgroups, but weaker ones.
fn cgroups(root: bool) -> io::Result<Vec<Feature>> {
    let tree = Tree::open(&format!("doctor-{}", std::process::id()))?;
    let (missing, can_freeze) = (tree.lacks(), tree.can_freeze());
    tree.remove();
    let how = if root {
        "mount the cgroup file system, and enable this controller in it"
    } else {
        "start the node in a cgroup of its own with `systemd-run --user --scope -p Delegate=yes agentcube up`, on a \
         machine with cgroup v2"
    };
    let feature = |name, controller, instead: &str| Feature {
        name,
        needed: false,
        lacks: missing.contains(&controller).then(|| format!("{instead}: {how}")),
    };
    Ok(vec![
        feature(
            "memory limits",
            Controller::Memory,
            "memory is limited for each process instead of each container",
        ),
        feature("CPU limits", Controller::Cpu, "CPU limits have no effect"),
        feature("process limits", Controller::Pids, "processes are limited by user instead of by container"),
        feature("CPU accounting", Controller::CpuTime, "what a container uses is not known"),
        Feature {
            name: "freezing",
            needed: false,
            lacks: (!can_freeze).then(|| format!("containers cannot be paused: {how}")),
        },
    ])
}

fn runtimes(search: Option<OsString>) -> Vec<(&'static str, PathBuf)> {
    let directories: Vec<_> = search.iter().flat_map(std::env::split_paths).collect();
    let executable = |path: &PathBuf| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    let find = |name: &'static str| {
        directories.iter().map(|directory| directory.join(name)).find(executable).map(|path| (name, path))
    };
    ["runc", "crun", "runsc"].into_iter().filter_map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lack_says_how_to_get_it() {
        let found = Capabilities::probe(std::env::var_os("PATH")).unwrap();
        for feature in &found.features {
            if let Some(lacks) = &feature.lacks {
                assert!(lacks.contains(": "), "{}: {lacks}", feature.name);
            }
        }
        assert!(found.suffice(), "these tests run on machines that can run Pods: {found:?}");
    }

    #[test]
    fn finds_runtimes_where_it_is_told_to_look() {
        assert_eq!(runtimes(None), Vec::new());
        let directory = tempfile::tempdir().unwrap();
        std::fs::copy("/bin/sh", directory.path().join("crun")).unwrap();
        std::fs::write(directory.path().join("runc"), "not executable").unwrap();
        let found = runtimes(Some(directory.path().into()));
        assert_eq!(found, [("crun", directory.path().join("crun"))]);
    }
}
