//! Controllers that die after each of their effects: the next ones find everything, nothing is done twice, and Pods never
//! notice.

use agentcube_api::App;
use agentcube_api::middleware::change::ChangeStatus;
use serde_json::json;

use crate::stage::Stage;
use crate::stage::fuse::Fuse;

/// What an App is made to do while its controllers die.
#[derive(Clone, Copy)]
enum Change {
    /// An upgrade with a configuration and a larger volume.
    Upgrade,
    /// A configuration that takes a restart of each Pod.
    StiffConfiguration,
}

impl Change {
    async fn begin(self, stage: &Stage) {
        match self {
            Change::Upgrade => {
                let changes = json!({ "runtime": { "name": "redis", "version": "7.2" }, "config": { "maxmemory": "2gb" } });
                stage.edit(json!({ "storage": { "size": "2Gi" } }), changes).await;
            }
            Change::StiffConfiguration => {
                stage.world.stiffen();
                stage.edit(json!({}), json!({ "config": { "port": 1 } })).await;
            }
        }
    }

    fn tasks(self) -> &'static [&'static str] {
        match self {
            Change::Upgrade => &["1-nodes-provision", "2-nodes-config", "2-nodes-storage", "2-nodes-upgrade"],
            Change::StiffConfiguration => &["1-nodes-provision", "2-nodes-config"],
        }
    }
}

/// A change, until somebody dies. Whether nobody did.
async fn dies_after(effects: u64, change: Change) -> bool {
    let stage = Stage::with_app().await;
    let first = stage.start();
    stage.until_done().await;
    first.stop().await;
    change.begin(&stage).await;

    let fuse = Fuse::after(effects);
    let doomed = stage.start_with(&fuse);
    let survived = tokio::select! {
        biased;
        () = fuse.blown.cancelled() => false,
        _ = stage.until_done() => true,
    };
    doomed.crash().await;
    let running = stage.start();
    let app = stage.until_done().await;
    check(&app, change);
    stage.world.check();
    assert_eq!(stage.world.restarted().len(), 3, "dead after {effects}: {:?}", stage.world.restarted());
    stage.delete_app().await;
    stage.until_gone().await;
    running.stop().await;
    survived
}

fn check(app: &App, change: Change) {
    let status = app.status.clone().unwrap();
    let ids: Vec<&str> = status.tasks.iter().map(|task| task.task_id.as_str()).collect();
    assert_eq!(ids, change.tasks());
    assert!(
        status.tasks.iter().all(|task| task.status == ChangeStatus::Done && task.retry_count == 0),
        "{status:#?}"
    );
}

/// Dies after the first effect, after the second, and so on, until there are no more; how many there were at least.
async fn die_after_any(change: Change) -> u64 {
    const AT_ONCE: u64 = 4;
    let mut next = 1;
    loop {
        let some = (next..next + AT_ONCE).map(|effects| Box::pin(dies_after(effects, change)));
        if futures_util::future::join_all(some).await.contains(&true) {
            return next;
        }
        next += AT_ONCE;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_dies_after_any_effect_is_replaced() {
    assert!(die_after_any(Change::Upgrade).await > 20, "there is more to do than this");
}

/// Also between the stop of a middleware and the end of its Pod: what is stopped is down, though its probe does not know yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_dies_after_any_effect_of_a_configuration_is_replaced() {
    assert!(die_after_any(Change::StiffConfiguration).await > 12, "there is more to do than this");
}
