//! `kube::Api` on built-in kinds: create, read, list, replace, delete, and the refusals that clients act on.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::entry::{CommitError, Entry};
use kube::api::{
    Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams, Preconditions, VersionMatch,
};
use kube::core::ObjectMeta;
use serde_json::json;

use crate::fixtures::{config_map, labels, named, pod, widget};
use crate::world::{World, refused};

fn post() -> PostParams {
    PostParams::default()
}

fn version<K: kube::Resource>(object: &K) -> Result<u64> {
    Ok(object.meta().resource_version.as_deref().context("no resourceVersion")?.parse()?)
}

pub(crate) async fn lifecycle(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    let created = api.create(&post(), &config_map("a", &[("k", "1")])).await?;
    ensure!(created.uid().is_some() && created.creation_timestamp().is_some());
    ensure!(created.namespace().as_ref() == Some(&world.namespace));
    ensure!(!created.managed_fields().is_empty(), "writes are tracked");
    ensure!(api.get("a").await? == created);
    ensure!(api.get_opt("b").await?.is_none());

    let mut changed = created.clone();
    changed.data.get_or_insert_default().insert("k".into(), "2".into());
    let replaced = api.replace("a", &post(), &changed).await?;
    ensure!(version(&replaced)? > version(&created)?, "a write raises the version");
    ensure!(replaced.uid() == created.uid());
    let again = api.replace("a", &post(), &replaced).await?;
    ensure!(again.resource_version() == replaced.resource_version(), "a write of nothing is none");

    let deleted = api.delete("a", &DeleteParams::default()).await?;
    let status = deleted.right().context("a deletion at once answers with a Status")?;
    ensure!(status.is_success());
    ensure!(api.get_opt("a").await?.is_none());
    Ok(())
}

pub(crate) async fn refusals(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    let object = config_map("a", &[]);
    let created = api.create(&post(), &object).await?;
    let status = refused(api.create(&post(), &object).await, 409, "AlreadyExists")?;
    ensure!(status.message == "configmaps \"a\" already exists", "{}", status.message);
    let status = refused(api.get("b").await, 404, "NotFound")?;
    let details = status.details.context("details")?;
    ensure!((details.name.as_str(), details.kind.as_str()) == ("b", "configmaps"));
    refused(api.delete("b", &DeleteParams::default()).await, 404, "NotFound")?;
    refused(api.replace("b", &post(), &config_map("b", &[])).await, 404, "NotFound")?;
    refused(api.create(&post(), &config_map("No_Such_Name", &[])).await, 422, "Invalid")?;

    let merge = Patch::Merge(json!({"data": {"k": "1"}}));
    api.patch("a", &PatchParams::default(), &merge).await?;
    let mut stale = created;
    stale.data = None;
    stale.labels_mut().insert("l".into(), "v".into());
    refused(api.replace("a", &post(), &stale).await, 409, "Conflict")?;
    refused(Api::<Pod>::all(world.client.clone()).get("nowhere").await, 404, "NotFound")?;
    Ok(())
}

