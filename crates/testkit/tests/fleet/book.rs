//! What was acknowledged, and what may have become of it. A sandbox may be gone only for a reason that the test itself
//! has brought about.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::agents::Agents;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Fast,
    Strong,
}

/// A create that was answered.
#[derive(Clone, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) agent: String,
    pub(crate) run: String,
    /// Deaths of keepers of its agent before, and of controllers.
    keepers: usize,
    controllers: usize,
}

#[derive(Default)]
pub(crate) struct Book {
    pub(crate) controllers: AtomicUsize,
    living: Mutex<BTreeMap<String, Acknowledged>>,
    created: AtomicUsize,
    deleted: AtomicUsize,
    /// FAST creates that were lost with a controller and an agent, as decision 21 says that they may be.
    pub(crate) excused: AtomicUsize,
    wrong: Mutex<Vec<String>>,
}

impl Book {
    /// Called before a create is sent: what dies from then on may take it along.
    pub(crate) fn before(&self, agents: &Agents) -> (BTreeMap<String, usize>, usize) {
        let keepers =
            agents.all().iter().map(|it| (it.name.clone(), it.keepers.load(Ordering::SeqCst))).collect();
        (keepers, self.controllers.load(Ordering::SeqCst))
    }

    pub(crate) fn acknowledge(
        &self,
        name: &str,
        mode: Mode,
        agent: &str,
        run: &str,
        before: &(BTreeMap<String, usize>, usize),
    ) -> Acknowledged {
        let acknowledged = Acknowledged {
            name: name.to_owned(),
            mode,
            agent: agent.to_owned(),
            run: run.to_owned(),
            keepers: before.0.get(agent).copied().unwrap_or_default(),
            controllers: before.1,
        };
        self.created.fetch_add(1, Ordering::SeqCst);
        if let Some(other) = self.living.lock().insert(name.to_owned(), acknowledged.clone()) {
            self.wrong(format!("{name} was given twice: {other:?}"));
        }
        acknowledged
    }

    /// Whether its agent died since.
    pub(crate) fn agent_died(&self, one: &Acknowledged, agents: &Agents) -> bool {
        agents.of(&one.agent).is_none_or(|agent| agent.keepers.load(Ordering::SeqCst) > one.keepers)
    }

    fn controller_died(&self, one: &Acknowledged) -> bool {
        self.controllers.load(Ordering::SeqCst) > one.controllers
    }

    /// Nobody knows it any more, and nobody has deleted it.
    pub(crate) fn is_gone(&self, one: &Acknowledged, agents: &Agents, logged: bool) {
        let excused =
            one.mode == Mode::Fast && !logged && self.agent_died(one, agents) && self.controller_died(one);
        self.living.lock().remove(&one.name);
        match excused {
            true => drop(self.excused.fetch_add(1, Ordering::SeqCst)),
            false => self.wrong(format!("lost: {one:?}")),
        }
    }

    pub(crate) fn delete(&self, name: &str) {
        self.living.lock().remove(name);
        self.deleted.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn living(&self) -> Vec<Acknowledged> {
        self.living.lock().values().cloned().collect()
    }

    pub(crate) fn created(&self) -> usize {
        self.created.load(Ordering::SeqCst)
    }

    pub(crate) fn wrong(&self, what: String) {
        self.wrong.lock().push(what);
    }

    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let wrong = self.wrong.lock();
        let mut kinds: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for one in wrong.iter() {
            let kind =
                one.split(':').next().unwrap_or_default().trim_end_matches(|c: char| c.is_ascii_digit());
            kinds.entry(kind.to_owned()).or_default().push(one);
        }
        let told = kinds.iter().map(|(kind, all)| {
            format!("{} x {kind}:\n  {}", all.len(), all[..all.len().min(4)].join("\n  "))
        });
        anyhow::ensure!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), told.collect::<Vec<_>>().join("\n"));
        Ok(())
    }

    pub(crate) fn told(&self) -> String {
        let number = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        let (created, deleted, excused) =
            (number(&self.created), number(&self.deleted), number(&self.excused));
        format!("{created} created, {deleted} deleted, {excused} lost with controller and agent")
    }
}

pub(crate) type Shared = Arc<Book>;
