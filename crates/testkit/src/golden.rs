//! Golden files: what the real server answered, committed; read to compare, written only when recording.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

/// Where the golden files of this crate are.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// Reads a golden JSON document.
pub fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("no golden file {}", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}

/// Writes a golden JSON document: pretty, keys sorted, one final line end.
pub fn write_json(path: &Path, value: &Value) -> Result<()> {
    write_text(path, &format!("{value:#}\n"))
}

/// Writes a golden text file.
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    Ok(std::fs::write(path, text)?)
}
