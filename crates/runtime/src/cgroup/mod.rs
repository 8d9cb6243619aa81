//! Limits and accounting of containers. A node's groups lie in one tree, `agentcube-<node>`, under the cgroup that the
//! node itself is in; nothing outside of that tree is ever changed, but for handing controllers down to it.

mod detect;
mod freezer;
mod group;
mod unified;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use freezer::{Freezer, release};
pub(crate) use group::{Group, members, remove, subgroups};

use crate::spec::ContainerId;

/// Where a container cannot be frozen.
pub(crate) const NO_FREEZER: &str = "this machine does not let us freeze containers: run as root, or in a cgroup of \
                                     its own with `systemd-run --user --scope -p Delegate=yes`, on a machine with \
                                     cgroup v2";

/// What a hierarchy can limit or count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Controller {
    Memory,
    Cpu,
    /// Counts; on v2 a part of `Cpu`.
    CpuTime,
    Pids,
}

impl Controller {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "memory" => Some(Self::Memory),
            "cpu" => Some(Self::Cpu),
            "cpuacct" => Some(Self::CpuTime),
            "pids" => Some(Self::Pids),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    V1,
    V2,
}

/// One node's cgroups: a directory in each hierarchy that it may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    version: Version,
    hierarchies: Vec<Hierarchy>,
    /// Where containers may be frozen whose own groups cannot be.
    #[serde(default)]
    freezers: Vec<freezer::Place>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Hierarchy {
    controllers: Vec<Controller>,
    directory: PathBuf,
}

impl Tree {
    /// Makes the node's directory wherever it may. A machine that gives us no cgroups is no error: see [`Tree::lacks`].
    pub fn open(node: &str) -> io::Result<Self> {
        let found = find()?;
        let name = directory_name(node);
        if let Some(unified) = found.iter().find(|found| found.unified)
            && let Some(hierarchy) = unified::open(&unified.own, &unified.top, &name)
        {
            return Ok(Self { version: Version::V2, hierarchies: vec![hierarchy], freezers: Vec::new() });
        }
        let open = |found: &detect::Found| {
            let directory = found.own.join(&name);
            make(&directory).ok()?;
            Some(Hierarchy { controllers: found.controllers.clone(), directory })
        };
        let usable = found.iter().filter(|found| !found.unified && !found.controllers.is_empty());
        let hierarchies = usable.filter_map(open).collect();
        Ok(Self { version: Version::V1, hierarchies, freezers: freezer::places(&found, &name) })
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// What cannot be limited on this machine.
    pub fn lacks(&self) -> Vec<Controller> {
        let all = [Controller::Memory, Controller::Cpu, Controller::CpuTime, Controller::Pids];
        all.into_iter().filter(|&controller| !self.has(controller)).collect()
    }

    pub(crate) fn has(&self, controller: Controller) -> bool {
        self.hierarchies.iter().any(|hierarchy| hierarchy.controllers.contains(&controller))
    }

    pub(crate) fn group(&self, id: &ContainerId) -> Group {
        Group::new(self.version, &self.hierarchies, &self.freezers, id.as_str())
    }

    /// For a container that is not known yet. No id of a container has a capital letter.
    pub(crate) fn group_ahead(&self, number: u64) -> Group {
        Group::new(self.version, &self.hierarchies, &self.freezers, &format!("Ahead-{number}"))
    }

    pub(crate) fn directories(&self) -> impl Iterator<Item = &Path> {
        self.hierarchies.iter().map(|hierarchy| hierarchy.directory.as_path())
    }

    /// Whether containers can be frozen.
    pub(crate) fn can_freeze(&self) -> bool {
        // As for a container, but for its processes.
        let group = Group::new(self.version, &self.hierarchies, &self.freezers, "freezes");
        if group.first().is_none() || group.create(&crate::spec::Resources::default()).is_err() {
            return false;
        }
        let freezer = group.freezer(None);
        let _ = freezer.as_ref().map(Freezer::remove);
        let _ = group.remove();
        freezer.is_some()
    }

    /// Where containers may be frozen, besides in their own groups.
    pub(crate) fn freezers(&self) -> impl Iterator<Item = &Path> {
        self.freezers.iter().map(freezer::Place::directory)
    }

    /// Removes the node's own directories, once they are empty.
    pub(crate) fn remove(&self) {
        for hierarchy in &self.hierarchies {
            let _ = std::fs::remove_dir(&hierarchy.directory);
        }
        for freezer in self.freezers() {
            let _ = std::fs::remove_dir(freezer);
        }
    }
}

/// Every directory in which a node of this name may have left groups, whether it exists or not: in all hierarchies,
/// because OCI runtimes make theirs in all.
pub(crate) fn possible_directories(node: &str) -> io::Result<Vec<PathBuf>> {
    let name = directory_name(node);
    let found = find()?;
    let above = |found: &detect::Found| -> Vec<PathBuf> {
        let below_top = found.own.ancestors().take_while(|directory| directory.starts_with(&found.top));
        below_top.map(|directory| directory.join(&name)).collect()
    };
    Ok(found.iter().flat_map(above).collect())
}

/// Whether this process itself is in a cgroup or below it.
pub(crate) fn holds_us(directory: &Path) -> io::Result<bool> {
    Ok(find()?.iter().any(|found| found.own.starts_with(directory)))
}

/// Lets go of the place where a node's own processes may have stood, if nobody stands there.
pub(crate) fn remove_aside(directory: &Path) {
    let _ = std::fs::remove_dir(unified::aside(directory));
}

fn find() -> io::Result<Vec<detect::Found>> {
    let cgroup = std::fs::read_to_string("/proc/self/cgroup")?;
    let mountinfo = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(detect::find(&cgroup, &mountinfo))
}

fn directory_name(node: &str) -> String {
    format!("agentcube-{node}")
}

fn make(directory: &Path) -> io::Result<()> {
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
