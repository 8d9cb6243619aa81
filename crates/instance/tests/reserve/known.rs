//! What operators see of a router: the sessions that it knows, and its counts by Task.

use agentcube_instance::provider::{InstanceProvider, Path, Request, Which};
use agentcube_instance::reserve::known::{Place, Query, State};
use futures_util::future::join_all;
use kube::api::DeleteParams;
use serde_json::json;

use crate::world::{World, key, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_shown_in_pages_each_once() {
    let world = World::new().await;
    let (task, other) = (world.task("agent", json!({})).await, world.task("other", json!({})).await);
    let router = world.router("a").await;
    let keys: Vec<String> = (0..7).map(|n| format!("user-{n}")).collect();
    let mut reserved: Vec<_> = join_all(keys.iter().map(|key| router.reserve(&task, key)))
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    router.reserve(&other, "user-0").await.unwrap();
    let again = router.reserve(&task, "user-0").await.unwrap();
    reserved.truncate(1);

    let of_task = Query { task: Some("agent".into()), limit: 3, ..Query::default() };
    let (mut seen, mut query, mut pages) = (Vec::new(), of_task.clone(), 0);
    loop {
        let page = router.reserver.known(&query);
        assert!(page.sessions.len() <= 3);
        seen.extend(page.sessions);
        pages += 1;
        let Some(next) = page.next else { break };
        // As it travels.
        query.after = Some(Place::parse(&next.to_string()).unwrap());
    }
    assert_eq!(pages, 3);
    let mut shown: Vec<&str> = seen.iter().map(|known| known.key.as_str()).collect();
    shown.sort_unstable();
    assert_eq!(shown, keys);
    for known in &seen {
        let used = known.key.as_str() == "user-0";
        assert_eq!((known.in_flight, known.state), (if used { 2 } else { 0 }, State::Bound), "{known:?}");
        let path = if used { Path::Reused } else { Path::Waited };
        assert!(known.path == Some(path) && known.instance.is_some() && known.task == task, "{known:?}");
    }
    let all = Query { limit: 100, ..Query::default() };
    assert_eq!(router.reserver.known(&all).sessions.len(), 8);
    let elsewhere = Query { namespace: Some("elsewhere".into()), ..all };
    assert!(router.reserver.known(&elsewhere).sessions.is_empty());
    drop((reserved, again));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservations_are_counted_by_task_and_forgotten_with_it() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let (_, _) = (world.instance(&task, 0).await, world.instance(&task, 1).await);
    let router = world.router("a").await;
    router.knows(&task, 2).await;
    for key in ["user-1", "user-2", "user-1"] {
        router.reserve(&task, key).await.unwrap();
    }
    let which = Which::Existing { lease: None };
    let unknown = Request { task: task.clone(), key: Some(key("user-3")), tenant: None, which };
    router.reserver.reserve_instance(unknown).await.unwrap_err();
    let of_task = format!("namespace=\"{}\",task=\"agent\"", task.namespace);
    let text = router.metrics.encode();
    for (name, count) in [
        (format!("agentcube_reserve_seconds_count{{{of_task},path=\"bound\"}}"), 2),
        (format!("agentcube_reserve_seconds_count{{{of_task},path=\"reused\"}}"), 1),
        (format!("agentcube_reserve_seconds_count{{{of_task},path=\"refused\"}}"), 1),
        (format!("agentcube_reserve_waiting{{{of_task}}}"), 0),
    ] {
        assert!(text.contains(&format!("{name} {count}\n")), "no {name} {count} in\n{text}");
    }
    assert!(text.contains(&format!("agentcube_sessions{{{of_task}}} ")), "{text}");
    world.tasks().delete("agent", &DeleteParams::default()).await.unwrap();
    until("its series are gone", async || (!router.metrics.encode().contains(&of_task)).then_some(())).await;
}
