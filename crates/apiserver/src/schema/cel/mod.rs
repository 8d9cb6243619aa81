//! `x-kubernetes-validations`: CEL rules of CustomResourceDefinitions, compiled once and run on every write.
//!
//! Rules see what the real API server shows them: declared fields under escaped names, `metadata` reduced to
//! its names, old values only where old and new can be matched. Costs are not counted.

mod check;
mod functions;
mod optional;
mod value;

use std::collections::BTreeMap;
use std::sync::Arc;

use kube_cel::cel::objects::OptionalValue;
use kube_cel::cel::parser::{Expression, Parser};
use kube_cel::cel::{Context, ExecutionError, Value as CelValue};
use serde_json::Value;

use functions::FUNCTIONS;

use super::parse::Names;
use super::path::Path;
use super::{Link, MAX_DEPTH, Schema, Type, listtype};
use crate::go_json::html_safe;
use crate::status::{FieldError, FieldErrorKind};

/// Longer texts of a `messageExpression` are not used.
const MAX_MESSAGE: usize = 5 << 10;

/// The rules of one schema.
#[derive(Default)]
pub struct Rules {
    root: Option<Node>,
}

/// What rules find.
#[derive(Debug, Default)]
pub struct Faults {
    pub refused: Vec<FieldError>,
    /// Faults that were there before.
    pub tolerated: Vec<FieldError>,
}

/// The rules at one place of the schema and below; places without any are left out.
struct Node {
    schema: Link,
    rules: Vec<Rule>,
    properties: BTreeMap<String, Node>,
    additional: Option<Box<Node>>,
    items: Option<Box<Node>>,
}

struct Rule {
    text: String,
    message: String,
    program: Expression,
    message_program: Option<Expression>,
    reason: Option<String>,
    /// Relative to the node, as it is written behind the node's own path.
    field_path: Option<String>,
    uses_old: bool,
    optional_old: bool,
}

impl Rules {
    /// Compiles all rules of an `openAPIV3Schema`. Those that do not compile are reported and left out.
    pub fn compile(openapi: &Value) -> (Rules, Vec<FieldError>) {
        Self::compile_at(openapi, "openAPIV3Schema")
    }

    /// As [`Rules::compile`], with the path that errors begin with.
    pub fn compile_at(openapi: &Value, base: &str) -> (Rules, Vec<FieldError>) {
        let mut errors = Vec::new();
        if !mentions_rules(openapi, 0) {
            return (Rules::default(), errors);
        }
        let root = match Schema::from_json(openapi, &Names::none()) {
            Ok(schema) => {
                let place = Place { path: base.to_owned(), uncorrelatable: None };
                compile_node(&Link::Own(Arc::new(schema)), &place, true, &mut errors)
            }
            // A schema that cannot be read has worse faults, and those are reported.
            Err(_) => None,
        };
        (Rules { root }, errors)
    }

    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Runs the rules. Transition rules run where an old value exists; faults that were there before and are
    /// unchanged are tolerated.
    pub fn validate(&self, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
        self.judge(new, old).refused
    }

    /// As [`Rules::validate`], and also what was tolerated: clients are warned of that.
    pub fn judge(&self, new: &Value, old: Option<&Value>) -> Faults {
        let mut faults = Faults::default();
        if let Some(root) = &self.root {
            root.run(new, old, None, &Path::root(""), &mut faults, 0);
        }
        faults
    }
}

fn mentions_rules(json: &Value, depth: usize) -> bool {
    match json {
        _ if depth > MAX_DEPTH => false,
        Value::Object(map) => {
            map.contains_key("x-kubernetes-validations") || map.values().any(|v| mentions_rules(v, depth + 1))
        }
        Value::Array(list) => list.iter().any(|v| mentions_rules(v, depth + 1)),
        _ => false,
    }
}

/// Where in a schema the compiler is.
struct Place {
    path: String,
    /// The list whose elements cannot be matched with old ones.
    uncorrelatable: Option<String>,
}

impl Place {
    fn child(&self, step: &str) -> Place {
        Place { path: format!("{}{step}", self.path), uncorrelatable: self.uncorrelatable.clone() }
    }
}

