//! A real `kube::runtime::Controller` over a custom kind that owns ConfigMaps, with finalizers and Events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::core::v1::Event as CoreEvent;
use k8s_openapi::api::events::v1::Event as GroupEvent;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::finalizer::{self, finalizer};
use kube::runtime::utils::Backoff;
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{Controller, watcher};
use kube::{Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::AbortHandle;

use crate::fixtures::{Widget, widget};
use crate::world::World;

/// A reconciler that keeps each Widget's text in a ConfigMap of the same name, and says so in its status.
pub(crate) struct Keeper {
    client: Client,
    reconciled: Mutex<HashMap<String, usize>>,
}

impl Keeper {
    /// How often a Widget was looked at.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.reconciled.lock().get(name).copied().unwrap_or_default()
    }
}

/// Ends the controller when dropped.
pub(crate) struct Running {
    pub(crate) keeper: Arc<Keeper>,
    task: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A short pause, always the same, so that a trial under faults does not take minutes.
struct Pause;

impl Iterator for Pause {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(Duration::from_millis(5))
    }
}

impl Backoff for Pause {
    fn reset(&mut self) {}
}

/// Starts the controller on the Widgets of one namespace.
pub(crate) fn start(client: &Client, namespace: &str) -> Running {
    let keeper = Arc::new(Keeper { client: client.clone(), reconciled: Mutex::default() });
    let widgets: Api<Widget> = Api::namespaced(client.clone(), namespace);
    let children: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let controller = Controller::new(widgets, watcher::Config::default())
        .owns(children, watcher::Config::default())
        .trigger_backoff(Pause)
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_millis(5)), keeper.clone());
    let task = tokio::spawn(controller.for_each(|_| async {})).abort_handle();
    Running { keeper, task }
}

async fn reconcile(widget: Arc<Widget>, keeper: Arc<Keeper>) -> Result<Action, kube::Error> {
    let name = widget.name_any();
    *keeper.reconciled.lock().entry(name.clone()).or_default() += 1;
    let namespace = widget.namespace().unwrap_or_default();
    let children: Api<ConfigMap> = Api::namespaced(keeper.client.clone(), &namespace);
    let child = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "ownerReferences": [widget.controller_owner_ref(&())]},
        "data": {"text": widget.spec.text},
    });
    let manager = PatchParams::apply("keeper").force();
    children.patch(&name, &manager, &Patch::Apply(child)).await?;
    let status = json!({
        "apiVersion": "kubers.example.com/v1", "kind": "Widget", "metadata": {"name": name},
        "status": {"text": widget.spec.text, "observedGeneration": widget.metadata.generation},
    });
    let widgets: Api<Widget> = Api::namespaced(keeper.client.clone(), &namespace);
    widgets.patch_status(&name, &manager, &Patch::Apply(status)).await?;
    Ok(Action::await_change())
}

/// Waits until the status says that the latest spec was seen.
pub(crate) async fn settled(api: &Api<Widget>, name: &str) -> Result<Widget> {
    let seen = |object: Option<&Widget>| {
        object.is_some_and(|object| {
            let status = object.status.clone().unwrap_or_default();
            Some(status.observed_generation) == object.metadata.generation && status.text == object.spec.text
        })
    };
    await_condition(api.clone(), name, seen).await?.with_context(|| format!("{name} is gone"))
}

async fn child_with(api: &Api<ConfigMap>, name: &str, text: &str, not: Option<&str>) -> Result<ConfigMap> {
    let (text, not) = (text.to_owned(), not.map(str::to_owned));
    let as_wanted = move |object: Option<&ConfigMap>| {
        object.is_some_and(|object| {
            object.data.as_ref().and_then(|data| data.get("text")) == Some(&text) && object.uid() != not
        })
    };
    await_condition(api.clone(), name, as_wanted).await?.context("the child is gone")
}

