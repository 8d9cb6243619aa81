//! Colours, for terminals that want them.

use crate::environment::Stream;

/// Paints, or leaves text as it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint(bool);

impl Paint {
    pub(crate) fn on(stream: Stream) -> Self {
        Self(stream.colour)
    }

    #[cfg(test)]
    pub(crate) fn off() -> Self {
        Self(false)
    }

    pub(crate) fn good(self, text: &str) -> String {
        self.wrap("32", text)
    }

    pub(crate) fn warning(self, text: &str) -> String {
        self.wrap("33", text)
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.wrap("31", text)
    }

    pub(crate) fn strong(self, text: &str) -> String {
        self.wrap("1", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.0 && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
