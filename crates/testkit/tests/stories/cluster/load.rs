//! Requests of sessions that have their instances, one after another, while something else happens.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::world::{LIMIT, World};

const LOOK: Duration = Duration::from_millis(50);
/// Between the requests of a session: the sample agent ends a conversation after some hundred.
const PAUSE: Duration = Duration::from_secs(2);

/// What came of them.
#[derive(Default)]
pub(crate) struct Load {
    over: AtomicBool,
    answered: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

impl Load {
    /// Has sessions of a Task talk for as long as something lasts. None may notice anything.
    pub(crate) async fn during<T>(
        world: &World,
        task: &str,
        sessions: usize,
        meanwhile: impl AsyncFnOnce(&Load) -> Result<T>,
    ) -> Result<T> {
        let load = Load::default();
        let mut homes = Vec::new();
        for session in 0..sessions {
            homes.push(world.say(task, &format!("user-{session}"), "hello").await?.instance()?);
        }
        let talking = homes.iter().enumerate().map(|(session, home)| load.talk(world, task, session, home));
        let happening = async {
            let outcome = meanwhile(&load).await;
            load.over.store(true, Ordering::Relaxed);
            outcome
        };
        let (_, outcome) = tokio::join!(futures_util::future::join_all(talking), happening);
        load.check()?;
        let outcome = outcome?;
        println!("{} requests of bound sessions were answered meanwhile", load.answered());
        Ok(outcome)
    }

    fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Whether all went well so far.
    fn check(&self) -> Result<()> {
        let failed = self.failed.lock().expect("nobody panics with it");
        let (count, answered) = (failed.len(), self.answered());
        ensure!(failed.is_empty(), "{count} of {} requests failed: {:?}", answered + count, failed.first());
        Ok(())
    }

    /// Waits until so many more were answered.
    pub(crate) async fn goes_on(&self, more: usize) -> Result<()> {
        let wanted = self.answered() + more;
        let going = async {
            while self.answered() < wanted {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(LIMIT, going).await?;
        Ok(())
    }

    /// Goes on after a failure, so that all are counted.
    async fn talk(&self, world: &World, task: &str, session: usize, home: &str) {
        let session = format!("user-{session}");
        while !self.over.load(Ordering::Relaxed) {
            let answer = world.say(task, &session, "again").await;
            match answer.and_then(|answer| answer.instance()) {
                Ok(instance) if instance == home => drop(self.answered.fetch_add(1, Ordering::Relaxed)),
                other => {
                    let told = format!("{session}, which has {home}: {other:?}");
                    self.failed.lock().expect("nobody panics with it").push(told);
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
