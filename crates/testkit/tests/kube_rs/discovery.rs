//! `kube::discovery` in all its forms, and the version.

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use kube::core::{GroupVersion, GroupVersionKind};
use kube::discovery::{self, Discovery, Scope, verbs};
use kube::runtime::wait::{await_condition, conditions};
use serde_json::json;

use crate::fixtures::{announced, establish};
use crate::world::World;

const COMING: &str = "coming.example.com";
const WIDGET: (&str, &str, &str) = ("kubers.example.com", "v1", "Widget");

pub(crate) async fn everything(world: World) -> Result<()> {
    let version = world.client.apiserver_version().await?;
    ensure!((version.major.as_str(), version.minor.as_str()) == ("1", "36"), "{version:?}");
    ensure!(version.git_version.starts_with("v1.36."), "{version:?}");

    // Another trial's group comes and goes meanwhile.
    let found = Discovery::new(world.client.clone()).exclude(&[COMING]).run().await?;
    let aggregated = Discovery::new(world.client.clone()).run_aggregated().await?;
    for (group, version, kind) in [
        ("", "v1", "ConfigMap"),
        ("", "v1", "Namespace"),
        ("", "v1", "Pod"),
        ("apps", "v1", "Deployment"),
        ("batch", "v1", "Job"),
        ("coordination.k8s.io", "v1", "Lease"),
        ("events.k8s.io", "v1", "Event"),
        ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
        WIDGET,
    ] {
        let kind = GroupVersionKind::gvk(group, version, kind);
        for discovery in [&found, &aggregated] {
            let (resource, abilities) = discovery.resolve_gvk(&kind).with_context(|| format!("{kind:?}"))?;
            ensure!(resource.kind == kind.kind && resource.group == kind.group);
            for verb in [verbs::CREATE, verbs::GET, verbs::LIST, verbs::WATCH, verbs::PATCH, verbs::DELETE] {
                ensure!(abilities.supports_operation(verb), "{kind:?} {verb}");
            }
            let cluster = matches!(&*kind.kind, "Namespace" | "CustomResourceDefinition");
            ensure!((abilities.scope == Scope::Cluster) == cluster, "{kind:?}");
        }
    }
    let deployments =
        found.get("apps").context("apps")?.recommended_kind("Deployment").context("Deployment")?;
    let mut below: Vec<_> =
        deployments.1.subresources.iter().map(|(below, _)| below.plural.clone()).collect();
    below.sort();
    ensure!(
        below == ["deployments/scale", "deployments/status"] || below == ["scale", "status"],
        "{below:?}"
    );
    let filtered = Discovery::new(world.client.clone()).filter(&["apps"]).run().await?;
    ensure!(filtered.groups().map(|group| group.name()).eq(["apps"]));
    ensure!(!Discovery::new(world.client.clone()).exclude(&["apps", COMING]).run().await?.has_group("apps"));
    Ok(())
}

pub(crate) async fn oneshot(world: World) -> Result<()> {
    let group = discovery::group(&world.client, "kubers.example.com").await?;
    ensure!(group.preferred_version_or_latest() == "v1");
    let (group, version, kind) = WIDGET;
    let pinned = discovery::pinned_group(&world.client, &GroupVersion::gv(group, version)).await?;
    ensure!(pinned.recommended_kind(kind).is_some());
    let (resource, abilities) =
        discovery::pinned_kind(&world.client, &GroupVersionKind::gvk(group, version, kind)).await?;
    ensure!(resource.plural == "widgets" && abilities.scope == Scope::Namespaced);
    ensure!(abilities.subresources.len() == 2, "{:?}", abilities.subresources);
    let (resource, _) =
        discovery::pinned_kind(&world.client, &GroupVersionKind::gvk("", "v1", "Pod")).await?;
    ensure!(resource.plural == "pods" && resource.api_version == "v1");
    let core = discovery::group(&world.client, "").await?;
    ensure!(core.recommended_kind("Pod").is_some());
    ensure!(discovery::group(&world.client, "none.example.com").await.is_err());
    Ok(())
}

/// A kind that comes and goes: discovery follows, its objects go with it.
pub(crate) async fn custom_kinds(world: World) -> Result<()> {
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": "gadgets.coming.example.com"},
        "spec": {
            "group": COMING, "scope": "Cluster",
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    }))?;
    establish(&world.client, &definition).await?;
    let kind = GroupVersionKind::gvk(COMING, "v1alpha1", "Gadget");
    let (resource, abilities) = announced(&world.client, &kind).await?;
    ensure!(abilities.scope == Scope::Cluster);
    let gadgets: Api<DynamicObject> = Api::all_with(world.client.clone(), &resource);
    let gadget = DynamicObject::new("g", &resource).data(json!({"anything": {"goes": [1, 2.5, null, "x"]}}));
    let created = gadgets.create(&PostParams::default(), &gadget).await?;
    ensure!(created.data == gadget.data, "{}", created.data);
    ensure!(gadgets.get("g").await? == created);

    let definitions: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    let name = "gadgets.coming.example.com";
    let uid = definitions.get(name).await?.metadata.uid.context("uid")?;
    definitions.delete(name, &DeleteParams::default()).await?;
    await_condition(definitions, name, conditions::is_deleted(&uid)).await?;
    ensure!(gadgets.get("g").await.is_err());
    establish(&world.client, &definition).await?;
    announced(&world.client, &kind).await?;
    ensure!(gadgets.get_opt("g").await?.is_none(), "objects went with their definition");
    Ok(())
}