pub(crate) async fn pages(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    for n in 0..25 {
        api.create(&post(), &config_map(&format!("n{n:02}"), &[])).await?;
    }
    let mut names = Vec::new();
    let mut params = ListParams::default().limit(10);
    let mut sizes = Vec::new();
    let mut revisions = BTreeSet::new();
    loop {
        let page = api.list(&params).await?;
        sizes.push((page.items.len(), page.metadata.remaining_item_count));
        revisions.insert(page.metadata.resource_version.clone().context("a list has a version")?);
        names.extend(page.items.iter().map(ResourceExt::name_any));
        // What is written between pages does not show up in them.
        let extra = config_map(&format!("n{:02}x", names.len()), &[]);
        api.create(&post(), &extra).await?;
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    ensure!(sizes == [(10, Some(15)), (10, Some(5)), (5, None)], "{sizes:?}");
    ensure!(revisions.len() == 1, "pages are of one version: {revisions:?}");
    ensure!(names == (0..25).map(|n| format!("n{n:02}")).collect::<Vec<_>>(), "{names:?}");
    let status =
        refused(api.list(&ListParams::default().limit(1).continue_token("junk")).await, 400, "BadRequest")?;
    ensure!(status.message.contains("continue key is not valid"), "{}", status.message);

    let whole = api.list(&ListParams::default()).await?;
    let at = whole.metadata.resource_version.context("a list has a version")?;
    api.delete("n00", &DeleteParams::default()).await?;
    let exact = api.list(&ListParams::default().limit(100).at(&at).matching(VersionMatch::Exact)).await?;
    ensure!(exact.items.len() == whole.items.len(), "a list of the past is as it was");
    let newer = api.list(&ListParams::default().at(&at).matching(VersionMatch::NotOlderThan)).await?;
    ensure!(newer.items.len() + 1 >= whole.items.len());
    ensure!(api.list(&ListParams::default().match_any()).await?.items.len() + 1 >= whole.items.len());
    Ok(())
}

pub(crate) async fn selectors(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    for (name, tier, env) in [("a", "web", "prod"), ("b", "web", "test"), ("c", "db", "prod")] {
        let mut object = config_map(name, &[]);
        object.metadata.labels = labels(&[("tier", tier), ("env", env)]);
        api.create(&post(), &object).await?;
    }
    let cases = [
        (ListParams::default().labels("tier=web"), "ab"),
        (ListParams::default().labels("tier=web,env!=prod"), "b"),
        (ListParams::default().labels("tier in (web, db),env"), "abc"),
        (ListParams::default().labels("tier notin (web),!gone"), "c"),
        (ListParams::default().labels("gone"), ""),
        (ListParams::default().fields("metadata.name=b"), "b"),
        (ListParams::default().fields("metadata.name!=b").labels("tier=web"), "a"),
        (ListParams::default().fields("metadata.namespace=elsewhere"), ""),
    ];
    for (params, expected) in cases {
        let found: String = api.list(&params).await?.iter().map(ResourceExt::name_any).collect();
        ensure!(found == expected, "{params:?}: {found}");
    }
    // No more than a prefix: other trials may add ConfigMaps meanwhile.
    let everywhere: Api<ConfigMap> = Api::all(world.client.clone());
    let here = format!("metadata.namespace={}", world.namespace);
    let found: String = everywhere
        .list(&ListParams::default().fields(&here).labels("tier"))
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    ensure!(found == "abc", "{found}");
    refused(api.list(&ListParams::default().labels("a in (b")).await, 400, "BadRequest")?;
    refused(api.list(&ListParams::default().fields("data.k=1")).await, 400, "BadRequest")?;
    let pods: Api<Pod> = world.api();
    pods.create(&post(), &pod("on-a-node", &["c"], Some("n1"))?).await?;
    pods.create(&post(), &pod("nowhere", &["c"], None)?).await?;
    let found = pods.list(&ListParams::default().fields("spec.nodeName=n1,status.phase=Pending")).await?;
    ensure!(found.iter().map(ResourceExt::name_any).eq(["on-a-node".to_owned()]));
    Ok(())
}

pub(crate) async fn collection(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    for n in 0..6 {
        let mut object = config_map(&format!("n{n}"), &[]);
        object.metadata.labels = labels(&[("half", if n < 3 { "first" } else { "second" })]);
        api.create(&post(), &object).await?;
    }
    let params = ListParams::default().labels("half=first");
    let deleted = api.delete_collection(&DeleteParams::default(), &params).await?;
    deleted.left().context("a deleted collection answers with its objects")?;
    let left: String =
        api.list(&ListParams::default().labels("half")).await?.iter().map(ResourceExt::name_any).collect();
    ensure!(left == "n3n4n5", "{left}");
    api.delete_collection(&DeleteParams::default().dry_run(), &ListParams::default()).await?;
    ensure!(api.list(&ListParams::default().labels("half")).await?.items.len() == 3);
    Ok(())
}

pub(crate) async fn entry(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    let mut vacant = api.entry("a").await?.or_insert(|| config_map("a", &[("k", "1")]));
    vacant.commit(&post()).await?;
    let mut ours = api.entry("a").await?.and_modify(|object| {
        object.data.get_or_insert_default().insert("k".into(), "2".into());
    });
    let Entry::Occupied(occupied) = &mut ours else { anyhow::bail!("the object is there") };
    occupied.commit(&post()).await?;
    ensure!(occupied.get().resource_version() == api.get("a").await?.resource_version());

    let Entry::Occupied(mut slow) = api.entry("a").await? else { anyhow::bail!("the object is there") };
    api.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "3"}}))).await?;
    slow.get_mut().data.get_or_insert_default().insert("k".into(), "4".into());
    match slow.commit(&post()).await {
        Err(CommitError::Save(error)) => refused::<()>(Err(error), 409, "Conflict").map(drop),
        other => anyhow::bail!("a lost race must be told: {other:?}"),
    }
}

pub(crate) async fn dry_run(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let shown = api.create(&dry, &config_map("a", &[("k", "1")])).await?;
    ensure!(shown.uid().is_some());
    ensure!(api.get_opt("a").await?.is_none());
    let created = api.create(&post(), &config_map("a", &[("k", "1")])).await?;
    refused(api.create(&dry, &config_map("a", &[])).await, 409, "AlreadyExists")?;
    let patch = Patch::Merge(json!({"data": {"k": "2"}}));
    let shown = api.patch("a", &PatchParams::default().dry_run(), &patch).await?;
    ensure!(shown.data.as_ref().is_some_and(|data| data["k"] == "2"));
    let mut changed = created.clone();
    changed.data = None;
    ensure!(api.replace("a", &dry, &changed).await?.data.is_none());
    api.delete("a", &DeleteParams::default().dry_run()).await?;
    ensure!(api.get("a").await? == created, "nothing of this was meant");
    Ok(())
}

pub(crate) async fn generated_names(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    let metadata = ObjectMeta { generate_name: Some("made-".into()), ..ObjectMeta::default() };
    let object = ConfigMap { metadata, ..ConfigMap::default() };
    let mut names = BTreeSet::new();
    for _ in 0..20 {
        let name = api.create(&post(), &object).await?.name_any();
        ensure!(name.strip_prefix("made-").is_some_and(|suffix| suffix.len() == 5), "{name}");
        names.insert(name);
    }
    ensure!(names.len() == 20);
    refused(api.create(&post(), &ConfigMap::default()).await, 422, "Invalid")?;
    Ok(())
}

