//! `agentcube plugin render`: the objects that the controllers would make, printed.

use std::path::PathBuf;

use agentcube_middleware::group::revision::Revision;
use agentcube_middleware::{preview, render};
use clap::Args;
use kube::ResourceExt;
use serde_json::json;

use super::files::{Files, Trial};
use super::schema::Judge;
use crate::exit::{Absent, Outcome, say};
use crate::output::{self, Machine};

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube plugin render plugin.yaml
  agentcube plugin render plugin.yaml templates.yaml --app app.yaml --group nodes-main
  agentcube plugin render plugin.yaml --values values.yaml --set replicas.max=3 -o json

It needs no cluster. What is printed is what the controllers would apply, but for owners and volumes that are there already.")]
pub(super) struct Arguments {
    /// The Plugin, and the ConfigMaps of its templates
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    trial: Trial,
    /// Only this group, by the end of its name
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// The namespace of the App, if it names none
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Print a stream of YAML, or a List in JSON
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: Machine,
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let Some(files) = Files::load(&arguments.files)? else { return Ok(Outcome::Failed) };
    let judge = Judge::start().await?;
    let plugin = files.plugin(&judge).await?;
    let (texts, missing) = files.texts(&plugin);
    if let Some(name) = missing.first() {
        anyhow::bail!(
            "template {name} is in a ConfigMap that is not among the files: name that file as well"
        );
    }
    let app = arguments.trial.app(&judge, &plugin.spec, &arguments.namespace).await?;
    if let Some(refusal) = preview::refusal(&app, &plugin) {
        anyhow::bail!("the App would be refused ({}): {refusal}", refusal.reason);
    }
    let mut groups = preview::groups(&app);
    if let Some(end) = &arguments.group {
        let all: Vec<String> = groups.iter().map(ResourceExt::name_any).collect();
        groups.retain(|group| group.name_any().ends_with(end.as_str()));
        if groups.is_empty() {
            return Err(Absent(format!("there is no group {end}; there are {}", all.join(", "))).into());
        }
    }
    let (mut revisions, mut failed): (Vec<(String, Revision)>, bool) = (Vec::new(), false);
    for group in groups {
        match render::render(&group, &plugin, &texts) {
            Ok(revision) => revisions.push((group.name_any(), revision)),
            Err(fault) => {
                say(&format!("error: group {}: {}", group.name_any(), fault.message));
                failed = true;
            }
        }
    }
    if failed {
        return Ok(Outcome::Failed);
    }
    match arguments.output {
        Machine::Json => {
            let items: Vec<_> = revisions.into_iter().flat_map(|(_, revision)| revision.objects).collect();
            Machine::Json.print(&json!({ "apiVersion": "v1", "kind": "List", "items": items }))?;
        }
        Machine::Yaml => {
            let mut text = String::new();
            for (name, revision) in &revisions {
                for object in &revision.objects {
                    text.push_str(&format!("---\n# group {name}, revision {}\n", revision.name));
                    text.push_str(&agentcube_api::yaml::render(object));
                }
            }
            output::write(text.as_bytes())?;
        }
    }
    Ok(Outcome::Done)
}
