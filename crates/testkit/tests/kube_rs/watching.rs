//! `kube::runtime::watcher` with both ways of listing, reflectors that must equal the list, lost history, and
//! `await_condition`.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::reflector::{self, Store};
use kube::runtime::wait::{Condition, await_condition, conditions};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;

use crate::fixtures::{Widget, config_map, labels, widget};
use crate::world::World;

type Events = BoxStream<'static, watcher::Result<watcher::Event<ConfigMap>>>;

/// A reflector and the stream that feeds it.
struct Reflected {
    store: Store<ConfigMap>,
    events: Events,
}

impl Reflected {
    fn new(api: Api<ConfigMap>, config: watcher::Config) -> Reflected {
        let (store, writer) = reflector::store();
        Reflected { store, events: watcher(api, config).reflect(writer).boxed() }
    }

    /// Follows the stream until the store is as `done` wants it.
    async fn until(&mut self, done: impl Fn(&Store<ConfigMap>) -> bool) -> Result<()> {
        while !done(&self.store) {
            self.events.next().await.context("a watcher never ends")??;
        }
        Ok(())
    }

    fn contents(&self) -> BTreeMap<String, ConfigMap> {
        self.store.state().into_iter().map(|object| (object.name_any(), (*object).clone())).collect()
    }
}

async fn listed(api: &Api<ConfigMap>, params: &ListParams) -> Result<BTreeMap<String, ConfigMap>> {
    Ok(api.list(params).await?.into_iter().map(|object| (object.name_any(), object)).collect())
}

/// Creates, changes and deletes, ending in a mark that a reader can wait for.
async fn churn(api: &Api<ConfigMap>, round: usize) -> Result<()> {
    for n in 0..20 {
        api.create(&PostParams::default(), &config_map(&format!("r{round}-{n}"), &[("k", "1")])).await?;
    }
    for n in 0..10 {
        let patch = Patch::Merge(json!({"data": {"k": format!("{round}")}}));
        api.patch(&format!("r{round}-{n}"), &PatchParams::default(), &patch).await?;
    }
    for n in 5..15 {
        api.delete(&format!("r{round}-{n}"), &DeleteParams::default()).await?;
    }
    api.create(&PostParams::default(), &config_map(&format!("mark-{round}"), &[])).await?;
    Ok(())
}

fn marked(store: &Store<ConfigMap>, round: usize) -> bool {
    store.find(|object| object.name_any() == format!("mark-{round}")).is_some()
}

async fn reflects(world: &World, config: watcher::Config) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    churn(&api, 0).await?;
    let mut reflected = Reflected::new(api.clone(), config);
    reflected.until(|store| marked(store, 0)).await?;
    ensure!(reflected.contents() == listed(&api, &ListParams::default()).await?);
    for round in 1..4 {
        churn(&api, round).await?;
        reflected.until(|store| marked(store, round)).await?;
        ensure!(reflected.contents() == listed(&api, &ListParams::default()).await?, "after round {round}");
    }
    Ok(())
}

pub(crate) async fn list_watch(world: World) -> Result<()> {
    // Small pages, so that the initial list takes several.
    reflects(&world, watcher::Config::default().page_size(4)).await
}

pub(crate) async fn streaming_list(world: World) -> Result<()> {
    reflects(&world, watcher::Config::default().streaming_lists()).await
}

/// An object that begins to match is added; one that ceases to is deleted.
pub(crate) async fn selected(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    let mut object = config_map("a", &[]);
    object.metadata.labels = labels(&[("in", "yes")]);
    api.create(&PostParams::default(), &object).await?;
    let label = |value: &str| Patch::Merge(json!({"metadata": {"labels": {"in": value}}}));
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let mut reflected = Reflected::new(api.clone(), config.labels("in=yes"));
        reflected.until(|store| store.len() == 1).await?;
        api.patch("a", &PatchParams::default(), &label("no")).await?;
        reflected.until(Store::is_empty).await?;
        api.patch("a", &PatchParams::default(), &label("yes")).await?;
        reflected.until(|store| store.len() == 1).await?;
    }
    Ok(())
}

