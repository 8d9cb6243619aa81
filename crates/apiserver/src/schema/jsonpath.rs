//! JSONPath as printer columns and selectable fields use it: fields, indices, wildcards and filters.
//!
//! Errors at evaluation (an index out of bounds, a filter on an object) are "no result", as in tables.

use serde_json::Value;

use super::MAX_DEPTH;
use crate::status::go_float;

/// A parsed path.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    Wildcard,
    Recursive,
    /// `[start:end:step]`; an index is a slice of one.
    Slice(Option<i64>, Option<i64>, i64),
    /// `['a','b']` and `[1,3]`.
    Union(Vec<Vec<Step>>),
    Filter {
        left: Operand,
        comparison: Comparison,
        right: Operand,
    },
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    Path(Vec<Step>),
    Literal(Value),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Comparison {
    Exists,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

impl JsonPath {
    /// Reads `.spec.foo`, `.status.conditions[?(@.type=="Ready")].status`, `.metadata.labels.app\.io/name`, …
    pub fn parse(text: &str) -> Result<JsonPath, String> {
        let text = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(text);
        let mut reader = Reader { rest: text, depth: 0 };
        let steps = reader.steps()?;
        if !reader.rest.is_empty() {
            return Err(format!("unexpected {:?} in JSON path", reader.rest));
        }
        Ok(JsonPath { steps })
    }

    /// All values at the path.
    pub fn select<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        walk(vec![value], &self.steps).unwrap_or_default()
    }

    /// The cell of a table column of type `ty`. A `date` is given back as it stands in the object, for the
    /// caller to turn into an age; what does not fit the type is null.
    pub fn cell(&self, ty: &str, object: &Value) -> Value {
        let Some(value) = self.select(object).first().copied() else { return Value::Null };
        match (ty, value) {
            ("string", value) => printed(value).into(),
            ("integer", Value::Number(n)) => match n.as_i64() {
                Some(n) => n.into(),
                None => (n.as_f64().unwrap_or(0.0) as i64).into(),
            },
            ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) | ("date", Value::String(_)) => {
                value.clone()
            }
            _ => Value::Null,
        }
    }

    /// What a field selector compares with: the printed value, or nothing.
    pub fn field(&self, object: &Value) -> String {
        match self.select(object).first() {
            None | Some(Value::Null) => String::new(),
            Some(value) => printed(value),
        }
    }
}

/// A value as Go prints it into a column.
pub fn printed(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(n) if n.is_f64() => go_float(n.as_f64().unwrap_or(0.0)),
        other => other.to_string(),
    }
}

struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl Reader<'_> {
    fn steps(&mut self) -> Result<Vec<Step>, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("JSON path nested too deeply".to_owned());
        }
        let mut steps = Vec::new();
        self.eat("$");
        self.eat("@");
        loop {
            if self.eat("..") {
                steps.push(Step::Recursive);
                if !self.rest.starts_with(['[', '*']) {
                    steps.push(self.name());
                }
            } else if self.eat(".") {
                if self.eat("*") {
                    steps.push(Step::Wildcard);
                } else if !self.rest.starts_with('[') && !self.rest.is_empty() {
                    steps.push(self.name());
                }
            } else if self.eat("[") {
                steps.push(self.bracket()?);
            } else if steps.is_empty() && self.rest.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
                steps.push(self.name());
            } else {
                self.depth -= 1;
                return Ok(steps);
            }
        }
    }

    fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// A name after a dot; a backslash makes the next character part of it.
    fn name(&mut self) -> Step {
        let mut name = String::new();
        let mut characters = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((at, c)) = characters.next() {
            match c {
                '\\' => name.extend(characters.next().map(|(_, c)| c)),
                '.' | '[' | ']' | ')' | '=' | '!' | '<' | '>' | ' ' | ',' | '|' | '}' | '{' => {
                    end = at;
                    break;
                }
                c => name.push(c),
            }
        }
        self.rest = &self.rest[end..];
        if name == "*" { Step::Wildcard } else { Step::Field(name) }
    }

    fn bracket(&mut self) -> Result<Step, String> {
        self.spaces();
        if self.eat("?(") {
            return self.filter();
        }
        let mut parts = Vec::new();
        loop {
            self.spaces();
            parts.push(self.bracket_part()?);
            self.spaces();
            if self.eat(",") {
                continue;
            }
            if self.eat("]") {
                break;
            }
            return Err("unterminated array".to_owned());
        }
        match (parts.pop(), parts.is_empty()) {
            (Some(only), true) => Ok(only),
            (Some(last), false) => {
                parts.push(last);
                Ok(Step::Union(parts.into_iter().map(|step| vec![step]).collect()))
            }
            (None, _) => Err("unterminated array".to_owned()),
        }
    }

    fn bracket_part(&mut self) -> Result<Step, String> {
        if self.eat("*") {
            return Ok(Step::Wildcard);
        }
        if self.rest.starts_with(['\'', '"']) {
            return Ok(Step::Field(self.quoted()?));
        }
        let end = self.rest.find([',', ']']).ok_or("unterminated array")?;
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        let bad = || format!("invalid array index {text}");
        let number = |part: &str| match part.trim() {
            "" => Ok(None),
            part => part.parse::<i64>().map(Some).map_err(|_| bad()),
        };
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            [index] => {
                let index = number(index)?.ok_or_else(bad)?;
                // The end of a slice of one; "0" is the end only if the start is the last element.
                let end = if index == -1 { None } else { index.checked_add(1) };
                Ok(Step::Slice(Some(index), end, 1))
            }
            [start, end] => Ok(Step::Slice(number(start)?, number(end)?, 1)),
            [start, end, step] => Ok(Step::Slice(number(start)?, number(end)?, number(step)?.unwrap_or(1))),
            _ => Err(bad()),
        }
    }

    fn quoted(&mut self) -> Result<String, String> {
        let mut characters = self.rest.char_indices();
        let quote = characters.next().map(|(_, c)| c);
        let mut text = String::new();
        while let Some((at, c)) = characters.next() {
            match c {
                '\\' => text.extend(characters.next().map(|(_, c)| c)),
                c if Some(c) == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(text);
                }
                c => text.push(c),
            }
        }
        Err("unterminated quoted string".to_owned())
    }

    fn filter(&mut self) -> Result<Step, String> {
        let left = self.operand()?;
        self.spaces();
        let comparisons = [
            ("==", Comparison::Equal),
            ("!=", Comparison::NotEqual),
            ("<=", Comparison::LessEqual),
            (">=", Comparison::GreaterEqual),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
        ];
        let comparison = comparisons.into_iter().find(|(token, _)| self.eat(token)).map(|(_, c)| c);
        let right = match comparison {
            Some(_) => self.operand()?,
            None => Operand::Literal(Value::Null),
        };
        self.spaces();
        if self.eat(")") && self.eat("]") {
            let comparison = comparison.unwrap_or(Comparison::Exists);
            return Ok(Step::Filter { left, comparison, right });
        }
        Err("unterminated filter".to_owned())
    }

    fn operand(&mut self) -> Result<Operand, String> {
        self.spaces();
        if self.rest.starts_with(['@', '$', '.']) {
            return Ok(Operand::Path(self.steps()?));
        }
        if self.rest.starts_with(['\'', '"']) {
            return Ok(Operand::Literal(self.quoted()?.into()));
        }
        let end = self.rest.find([')', ' ', '=', '!', '<', '>']).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        match serde_json::from_str(text) {
            Ok(value @ (Value::Number(_) | Value::Bool(_))) => Ok(Operand::Literal(value)),
            _ => Err(format!("unrecognized operand {text:?} in filter")),
        }
    }

    fn spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }
}

/// `None` when the path cannot be followed, which is not the same as finding nothing.
fn walk<'a>(mut values: Vec<&'a Value>, steps: &[Step]) -> Option<Vec<&'a Value>> {
    for step in steps {
        let mut found = Vec::new();
        for value in values {
            apply(step, value, &mut found)?;
        }
        values = found;
    }
    Some(values)
}

fn apply<'a>(step: &Step, value: &'a Value, found: &mut Vec<&'a Value>) -> Option<()> {
    match (step, value) {
        (Step::Field(name), Value::Object(map)) => found.extend(map.get(name)),
        (Step::Wildcard, value) => found.extend(children(value)),
        (Step::Recursive, value) => descend(value, found, 0),
        (Step::Slice(..), Value::Null) => {}
        (Step::Slice(start, end, step), Value::Array(list)) => {
            let length = i64::try_from(list.len()).ok()?;
            let from = start.map_or(0, |s| if s < 0 { s + length } else { s });
            let to = end.map_or(length, |e| if e < 0 { e + length } else { e });
            if from == to {
                return Some(());
            }
            if from < 0 || from >= length || to > length || from > to || *step < 1 {
                return None;
            }
            let range = usize::try_from(from).ok()?..usize::try_from(to).ok()?;
            found.extend(list[range].iter().step_by(usize::try_from(*step).ok()?));
        }
        (Step::Slice(..), _) => return None,
        (Step::Union(parts), value) => {
            for steps in parts {
                found.extend(walk(vec![value], steps)?);
            }
        }
        (Step::Filter { left, comparison, right }, Value::Array(list)) => {
            for item in list {
                if passes(item, left, *comparison, right)? {
                    found.push(item);
                }
            }
        }
        (Step::Filter { .. }, _) => return None,
        (Step::Field(_), _) => {}
    }
    Some(())
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Object(map) => map.values().collect(),
        Value::Array(list) => list.iter().collect(),
        _ => Vec::new(),
    }
}

