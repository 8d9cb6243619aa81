//! Patches, field sets, managed fields and server-side apply, as pure functions over JSON values.
//!
//! Nothing here reads a clock, a store or a request: times and names come from the caller.

pub mod error;
pub mod fields;
mod fields_v1;
mod go_text;
pub mod json_patch;
pub mod managed;
pub mod merge_patch;
pub mod strategic;
mod typed;

pub use error::{ApplyError, Conflict, PatchError};
pub use fields::{FieldSet, PathElement};
pub use typed::blank;

/// Nesting beyond which values are taken as a whole. Request bodies are parsed with a lower limit, so
/// only values made by other means can reach it.
const MAX_DEPTH: usize = 192;
