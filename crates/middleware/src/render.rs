//! From a Plugin's templates and a Group to objects that can be applied. Templates are strangers' input: whatever is wrong
//! with them is said with line and column, and nothing is applied. Pure.

use std::collections::BTreeMap;

use agentcube_api::conditions::middleware as reasons;
use agentcube_api::labels;
use agentcube_api::middleware::parts::Values;
use agentcube_api::middleware::plugin::PluginTemplate;
use agentcube_api::middleware::{Group, Plugin};
use agentcube_template::{Limits, Templates};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::component::plan::over;
use crate::group::observe::Fault;
use crate::group::revision::Revision;

/// What templates may make, by the type that they say they are.
const KINDS: [(&str, &str, &str); 9] = [
    ("statefulset", "StatefulSet", "apps/v1"),
    ("deployment", "Deployment", "apps/v1"),
    ("service", "Service", "v1"),
    ("configmap", "ConfigMap", "v1"),
    ("secret", "Secret", "v1"),
    ("pvc", "PersistentVolumeClaim", "v1"),
    ("persistentvolumeclaim", "PersistentVolumeClaim", "v1"),
    (JOB, "Job", "batch/v1"),
    ("helper", "", ""),
];
/// The type of templates that are no part of a Group: each is rendered when its Job is wanted.
const JOB: &str = "job";
/// The template of the Job that takes a backup.
pub(crate) const BACKUP: &str = "backup";
/// The types that templates may have.
pub fn types() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|(name, ..)| *name)
}

/// More than this nobody needs for a group.
const MOST_OBJECTS: usize = 64;

fn fault(reason: &'static str, message: impl Into<String>) -> Fault {
    Fault { reason, message: crate::app::cut(&message.into(), 4000) }
}

/// The label for everything of a Group, and those by which its Pods are found.
pub fn group_labels(group: &Group) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([
        ("app.kubernetes.io/managed-by".to_owned(), "agentcube".to_owned()),
        (labels::MIDDLEWARE_GROUP.to_owned(), group.name_any()),
        (labels::MIDDLEWARE_APP.to_owned(), group.spec.component_ref.name.clone()),
    ]);
    for label in [labels::MIDDLEWARE_APP, labels::MIDDLEWARE_COMPONENT, labels::MIDDLEWARE_PLUGIN] {
        if let Some(value) = group.labels().get(label) {
            all.insert(label.into(), value.clone());
        }
    }
    all
}

/// What `.Values` has beside the merged values, and over them.
pub const FACTS: [&str; 18] = [
    "name",
    "namespace",
    "app",
    "component",
    "group",
    "replicas",
    "runtime",
    "image",
    "images",
    "plugin",
    "resources",
    "config",
    "storage",
    "affinity",
    "labels",
    "selectorLabels",
    "connectionSecret",
    "agentSecret",
];

/// What templates see as `.Values`.
pub fn values(group: &Group, plugin: &Plugin) -> Value {
    let spec = &group.spec;
    let merged: Values = over(&plugin.spec.default_values, &spec.values);
    let app = group.labels().get(labels::MIDDLEWARE_APP).cloned().unwrap_or_default();
    let facts = json!({
        "name": group.name_any(),
        "namespace": group.namespace().unwrap_or_default(),
        "app": app,
        "component": spec.component_ref.name,
        "group": group.name_any(),
        "replicas": spec.replicas,
        "runtime": spec.runtime,
        "image": plugin.spec.images.get(&spec.runtime.version),
        "images": plugin.spec.images,
        "plugin": { "name": plugin.spec.name, "version": plugin.spec.version },
        "resources": spec.resources,
        "config": merged,
        "storage": spec.storage,
        "affinity": spec.affinity,
        "labels": group_labels(group),
        "selectorLabels": { labels::MIDDLEWARE_GROUP: group.name_any() },
        "connectionSecret": format!("{app}-connection"),
        "agentSecret": crate::outputs::agent_secret(&app),
    });
    let mut all: serde_json::Map<String, Value> = merged.into_iter().collect();
    if let Value::Object(facts) = facts {
        all.extend(facts);
    }
    Value::Object(all)
}

