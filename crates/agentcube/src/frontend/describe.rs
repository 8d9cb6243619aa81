//! `agentcube frontend describe`.

use agentcube_api::labels::FORGE_FI_NAME;
use agentcube_api::{FrontendIntegration, JSBundle};
use anyhow::Context;
use clap::Args;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{is_ready, machine_form, paths, phase, read};
use crate::client::{Connection, Server, escape, query};
use crate::describe::events;
use crate::environment::Environment;
use crate::exit::Outcome;
use crate::output::{self, Machine, Paint, Table, age};

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube frontend describe tasks
  agentcube frontend describe tasks -o json")]
pub(super) struct Arguments {
    /// The front end
    #[arg(value_name = "NAME")]
    name: String,
    /// Print for machines
    #[arg(short, long)]
    output: Option<Machine>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let server = arguments.connection.open(environment).await?;
    let object = read(&server, &arguments.name).await?;
    let integration: FrontendIntegration =
        serde_json::from_value(object.clone()).context("the FrontendIntegration cannot be read")?;
    let bundle = bundle(&server, &integration).await;
    let jobs = jobs(&server, &integration).await;
    if let Some(machine) = arguments.output {
        let mut form = machine_form(&integration);
        form["bundle"] = json!(bundle.as_ref().map(bundle_form));
        form["jobs"] = json!(jobs.iter().map(job_form).collect::<Vec<_>>());
        form["conditions"] = object["status"]["conditions"].clone();
        machine.print(&form)?;
        return Ok(Outcome::Done);
    }
    let paint = Paint::on(environment.stdout);
    let events = events::fetch(&server, &object).await?;
    let text = format!(
        "{}{}{}",
        summary(&integration, bundle.as_ref(), paint),
        builds(&jobs, paint),
        events::render(&events, paint)
    );
    output::write(text.as_bytes())?;
    Ok(Outcome::Done)
}

/// Whoever may not read bundles is told less.
async fn bundle(server: &Server, integration: &FrontendIntegration) -> Option<JSBundle> {
    let name = agentcube_forge::names::bundle(&integration.name_any());
    let place = escape(&server.namespace);
    let path = format!("/apis/frontend-forge.io/v1alpha1/namespaces/{place}/jsbundles/{name}");
    serde_json::from_value(server.get(&path).await.ok()?).ok()
}

async fn jobs(server: &Server, integration: &FrontendIntegration) -> Vec<Value> {
    let label = agentcube_forge::names::label(&integration.name_any());
    let selector = query(&[("labelSelector", Some(&format!("{FORGE_FI_NAME}={label}")))]);
    let path = format!("/apis/batch/v1/namespaces/{}/jobs{selector}", escape(&server.namespace));
    let list = server.get(&path).await.unwrap_or_default();
    let mut jobs = list["items"].as_array().cloned().unwrap_or_default();
    let number = |job: &Value| job["metadata"]["name"].as_str().and_then(agentcube_forge::names::number);
    jobs.sort_by_key(number);
    jobs
}

fn bundle_form(bundle: &JSBundle) -> Value {
    let files: Vec<Value> = bundle
        .spec
        .files
        .iter()
        .map(|file| json!({ "path": file.path, "size": file.size, "sha256": file.sha256 }))
        .collect();
    let state = bundle.status.as_ref().and_then(|status| status.state);
    json!({ "name": bundle.name_any(), "state": state, "files": files })
}

fn job_form(job: &Value) -> Value {
    json!({ "name": job["metadata"]["name"], "outcome": outcome(job), "created": job["metadata"]["creationTimestamp"] })
}

fn outcome(job: &Value) -> &'static str {
    let holds = |type_: &str| {
        let mut all = job["status"]["conditions"].as_array().into_iter().flatten();
        all.any(|one| one["type"] == type_ && one["status"] == "True")
    };
    match (holds("Complete"), holds("Failed")) {
        (true, _) => "complete",
        (_, true) => "failed",
        _ => "running",
    }
}

fn summary(integration: &FrontendIntegration, bundle: Option<&JSBundle>, paint: Paint) -> String {
    let status = integration.status.clone().unwrap_or_default();
    let ready = if is_ready(integration) { "ready" } else { "not ready" };
    let mut table = Table::default();
    let mut row = |name: &str, value: String| table.row([paint.strong(name), value]);
    row("Name:", integration.name_any());
    row("Namespace:", integration.namespace().unwrap_or_default());
    row("Phase:", format!("{}, {ready}", phase(integration)));
    row("Message:", status.message.unwrap_or_default());
    row("Pages:", paths(integration).join(", "));
    row("Spec:", status.observed_spec_hash.unwrap_or_else(|| "<not looked at yet>".into()));
    row("Manifest:", status.observed_manifest_hash.unwrap_or_else(|| "<none>".into()));
    let shown = bundle.map_or_else(
        || "<none>".into(),
        |bundle| {
            let bytes: i64 = bundle.spec.files.iter().filter_map(|file| file.size).sum();
            let state = bundle.status.as_ref().and_then(|status| status.state);
            let state = state.map_or_else(|| "not looked at yet".into(), |state| format!("{state:?}"));
            format!("{} ({} files, {bytes} bytes, {state})", bundle.name_any(), bundle.spec.files.len())
        },
    );
    row("Bundle:", shown);
    table.render()
}

fn builds(jobs: &[Value], paint: Paint) -> String {
    if jobs.is_empty() {
        return format!("{} <none>\n", paint.strong("Builds:"));
    }
    let mut table = Table::with_header(["JOB", "OUTCOME", "AGE"]);
    for job in jobs {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let word = outcome(job);
        let painted = if word == "failed" { paint.warning(word) } else { word.to_owned() };
        let created = &job["metadata"]["creationTimestamp"];
        table.row([text(&job["metadata"]["name"]), painted, age::stated(created.as_str())]);
    }
    format!("{}\n{}", paint.strong("Builds:"), table.indented(2))
}