pub(crate) async fn preconditions(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    let first = api.create(&post(), &config_map("a", &[])).await?;
    let only = |uid: Option<String>, resource_version: Option<String>| {
        DeleteParams::default().preconditions(Preconditions { uid, resource_version })
    };
    refused(api.delete("a", &only(Some("another".into()), None)).await, 409, "Conflict")?;
    refused(api.delete("a", &only(None, Some("1".into()))).await, 409, "Conflict")?;
    api.delete("a", &only(first.uid(), first.resource_version())).await?;
    ensure!(api.get_opt("a").await?.is_none());
    Ok(())
}

pub(crate) async fn leases(world: World) -> Result<()> {
    let api: Api<Lease> = world.api();
    let held = |holder: &str| LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(15),
        renew_time: Some(MicroTime(Timestamp::now())),
        ..LeaseSpec::default()
    };
    let lease = Lease { metadata: named("leader"), spec: Some(held("one")) };
    let created = api.create(&post(), &lease).await?;
    let renewed = created.spec.as_ref().and_then(|spec| spec.renew_time.clone()).context("no renewTime")?;
    let sent = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone()).context("no renewTime")?;
    ensure!(renewed.0.as_microsecond() == sent.0.as_microsecond(), "microseconds survive");
    // Two take over at once: exactly one may win.
    let take = |holder: &str| Lease { spec: Some(held(holder)), ..created.clone() };
    let (two, three) = (take("two"), take("three"));
    let params = post();
    let (left, right) =
        tokio::join!(api.replace("leader", &params, &two), api.replace("leader", &params, &three));
    ensure!(left.is_ok() != right.is_ok(), "{left:?} {right:?}");
    refused(if left.is_ok() { right } else { left }, 409, "Conflict")?;
    let mut wrong = lease;
    wrong.metadata = named("wrong");
    wrong.spec.get_or_insert_default().lease_duration_seconds = Some(0);
    refused(api.create(&params, &wrong).await, 422, "Invalid")?;
    Ok(())
}

pub(crate) async fn namespaces(world: World) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let namespace = namespaces.get(&world.namespace).await?;
    ensure!(namespace.labels().get("kubernetes.io/metadata.name") == Some(&world.namespace));
    ensure!(namespace.status.and_then(|status| status.phase).as_deref() == Some("Active"));
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        namespaces.get(name).await.with_context(|| name.to_owned())?;
    }
    let elsewhere: Api<ConfigMap> = Api::namespaced(world.client.clone(), "no-such-namespace");
    refused(elsewhere.create(&post(), &config_map("a", &[])).await, 404, "NotFound")?;
    ensure!(elsewhere.list(&ListParams::default()).await?.items.is_empty());
    Ok(())
}

pub(crate) async fn pods(world: World) -> Result<()> {
    let api: Api<Pod> = world.api();
    let created = api.create(&post(), &pod("a", &["c"], None)?).await?;
    let spec = created.spec.clone().context("spec")?;
    ensure!(spec.restart_policy.as_deref() == Some("Always"), "defaults are filled in");
    ensure!(created.status.clone().and_then(|status| status.phase).as_deref() == Some("Pending"));
    let mut moved = created.clone();
    moved.spec.get_or_insert_default().containers[0].image = Some("x:2".into());
    let moved = api.replace("a", &post(), &moved).await?;
    ensure!(moved.metadata.generation == Some(2), "a new image is a new generation");
    let mut wrong = moved;
    wrong.spec.get_or_insert_default().containers[0].name = "d".into();
    refused(api.replace("a", &post(), &wrong).await, 422, "Invalid")?;
    let status = json!({"status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}});
    let running = api.patch_status("a", &PatchParams::default(), &Patch::Strategic(status)).await?;
    ensure!(running.status.and_then(|status| status.pod_ip).as_deref() == Some("10.0.0.1"));
    ensure!(running.metadata.generation == Some(2), "a status is not a generation");
    Ok(())
}

pub(crate) async fn eviction(world: World) -> Result<()> {
    let api: Api<Pod> = world.api();
    api.create(&post(), &pod("a", &["c"], None)?).await?;
    let params = EvictParams {
        post_options: PostParams { dry_run: true, field_manager: None },
        ..EvictParams::default()
    };
    ensure!(api.evict("a", &params).await?.is_success());
    ensure!(api.get_opt("a").await?.is_some(), "a rehearsed eviction evicts nobody");
    ensure!(api.evict("a", &EvictParams::default()).await?.is_success());
    ensure!(api.get_opt("a").await?.is_none());
    refused(api.evict("a", &EvictParams::default()).await, 404, "NotFound")?;
    refused(
        world.api::<crate::fixtures::Widget>().create(&post(), &widget("Bad_Name", "t")).await,
        422,
        "Invalid",
    )?;
    Ok(())
}
