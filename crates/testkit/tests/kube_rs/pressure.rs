//! Watches under load: many that must all see the same, and slow ones that must harm nobody.

use std::sync::Arc;

use agentcube_apiserver::Server;
use agentcube_apiserver::store::{Change, Expect, Retention, Store, Write};
use anyhow::{Context, Result, bail, ensure};
use futures_util::{AsyncBufReadExt, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::config::Kubeconfig;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::fixtures::config_map;
use crate::world::{World, connect};

const WATCHERS: usize = 100;
const WRITERS: usize = 8;
const WRITES: usize = 40;

pub(crate) async fn many_watchers(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    let since = api.list(&ListParams::default()).await?.metadata.resource_version.context("version")?;
    let mut watchers: Vec<JoinHandle<Result<Vec<(u64, &'static str)>>>> = Vec::new();
    for _ in 0..WATCHERS {
        // Opened before the writes: it is handed over events, not history.
        let events = api.watch(&WatchParams::default(), &since).await?.boxed();
        watchers.push(tokio::spawn(follow(events)));
    }
    let writers: Vec<_> = (0..WRITERS).map(|writer| tokio::spawn(write(api.clone(), writer))).collect();
    for writer in writers {
        writer.await??;
    }
    api.create(&PostParams::default(), &config_map("mark", &[])).await?;
    let mut sequences = Vec::new();
    for watcher in watchers {
        sequences.push(watcher.await??);
    }
    let first = sequences.first().context("a watcher")?;
    ensure!(first.is_sorted_by(|left, right| left.0 < right.0), "events are in order, each once");
    // Each writer: one object of its own from creation to deletion, and writes to one that all share.
    let count = |kind: &str| first.iter().filter(|event| event.1 == kind).count();
    ensure!(count("added") == WRITERS * WRITES / 4 + 2, "{} were added", count("added"));
    ensure!(count("deleted") == WRITERS * WRITES / 4, "{} were deleted", count("deleted"));
    ensure!(count("modified") == WRITERS * WRITES / 2, "{} were modified", count("modified"));
    ensure!(sequences.iter().all(|sequence| sequence == first), "all see the same");
    Ok(())
}

async fn follow(
    mut events: futures_util::stream::BoxStream<'static, kube::Result<WatchEvent<ConfigMap>>>,
) -> Result<Vec<(u64, &'static str)>> {
    let mut seen = Vec::new();
    loop {
        let (kind, object) = match events.try_next().await?.context("the watch ended early")? {
            WatchEvent::Added(object) => ("added", object),
            WatchEvent::Modified(object) => ("modified", object),
            WatchEvent::Deleted(object) => ("deleted", object),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => bail!("{status:?}"),
        };
        seen.push((object.resource_version().context("version")?.parse()?, kind));
        if object.name_any() == "mark" {
            return Ok(seen);
        }
    }
}

async fn write(api: Api<ConfigMap>, writer: usize) -> Result<()> {
    for n in 0..WRITES / 4 {
        let name = format!("w{writer}-{n}");
        api.create(&PostParams::default(), &config_map(&name, &[])).await?;
        let own = Patch::Merge(json!({"data": {"k": "1"}}));
        api.patch(&name, &PatchParams::default(), &own).await?;
        // The shared one comes with whoever is first; a field of one's own is always a change.
        let shared = Patch::Apply(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"},
            "data": {format!("w{writer}"): format!("{n}")},
        }));
        api.patch("shared", &PatchParams::apply(&format!("w{writer}")), &shared).await?;
        api.delete(&name, &DeleteParams::default()).await?;
    }
    Ok(())
}

/// How much is written past a watcher that does not read.
const FLOOD: usize = 200_000;
/// Fast readers are waited for this often; less than what is kept, so that they have a fair chance.
const PACE: usize = 1_000;
const KEPT: Retention = Retention { events: 4_000, bytes: 8 << 20 };
const OBJECTS: usize = 100;
/// What a process may grow by: many times what is kept, a fraction of what was written.
const GROWTH: u64 = 80 << 20;

