//! `agentcube plugin test`: what a Plugin would change of what runs. Every Group that uses it is rendered by the controllers'
//! own code, and held against the revision that was last carried out in full.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use agentcube_api::labels::{MIDDLEWARE_GROUP, MIDDLEWARE_PLUGIN};
use agentcube_api::{Group, Plugin};
use agentcube_middleware::group::revision::Revision;
use agentcube_middleware::{preview, render};
use clap::Args;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::diff;
use super::files::Files;
use super::schema::Judge;
use crate::client::{Connection, Server, escape, query};
use crate::environment::Environment;
use crate::exit::{Absent, Outcome, say};
use crate::output::{self, Machine, Paint};

/// The exit code for whatever differs: not a failure, and not nothing.
pub(crate) const DIFFERS: u8 = 4;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube plugin test plugin.yaml
  agentcube plugin test plugin.yaml templates.yaml -A
  agentcube plugin test plugin.yaml --app sessions -o json

Nothing is written. Groups of Apps of this plugin are compared, whatever version of it they have. It exits with 0 if nothing
would change, with 4 if something would, and with 1 if a group cannot be rendered.")]
pub(super) struct Arguments {
    /// The Plugin, and the ConfigMaps of its templates; those that are left out are taken from the server
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Only the groups of this App; may be given several times
    #[arg(long, value_name = "NAME")]
    app: Vec<String>,
    /// Apps of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Print for machines
    #[arg(short, long)]
    output: Option<Machine>,
    #[command(flatten)]
    connection: Connection,
}

/// What would happen to a Group.
struct Compared {
    namespace: String,
    group: String,
    /// Kind, name and difference of each object that differs.
    objects: Vec<(String, String, String)>,
    /// Whether its Pods are made anew.
    restarts: bool,
    /// Whether its Pods take another configuration without that.
    reloads: bool,
    fault: Option<String>,
}

pub(super) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let Some(files) = Files::load(&arguments.files)? else { return Ok(Outcome::Failed) };
    let judge = Judge::start().await?;
    let plugin = files.plugin(&judge).await?;
    let server = arguments.connection.open(environment).await?;
    let texts = texts(&server, &files, &plugin).await?;
    let groups = groups(&server, &arguments, &plugin).await?;
    if groups.is_empty() {
        say(&format!("no App uses plugin {}", plugin.spec.name));
    }
    let mut compared = Vec::new();
    for group in &groups {
        compared.push(compare(&server, group, &plugin, &texts).await?);
    }
    match arguments.output {
        Some(machine) => machine.print(&json!(compared.iter().map(machine_form).collect::<Vec<_>>()))?,
        None => {
            let paint = Paint::on(environment.stdout);
            let text: String = compared.iter().map(|one| people(one, paint)).collect();
            output::write(text.as_bytes())?;
        }
    }
    Ok(match () {
        () if compared.iter().any(|one| one.fault.is_some()) => Outcome::Failed,
        () if compared.iter().any(|one| !one.objects.is_empty()) => Outcome::Remote(DIFFERS),
        () => Outcome::Done,
    })
}

/// The templates: of the files, or else of ConfigMaps beside the Plugin.
async fn texts(server: &Server, files: &Files, plugin: &Plugin) -> anyhow::Result<BTreeMap<String, String>> {
    let namespace = plugin.namespace().unwrap_or_else(|| server.namespace.clone());
    let mut maps: BTreeMap<String, Value> = BTreeMap::new();
    let references = plugin.spec.templates.iter().filter_map(|template| template.config_map_ref.as_ref());
    for reference in references {
        if files.config_map(&reference.name, &reference.key).is_none() && !maps.contains_key(&reference.name)
        {
            let (place, name) = (escape(&namespace), escape(&reference.name));
            let found = match server.get(&format!("/api/v1/namespaces/{place}/configmaps/{name}")).await {
                Err(error) if error.is_not_found() => Value::Null,
                other => other?,
            };
            maps.insert(reference.name.clone(), found);
        }
    }
    let (texts, missing) = preview::texts(plugin, |name, key| {
        files.config_map(name, key).or_else(|| Some(maps.get(name)?["data"][key].as_str()?.to_owned()))
    });
    match missing.first() {
        Some(name) => {
            let message = format!(
                "template {name} is in a ConfigMap that is neither among the files nor in namespace {namespace}"
            );
            Err(Absent(message).into())
        }
        None => Ok(texts),
    }
}

async fn list<K: DeserializeOwned>(server: &Server, path: &str) -> anyhow::Result<Vec<K>> {
    let mut list = server.get(path).await?;
    let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    Ok(items.into_iter().filter_map(|item| serde_json::from_value(item).ok()).collect())
}

/// The Groups of Apps that use this plugin.
async fn groups(server: &Server, arguments: &Arguments, plugin: &Plugin) -> anyhow::Result<Vec<Group>> {
    let place = match arguments.all_namespaces {
        true => String::new(),
        false => format!("namespaces/{}/", escape(&server.namespace)),
    };
    let selector = format!("{MIDDLEWARE_PLUGIN}={}", plugin.spec.name);
    let options = query(&[("labelSelector", Some(&selector))]);
    let mut groups: Vec<Group> =
        list(server, &format!("/apis/middleware.io/v1alpha1/{place}groups{options}")).await?;
    let app = |group: &Group| group.labels().get(agentcube_api::labels::MIDDLEWARE_APP).cloned();
    if !arguments.app.is_empty() {
        let known: BTreeSet<String> = groups.iter().filter_map(app).collect();
        if let Some(name) = arguments.app.iter().find(|name| !known.contains(*name)) {
            let message = format!("no group of plugin {} belongs to an App {name}", plugin.spec.name);
            return Err(Absent(message).into());
        }
        groups.retain(|group| app(group).is_some_and(|app| arguments.app.contains(&app)));
    }
    groups.sort_by_key(|group| (group.namespace(), group.name_any()));
    Ok(groups)
}

