//! Where in an object the walk is: a list on the stack, written out only when something is wrong there.

use std::fmt::Write;

/// One step from the root of an object, linked to the steps before it.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root(&'a str),
    Field(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    /// The start; `base` is what comes before everything (often nothing).
    pub(crate) fn root(base: &'a str) -> Self {
        Self { parent: None, step: Step::Root(base) }
    }

    /// Into a declared property.
    pub(crate) fn field(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Field(name) }
    }

    /// Into the value of a map.
    pub(crate) fn key(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Key(name) }
    }

    /// Into the element of a list.
    pub(crate) fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), step: Step::Index(index) }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    /// `spec.labels.app`: as the schema validator and the decoder write it.
    pub(crate) fn dotted(&self) -> String {
        self.written(false)
    }

    /// `spec.labels[app]`: as field paths are written everywhere else.
    pub(crate) fn bracketed(&self) -> String {
        self.written(true)
    }

    fn written(&self, brackets: bool) -> String {
        let mut steps = Vec::new();
        let mut at = Some(self);
        while let Some(path) = at {
            steps.push(path.step);
            at = path.parent;
        }
        let mut text = String::new();
        for step in steps.into_iter().rev() {
            match step {
                Step::Root(base) => text.push_str(base),
                Step::Key(name) if brackets => {
                    let _ = write!(text, "[{name}]");
                }
                Step::Field(name) | Step::Key(name) => {
                    if !text.is_empty() {
                        text.push('.');
                    }
                    text.push_str(name);
                }
                Step::Index(index) => {
                    let _ = write!(text, "[{index}]");
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_written_in_two_ways() {
        let root = Path::root("");
        let spec = root.field("spec");
        let labels = spec.field("labels");
        let app = labels.key("app");
        let item = app.index(3);
        assert_eq!(item.dotted(), "spec.labels.app[3]");
        assert_eq!(item.bracketed(), "spec.labels[app][3]");
        assert_eq!(root.dotted(), "");
    }
}
