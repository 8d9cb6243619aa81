//! What an App would become, by the code that the controllers themselves use: for whoever looks before anything is applied.
//! Pure.

use std::collections::BTreeMap;

use agentcube_api::middleware::{App, Plugin};
use agentcube_api::{Component, Group};

use crate::app::validate::{Refusal, validate};
use crate::app::{self, plan::component_spec};
use crate::component::{self, plan::group_spec};
use crate::parts::{Components, wanted};

/// The Groups of an App, as its Components would make them.
pub fn groups(app: &App) -> Vec<Group> {
    let mut groups = Vec::new();
    for (name, wanted) in &wanted(&app.spec) {
        let spec = component_spec(app, wanted);
        let component: Component = app::object(app, name, &spec);
        for group in &spec.groups {
            groups.push(component::object(&component, &group.name, &group_spec(&component, group)));
        }
    }
    groups
}

/// What would be said against an App that is made with this plugin.
pub fn refusal(app: &App, plugin: &Plugin) -> Option<Refusal> {
    let name = app.metadata.name.clone().unwrap_or_default();
    let nothing = Components::new();
    validate(&name, &app.spec, &plugin.spec, &nothing, &nothing).err()
}

/// The texts of a plugin's templates by name, with those that are in ConfigMaps; a template that is in none has no text if
/// it is optional, and is named otherwise.
pub fn texts(
    plugin: &Plugin,
    config_map: impl Fn(&str, &str) -> Option<String>,
) -> (BTreeMap<String, String>, Vec<String>) {
    let (mut texts, mut missing) = (BTreeMap::new(), Vec::new());
    for template in &plugin.spec.templates {
        let text = match (&template.template, &template.config_map_ref) {
            (Some(text), _) => Some(text.clone()),
            (None, Some(reference)) => config_map(&reference.name, &reference.key),
            (None, None) => Some(String::new()),
        };
        if text.is_none() && !template.optional {
            missing.push(template.name.clone());
        }
        texts.insert(template.name.clone(), text.unwrap_or_default());
    }
    (texts, missing)
}
