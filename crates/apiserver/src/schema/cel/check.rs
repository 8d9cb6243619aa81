//! The common mistakes in rules, found before any object is: fields that do not exist, rules that are no tests.
//!
//! This is no type checker: what it cannot follow, it lets pass.

use kube_cel::cel::common::ast::Expr;
use kube_cel::cel::parser::Expression;

use super::super::{Link, MAX_DEPTH, Schema, Type};
use super::functions::is_function;
use super::value::escape;

/// The message that follows the rule in the real server's error.
pub(super) fn check(program: &Expression, source: &str, schema: &Schema, root: bool) -> Result<(), String> {
    let checker = Checker { source, root: schema, whole: root };
    let found = checker.walk(&program.expr, 0)?;
    let ty = match found {
        Known::Field(schema) => schema.ty.filter(|_| !schema.int_or_string),
        Known::Literal(ty) => Some(ty),
        Known::Nothing | Known::Anything => None,
    };
    match ty {
        Some(ty) if ty != Type::Boolean => Err("cel expression must evaluate to a bool".to_owned()),
        _ => Ok(()),
    }
}

struct Checker<'a> {
    source: &'a str,
    root: &'a Schema,
    whole: bool,
}

/// What is known of an expression.
enum Known<'a> {
    Field(&'a Schema),
    Literal(Type),
    Anything,
    Nothing,
}

impl<'a> Checker<'a> {
    fn walk(&self, expression: &Expr, depth: usize) -> Result<Known<'a>, String> {
        use kube_cel::cel::common::ast::LiteralValue;
        if depth > MAX_DEPTH {
            return Ok(Known::Nothing);
        }
        match expression {
            Expr::Ident(name) if name == "self" || name == "oldSelf" => Ok(Known::Field(self.root)),
            Expr::Select(select) => {
                let operand = self.walk(&select.operand.expr, depth + 1)?;
                let Known::Field(schema) = operand else { return Ok(Known::Anything) };
                let optional = matches!(&select.operand.expr, Expr::Ident(name) if name == "oldSelf");
                match self.field(schema, &select.field) {
                    Some(_) if select.test => Ok(Known::Literal(Type::Boolean)),
                    Some(known) => Ok(known),
                    // `oldSelf` may be an optional, which has other members.
                    None if optional => Ok(Known::Anything),
                    None => Err(self.undefined(&select.field)),
                }
            }
            Expr::Call(call) => {
                // Functions of a library are called like methods of its name: `math.least(1, 2)`.
                let library = match call.target.as_ref().map(|target| &target.expr) {
                    Some(Expr::Ident(name)) => Some(format!("{name}.{}", call.func_name)),
                    _ => None,
                };
                if !is_function(&call.func_name) && !library.is_some_and(|name| is_function(&name)) {
                    return Err(self.undeclared(&call.func_name));
                }
                if let Some(target) = &call.target {
                    self.walk(&target.expr, depth + 1)?;
                }
                call.args.iter().try_for_each(|arg| self.walk(&arg.expr, depth + 1).map(|_| ()))?;
                Ok(Known::Nothing)
            }
            Expr::List(list) => {
                list.elements.iter().try_for_each(|e| self.walk(&e.expr, depth + 1).map(|_| ()))?;
                Ok(Known::Literal(Type::Array))
            }
            Expr::Comprehension(comprehension) => {
                // The loop may shadow names, but never `self`.
                self.walk(&comprehension.iter_range.expr, depth + 1)?;
                self.walk(&comprehension.loop_step.expr, depth + 1)?;
                Ok(Known::Nothing)
            }
            Expr::Literal(literal) => Ok(match literal {
                LiteralValue::Boolean(_) => Known::Literal(Type::Boolean),
                LiteralValue::String(_) => Known::Literal(Type::String),
                LiteralValue::Int(_) => Known::Literal(Type::Integer),
                _ => Known::Nothing,
            }),
            _ => Ok(Known::Nothing),
        }
    }

    /// The member of a schema under its escaped name; `None` if it has none.
    fn field(&self, schema: &'a Schema, name: &str) -> Option<Known<'a>> {
        let is_root = std::ptr::eq(schema, self.root) && self.whole;
        if (is_root || schema.embedded_resource) && matches!(name, "metadata" | "kind" | "apiVersion") {
            return Some(Known::Anything);
        }
        if let Some(link) = &schema.additional {
            return Some(Known::Field(link.get()));
        }
        let named = |(key, _): &(&String, &Link)| escape(key).as_deref() == Some(name);
        match schema.properties.iter().find(named) {
            Some((_, link)) => Some(Known::Field(link.get())),
            None if schema.ty == Some(Type::Object) => None,
            None => Some(Known::Anything),
        }
    }

    fn undeclared(&self, function: &str) -> String {
        let at = self.source.find(&format!("{function}(")).map_or(0, |at| at + function.len());
        self.error(at, &format!("undeclared reference to '{function}' (in container '')"))
    }

    fn undefined(&self, field: &str) -> String {
        let needle = format!(".{field}");
        let at = self
            .source
            .match_indices(&needle)
            .find(|(at, _)| {
                let after = self.source[at + needle.len()..].chars().next();
                !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
            })
            .map_or(0, |(at, _)| at);
        self.error(at, &format!("undefined field '{field}'"))
    }

    /// A message that points at a byte of the rule.
    fn error(&self, at: usize, what: &str) -> String {
        let line_start = self.source[..at].rfind('\n').map_or(0, |n| n + 1);
        let line_number = self.source[..at].matches('\n').count() + 1;
        let line = self.source[line_start..].lines().next().unwrap_or("");
        let column = self.source[line_start..at].chars().count();
        format!(
            "compilation failed: ERROR: <input>:{line_number}:{}: {what}\n | {line}\n | {}^",
            column + 1,
            ".".repeat(column)
        )
    }
}