pub(crate) async fn converges_and_rests(world: World) -> Result<()> {
    let widgets: Api<Widget> = world.api();
    let children: Api<ConfigMap> = world.api();
    let running = start(&world.client, &world.namespace);
    let parent = widgets.create(&PostParams::default(), &widget("a", "one")).await?;
    settled(&widgets, "a").await?;
    let child = child_with(&children, "a", "one", None).await?;
    ensure!(child.owner_references().iter().map(|owner| &owner.uid).eq(parent.metadata.uid.as_ref()));

    children.delete("a", &DeleteParams::default()).await?;
    let child = child_with(&children, "a", "one", child.metadata.uid.as_deref()).await?;
    children.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"text": "edited"}}))).await?;
    let healed = child_with(&children, "a", "one", None).await?;
    ensure!(healed.uid() == child.uid(), "an edited child is mended, not replaced");
    widgets.patch("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"text": "two"}}))).await?;
    settled(&widgets, "a").await?;
    child_with(&children, "a", "two", None).await?;

    // Rest: while others come and settle, nothing makes the controller look at this one again and again.
    settle_another(&widgets, "b").await?;
    let before = (widgets.get("a").await?, children.get("a").await?, running.keeper.count("a"));
    for n in 0..20 {
        settle_another(&widgets, &format!("other-{n}")).await?;
    }
    let after = (widgets.get("a").await?, children.get("a").await?);
    ensure!((&after.0, &after.1) == (&before.0, &before.1), "a settled object is not written");
    let more = running.keeper.count("a") - before.2;
    ensure!(more <= 2, "a settled object was looked at {more} times more");
    for n in 0..20 {
        let count = running.keeper.count(&format!("other-{n}"));
        ensure!(count <= 6, "an object took {count} looks to settle");
    }
    Ok(())
}

async fn settle_another(widgets: &Api<Widget>, name: &str) -> Result<()> {
    widgets.create(&PostParams::default(), &widget(name, "other")).await?;
    settled(widgets, name).await.map(drop)
}

pub(crate) async fn finalizes(world: World) -> Result<()> {
    const NAME: &str = "kubers.example.com/cleanup";
    let api: Api<Widget> = world.api();
    api.create(&PostParams::default(), &widget("a", "t")).await?;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let look = || async {
        let object = Arc::new(api.get("a").await?);
        let seen = seen.clone();
        let handled = finalizer(&api, NAME, object, |event| async move {
            seen.lock().push(match event {
                finalizer::Event::Apply(_) => "apply",
                finalizer::Event::Cleanup(_) => "cleanup",
            });
            Ok::<_, std::convert::Infallible>(Action::await_change())
        });
        handled.await.map_err(anyhow::Error::from)
    };
    look().await?;
    ensure!(api.get("a").await?.finalizers() == [NAME], "first the finalizer, then the work");
    look().await?;
    let uid = api.get("a").await?.uid().context("uid")?;
    let deleted = api.delete("a", &DeleteParams::default()).await?;
    ensure!(deleted.left().is_some_and(|object| object.metadata.deletion_timestamp.is_some()));
    let marked = api.get("a").await?;
    api.delete("a", &DeleteParams::default()).await?;
    ensure!(api.get("a").await?.metadata.deletion_timestamp == marked.metadata.deletion_timestamp);
    look().await?;
    await_condition(api.clone(), "a", conditions::is_deleted(&uid)).await?;
    ensure!(*seen.lock() == ["apply", "cleanup"], "{:?}", seen.lock());
    Ok(())
}

pub(crate) async fn records_events(world: World) -> Result<()> {
    let api: Api<Widget> = world.api();
    let object = api.create(&PostParams::default(), &widget("a", "t")).await?;
    let recorder =
        Recorder::new(world.client.clone(), Reporter { controller: "keeper".into(), instance: None });
    let event = |note: &str| Event {
        type_: EventType::Warning,
        reason: "Worried".into(),
        note: Some(note.into()),
        action: "Worry".into(),
        secondary: None,
    };
    recorder.publish(&event("first"), &object.object_ref(&())).await?;
    recorder.publish(&event("second"), &object.object_ref(&())).await?;

    let grouped: Api<GroupEvent> = world.api();
    let found = grouped.list(&ListParams::default().fields("reason=Worried")).await?;
    ensure!(found.items.len() == 1, "the second is the same event again: {:?}", found.items);
    let series = found.items[0].series.clone().context("series")?;
    ensure!(series.count == 2);
    let core: Api<CoreEvent> = world.api();
    let uid = object.uid().context("uid")?;
    let about =
        format!("involvedObject.name=a,involvedObject.kind=Widget,involvedObject.uid={uid},type=Warning");
    let found = core.list(&ListParams::default().fields(&about)).await?;
    ensure!(found.items.len() == 1, "kubectl describe would show nothing");
    let event = &found.items[0];
    ensure!(event.message.as_deref() == Some("first"), "{:?}", event.message);
    ensure!(
        event.reporting_component.as_deref() == Some("keeper") && event.action.as_deref() == Some("Worry")
    );
    ensure!(event.series.as_ref().and_then(|series| series.count) == Some(2));
    Ok(())
}
