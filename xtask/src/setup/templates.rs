//! Builds the program that renders templates by Go itself: what our engine is compared with. Its source is beside the tests; the program
//! is kept in the cache and is no part of this repository.

use anyhow::Result;

use super::{go, go_command};
use crate::Settings;
use crate::process::{quietly, timed};

/// Where it is in the cache; the tests know it too.
const PROGRAM: &str = "templates/go-templates";

/// Makes sure that the program is there and is what its source says, which Go sees by itself.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    let go = go(settings)?;
    let source = settings.root.join("crates/template/tests/go");
    let target = settings.cache.join(PROGRAM);
    if let Some(directory) = target.parent() {
        std::fs::create_dir_all(directory)?;
    }
    timed("building Go's side of the templates", || {
        let mut command = go_command(&go, &source);
        command.args(["build", "-trimpath", "-o"]).arg(&target).arg(".");
        quietly(&mut command).map(|_| ())
    })
}
