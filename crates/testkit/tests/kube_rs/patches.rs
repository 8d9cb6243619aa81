//! Patches of every kind through `kube::Api`, on built-in and custom kinds, with `/status` and `/scale`.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;

use crate::fixtures::{Widget, config_map, deployment, widget};
use crate::world::{World, refused};

pub(crate) async fn merge(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    api.create(&PostParams::default(), &config_map("a", &[("k", "1"), ("l", "2")])).await?;
    let patch = Patch::Merge(json!({"data": {"k": null, "m": "3"}, "metadata": {"labels": {"x": "y"}}}));
    let patched = api.patch("a", &PatchParams::default(), &patch).await?;
    let data = patched.data.clone().context("data")?;
    ensure!(data.into_iter().eq([("l".into(), "2".into()), ("m".into(), "3".into())]));
    ensure!(patched.labels().get("x").is_some_and(|label| label == "y"));
    let again = api.patch("a", &PatchParams::default(), &patch).await?;
    ensure!(again.resource_version() == patched.resource_version(), "a patch of nothing is none");
    let stale = Patch::Merge(json!({"metadata": {"resourceVersion": "1"}, "data": {"k": "4"}}));
    refused(api.patch("a", &PatchParams::default(), &stale).await, 409, "Conflict")?;
    refused(api.patch("b", &PatchParams::default(), &patch).await, 404, "NotFound")?;
    let unknown = Patch::Merge(json!({"nonsense": 1}));
    refused(api.patch("a", &PatchParams::default().validation_strict(), &unknown).await, 422, "Invalid")?;
    Ok(())
}

pub(crate) async fn json(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    api.create(&PostParams::default(), &config_map("a", &[("k", "1")])).await?;
    let patch = |operations: serde_json::Value| -> Result<Patch<ConfigMap>> {
        Ok(Patch::Json(serde_json::from_value(operations)?))
    };
    let good = patch(json!([
        {"op": "test", "path": "/data/k", "value": "1"},
        {"op": "replace", "path": "/data/k", "value": "2"},
        {"op": "add", "path": "/data/~1l", "value": "3"},
        {"op": "remove", "path": "/data/~1l"},
        {"op": "copy", "from": "/data/k", "path": "/data/copy"},
    ]))?;
    let patched = api.patch("a", &PatchParams::default(), &good).await?;
    let data = patched.data.clone().context("data")?;
    ensure!(data.into_iter().eq([("copy".into(), "2".into()), ("k".into(), "2".into())]));
    let failed = patch(json!([{"op": "test", "path": "/data/k", "value": "1"}]))?;
    refused(api.patch("a", &PatchParams::default(), &failed).await, 422, "Invalid")?;
    let missing = patch(json!([{"op": "remove", "path": "/data/none"}]))?;
    refused(api.patch("a", &PatchParams::default(), &missing).await, 422, "Invalid")?;
    Ok(())
}

pub(crate) async fn strategic(world: World) -> Result<()> {
    let api: Api<Deployment> = world.api();
    let created = api.create(&PostParams::default(), &deployment("a")?).await?;
    let patch = Patch::Strategic(json!({"spec": {"template": {"spec": {"containers": [
        {"name": "web", "image": "web:2", "env": [{"name": "B", "value": "2"}]},
        {"name": "log", "$patch": "delete"},
        {"name": "new", "image": "new:1"},
    ]}}}}));
    let patched = api.patch("a", &PatchParams::default(), &patch).await?;
    let containers = patched.spec.clone().and_then(|spec| spec.template.spec).context("spec")?.containers;
    let mut names: Vec<_> = containers.iter().map(|container| container.name.as_str()).collect();
    names.sort_unstable();
    ensure!(names == ["new", "web"], "{names:?}");
    let web = containers.iter().find(|container| container.name == "web").context("web")?;
    ensure!(web.image.as_deref() == Some("web:2") && web.env.as_ref().is_some_and(|env| env.len() == 2));
    ensure!(created.metadata.generation == Some(1) && patched.metadata.generation == Some(2));
    Ok(())
}

