//! A data directory that is closed and opened again, within one process.

use std::path::Path;

use agentcube_apiserver::Server;
use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};

use crate::fixtures::{self, Widget, config_map, widget};
use crate::world::{World, refused};

async fn open(path: &Path) -> Result<(Server, Client)> {
    let server = Server::builder().data_dir(path).embed().await?;
    let client = Client::new(server.front(), "default");
    Ok((server, client))
}

async fn close(server: Server, client: Client) {
    drop(client);
    server.shutdown().await;
}

fn number(version: Option<String>) -> Result<u64> {
    Ok(version.context("version")?.parse()?)
}

pub(crate) async fn reopened(_: World) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (server, client) = open(directory.path()).await?;
    fixtures::install(&client).await?;
    let (maps, widgets): (Api<ConfigMap>, Api<Widget>) =
        (Api::default_namespaced(client.clone()), Api::default_namespaced(client.clone()));
    let first = maps.create(&PostParams::default(), &config_map("n0", &[])).await?;
    for n in 1..20 {
        maps.create(&PostParams::default(), &config_map(&format!("n{n}"), &[("k", "ä\u{1F600}")])).await?;
    }
    widgets.create(&PostParams::default(), &widget("a", "t")).await?;
    let page = maps.list(&ListParams::default().limit(5)).await?;
    maps.delete("n7", &DeleteParams::default()).await?;
    let before = (maps.list(&ListParams::default()).await?, widgets.list(&ListParams::default()).await?);
    let namespaces = Api::<Namespace>::all(client.clone()).list(&ListParams::default()).await?.items;
    let newest = number(before.1.metadata.resource_version.clone())?;
    let second = Server::builder().data_dir(directory.path()).embed().await;
    ensure!(second.is_err(), "a directory has one server at a time");
    drop((maps, widgets));
    close(server, client).await;

    let mut newest = newest;
    for round in 0..3 {
        let (server, client) = open(directory.path()).await.with_context(|| format!("opening again, {round}"))?;
        let (maps, widgets): (Api<ConfigMap>, Api<Widget>) =
            (Api::default_namespaced(client.clone()), Api::default_namespaced(client.clone()));
        ensure!(widgets.list(&ListParams::default()).await?.items == before.1.items, "custom kinds are served at once");
        let listed = maps.list(&ListParams::default().labels("!round")).await?;
        ensure!(listed.items == before.0.items, "objects are as they were, to the version");
        ensure!(Api::<Namespace>::all(client.clone()).list(&ListParams::default()).await?.items == namespaces);
        ensure!(number(listed.metadata.resource_version.clone())? >= newest);

        // Where the last list stood, nothing is lost; before that, history is gone.
        let since = listed.metadata.resource_version.context("version")?;
        let mut following = maps.watch(&WatchParams::default(), &since).await?.boxed();
        let mut object = config_map(&format!("round-{round}"), &[]);
        object.metadata.labels = fixtures::labels(&[("round", "")]);
        let written = maps.create(&PostParams::default(), &object).await?;
        match following.try_next().await?.context("an event")? {
            WatchEvent::Added(seen) => ensure!(seen == written),
            other => anyhow::bail!("{other:?}"),
        }
        let version = number(written.resource_version())?;
        ensure!(version > newest, "versions grow: {version} after {newest}");
        newest = version;
        let old = first.resource_version().context("version")?;
        let mut late = maps.watch(&WatchParams::default(), &old).await?.boxed();
        match late.try_next().await?.context("an event")? {
            WatchEvent::Error(status) => ensure!(status.code == 410, "{status:?}"),
            other => anyhow::bail!("{other:?}"),
        }
        let token = page.metadata.continue_.clone().context("a token")?;
        refused(maps.list(&ListParams::default().limit(5).continue_token(&token)).await, 410, "Expired")?;
        drop((maps, widgets, following, late));
        close(server, client).await;
    }
    Ok(())
}
