//! What a component is to be, and the parts of that which tasks change one after another. Pure.

use std::collections::BTreeMap;

use agentcube_api::middleware::AppSpec;
use agentcube_api::middleware::change::{ChangeTask, ChangeType};
use agentcube_api::middleware::parts::{GroupTemplate, Scenario, Values};
use serde::{Deserialize, Serialize};

/// What one component is to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Wanted {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub plugin_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub runtime_version: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub config: Values,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupTemplate>,
}

/// What templates call the archive that an App is made from.
const RESTORE: &str = "restore";

/// Components by their names in the App.
pub type Components = BTreeMap<String, Wanted>;

/// What a spec wants of each component.
pub fn wanted(spec: &AppSpec) -> Components {
    let mut config = spec.config.clone();
    if let Some(archive) = &spec.restore {
        config.insert(RESTORE.into(), json(archive));
    }
    let of = |component: &agentcube_api::middleware::app::AppComponent| Wanted {
        plugin_version: spec.plugin.version.clone(),
        runtime_version: spec.runtime.version.clone(),
        config: config.clone(),
        groups: component.groups.clone(),
    };
    spec.components.iter().map(|component| (component.name.clone(), of(component))).collect()
}

/// Reads what was carried out from the status of an App. What cannot be read was not carried out.
pub fn completed(values: Option<&Values>) -> Components {
    let read = |(name, value): (&String, &serde_json::Value)| {
        Some((name.clone(), serde_json::from_value(value.clone()).ok()?))
    };
    values.into_iter().flatten().filter_map(read).collect()
}

/// The same the other way round.
pub fn to_values(components: &Components) -> Values {
    let write = |(name, wanted): (&String, &Wanted)| (name.clone(), json(wanted));
    components.iter().map(write).collect()
}

fn json<T: Serialize>(value: &T) -> serde_json::Value {
    serde_json::to_value(value).unwrap_or_default()
}

impl Wanted {
    pub fn group(&self, name: &str) -> Option<&GroupTemplate> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// The part that a task of this type changes; groups that `base` does not have come whole with the resources.
    pub fn part(&self, type_: ChangeType, base: Option<&Wanted>) -> Wanted {
        let named =
            |group: &GroupTemplate| GroupTemplate { name: group.name.clone(), ..GroupTemplate::default() };
        let groups = self.groups.iter();
        match type_ {
            ChangeType::Provision => self.clone(),
            ChangeType::K8sResources => {
                let known =
                    |group: &GroupTemplate| base.is_some_and(|base| base.group(&group.name).is_some());
                let without = |group: &GroupTemplate| GroupTemplate {
                    values: Values::new(),
                    storage: None,
                    ..group.clone()
                };
                let part = groups.map(|group| if known(group) { without(group) } else { group.clone() });
                Wanted { groups: part.collect(), ..Wanted::default() }
            }
            ChangeType::MiddlewareConfig => {
                let values =
                    |group| GroupTemplate { values: GroupTemplate::clone(group).values, ..named(group) };
                Wanted {
                    config: self.config.clone(),
                    groups: groups.map(values).collect(),
                    ..Wanted::default()
                }
            }
            ChangeType::StorageVolume => {
                let storage =
                    |group| GroupTemplate { storage: GroupTemplate::clone(group).storage, ..named(group) };
                Wanted { groups: groups.map(storage).collect(), ..Wanted::default() }
            }
            ChangeType::VersionUpgrade => Wanted {
                plugin_version: self.plugin_version.clone(),
                runtime_version: self.runtime_version.clone(),
                ..Wanted::default()
            },
        }
    }

    /// This with a part put over it.
    fn with(&self, type_: ChangeType, part: &Wanted) -> Wanted {
        let mut result = self.clone();
        match type_ {
            ChangeType::Provision => result = part.clone(),
            ChangeType::K8sResources => {
                let merge = |group: &GroupTemplate| match self.group(&group.name) {
                    Some(old) => GroupTemplate {
                        values: old.values.clone(),
                        storage: old.storage.clone(),
                        ..group.clone()
                    },
                    None => group.clone(),
                };
                result.groups = part.groups.iter().map(merge).collect();
            }
            ChangeType::MiddlewareConfig => {
                result.config = part.config.clone();
                for group in &mut result.groups {
                    if let Some(new) = part.group(&group.name) {
                        group.values = new.values.clone();
                    }
                }
            }
            ChangeType::StorageVolume => {
                for group in &mut result.groups {
                    if let Some(new) = part.group(&group.name) {
                        group.storage = new.storage.clone();
                    }
                }
            }
            ChangeType::VersionUpgrade => {
                result.plugin_version = part.plugin_version.clone();
                result.runtime_version = part.runtime_version.clone();
            }
        }
        result
    }

    /// The types of tasks that lead from `base` to this.
    pub fn differs(&self, base: &Wanted) -> Vec<ChangeType> {
        let types = [
            ChangeType::K8sResources,
            ChangeType::MiddlewareConfig,
            ChangeType::StorageVolume,
            ChangeType::VersionUpgrade,
        ];
        let mut reached = base.clone();
        let mut changed = Vec::new();
        for type_ in types {
            let next = reached.with(type_, &self.part(type_, Some(&reached)));
            if next != reached {
                changed.push(type_);
                reached = next;
            }
        }
        changed
    }
}

/// Whether a task removes its component.
pub fn removes(task: &ChangeTask) -> bool {
    task.scenario == Some(Scenario::Stop)
}

/// A component with a task carried out.
pub fn carried_out(base: Option<&Wanted>, task: &ChangeTask) -> Option<Wanted> {
    if removes(task) {
        return None;
    }
    let part = task.desired_spec.as_ref().and_then(|part| {
        serde_json::from_value(serde_json::Value::Object(part.clone().into_iter().collect())).ok()
    });
    let part: Wanted = match (part, base) {
        (Some(part), _) => part,
        // Nothing is known of what it was to be: it stays.
        (None, base) => return base.cloned(),
    };
    match (base, task.type_) {
        (_, ChangeType::Provision) => Some(part),
        (Some(base), type_) => Some(base.with(type_, &part)),
        (None, _) => None,
    }
}

/// What Components are told: what was carried out, and over it the tasks that are in force.
pub fn in_force(completed: &Components, tasks: &[ChangeTask]) -> Components {
    let mut told = completed.clone();
    for task in tasks.iter().filter(|task| task.in_force) {
        match carried_out(told.get(&task.target_component), task) {
            Some(wanted) => told.insert(task.target_component.clone(), wanted),
            None => told.remove(&task.target_component),
        };
    }
    told
}

/// A part as a task keeps it.
pub fn as_desired(part: &Wanted) -> Values {
    match json(part) {
        serde_json::Value::Object(map) => map.into_iter().collect(),
        _ => Values::new(),
    }
}
