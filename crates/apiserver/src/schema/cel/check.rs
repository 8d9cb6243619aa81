//! The common mistakes in rules, found before any object is: fields that do not exist, rules that are no tests.
//!
//! This is no type checker: what it cannot follow, it lets pass.

use kube_cel::cel::common::ast::{CallExpr, Expr, SelectExpr};
use kube_cel::cel::parser::Expression;

use super::super::{Link, MAX_DEPTH, Schema, Type};
use super::functions::is_function;
use super::value::escape;

/// The message that follows the rule in the real server's error.
pub(super) fn check(program: &Expression, source: &str, schema: &Schema, root: bool) -> Result<(), String> {
    let mut checker = Checker { source, root: schema, whole: root, errors: Vec::new() };
    let found = checker.walk(&program.expr, 0);
    if !checker.errors.is_empty() {
        return Err(format!("compilation failed: {}", checker.errors.join("\n")));
    }
    match found.ty() {
        Some(ty) if ty != Type::Boolean => Err("cel expression must evaluate to a bool".to_owned()),
        _ => Ok(()),
    }
}

struct Checker<'a> {
    source: &'a str,
    root: &'a Schema,
    whole: bool,
    errors: Vec<String>,
}

/// What is known of an expression.
enum Known<'a> {
    Field(&'a Schema),
    Literal(Type),
    Nothing,
}

impl Known<'_> {
    fn ty(&self) -> Option<Type> {
        match self {
            Known::Field(schema) => schema.ty.filter(|_| !schema.int_or_string),
            Known::Literal(ty) => Some(*ty),
            Known::Nothing => None,
        }
    }

    /// The CEL type, where it is a plain one.
    fn plain(&self) -> Option<&'static str> {
        let formatted = matches!(self, Known::Field(schema) if schema.format.is_some());
        match self.ty()? {
            Type::String if !formatted => Some("string"),
            Type::Integer => Some("int"),
            Type::Boolean => Some("bool"),
            _ => None,
        }
    }
}

impl<'a> Checker<'a> {
    fn walk(&mut self, expression: &Expr, depth: usize) -> Known<'a> {
        use kube_cel::cel::common::ast::LiteralValue;
        if depth > MAX_DEPTH {
            return Known::Nothing;
        }
        match expression {
            Expr::Ident(name) if name == "self" || name == "oldSelf" => Known::Field(self.root),
            Expr::Select(select) => self.select(select, depth),
            Expr::Call(call) => self.call(call, depth),
            Expr::List(list) => {
                for element in &list.elements {
                    self.walk(&element.expr, depth + 1);
                }
                Known::Literal(Type::Array)
            }
            Expr::Comprehension(comprehension) => {
                // The loop may shadow names, but never `self`.
                self.walk(&comprehension.iter_range.expr, depth + 1);
                self.walk(&comprehension.loop_step.expr, depth + 1);
                Known::Nothing
            }
            Expr::Literal(LiteralValue::Boolean(_)) => Known::Literal(Type::Boolean),
            Expr::Literal(LiteralValue::String(_)) => Known::Literal(Type::String),
            Expr::Literal(LiteralValue::Int(_)) => Known::Literal(Type::Integer),
            _ => Known::Nothing,
        }
    }

    fn select(&mut self, select: &SelectExpr, depth: usize) -> Known<'a> {
        let Known::Field(schema) = self.walk(&select.operand.expr, depth + 1) else { return Known::Nothing };
        // `oldSelf` may be an optional, which has other members.
        let optional = matches!(&select.operand.expr, Expr::Ident(name) if name == "oldSelf");
        match self.field(schema, &select.field) {
            Some(_) if select.test => Known::Literal(Type::Boolean),
            Some(known) => known,
            None => {
                if !optional {
                    self.undefined(&select.field, select.test);
                }
                Known::Nothing
            }
        }
    }

    fn call(&mut self, call: &CallExpr, depth: usize) -> Known<'a> {
        // Functions of a library are called like methods of its name: `math.least(1, 2)`.
        let library = match call.target.as_ref().map(|target| &target.expr) {
            Some(Expr::Ident(name)) => Some(format!("{name}.{}", call.func_name)),
            _ => None,
        };
        if !is_function(&call.func_name) && !library.is_some_and(|name| is_function(&name)) {
            self.undeclared(&call.func_name);
        }
        if let Some(target) = &call.target {
            self.walk(&target.expr, depth + 1);
        }
        let known: Vec<Known<'a>> = call.args.iter().map(|arg| self.walk(&arg.expr, depth + 1)).collect();
        let sign = match call.func_name.as_str() {
            "_==_" => "==",
            "_!=_" => "!=",
            "_<_" => "<",
            "_<=_" => "<=",
            "_>_" => ">",
            "_>=_" => ">=",
            _ => return Known::Nothing,
        };
        if let [Some(left), Some(right)] = known.iter().map(Known::plain).collect::<Vec<_>>()[..]
            && left != right
        {
            let at = self.source.find(sign).unwrap_or(0);
            let name = &call.func_name;
            self.error(
                at,
                &format!("found no matching overload for '{name}' applied to '({left}, {right})'"),
            );
        }
        Known::Literal(Type::Boolean)
    }

    /// The member of a schema under its escaped name; `None` if it has none.
    fn field(&self, schema: &'a Schema, name: &str) -> Option<Known<'a>> {
        let is_root = std::ptr::eq(schema, self.root) && self.whole;
        if (is_root || schema.embedded_resource) && matches!(name, "metadata" | "kind" | "apiVersion") {
            return Some(Known::Nothing);
        }
        if let Some(link) = &schema.additional {
            return Some(Known::Field(link.get()));
        }
        let named = |(key, _): &(&String, &Link)| escape(key).as_deref() == Some(name);
        match schema.properties.iter().find(named) {
            Some((_, link)) => Some(Known::Field(link.get())),
            None if schema.ty == Some(Type::Object) => None,
            None => Some(Known::Nothing),
        }
    }

    fn undeclared(&mut self, function: &str) {
        let at = self.source.find(&format!("{function}(")).map_or(0, |at| at + function.len());
        self.error(at, &format!("undeclared reference to '{function}' (in container '')"));
    }

    fn undefined(&mut self, field: &str, tested: bool) {
        let needle = format!(".{field}");
        let at = self
            .source
            .match_indices(&needle)
            .find(|(at, _)| {
                let after = self.source[at + needle.len()..].chars().next();
                !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
            })
            .map_or(0, |(at, _)| at);
        // A test points at the parenthesis of its `has(`.
        let test = self.source[..at].rfind("has(").filter(|_| tested).map(|has| has + 3);
        self.error(test.unwrap_or(at), &format!("undefined field '{field}'"));
    }

    /// Adds a message that points at a byte of the rule.
    fn error(&mut self, at: usize, what: &str) {
        let line_start = self.source[..at].rfind('\n').map_or(0, |n| n + 1);
        let line_number = self.source[..at].matches('\n').count() + 1;
        let line = self.source[line_start..].lines().next().unwrap_or("");
        let column = self.source[line_start..at].chars().count();
        self.errors.push(format!(
            "ERROR: <input>:{line_number}:{}: {what}\n | {line}\n | {}^",
            column + 1,
            ".".repeat(column)
        ));
    }
}