/// Renders a Group. `texts` are the plugin's templates by name, those in ConfigMaps included.
pub fn render(group: &Group, plugin: &Plugin, texts: &BTreeMap<String, String>) -> Result<Revision, Fault> {
    let templates =
        Templates::parse(texts).map_err(|error| fault(reasons::REASON_TEMPLATE_ERROR, error.to_string()))?;
    let data = json!({ "Values": values(group, plugin) });
    let mut objects = Vec::new();
    for template in plugin.spec.templates.iter().filter(|template| !template.type_.eq_ignore_ascii_case(JOB))
    {
        let text = templates
            .render(&template.name, &data, &Limits::default())
            .map_err(|error| fault(reasons::REASON_TEMPLATE_ERROR, error.to_string()))?;
        if template.type_ == "helper" {
            continue;
        }
        let wrong = |message: String| {
            fault(reasons::REASON_TEMPLATE_ERROR, format!("template {}: {message}", template.name))
        };
        let documents = documents(&text).map_err(wrong)?;
        if documents.is_empty() && !template.optional {
            return Err(wrong("it renders to nothing, and is not optional".into()));
        }
        for mut object in documents {
            judge(&object, &template.type_).map_err(wrong)?;
            own(&mut object, group).map_err(wrong)?;
            objects.push(object);
        }
    }
    if objects.len() > MOST_OBJECTS {
        return Err(fault(reasons::REASON_TEMPLATE_ERROR, format!("more than {MOST_OBJECTS} objects")));
    }
    if objects.iter().filter(|object| object["kind"] == "StatefulSet").count() > 1 {
        return Err(fault(
            reasons::REASON_TEMPLATE_ERROR,
            "more than one StatefulSet: a group is of equal Pods",
        ));
    }
    let mut seen = std::collections::BTreeSet::new();
    for object in &objects {
        if !seen.insert((object["kind"].to_string(), object["metadata"]["name"].to_string())) {
            let message = format!("{} {} is made twice", object["kind"], object["metadata"]["name"]);
            return Err(fault(reasons::REASON_TEMPLATE_ERROR, message));
        }
    }
    let reloads = plugin.spec.capabilities.is_some_and(|capabilities| capabilities.config_reload);
    Ok(Revision::new(&group.spec.runtime.version, group.spec.replicas, objects, reloads))
}

/// Whether a template makes the Job of this name.
pub(crate) fn makes_job(template: &PluginTemplate, name: &str) -> bool {
    template.name == name && template.type_.eq_ignore_ascii_case(JOB)
}

/// Renders the Job of this name, with `.Values` of a Group and more under the same name. It and its Pods get labels.
pub fn job(
    group: &Group,
    plugin: &Plugin,
    texts: &BTreeMap<String, String>,
    name: &str,
    more: &Value,
    labels: &BTreeMap<String, String>,
) -> Result<Value, Fault> {
    let wrong =
        |message: String| fault(reasons::REASON_TEMPLATE_ERROR, format!("template {name}: {message}"));
    if !plugin.spec.templates.iter().any(|template| makes_job(template, name)) {
        let message =
            format!("plugin {} has no template {name} of type {JOB}: it cannot do that", plugin.name_any());
        return Err(fault(reasons::REASON_CONFIGURATION, message));
    }
    let templates =
        Templates::parse(texts).map_err(|error| fault(reasons::REASON_TEMPLATE_ERROR, error.to_string()))?;
    let mut values = values(group, plugin);
    values[name] = more.clone();
    let text = templates
        .render(name, &json!({ "Values": values }), &Limits::default())
        .map_err(|error| fault(reasons::REASON_TEMPLATE_ERROR, error.to_string()))?;
    let mut documents = documents(&text).map_err(wrong)?;
    let (Some(mut object), true) = (documents.pop(), documents.is_empty()) else {
        return Err(wrong("it must make one Job".into()));
    };
    judge(&object, JOB).map_err(wrong)?;
    if !object["spec"]["template"]["spec"].is_object() {
        return Err(wrong("spec.template.spec is missing".into()));
    }
    label(&mut object["metadata"], labels).map_err(wrong)?;
    label(&mut object["spec"]["template"]["metadata"], labels).map_err(wrong)?;
    Ok(object)
}

/// The YAML documents of a text that are not empty.
fn documents(text: &str) -> Result<Vec<Value>, String> {
    let mut documents = Vec::new();
    let mut current = String::new();
    for line in text.lines().chain(["---"]) {
        if line.trim_end() == "---" {
            if current.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#')) {
                let value: Value =
                    serde_saphyr::from_str(&current).map_err(|error| format!("no YAML: {error}"))?;
                documents.push(value);
            }
            current.clear();
        } else {
            current.push_str(line);
            current.push('\n');
        }
    }
    Ok(documents)
}

