//! The built-in kinds.
