//! What a restarted worker finds. The spawner has held namespaces, tags and logs; containerd says what runs in them.

use agentcube_runtime::spawner::{Adopted, Snapshot, State};
use agentcube_runtime::{ContainerId, Error, Exit};

use crate::container::Containerd;
use crate::exit::KILLED;
use crate::generated::containerd::v1::types::{Process, Status};

impl Containerd {
    /// Completes what the spawner has told when it was adopted: containers that only wait there, for containerd runs
    /// their programs, are told as what they are. One whose start was not finished is `Starting`, and is to be removed:
    /// nobody goes on with it.
    pub async fn adopt(&self, snapshot: &mut Snapshot) -> Result<(), Error> {
        let held = |one: &&mut Adopted| matches!(one.state, State::Preparing | State::Prepared);
        for one in snapshot.containers.iter_mut().filter(held) {
            let task = self.task(&one.id).await?;
            self.take_over(one, task);
        }
        Ok(())
    }

    fn take_over(&self, held: &mut Adopted, task: Option<Process>) {
        held.state = State::Starting;
        let Some(task) = task else { return };
        match task.status() {
            Status::Running | Status::Paused | Status::Pausing => {
                // The spawner knows whether it stands still.
                if held.frozen {
                    self.frozen.lock().insert(held.id.clone());
                }
                held.state = State::Running { pid: task.pid };
                held.exit = Some(self.client.first_exit(&held.id));
            }
            Status::Stopped => {
                let code = i32::try_from(task.exit_status).unwrap_or(KILLED.code);
                held.state = State::Ended(Exit { code, signal: None, out_of_memory: false });
            }
            Status::Unknown | Status::Created => {}
        }
    }

    /// Removes all that has this label with this value and that the spawner does not hold: a dead predecessor's, whose
    /// processes the kernel has killed. Says how many there were.
    pub async fn sweep(&self, label: &str, value: &str, held: &[ContainerId]) -> Result<usize, Error> {
        let found = self.inventory.labelled(label, Some(value)).await?;
        let left = found.into_iter().filter(|found| !held.iter().any(|id| id.as_str() == found.id));
        let mut removed = 0;
        for one in left {
            self.inventory.remove(&one.id).await?;
            removed += 1;
        }
        Ok(removed)
    }
}