pub(crate) async fn apply(world: World) -> Result<()> {
    let api: Api<ConfigMap> = world.api();
    let wanted = |value: &str| {
        Patch::Apply(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": value},
        }))
    };
    let (ours, theirs) = (PatchParams::apply("ours"), PatchParams::apply("theirs"));
    let created = api.patch("a", &ours, &wanted("1")).await?;
    let again = api.patch("a", &ours, &wanted("1")).await?;
    ensure!(again.resource_version() == created.resource_version(), "applying the same again is no write");
    let status = refused(api.patch("a", &theirs, &wanted("2")).await, 409, "Conflict")?;
    ensure!(
        status.message.contains("conflict with \"ours\"") && status.message.contains(".data.k"),
        "{status:?}"
    );
    let forced = api.patch("a", &theirs.clone().force(), &wanted("2")).await?;
    let managers: Vec<_> =
        forced.managed_fields().iter().filter_map(|entry| entry.manager.as_deref()).collect();
    ensure!(managers == ["theirs"], "what is taken has no other owner: {managers:?}");
    refused(api.patch("a", &PatchParams::default(), &wanted("2")).await, 422, "Invalid")?;

    // What its only owner no longer applies is removed; what others own stays.
    api.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"other": "x"}}))).await?;
    let none = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}));
    let left = api.patch("a", &theirs, &none).await?.data.context("data")?;
    ensure!(left.into_iter().eq([("other".to_owned(), "x".to_owned())]));
    Ok(())
}

/// Patches of different fields at once: each applies to what the others left, and none is refused.
pub(crate) async fn racing(world: World) -> Result<()> {
    const WRITERS: usize = 8;
    const ROUNDS: usize = 10;
    let api: Api<ConfigMap> = world.api();
    api.create(&PostParams::default(), &config_map("a", &[])).await?;
    let write = |writer: usize| {
        let api = api.clone();
        async move {
            for round in 0..ROUNDS {
                let data = json!({"data": {format!("w{writer}"): round.to_string()}});
                match writer % 3 {
                    0 => api.patch("a", &PatchParams::default(), &Patch::Merge(&data)).await?,
                    1 => api.patch("a", &PatchParams::default(), &Patch::Strategic(&data)).await?,
                    _ => {
                        let mut config = data;
                        config["apiVersion"] = "v1".into();
                        config["kind"] = "ConfigMap".into();
                        api.patch("a", &PatchParams::apply(&format!("w{writer}")), &Patch::Apply(&config))
                            .await?
                    }
                };
            }
            anyhow::Ok(())
        }
    };
    let writers: Vec<_> = (0..WRITERS).map(|writer| tokio::spawn(write(writer))).collect();
    for writer in writers {
        writer.await??;
    }
    let data = api.get("a").await?.data.context("data")?;
    ensure!(
        data.len() == WRITERS && data.values().all(|value| *value == (ROUNDS - 1).to_string()),
        "{data:?}"
    );
    Ok(())
}

