//! What a template says, parsed. Nodes know where they stand in their text, for errors.

use std::sync::Arc;

use crate::error::{Error, Kind, Place};
use crate::functions::Function;

/// Where the text of templates came from: shared by all that are defined in it.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) name: Arc<str>,
    pub(crate) text: Arc<str>,
}

impl Source {
    /// The line and column of a byte.
    pub(crate) fn place(&self, at: usize) -> Place {
        let before = self.text.get(..at).unwrap_or(&self.text);
        let line_begin = before.rfind('\n').map_or(0, |newline| newline + 1);
        Place {
            template: self.name.to_string(),
            line: 1 + before.matches('\n').count(),
            column: 1 + before[line_begin..].chars().count(),
        }
    }

    /// An error at a byte.
    pub(crate) fn error(&self, kind: Kind, at: usize, message: String) -> Error {
        Error { kind, place: self.place(at), action: self.action(at), message, called_from: Vec::new() }
    }

    /// The action around a byte, made to fit into a line.
    fn action(&self, at: usize) -> String {
        const LONGEST: usize = 100;
        let (before, after) = self.text.split_at_checked(at).unwrap_or((&self.text, ""));
        let Some(begin) = before.rfind("{{").or_else(|| after.starts_with("{{").then_some(at)) else {
            return String::new();
        };
        let action = &self.text[begin..];
        let end = action.find("}}").map_or(action.len(), |end| end + 2);
        if begin + end < at {
            // The byte is in the text after the action.
            return String::new();
        }
        let words: Vec<&str> = action[..end].split_whitespace().take(LONGEST).collect();
        let line = words.join(" ");
        match line.char_indices().nth(LONGEST) {
            Some((cut, _)) => format!("{}…", &line[..cut]),
            None => line,
        }
    }
}

/// A template by its name.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) source: Arc<Source>,
    pub(crate) root: Block,
}

/// What stands between two actions of a control structure.
pub(crate) type Block = Vec<Node>;

/// A piece of a template.
#[derive(Debug)]
pub(crate) enum Node {
    Text { at: usize, text: Arc<str> },
    Action(Pipe),
    If(Branch),
    With(Branch),
    Range(Branch),
    Template { at: usize, name: Arc<str>, pipe: Option<Pipe> },
    Break,
    Continue,
}

/// `if`, `with` and `range`.
#[derive(Debug)]
pub(crate) struct Branch {
    pub(crate) pipe: Pipe,
    pub(crate) then: Block,
    pub(crate) otherwise: Option<Block>,
}

/// Commands, each of which gets the value of the one before as its last argument.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) at: usize,
    /// Variables that are declared or, with `assigns`, set.
    pub(crate) variables: Vec<Arc<str>>,
    pub(crate) assigns: bool,
    pub(crate) commands: Vec<Command>,
}

/// A value, or a function and its arguments.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) first: Term,
    pub(crate) arguments: Vec<Term>,
}

#[derive(Debug)]
pub(crate) struct Term {
    pub(crate) at: usize,
    pub(crate) operand: Operand,
}

#[derive(Debug)]
pub(crate) enum Operand {
    Dot,
    Nil,
    Bool(bool),
    Number(Number),
    Text(Arc<str>),
    /// `.a.b`
    Field(Vec<Arc<str>>),
    /// `$x.a.b`
    Variable(Arc<str>, Vec<Arc<str>>),
    Function(&'static Function),
    Pipe(Box<Pipe>),
    /// `(…).a.b`
    Chain(Box<Term>, Vec<Arc<str>>),
}

/// A number as it was written: what kind of number it is, its use decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Number {
    /// Its value, if it is whole and fits.
    pub(crate) int: Option<i64>,
    /// Its value, if it is not too large for any whole number.
    pub(crate) float: Option<f64>,
    /// Whether it was written as a fraction or with an exponent.
    pub(crate) written_as_float: bool,
}

/// Whether there is nothing in it but space: such a template does not replace another of its name.
pub(crate) fn is_empty(block: &Block) -> bool {
    block.iter().all(|node| matches!(node, Node::Text { text, .. } if text.trim().is_empty()))
}