/// Whether an object may be made by a template of this type.
fn judge(object: &Value, type_: &str) -> Result<(), String> {
    let Some((_, kind, version)) = KINDS.iter().find(|(name, ..)| name.eq_ignore_ascii_case(type_)) else {
        let known: Vec<&str> = types().collect();
        return Err(format!("type {type_} is none of {}", known.join(", ")));
    };
    if object["kind"] != *kind || object["apiVersion"] != *version {
        return Err(format!(
            "it makes {} {}, and says that it makes {version} {kind}",
            object["apiVersion"], object["kind"]
        ));
    }
    let name = object.pointer("/metadata/name").and_then(Value::as_str);
    name.filter(|name| !name.is_empty()).map(drop).ok_or_else(|| "metadata.name is missing".into())
}

/// Makes an object part of the Group: its namespace and labels. Only what is in the Group's own namespace is made.
fn own(object: &mut Value, group: &Group) -> Result<(), String> {
    let namespace = group.namespace().unwrap_or_default();
    match object.pointer("/metadata/namespace").and_then(Value::as_str) {
        Some(other) if other != namespace => {
            return Err(format!("metadata.namespace is {other}, and not {namespace}"));
        }
        _ => object["metadata"]["namespace"] = namespace.into(),
    }
    let labels_of_group = group_labels(group);
    label(&mut object["metadata"], &labels_of_group)?;
    let Some(metadata) = object.get("metadata").and_then(Value::as_object) else { return Ok(()) };
    if metadata.contains_key("ownerReferences") || metadata.contains_key("finalizers") {
        return Err("ownerReferences and finalizers are not for templates".into());
    }
    if object["kind"] == "StatefulSet" || object["kind"] == "Deployment" {
        if !object["spec"]["template"].is_object() {
            return Err("spec.template is missing".into());
        }
        label(&mut object["spec"]["template"]["metadata"], &labels_of_group)?;
        let selector = object.pointer("/spec/selector/matchLabels").and_then(Value::as_object);
        let labels = object.pointer("/spec/template/metadata/labels").and_then(Value::as_object);
        let selects = selector.zip(labels).is_some_and(|(selector, labels)| {
            selector.contains_key(labels::MIDDLEWARE_GROUP)
                && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
        });
        if !selects {
            let message = "spec.selector.matchLabels must be labels of the Pods, with .Values.selectorLabels among them";
            return Err(message.into());
        }
    }
    Ok(())
}

