//! The cache, the shell of a controller and the recorder of Events over the embedded API server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use agentcube_apiserver::Server;
use agentcube_apiserver::faults::Plan;
use agentcube_apiserver::store::Retention;
use agentcube_operator::cache::{Cache, Receiver};
use agentcube_operator::controller::{Controller, Requeue};
use agentcube_operator::events::Recorder;
use agentcube_operator::metrics::Registry;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Event};
use kube::api::{Api, DeleteParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

async fn server() -> (Server, Client) {
    let server = Server::builder().memory().embed().await.expect("a server in memory starts");
    let client = Client::new(server.front(), "default");
    (server, client)
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    let object = json!({ "metadata": { "name": name }, "data": { "key": value } });
    serde_json::from_value(object).expect("this is a ConfigMap")
}

/// Receives until a change of the object with this name is the one wanted.
async fn until(changes: &mut Receiver<ConfigMap>, name: &str, wanted: impl Fn(Option<&ConfigMap>) -> bool) {
    loop {
        let change = changes.recv().await;
        if change.latest().name_any() == name && wanted(change.new.as_deref()) {
            return;
        }
    }
}

#[tokio::test]
async fn the_cache_follows_others_and_shows_its_own_writes_at_once() {
    let (_server, client) = server().await;
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    api.create(&PostParams::default(), &config_map("before", "1")).await.unwrap();

    let shutdown = CancellationToken::new();
    let cache: Cache<ConfigMap> = Cache::new(client, watcher::Config::default());
    let mut changes = cache.subscribe();
    let running = tokio::spawn(cache.clone().run(shutdown.clone()));
    cache.synced().await;
    assert!(cache.get("default", "before").is_some());

    let created = api.create(&PostParams::default(), &config_map("own", "1")).await.unwrap();
    cache.put(created.clone());
    assert!(cache.get("default", "own").is_some());
    let rest = api.delete("own", &DeleteParams::default()).await.unwrap().left();
    cache.deleted(&created, rest);
    assert!(cache.get("default", "own").is_none());

    api.create(&PostParams::default(), &config_map("other", "1")).await.unwrap();
    until(&mut changes, "other", |new| new.is_some()).await;
    // The watch has passed the creation and the deletion by now, and brought nothing back.
    assert!(cache.get("default", "own").is_none());
    api.delete("other", &DeleteParams::default()).await.unwrap();
    until(&mut changes, "other", |new| new.is_none()).await;
    assert_eq!(cache.list(Some("default")).len(), 1);
    shutdown.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn the_record_of_who_wrote_what_is_held_only_where_it_is_asked_for() {
    let (_server, client) = server().await;
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    api.create(&PostParams::default(), &config_map("listed", "1")).await.unwrap();
    let plain: Cache<ConfigMap> = Cache::new(client.clone(), watcher::Config::default());
    let whole: Cache<ConfigMap> = Cache::with_managed_fields(client, watcher::Config::default());
    let shutdown = CancellationToken::new();
    let mut changes = [plain.subscribe(), whole.subscribe()];
    for cache in [&plain, &whole] {
        tokio::spawn(cache.clone().run(shutdown.clone()));
        cache.synced().await;
    }
    let put = api.create(&PostParams::default(), &config_map("put", "1")).await.unwrap();
    [&plain, &whole].into_iter().for_each(|cache| cache.put(put.clone()));
    api.create(&PostParams::default(), &config_map("watched", "1")).await.unwrap();
    for changes in &mut changes {
        until(changes, "watched", |new| new.is_some()).await;
    }
    for name in ["listed", "put", "watched"] {
        let held = |cache: &Cache<ConfigMap>| cache.get("default", name).expect("it is there");
        assert_eq!(held(&plain).metadata.managed_fields, None, "{name}");
        assert!(!held(&whole).managed_fields().is_empty(), "{name}");
    }
    shutdown.cancel();
}

#[tokio::test]
async fn the_cache_survives_cut_watches_and_a_forgotten_past() {
    let retention = Retention { events: 2, bytes: 1 << 20 };
    let server = Server::builder().memory().retention(retention).embed().await.expect("a server starts");
    let client = Client::new(server.front(), "default");
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let shutdown = CancellationToken::new();
    let cache: Cache<ConfigMap> = Cache::new(client, watcher::Config::default());
    tokio::spawn(cache.clone().run(shutdown.clone()));
    cache.synced().await;
    let faults = server.api().faults();
    let lag = std::time::Duration::from_millis(3);
    let plan = Plan { seed: 7, drop_watch: 0.5, lag_watch: 0.3, lag_for: lag, ..Plan::default() };
    faults.set(plan);
    for round in 0..60 {
        let name = format!("map-{}", round % 7);
        let held = api.get_opt(&name).await.unwrap();
        match held {
            None => cache.put(api.create(&PostParams::default(), &config_map(&name, "1")).await.unwrap()),
            // Some deletions and creations are not written through: others do that.
            Some(held) if round % 3 == 0 => {
                let rest = api.delete(&name, &DeleteParams::default()).await.unwrap().left();
                cache.deleted(&held, rest);
            }
            Some(_) => drop(api.delete(&name, &DeleteParams::default()).await.unwrap()),
        }
    }
    faults.clear();
    let mut changes = cache.subscribe();
    let last = api.create(&PostParams::default(), &config_map("last", "1")).await.unwrap();
    until(&mut changes, "last", |new| new.is_some()).await;
    let version = |object: &ConfigMap| (object.name_any(), object.resource_version());
    let server: Vec<_> = api.list(&Default::default()).await.unwrap().iter().map(version).collect();
    let held: Vec<_> = cache.list(Some("default")).iter().map(|object| version(object)).collect();
    assert_eq!(held, server);
    assert!(held.contains(&version(&last)));
    shutdown.cancel();
}

#[tokio::test]
async fn a_failing_reconcile_is_counted_and_tried_again() {
    let (_server, client) = server().await;
    let shutdown = CancellationToken::new();
    let cache: Cache<ConfigMap> = Cache::new(client.clone(), watcher::Config::default());
    tokio::spawn(cache.clone().run(shutdown.clone()));
    let registry = Registry::new();
    let controller = Controller::new("test")
        .metrics(&registry)
        .watch(&cache, |change| change.sides().map(|side| side.name_any()).collect::<Vec<_>>());
    let (counts, tries, stop) = (controller.counts(), Arc::new(AtomicU64::new(0)), shutdown.clone());
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let reconcile = |_| {
        let (tries, stop) = (tries.clone(), stop.clone());
        async move {
            match tries.fetch_add(1, Ordering::SeqCst) {
                0 | 1 => Err("not yet"),
                _ => {
                    stop.cancel();
                    Ok(Requeue::No)
                }
            }
        }
    };
    controller.run(shutdown, reconcile).await;
    assert_eq!(counts.errors.load(Ordering::SeqCst), 2);
    assert_eq!(counts.reconciles.load(Ordering::SeqCst), 3);
    let shown = registry.encode();
    for line in [
        "agentcube_reconciles_total{controller=\"test\"} 3\n",
        "agentcube_reconcile_errors_total{controller=\"test\"} 2\n",
        "agentcube_reconcile_seconds_count{controller=\"test\"} 3\n",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
}

#[tokio::test]
async fn repeated_events_are_counted_on_the_server() {
    let (_server, client) = server().await;
    let shutdown = CancellationToken::new();
    let recorder = Recorder::start(client.clone(), "test", None, shutdown.clone());
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let about = api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    for _ in 0..3 {
        recorder.normal(&about, "Tried", "Tried it");
    }
    let api: Api<Event> = Api::namespaced(client, "default");
    let mut events = std::pin::pin!(api.watch(&WatchParams::default(), "0").await.unwrap());
    while let Some(event) = events.next().await {
        let (WatchEvent::Added(event) | WatchEvent::Modified(event)) = event.unwrap() else { continue };
        assert_eq!(event.involved_object.uid, about.metadata.uid);
        assert_eq!(event.message.as_deref(), Some("Tried it"));
        if event.count == Some(3) {
            break;
        }
    }
}