fn descend<'a>(value: &'a Value, found: &mut Vec<&'a Value>, depth: usize) {
    let below = children(value);
    if below.is_empty() || depth > MAX_DEPTH {
        return;
    }
    found.push(value);
    below.into_iter().for_each(|child| descend(child, found, depth + 1));
}

fn passes(item: &Value, left: &Operand, comparison: Comparison, right: &Operand) -> Option<bool> {
    fn resolve<'a>(operand: &'a Operand, item: &'a Value) -> Option<Vec<&'a Value>> {
        match operand {
            Operand::Literal(value) => Some(vec![value]),
            Operand::Path(steps) => walk(vec![item], steps),
        }
    }
    if comparison == Comparison::Exists {
        return Some(resolve(left, item).is_some_and(|found| !found.is_empty()));
    }
    let (left, right) = (resolve(left, item)?, resolve(right, item)?);
    match (&left[..], &right[..]) {
        ([], _) | (_, []) => Some(false),
        ([left], [right]) => compare(left, comparison, right),
        _ => None,
    }
}

fn compare(left: &Value, comparison: Comparison, right: &Value) -> Option<bool> {
    let order = match (left, right) {
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => a.as_f64()?.partial_cmp(&b.as_f64()?)?,
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        _ => return None,
    };
    Some(match comparison {
        Comparison::Exists => true,
        Comparison::Equal => order.is_eq(),
        Comparison::NotEqual => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::LessEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterEqual => order.is_ge(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths() {
        let object = json!({
            "metadata": {"labels": {"app.kubernetes.io/name": "web"}},
            "spec": {"foo": "bar", "n": 3, "list": [{"x": 1}, {"x": 2}, {"y": 3}], "empty": []},
            "status": {"conditions": [{"type": "Synced", "status": "False"}, {"type": "Ready", "status": "True"}]}});
        let table: &[(&str, Value)] = &[
            (".spec.foo", json!(["bar"])),
            ("{.spec.foo}", json!(["bar"])),
            ("$.spec.foo", json!(["bar"])),
            (".spec.missing.deep", json!([])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type == 'Ready')].status", json!(["True"])),
            (".status.conditions[?(@.type!='Ready')].type", json!(["Synced"])),
            (".status.conditions[?(@.nothing=='x')].type", json!([])),
            (".spec.list[*].x", json!([1, 2])),
            (".spec.list[?(@.x>1)].x", json!([2])),
            (".spec.list[?(@.y)].y", json!([3])),
            (".spec.list[0].x", json!([1])),
            (".spec.list[-1].y", json!([3])),
            (".spec.list[1:].x", json!([2])),
            (".spec.list[0,1].x", json!([1, 2])),
            (".spec.list[9].x", json!([])),
            (".spec.empty[0]", json!([])),
            (".spec.foo[0]", json!([])),
            (".metadata.labels.app\\.kubernetes\\.io/name", json!(["web"])),
            (".metadata.labels['app.kubernetes.io/name']", json!(["web"])),
            (".metadata.labels['app\\.kubernetes\\.io/name']", json!(["web"])),
            ("..x", json!([1, 2])),
            (".spec['foo','n']", json!(["bar", 3])),
        ];
        for (path, want) in table {
            let found = JsonPath::parse(path).expect(path);
            assert_eq!(json!(found.select(&object)), *want, "{path}");
        }
    }

    #[test]
    fn bad_paths_are_refused() {
        for path in [".a[", ".a[x]", ".a['x", ".a[?(@.b==)]", ".a[?(@.b", ".a)b", ".a[1:2:3:4]"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }

    #[test]
    fn cells_are_printed_by_their_type() {
        let object =
            json!({"s": "x", "n": 3, "f": 1.5, "b": true, "o": {"a": [1]}, "t": "2024-01-02T03:04:05Z"});
        let cell = |path: &str, ty: &str| JsonPath::parse(path).expect(path).cell(ty, &object);
        assert_eq!(cell(".s", "string"), json!("x"));
        assert_eq!(cell(".n", "string"), json!("3"));
        assert_eq!(cell(".b", "string"), json!("true"));
        assert_eq!(cell(".o", "string"), json!("{\"a\":[1]}"));
        assert_eq!(cell(".n", "integer"), json!(3));
        assert_eq!(cell(".f", "integer"), json!(1));
        assert_eq!(cell(".s", "integer"), Value::Null);
        assert_eq!(cell(".t", "date"), json!("2024-01-02T03:04:05Z"));
        assert_eq!(cell(".zzz", "string"), Value::Null);
        assert_eq!(JsonPath::parse(".n").expect("path").field(&object), "3");
        assert_eq!(JsonPath::parse(".zzz").expect("path").field(&object), "");
    }
}
