//! Clients that want only the metadata of objects: `PartialObjectMeta` in reads, lists, patches and watches.

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{
    Api, ListParams, PartialObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::runtime::watcher;
use serde_json::json;

use crate::fixtures::{Widget, config_map, widget};
use crate::world::World;

pub(crate) async fn of_objects(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    let whole = api.create(&PostParams::default(), &config_map("a", &[("k", "1")])).await?;
    let partial = api.get_metadata("a").await?;
    ensure!(partial.metadata == whole.metadata);
    let types = partial.types.context("types")?;
    ensure!((types.api_version.as_str(), types.kind.as_str()) == ("meta.k8s.io/v1", "PartialObjectMetadata"));
    ensure!(api.get_metadata_opt("b").await?.is_none());
    let list = api.list_metadata(&ListParams::default().fields("metadata.name=a")).await?;
    ensure!(list.metadata.resource_version.is_some());
    ensure!(list.items.len() == 1 && list.items[0].metadata == whole.metadata);
    let patch = Patch::Merge(json!({"metadata": {"labels": {"l": "v"}}}));
    let patched = api.patch_metadata("a", &PatchParams::default(), &patch).await?;
    ensure!(patched.labels().get("l").is_some_and(|label| label == "v"));

    let widgets: Api<Widget> = world.api();
    let whole = widgets.create(&PostParams::default(), &widget("a", "t")).await?;
    ensure!(widgets.get_metadata("a").await?.metadata == whole.metadata);
    Ok(())
}

pub(crate) async fn watched(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    let created = api.create(&PostParams::default(), &config_map("a", &[("k", "1")])).await?;
    let since = created.resource_version().context("version")?;
    api.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "2"}}))).await?;
    let params = WatchParams::default().fields("metadata.name=a").timeout(60);
    let mut events = Box::pin(api.watch_metadata(&params, &since).await?);
    match events.try_next().await?.context("an event")? {
        WatchEvent::Modified(partial) => ensure!(partial.metadata == api.get("a").await?.metadata),
        other => anyhow::bail!("{other:?}"),
    }

    let streaming = watcher::Config::default().streaming_lists();
    for (round, config) in [("list", watcher::Config::default()), ("stream", streaming)] {
        let partial: Api<PartialObjectMeta<ConfigMap>> =
            Api::namespaced(world.client.clone(), &world.namespace);
        let mut stream = Box::pin(watcher(partial, config.fields("metadata.name=a")));
        loop {
            match stream.next().await.context("a watcher never ends")?? {
                watcher::Event::InitApply(object) => ensure!(object.name_any() == "a"),
                watcher::Event::InitDone => break,
                _ => {}
            }
        }
        let label = Patch::Merge(json!({"metadata": {"labels": {"round": round}}}));
        let patched = api.patch("a", &PatchParams::default(), &label).await?;
        match stream.next().await.context("a watcher never ends")?? {
            watcher::Event::Apply(object) => ensure!(object.metadata == patched.metadata),
            other => anyhow::bail!("{other:?}"),
        }
    }
    Ok(())
}
