//! An App that runs, with its books: what is asked of it whatever it runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentcube_testkit::watch;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::books::{Books, is_ready};
use crate::world::{APPS, GROUPS, LIMIT, LOOK, PODS, World};

pub(crate) struct App {
    pub(crate) world: Arc<World>,
    pub(crate) books: Books,
    pub(crate) name: String,
    pub(crate) group: String,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The task that upgrades, in the list of an App.
fn upgrading(app: &Value) -> Option<&Value> {
    let tasks = app["status"]["tasks"].as_array()?;
    tasks.iter().rev().find(|task| task["type"] == "version_upgrade")
}

impl App {
    /// Makes an App of one component with one group, and waits until it is ready.
    pub(crate) async fn install(world: &Arc<World>, name: &str, plugin: &str, more: Value) -> Result<App> {
        let mut app = json!({
            "apiVersion": "middleware.io/v1alpha1", "kind": "App", "metadata": { "name": name },
            "spec": {
                "plugin": { "name": plugin, "version": "1.0.0" },
                "runtime": { "name": plugin, "version": "older" },
                "components": [{ "name": plugin, "groups": [{
                    "name": "main", "replicas": 3,
                    "resources": { "requests": { "cpu": "10m", "memory": "32Mi" } },
                    "storage": { "size": "64Mi" },
                }] }],
            },
        });
        app["spec"]
            .as_object_mut()
            .context("an object")?
            .extend(more.as_object().context("an object")?.clone());
        if !world.has_volumes() {
            let group = app["spec"]["components"][0]["groups"][0].as_object_mut().context("a group")?;
            group.remove("storage");
        }
        world.create(APPS, &app).await?;
        App::attach(world, name, plugin).await
    }

    /// One that somebody has made, when it is ready.
    pub(crate) async fn attach(world: &Arc<World>, name: &str, plugin: &str) -> Result<App> {
        let group = format!("{name}-{plugin}-main");
        let books = Books::open(&world.http, name, &group).await?;
        world.settled(name).await?;
        Ok(App { world: world.clone(), books, name: name.into(), group })
    }

    /// Takes a backup as users do, and removes the App with everything but that.
    pub(crate) async fn keep_and_destroy(self, backup: &str) -> Result<()> {
        let App { world, name, books, .. } = self;
        let said = world.cli(&["app", "backup", &name, "--name", backup, "--wait"]).await?;
        ensure!(said.starts_with(&format!("backup {backup} is taken: ")), "{said}");
        drop(books);
        world.delete(APPS, &name).await
    }

    /// Its Service for writers.
    pub(crate) fn service(&self) -> String {
        format!("{}-primary", self.group)
    }

    /// Changes the spec.
    pub(crate) async fn change(&self, spec: Value) -> Result<()> {
        self.world.patch(APPS, &self.name, &json!({ "spec": spec })).await.map(drop)
    }

    pub(crate) async fn settled(&self) -> Result<()> {
        self.world.settled(&self.name).await.map(drop)
    }

    /// Changes the one group, and waits until that is carried out.
    pub(crate) async fn change_group(&self, change: Value) -> Result<()> {
        let app = self.world.get(APPS, &self.name).await?;
        let mut components = app["spec"]["components"].clone();
        let group = components[0]["groups"][0].as_object_mut().context("a group")?;
        group.extend(change.as_object().context("an object")?.clone());
        self.change(json!({ "components": components })).await?;
        self.settled().await
    }

    pub(crate) async fn pods(&self) -> Result<Vec<String>> {
        Ok(self.world.pods(&self.group).await?.iter().map(|pod| text(&pod["metadata"]["name"])).collect())
    }

    /// The uids of Pods by name.
    pub(crate) async fn uids(&self) -> Result<BTreeMap<String, String>> {
        let pods = self.world.pods(&self.group).await?;
        Ok(pods.iter().map(|pod| (text(&pod["metadata"]["name"]), text(&pod["metadata"]["uid"]))).collect())
    }

