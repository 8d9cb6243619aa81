//! Our own terminal: raw while a remote one stands in for it, and put right on every way out, a panic included.

use anyhow::Context;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// The terminal passes every key on and echoes nothing, as long as this lives.
pub(crate) struct Raw {
    before: Termios,
}

impl Raw {
    pub(crate) fn enter() -> anyhow::Result<Self> {
        let before = tcgetattr(std::io::stdin()).context("cannot ask the terminal for its settings")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw)
            .context("cannot change the terminal's settings")?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs no settings.
        let _gone = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Columns and rows.
pub(crate) fn size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(std::io::stdin()).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}