pub(crate) async fn slow_watcher(_: World) -> Result<()> {
    let handle = Server::builder().memory().retention(KEPT).start().await?;
    let near = Client::new(handle.server().front(), "default");
    let far = connect(Kubeconfig::from_yaml(&handle.kubeconfig_yaml())?).await?;
    let store = handle.server().api().store().clone();
    let since = store.revision();
    let mut slow = vec![open(&near, since).await?, open(&far, since).await?];
    let (progress, mut reached) = mpsc::channel(16);
    let mut fast = Vec::new();
    for client in [&near, &near, &far] {
        fast.push(tokio::spawn(read_all(open(client, since).await?, since, progress.clone())));
    }
    drop(progress);

    let before = resident_bytes()?;
    for n in 0..FLOOD {
        put(&store, n).await?;
        if (n + 1) % PACE == 0 {
            for _ in 0..fast.len() {
                reached.recv().await.context("a fast reader gave up")?;
            }
        }
    }
    let grown = resident_bytes()?.saturating_sub(before);
    ensure!(grown < GROWTH, "the process grew by {} MiB", grown >> 20);
    for reader in fast {
        let seen = reader.await??;
        ensure!(seen == FLOOD, "a fast reader saw {seen} events");
    }
    for reader in &mut slow {
        let (seen, last) = drain(reader).await?;
        ensure!(seen < FLOOD / 2, "{seen} events were kept for one that does not read");
        let event: Value = serde_json::from_str(&last)?;
        ensure!(event["type"] == "ERROR" && event["object"]["code"] == 410, "{last}");
    }
    // The server is as able as before.
    let api: Api<ConfigMap> = Api::default_namespaced(far);
    api.create(&PostParams::default(), &config_map("after", &[])).await?;
    drop((slow, api, near));
    handle.shutdown().await;
    Ok(())
}

type Lines = futures_util::stream::BoxStream<'static, std::io::Result<String>>;

async fn open(client: &Client, since: u64) -> Result<Lines> {
    let path = format!("/api/v1/namespaces/default/configmaps?watch=true&resourceVersion={since}");
    let request = http::Request::get(path).body(Vec::new())?;
    Ok(client.request_stream(request).await?.lines().boxed())
}

/// Writes below the API, which would take most of the time; what is tried here is the log and the watches.
async fn put(store: &Store, n: usize) -> Result<()> {
    let key = format!("default/n{}", n % OBJECTS);
    let expect = store.get("configmaps", &key).map_or(Expect::Absent, |object| Expect::At(object.revision));
    let value = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("n{}", n % OBJECTS), "namespace": "default", "uid": "u"},
        "data": {"n": n.to_string(), "fill": "x".repeat(1024)},
    });
    let write = Write { table: Arc::from("configmaps"), key: key.into(), expect, change: Change::Put(value) };
    store.write(write).await?;
    Ok(())
}

/// Reads every event as it comes and says so after each [`PACE`].
async fn read_all(mut lines: Lines, since: u64, progress: mpsc::Sender<()>) -> Result<usize> {
    let mut seen = 0;
    let mut last = since;
    while seen < FLOOD {
        let line = lines.next().await.context("the watch ended early")??;
        let version = version_in(&line).with_context(|| line.clone())?;
        ensure!(version == last + 1, "{version} after {last}");
        last = version;
        seen += 1;
        if seen % PACE == 0 {
            progress.send(()).await?;
        }
    }
    Ok(seen)
}

/// Finds the version without decoding, of which there would be too much.
fn version_in(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("\"resourceVersion\":\"")?;
    rest.split_once('"')?.0.parse().ok()
}

/// Reads what is left; how many events, and the last line.
async fn drain(lines: &mut Lines) -> Result<(usize, String)> {
    let (mut seen, mut last) = (0, String::new());
    while let Some(line) = lines.next().await {
        last = line?;
        seen += 1;
    }
    Ok((seen, last))
}

fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
    Ok(kib * 1024)
}
