//! Walks a tree and writes what it says: blocks, loops, variables, templates that call others.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::error::{Error, Fault, Kind};
use crate::functions::core::is_true;
use crate::memory::{Memory, Numbers};
use crate::print::{Out, print};
use crate::tree::{Block, Branch, Node, Pipe, Source, Tree};
use crate::value::Value;
use crate::{Limits, Missing, Templates, parser};

/// What Go prints for no value.
const NO_VALUE: &str = "<no value>";

/// How a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    On,
    Break,
    Continue,
}

/// One rendering.
pub(crate) struct Renderer<'a> {
    templates: &'a Templates,
    /// What `tpl` has defined meanwhile, the innermost last.
    added: Vec<BTreeMap<Arc<str>, Arc<Tree>>>,
    pub(crate) memory: Memory,
    /// Of the template that is walked, in the order of their declaration.
    variables: Vec<(Arc<str>, Value)>,
    source: Arc<Source>,
    out: Out,
    depth: usize,
}

impl<'a> Renderer<'a> {
    pub(crate) fn new(templates: &'a Templates, limits: &Limits) -> Renderer<'a> {
        Renderer {
            templates,
            added: Vec::new(),
            memory: Memory::new(limits),
            variables: Vec::new(),
            source: Arc::new(Source { name: "".into(), text: "".into() }),
            out: Out::new(limits.output),
            depth: 0,
        }
    }

    pub(crate) fn render(mut self, name: &str, data: &Json) -> Result<String, Error> {
        self.source = Arc::new(Source { name: name.into(), text: "".into() });
        let tree = self.tree(name).ok_or_else(|| self.error(0, self.not_defined(name)))?;
        self.source = tree.source.clone();
        let data = self.memory.read_json(data, Numbers::Whole).map_err(|fault| self.at(0, fault))?;
        self.template(&tree, data.outside())?;
        let text = self.out.take();
        Ok(self.without_no_value(text))
    }

    pub(crate) fn missing(&self) -> Missing {
        self.templates.missing
    }

    /// Helm takes the words away that Go prints for no value.
    fn without_no_value(&self, text: String) -> String {
        match self.missing() {
            Missing::Empty if text.contains(NO_VALUE) => text.replace(NO_VALUE, ""),
            _ => text,
        }
    }

    fn tree(&self, name: &str) -> Option<Arc<Tree>> {
        let added = self.added.iter().rev().find_map(|trees| trees.get(name));
        added.or_else(|| self.templates.trees.get(name)).cloned()
    }

    fn not_defined(&self, name: &str) -> String {
        let all: Vec<String> = self.templates.names().take(10).map(|name| format!("{name:?}")).collect();
        format!("template {name:?} not defined; those that are: {}", all.join(", "))
    }

    pub(crate) fn error(&self, at: usize, message: String) -> Error {
        self.source.error(Kind::Evaluation, at, message)
    }

    /// A fault of a function, where it was called.
    pub(crate) fn at(&self, at: usize, fault: Fault) -> Error {
        match fault {
            Fault::Message(message) => self.error(at, message),
            Fault::Limit(message) => self.source.error(Kind::Limit, at, message),
            Fault::Inner(error) => error.called_from(self.source.place(at)),
        }
    }

    /// One level further in, unless that is too deep.
    pub(crate) fn deeper<T>(
        &mut self,
        at: usize,
        inner: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.deeper_by(1, at, inner)
    }

    /// The same for what takes more of the stack.
    pub(crate) fn deeper_by<T>(
        &mut self,
        levels: usize,
        at: usize,
        inner: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let limit = self.memory.limits().depth.min(Limits::DEEPEST);
        if self.depth + levels > limit {
            let message = format!("nested deeper than {limit}; does a template call itself without end?");
            return Err(self.source.error(Kind::Limit, at, message));
        }
        self.depth += levels;
        let result = inner(self);
        self.depth -= levels;
        result
    }

    /// Another template, with variables of its own.
    fn template(&mut self, tree: &Tree, dot: Value) -> Result<(), Error> {
        let variables = std::mem::replace(&mut self.variables, vec![("$".into(), dot.clone())]);
        let source = std::mem::replace(&mut self.source, tree.source.clone());
        self.block(&tree.root, &dot)?;
        self.variables = variables;
        self.source = source;
        Ok(())
    }

    /// Renders a template by its name into a text, for `include`.
    pub(crate) fn include(&mut self, name: &str, data: Value) -> Result<Value, Fault> {
        let Some(tree) = self.tree(name) else { return Err(Fault::Message(self.not_defined(name))) };
        let text = self.aside(|renderer| renderer.template(&tree, data.outside()))?;
        self.memory.text(text)
    }

    /// Renders a text as a template, for `tpl`. What it defines, others see while it is rendered.
    pub(crate) fn tpl(&mut self, text: &str, data: Value) -> Result<Value, Fault> {
        let limit = self.memory.limits().source;
        if text.len() > limit {
            return Err(Fault::Limit(format!("the text is larger than {limit} bytes")));
        }
        self.memory.work(text.len() / 16)?;
        let trees = parser::parse("tpl", text).map_err(|error| Fault::Inner(Box::new(error)))?;
        let mut trees: BTreeMap<Arc<str>, Arc<Tree>> =
            trees.into_iter().map(|(name, tree)| (name, Arc::new(tree))).collect();
        let Some(main) = trees.remove("tpl") else { return Ok(Value::text("")) };
        trees.retain(|name, tree| !crate::tree::is_empty(&tree.root) || self.tree(name).is_none());
        self.added.push(trees);
        let text = self.aside(|renderer| renderer.template(&main, data.outside()))?;
        self.added.pop();
        let text = self.without_no_value(text);
        self.memory.text(text)
    }

    /// Collects what is written meanwhile.
    fn aside(&mut self, inner: impl FnOnce(&mut Self) -> Result<(), Error>) -> Result<String, Fault> {
        let empty = Out::new(self.memory.limits().output);
        let outer = std::mem::replace(&mut self.out, empty);
        inner(self).map_err(|error| Fault::Inner(Box::new(error)))?;
        Ok(std::mem::replace(&mut self.out, outer).take())
    }

    fn block(&mut self, block: &Block, dot: &Value) -> Result<Flow, Error> {
        for node in block {
            let flow = self.node(node, dot)?;
            if flow != Flow::On {
                return Ok(flow);
            }
        }
        Ok(Flow::On)
    }

    fn node(&mut self, node: &Node, dot: &Value) -> Result<Flow, Error> {
        match node {
            Node::Text { at, text } => {
                self.out.push(text).map_err(|fault| self.at(*at, fault))?;
            }
            Node::Action(pipe) => self.action(pipe, dot)?,
            Node::If(branch) => return self.branch(branch, dot, false),
            Node::With(branch) => return self.branch(branch, dot, true),
            Node::Range(branch) => return self.range(branch, dot),
            Node::Template { at, name, pipe } => self.call_template(*at, name, pipe.as_ref(), dot)?,
            Node::Break => return Ok(Flow::Break),
            Node::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    fn action(&mut self, pipe: &Pipe, dot: &Value) -> Result<(), Error> {
        let value = self.pipe(pipe, dot)?;
        if !pipe.variables.is_empty() {
            return Ok(());
        }
        let written = match value {
            Value::Missing => self.out.push(NO_VALUE),
            value => print(&self.memory, &mut self.out, &value),
        };
        written.map_err(|fault| self.at(pipe.at, fault))
    }

    fn call_template(
        &mut self,
        at: usize,
        name: &str,
        pipe: Option<&Pipe>,
        dot: &Value,
    ) -> Result<(), Error> {
        let Some(tree) = self.tree(name) else { return Err(self.error(at, self.not_defined(name))) };
        let dot = match pipe {
            Some(pipe) => self.pipe(pipe, dot)?,
            None => Value::Missing,
        };
        let place = (self.source.clone(), at);
        let called = self.deeper(at, |renderer| renderer.template(&tree, dot));
        called.map_err(|error| error.called_from(place.0.place(place.1)))
    }

    fn branch(&mut self, branch: &Branch, dot: &Value, sets_dot: bool) -> Result<Flow, Error> {
        let declared = self.variables.len();
        let value = self.pipe(&branch.pipe, dot)?;
        let flow = self.deeper(branch.pipe.at, |renderer| match &branch.otherwise {
            _ if is_true(&renderer.memory, &value) => {
                renderer.block(&branch.then, if sets_dot { &value } else { dot })
            }
            Some(otherwise) => renderer.block(otherwise, dot),
            None => Ok(Flow::On),
        })?;
        self.variables.truncate(declared);
        Ok(flow)
    }

    fn range(&mut self, branch: &Branch, dot: &Value) -> Result<Flow, Error> {
        let declared = self.variables.len();
        let value = self.pipe(&branch.pipe, dot)?;
        let flow = self.deeper(branch.pipe.at, |renderer| renderer.iterate(branch, &value, dot))?;
        self.variables.truncate(declared);
        Ok(flow)
    }

    fn iterate(&mut self, branch: &Branch, value: &Value, dot: &Value) -> Result<Flow, Error> {
        let at = branch.pipe.at;
        let mut ran = false;
        match value {
            Value::Missing | Value::Nil => {}
            Value::List(list) => {
                for (index, item) in list.items.iter().enumerate() {
                    ran = true;
                    if !self.iteration(branch, Value::Int(index as i64), item)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                self.memory.work(self.memory.size(value) / 64).map_err(|fault| self.at(at, fault))?;
                let entries: Vec<(Arc<str>, Value)> = self
                    .memory
                    .entries(*map)
                    .iter()
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                for (key, value) in entries {
                    ran = true;
                    if !self.iteration(branch, Value::Text(key), &value)? {
                        break;
                    }
                }
            }
            Value::Int(count) | Value::Int64(count) => {
                self.one_variable(branch)?;
                let same_kind = |number| {
                    if matches!(value, Value::Int(_)) { Value::Int(number) } else { Value::Int64(number) }
                };
                for number in 0..*count {
                    ran = true;
                    if !self.iteration(branch, Value::Missing, &same_kind(number))? {
                        break;
                    }
                }
            }
            Value::Uint64(count) => {
                self.one_variable(branch)?;
                for number in 0..*count {
                    ran = true;
                    if !self.iteration(branch, Value::Missing, &Value::Uint64(number))? {
                        break;
                    }
                }
            }
            other => {
                let kind = self.memory.type_name(other);
                return Err(self.error(
                    at,
                    format!("range can't iterate over a {kind}; it wants a list, a map or a number"),
                ));
            }
        }
        match &branch.otherwise {
            Some(otherwise) if !ran => self.block(otherwise, dot),
            _ => Ok(Flow::On),
        }
    }

    fn one_variable(&self, branch: &Branch) -> Result<(), Error> {
        if branch.pipe.variables.len() > 1 {
            let message = "can't use a number to iterate over more than one variable".to_owned();
            return Err(self.error(branch.pipe.at, message));
        }
        Ok(())
    }

    /// One turn of a loop; whether there is another.
    fn iteration(&mut self, branch: &Branch, key: Value, item: &Value) -> Result<bool, Error> {
        self.memory.work(1).map_err(|fault| self.at(branch.pipe.at, fault))?;
        let pipe = &branch.pipe;
        let values = match pipe.variables.len() {
            0 => vec![],
            1 => vec![item.clone()],
            _ => vec![key, item.clone()],
        };
        // The variables of the loop are the last ones, unless they were declared outside of it.
        let own = self.variables.len().saturating_sub(values.len());
        for (index, value) in values.into_iter().enumerate() {
            if pipe.assigns {
                self.assign(&pipe.variables[index], value, pipe.at)?;
            } else if let Some(variable) = self.variables.get_mut(own + index) {
                variable.1 = value;
            }
        }
        let declared = self.variables.len();
        let flow = self.block(&branch.then, item)?;
        self.variables.truncate(declared);
        Ok(flow != Flow::Break)
    }

    pub(crate) fn declare(&mut self, name: Arc<str>, value: Value) {
        self.variables.push((name, value));
    }

    pub(crate) fn assign(&mut self, name: &str, value: Value, at: usize) -> Result<(), Error> {
        match self.variables.iter_mut().rev().find(|(declared, _)| **declared == *name) {
            Some(variable) => {
                variable.1 = value;
                Ok(())
            }
            None => Err(self.error(at, format!("undefined variable: {name}; declare it with :="))),
        }
    }

    pub(crate) fn variable(&self, name: &str, at: usize) -> Result<Value, Error> {
        let found = self.variables.iter().rev().find(|(declared, _)| **declared == *name);
        found
            .map(|(_, value)| value.clone())
            .ok_or_else(|| self.error(at, format!("undefined variable: {name}")))
    }
}
