//! Containers that stand still. The spawner does it, as for its own: what containerd would freeze could, on some
//! machines, not even be killed with the agent.

use std::path::{Path, PathBuf};

use agentcube_runtime::{ContainerId, Error};

use crate::client::ask;
use crate::container::{Containerd, unknown};
use crate::generated::containerd::services::tasks::v1::KillRequest;
use crate::generated::containerd::v1::types::Status;

impl Containerd {
    pub(crate) async fn set_frozen(&self, id: &ContainerId, frozen: bool) -> Result<(), Error> {
        let task = self.task(id).await?.filter(|task| task.status() != Status::Stopped);
        let program = group_of(task.ok_or_else(|| unknown(id))?.pid)?;
        self.spawner.freeze_held(id, &program, frozen).await?;
        match frozen {
            true => self.frozen.lock().insert(id.clone()),
            false => self.frozen.lock().remove(id),
        };
        Ok(())
    }

    /// Tells the spawner where the program is, so that it can be frozen also while nobody talks to containerd.
    pub(crate) async fn show_program(&self, id: &ContainerId, pid: u32) {
        let shown = async { self.spawner.freeze_held(id, &group_of(pid)?, false).await };
        // One that has ended already has no group; whoever wants it frozen is told why that cannot be.
        if let Err(error) = shown.await {
            tracing::debug!(container = %id, "its cgroup is not known: {error}");
        }
    }

    /// Kills what stands still, then lets it go on to its end: on some machines it would not end otherwise.
    pub(crate) async fn thaw_killed(&self, id: &ContainerId) {
        if !self.frozen.lock().contains(id) {
            return;
        }
        let request =
            KillRequest { container_id: id.to_string(), exec_id: String::new(), signal: 9, all: true };
        let _ended = ask(self.client.tasks().kill(self.client.request(request))).await;
        if let Err(error) = self.set_frozen(id, false).await {
            tracing::debug!(container = %id, "it was not thawed: {error}");
        }
    }
}

/// The directory of the cgroup that a process is in, with all of its container.
fn group_of(pid: u32) -> Result<PathBuf, Error> {
    let refused = |reason: String| Error::Step { step: "freezing the container", reason };
    let text =
        std::fs::read_to_string(format!("/proc/{pid}/cgroup")).map_err(|error| refused(error.to_string()))?;
    let group = directory(&text).ok_or_else(|| refused(format!("its cgroup is not known: {text:?}")))?;
    let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    match members.lines().any(|member| member == pid.to_string()) {
        true => Ok(group),
        false => Err(Error::Unsupported(format!(
            "the cgroup of a container is not visible at {}: mount the machine's /sys/fs/cgroup",
            group.display()
        ))),
    }
}

/// Of the groups that a process is in, one that its runtime has made for it: where it freezes, it is not.
fn directory(text: &str) -> Option<PathBuf> {
    let top = Path::new("/sys/fs/cgroup");
    let groups: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.split_once(':')?.1.split_once(':'))
        .map(|(controllers, path)| (controllers, path.trim_start_matches('/')))
        .collect();
    let of = |wanted: &str| groups.iter().find(|(names, _)| names.split(',').any(|name| name == wanted));
    let old = of("pids").or_else(|| of("memory")).map(|(names, path)| top.join(names).join(path));
    old.or_else(|| groups.iter().find(|(names, _)| names.is_empty()).map(|(_, path)| top.join(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_group_of_a_program() {
        let table = [
            ("0::/agentcube/a\n", Some("/sys/fs/cgroup/agentcube/a")),
            ("8:pids:/agentcube/a\n4:memory:/x\n0::/node/a\n", Some("/sys/fs/cgroup/pids/agentcube/a")),
            ("4:cpu,memory:/agentcube/a\n0::/\n", Some("/sys/fs/cgroup/cpu,memory/agentcube/a")),
            ("1:name=systemd:/\n", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(directory(text).as_deref(), expected.map(Path::new), "{text}");
        }
    }
}
