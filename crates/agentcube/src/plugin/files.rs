//! A Plugin and what belongs to it, from files: its templates in ConfigMaps, and an App to try it with.

use std::collections::BTreeMap;
use std::path::PathBuf;

use agentcube_api::middleware::app::{AppComponent, AppPlugin};
use agentcube_api::middleware::parts::{GroupTemplate, RuntimeRef, Values};
use agentcube_api::middleware::{AppSpec, PluginSpec};
use agentcube_api::{App, Plugin};
use agentcube_middleware::component::plan::over;
use agentcube_middleware::preview;
use anyhow::Context;
use clap::Args;
use serde_json::{Map, Value};

use super::schema::Judge;
use crate::exit::{Usage, say};
use crate::manifest::{self, Document};

/// More is a mistake.
const DEEPEST: usize = 32;

/// What is in the files.
pub(super) struct Files {
    pub(super) documents: Vec<Document>,
}

impl Files {
    /// Reads files; what is wrong with them as YAML is told, and ends it.
    pub(super) fn load(files: &[PathBuf]) -> anyhow::Result<Option<Files>> {
        let (documents, problems) = manifest::load(files, false);
        for problem in &problems {
            say(&format!("error: {problem}"));
        }
        Ok(problems.is_empty().then_some(Files { documents }))
    }

    pub(super) fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Document> {
        self.documents.iter().filter(move |document| document.text(&["kind"]) == kind)
    }

    /// The one Plugin of the files, as a server would keep it.
    pub(super) async fn plugin(&self, judge: &Judge) -> anyhow::Result<Plugin> {
        let mut plugins = self.of_kind("Plugin");
        let (first, second) = (plugins.next(), plugins.next());
        let document = first.ok_or_else(|| Usage("the files hold no Plugin".into()))?;
        if let Some(second) = second {
            let place = second.place(None);
            return Err(Usage(format!("{place}: a second Plugin; one at a time is looked at")).into());
        }
        read(judge, document).await
    }

    /// A text in a ConfigMap of the files.
    pub(super) fn config_map(&self, name: &str, key: &str) -> Option<String> {
        let map = self.of_kind("ConfigMap").find(|map| map.name() == name)?;
        Some(map.object["data"][key].as_str()?.to_owned())
    }

    /// The texts of the templates, and those that are not in the files.
    pub(super) fn texts(&self, plugin: &Plugin) -> (BTreeMap<String, String>, Vec<String>) {
        preview::texts(plugin, |name, key| self.config_map(name, key))
    }
}

/// An object of a file, if a server would take it.
pub(super) async fn read<K: serde::de::DeserializeOwned>(
    judge: &Judge,
    document: &Document,
) -> anyhow::Result<K> {
    match judge.judge(document).await? {
        Ok(kept) => serde_json::from_value(kept).with_context(|| document.place(None)),
        Err(wrong) => {
            let (field, message) = wrong.first().cloned().unwrap_or_default();
            let more = match wrong.len() {
                0 | 1 => String::new(),
                more => format!(" (and {} more: `agentcube plugin lint` says all)", more - 1),
            };
            anyhow::bail!("{}: {field}: {message}{more}", document.place(Some(&field)))
        }
    }
}

/// With what a Plugin is tried.
#[derive(Args)]
#[group(skip)]
pub(super) struct Trial {
    /// An App to try it with [default: one with the defaults, and a group of one Pod for each component]
    #[arg(long, value_name = "FILE")]
    app: Option<PathBuf>,
    /// A value for the templates, over the App's configuration, like maxmemory=2gb or a.b=3; may be given several times
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Values for the templates, as YAML; --set counts more
    #[arg(long, value_name = "FILE")]
    values: Option<PathBuf>,
    /// The version of the engine [default: that of the App, or the last that the Plugin has]
    #[arg(long, value_name = "VERSION")]
    runtime: Option<String>,
}

impl Trial {
    pub(super) fn has_app(&self) -> bool {
        self.app.is_some()
    }

    /// The App, for this Plugin.
    pub(super) async fn app(
        &self,
        judge: &Judge,
        plugin: &PluginSpec,
        namespace: &str,
    ) -> anyhow::Result<App> {
        let mut app = match &self.app {
            Some(file) => self.read_app(judge, file).await?,
            None => sample(plugin),
        };
        if app.spec.plugin.name != plugin.name {
            let message = format!("the App is of plugin {}, not of {}", app.spec.plugin.name, plugin.name);
            return Err(Usage(message).into());
        }
        app.spec.plugin.version.clone_from(&plugin.version);
        if let Some(version) = &self.runtime {
            app.spec.runtime.version.clone_from(version);
        }
        app.spec.config = over(&app.spec.config, &self.given()?);
        app.metadata.namespace.get_or_insert_with(|| namespace.to_owned());
        Ok(app)
    }

