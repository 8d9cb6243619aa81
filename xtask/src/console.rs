//! Whether what the console's crate serves, and the library that the forge bundles, are what `console/` builds, and whether that
//! is sound TypeScript that reads objects as it should.

use std::process::Command;

use anyhow::Result;

use crate::process::succeeds;
use crate::{Settings, setup};

/// `false` when the committed files are others, or types do not fit.
pub(crate) fn check(settings: &Settings) -> Result<bool> {
    let node = match setup::console::node(settings).and_then(|node| {
        setup::console::modules(settings)?;
        Ok(node)
    }) {
        Ok(node) => node,
        Err(error) => {
            eprintln!("SKIPPED: whether the console is built from its source: {error:#}");
            return Ok(!settings.strict);
        }
    };
    let console = settings.root.join("console");
    let mut sound = true;
    let steps = [
        &["node_modules/typescript/bin/tsc", "--noEmit"][..],
        &["build.mjs", "--check"],
        &["tests/unit.mjs"],
    ];
    for arguments in steps {
        sound &= succeeds(Command::new(&node).current_dir(&console).args(arguments))?;
    }
    Ok(sound)
}
