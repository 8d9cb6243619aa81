//! An App with everything below it, read from the server; and the news of it.

use std::collections::BTreeMap;
use std::time::Duration;

use agentcube_api::labels::MIDDLEWARE_APP;
use agentcube_api::middleware::app::AppPhase;
use agentcube_api::{App, Component, Group};
use k8s_openapi::api::core::v1::Pod;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::{Error, Server, escape, query};
use crate::exit::Absent;

const ROOT: &str = "/apis/middleware.io/v1alpha1";
/// News that come together are shown together.
const GATHER: Duration = Duration::from_millis(150);
/// Before watches that have ended are begun anew; so often everything is looked at anyway.
const REST: Duration = Duration::from_secs(2);
/// The longest time without a look.
const LONGEST: Duration = Duration::from_secs(30);

/// Everything of an App.
pub(super) struct World {
    pub(super) app: App,
    pub(super) components: Vec<Component>,
    pub(super) groups: Vec<Group>,
    /// By name.
    pub(super) pods: BTreeMap<String, Pod>,
    /// The revision of each list, in the order of [`paths`].
    pub(super) versions: [String; 4],
}

/// The path of Apps, of those of a namespace, or of one.
pub(super) fn apps_path(namespace: Option<&str>, name: Option<&str>) -> String {
    let namespace = namespace.map(|name| format!("/namespaces/{}", escape(name))).unwrap_or_default();
    let name = name.map(|name| format!("/{}", escape(name))).unwrap_or_default();
    format!("{ROOT}{namespace}/apps{name}")
}

/// Lists are there, if only empty, unless the server has no such kind.
pub(super) fn explain(error: Error) -> anyhow::Error {
    match error.is_not_found() {
        true => {
            Absent("the server has no Apps: `agentcube up` and `agentcube install` bring them".into()).into()
        }
        false => error.into(),
    }
}

fn selector(name: &str) -> String {
    query(&[("labelSelector", Some(&format!("{MIDDLEWARE_APP}={name}")))])
}

/// The App itself as a list, its Components, its Groups, its Pods.
fn paths(server: &Server, name: &str) -> [String; 4] {
    let namespace = escape(&server.namespace);
    let only = query(&[("fieldSelector", Some(&format!("metadata.name={name}")))]);
    [
        format!("{}{only}", apps_path(Some(&server.namespace), None)),
        format!("{ROOT}/namespaces/{namespace}/components{}", selector(name)),
        format!("{ROOT}/namespaces/{namespace}/groups{}", selector(name)),
        format!("/api/v1/namespaces/{namespace}/pods{}", selector(name)),
    ]
}

/// Objects and the revision of the list. What cannot be read is left out.
async fn list<K: DeserializeOwned>(server: &Server, path: &str) -> Result<(Vec<K>, String), Error> {
    let mut list = server.get(path).await?;
    let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    Ok((items.into_iter().filter_map(|item| serde_json::from_value(item).ok()).collect(), version))
}

impl World {
    pub(super) async fn read(server: &Server, name: &str) -> anyhow::Result<World> {
        let [apps, components, groups, pods] = paths(server, name);
        let (mut apps, of_apps) = list::<App>(server, &apps).await.map_err(explain)?;
        let Some(app) = apps.pop() else {
            return Err(Absent(format!("there is no App {name} in namespace {}", server.namespace)).into());
        };
        let (components, groups, pods) =
            tokio::try_join!(list(server, &components), list(server, &groups), list::<Pod>(server, &pods))?;
        let versions = [of_apps, components.1, groups.1, pods.1];
        let pods = pods.0.into_iter().filter_map(|pod| Some((pod.metadata.name.clone()?, pod))).collect();
        Ok(World { app, components: components.0, groups: groups.0, pods, versions })
    }

    /// Whether nothing is under way: the spec was seen and carried out, or it was said why not.
    pub(super) fn is_settled(&self) -> bool {
        let Some(status) = &self.app.status else { return false };
        let phase = matches!(status.phase, Some(AppPhase::Running | AppPhase::Failed | AppPhase::Pending));
        status.observed_generation == self.app.metadata.generation
            && status.tasks.iter().all(|task| task.status.is_final())
            && phase
            && self.app.metadata.deletion_timestamp.is_none()
    }

    pub(super) fn has_failed(&self) -> bool {
        let phase = self.app.status.as_ref().and_then(|status| status.phase);
        phase.is_some_and(|phase| phase != AppPhase::Running)
    }
}

/// Waits until something of an App changes after it was read, or some time has passed.
pub(super) async fn news(server: &Server, world: &World, name: &str) {
    let watches = paths(server, name).into_iter().zip(&world.versions);
    let watches = watches.map(|(path, version)| {
        let path = format!("{path}&watch=true&resourceVersion={}", escape(version));
        Box::pin(change(server, path))
    });
    let any = futures_util::future::select_all(watches);
    if tokio::time::timeout(LONGEST, any).await.is_ok() {
        tokio::time::sleep(GATHER).await;
    }
}

/// Comes back at the first event. A watch that cannot be had is no news, but a reason to look soon.
async fn change(server: &Server, path: String) {
    if let Ok(mut lines) = server.lines(&path, "application/json").await {
        while let Ok(Some(line)) = lines.next().await {
            if !serde_json::from_slice::<Value>(&line).is_ok_and(|event| event["type"] == "BOOKMARK") {
                return;
            }
        }
    }
    tokio::time::sleep(REST).await;
}
