//! What can be said against a spec before anything is done: refused specs wait for a change. Pure.

use agentcube_api::conditions::middleware as reasons;
use agentcube_api::middleware::parts::GroupTemplate;
use agentcube_api::middleware::{AppSpec, PluginSpec};

use crate::group::observe::Fault;
use crate::parts::Components;
use crate::render::{self, BACKUP};

/// StatefulSets put their name and a hash into a label.
const LONGEST_NAME: usize = 52;

/// Why a spec is not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub reason: &'static str,
    pub message: String,
}

impl From<&Fault> for Refusal {
    fn from(fault: &Fault) -> Refusal {
        Refusal { reason: fault.reason, message: fault.message.clone() }
    }
}

fn refuse<T>(reason: &'static str, message: String) -> Result<T, Refusal> {
    Err(Refusal { reason, message })
}

/// Judges a spec. `told` is what Components are now, and `completed` what they have been in full.
pub fn validate(
    name: &str,
    spec: &AppSpec,
    plugin: &PluginSpec,
    told: &Components,
    completed: &Components,
) -> Result<(), Refusal> {
    runtime(spec, plugin)?;
    names(name, spec)?;
    for component in &spec.components {
        let Some(now) = told.get(&component.name) else { continue };
        // The way back to what was is always open.
        let before = completed.get(&component.name).map(|before| &before.runtime_version);
        if before != Some(&spec.runtime.version) {
            upgrade(&component.name, &now.runtime_version, &spec.runtime.version, plugin)?;
        }
        for group in &component.groups {
            if let Some(old) = now.group(&group.name) {
                storage(old, group)?;
                scaling(old, group, plugin)?;
            }
        }
    }
    monitoring(spec, plugin)?;
    backup(spec, plugin)
}

fn runtime(spec: &AppSpec, plugin: &PluginSpec) -> Result<(), Refusal> {
    let (name, version) = (&spec.runtime.name, &spec.runtime.version);
    let Some(runtime) = plugin.runtimes.iter().find(|runtime| runtime.name == *name) else {
        let known: Vec<&str> = plugin.runtimes.iter().map(|runtime| runtime.name.as_str()).collect();
        let message = format!("plugin {} runs {}, not {name}", plugin.name, known.join(", "));
        return refuse(reasons::REASON_RUNTIME_UNSUPPORTED, message);
    };
    if !runtime.versions.contains(version) {
        let known = runtime.versions.join(", ");
        let message = format!("plugin {} runs {name} {known}, not {version}", plugin.name);
        return refuse(reasons::REASON_RUNTIME_UNSUPPORTED, message);
    }
    Ok(())
}

fn names(name: &str, spec: &AppSpec) -> Result<(), Refusal> {
    let groups = spec.components.iter().flat_map(|component| {
        component.groups.iter().map(move |group| format!("{name}-{}-{}", component.name, group.name))
    });
    match groups.into_iter().find(|group| group.len() > LONGEST_NAME) {
        Some(long) => {
            let message = format!("{long} is longer than {LONGEST_NAME} characters: choose shorter names");
            refuse(reasons::REASON_CONFIGURATION, message)
        }
        None => Ok(()),
    }
}

fn upgrade(component: &str, from: &str, to: &str, plugin: &PluginSpec) -> Result<(), Refusal> {
    if from == to {
        return Ok(());
    }
    let sources = plugin.compatibility.as_ref().and_then(|compatibility| compatibility.migrate_from.get(to));
    if sources.is_some_and(|sources| sources.iter().any(|source| source == from)) {
        return Ok(());
    }
    let known = sources.map_or_else(|| "none".into(), |sources| sources.join(", "));
    let message = format!("{component} runs {from}, and plugin {} leads to {to} from: {known}", plugin.name);
    refuse(reasons::REASON_UPGRADE_REFUSED, message)
}