    async fn read_app(&self, judge: &Judge, file: &PathBuf) -> anyhow::Result<App> {
        let files = Files::load(std::slice::from_ref(file))?;
        let files = files.ok_or_else(|| anyhow::anyhow!("{} cannot be used", file.display()))?;
        let mut apps = files.of_kind("App");
        match (apps.next(), apps.next()) {
            (Some(app), None) => read(judge, app).await,
            (None, _) => Err(Usage(format!("{} holds no App", file.display())).into()),
            (Some(_), Some(second)) => Err(Usage(format!("{}: a second App", second.place(None))).into()),
        }
    }

    /// The values that were given apart.
    fn given(&self) -> anyhow::Result<Values> {
        let mut given = Values::new();
        if let Some(path) = &self.values {
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            let options = serde_saphyr::options! { with_snippet: false };
            let values: Map<String, Value> = serde_saphyr::from_str_with_options(&text, options)
                .map_err(|error| Usage(format!("{}: these are no values: {error}", path.display())))?;
            given.extend(values);
        }
        for set in &self.set {
            given = over(&given, &parse_set(set)?);
        }
        Ok(given)
    }
}

/// `a.b=3` as values. What looks like a number or a truth is one, as in YAML; quotes make it text.
fn parse_set(set: &str) -> Result<Values, Usage> {
    let wrong = || Usage(format!("--set {set:?} is not PATH=VALUE, as in maxmemory=2gb"));
    let (path, text) = set.split_once('=').ok_or_else(wrong)?;
    let names: Vec<&str> = path.split('.').collect();
    if names.len() > DEEPEST || names.iter().any(|name| name.is_empty()) {
        return Err(wrong());
    }
    let value = if text.is_empty() {
        Value::from("")
    } else {
        serde_saphyr::from_str(text).unwrap_or_else(|_| text.into())
    };
    let nested = names
        .iter()
        .skip(1)
        .rev()
        .fold(value, |value, name| Value::Object(Map::from_iter([((*name).to_owned(), value)])));
    Ok(Values::from([(names[0].to_owned(), nested)]))
}

/// An App for whoever has none: every component that the Plugin names.
fn sample(plugin: &PluginSpec) -> App {
    let mut names: Vec<String> = component_names(plugin);
    if names.is_empty() {
        names.push("main".into());
    }
    let connection = plugin.connection.as_ref();
    let group = connection.and_then(|connection| connection.group.clone()).unwrap_or_else(|| "main".into());
    let group = GroupTemplate { name: group, replicas: 1, ..GroupTemplate::default() };
    let component = |name: String| AppComponent { name, groups: vec![group.clone()] };
    let runtime = plugin.runtimes.first();
    let spec = AppSpec {
        plugin: AppPlugin { name: plugin.name.clone(), version: plugin.version.clone() },
        runtime: RuntimeRef {
            name: runtime.map(|runtime| runtime.name.clone()).unwrap_or_default(),
            version: runtime.and_then(|runtime| runtime.versions.last().cloned()).unwrap_or_default(),
        },
        components: names.into_iter().map(component).collect(),
        ..AppSpec::default()
    };
    App::new("sample", spec)
}

/// Components that a Plugin names, each once.
pub(super) fn component_names(plugin: &PluginSpec) -> Vec<String> {
    let connection = plugin.connection.iter().map(|connection| &connection.component);
    let orders = plugin.orders.iter().flat_map(|orders| {
        [&orders.provision, &orders.stop, &orders.update, &orders.upgrade].into_iter().flatten().flatten()
    });
    let mut names: Vec<String> = Vec::new();
    for name in connection.chain(orders) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_set_as_yaml_has_them() {
        for (set, expected) in [
            ("a=1", json!({ "a": 1 })),
            ("a.b.c=true", json!({ "a": { "b": { "c": true } } })),
            ("a=\"1\"", json!({ "a": "1" })),
            ("a=", json!({ "a": "" })),
            ("a=x=y", json!({ "a": "x=y" })),
            ("a=[1, two]", json!({ "a": [1, "two"] })),
        ] {
            assert_eq!(json!(parse_set(set).unwrap()), expected, "{set}");
        }
        for wrong in ["a", "=1", "a..b=1", &format!("{}=1", vec!["a"; 40].join("."))] {
            assert!(parse_set(wrong).is_err(), "{wrong}");
        }
    }
}
