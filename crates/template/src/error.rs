//! What is wrong with a template, and where. Everything that can go wrong is one of these; nothing panics.

use std::fmt;

/// A place in a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The name that the template was given.
    pub template: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.template, self.line, self.column)
    }
}

/// Why there is no output. Trying again does not help: the template, the data or a limit has to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Whether the text of a template is wrong, what it did with the data, or how much it wanted.
    pub kind: Kind,
    /// Where it happened: the innermost place.
    pub place: Place,
    /// The action it happened in, on one line and not longer than can be read.
    pub action: String,
    /// What is wrong, and what to do about it where that is known.
    pub message: String,
    /// The `include`, `template` and `tpl` actions that led there, innermost first; of many, the nearest.
    pub called_from: Vec<Place>,
}

/// What kind of thing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The text of a template.
    Syntax,
    /// What a template does with its data.
    Evaluation,
    /// A limit was reached.
    Limit,
}

impl Error {
    /// How many callers are named.
    const CALLERS: usize = 4;

    /// The same, seen from the place of a caller.
    pub(crate) fn called_from(mut self, place: Place) -> Error {
        if self.called_from.len() < Self::CALLERS {
            self.called_from.push(place);
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.action.is_empty() {
            write!(f, "{}: ", self.action)?;
        }
        // Messages may quote what templates or data say, with line breaks in it.
        for (index, line) in self.message.lines().enumerate() {
            write!(f, "{}{line}", if index == 0 { "" } else { " ⏎ " })?;
        }
        for (index, place) in self.called_from.iter().enumerate() {
            write!(f, "{}{place}", if index == 0 { " (called from " } else { ", " })?;
        }
        f.write_str(if self.called_from.is_empty() { "" } else { ")" })
    }
}

impl std::error::Error for Error {}

/// An error of a function, which does not know where it was called.
#[derive(Debug)]
pub(crate) enum Fault {
    /// What is wrong.
    Message(String),
    /// A limit was reached.
    Limit(String),
    /// An error of a template that the function rendered.
    Inner(Box<Error>),
}

impl From<String> for Fault {
    fn from(message: String) -> Fault {
        Fault::Message(message)
    }
}

impl From<&str> for Fault {
    fn from(message: &str) -> Fault {
        Fault::Message(message.to_owned())
    }
}