    /// The Pod behind the Service for writers.
    pub(crate) async fn primary(&self) -> Result<String> {
        let looking = async {
            loop {
                // While the role moves there is nobody for a moment.
                if let Some(leader) = self.world.behind(&self.service()).await? {
                    return anyhow::Ok(leader);
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(LIMIT, looking).await.context("nobody leads")?
    }

    /// The Group, when it is as wanted.
    pub(crate) async fn group_until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        self.world.until(GROUPS, &self.group, what, |group| wanted(&group["status"])).await
    }

    /// Every Pod was made anew, one after another, and whoever led at first came last.
    pub(crate) async fn rolled(&self, led: &str) -> Result<()> {
        self.books.taken(3).await?;
        let taken = self.books.close()?;
        ensure!(taken.len() == 3, "not each Pod once: {taken:?}");
        ensure!(taken.last().is_some_and(|last| last == led), "{led} led, and was not the last: {taken:?}");
        Ok(())
    }

    async fn control(&self, annotation: &str, list: &str) -> Result<()> {
        let app = self.world.get(APPS, &self.name).await?;
        let task = upgrading(&app).context("a task that upgrades")?["taskId"].clone();
        let control = json!({ list: [task] }).to_string();
        let patch = json!({ "metadata": { "annotations": { annotation: control } } });
        self.world.patch(APPS, &self.name, &patch).await.map(drop)
    }

    /// Begins an upgrade, and cancels it when one Pod has the new version.
    pub(crate) async fn cancel_upgrade(&self) -> Result<()> {
        let before = self.world.get(GROUPS, &self.group).await?["status"]["currentVersion"].clone();
        self.books.limit(1, 3);
        self.change(json!({ "runtime": { "version": "newer" } })).await?;
        self.group_until("one Pod is upgraded", |status| {
            status["upgradeStatus"]["updatedReplicas"].as_i64().is_some_and(|updated| updated >= 1)
        })
        .await?;
        self.control("middleware.io/cancel-control", "cancelTaskIds").await?;
        let cancelled = |app: &Value| upgrading(app).is_some_and(|task| task["status"] == "cancelled");
        self.world.until(APPS, &self.name, "the upgrade is cancelled", cancelled).await?;
        self.books.close()?;
        let group = self.world.get(GROUPS, &self.group).await?;
        ensure!(group["status"]["currentVersion"] == before, "{}", group["status"]);
        Ok(())
    }

    /// Takes the upgrade that was cancelled up again.
    pub(crate) async fn retry_upgrade(&self) -> Result<()> {
        let led = self.primary().await?;
        self.books.limit(1, 3);
        self.control("middleware.io/retry-control", "retryTaskIds").await?;
        self.settled().await?;
        self.rolled(&led).await?;
        let group = self.world.get(GROUPS, &self.group).await?;
        ensure!(group["status"]["currentVersion"] == "newer", "{}", group["status"]);
        Ok(())
    }

    /// Begins a change of the spec, and waits until the first Pod that it makes anew is ready.
    pub(crate) async fn change_one(&self, spec: Value) -> Result<()> {
        let before = self.uids().await?;
        self.change(spec).await?;
        let path = format!("{PODS}?labelSelector=middleware.io%2Fgroup%3D{}", self.group);
        let is_new = |(name, pod): (&String, &Value)| {
            is_ready(pod) && before.get(name).is_some_and(|uid| pod["metadata"]["uid"] != **uid)
        };
        let one = |pods: &watch::Objects| pods.iter().any(is_new);
        watch::until(&self.world.http, &path, "one Pod is made anew", LIMIT, one).await.map(drop)
    }

    /// Waits until somebody leads whom it may be, as far as we say, and all Pods are ready.
    pub(crate) async fn led_by(&self, may: impl Fn(&str) -> bool) -> Result<String> {
        let path = format!("{PODS}?labelSelector=middleware.io%2Fgroup%3D{}", self.group);
        let leads = |pod: &Value| pod["metadata"]["labels"]["middleware.io/role"] == "primary";
        let mut leader = String::new();
        watch::until(&self.world.http, &path, "somebody leads", LIMIT, |pods| {
            let leaders: Vec<&String> =
                pods.iter().filter(|(_, pod)| leads(pod)).map(|(name, _)| name).collect();
            match leaders.as_slice() {
                [one] if may(one) => leader = (*one).clone(),
                _ => return false,
            }
            pods.len() == 3 && pods.values().all(is_ready)
        })
        .await?;
        Ok(leader)
    }
}
