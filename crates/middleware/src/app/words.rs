//! Changes in words, for people.

use agentcube_api::middleware::change::ChangeType;
use agentcube_api::middleware::parts::{GroupTemplate, Scenario};

use crate::parts::Wanted;

/// The last part of a task's id.
pub(crate) fn short(type_: &ChangeType, scenario: Scenario) -> &'static str {
    match (type_, scenario) {
        (_, Scenario::Stop) => "remove",
        (ChangeType::Provision, _) => "provision",
        (ChangeType::K8sResources, _) => "resources",
        (ChangeType::MiddlewareConfig, _) => "config",
        (ChangeType::StorageVolume, _) => "storage",
        (ChangeType::VersionUpgrade, _) => "upgrade",
    }
}

pub(crate) fn provision(name: &str, new: &Wanted) -> String {
    let pods: i32 = new.groups.iter().map(|group| group.replicas).sum();
    format!("install {name} {} with {pods} Pods in {} groups", new.runtime_version, new.groups.len())
}

pub(crate) fn change(name: &str, type_: ChangeType, old: &Wanted, new: &Wanted) -> String {
    let pairs = || new.groups.iter().filter_map(|group| Some((group, old.group(&group.name)?)));
    let said: Vec<String> = match type_ {
        ChangeType::Provision => vec!["install anew".into()],
        ChangeType::K8sResources => {
            let added = new.groups.iter().filter(|group| old.group(&group.name).is_none());
            let removed = old.groups.iter().filter(|group| new.group(&group.name).is_none());
            let changed = pairs().filter_map(|(new, old)| resources(new, old));
            added
                .map(|group| format!("add group {}", group.name))
                .chain(removed.map(|group| format!("remove group {}", group.name)))
                .chain(changed)
                .collect()
        }
        ChangeType::MiddlewareConfig => {
            let keys = new
                .config
                .keys()
                .chain(old.config.keys())
                .filter(|key| new.config.get(*key) != old.config.get(*key));
            let mut keys: Vec<String> = keys.cloned().collect();
            for (new, old) in pairs() {
                let of_group = new.values.keys().chain(old.values.keys());
                let changed = of_group.filter(|key| new.values.get(*key) != old.values.get(*key));
                keys.extend(changed.map(|key| format!("{key} of {}", new.name)));
            }
            keys.sort();
            keys.dedup();
            vec![format!("configure {}", keys.join(", "))]
        }
        ChangeType::StorageVolume => pairs()
            .filter(|(new, old)| new.storage != old.storage)
            .map(|(new, old)| {
                let size = |group: &GroupTemplate| {
                    group
                        .storage
                        .as_ref()
                        .map_or_else(|| "nothing".into(), |storage| storage.size.to_string())
                };
                format!("expand volumes of {} from {} to {}", new.name, size(old), size(new))
            })
            .collect(),
        ChangeType::VersionUpgrade if old.runtime_version == new.runtime_version => {
            vec![format!("take plugin {} instead of {}", new.plugin_version, old.plugin_version)]
        }
        ChangeType::VersionUpgrade => {
            vec![format!("upgrade from {} to {}", old.runtime_version, new.runtime_version)]
        }
    };
    let said =
        if said.is_empty() { "carry out again what was left as it stood".into() } else { said.join("; ") };
    format!("{name}: {said}")
}

fn resources(new: &GroupTemplate, old: &GroupTemplate) -> Option<String> {
    let mut said = Vec::new();
    if new.replicas != old.replicas {
        said.push(format!("from {} to {} Pods", old.replicas, new.replicas));
    }
    if new.resources != old.resources {
        said.push("other resources".into());
    }
    if new.affinity != old.affinity {
        said.push("other places".into());
    }
    if new.policies != old.policies {
        said.push("other policies".into());
    }
    (!said.is_empty()).then(|| format!("{}: {}", new.name, said.join(", ")))
}

/// Not more than so many characters.
pub(crate) fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
