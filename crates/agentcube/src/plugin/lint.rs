//! `agentcube plugin lint`: all that is wrong with a Plugin, at once, each with its place: what the API server would refuse, and
//! what it cannot know.

use std::collections::BTreeSet;
use std::path::PathBuf;

use agentcube_api::Plugin;
use agentcube_api::middleware::PluginSpec;
use agentcube_api::middleware::group::{Policies, RoleDetection};
use agentcube_api::middleware::plugin::PluginTemplate;
use agentcube_middleware::app::plan::plugin_name;
use agentcube_middleware::{preview, render};
use agentcube_middleware_agent::serve::role_pattern;
use agentcube_middleware_agent::words;
use agentcube_template::Templates;
use clap::Args;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::files::{Files, Trial, component_names};
use super::schema::Judge;
use crate::exit::{Outcome, Usage, say};
use crate::output::{self, Machine};

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube plugin lint plugin.yaml
  agentcube plugin lint plugin.yaml templates.yaml --app app.yaml
  agentcube plugin lint plugin.yaml -o json

It needs no cluster. It exits with 1 if something is wrong; notes are not.")]
pub(super) struct Arguments {
    /// The Plugins, and the ConfigMaps of their templates
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    trial: Trial,
    /// Print for machines
    #[arg(short, long)]
    output: Option<Machine>,
}

/// Something to say about a field.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    field: String,
    message: String,
    /// It may be as intended.
    note: bool,
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn wrong(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Finding { field: field.into(), message: message.into(), note: false });
    }

    fn note(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Finding { field: field.into(), message: message.into(), note: true });
    }
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let Some(files) = Files::load(&arguments.files)? else { return Ok(Outcome::Failed) };
    let judge = Judge::start().await?;
    let mut told: Vec<(String, Finding)> = Vec::new();
    for document in &files.documents {
        let mut findings = Findings::default();
        let is_plugin = document.text(&["kind"]) == "Plugin";
        let kept = match judge.judge(document).await? {
            Ok(kept) => kept,
            Err(wrong) => {
                wrong.into_iter().for_each(|(field, message)| findings.wrong(field, message));
                document.object.clone()
            }
        };
        // What the server refuses can often be read all the same, and there may be more to say about it.
        if let (true, Ok(plugin)) = (is_plugin, serde_json::from_value::<Plugin>(kept)) {
            check(&plugin, &mut findings);
            templates(&plugin, &files, &mut findings);
            if findings.0.iter().all(|finding| finding.note) {
                rendering(&plugin, &files, &arguments.trial, &judge, &mut findings).await?;
            }
        }
        findings.0.sort_by_key(|finding| document.line(&finding.field));
        let located = findings.0.into_iter().map(|finding| (document.place(Some(&finding.field)), finding));
        told.extend(located);
    }
    if files.of_kind("Plugin").next().is_none() {
        return Err(Usage("the files hold no Plugin".into()).into());
    }
    let wrong = told.iter().filter(|(_, finding)| !finding.note).count();
    match arguments.output {
        Some(machine) => machine.print(&json!(told.iter().map(machine_form).collect::<Vec<_>>()))?,
        None => {
            for (place, Finding { field, message, note }) in &told {
                let word = if *note { "note: " } else { "" };
                let field = if field.is_empty() { String::new() } else { format!("{field}: ") };
                output::write(format!("{place}: {word}{field}{}\n", one_line(message)).as_bytes())?;
            }
            say(&match wrong {
                0 => "nothing is wrong".to_owned(),
                1 => "1 mistake".to_owned(),
                wrong => format!("{wrong} mistakes"),
            });
        }
    }
    Ok(if wrong > 0 { Outcome::Failed } else { Outcome::Done })
}

