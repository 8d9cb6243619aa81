//! Runs the Pods that are bound to this node, and tells the API how they do.

mod machine;
mod status;

pub use machine::Timing;
