//! What must hold at every moment, held against every event: how many Pods of a group are down, who led when it was taken away, and
//! whether the list of tasks tells the truth.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agentcube_testkit::HttpClient;
use agentcube_testkit::watch::{Objects, Watch};
use anyhow::{Result, ensure};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::world::{APPS, LIMIT, LOOK, PODS};

const LONG: Duration = Duration::from_secs(3600);

#[derive(Default)]
struct State {
    /// What was seen that must not be.
    wrong: Vec<String>,
    /// How many Pods may be down, where that matters; and how many there are to be.
    limit: Option<(usize, usize)>,
    most_down: usize,
    /// Pods that were taken away, in order, and whether each was the primary then.
    taken: Vec<(String, bool)>,
    /// Of Pods by name: uid, and whether it was going.
    pods: BTreeMap<String, (String, bool)>,
    /// Of tasks by id: status.
    tasks: BTreeMap<String, String>,
    transitions: usize,
}

/// The books of one App and its group; kept until dropped.
pub(crate) struct Books {
    state: Arc<Mutex<State>>,
    watching: Vec<JoinHandle<()>>,
}

impl Drop for Books {
    fn drop(&mut self) {
        for task in &self.watching {
            task.abort();
        }
    }
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    pod["metadata"]["deletionTimestamp"].is_null()
        && conditions.into_iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

impl Books {
    pub(crate) async fn open(http: &HttpClient, app: &str, group: &str) -> Result<Books> {
        let state: Arc<Mutex<State>> = Arc::default();
        let of_group = format!("{PODS}?labelSelector=middleware.io%2Fgroup%3D{group}");
        let app = app.to_owned();
        let pods = follow(Watch::start(http, &of_group).await?, state.clone(), State::see_pods);
        let tasks = follow(Watch::start(http, APPS).await?, state.clone(), move |state, objects| {
            state.see_tasks(objects.get(&app));
        });
        Ok(Books { state, watching: vec![pods, tasks] })
    }

    /// From now on not more than so many of so many Pods may be down.
    pub(crate) fn limit(&self, down: usize, of: usize) {
        let mut state = self.state.lock();
        state.limit = Some((down, of));
        state.most_down = 0;
        state.taken.clear();
    }

    /// Whatever was seen was as it must be; who was taken away since the limit was set, in order.
    pub(crate) fn close(&self) -> Result<Vec<String>> {
        let mut state = self.state.lock();
        state.limit = None;
        let wrong = std::mem::take(&mut state.wrong);
        ensure!(wrong.is_empty(), "{}", wrong.join("; "));
        Ok(state.taken.drain(..).map(|(name, _)| name).collect())
    }

    /// Waits until so many Pods were seen to be taken away: watches come later than what was carried out.
    pub(crate) async fn taken(&self, wanted: usize) -> Result<()> {
        let seen = async {
            while self.state.lock().taken.len() < wanted {
                tokio::time::sleep(LOOK).await;
            }
        };
        let seen = tokio::time::timeout(LIMIT, seen).await;
        ensure!(seen.is_ok(), "not {wanted} Pods were taken away: {:?}", self.state.lock().taken);
        Ok(())
    }

    /// How many changes of tasks were seen.
    pub(crate) fn transitions(&self) -> usize {
        self.state.lock().transitions
    }
}

fn follow(
    mut watch: Watch,
    state: Arc<Mutex<State>>,
    see: impl Fn(&mut State, &Objects) + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            see(&mut state.lock(), &watch.objects);
            match watch.next(Instant::now() + LONG).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return state.lock().wrong.push(format!("{error:#}")),
            }
        }
    })
}

impl State {
    fn see_pods(&mut self, objects: &Objects) {
        for (name, pod) in objects {
            let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            let going = !pod["metadata"]["deletionTimestamp"].is_null();
            let before = self.pods.insert(name.clone(), (uid.clone(), going));
            let was_going = before.is_some_and(|(old, going)| old == uid && going);
            if going && !was_going {
                self.take(name, pod["metadata"]["labels"]["middleware.io/role"] == "primary");
            }
        }
        self.pods.retain(|name, _| objects.contains_key(name));
        let Some((limit, of)) = self.limit else { return };
        let down = of.saturating_sub(objects.values().filter(|pod| is_ready(pod)).count());
        self.most_down = self.most_down.max(down);
        if down > limit {
            let shown: Vec<String> =
                objects.iter().map(|(name, pod)| format!("{name} {}", is_ready(pod))).collect();
            self.wrong.push(format!("{down} of {of} Pods are down: {}", shown.join(", ")));
        }
    }

    fn take(&mut self, name: &str, primary: bool) {
        if primary && self.limit.is_some() {
            self.wrong.push(format!("{name} was taken away while it was the primary"));
        }
        self.taken.push((name.to_owned(), primary));
    }

    fn see_tasks(&mut self, app: Option<&Value>) {
        let tasks = app.and_then(|app| app["status"]["tasks"].as_array()).into_iter().flatten();
        let mut running = BTreeMap::new();
        for task in tasks {
            let text = |name: &str| task[name].as_str().unwrap_or_default().to_owned();
            let (id, status) = (text("taskId"), text("status"));
            if status == "in_progress"
                && let Some(other) = running.insert(text("targetComponent"), id.clone())
            {
                self.wrong.push(format!("{other} and {id} change one component at once"));
            }
            let before = self.tasks.insert(id.clone(), status.clone());
            if before.as_deref() == Some(status.as_str()) {
                continue;
            }
            self.transitions += 1;
            if !is_legal(before.as_deref(), &status) {
                self.wrong.push(format!("task {id} went from {before:?} to {status}"));
            }
            let ended = !task["completedAt"].is_null();
            if ["done", "failed", "cancelled", "skipped"].contains(&status.as_str()) != ended {
                self.wrong.push(format!("task {id} is {status}, and completedAt is {}", task["completedAt"]));
            }
        }
    }
}

/// The states of a task, as docs/decisions/0029 draws them.
fn is_legal(before: Option<&str>, after: &str) -> bool {
    let next: &[&str] = match before {
        None => &["pending", "in_progress"],
        Some("pending") => &["in_progress", "skipped", "cancelled"],
        Some("in_progress") => &["done", "failed", "cancelled", "retry_pending"],
        Some("retry_pending") => &["in_progress", "cancelled", "failed"],
        // Somebody asked for it again.
        Some("failed" | "cancelled" | "skipped") => &["pending", "in_progress"],
        Some(_) => &[],
    };
    next.contains(&after)
}
