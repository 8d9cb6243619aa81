//! The ends of processes. containerd may be restarted meanwhile: what it runs goes on, and is asked for again.

use std::time::Duration;

use agentcube_runtime::{ContainerId, Exit, signals};
use tokio::sync::oneshot;
use tonic::Code;

use crate::client::{Client, ask};
use crate::generated::containerd::services::tasks::v1::{DeleteProcessRequest, WaitRequest};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Of a container that is not there any more.
pub(crate) const KILLED: Exit =
    Exit { code: 128 + signals::KILL, signal: Some(signals::KILL), out_of_memory: false };

impl Client {
    /// The end of a container's first process.
    pub(crate) fn first_exit(&self, id: &ContainerId) -> oneshot::Receiver<Exit> {
        let (tell, exit) = oneshot::channel();
        let (this, id) = (self.clone(), id.clone());
        tokio::spawn(async move {
            let mut ended = this.ended(&id, "").await;
            if ended.code == KILLED.code {
                let killed = this.measure(&id).await.is_ok_and(|measured| measured.out_of_memory_kills > 0);
                ended.out_of_memory = killed;
            }
            let _gone = tell.send(ended);
        });
        exit
    }

    /// The end of a command, which is forgotten then.
    pub(crate) fn command_exit(&self, id: &ContainerId, command: &str) -> oneshot::Receiver<Exit> {
        let (tell, exit) = oneshot::channel();
        let (this, id, command) = (self.clone(), id.clone(), command.to_owned());
        tokio::spawn(async move {
            let _gone = tell.send(this.ended(&id, &command).await);
            this.forget(&id, &command).await;
        });
        exit
    }

    pub(crate) async fn forget(&self, id: &ContainerId, command: &str) {
        let request = DeleteProcessRequest { container_id: id.to_string(), exec_id: command.to_owned() };
        if let Err(status) = ask(self.tasks().delete_process(self.request(request))).await
            && status.code() != Code::NotFound
        {
            tracing::debug!(container = %id, command, "containerd did not forget a command: {}", status.message());
        }
    }

    async fn ended(&self, id: &ContainerId, command: &str) -> Exit {
        let mut pause = FIRST_PAUSE;
        loop {
            let request = WaitRequest { container_id: id.to_string(), exec_id: command.to_owned() };
            match self.tasks().wait(self.request(request)).await {
                Ok(answer) => return exit(answer.into_inner().exit_status),
                Err(status) if status.code() == Code::NotFound => return KILLED,
                Err(status) => {
                    tracing::debug!(container = %id, "waiting for its end once more: {}", status.message());
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// A shim tells a signal as shells do; 255 is also what it says when it does not know.
fn exit(status: u32) -> Exit {
    let code = i32::try_from(status).unwrap_or(255);
    let signal = Some(code - 128).filter(|signal| (1..=64).contains(signal));
    Exit { code, signal, out_of_memory: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_signals_from_codes() {
        for (status, signal) in
            [(0, None), (7, None), (128, None), (137, Some(9)), (143, Some(15)), (255, None)]
        {
            let exit = exit(status);
            assert_eq!((exit.code, exit.signal), (status as i32, signal));
        }
        assert_eq!(exit(137), KILLED);
    }
}
