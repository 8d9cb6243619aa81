//! The parent of the middleware's process: starts it, stops it in order, and tells how it is. It does not start again what has
//! ended by itself: that is for who started the agent, which ends then too.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, watch};

use crate::command::code;

/// How the process is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub pid: Option<u32>,
    pub started_unix_ms: i64,
    /// Times that it was started after the first.
    pub restarts: u32,
    /// The code with which it has ended by itself.
    pub ended: Option<i32>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{program} cannot be run: {source}")]
    Start { program: String, source: std::io::Error },
    #[error("it does not run")]
    NotRunning,
    #[error("there is no signal {0}")]
    NoSignal(i32),
    #[error("the signal cannot be sent: {0}")]
    Signal(#[from] rustix::io::Errno),
}

/// A handle on the process; cheap to clone.
#[derive(Clone, Debug)]
pub struct Manager {
    words: Arc<Vec<String>>,
    state: watch::Sender<State>,
    /// Held by whoever starts or stops, so that one thing happens after another.
    turn: Arc<Mutex<bool>>,
}

impl Manager {
    /// For this program with its arguments; at least the program.
    pub fn new(words: Vec<String>) -> Manager {
        Manager { words: Arc::new(words), state: watch::Sender::default(), turn: Arc::default() }
    }

    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Starts it, unless it runs.
    pub async fn start(&self) -> Result<u32, Error> {
        let mut begun = self.turn.lock().await;
        if let Some(pid) = self.state.borrow().pid {
            return Ok(pid);
        }
        let program = self.words.first().cloned().unwrap_or_default();
        let child = Command::new(&program).args(self.words.iter().skip(1)).kill_on_drop(true).spawn();
        let child = child.map_err(|source| Error::Start { program, source })?;
        let pid = child.id().unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.state.send_modify(|state| {
            state.pid = Some(pid);
            state.ended = None;
            state.started_unix_ms = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
            state.restarts += u32::from(*begun);
        });
        *begun = true;
        tokio::spawn(watch_over(child, self.state.clone()));
        Ok(pid)
    }

    /// Stops it: politely, and after the grace for certain. Whether it ran.
    pub async fn stop(&self, grace: Duration) -> Result<bool, Error> {
        let _turn = self.turn.lock().await;
        let Some(pid) = self.state.borrow().pid else { return Ok(false) };
        send(pid, Signal::TERM)?;
        if tokio::time::timeout(grace, self.gone()).await.is_err() {
            send(pid, Signal::KILL)?;
            self.gone().await;
        }
        // It was wanted so.
        self.state.send_modify(|state| state.ended = None);
        Ok(true)
    }

    pub async fn restart(&self, grace: Duration) -> Result<u32, Error> {
        self.stop(grace).await?;
        self.start().await
    }

    pub fn signal(&self, number: i32) -> Result<(), Error> {
        let signal = Signal::from_named_raw(number).ok_or(Error::NoSignal(number))?;
        send(self.state.borrow().pid.ok_or(Error::NotRunning)?, signal)
    }

    async fn gone(&self) {
        let mut state = self.state.subscribe();
        let _ = state.wait_for(|state| state.pid.is_none()).await;
    }

    /// Waits until it has ended by itself; its code.
    pub async fn ended(&self) -> i32 {
        let mut state = self.state.subscribe();
        loop {
            let waited = state.wait_for(|state| state.pid.is_none() && state.ended.is_some()).await;
            // The sender lives as long as this handle.
            let code = waited.ok().and_then(|state| state.ended);
            // Whoever stops it says within its turn that this was wanted.
            let turn = self.turn.lock().await;
            let still = self.state.borrow().ended;
            drop(turn);
            if let (Some(code), true) = (code, still == code) {
                return code;
            }
        }
    }
}

async fn watch_over(mut child: Child, state: watch::Sender<State>) {
    let ended = child.wait().await.map_or(-1, code);
    state.send_modify(|state| {
        state.pid = None;
        state.ended = Some(ended);
    });
}

fn send(pid: u32, signal: Signal) -> Result<(), Error> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Error::NotRunning)?;
    match kill_process(pid, signal) {
        // It went by itself.
        Err(rustix::io::Errno::SRCH) => Ok(()),
        other => other.map_err(Error::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(script: &str) -> Manager {
        Manager::new(vec!["sh".into(), "-c".into(), script.into()])
    }

    const GRACE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn it_is_started_once_stopped_and_started_again() {
        let manager = manager("exec sleep 1000");
        let first = manager.start().await.unwrap();
        assert_eq!(manager.start().await.unwrap(), first);
        assert!(manager.stop(GRACE).await.unwrap());
        assert!(!manager.stop(GRACE).await.unwrap());
        assert_eq!(manager.state().ended, None, "it was wanted so");
        let second = manager.restart(GRACE).await.unwrap();
        assert_ne!(first, second);
        assert_eq!(manager.state().restarts, 1);
        manager.signal(libc_term()).unwrap();
        assert_eq!(manager.ended().await, 143);
        assert!(matches!(manager.signal(libc_term()), Err(Error::NotRunning)));
        assert!(matches!(manager.signal(4000), Err(Error::NoSignal(4000))));
    }

    fn libc_term() -> i32 {
        Signal::TERM.as_raw()
    }

    #[tokio::test]
    async fn whoever_does_not_listen_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let deaf = directory.path().join("deaf");
        let manager =
            manager(&format!("trap '' TERM; touch {}; while :; do sleep 0.1; done", deaf.display()));
        manager.start().await.unwrap();
        while !deaf.exists() {
            tokio::task::yield_now().await;
        }
        assert!(manager.stop(Duration::from_millis(200)).await.unwrap());
        assert_eq!(manager.state().pid, None);
    }

    #[tokio::test]
    async fn what_ends_by_itself_is_told() {
        let manager = manager("exit 7");
        manager.start().await.unwrap();
        assert_eq!(manager.ended().await, 7);
        assert_eq!(manager.state().ended, Some(7));
    }
}