fn compile_node(link: &Link, place: &Place, root: bool, errors: &mut Vec<FieldError>) -> Option<Node> {
    let schema = link.get();
    let rules: Vec<Rule> = schema
        .rules
        .iter()
        .enumerate()
        .filter_map(|(i, json)| compile_rule(schema, json, i, place, root, errors))
        .collect();
    let mut properties = BTreeMap::new();
    for (name, link) in &schema.properties {
        let place = place.child(&format!(".properties[{name}]"));
        if let Some(node) = compile_node(link, &place, link.get().embedded_resource, errors) {
            properties.insert(name.clone(), node);
        }
    }
    let additional = schema.additional.as_ref().and_then(|link| {
        compile_node(link, &place.child(".additionalProperties"), link.get().embedded_resource, errors)
    });
    let items = schema.items.as_ref().and_then(|link| {
        let mut inner = place.child(".items");
        if schema.list_type != super::ListType::Map {
            inner.uncorrelatable.get_or_insert_with(|| place.path.clone());
        }
        compile_node(link, &inner, link.get().embedded_resource, errors)
    });
    if rules.is_empty() && properties.is_empty() && additional.is_none() && items.is_none() {
        return None;
    }
    let (additional, items) = (additional.map(Box::new), items.map(Box::new));
    Some(Node { schema: link.clone(), rules, properties, additional, items })
}

fn text<'a>(json: &'a Value, key: &str) -> &'a str {
    json.get(key).and_then(Value::as_str).unwrap_or("")
}

fn parse(source: &str) -> Result<Expression, String> {
    let parser = Parser::new().enable_optional_syntax(true);
    let mut program = parser.parse(source).map_err(|errors| errors.to_string().replace("\n| ", "\n | "))?;
    optional::rewrite(&mut program, 0);
    Ok(program)
}

fn compile_rule(
    schema: &Schema,
    json: &Value,
    index: usize,
    place: &Place,
    root: bool,
    errors: &mut Vec<FieldError>,
) -> Option<Rule> {
    let source = text(json, "rule");
    let at = |field: &str| format!("{}.x-kubernetes-validations[{index}].{field}", place.path);
    // The rule stands in the detail, because only text keeps the order in which Go prints it.
    let fail = |field: &str, detail: String| {
        let quoted = |key: &str| html_safe(&text(json, key).into());
        let detail = format!(
            "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\
             \"OptionalOldSelf\":{}}}: {detail}",
            quoted("rule"),
            quoted("message"),
            quoted("messageExpression"),
            json["reason"],
            quoted("fieldPath"),
            json["optionalOldSelf"]
        );
        FieldError::new(FieldErrorKind::Invalid, at(field), None, detail)
    };
    if source.trim().is_empty() {
        return None;
    }
    let program = parse(source)
        .map_err(|error| format!("compilation failed: {error}"))
        .and_then(|program| check::check(&program, source, schema, root).map(|()| program));
    let message_source = text(json, "messageExpression");
    let message_program = match message_source.trim() {
        "" => None,
        source => match parse(source) {
            Ok(program) => Some(program),
            Err(error) => {
                let detail = format!("messageExpression compilation failed: {error}");
                errors.push(fail("messageExpression", detail));
                None
            }
        },
    };
    let program = match program {
        Ok(program) => program,
        Err(detail) => {
            errors.push(fail("rule", detail));
            return None;
        }
    };
    let uses_old = program.references().has_variable("oldSelf");
    if uses_old && let Some(list) = &place.uncorrelatable {
        let detail =
            format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {list}");
        errors.push(FieldError::invalid(at("rule"), source, detail));
    }
    if !uses_old && let Some(optional) = json.get("optionalOldSelf").filter(|v| !v.is_null()) {
        let detail = "may not be set if oldSelf is not used in rule";
        errors.push(FieldError::invalid(at("optionalOldSelf"), optional.clone(), detail));
    }
    Some(Rule {
        text: source.trim().to_owned(),
        message: text(json, "message").trim().to_owned(),
        program,
        message_program,
        reason: json.get("reason").and_then(Value::as_str).map(str::to_owned),
        field_path: field_path(text(json, "fieldPath"), schema),
        uses_old,
        optional_old: json.get("optionalOldSelf").and_then(Value::as_bool).unwrap_or(false),
    })
}