fn storage(old: &GroupTemplate, new: &GroupTemplate) -> Result<(), Refusal> {
    let (before, after) = match (&old.storage, &new.storage) {
        (None, None) => return Ok(()),
        (Some(before), Some(after)) => (before, after),
        _ => {
            let message = format!("group {}: a volume cannot be added or taken away later", new.name);
            return refuse(reasons::REASON_MIGRATION_NEEDED, message);
        }
    };
    if after.size < before.size {
        let message =
            format!("group {}: a volume cannot shrink from {} to {}", new.name, before.size, after.size);
        return refuse(reasons::REASON_CONFIGURATION, message);
    }
    if (&before.storage_class, &before.access_modes) != (&after.storage_class, &after.access_modes) {
        let message = format!(
            "group {}: another StorageClass or access mode is a migration to other volumes, which the plugin does not \
             provide",
            new.name
        );
        return refuse(reasons::REASON_MIGRATION_NEEDED, message);
    }
    Ok(())
}

fn scaling(old: &GroupTemplate, new: &GroupTemplate, plugin: &PluginSpec) -> Result<(), Refusal> {
    let cannot = plugin.capabilities.is_some_and(|capabilities| !capabilities.scaling);
    if cannot && old.replicas != new.replicas {
        let message = format!("group {}: plugin {} cannot change the number of Pods", new.name, plugin.name);
        return refuse(reasons::REASON_CONFIGURATION, message);
    }
    Ok(())
}

fn monitoring(spec: &AppSpec, plugin: &PluginSpec) -> Result<(), Refusal> {
    let Some(settings) = spec.monitoring.as_ref().and_then(|monitoring| monitoring.settings.as_ref()) else {
        return Ok(());
    };
    if settings.interval.is_some_and(|interval| interval.to_std().is_zero()) {
        return refuse(
            reasons::REASON_CONFIGURATION,
            "monitoring: the interval must be longer than nothing".into(),
        );
    }
    let known = plugin.monitoring.iter().flat_map(|monitoring| &monitoring.alerts);
    let known: Vec<&str> = known.map(|alert| alert.name.as_str()).collect();
    let disabled = settings.alerts.iter().flat_map(|alerts| &alerts.disabled_rules);
    for rule in disabled {
        if !known.contains(&rule.as_str()) {
            let message = format!("monitoring: plugin {} has no alert {rule} to disable", plugin.name);
            return refuse(reasons::REASON_CONFIGURATION, message);
        }
    }
    Ok(())
}

fn takes_backups(plugin: &PluginSpec) -> Result<(), Refusal> {
    let lacks = if plugin.capabilities.is_some_and(|capabilities| !capabilities.backup) {
        "it does not have the capability backup".to_owned()
    } else if !plugin.templates.iter().any(|template| render::makes_job(template, BACKUP)) {
        format!("it has no template {BACKUP} of type job")
    } else {
        return Ok(());
    };
    let message =
        format!("backup.enabled: plugin {} takes no backups, since {lacks}: disable it", plugin.name);
    refuse(reasons::REASON_CONFIGURATION, message)
}

/// Backups are taken on demand to a volume, if the plugin can; the rest of the schema is kept for later.
fn backup(spec: &AppSpec, plugin: &PluginSpec) -> Result<(), Refusal> {
    let Some(backup) = spec.backup.as_ref().filter(|backup| backup.enabled) else { return Ok(()) };
    takes_backups(plugin)?;
    if backup.schedule.as_ref().is_some_and(|schedule| schedule.enabled) {
        let message = "backup.schedule is not carried out yet: take backups on demand, and leave it disabled";
        return refuse(reasons::REASON_CONFIGURATION, message.into());
    }
    if let Some(storage) = backup.storage.as_ref().filter(|storage| storage.provider != "pvc") {
        let message = format!("backup.storage.provider {} is not supported yet: use pvc", storage.provider);
        return refuse(reasons::REASON_CONFIGURATION, message);
    }
    let settings = backup.settings.as_ref();
    if let Some(archive) = settings.and_then(|it| it.archive.as_ref()).filter(|it| it.format != "tar.gz") {
        let message =
            format!("backup.settings.archive.format {} is not supported yet: use tar.gz", archive.format);
        return refuse(reasons::REASON_CONFIGURATION, message);
    }
    if settings.is_some_and(|settings| settings.encryption.is_some()) {
        let message =
            "backup.settings.encryption is not carried out yet: leave it out, and encrypt the volume";
        return refuse(reasons::REASON_CONFIGURATION, message.into());
    }
    if backup.retention.is_some() {
        let message = "backup.retention is not carried out yet: leave it out, and delete archives by hand";
        return refuse(reasons::REASON_CONFIGURATION, message.into());
    }
    Ok(())
}
