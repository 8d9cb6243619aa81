//! Values of pipelines: fields, variables, constants, and functions with arguments of the kinds that they want.

use std::sync::Arc;

use crate::Missing;
use crate::error::{Error, Fault};
use crate::evaluate::Renderer;
use crate::functions::core::is_true;
use crate::functions::{Function, Param, Run, semver};
use crate::tree::{Command, Number, Operand, Pipe, Term};
use crate::value::{Element, Value};

impl Renderer<'_> {
    /// The value of the last command; variables of the pipeline are declared or set.
    pub(crate) fn pipe(&mut self, pipe: &Pipe, dot: &Value) -> Result<Value, Error> {
        let mut value = None;
        for command in &pipe.commands {
            self.memory.work(1).map_err(|fault| self.at(command.first.at, fault))?;
            value = Some(self.command(command, dot, value)?.outside());
        }
        let value = value.unwrap_or(Value::Missing);
        for name in &pipe.variables {
            if pipe.assigns {
                self.assign(name, value.clone(), pipe.at)?;
            } else {
                self.declare(name.clone(), value.clone());
            }
        }
        Ok(value)
    }

    /// A command, given the value of the one before.
    fn command(&mut self, command: &Command, dot: &Value, last: Option<Value>) -> Result<Value, Error> {
        let at = command.first.at;
        let has_arguments = !command.arguments.is_empty() || last.is_some();
        match &command.first.operand {
            Operand::Function(function) => return self.call(function, at, &command.arguments, last, dot),
            Operand::Field(names) => {
                return self.fields(dot.clone(), names, at, &command.arguments, last, dot);
            }
            Operand::Chain(term, names) => {
                let value = self.term(term, dot)?.outside();
                return self.fields(value, names, at, &command.arguments, last, dot);
            }
            Operand::Variable(name, names) if !names.is_empty() => {
                let value = self.variable(name, at)?;
                return self.fields(value, names, at, &command.arguments, last, dot);
            }
            _ => {}
        }
        if has_arguments {
            return Err(self.error(at, "can't give arguments to what is not a function".to_owned()));
        }
        if matches!(command.first.operand, Operand::Nil) {
            return Err(self.error(at, "nil is not a command".to_owned()));
        }
        self.term(&command.first, dot)
    }

    /// A term by itself, of whatever kind it is.
    fn term(&mut self, term: &Term, dot: &Value) -> Result<Value, Error> {
        match &term.operand {
            Operand::Dot => Ok(dot.clone()),
            Operand::Nil => Ok(Value::Nil),
            Operand::Bool(bool) => Ok(Value::Bool(*bool)),
            Operand::Number(number) => Ok(constant(number)),
            Operand::Text(text) => Ok(Value::Text(text.clone())),
            Operand::Field(names) => self.fields(dot.clone(), names, term.at, &[], None, dot),
            Operand::Variable(name, names) => {
                let value = self.variable(name, term.at)?;
                self.fields(value, names, term.at, &[], None, dot)
            }
            Operand::Function(function) => self.call(function, term.at, &[], None, dot),
            Operand::Pipe(pipe) => self.deeper(term.at, |renderer| renderer.pipe(pipe, dot)),
            Operand::Chain(inner, names) => {
                let value = self.deeper(term.at, |renderer| renderer.term(inner, dot))?.outside();
                self.fields(value, names, term.at, &[], None, dot)
            }
        }
    }

    /// `.a.b.c` of a value; only the last may have arguments, and only if it is a method.
    fn fields(
        &mut self,
        mut value: Value,
        names: &[Arc<str>],
        at: usize,
        arguments: &[Term],
        last: Option<Value>,
        dot: &Value,
    ) -> Result<Value, Error> {
        let has_arguments = !arguments.is_empty() || last.is_some();
        for (index, name) in names.iter().enumerate() {
            let is_last = index + 1 == names.len();
            if let Value::Version(version) = &value {
                let version = version.clone();
                let mut given = Vec::new();
                if is_last {
                    for argument in arguments {
                        given.push(self.term(argument, dot)?);
                    }
                    given.extend(last.clone());
                }
                value = semver::method(&version, name, &given).map_err(|fault| self.at(at, fault))?;
                continue;
            }
            value = self.field(&value, name, at, is_last && has_arguments)?;
        }
        Ok(value)
    }

    fn field(&self, value: &Value, name: &str, at: usize, has_arguments: bool) -> Result<Value, Error> {
        match value {
            Value::Missing if self.missing() == Missing::Refused => {
                Err(self.error(at, format!("nil data; no entry for key {name:?}")))
            }
            Value::Missing => Ok(Value::Missing),
            Value::Nil => Err(self.error(
                at,
                format!("nil pointer evaluating .{name}: what is before it has no value; use `with`, or parentheses: (….x).{name}"),
            )),
            Value::Map(_) if has_arguments => {
                Err(self.error(at, format!("{name} is not a method but has arguments")))
            }
            Value::Map(map) => match (self.memory.entries(*map).get(name), self.missing()) {
                (Some(value), _) => Ok(value.clone()),
                (None, Missing::NoValue) => Ok(Value::Missing),
                (None, Missing::Empty) if self.memory.element(*map) == Element::Text => Ok(Value::text("")),
                (None, Missing::Empty) => Ok(Value::Nil),
                (None, Missing::Refused) => {
                    Err(self.error(at, format!("map has no entry for key {name:?}; add it, or guard it with hasKey")))
                }
            },
            other => {
                let kind = self.memory.type_name(other);
                Err(self.error(at, format!("can't evaluate field {name} in type {kind}; only maps have fields")))
            }
        }
    }

    /// A function, with the value of the command before as its last argument.
    fn call(
        &mut self,
        function: &'static Function,
        at: usize,
        arguments: &[Term],
        last: Option<Value>,
        dot: &Value,
    ) -> Result<Value, Error> {
        let count = arguments.len() + usize::from(last.is_some());
        let fixed = function.parameters.len();
        let name = function.name;
        if function.rest.is_none() && count != fixed {
            return Err(
                self.error(at, format!("wrong number of arguments for {name}: want {fixed}, got {count}"))
            );
        }
        if count < fixed {
            return Err(self.error(
                at,
                format!("wrong number of arguments for {name}: want at least {fixed}, got {count}"),
            ));
        }
        let parameter = |index: usize| {
            let rest = function.rest.unwrap_or(Param::Any);
            function.parameters.get(index).copied().unwrap_or(rest)
        };
        let stops_at = match function.run {
            Run::And => Some(false),
            Run::Or => Some(true),
            _ => None,
        };
        let mut values: Vec<Value> = Vec::with_capacity(count);
        for (index, argument) in arguments.iter().enumerate() {
            let value = self.argument(function, index, parameter(index), argument, dot)?;
            if stops_at.is_some_and(|truth| is_true(&self.memory, &value) == truth) {
                return Ok(value);
            }
            values.push(value);
        }
        if let Some(last) = last {
            let index = values.len();
            values.push(self.accept(function, index, parameter(index), last, at)?);
        }
        self.run(function, values, at)
    }

    fn run(
        &mut self,
        function: &'static Function,
        mut values: Vec<Value>,
        at: usize,
    ) -> Result<Value, Error> {
        let name = function.name;
        let result = match function.run {
            Run::Plain(plain) => {
                let size = values.iter().map(|value| self.memory.size(value)).sum::<usize>();
                self.memory.work(size / 64).and_then(|()| plain(&mut self.memory, &values))
            }
            // None of the arguments has decided it.
            Run::And | Run::Or => Ok(values.pop().unwrap_or(Value::Missing)),
            Run::Include | Run::Tpl => {
                let data = values.pop().unwrap_or(Value::Nil);
                let text = values.pop();
                let text = text.as_ref().and_then(Value::as_text).unwrap_or_default();
                let rendered = self.deeper_by(2, at, |renderer| {
                    Ok(match function.run {
                        Run::Include => renderer.include(text, data),
                        _ => renderer.tpl(text, data),
                    })
                });
                rendered?
            }
        };
        result.map_err(|fault| match fault {
            Fault::Message(message) => self.error(at, format!("error calling {name}: {message}")),
            Fault::Limit(message) => self.at(at, Fault::Limit(format!("{name}: {message}"))),
            inner => self.at(at, inner),
        })
    }

    /// The value of an argument. Constants take the kind that is wanted.
    fn argument(
        &mut self,
        function: &Function,
        index: usize,
        wanted: Param,
        term: &Term,
        dot: &Value,
    ) -> Result<Value, Error> {
        let refuse = |renderer: &Self, found: &str| {
            let (name, number, wanted) = (function.name, index + 1, wanted.type_name());
            let message =
                format!("wrong type for argument {number} of {name}: expected {wanted}, found {found}");
            Err(renderer.error(term.at, message))
        };
        match (&term.operand, wanted) {
            (Operand::Nil, Param::Any | Param::Dict) => Ok(Value::Nil),
            (Operand::Nil, _) => refuse(self, "nil"),
            (Operand::Bool(bool), Param::Any | Param::Bool) => Ok(Value::Bool(*bool)),
            (Operand::Bool(_), _) => refuse(self, "a bool"),
            (Operand::Text(text), Param::Any | Param::Text) => Ok(Value::Text(text.clone())),
            (Operand::Text(_), _) => refuse(self, "a string"),
            (Operand::Number(number), Param::Any) => Ok(constant(number)),
            (Operand::Number(Number { int: Some(int), .. }), Param::Int) => Ok(Value::Int(*int)),
            (Operand::Number(Number { float: Some(float), .. }), Param::Float) => Ok(Value::Float(*float)),
            (Operand::Number(_), _) => refuse(self, "a number"),
            _ => {
                let value = self.term(term, dot)?;
                self.accept(function, index, wanted, value, term.at)
            }
        }
    }

    /// Whether a value can be given for a parameter. Nothing is converted: that is what functions are for.
    fn accept(
        &self,
        function: &Function,
        index: usize,
        wanted: Param,
        value: Value,
        at: usize,
    ) -> Result<Value, Error> {
        let fits = match (&value, wanted) {
            (_, Param::Any) | (Value::Missing, Param::Dict) => return Ok(value.inside()),
            (Value::Text(_), Param::Text)
            | (Value::Int(_), Param::Int)
            | (Value::Float(_), Param::Float)
            | (Value::Bool(_), Param::Bool) => true,
            (Value::Map(map), Param::Dict) => self.memory.element(*map) == Element::Any,
            _ => false,
        };
        if fits {
            return Ok(value);
        }
        let (name, number) = (function.name, index + 1);
        let hint = match wanted {
            _ if value.is_nil() => "; is there such a key? `default` gives it a value",
            Param::Text => "; convert it with toString",
            Param::Int => "; convert it with int",
            Param::Float => "; convert it with float64",
            _ => "",
        };
        let found = if value.is_nil() { "no value".to_owned() } else { self.memory.type_name(&value) };
        let wanted = wanted.type_name();
        let message =
            format!("wrong type for argument {number} of {name}: expected {wanted}, got {found}{hint}");
        Err(self.error(at, message))
    }
}

/// A number that nothing wants to be of some kind.
fn constant(number: &Number) -> Value {
    match number {
        Number { float: Some(float), written_as_float: true, .. } => Value::Float(*float),
        Number { int: Some(int), .. } => Value::Int(*int),
        Number { float, .. } => Value::Float(float.unwrap_or(f64::NAN)),
    }
}
