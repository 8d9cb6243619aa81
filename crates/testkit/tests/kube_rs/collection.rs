//! What goes when something else goes: owned objects under each propagation policy, and whole namespaces.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::runtime::wait::{await_condition, conditions};
use kube::{Resource, ResourceExt};
use serde_json::json;

use crate::fixtures::{Widget, config_map, widget};
use crate::world::{World, refused};

/// A parent, its child, and the child's child.
struct Family {
    parents: Api<Widget>,
    children: Api<ConfigMap>,
    parent: Widget,
    child: ConfigMap,
    grandchild: ConfigMap,
}

impl Family {
    async fn new(world: &World, finalizer: Option<&str>) -> Result<Family> {
        let (parents, children): (Api<Widget>, Api<ConfigMap>) = (world.api(), world.api());
        let parent = parents.create(&PostParams::default(), &widget("parent", "t")).await?;
        let mut child = config_map("child", &[]);
        let mut owner = parent.controller_owner_ref(&()).context("owner")?;
        owner.block_owner_deletion = Some(true);
        child.metadata.owner_references = Some(vec![owner]);
        child.metadata.finalizers = finalizer.map(|name| vec![name.to_owned()]);
        let child = children.create(&PostParams::default(), &child).await?;
        let mut grandchild = config_map("grandchild", &[]);
        grandchild.metadata.owner_references = child.owner_ref(&()).map(|owner| vec![owner]);
        let grandchild = children.create(&PostParams::default(), &grandchild).await?;
        Ok(Family { parents, children, parent, child, grandchild })
    }

    async fn child_gone(&self, child: &ConfigMap) -> Result<()> {
        let uid = child.uid().context("uid")?;
        await_condition(self.children.clone(), &child.name_any(), conditions::is_deleted(&uid)).await?;
        Ok(())
    }
}

pub(crate) async fn background(world: World) -> Result<()> {
    let family = Family::new(&world, None).await?;
    family.parents.delete("parent", &DeleteParams::background()).await?;
    ensure!(family.parents.get_opt("parent").await?.is_none(), "the parent goes at once");
    family.child_gone(&family.child).await?;
    family.child_gone(&family.grandchild).await?;

    // A child of a parent that never was is collected, too.
    let mut orphan = config_map("orphan", &[]);
    let mut owner = family.parent.controller_owner_ref(&()).context("owner")?;
    owner.uid = "00000000-0000-0000-0000-000000000000".into();
    orphan.metadata.owner_references = Some(vec![owner]);
    let orphan = family.children.create(&PostParams::default(), &orphan).await?;
    family.child_gone(&orphan).await?;

    // A child with one owner left stays.
    let left = family.children.create(&PostParams::default(), &config_map("left", &[])).await?;
    let parent = family.parents.create(&PostParams::default(), &widget("second", "t")).await?;
    let mut shared = config_map("shared", &[]);
    shared.metadata.owner_references =
        Some(vec![parent.controller_owner_ref(&()).context("owner")?, left.owner_ref(&()).context("owner")?]);
    family.children.create(&PostParams::default(), &shared).await?;
    family.parents.delete("second", &DeleteParams::background()).await?;
    let one_owner =
        |object: Option<&ConfigMap>| object.is_some_and(|object| object.owner_references().len() == 1);
    await_condition(family.children.clone(), "shared", one_owner)
        .await?
        .context("the shared child is gone")?;
    Ok(())
}

pub(crate) async fn foreground(world: World) -> Result<()> {
    const HELD: &str = "kubers.example.com/held";
    let family = Family::new(&world, Some(HELD)).await?;
    family.parents.delete("parent", &DeleteParams::foreground()).await?;
    let going = |object: Option<&ConfigMap>| {
        object.is_some_and(|object| object.metadata.deletion_timestamp.is_some())
    };
    await_condition(family.children.clone(), "child", going).await?;
    let parent = family.parents.get("parent").await?;
    ensure!(parent.metadata.deletion_timestamp.is_some(), "the parent waits for its child");
    ensure!(parent.finalizers() == ["foregroundDeletion"], "{:?}", parent.finalizers());
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    family.children.patch("child", &PatchParams::default(), &release).await?;
    family.child_gone(&family.child).await?;
    let uid = family.parent.uid().context("uid")?;
    await_condition(family.parents.clone(), "parent", conditions::is_deleted(&uid)).await?;
    family.child_gone(&family.grandchild).await
}

pub(crate) async fn orphans(world: World) -> Result<()> {
    let family = Family::new(&world, None).await?;
    family.parents.delete("parent", &DeleteParams::orphan()).await?;
    let uid = family.parent.uid().context("uid")?;
    await_condition(family.parents.clone(), "parent", conditions::is_deleted(&uid)).await?;
    let free = |object: Option<&ConfigMap>| object.is_none_or(|object| object.owner_references().is_empty());
    let child = await_condition(family.children.clone(), "child", free).await?;
    ensure!(child.is_some_and(|child| child.uid() == family.child.uid()), "an orphan lives");
    ensure!(!family.children.get("grandchild").await?.owner_references().is_empty());
    Ok(())
}

pub(crate) async fn namespace(world: World) -> Result<()> {
    const HELD: &str = "kubers.example.com/held";
    let name = format!("{}-going", world.namespace);
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
    let created =
        namespaces.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() }).await?;
    let (maps, widgets): (Api<ConfigMap>, Api<Widget>) =
        (Api::namespaced(world.client.clone(), &name), Api::namespaced(world.client.clone(), &name));
    for n in 0..5 {
        maps.create(&PostParams::default(), &config_map(&format!("n{n}"), &[])).await?;
    }
    let mut held = widget("held", "t");
    held.metadata.finalizers = Some(vec![HELD.into()]);
    let held = widgets.create(&PostParams::default(), &held).await?;

    namespaces.delete(&name, &DeleteParams::default()).await?;
    let going =
        |object: Option<&Widget>| object.is_some_and(|object| object.metadata.deletion_timestamp.is_some());
    await_condition(widgets.clone(), "held", going).await?;
    let status =
        refused(maps.create(&PostParams::default(), &config_map("late", &[])).await, 403, "Forbidden")?;
    ensure!(status.message.contains("because it is being terminated"), "{}", status.message);
    let waiting = |object: Option<&Namespace>| {
        object.is_some_and(|object| {
            let status = object.status.clone().unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default();
            let finalizers = conditions
                .iter()
                .find(|condition| condition.type_ == "NamespaceFinalizersRemaining")
                .cloned();
            status.phase.as_deref() == Some("Terminating")
                && finalizers.is_some_and(|condition| condition.status == "True")
        })
    };
    await_condition(namespaces.clone(), &name, waiting).await?.context("the namespace must wait")?;

    widgets
        .patch("held", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"finalizers": null}})))
        .await?;
    await_condition(widgets.clone(), "held", conditions::is_deleted(&held.uid().context("uid")?)).await?;
    await_condition(namespaces, &name, conditions::is_deleted(&created.uid().context("uid")?)).await?;
    ensure!(maps.list(&ListParams::default()).await?.items.is_empty());
    Ok(())
}