/// What was last carried out in full, or else the newest that was begun.
async fn running(server: &Server, group: &Group) -> anyhow::Result<Option<Revision>> {
    let place = escape(&group.namespace().unwrap_or_default());
    let selector = format!("{MIDDLEWARE_GROUP}={}", group.name_any());
    let options = query(&[("labelSelector", Some(&selector))]);
    let path = format!("/apis/apps/v1/namespaces/{place}/controllerrevisions{options}");
    let mut kept: Vec<ControllerRevision> = list(server, &path).await?;
    let uid = group.uid().unwrap_or_default();
    kept.retain(|kept| kept.owner_references().iter().any(|owner| owner.uid == uid));
    kept.sort_by_key(|kept| kept.revision);
    let read = |kept: &ControllerRevision| serde_json::from_value(kept.data.as_ref()?.0.clone()).ok();
    let mut revisions: Vec<Revision> = kept.iter().filter_map(read).collect();
    let complete = group.status.as_ref().and_then(|status| status.last_completed_revision.clone());
    let at = revisions.iter().position(|revision| Some(&revision.name) == complete.as_ref());
    Ok(match at {
        Some(at) => Some(revisions.swap_remove(at)),
        None => revisions.pop(),
    })
}

async fn compare(
    server: &Server,
    group: &Group,
    plugin: &Plugin,
    texts: &BTreeMap<String, String>,
) -> anyhow::Result<Compared> {
    let old = running(server, group).await?.unwrap_or_default();
    let mut compared = Compared {
        namespace: group.namespace().unwrap_or_default(),
        group: group.name_any(),
        objects: Vec::new(),
        restarts: false,
        reloads: false,
        fault: None,
    };
    let new = match render::render(group, plugin, texts) {
        Ok(new) => new,
        Err(fault) => {
            compared.fault = Some(fault.message);
            return Ok(compared);
        }
    };
    compared.objects = differences(&old, &new);
    compared.restarts = !old.pods.is_empty() && old.pods != new.pods;
    compared.reloads = !compared.restarts && !old.pods.is_empty() && old.configuration != new.configuration;
    Ok(compared)
}

fn differences(old: &Revision, new: &Revision) -> Vec<(String, String, String)> {
    let keyed = |revision: &Revision| -> BTreeMap<(String, String), String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let key = |object: &Value| (text(&object["kind"]), text(&object["metadata"]["name"]));
        revision.objects.iter().map(|object| (key(object), agentcube_api::yaml::render(object))).collect()
    };
    let (old, new) = (keyed(old), keyed(new));
    let keys: BTreeSet<&(String, String)> = old.keys().chain(new.keys()).collect();
    let one = |key: &(String, String)| {
        let side = |side: &BTreeMap<(String, String), String>| side.get(key).cloned().unwrap_or_default();
        let called = format!("{}/{}", key.0, key.1);
        let difference = diff::unified(
            &format!("{called} (runs)"),
            &format!("{called} (rendered)"),
            &side(&old),
            &side(&new),
        );
        (!difference.is_empty()).then(|| (key.0.clone(), key.1.clone(), difference))
    };
    keys.into_iter().filter_map(one).collect()
}

fn consequence(compared: &Compared) -> &'static str {
    match compared {
        Compared { fault: Some(_), .. } => "cannot be rendered",
        Compared { objects, .. } if objects.is_empty() => "stays as it is",
        Compared { restarts: true, .. } => "changes, and its Pods are made anew",
        Compared { reloads: true, .. } => "changes, and its Pods take the configuration without a restart",
        _ => "changes, and its Pods stay",
    }
}

fn machine_form(compared: &Compared) -> Value {
    let object = |(kind, name, difference): &(String, String, String)| json!({ "kind": kind, "name": name, "diff": difference });
    json!({
        "namespace": compared.namespace,
        "group": compared.group,
        "differs": !compared.objects.is_empty(),
        "restartsPods": compared.restarts,
        "reloads": compared.reloads,
        "objects": compared.objects.iter().map(object).collect::<Vec<_>>(),
        "error": compared.fault,
    })
}

fn people(compared: &Compared, paint: Paint) -> String {
    let head = format!("group {}/{}: {}", compared.namespace, compared.group, consequence(compared));
    let mut text = format!("{}\n", paint.strong(&head));
    if let Some(fault) = &compared.fault {
        text.push_str(&format!("{}\n", paint.bad(fault)));
    }
    for (_, _, difference) in &compared.objects {
        for line in difference.lines() {
            // What objects hold must not speak to a terminal.
            let line: String = line
                .chars()
                .flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] })
                .collect();
            let painted = match line.as_bytes().first() {
                Some(b'+') => paint.good(&line),
                Some(b'-') => paint.bad(&line),
                _ => line,
            };
            text.push_str(&format!("{painted}\n"));
        }
    }
    text
}