/// `.a.b['c']` as field paths are written; `None` if it leads nowhere or is empty.
pub fn field_path(text: &str, schema: &Schema) -> Option<String> {
    field_path_in(text, schema, true).ok().map(|(path, _)| path).filter(|path| !path.is_empty())
}

/// As [`field_path`], with the schema it leads to, or what is wrong with it.
pub(super) fn field_path_in<'a>(
    text: &str,
    schema: &'a Schema,
    arrays: bool,
) -> Result<(String, &'a Schema), String> {
    let (mut rest, mut at, mut path) = (text.trim(), schema, String::new());
    while !rest.is_empty() {
        let name;
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[', ']']).unwrap_or(after.len());
            if end == 0 {
                return Err("unexpected end of JSON path".to_owned());
            }
            name = after[..end].to_owned();
            rest = &after[end..];
        } else if let Some(after) = rest.strip_prefix('[') {
            if !arrays {
                return Err("array notation is not allowed".to_owned());
            }
            let inner = after.strip_prefix('\'').and_then(|inner| inner.split_once("']"));
            let Some((quoted, after)) = inner else {
                return Err(format!("expected single quoted string but got {after}"));
            };
            name = quoted.replace("\\'", "'").replace("\\\\", "\\");
            rest = after;
        } else {
            return Err(format!("expected [ or . but got: {rest}"));
        }
        let link = match at.properties.get(&name) {
            Some(link) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(&name);
                link
            }
            None => {
                path.push_str(&format!("[{name}]"));
                let link = at.additional.as_ref().filter(|_| at.properties.is_empty());
                link.ok_or("does not refer to a valid field")?
            }
        };
        at = link.get();
    }
    Ok((path, at))
}

impl Node {
    /// `nearest` is the closest pair of new and old values around this one that could be matched.
    fn run<'v>(
        &self,
        value: &'v Value,
        old: Option<&'v Value>,
        nearest: Option<(&'v Value, &'v Value)>,
        path: &Path<'_>,
        faults: &mut Faults,
        depth: usize,
    ) {
        if value.is_null() || depth > MAX_DEPTH {
            return;
        }
        let old = old.filter(|old| !old.is_null());
        if !self.rules.is_empty() {
            let unchanged = || match old {
                Some(old) => old == value,
                None => nearest.is_some_and(|(new, old)| new == old),
            };
            self.run_rules(value, old, &unchanged, path, faults);
        }
        let nearest = old.map_or(nearest, |old| Some((value, old)));
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    let old = old.and_then(|old| old.get(key));
                    if let Some(node) = self.properties.get(key) {
                        node.run(value, old, nearest, &path.field(key), faults, depth + 1);
                    } else if let Some(node) = &self.additional {
                        node.run(value, old, nearest, &path.key(key), faults, depth + 1);
                    }
                }
            }
            Value::Array(list) => {
                let Some(node) = &self.items else { return };
                for (i, item) in list.iter().enumerate() {
                    let old = old.and_then(|old| listtype::counterpart(self.schema.get(), item, old));
                    node.run(item, old, nearest, &path.index(i), faults, depth + 1);
                }
            }
            _ => {}
        }
    }

    fn run_rules(
        &self,
        value: &Value,
        old: Option<&Value>,
        unchanged: &dyn Fn() -> bool,
        path: &Path<'_>,
        faults: &mut Faults,
    ) {
        let schema = self.schema.get();
        let whole = path.is_root() || schema.embedded_resource;
        let wants_old = self.rules.iter().any(|rule| rule.uses_old);
        let new_value = value::convert(schema, value, whole);
        let old_value = old.filter(|_| wants_old).map(|old| value::convert(schema, old, whole));
        let mut scope = FUNCTIONS.new_inner_scope();
        scope.add_variable_from_value("self", new_value);
        for rule in &self.rules {
            if rule.uses_old {
                match (&old_value, rule.optional_old) {
                    (None, false) => continue,
                    (Some(old), false) => scope.add_variable_from_value("oldSelf", old.clone()),
                    (old, true) => {
                        let optional = old.clone().map_or_else(OptionalValue::none, OptionalValue::of);
                        scope.add_variable_from_value("oldSelf", CelValue::Opaque(Arc::new(optional)));
                    }
                }
            }
            if let Some((error, tolerable)) = rule.run(schema, value, &scope, path) {
                let tolerated = tolerable && !rule.uses_old && unchanged();
                if tolerated { &mut faults.tolerated } else { &mut faults.refused }.push(error);
            }
        }
    }
}

