//! The values of the chart held to its values.schema.json, as Helm does it. Only the little of JSON Schema that the file uses
//! is understood; a word that is not known is an error, so that none is passed over.

use anyhow::{Context, bail, ensure};
use regex::Regex;
use serde_json::Value;

const SCHEMA: &str = include_str!("../../../../deploy/chart/agentcube/values.schema.json");

/// Whether the values can be used; says which cannot, and why.
pub(super) fn check(values: &Value) -> anyhow::Result<()> {
    let root = root()?;
    fits(&root, &root, values, "")
}

pub(super) fn root() -> anyhow::Result<Value> {
    serde_json::from_str(SCHEMA).context("the chart's values.schema.json")
}

fn fits(schema: &Value, root: &Value, value: &Value, path: &str) -> anyhow::Result<()> {
    let rules = schema.as_object().context("a schema is not an object")?;
    for (word, rule) in rules {
        let broken = match word.as_str() {
            "$schema" | "definitions" | "description" | "additionalProperties" => None,
            "$ref" => {
                let place = rule.as_str().and_then(|text| text.strip_prefix('#'));
                let schema = place.and_then(|place| root.pointer(place)).context("a $ref leads nowhere")?;
                fits(schema, root, value, path)?;
                None
            }
            "properties" => {
                members(schema, root, value, path)?;
                None
            }
            _ => broken(word, rule, value)?,
        };
        if let Some(wanted) = broken {
            bail!("the value {path} is {value}, and has to be {wanted}");
        }
    }
    Ok(())
}

/// What is wanted instead, where a rule about the value itself is broken.
fn broken(word: &str, rule: &Value, value: &Value) -> anyhow::Result<Option<String>> {
    let number = || rule.as_i64().context("a limit is not a number");
    let length = || value.as_str().map(|text| text.chars().count() as i64);
    let (holds, wanted) = match word {
        "type" => {
            let kind = rule.as_str().context("a type is not text")?;
            (is(value, kind)?, format!("of the type {kind}"))
        }
        "enum" => {
            let allowed = rule.as_array().context("an enum is not a list")?;
            (allowed.contains(value), format!("one of {rule}"))
        }
        "pattern" => {
            let pattern = Regex::new(rule.as_str().context("a pattern is not text")?)?;
            (value.as_str().is_none_or(|text| pattern.is_match(text)), format!("of the form {pattern}"))
        }
        "minimum" => {
            let least = number()?;
            (value.as_i64().is_none_or(|value| value >= least), format!("at least {least}"))
        }
        "maximum" => {
            let most = number()?;
            (value.as_i64().is_none_or(|value| value <= most), format!("at most {most}"))
        }
        "minLength" => {
            let least = number()?;
            (length().is_none_or(|length| length >= least), format!("at least {least} characters long"))
        }
        "maxLength" => {
            let most = number()?;
            (length().is_none_or(|length| length <= most), format!("at most {most} characters long"))
        }
        other => bail!("the word {other:?} of the schema is not understood"),
    };
    Ok((!holds).then_some(wanted))
}

fn is(value: &Value, kind: &str) -> anyhow::Result<bool> {
    Ok(match kind {
        "object" => value.is_object(),
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "boolean" => value.is_boolean(),
        other => bail!("the type {other:?} of the schema is not understood"),
    })
}

fn members(schema: &Value, root: &Value, value: &Value, path: &str) -> anyhow::Result<()> {
    for (name, value) in value.as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match schema["properties"].get(name) {
            Some(schema) => fits(schema, root, value, &path)?,
            None => {
                let closed = schema["additionalProperties"] == false;
                ensure!(!closed, "there is no value {path}; those of the chart are in its values.yaml");
            }
        }
    }
    Ok(())
}