fn one_line(message: &str) -> String {
    message.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

fn machine_form((place, finding): &(String, Finding)) -> Value {
    json!({
        "place": place,
        "field": finding.field,
        "message": finding.message,
        "severity": if finding.note { "note" } else { "error" },
    })
}

/// What can be said of a Plugin without its templates.
fn check(plugin: &Plugin, findings: &mut Findings) {
    let spec = &plugin.spec;
    let wanted = plugin_name(&spec.name, &spec.version);
    if plugin.name_any() != wanted {
        let message =
            format!("Apps of plugin {} {} look for {wanted}: call it that", spec.name, spec.version);
        findings.wrong("metadata.name", message);
    }
    versions(spec, findings);
    orders(spec, findings);
    commands(spec, findings);
    for (index, template) in spec.templates.iter().enumerate() {
        if !render::types().any(|type_| type_.eq_ignore_ascii_case(&template.type_)) {
            let known: Vec<&str> = render::types().collect();
            let message = format!("{} is none of {}", template.type_, known.join(", "));
            findings.wrong(format!("spec.templates[{index}].type"), message);
        }
    }
    if spec.templates.is_empty() {
        findings.wrong("spec.templates", "there is none: its Groups would be of nothing");
    }
    for key in spec.default_values.keys().filter(|key| render::FACTS.contains(&key.as_str())) {
        let message =
            format!("templates never see it: .Values.{key} is what the controllers say; call it otherwise");
        findings.wrong(format!("spec.defaultValues.{key}"), message);
    }
}

/// Every version has an image, and whatever names a version names one that exists.
fn versions(spec: &PluginSpec, findings: &mut Findings) {
    if spec.runtimes.is_empty() {
        findings.wrong("spec.runtimes", "there is none: every App would be refused");
    }
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for (index, runtime) in spec.runtimes.iter().enumerate() {
        for (number, version) in runtime.versions.iter().enumerate() {
            known.insert(version);
            if spec.images.get(version).is_none_or(|image| image.trim().is_empty()) {
                let message = format!("{} {version} has no image in spec.images", runtime.name);
                findings.wrong(format!("spec.runtimes[{index}].versions[{number}]"), message);
            }
        }
    }
    for version in spec.images.keys().filter(|version| !known.contains(version.as_str())) {
        findings.note(format!("spec.images.{version}"), "no runtime has this version");
    }
    let listed = known.iter().copied().collect::<Vec<_>>().join(", ");
    let paths = spec.compatibility.iter().flat_map(|compatibility| &compatibility.migrate_from);
    for (to, sources) in paths {
        let field = format!("spec.compatibility.migrateFrom.{to}");
        if !known.contains(to.as_str()) {
            findings.wrong(&field, format!("no runtime has version {to}; there are {listed}"));
        }
        for from in sources {
            if from == to {
                findings.wrong(&field, format!("{from} is no upgrade to itself"));
            } else if !known.contains(from.as_str()) {
                findings.note(
                    &field,
                    format!("no runtime has version {from} any more: only Apps that run it still"),
                );
            }
        }
    }
}

/// An order that leaves out a component that another names has forgotten it.
fn orders(spec: &PluginSpec, findings: &mut Findings) {
    let all = component_names(spec);
    let Some(orders) = &spec.orders else { return };
    for (name, order) in [
        ("provision", &orders.provision),
        ("stop", &orders.stop),
        ("update", &orders.update),
        ("upgrade", &orders.upgrade),
    ] {
        let Some(order) = order.as_ref().filter(|order| !order.is_empty()) else { continue };
        for missing in all.iter().filter(|one| !order.contains(one)) {
            let message =
                format!("{missing} is not in it, and is named elsewhere: it would come after the others");
            findings.wrong(format!("spec.orders.{name}"), message);
        }
    }
}

/// Commands are words, which an agent can split; the pattern for roles is one.
fn commands(spec: &PluginSpec, findings: &mut Findings) {
    let mut command = |field: String, text: &str| {
        if let Err(error) = words::split(text) {
            findings.wrong(field, error.to_string());
        }
    };
    let Policies { high_availability, post_upgrade_verify, .. } = &spec.policies;
    let available = high_availability.as_ref();
    if let Some(passive) = available.and_then(|one| one.passive.as_ref()) {
        command(
            "spec.highAvailability.passive.roleDetection.command".into(),
            &passive.role_detection.command,
        );
    }
    if let Some(active) = available.and_then(|one| one.active.as_ref()) {
        let root = "spec.highAvailability.active";
        command(format!("{root}.failoverCommand"), &active.failover_command);
        for (name, text) in [
            ("preFailoverCheck", &active.pre_failover_check),
            ("postFailoverVerify", &active.post_failover_verify),
            ("switchoverCommand", &active.switchover_command),
            ("followCommand", &active.follow_command),
            ("fenceCommand", &active.fence_command),
        ] {
            if let Some(text) = text {
                command(format!("{root}.{name}"), text);
            }
        }
    }
    if let Some(verify) = post_upgrade_verify.as_ref().and_then(|verify| verify.command.as_ref()) {
        command("spec.postUpgradeVerify.command".into(), verify);
    }
    if let Some(commands) = spec.backup.as_ref().and_then(|backup| backup.commands.as_ref()) {
        command("spec.backup.commands.backup".into(), &commands.backup);
        command("spec.backup.commands.restore".into(), &commands.restore);
    }
    for (provider, upload) in spec.backup.iter().flat_map(|backup| &backup.upload_commands) {
        command(format!("spec.backup.uploadCommands.{provider}"), upload);
    }
    let detection = available.and_then(|one| one.passive.as_ref()).map(|passive| &passive.role_detection);
    patterns(detection, findings);
    let capabilities = spec.capabilities.unwrap_or_default();
    let takes =
        |template: &PluginTemplate| template.name == "backup" && template.type_.eq_ignore_ascii_case("job");
    if capabilities.backup && !spec.templates.iter().any(takes) {
        findings.note("spec.capabilities.backup", "there is no template `backup` of type job to do it with");
    }
    if capabilities.failover && detection.is_none() {
        let message = "without spec.highAvailability.passive.roleDetection nobody knows who leads";
        findings.wrong("spec.capabilities.failover", message);
    }
}

/// Patterns compile, and have a group for what they are to find.
fn patterns(detection: Option<&RoleDetection>, findings: &mut Findings) {
    let Some(detection) = detection else { return };
    let facts = detection.facts.clone().unwrap_or_default();
    for (name, pattern) in [
        ("parsePattern", &detection.parse_pattern),
        ("facts.position", &facts.position),
        ("facts.history", &facts.history),
        ("facts.previousHistory", &facts.previous_history),
        ("facts.follows", &facts.follows),
    ] {
        let Some(pattern) = pattern else { continue };
        let field = format!("spec.highAvailability.passive.roleDetection.{name}");
        match role_pattern(pattern) {
            Err(error) => findings.wrong(field, error),
            Ok(pattern) if pattern.captures_len() < 2 => {
                findings.note(field, "it has no group: all that it finds is taken");
            }
            Ok(_) => {}
        }
    }
}

/// Every template is parsed, so that all mistakes are told.
fn templates(plugin: &Plugin, files: &Files, findings: &mut Findings) {
    let (texts, missing) = files.texts(plugin);
    for (index, template) in plugin.spec.templates.iter().enumerate() {
        let inline = template.template.is_some();
        let field = format!("spec.templates[{index}].{}", if inline { "template" } else { "configMapRef" });
        if missing.contains(&template.name) {
            findings.note(field, "its ConfigMap is not among the files: it was not looked at");
            continue;
        }
        let Some(text) = texts.get(&template.name) else { continue };
        if let Err(error) = Templates::parse([(template.name.as_str(), text.as_str())]) {
            let place = format!(
                "template {}, line {}, column {}",
                template.name, error.place.line, error.place.column
            );
            let action = if error.action.is_empty() { String::new() } else { format!("{}: ", error.action) };
            findings.wrong(field, format!("{place}: {action}{}", error.message));
        }
    }
}

/// Renders everything, as the controllers would. Without an App of the author's own a failure may be for want of values.
async fn rendering(
    plugin: &Plugin,
    files: &Files,
    trial: &Trial,
    judge: &Judge,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let (texts, missing) = files.texts(plugin);
    if !missing.is_empty() {
        return Ok(());
    }
    let app = trial.app(judge, &plugin.spec, "default").await?;
    if let Some(refusal) = preview::refusal(&app, plugin) {
        findings.wrong("", format!("the App would be refused ({}): {refusal}", refusal.reason));
        return Ok(());
    }
    let named: BTreeSet<&str> = app.spec.components.iter().map(|component| component.name.as_str()).collect();
    for name in component_names(&plugin.spec).iter().filter(|name| !named.contains(name.as_str())) {
        findings.wrong("spec.orders", format!("the App has no component {name}"));
    }
    for group in preview::groups(&app) {
        let Err(fault) = render::render(&group, plugin, &texts) else { continue };
        let message = format!("group {}: {}", group.name_any(), fault.message);
        match trial.has_app() {
            true => findings.wrong("spec.templates", message),
            false => findings.note(
                "spec.templates",
                format!("with the defaults alone, {message}; --app tries it with more"),
            ),
        }
    }
    Ok(())
}