impl Rule {
    /// The fault, if any, and whether it may be tolerated where nothing changed.
    fn run(
        &self,
        schema: &Schema,
        value: &Value,
        scope: &Context<'_>,
        path: &Path<'_>,
    ) -> Option<(FieldError, bool)> {
        let mut field = path.bracketed();
        match scope.resolve(&self.program) {
            Ok(CelValue::Bool(true)) => return None,
            Ok(CelValue::Bool(false)) => {}
            Ok(_) => {
                let detail = format!("cel expression must evaluate to a bool: {}", self.shown());
                return Some((FieldError::invalid(or_nil(field), type_name(schema), detail), false));
            }
            Err(error) => {
                let detail = failure(&error, self.shown());
                return Some((FieldError::invalid(or_nil(field), type_name(schema), detail), false));
            }
        }
        if let Some(relative) = &self.field_path {
            if !field.is_empty() {
                field.push('.');
            }
            field.push_str(relative);
        }
        let detail = self.expressed(scope).unwrap_or_else(|| match self.message.as_str() {
            "" => format!("failed rule: {}", self.text),
            message => message.to_owned(),
        });
        let compound = matches!(schema.ty, Some(Type::Object | Type::Array));
        let value = if compound { None } else { Some(value.clone()) };
        let (kind, value, detail) = match self.reason.as_deref() {
            Some("FieldValueForbidden") => (FieldErrorKind::Forbidden, None, detail),
            Some("FieldValueRequired") => (FieldErrorKind::Required, None, detail),
            Some("FieldValueDuplicate") => (FieldErrorKind::Duplicate, value, String::new()),
            _ => (FieldErrorKind::Invalid, value, detail),
        };
        Some((FieldError::new(kind, or_nil(field), value, detail), true))
    }

    fn shown(&self) -> &str {
        if self.message.is_empty() { &self.text } else { &self.message }
    }

    /// What the `messageExpression` says, if it says something usable.
    fn expressed(&self, scope: &Context<'_>) -> Option<String> {
        match scope.resolve(self.message_program.as_ref()?) {
            Ok(CelValue::String(text)) => {
                let text = text.trim();
                let usable = !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n');
                usable.then(|| text.to_owned())
            }
            _ => None,
        }
    }
}

fn or_nil(field: String) -> String {
    if field.is_empty() { "<nil>".to_owned() } else { field }
}

fn type_name(schema: &Schema) -> &'static str {
    match schema.ty {
        Some(Type::Object) => "object",
        Some(Type::Array) => "array",
        Some(Type::String) => "string",
        Some(Type::Integer) => "integer",
        Some(Type::Number) => "number",
        Some(Type::Boolean) => "boolean",
        None => "",
    }
}

/// A failed evaluation in the words of the real interpreter, as far as they are the same.
fn failure(error: &ExecutionError, rule: &str) -> String {
    let text = match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::Overflow(..) => "integer overflow".to_owned(),
        ExecutionError::IndexOutOfBounds(CelValue::Int(index)) => format!("index out of bounds: {index}"),
        ExecutionError::NoSuchOverload
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::ValuesNotComparable(..) => {
            return format!(
                "'no such overload': call arguments did not match a supported operator, function or macro \
                 signature for rule: {rule}"
            );
        }
        other => other.to_string(),
    };
    format!("{text} evaluating rule: {rule}")
}

#[cfg(test)]
mod tests;