fn label(metadata: &mut Value, ours: &BTreeMap<String, String>) -> Result<(), String> {
    if !(metadata.is_object() || metadata.is_null()) {
        return Err("metadata is no object".into());
    }
    let labels = &mut metadata["labels"];
    if labels.is_null() {
        *labels = json!({});
    }
    let Some(labels) = labels.as_object_mut() else { return Err("metadata.labels is no object".into()) };
    labels.extend(ours.iter().map(|(key, value)| (key.clone(), value.clone().into())));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> Group {
        serde_json::from_value(json!({
            "metadata": { "name": "g", "namespace": "here", "labels": { "middleware.io/app": "a" } },
            "spec": { "componentRef": { "name": "c" }, "pluginRef": { "name": "p-v1" },
                "runtime": { "name": "r", "version": "1" }, "replicas": 2, "values": { "b": { "d": 2 } } } }))
        .unwrap()
    }

    fn plugin(templates: Value) -> Plugin {
        serde_json::from_value(json!({ "metadata": { "name": "p-v1" }, "spec": { "name": "p", "version": "1",
            "images": { "1": "image:1" }, "defaultValues": { "a": 1, "b": { "c": 1, "d": 1 } },
            "templates": templates } }))
        .unwrap()
    }

    fn rendered(type_: &str, text: &str) -> Result<Revision, Fault> {
        let plugin = plugin(json!([{ "name": "t", "type": type_, "template": text }]));
        render(&group(), &plugin, &BTreeMap::from([("t".to_owned(), text.to_owned())]))
    }

    const SET: &str = "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: \"{{ .Values.name }}\"}\nspec:\n  \
        selector:\n    matchLabels: {{ toYaml .Values.selectorLabels | nindent 6 }}\n  template:\n    spec:\n      \
        containers: [{name: main, image: \"{{ .Values.image }}\", args: [\"{{ .Values.b.c }}{{ .Values.config.b.d }}\"]}]\n";

    #[test]
    fn a_set_is_rendered_and_made_ours() {
        let revision = rendered("statefulset", SET).unwrap();
        let set = &revision.objects[0];
        assert_eq!(set["metadata"]["namespace"], "here");
        assert_eq!(set["spec"]["replicas"], 2);
        assert_eq!(set["spec"]["updateStrategy"]["type"], "OnDelete");
        let template = &set["spec"]["template"];
        assert_eq!(template["spec"]["containers"][0]["args"][0], "12");
        assert_eq!(template["metadata"]["labels"]["middleware.io/app"], "a");
        assert_eq!(template["metadata"]["labels"]["middleware.io/revision"], revision.pods);
        assert_eq!(rendered("statefulset", SET).unwrap(), revision);
    }

    #[test]
    fn the_facts_are_named() {
        let all = values(&group(), &plugin(json!([])));
        let mut expected: Vec<&str> = FACTS.into_iter().chain(["a", "b"]).collect();
        expected.sort_unstable();
        let mut found: Vec<&str> = all.as_object().unwrap().keys().map(String::as_str).collect();
        found.sort_unstable();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n";
        let cases = [
            ("service", "a: {{ .Values.x.y.z }}", "t:1:"),
            ("service", "a: {{ nonsense }}", "nonsense"),
            ("service", "a: {{ if }}", "t:1:"),
            ("service", "a: [", "template t: no YAML"),
            ("service", "", "renders to nothing"),
            ("deployment", service, "says that it makes apps/v1 Deployment"),
            ("role", service, "type role is none of"),
            ("service", "apiVersion: v1\nkind: Service\nmetadata: {}\n", "metadata.name is missing"),
            (
                "service",
                "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: there}\n",
                "namespace is there",
            ),
            ("service", "apiVersion: v1\nkind: Service\nmetadata: 3\n", "metadata.name is missing"),
            (
                "service",
                "apiVersion: v1\nkind: Service\nmetadata: {name: s, labels: 3}\n",
                "labels is no object",
            ),
            (
                "service",
                "apiVersion: v1\nkind: Service\nmetadata: {name: s, finalizers: [a]}\n",
                "not for templates",
            ),
            (
                "statefulset",
                "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: s}\n",
                "spec.template is missing",
            ),
            (
                "statefulset",
                "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: s}\nspec: {template: {}}\n",
                "selectorLabels",
            ),
            ("service", "{{ range $i := until 100000000 }}x{{ end }}", ""),
        ];
        for (type_, text, wanted) in cases {
            let fault = rendered(type_, text).expect_err(text);
            assert!(fault.message.contains(wanted), "{text}: {}", fault.message);
            assert_eq!(fault.reason, "TemplateError");
        }
        let twice = format!("{service}---\n{service}");
        assert!(rendered("service", &twice).unwrap_err().message.contains("twice"));
    }

    fn job_of(text: &str) -> Result<Value, Fault> {
        let plugin = plugin(json!([{ "name": "backup", "type": "job", "template": text }]));
        let texts = BTreeMap::from([("backup".to_owned(), text.to_owned())]);
        let labels = BTreeMap::from([("of".to_owned(), "it".to_owned())]);
        // It is no part of what the Group is made of; but what cannot be read is said there, too.
        if let Ok(revision) = render(&group(), &plugin, &texts) {
            assert!(revision.objects.is_empty());
        }
        job(&group(), &plugin, &texts, "backup", &json!({ "name": "monday" }), &labels)
    }

    #[test]
    fn a_job_is_rendered_and_what_is_wrong_with_it_is_said() {
        let good = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: \"{{ .Values.backup.name }}\"}\nspec: {template: \
                    {metadata: {labels: {own: \"1\"}}, spec: {}}}\n";
        let rendered = job_of(good).unwrap();
        assert_eq!(rendered["metadata"], json!({ "name": "monday", "labels": { "of": "it" } }));
        assert_eq!(rendered["spec"]["template"]["metadata"]["labels"], json!({ "own": "1", "of": "it" }));
        let cases = [
            ("a: {{ nonsense }}".to_owned(), "nonsense"),
            (String::new(), "must make one Job"),
            (format!("{good}---\n{good}"), "must make one Job"),
            (good.replace("Job", "Pod"), "says that it makes batch/v1 Job"),
            (good.replace("spec: {}", "spec: 3"), "spec.template.spec is missing"),
            (good.replace("{labels: {own: \"1\"}}", "3"), "metadata is no object"),
            (good.replace("{own: \"1\"}", "[1]"), "labels is no object"),
        ];
        for (text, wanted) in cases {
            let fault = job_of(&text).expect_err(&text);
            assert!(fault.message.contains(wanted), "{text}: {}", fault.message);
        }
    }
}
