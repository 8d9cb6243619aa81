//! The templates of the Helm chart, rendered as Helm renders them: one source for both ways to install. Only the little of
//! the language that they use is understood; a test holds them to that.

use anyhow::{Context, bail};
use serde_json::Value;

/// The files of deploy/chart/agentcube/templates, in the order in which they are applied.
pub(super) const TEMPLATES: [(&str, &str); 6] = [
    ("controllers", include_str!("../../../../deploy/chart/agentcube/templates/controllers.yaml")),
    ("router", include_str!("../../../../deploy/chart/agentcube/templates/router.yaml")),
    ("build-service", include_str!("../../../../deploy/chart/agentcube/templates/build-service.yaml")),
    ("fastpath", include_str!("../../../../deploy/chart/agentcube/templates/fastpath.yaml")),
    ("janitor", include_str!("../../../../deploy/chart/agentcube/templates/janitor.yaml")),
    ("console", include_str!("../../../../deploy/chart/agentcube/templates/console.yaml")),
];
const VALUES: &str = include_str!("../../../../deploy/chart/agentcube/values.yaml");

/// The values that the chart has where nobody says otherwise.
pub(super) fn default_values() -> anyhow::Result<Value> {
    serde_saphyr::from_str(VALUES).context("the chart's values.yaml")
}

/// Puts values in the place of those that are there. A name that the chart does not have is a mistake.
pub(super) fn merge(values: &mut Value, more: &Value, path: &str) -> anyhow::Result<()> {
    // What the platform offers, and resources, have names of their own.
    let free = path == "config" || path.starts_with("middleware.config") || path.ends_with(".resources");
    let (Some(held), Some(more)) = (values.as_object_mut(), more.as_object()) else {
        *values = more.clone();
        return Ok(());
    };
    for (name, value) in more {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match held.get_mut(name) {
            Some(held) => {
                if !free && std::mem::discriminant(held) != std::mem::discriminant(value) {
                    bail!("{path} is {value}, and not like {held}");
                }
                merge(held, value, &path)?;
            }
            None if free => drop(held.insert(name.clone(), value.clone())),
            None => bail!("there is no value {path}; those of the chart are in its values.yaml"),
        }
    }
    Ok(())
}

/// What is known to a template.
pub(super) struct Scope<'a> {
    pub(super) values: &'a Value,
    pub(super) namespace: &'a str,
}

impl Scope<'_> {
    /// A template as text; empty if all of it is left out.
    pub(super) fn render(&self, template: &str) -> anyhow::Result<String> {
        let mut text = String::new();
        // Whether each block that is open is to be shown.
        let mut blocks: Vec<bool> = Vec::new();
        for (number, line) in template.lines().enumerate() {
            let place = || format!("line {}: {line}", number + 1);
            if let Some(word) = line.strip_prefix("{{- ").and_then(|rest| rest.strip_suffix(" }}")) {
                match word {
                    "end" => drop(blocks.pop().with_context(place)?),
                    "else" => {
                        let last = blocks.last_mut().with_context(place)?;
                        *last = !*last;
                    }
                    _ => {
                        let condition = word.strip_prefix("if ").with_context(place)?;
                        blocks.push(self.holds(condition).with_context(place)?);
                    }
                }
            } else if blocks.iter().all(|shown| *shown) {
                self.line(line, &mut text).with_context(place)?;
                text.push('\n');
            }
        }
        if !blocks.is_empty() {
            bail!("{} blocks are not closed", blocks.len());
        }
        Ok(text)
    }

    fn line(&self, line: &str, text: &mut String) -> anyhow::Result<()> {
        let mut rest = line;
        while let Some((before, after)) = rest.split_once("{{ ") {
            let (expression, after) = after.split_once(" }}").context("it is not closed")?;
            text.push_str(before);
            match expression.strip_prefix("toJson ") {
                Some(path) => text.push_str(&self.value(path)?.to_string()),
                None => match self.value(expression)? {
                    Value::String(value) => text.push_str(&value),
                    value => text.push_str(&value.to_string()),
                },
            }
            rest = after;
        }
        text.push_str(rest);
        Ok(())
    }

    fn holds(&self, condition: &str) -> anyhow::Result<bool> {
        let words: Vec<&str> = condition.split(' ').collect();
        Ok(match words[..] {
            [path] => match self.value(path)? {
                Value::Bool(value) => value,
                Value::String(text) => !text.is_empty(),
                other => bail!("{path} is {other}, neither true, false nor text"),
            },
            ["not", path] => !self.holds(path)?,
            [word @ ("eq" | "ne"), path, text] => {
                let text: String = serde_json::from_str(text).context("a text is in quotes")?;
                (self.value(path)? == text) == (word == "eq")
            }
            _ => bail!("not understood"),
        })
    }

    fn value(&self, path: &str) -> anyhow::Result<Value> {
        if path == ".Release.Namespace" {
            return Ok(self.namespace.into());
        }
        let names = path.strip_prefix(".Values.").context("only .Values and .Release.Namespace are known")?;
        let found = names.split('.').try_fold(self.values, |value, name| value.get(name));
        found.cloned().with_context(|| format!("there is no value {names}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn renders_what_templates_use_and_nothing_else() {
        let values = json!({ "on": true, "off": false, "word": "a b", "number": 3, "map": { "x": [1, "y"] }, "none": "" });
        let scope = Scope { values: &values, namespace: "here" };
        let template = "a: {{ .Values.word }}-{{ .Values.number }}\n{{- if .Values.on }}\nb: {{ toJson .Values.map }}\n\
                        {{- if .Values.none }}\nc: 1\n{{- end }}\n{{- else }}\nd: 1\n{{- end }}\n\
                        {{- if ne .Values.word \"x\" }}\ne: {{ .Release.Namespace }}\n{{- end }}\n\
                        {{- if not .Values.off }}\nf: {{ toJson .Values.word }}\n{{- end }}\n";
        let rendered = scope.render(template).unwrap();
        assert_eq!(rendered, "a: a b-3\nb: {\"x\":[1,\"y\"]}\ne: here\nf: \"a b\"\n");
        for wrong in [
            "{{ .Values.missing }}",
            "{{ .Chart.Name }}",
            "{{- if .Values.on }}",
            "{{- end }}",
            "{{- range .Values.map }}",
            "{{ .Values.on",
        ] {
            assert!(scope.render(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_that_the_chart_does_not_have_are_refused() {
        let mut values = default_values().unwrap();
        merge(&mut values, &json!({ "router": { "replicas": 5 }, "config": { "kernels": {} } }), "").unwrap();
        assert_eq!(
            (&values["router"]["replicas"], &values["config"]),
            (&json!(5), &json!({ "kernels": {} }))
        );
        assert_eq!(values["controllers"]["replicas"], 2);
        for (wrong, told) in [
            (json!({ "router": { "replica": 5 } }), "router.replica"),
            (json!({ "router": { "replicas": "5" } }), "router.replicas"),
            (json!({ "routers": 1 }), "routers"),
        ] {
            let error = merge(&mut values.clone(), &wrong, "").unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