pub(crate) async fn status(world: World) -> Result<()> {
    let api: Api<Widget> = world.api();
    let mut object = widget("a", "t");
    object.status = Some(crate::fixtures::WidgetStatus { text: "ignored".into(), ..Default::default() });
    let created = api.create(&PostParams::default(), &object).await?;
    ensure!(created.status.is_none(), "a status is not created with its object");
    let patch =
        Patch::Merge(json!({"status": {"text": "t", "observedGeneration": 1}, "spec": {"text": "ignored"}}));
    let patched = api.patch_status("a", &PatchParams::default(), &patch).await?;
    ensure!(patched.spec.text == "t", "a status is all that changes");
    ensure!(patched.metadata.generation == Some(1));
    ensure!(patched.status.as_ref().is_some_and(|status| status.text == "t"));
    let mut replaced = patched.clone();
    replaced.status.get_or_insert_default().replicas = 3;
    let replaced = api.replace_status("a", &PostParams::default(), &replaced).await?;
    ensure!(api.get_status("a").await? == replaced);
    let applied = Patch::Apply(json!({
        "apiVersion": "kubers.example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "status": {"text": "u"},
    }));
    let applied = api.patch_status("a", &PatchParams::apply("status").force(), &applied).await?;
    let entry = applied.managed_fields().iter().find(|entry| entry.manager.as_deref() == Some("status"));
    ensure!(entry.is_some_and(|entry| entry.subresource.as_deref() == Some("status")));
    // The other way round, the status stays.
    let main = api
        .patch("a", &PatchParams::default(), &Patch::Merge(json!({"status": null, "spec": {"text": "v"}})))
        .await?;
    ensure!(main.status.is_some_and(|status| status.text == "u" && status.replicas == 3));
    ensure!(main.metadata.generation == Some(2));
    Ok(())
}

pub(crate) async fn scale(world: World) -> Result<()> {
    let api: Api<Deployment> = world.api();
    api.create(&PostParams::default(), &deployment("a")?).await?;
    let scale = api.get_scale("a").await?;
    ensure!(scale.spec.and_then(|spec| spec.replicas) == Some(2));
    ensure!(scale.status.and_then(|status| status.selector).as_deref() == Some("app=a"));
    let patch = Patch::Merge(json!({"spec": {"replicas": 5}}));
    ensure!(
        api.patch_scale("a", &PatchParams::default(), &patch).await?.spec.and_then(|spec| spec.replicas)
            == Some(5)
    );
    let mut scale = api.get_scale("a").await?;
    scale.spec.get_or_insert_default().replicas = Some(7);
    api.replace_scale("a", &PostParams::default(), &scale).await?;
    let replicas = api.get("a").await?.spec.and_then(|spec| spec.replicas);
    ensure!(replicas == Some(7), "{replicas:?}");
    refused(api.replace_scale("a", &PostParams::default(), &scale).await, 409, "Conflict")?;

    let widgets: Api<Widget> = world.api();
    widgets.create(&PostParams::default(), &widget("a", "t")).await?;
    widgets.patch_scale("a", &PatchParams::default(), &patch).await?;
    ensure!(widgets.get("a").await?.spec.replicas == 5);
    refused(widgets.get_scale("b").await, 404, "NotFound")?;
    Ok(())
}

pub(crate) async fn custom(world: World) -> Result<()> {
    let kind = GroupVersionKind::gvk("kubers.example.com", "v1", "Widget");
    let resource = ApiResource::from_gvk_with_plural(&kind, "widgets");
    let api: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), &world.namespace, &resource);
    let object = DynamicObject::new("a", &resource).data(json!({"spec": {"text": "t", "unknown": 1}}));
    let created = api.create(&PostParams::default(), &object).await?;
    ensure!(created.data == json!({"spec": {"text": "t", "replicas": 0}}), "{}", created.data);
    let types = created.types.clone().context("types")?;
    ensure!((types.api_version.as_str(), types.kind.as_str()) == ("kubers.example.com/v1", "Widget"));
    let patch = Patch::Merge(json!({"spec": {"text": "u"}}));
    let patched = api.patch("a", &PatchParams::default(), &patch).await?;
    ensure!(patched.metadata.generation == Some(2));
    let typed: Api<Widget> = world.api();
    ensure!(typed.get("a").await?.spec.text == "u");
    refused(
        api.patch("a", &PatchParams::default(), &Patch::Strategic(json!({}))).await,
        415,
        "UnsupportedMediaType",
    )?;
    let wrong = Patch::Merge(json!({"spec": {"text": 1}}));
    let status = refused(api.patch("a", &PatchParams::default(), &wrong).await, 422, "Invalid")?;
    ensure!(
        status.details.is_some_and(|details| details.causes.iter().any(|cause| cause.field == "spec.text"))
    );
    Ok(())
}