/// The raw watch: order, kinds and versions of events, and an end when its time is up.
pub(crate) async fn one_object(world: World) -> Result<()> {
    let api: Api<Widget> = world.api();
    let since = api.list(&ListParams::default()).await?.metadata.resource_version.context("version")?;
    api.create(&PostParams::default(), &widget("other", "t")).await?;
    api.create(&PostParams::default(), &widget("a", "t")).await?;
    api.patch_status("a", &PatchParams::default(), &Patch::Merge(json!({"status": {"text": "t"}}))).await?;
    api.patch("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"text": "u"}}))).await?;
    api.delete("a", &DeleteParams::default()).await?;
    let params = WatchParams::default().fields("metadata.name=a").timeout(1);
    let mut events = api.watch(&params, &since).await?.boxed();
    let mut seen = Vec::new();
    let mut versions = Vec::new();
    while let Some(event) = events.try_next().await? {
        let (kind, object) = match event {
            WatchEvent::Added(object) => ("added", object),
            WatchEvent::Modified(object) => ("modified", object),
            WatchEvent::Deleted(object) => ("deleted", object),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(error) => anyhow::bail!("{error:?}"),
        };
        versions.push(object.resource_version().context("version")?.parse::<u64>()?);
        seen.push((kind, object.spec.text.clone(), object.status.is_some()));
    }
    let expected =
        [("added", "t", false), ("modified", "t", true), ("modified", "u", true), ("deleted", "u", true)];
    ensure!(seen.iter().map(|(kind, text, status)| (*kind, text.as_str(), *status)).eq(expected), "{seen:?}");
    ensure!(versions.is_sorted_by(|left, right| left < right), "{versions:?}");
    Ok(())
}

/// The history is forgotten under a watcher: it lists again and ends up equal to the list.
pub(crate) async fn gone(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    let store = world.internals()?.store().clone();
    let table: Arc<str> = "configmaps".into();
    let old = api.create(&PostParams::default(), &config_map("old", &[])).await?;
    let since = old.resource_version().context("version")?;
    // A short watch, so that the watcher has to ask again where it left off.
    let mut reflected = Reflected::new(api.clone(), watcher::Config::default().timeout(1));
    reflected.until(|store| store.len() == 1).await?;
    churn(&api, 0).await?;
    store.compact(&table);
    let mut told = 0;
    while !marked(&reflected.store, 0) {
        match reflected.events.next().await.context("a watcher never ends")? {
            Ok(_) => {}
            Err(watcher::Error::WatchError(status)) if status.code == 410 => told += 1,
            Err(error) => return Err(error.into()),
        }
    }
    ensure!(told > 0, "a watcher that lost history is told");
    ensure!(reflected.contents() == listed(&api, &ListParams::default()).await?);

    let mut events = api.watch(&WatchParams::default(), &since).await?.boxed();
    match events.try_next().await?.context("an event")? {
        WatchEvent::Error(status) => {
            ensure!((status.code, &*status.reason) == (410, "Expired"), "{status:?}")
        }
        other => anyhow::bail!("{other:?}"),
    }
    Ok(())
}

pub(crate) async fn conditions(world: World) -> Result<()> {
    let api: Api<Widget> = world.api();
    let made = |name: &'static str| {
        let api = api.clone();
        tokio::spawn(async move { await_condition(api, name, conditions::is_created()).await })
    };
    let waiting = [made("a"), made("b")];
    for name in ["a", "b"] {
        api.create(&PostParams::default(), &widget(name, "t")).await?;
    }
    for waiting in waiting {
        ensure!(waiting.await??.is_some());
    }
    let wrote = |object: Option<&Widget>| object.is_some_and(|object| object.status.is_some());
    let waiting = tokio::spawn(await_condition(api.clone(), "a", wrote));
    api.patch_status("a", &PatchParams::default(), &Patch::Merge(json!({"status": {"text": "x"}}))).await?;
    ensure!(waiting.await??.context("object")?.status.is_some_and(|status| status.text == "x"));

    let uid = api.get("a").await?.uid().context("uid")?;
    let waiting = {
        let (api, uid) = (api.clone(), uid.clone());
        tokio::spawn(async move { await_condition(api, "a", conditions::is_deleted(&uid)).await })
    };
    api.delete("a", &DeleteParams::default()).await?;
    ensure!(waiting.await??.is_none());
    // Another object of that name is not the one that was deleted.
    api.create(&PostParams::default(), &widget("a", "t")).await?;
    let found = await_condition(api, "a", conditions::is_deleted(&uid)).await?;
    ensure!(!conditions::is_deleted(&uid).not().matches_object(found.as_ref()));
    Ok(())
}
