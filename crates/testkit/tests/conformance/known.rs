//! The known differences between the embedded server and the real one. They are rendered into
//! `docs/CONFORMANCE.md`; one that no longer occurs fails the suite.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::cases::Case;

/// A place in a transcript that may differ on the embedded server.
pub(crate) struct Known {
    pub(crate) case: &'static str,
    /// JSON pointer into the transcript; everything below it may differ.
    pub(crate) pointer: &'static str,
    pub(crate) reason: &'static str,
}

pub(crate) const DIFFERENCES: &[Known] = &[];

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CONFORMANCE.md")
}

/// The text of `docs/CONFORMANCE.md`.
fn render(cases: &[Case]) -> String {
    let mut areas: BTreeMap<&str, usize> = BTreeMap::new();
    for case in cases {
        *areas.entry(case.area).or_default() += 1;
    }
    let mut text = String::from(include_str!("conformance.md"));
    text.push_str("\n## Cases\n\n| area | cases |\n|---|---|\n");
    for (area, count) in areas {
        text.push_str(&format!("| {area} | {count} |\n"));
    }
    text.push_str(&format!("| all | {} |\n\n## Known differences\n\n", cases.len()));
    if DIFFERENCES.is_empty() {
        text.push_str("None.\n");
    } else {
        text.push_str("| case | where | reason |\n|---|---|---|\n");
    }
    for known in DIFFERENCES {
        text.push_str(&format!("| {} | `{}` | {} |\n", known.case, known.pointer, known.reason));
    }
    text
}

/// Writes the document.
pub(crate) fn write_document(cases: &[Case]) -> Result<()> {
    agentcube_testkit::golden::write_text(&document(), &render(cases))
}

/// Whether the document says what the suite does.
pub(crate) fn check_document(cases: &[Case]) -> Result<()> {
    let committed = std::fs::read_to_string(document()).unwrap_or_default();
    ensure!(committed == render(cases), "docs/CONFORMANCE.md is out of date: run `cargo xtask gen`");
    Ok(())
}
